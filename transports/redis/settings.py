"""Where a Redis server is and how to talk to it: read from a URL, or given as typed options."""

from dataclasses import dataclass, field
from typing import Any, Final, Self

from pump.duration import Duration
from pump.errors import ConfigurationError
from pump.transport_kit.settings import Options, TransportURL, finite_seconds, only_with_tls

FORM: Final = "redis://user:password@host:port/database?option=value"
SERVER_OPTIONS: Final[Options] = {
    **dict.fromkeys(("socket_file", "ca_file", "cert_file", "key_file"), str),
    "timeout": float,
}
"""The options of a URL that describe the server."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """A Redis server, or one of its forks, and how to talk to it. The values are checked when it is made."""

    host: str = "localhost"
    port: int = 6379
    db: int = 0
    user: str = ""
    password: str = field(default="", repr=False)
    socket_file: str = ""
    """The path of a Unix socket, instead of host and port."""
    tls: bool = False
    ca_file: str | None = None
    """A file with the authorities to trust; by default those that this machine trusts."""
    cert_file: str | None = None
    """The client's own certificate, if the server asks for one."""
    key_file: str | None = None
    timeout: Duration = 5.0
    """Seconds to wait for an answer, in addition to the time for which a command asks the server to block."""

    def __post_init__(self) -> None:
        if not 0 < self.port < 65_536 or self.db < 0:  # noqa: PLR2004 - the highest port there is
            raise ConfigurationError(f"redis: port must be 1 to 65535 and db at least 0, not {self.port} and {self.db}")
        finite_seconds("redis", "timeout", self.timeout)
        if not self.tls:
            files = {"ca_file": self.ca_file, "cert_file": self.cert_file, "key_file": self.key_file}
            only_with_tls("redis", "rediss", files)
        elif self.socket_file:
            raise ConfigurationError("redis: TLS cannot be used on a Unix socket")

    @classmethod
    def from_url(cls, url: TransportURL) -> Self:
        """The server of a URL."""
        given: dict[str, Any] = {"host": url.host, "port": url.port, "user": url.user, "password": url.password}
        if url.path:
            try:
                given["db"] = int(url.path)
            except ValueError:  # the path may be the end of a password
                raise url.error("its path must be the number of a database") from None
        given |= {name: value for name, value in url.options.items() if name in SERVER_OPTIONS}
        given = {name: value for name, value in given.items() if value is not None}
        return cls(tls=url.scheme.startswith("rediss"), **given)

    def __str__(self) -> str:
        place = self.socket_file or f"{self.host}:{self.port}"
        return f"Redis at {place}" + (f", database {self.db}" if self.db else "")
