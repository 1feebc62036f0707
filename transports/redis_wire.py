"""Connections to Redis, and what its errors mean: none of the client's own leaves this file."""

import hashlib
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias

from redis import connection as client
from redis import exceptions

from pump.clock import Clock
from pump.duration import seconds
from pump.errors import PumpError, SetupError, TransportError
from pump.transports.redis_server import Server

Word: TypeAlias = str | bytes | int | float
Command: TypeAlias = Sequence[Word]
Reply: TypeAlias = Any
"""What RESP2 has: bytes, int, None, a list of these; or a PumpError, where the server answers that."""

BRISK: Final = 0.05
SILENT: Final = 1.0
"""Seconds for which a connection was not used, after which it is looked at, or asked, whether it still is one."""

_scripts: Final[dict[str, str]] = {}


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
    options = {
        **server.login,
        "protocol": 2,
        "socket_timeout": timeout + patience,  # redis-py's own default would end a read that is to block for longer
        "socket_connect_timeout": timeout,
    }
    kinds: Any = client
    if server.socket_file:
        return kinds.UnixDomainSocketConnection(path=server.socket_file, **options)
    if server.tls:
        return kinds.SSLConnection(host=server.host, port=server.port, **server.encryption, **options)
    return kinds.Connection(host=server.host, port=server.port, **options)
