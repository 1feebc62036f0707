"""SQLite: the durable queue in a file, for one machine. docs/queue.md describes it."""

from dataclasses import replace
from pathlib import Path
from typing import Final, Self

from pump.capabilities import Capabilities
from pump.duration import Duration
from pump.queue.sqlite.engine import SqliteEngine
from pump.queue.transport.transport import CAPABILITIES, KEEP, LEASE, QueueTransport
from pump.transport_kit.settings import Options, read_url

_FORM: Final = "sqlite:///relative.db or sqlite:////absolute.db"
_OPTIONS: Final[Options] = {"lease": float, "keep": float, "synchronous": str}


class SqliteTransport(QueueTransport):
    """The queue in one file, for any number of threads and processes of one machine. Making a transport opens no file.

    `synchronous="NORMAL"` is faster, but may lose the last messages when the power fails; only then.
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
        found = read_url(url, _FORM, _OPTIONS, schemes=["sqlite"])
        if found.parts.netloc or not found.path.strip("/"):
            raise found.error("it must name a file")
        return cls(found.path, **found.options)

    @property
    def place(self) -> str:
        """The path of the file."""
        return str(self.path.absolute())

    def _open(self) -> SqliteEngine:
        return SqliteEngine(self.path, synchronous=self._synchronous)
