"""The queue's tables and functions in a schema of the database, and how it comes by each version of them.

The numbered files beside this one are applied in order, each once, by one process at a time. They only add, so that
processes of the version before go on working meanwhile.
"""

import re
from collections.abc import Iterator
from importlib import resources
from typing import Any, Final, NamedTuple

import psycopg

from pump.errors import ConfigurationError, SetupError

SCHEMA: Final = re.compile("[a-z_][a-z0-9_]{0,47}")
WRITTEN: Final = "message_pump."
NUMBERED: Final = re.compile(r"(\d{3})_\w+\.sql")


class Migration(NamedTuple):
    """One file."""

    number: int
    text: str


def checked_schema(name: str) -> str:
    """The schema's name, or ConfigurationError: it is the one name that stands in statements."""
    if not SCHEMA.fullmatch(name):
        raise ConfigurationError(f"{name!r} is no schema for a queue: a-z, 0-9 and _, at most 48, no digit first")
    return name


def written_for(schema: str, statement: str) -> bytes:
    """The statement, with the schema in the place of the one that it is written for."""
    return statement.replace(WRITTEN, f'"{schema}".').replace("'message_pump'", f"'{schema}'").encode()


def migrations() -> Iterator[Migration]:
    """All that there are, in order."""
    for file in sorted(resources.files("pump.queue").iterdir(), key=lambda file: file.name):
        if found := NUMBERED.fullmatch(file.name):
            yield Migration(int(found[1]), file.read_text(encoding="utf-8"))


def migrate(connection: psycopg.Connection[Any], schema: str) -> None:
    """Bring the schema up to what this code knows; refuse one that is further on."""
    known = list(migrations())
    if version_of(connection, schema) == known[-1].number:
        return
    with connection.transaction():
        connection.execute("select set_config('lock_timeout', '5s', true), set_config('statement_timeout', '0', true)")
        connection.execute("select pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"message-pump {schema}",))
        version = version_of(connection, schema)
        if version > known[-1].number:
            raise SetupError(
                f"schema {schema} has version {version}; this code knows up to {known[-1].number}: update it"
            )
        if version == 0:
            make_schema(connection, schema)
        for migration in known[version:]:
            connection.execute(written_for(schema, migration.text), prepare=False)
            connection.execute(written_for(schema, RECORD), (migration.number,))


def version_of(connection: psycopg.Connection[Any], schema: str) -> int:
    """The number of the last migration there; 0 where there is none."""
    if connection.execute(FIND, (schema,)).fetchone() is None:
        return 0
    row = connection.execute(written_for(schema, "select max(number) from message_pump.schema_version")).fetchone()
    return (row and row[0]) or 0


def make_schema(connection: psycopg.Connection[Any], schema: str) -> None:
    """The schema, unless somebody made it who may, and the table of what was applied."""
    there = connection.execute("select 1 from pg_namespace where nspname = %s", (schema,)).fetchone()
    if there is None:
        connection.execute(f'create schema "{schema}"'.encode())
    connection.execute(written_for(schema, VERSIONS))


# Not `to_regclass`, which may not have heard yet of what was made while this transaction waited for its lock.
FIND: Final = (
    "select 1 from pg_class c join pg_namespace n on n.oid = c.relnamespace"
    " where n.nspname = %s and c.relname = 'schema_version'"
)
VERSIONS: Final = """
create table if not exists message_pump.schema_version (
    number integer primary key, applied_at timestamptz not null default clock_timestamp()
)
"""
RECORD: Final = "insert into message_pump.schema_version (number) values (%s)"
