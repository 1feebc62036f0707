"""Where Redis is, connections to it, and what its errors mean: none of the client's own leaves this file."""

import hashlib
import ssl
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, NamedTuple, Self, TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

from redis import connection as client
from redis import exceptions

from pump.clock import Clock
from pump.duration import Duration, seconds
from pump.errors import ConfigurationError, PumpError, SetupError, TransportError

Word: TypeAlias = str | bytes | int | float
Command: TypeAlias = Sequence[Word]
Reply: TypeAlias = Any
"""What RESP2 has: bytes, int, None, a list of these; or a PumpError, where the server answers that."""

BRISK: Final = 0.05
SILENT: Final = 1.0
"""Seconds for which a connection was not used, after which it is looked at, or asked, whether it still is one."""

PORT: Final = 6379
TIMEOUT: Final = 5.0

_scripts: Final[dict[str, str]] = {}


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
        if not 0 < seconds(self.timeout) < inf:
            raise ConfigurationError(f"redis: timeout is longer than 0 s, and comes to an end: not {self.timeout}")
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


class NotConnected(TransportError):  # noqa: N818 - it says what is the matter
    """There is no connection, and nothing was sent."""


class NoGroup(TransportError):  # noqa: N818 - it says what is not there
    """The stream, or the group, is not there."""


class _Demoted(TransportError):  # noqa: N818 - it says what happened
    """The server is a replica now: the next connection may be to the one that is none."""


class _NoScript(TransportError):  # noqa: N818 - it says what is not there
    """The server was restarted, or has forgotten its scripts."""


class Script(NamedTuple):
    """What the server has to do at one go, in Lua. A server that does not know it is taught it."""

    digest: str

    def call(self, keys: Sequence[str], *args: Word) -> Command:
        """The command that runs it."""
        return ("EVALSHA", self.digest, len(keys), *keys, *args)


def script(text: str) -> Script:
    """The script of this text."""
    digest = hashlib.sha1(text.encode()).hexdigest()  # noqa: S324 - it is how Redis names scripts
    _scripts[digest] = text
    return Script(digest)


class Wire:
    """A connection, made when it is first needed, and made anew after it broke. One conversation at a time."""

    def __init__(self, server: Server, clock: Clock, *, patience: float = 0.0) -> None:
        self.client_id: int | None = None
        """How the server calls this connection; None while there is none, 0 where it does not say."""
        self._server: Final = server
        self._clock: Final = clock
        self._connection: Final = _connection(server, patience)
        self._lock: Final = threading.Lock()
        self._used = 0.0

    def ask(self, command: Command) -> Reply:
        """The reply to one command; an error that the server answers is raised."""
        (reply,) = self.ask_all((command,))
        return reply_or_raise(reply)

    def ask_all(self, commands: Sequence[Command]) -> Sequence[Reply]:
        """The replies to commands sent at one go. NotConnected: nothing was sent; another TransportError: who knows."""
        with self._lock:
            try:
                self._ready()
                replies = self._teach(commands, self._exchange(commands))
            except PumpError:
                raise
            except exceptions.DataError as error:
                raise SetupError(f"redis: {_words(error)}") from error
            except Exception as error:
                self._drop()
                raise TransportError(f"{self._server}: {_words(error)}") from error
            except BaseException:
                self._drop()
                raise
            self._used = self._clock.monotonic()
            if any(isinstance(reply, _Demoted) for reply in replies):
                self._drop()
            return replies

    def close(self) -> None:
        """Let go of the connection."""
        with self._lock:
            self._drop()

    def _ready(self) -> None:
        """Have a connection that lives, as far as that can be known, so that what is sent next is sent once."""
        silent = self._clock.monotonic() - self._used
        if self.client_id is not None and silent > BRISK and self._is_broken(silent):
            self._drop()
        if self.client_id is None:
            try:
                self._connection.connect()
                (reply,) = self._exchange([("CLIENT", "ID")])
            except Exception as error:
                self._drop()
                raise _unconnected(error, self._server) from error
            self.client_id = reply if isinstance(reply, int) else 0

    def _is_broken(self, silent: float) -> bool:
        try:
            if self._connection.can_read(0):  # nothing was asked for: it is its end
                return True
            if silent > SILENT:
                self._exchange([("PING",)])
        except Exception:  # the next one will do
            return True
        return False

    def _exchange(self, commands: Sequence[Command]) -> list[Reply]:
        self._connection.send_packed_command(self._connection.pack_commands(commands))
        return [self._reply() for _ in commands]

    def _reply(self) -> Reply:
        try:
            return self._connection.read_response(disable_decoding=True)
        except exceptions.ResponseError as error:
            return _answered(error)

    def _teach(self, commands: Sequence[Command], replies: Sequence[Reply]) -> Sequence[Reply]:
        """Run again, in their order, what the server did not know."""
        if not any(isinstance(reply, _NoScript) for reply in replies):
            return replies
        return [
            self._exchange([("SCRIPT", "LOAD", _scripts[str(command[1])]), command])[1]
            if isinstance(reply, _NoScript)
            else reply
            for command, reply in zip(commands, replies, strict=True)
        ]

    def _drop(self) -> None:
        self.client_id = None
        with suppress(Exception):  # it is gone, in whatever way
            self._connection.disconnect()


