"""Where Redis is and as whom we come: a redis:// URL's place, or typed options. The password is never shown."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self
from urllib.parse import SplitResult, unquote, urlsplit

from pump.duration import Duration, seconds
from pump.errors import ConfigurationError, SetupError

PORT: Final = 6379
TIMEOUT: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class Server:
    """One Redis, or a fork of it, and how to talk to it. Checked when made."""

    host: str = "localhost"
    port: int = PORT
    db: int = 0
    user: str = ""
    password: str = field(default="", repr=False)
    socket_file: str = ""
    """A Unix socket, instead of host and port."""
    tls: bool = False
    ca_file: str | None = None
    """Whom to trust; by default whom the system trusts."""
    cert_file: str | None = None
    """Our own certificate, where the server asks for one."""
    key_file: str | None = None
    timeout: Duration = TIMEOUT
    """How long an answer is waited for, in seconds, beyond the time for which it was asked to wait itself."""

    def __post_init__(self) -> None:
        if not 0 < self.port < 65_536 or self.db < 0:  # noqa: PLR2004 - the highest port there is
            raise ConfigurationError(f"redis: there is no port {self.port}, or no database {self.db}")
        if not seconds(self.timeout) > 0:
            raise ConfigurationError(f"redis: timeout must be longer than 0 s, not {self.timeout}")
        if not self.tls and (self.ca_file or self.cert_file or self.key_file):
            raise ConfigurationError("redis: ca_file, cert_file and key_file need TLS, as in rediss://")
        if self.tls and self.socket_file:
            raise ConfigurationError("redis: a Unix socket has no TLS")

    @classmethod
    def from_parts(cls, parts: SplitResult, options: Mapping[str, Any]) -> Self:
        """The server of a URL, whose options are read already; a ValueError says what of it makes no sense."""
        place: dict[str, Any] = {"tls": parts.scheme.startswith("rediss"), **options}
        if parts.hostname:
            place["host"] = unquote(parts.hostname)
        if (port := _port(parts)) is not None:
            place["port"] = port
        if parts.username:
            place["user"] = unquote(parts.username)
        if parts.password is not None:
            place["password"] = unquote(parts.password)
        if parts.path not in {"", "/"}:
            place["db"] = _database(parts.path)
        return cls(**place)

    def __str__(self) -> str:
        place = self.socket_file or f"{self.host}:{self.port}"
        return f"Redis at {place}" + (f", database {self.db}" if self.db else "")

    @property
    def login(self) -> Mapping[str, Any]:
        """What redis-py calls who we are."""
        return {"db": self.db, "username": self.user or None, "password": self.password or None}

    @property
    def encryption(self) -> Mapping[str, Any]:
        """What redis-py calls how we encrypt; SetupError if a certificate cannot be read."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.cert_file:
                context.load_cert_chain(self.cert_file, self.key_file)
        except OSError as error:
            files = ", ".join(file for file in (self.ca_file, self.cert_file, self.key_file) if file)
            raise SetupError(f"redis: a certificate cannot be used ({files}): {error}") from error
        return {"ssl_ca_certs": self.ca_file, "ssl_certfile": self.cert_file, "ssl_keyfile": self.key_file}


def split(url: str) -> SplitResult:
    """The parts of a URL; a ConfigurationError never shows it."""
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = None
    if parts is None or parts.fragment:
        raise ConfigurationError(
            "this redis:// URL makes no sense: redis://user:password@host:port/database?option=value, "
            "with what is special in a password written as %40"
        )
    return parts


def _port(parts: SplitResult) -> int | None:
    try:
        return parts.port
    except ValueError:  # its words show the URL's
        raise ConfigurationError(
            "redis: the URL's port is no number, or its password has a / that is not written as %2F"
        ) from None


def _database(path: str) -> int:
    try:
        return int(path[1:])
    except ValueError:  # it may be the end of a password
        raise ConfigurationError("redis: the URL's path is the number of a database, as in redis://host/0") from None
