"""The queue's tables and functions in a schema of the database, and how it comes by each version of them.

The numbered files in `sql/` are applied in order, each once, by one process at a time. They only add, so that
processes of the version before go on working meanwhile.
"""

import re
from collections.abc import Iterator
from importlib import resources
from typing import Final, NamedTuple

from pump.errors import ConfigurationError, SetupError
from pump.queue.postgres.session import Session

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
    for file in sorted((resources.files("pump.queue.postgres") / "sql").iterdir(), key=lambda file: file.name):
        if found := NUMBERED.fullmatch(file.name):
            yield Migration(int(found[1]), file.read_text(encoding="utf-8"))


async def migrate(session: Session, schema: str) -> None:
    """Bring the schema up to what this code knows; refuse one that is further on."""
    known = list(migrations())
    if await version_of(session, schema) == known[-1].number:
        return
    async with session.together():
        await session.act(PATIENCE)
        await session.act(b"select pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"message-pump {schema}",))
        version = await version_of(session, schema)
        if version > known[-1].number:
            raise SetupError(
                f"schema {schema} has version {version}; this code knows up to {known[-1].number}: update it"
            )
        if version == 0:
            await make_schema(session, schema)
        for migration in known[version:]:
            await session.act(written_for(schema, migration.text), prepare=False)
            await session.act(written_for(schema, RECORD), (migration.number,))


async def version_of(session: Session, schema: str) -> int:
    """The number of the last migration there; 0 where there is none."""
    if not await session.rows(FIND, (schema,)):
        return 0
    ((number,),) = await session.rows(written_for(schema, "select max(number) from message_pump.schema_version"))
    return number or 0


async def make_schema(session: Session, schema: str) -> None:
    """The schema, unless somebody made it who may, and the table of what was applied."""
    if not await session.rows(b"select 1 from pg_namespace where nspname = %s", (schema,)):
        await session.act(f'create schema "{schema}"'.encode())
    await session.act(written_for(schema, VERSIONS))


PATIENCE: Final = b"select set_config('lock_timeout', '5s', true), set_config('statement_timeout', '0', true)"
# Not `to_regclass`, which may not have heard yet of what was made while this transaction waited for its lock.
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
