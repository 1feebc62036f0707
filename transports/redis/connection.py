"""Connections to a server, and what its errors mean. Errors of the client library never leave this file."""

import hashlib
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib.resources import files
from typing import Any, Final, TypeAlias

from redis import connection as client
from redis import exceptions

from pump.clock import Clock
from pump.duration import seconds
from pump.errors import PumpError, SetupError, TransportError
from pump.transport_kit.settings import tls_context
from pump.transports.redis.settings import Server

Argument: TypeAlias = str | bytes | int | float
Command: TypeAlias = Sequence[Argument]
Reply: TypeAlias = Any
"""A value of RESP2: bytes, int, None, or a list of these; or a PumpError if the server replied with an error."""

CHECK_SECONDS: Final = 0.05
"""After this many seconds without use, a connection is checked before it is used: has the server closed it?"""
PING_SECONDS: Final = 1.0
"""After this many seconds without use, it is also checked with a PING."""

known_scripts: Final[dict[str, str]] = {}
"""The texts of all scripts, by their digests. A connection loads a script that the server does not know yet."""


class NotConnected(TransportError):  # noqa: N818 - it says what is the matter
    """There is no connection, and nothing was sent."""


class NoGroup(TransportError):  # noqa: N818 - it says what is missing
    """The stream, its consumer group, or the channel does not exist."""


class ReadOnly(TransportError):  # noqa: N818 - it says what happened
    """The server has become a replica. A new connection may lead to the primary."""


class UnknownScript(TransportError):  # noqa: N818 - it says what is missing
    """The server was restarted, or its scripts were removed."""


class Script:
    """Functions in Lua. The server runs each call of one as one atomic step."""

    def __init__(self, text: str) -> None:
        self._digest: Final = hashlib.sha1(text.encode()).hexdigest()  # noqa: S324 - it is how Redis names scripts
        known_scripts[self._digest] = text

    @classmethod
    def read(cls, *names: str) -> "Script":
        """The script made of files of this folder, one after another."""
        return cls("".join((files(__package__) / name).read_text("utf-8") for name in names))

    def call(self, function: str, keys: Sequence[str], *args: Argument) -> Command:
        """The command that calls one of the functions."""
        return ("EVALSHA", self._digest, len(keys), *keys, function, *args)


class Connection:
    """A connection that is opened for the first call, and again after it broke. One thread at a time uses it."""

    def __init__(self, server: Server, clock: Clock, *, longest_block: float = 0.0) -> None:
        """A command may ask the server to wait, or block, for up to `longest_block` seconds."""
        self.client_id: int | None = None
        """The server's number for this connection; None if it is not open, 0 if the server does not tell it."""
        self._server: Final = server
        self._clock: Final = clock
        self._connection: Final = _connection(server, longest_block)
        self._lock: Final = threading.Lock()
        self._used = 0.0

    def execute(self, command: Command) -> Reply:
        """The reply to one command. If the reply is an error, it is raised."""
        (reply,) = self.execute_all((command,))
        return reply_or_raise(reply)

    def execute_all(self, commands: Sequence[Command]) -> Sequence[Reply]:
        """The replies to commands that are sent together.

        After NotConnected nothing was sent; after another TransportError it is unknown what was carried out.
        """
        with self._lock:
            try:
                self._open()
                replies = self._load_unknown(commands, self._exchange(commands))
            except PumpError:
                raise
            except exceptions.DataError as error:
                raise SetupError(f"redis: {text_of(error)}") from error
            except Exception as error:
                self._disconnect()
                raise TransportError(f"{self._server}: {text_of(error)}") from error
            except BaseException:
                self._disconnect()
                raise
            self._used = self._clock.monotonic()
            if any(isinstance(reply, ReadOnly) for reply in replies):
                self._disconnect()
            return replies

    def close(self) -> None:
        """Disconnect."""
        with self._lock:
            self._disconnect()

    def _open(self) -> None:
        """Have a connection that works, as far as can be known: the next commands rarely have to be sent again."""
        unused = self._clock.monotonic() - self._used
        if self.client_id is not None and unused > CHECK_SECONDS and self._is_broken(unused):
            self._disconnect()
        if self.client_id is None:
            try:
                self._connection.connect()
                (reply,) = self._exchange([("CLIENT", "ID")])
            except Exception as error:
                self._disconnect()
                raise not_connected(error, self._server) from error
            self.client_id = reply if isinstance(reply, int) else 0

    def _is_broken(self, unused: float) -> bool:
        try:
            if self._connection.can_read(0):  # no reply is due, so the server has closed the connection
                return True
            if unused > PING_SECONDS:
                self._exchange([("PING",)])
        except Exception:  # the caller opens a new connection
            return True
        return False

    def _exchange(self, commands: Sequence[Command]) -> list[Reply]:
        self._connection.send_packed_command(self._connection.pack_commands(commands))
        return [self._reply() for _ in commands]

    def _reply(self) -> Reply:
        try:
            return self._connection.read_response(disable_decoding=True)
        except exceptions.ResponseError as error:
            return error_of(error)

    def _load_unknown(self, commands: Sequence[Command], replies: Sequence[Reply]) -> Sequence[Reply]:
        """Load the scripts that the server does not know, and run them again, in their order."""
        if not any(isinstance(reply, UnknownScript) for reply in replies):
            return replies
        return [
            self._exchange([("SCRIPT", "LOAD", known_scripts[str(command[1])]), command])[1]
            if isinstance(reply, UnknownScript)
            else reply
            for command, reply in zip(commands, replies, strict=True)
        ]

    def _disconnect(self) -> None:
        self.client_id = None
        with suppress(Exception):  # whatever the error is, the connection is gone
            self._connection.disconnect()


