"""Connecting to PostgreSQL, and running statements on a connection of the engine or of a caller."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Format
from psycopg.rows import tuple_row

from pump.errors import ConfigurationError

Connection: TypeAlias = psycopg.Connection[Any]
Row: TypeAlias = tuple[Any, ...]
Values: TypeAlias = Sequence[Any] | Mapping[str, Any]

NETWORK: Final = {
    "connect_timeout": "5",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "application_name": "message-pump",
}
"""Settings that make a dead server noticed soon; options in the address take precedence."""


def checked_address(url: str, what: str = "that") -> dict[str, Any]:
    """The parameters of a connection; ConfigurationError, which quotes no part of the URL, if it is not valid."""
    try:
        return {**NETWORK, **conninfo_to_dict(url)}
    except psycopg.ProgrammingError:
        raise ConfigurationError(
            f"{what} is not the address of a PostgreSQL database, or has an option that nobody knows"
        ) from None


def connect(address: Mapping[str, Any], *, prepare_threshold: int | None, statement_timeout: float) -> Connection:
    """Make a connection, which commits every statement by itself."""
    connection = psycopg.connect(**address, autocommit=True, prepare_threshold=prepare_threshold)
    try:
        rows(connection, SETTINGS, (str(round(statement_timeout * 1000)),))
    except BaseException:
        connection.close()
        raise
    return connection


def rows(connection: Connection, statement: bytes, values: Values | None = None) -> list[Row]:
    """All rows that a statement returns, as tuples, also if a caller's connection makes another kind of rows."""
    cursor = psycopg.Cursor(connection, row_factory=tuple_row)
    cursor.format = Format.BINARY
    return cursor.execute(statement, values).fetchall()


def execute(
    connection: Connection, statement: bytes, values: Values | None = None, *, prepare: bool | None = None
) -> int:
    """Carry out a statement; returns how many rows it changed."""
    return psycopg.Cursor(connection).execute(statement, values, prepare=prepare).rowcount


SETTINGS: Final = (
    b"select set_config('statement_timeout', %s, false),"
    b" set_config('default_transaction_isolation', 'read committed', false)"
)