def reply_or_raise(reply: Reply) -> Reply:
    """The reply, unless it is an error."""
    if isinstance(reply, PumpError):
        raise reply
    return reply


def _unconnected(error: Exception, server: Server) -> PumpError:
    """Why there is no connection."""
    words = _words(error)
    if isinstance(error, exceptions.AuthenticationError | exceptions.ResponseError):
        return SetupError(f"{server} refuses us: {words}")
    if "CERTIFICATE" in words or "SSL" in words:
        return SetupError(f"{server} cannot be talked to encrypted: {words}")
    return NotConnected(f"{server} cannot be reached: {words}")


_ANSWERS: Final[Sequence[tuple[str, type[PumpError], str]]] = (
    ("NOSCRIPT", _NoScript, "the script is not known"),
    ("NOGROUP", NoGroup, "the stream or its group is not there"),
    ("no such key", NoGroup, "the stream is not there"),
    ("UNBLOCKED", NoGroup, "the stream is not there any more"),
    ("WRONGTYPE", SetupError, "a key is in use for something else"),
    ("NOAUTH", SetupError, "the server wants a login"),
    ("NOPERM", SetupError, "this user may not do that"),
    ("CROSSSLOT", SetupError, "the keys of one operation lie in different slots of a cluster"),
    ("MOVED", SetupError, "this is a Redis Cluster, which this transport does not speak to"),
    ("unknown command", SetupError, "the server is older than Redis 6.2"),
    ("OOM", TransportError, "the server is out of memory"),
    ("READONLY", _Demoted, "the server is a replica, or fails over"),
    ("MISCONF", TransportError, "the server cannot write to its disk"),
)
"""The code begins the error, or stands somewhere within, where it was met in a script. redis-py takes some off."""

_KINDS: Final[Sequence[tuple[type[exceptions.ResponseError], str]]] = (
    (exceptions.NoScriptError, "NOSCRIPT"),
    (exceptions.NoPermissionError, "NOPERM"),
    (exceptions.ReadOnlyError, "READONLY"),
    (exceptions.OutOfMemoryError, "OOM"),
    (exceptions.MovedError, "MOVED"),
    (exceptions.ClusterCrossSlotError, "CROSSSLOT"),
)


def _answered(error: exceptions.ResponseError) -> PumpError:
    """What the server answered instead of a reply."""
    words = _words(error)
    known = next((code for kind, code in _KINDS if isinstance(error, kind)), words)
    kind, meaning = next(((kind, meaning) for code, kind, meaning in _ANSWERS if code in known), (TransportError, ""))
    ours = kind(f"redis: {meaning}: {words}" if meaning else f"redis: {words}")
    ours.__cause__ = error
    return ours


def _words(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _connection(server: Server, patience: float) -> Any:  # noqa: ANN401 - the client's is half typed
    timeout = seconds(server.timeout)
    options: dict[str, Any] = {
        "db": server.db,
        "username": server.user or None,
        "password": server.password or None,
        "protocol": 2,
        "socket_timeout": timeout + patience,  # redis-py's own default would end a read that is to block for longer
        "socket_connect_timeout": timeout,
    }
    kinds: Any = client
    if server.socket_file:
        return kinds.UnixDomainSocketConnection(path=server.socket_file, **options)
    if not server.tls:
        return kinds.Connection(host=server.host, port=server.port, **options)
    try:
        context = ssl.create_default_context(cafile=server.ca_file)
        if server.cert_file:
            context.load_cert_chain(server.cert_file, server.key_file)
    except OSError as error:
        named = ", ".join(file for file in (server.ca_file, server.cert_file, server.key_file) if file)
        raise SetupError(f"redis: a certificate cannot be used ({named}): {error}") from error
    files = {"ssl_ca_certs": server.ca_file, "ssl_certfile": server.cert_file, "ssl_keyfile": server.key_file}
    return kinds.SSLConnection(host=server.host, port=server.port, **files, **options)