def reply_or_raise(reply: Reply) -> Reply:
    """Return the reply; if it is an error, raise it."""
    if isinstance(reply, PumpError):
        raise reply
    return reply


def not_connected(error: Exception, server: Server) -> PumpError:
    """The error of ours for a connection that could not be opened."""
    text = text_of(error)
    if isinstance(error, exceptions.AuthenticationError | exceptions.ResponseError):
        return SetupError(f"{server} refuses the connection: {text}")
    if "CERTIFICATE" in text or "SSL" in text:
        return SetupError(f"{server}: a TLS connection is not possible: {text}")
    return NotConnected(f"{server} cannot be reached: {text}")


_ERRORS: Final[Sequence[tuple[str, Any, type[PumpError], str]]] = (
    ("NOSCRIPT", exceptions.NoScriptError, UnknownScript, "the script is not known"),
    ("NOGROUP", (), NoGroup, "the stream or its group does not exist"),
    ("no such key", (), NoGroup, "the stream does not exist"),
    ("UNBLOCKED", (), NoGroup, "the stream does not exist any more"),
    ("WRONGTYPE", (), SetupError, "a key is in use for something else"),
    ("NOAUTH", (), SetupError, "the server requires a login"),
    ("NOPERM", exceptions.NoPermissionError, SetupError, "this user may not do that"),
    ("CROSSSLOT", exceptions.ClusterCrossSlotError, SetupError, "its keys lie in different slots of a cluster"),
    ("MOVED", exceptions.MovedError, SetupError, "this is a Redis Cluster, which this transport does not support"),
    ("unknown command", (), SetupError, "the server is older than Redis 6.2"),
    ("OOM", exceptions.OutOfMemoryError, TransportError, "the server is out of memory"),
    ("READONLY", exceptions.ReadOnlyError, ReadOnly, "the server is a replica, or is failing over"),
    ("MISCONF", (), TransportError, "the server cannot write to its disk"),
)
"""How to recognise an error: by a code in its text, or by redis-py's class if that removes the code. What it means."""


def error_of(error: exceptions.ResponseError) -> PumpError:
    """The error of ours for an error reply of the server."""
    text = text_of(error)
    for code, theirs, kind, meaning in _ERRORS:
        if code in text or isinstance(error, theirs):
            ours = kind(f"redis: {meaning}: {text}")
            break
    else:
        ours = TransportError(f"redis: {text}")
    ours.__cause__ = error
    return ours


def text_of(error: BaseException) -> str:
    """The first line of an error's text."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _connection(server: Server, longest_block: float) -> Any:  # noqa: ANN401 - the client's is half typed
    timeout = seconds(server.timeout)
    options: dict[str, Any] = {
        "db": server.db,
        "username": server.user or None,
        "password": server.password or None,
        "protocol": 2,
        "socket_timeout": timeout + longest_block,  # redis-py's default would end a read that blocks for longer
        "socket_connect_timeout": timeout,
    }
    kinds: Any = client
    if server.socket_file:
        return kinds.UnixDomainSocketConnection(path=server.socket_file, **options)
    if not server.tls:
        return kinds.Connection(host=server.host, port=server.port, **options)
    # redis-py itself reads the files at each connect; they are read here too, so that an error names the file
    tls_context("redis", ca_file=server.ca_file, cert_file=server.cert_file, key_file=server.key_file)
    files = {"ssl_ca_certs": server.ca_file, "ssl_certfile": server.cert_file, "ssl_keyfile": server.key_file}
    return kinds.SSLConnection(host=server.host, port=server.port, **files, **options)
