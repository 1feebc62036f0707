"""The queue's tables and functions in a schema of the database, and how each version of them is installed.

The numbered files in `sql/` are applied in order, each once, by one process at a time. They only add, so that
processes of the version before go on working meanwhile.
"""

import re
from collections.abc import Iterator
from importlib import resources
from typing import Final, NamedTuple

from pump.errors import ConfigurationError, SetupError
from pump.queue.postgres.connection import Connection, execute, rows

SCHEMA: Final = re.compile("[a-z_][a-z0-9_]{0,47}")
IN_FILES: Final = "message_pump."
NUMBERED: Final = re.compile(r"(\d{3})_\w+\.sql")


class Migration(NamedTuple):
    """One file."""

    number: int
    text: str


def checked_schema(name: str) -> str:
    """The schema's name, or ConfigurationError: it is the only name that is written into statements."""
    if not SCHEMA.fullmatch(name):
        raise ConfigurationError(f"{name!r} is no schema for a queue: a-z, 0-9 and _, at most 48, no digit first")
    return name


def in_schema(schema: str, statement: str) -> bytes:
    """The statement with this schema in place of `message_pump`."""
    return statement.replace(IN_FILES, f'"{schema}".').replace("'message_pump'", f"'{schema}'").encode()


def migrations() -> Iterator[Migration]:
    """All migrations, in order."""
    for file in sorted((resources.files("pump.queue.postgres") / "sql").iterdir(), key=lambda file: file.name):
        if found := NUMBERED.fullmatch(file.name):
            yield Migration(int(found[1]), file.read_text(encoding="utf-8"))


def migrate(connection: Connection, schema: str) -> None:
    """Bring the schema up to date; refuse one of a newer version."""
    known = list(migrations())
    if version_of(connection, schema) == known[-1].number:
        return
    with connection.transaction():
        execute(connection, TIMEOUTS)
        execute(connection, b"select pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"message-pump {schema}",))
        version = version_of(connection, schema)
        if version > known[-1].number:
            raise SetupError(
                f"schema {schema} has version {version}; this code knows up to {known[-1].number}: update it"
            )
        if version == 0:
            make_schema(connection, schema)
        for migration in known[version:]:
            execute(connection, in_schema(schema, migration.text), prepare=False)
            execute(connection, in_schema(schema, RECORD), (migration.number,))


def version_of(connection: Connection, schema: str) -> int:
    """The number of the last migration that was applied; 0 if there is none."""
    if not rows(connection, FIND, (schema,)):
        return 0
    ((number,),) = rows(connection, in_schema(schema, "select max(number) from message_pump.schema_version"))
    return number or 0


def make_schema(connection: Connection, schema: str) -> None:
    """Create the schema, unless somebody with the right to has done so, and the table of what was applied."""
    if not rows(connection, b"select 1 from pg_namespace where nspname = %s", (schema,)):
        execute(connection, f'create schema "{schema}"'.encode())
    execute(connection, in_schema(schema, VERSIONS))


TIMEOUTS: Final = b"select set_config('lock_timeout', '5s', true), set_config('statement_timeout', '0', true)"
# Not `to_regclass`, which may not see yet what was created while this transaction waited for its lock.
FIND: Final = (
    b"select 1 from pg_class c join pg_namespace n on n.oid = c.relnamespace"
    b" where n.nspname = %s and c.relname = 'schema_version'"
)
VERSIONS: Final = """
create table if not exists message_pump.schema_version (
    number integer primary key, applied_at timestamptz not null default clock_timestamp()
)
"""
RECORD: Final = "insert into message_pump.schema_version (number) values (%s)"
