"""PostgreSQL: the durable queue in a database, for many machines. docs/queue.md describes it."""

from dataclasses import replace
from typing import Final, Self
from urllib.parse import unquote, urlencode, urlunsplit

from pump.capabilities import Capabilities
from pump.duration import Duration
from pump.queue.postgres.engine import PostgresEngine
from pump.queue.transport.transport import CAPABILITIES, KEEP, LEASE, QueueTransport
from pump.transport_kit.settings import Options, read_url, split_url

SCHEMA: Final = "message_pump"
POOL_SIZE: Final = 10

_FORM: Final = "postgres://user:password@host:port/database?option=value"
_OPTIONS: Final[Options] = {"lease": float, "keep": float, "schema": str, "pool_size": int, "listen_url": str}


class PostgresTransport(QueueTransport):
    """The queue in a schema of a database, for any number of processes and machines. Making one opens no connection.

    `url` is the database's URL for psycopg. If that leads to a pooler that shares sessions, give a `listen_url` that
    leads to the database itself.
    """

    capabilities: Capabilities = replace(CAPABILITIES, system="postgresql")

    def __init__(
        self,
        url: str,
        *,
        lease: Duration = LEASE,
        keep: Duration = KEEP,
        schema: str = SCHEMA,
        pool_size: int = POOL_SIZE,
        listen_url: str | None = None,
    ) -> None:
        self._url: Final = url
        self._schema: Final = schema
        self._pool_size: Final = pool_size
        self._listen_url: Final = listen_url
        super().__init__(lease=lease, keep=keep)

    @classmethod
    def from_url(cls, url: str) -> Self:
        """The transport of postgres://user:password@host:port/database?schema=name; the constructor has the options.

        Other options in the query, such as sslmode, are passed to psycopg.
        """
        found = read_url(url, _FORM, _OPTIONS, schemes=["postgres", "postgresql"], takes_others=True)
        query = urlencode(found.others)
        return cls(urlunsplit(("postgresql", found.parts.netloc, found.parts.path, query, "")), **found.options)

    @property
    def place(self) -> str:
        """The database and the schema, without user and password."""
        parts = split_url(self._url)
        return f"postgres://{parts.netloc.rpartition('@')[2]}{unquote(parts.path)}?schema={self._schema}"

    def _open(self) -> PostgresEngine:
        return PostgresEngine(self._url, schema=self._schema, pool_size=self._pool_size, listen_url=self._listen_url)
