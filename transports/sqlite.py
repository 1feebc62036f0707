"""SQLite: the durable queue in a file, for one machine. docs/queue.md says what it keeps and how."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from pump.capabilities import Capabilities
from pump.duration import Duration
from pump.errors import ConfigurationError
from pump.queue.sqlite.engine import SqliteEngine
from pump.queue.transport.transport import CAPABILITIES, KEEP, LEASE, QueueTransport, options_of

_OPTIONS: Final[Mapping[str, Callable[[str], object]]] = {"lease": float, "keep": float, "synchronous": str}


class SqliteTransport(QueueTransport):
    """The queue in one file, for any number of threads and processes of this machine. Making one opens nothing.

    `synchronous="NORMAL"` is faster, and may lose the last messages when the power fails, never otherwise.
    """

    capabilities: Capabilities = replace(CAPABILITIES, system="sqlite")

    def __init__(
        self, path: str | Path, *, lease: Duration = LEASE, keep: Duration = KEEP, synchronous: str = "FULL"
    ) -> None:
        self.path: Final = Path(path)
        self._synchronous: Final = synchronous
        super().__init__(lease=lease, keep=keep)

    @classmethod
    def from_url(cls, url: str) -> Self:
        """The transport of `sqlite:///relative.db` or `sqlite:////absolute.db`; the constructor has the options."""
        parts = urlsplit(url)
        if parts.scheme != "sqlite" or parts.netloc or parts.fragment or not parts.path.strip("/"):
            raise ConfigurationError("a file's URL is sqlite:///relative.db or sqlite:////absolute.db")
        try:
            given = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        except ValueError:
            raise ConfigurationError("sqlite: the URL's options are name=value&name=value") from None
        options: Any = options_of(given, _OPTIONS)
        return cls(unquote(parts.path[1:]), **options)

    @property
    def place(self) -> str:
        """The file."""
        return str(self.path)

    def _open(self) -> SqliteEngine:
        return SqliteEngine(self.path, synchronous=self._synchronous)
