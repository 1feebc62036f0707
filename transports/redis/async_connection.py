"""A connection for awaiting callers: the commands of one call are written at once; their replies are read in one wait.

The replies are read here, and not by redis-py, which needs a time-out and some ten calls for each reply.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from redis import exceptions

from pump.clock import Clock
from pump.duration import seconds
from pump.errors import PumpError, SetupError, TransportError
from pump.transport_kit.settings import tls_context
from pump.transports.redis.connection import (
    CHECK_SECONDS,
    PING_SECONDS,
    Command,
    ReadOnly,
    Reply,
    UnknownScript,
    error_of,
    known_scripts,
    not_connected,
    text_of,
)
from pump.transports.redis.settings import Server


class AsyncConnection:
    """A connection that is opened for the first call, and again after it broke. One call at a time uses it."""

    def __init__(self, server: Server, clock: Clock) -> None:
        self._server: Final = server
        self._clock: Final = clock
        self._timeout: Final = seconds(server.timeout)
        self._lock: Final = asyncio.Lock()
        self._streams: _Streams | None = None
        self._used = 0.0

    async def execute_all(self, commands: Sequence[Command]) -> Sequence[Reply]:
        """The replies to commands that are sent together.

        After NotConnected nothing was sent; after another TransportError it is unknown what was carried out.
        """
        async with self._lock:
            streams = await self._open()
            try:
                async with asyncio.timeout(self._timeout):
                    replies = await self._load_unknown(streams, commands, await streams.exchange(commands))
            except Exception as error:
                self.close()
                raise TransportError(f"{self._server}: {text_of(error)}") from error
            except BaseException:
                self.close()  # else the next call would take these replies for its own
                raise
            self._used = self._clock.monotonic()
            if any(isinstance(reply, ReadOnly) for reply in replies):
                self.close()
            return replies

    def close(self) -> None:
        """Disconnect."""
        streams, self._streams = self._streams, None
        if streams is not None:
            streams.close()

    async def end(self) -> None:
        """Disconnect, and wait until the socket is closed."""
        streams = self._streams
        self.close()
        if streams is not None:
            await streams.closed()

    async def _open(self) -> "_Streams":
        """A connection that works, as far as can be known: the next commands rarely have to be sent again."""
        streams = self._streams
        if streams is not None:
            unused = self._clock.monotonic() - self._used
            if unused <= CHECK_SECONDS or await self._works(streams, unused):
                return streams
            self.close()
        try:
            async with asyncio.timeout(self._timeout):
                streams = self._streams = await _Streams.open(self._server)
                await self._log_in(streams)
        except PumpError:
            self.close()
            raise
        except Exception as error:
            self.close()
            raise not_connected(error, self._server) from error
        except BaseException:
            self.close()
            raise
        return streams

    async def _works(self, streams: "_Streams", unused: float) -> bool:
        await asyncio.sleep(0)  # lets the loop notice that the server has closed the connection
        if streams.ended:
            return False
        try:
            if unused > PING_SECONDS:
                async with asyncio.timeout(self._timeout):
                    await streams.exchange([("PING",)])
        except Exception:  # the caller opens a new connection
            return False
        return True

    async def _log_in(self, streams: "_Streams") -> None:
        server, commands = self._server, list[Command]()
        if server.user or server.password:
            commands.append(("AUTH", server.user, server.password) if server.user else ("AUTH", server.password))
        if server.db:
            commands.append(("SELECT", server.db))
        for reply in await streams.exchange(commands):
            if isinstance(reply, PumpError):
                raise SetupError(f"{server} refuses the connection: {reply}") from reply

    async def _load_unknown(
        self, streams: "_Streams", commands: Sequence[Command], replies: Sequence[Reply]
    ) -> Sequence[Reply]:
        """Load the scripts that the server does not know, and run them again, in their order."""
        if not any(isinstance(reply, UnknownScript) for reply in replies):
            return replies
        return [
            (await streams.exchange([("SCRIPT", "LOAD", known_scripts[str(command[1])]), command]))[1]
            if isinstance(reply, UnknownScript)
            else reply
            for command, reply in zip(commands, replies, strict=True)
        ]


class _Streams:
    """One open connection: its reader and its writer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader: Final = reader
        self._writer: Final = writer

    @classmethod
    async def open(cls, server: Server) -> "_Streams":
        """Connect."""
        if server.socket_file:
            return cls(*await asyncio.open_unix_connection(server.socket_file))
        files = {"ca_file": server.ca_file, "cert_file": server.cert_file, "key_file": server.key_file}
        context = tls_context("redis", **files) if server.tls else None
        return cls(*await asyncio.open_connection(server.host, server.port, ssl=context))

    @property
    def ended(self) -> bool:
        """Whether the server has closed the connection, or has sent bytes that are no reply."""
        return self._reader.at_eof() or self._writer.is_closing()

    async def exchange(self, commands: Sequence[Command]) -> list[Reply]:
        """Send commands, and read their replies."""
        self._writer.write(b"".join(map(_packed, commands)))
        return [await self._reply() for _ in commands]

    async def _reply(self) -> Reply:
        line = await self._reader.readline()
        kind, text = line[:1], line[1:-2]
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the connection was closed")
        if kind == b"$":
            size = int(text)
            return None if size < 0 else (await self._reader.readexactly(size + 2))[:-2]
        if kind == b":":
            return int(text)
        if kind == b"-":
            return error_of(exceptions.ResponseError(text.decode("utf-8", "replace")))
        if kind == b"*":
            return None if int(text) < 0 else [await self._reply() for _ in range(int(text))]
        if kind == b"+":
            return text
        raise ConnectionError(f"the server does not speak RESP: it sent {line[:40]!r}")

    def close(self) -> None:
        """Close the connection at once; nobody waits for a reply."""
        self._writer.transport.abort()

    async def closed(self) -> None:
        """Wait until the connection is closed."""
        with suppress(Exception):  # whatever the error is, the connection is closed
            await self._writer.wait_closed()


def _packed(command: Command) -> bytes:
    pieces = [b"*%d\r\n" % len(command)]
    for word in command:
        data = word if isinstance(word, bytes) else str(word).encode()
        pieces.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(pieces)
