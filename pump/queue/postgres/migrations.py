"""The queue's tables and functions in a schema of the database, and how each version of them is installed.

The numbered files in `sql/` are applied in order, each once, by one process at a time. They only add, so that
processes of the version before go on working meanwhile.
"""

import re
from importlib import resources
from typing import Final

from pump.errors import ConfigurationError, SetupError
from pump.queue.postgres.connection import Connection, execute, rows

SCHEMA: Final = re.compile("[a-z_][a-z0-9_]{0,47}")


def checked_schema(name: str) -> str:
    """The schema's name, or ConfigurationError: it is the only name that is written into statements."""
    if not SCHEMA.fullmatch(name):
        raise ConfigurationError(f"{name!r} is no schema for a queue: a-z, 0-9 and _, at most 48, no digit first")
    return name


def in_schema(schema: str, statement: str) -> bytes:
    """The statement with this schema in place of `message_pump`."""
    return statement.replace("message_pump.", f'"{schema}".').replace("'message_pump'", f"'{schema}'").encode()


def migrations() -> list[str]:
    """The text of each file; the first one has the number 1."""
    files = {file.name: file for file in (resources.files("pump.queue.postgres") / "sql").iterdir()}
    return [files[name].read_text(encoding="utf-8") for name in sorted(files) if name.endswith(".sql")]


def migrate(connection: Connection, schema: str) -> None:
    """Bring the schema up to date; refuse one of a newer version."""
    known = migrations()
    if version_of(connection, schema) == len(known):
        return
    with connection.transaction():
        execute(connection, TIMEOUTS)
        execute(connection, b"select pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"message-pump {schema}",))
        version = version_of(connection, schema)
        if version > len(known):
            raise SetupError(f"schema {schema} has version {version}; this code knows up to {len(known)}: update it")
        # It may exist already: not everybody has the right to create a schema.
        if version == 0 and not rows(connection, b"select 1 from pg_namespace where nspname = %s", (schema,)):
            execute(connection, f'create schema "{schema}"'.encode())
        for number in range(version, len(known)):
            execute(connection, in_schema(schema, known[number]), prepare=False)
            execute(connection, in_schema(schema, RECORD), (number + 1,))


def version_of(connection: Connection, schema: str) -> int:
    """The number of the last migration that was applied; 0 if there is none."""
    if not rows(connection, FIND, (schema,)):
        return 0
    ((number,),) = rows(connection, in_schema(schema, "select max(number) from message_pump.schema_version"))
    return number or 0


TIMEOUTS: Final = b"select set_config('lock_timeout', '5s', true), set_config('statement_timeout', '0', true)"
# Not `to_regclass`, which may not see yet what was created while this transaction waited for its lock.
FIND: Final = (
    b"select 1 from pg_class c join pg_namespace n on n.oid = c.relnamespace"
    b" where n.nspname = %s and c.relname = 'schema_version'"
)
RECORD: Final = "insert into message_pump.schema_version (number) values (%s)"
