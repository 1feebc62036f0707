"""The queue's tables and functions in a schema of the database, and how each version of them is installed.

The numbered files in `sql/` are applied in order, each once, by one process at a time. They only add, so that processes
of the version before can keep working. A file that was published is never edited, apart from comments: PostgreSQL
replaces a function only as a whole, so a file that corrects one function repeats most of its text.
"""

import re
from collections.abc import Sequence
from hashlib import sha256
from importlib import resources
from typing import Any, Final

from psycopg.errors import DuplicateFunction, DuplicateObject, DuplicateTable

from pump.errors import ConfigurationError, SetupError
from pump.queue.postgres.connection import Connection, execute, rows

SCHEMA: Final = re.compile("[a-z_][a-z0-9_]{0,47}")


def checked_schema(name: str) -> str:
    """The schema's name, or ConfigurationError: it is the only name that is written into statements."""
    if not SCHEMA.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} cannot be the schema of a queue: it has a-z, 0-9 and _, at most 48, and no digit first"
        )
    return name


def in_schema(schema: str, statement: str) -> bytes:
    """The statement with this schema in place of `message_pump`."""
    return statement.replace("message_pump.", f'"{schema}".').replace("'message_pump'", f"'{schema}'").encode()


def migrations() -> list[str]:
    """The text of each file; the first one has the number 1."""
    files = {file.name: file for file in (resources.files("pump.queue.postgres") / "sql").iterdir()}
    return [files[name].read_text(encoding="utf-8") for name in sorted(files) if name.endswith(".sql")]


def migrate(connection: Connection, schema: str) -> None:
    """Bring the schema up to date; SetupError if its version is newer, or its tables are not this code's."""
    known = migrations()
    if version_of(connection, schema, known) == len(known):
        return
    with connection.transaction():
        execute(connection, TIMEOUTS)
        execute(connection, b"select pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"message-pump {schema}",))
        version = version_of(connection, schema, known)
        # Created only if it is missing: not every user has the right to create a schema.
        if version == 0 and not rows(connection, b"select 1 from pg_namespace where nspname = %s", (schema,)):
            execute(connection, f'create schema "{schema}"'.encode())
        try:
            for number in range(version, len(known)):
                execute(connection, in_schema(schema, known[number]), prepare=False)
                execute(connection, in_schema(schema, RECORD), (number + 1, digest(known[number])))
        except (DuplicateTable, DuplicateObject, DuplicateFunction):
            raise SetupError(
                f"schema {schema} has something of another program with a name that the queue needs: "
                "give the queue a schema of its own (`schema=…`)"
            ) from None


def must_exist(connection: Connection, schema: str) -> None:
    """SetupError if there is no queue in the schema."""
    if not rows(connection, FIND, (schema,)):
        raise SetupError(f"there is no queue in the schema {schema}")


def version_of(connection: Connection, schema: str, known: Sequence[str]) -> int:
    """The number of the last migration that was applied; 0 if there is none."""
    if not rows(connection, FIND, (schema,)):
        return 0
    found: list[dict[str, Any]] = [row for (row,) in rows(connection, in_schema(schema, APPLIED))]
    applied = {row["number"]: row.get("digest") for row in found if isinstance(row.get("number"), int)}
    version = max(applied, default=0)
    if version > len(known):
        raise SetupError(f"schema {schema} has version {version}; this code knows up to {len(known)}: update it")
    if applied != dict(enumerate(map(digest, known[:version]), start=1)):
        raise SetupError(
            f"schema {schema} was made by another build of message-pump, and its tables or functions are others: run "
            "that build, give the queue another schema (`schema=…`), or drop this one if none of its messages is needed"
        )
    return version


def digest(migration: str) -> str:
    """A fingerprint of a migration, which ignores comments and spaces."""
    statements = " ".join(re.sub("--.*", "", migration).split())
    return sha256(statements.encode()).hexdigest()[:32]


TIMEOUTS: Final = b"select set_config('lock_timeout', '5s', true), set_config('statement_timeout', '0', true)"
# Not `to_regclass`: it may not see yet what another process created while this transaction waited for its lock.
FIND: Final = (
    b"select 1 from pg_class c join pg_namespace n on n.oid = c.relnamespace"
    b" where n.nspname = %s and c.relname = 'schema_version'"
)
# As JSON: an earlier build had other columns, and another program may have a table of this name.
APPLIED: Final = "select to_jsonb(v) from message_pump.schema_version v"
RECORD: Final = "insert into message_pump.schema_version (number, digest) values (%s, %s)"
