"""A TCP proxy between a client and its broker. It plays the network, and fails as networks do."""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Literal, Self
from urllib.parse import urlsplit, urlunsplit

from brokers.ports import Port
from brokers.waiting import LONG

Direction = Literal["to_broker", "to_client"]
DIRECTIONS: tuple[Direction, ...] = ("to_broker", "to_client")
CHUNK = 65_536
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
STEPS_A_SECOND = 20


class Proxy:
    """Passes everything on until a method changes that; the change is complete when the method returns.

    It has a thread of its own, so its methods may be called from any thread, and in an event loop.
    """

    def __init__(self, to_port: int) -> None:
        self._to = ("127.0.0.1", to_port)
        self._port = Port()
        self.port = self._port.number
        self.accepted = 0
        self._wires: dict[asyncio.Task[None], _Wire] = {}
        self._bytes_per_second = 0.0
        self._loop = asyncio.new_event_loop()
        self._listener: socket.socket | None = None
        self._flows: dict[Direction, asyncio.Event] = {}
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._tell(self._open)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def connections(self) -> int:
        """How many connections are open now; `accepted` counts all that were ever made."""
        return len(self._wires)

    def url(self, url: str) -> str:
        """The broker's URL, changed to lead through this proxy."""
        parts = urlsplit(url)
        user, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{user}{at}127.0.0.1:{self.port}"))

    def cut(self) -> None:
        """Close all connections, and refuse new ones."""
        self._tell(self._cut)

    def reset(self) -> None:
        """Break all connections with a reset, at both ends; new ones are accepted."""
        self._tell(self._reset)

    def stall(self, *directions: Direction) -> None:
        """Accept and keep connections, but pass nothing on, or nothing in one direction; neither end notices.

        Bytes that were sent before may still arrive; bytes that are sent from now on arrive after `heal`.
        """
        self._tell(lambda: self._hold(directions or DIRECTIONS))

    def slow(self, bytes_per_second: float) -> None:
        """Pass on no more than this, in each direction of each connection."""
        self._tell(lambda: self._limit(bytes_per_second))

    def heal(self) -> None:
        """Work again: accept connections, and pass on all bytes that were held."""
        self._tell(self._open)

    def close(self) -> None:
        """End the proxy and all its connections."""
        if not self._loop.is_closed():
            self._tell(self._cut)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(LONG)
            self._loop.close()
            self._port.release()

    def _tell(self, act: Callable[[], Coroutine[Any, Any, None]]) -> None:
        asyncio.run_coroutine_threadsafe(act(), self._loop).result(LONG)

    # From here on, everything runs in the proxy's thread.

    async def _open(self) -> None:
        for direction in DIRECTIONS:
            self._flows.setdefault(direction, asyncio.Event()).set()
        self._bytes_per_second = 0.0
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self.port), backlog=128)
            self._listener.settimeout(0)
            self._loop.add_reader(self._listener, self._accept, self._listener)

    async def _cut(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        await _ended(*self._wires)

    async def _reset(self) -> None:
        if self._listener is not None:
            self._accept(self._listener)  # connections that the kernel has accepted already
        for wire in self._wires.values():
            wire.breaks()
        await _ended(*self._wires)

    async def _hold(self, directions: tuple[Direction, ...]) -> None:
        for direction in directions:
            self._flows[direction].clear()

    async def _limit(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):  # there are no more
            while True:
                client, _ = listener.accept()
                self.accepted += 1
                wire = _Wire(client)
                task = self._loop.create_task(self._connect(wire))
                self._wires[task] = wire
                task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._wires.pop(task).close()

    async def _connect(self, wire: "_Wire") -> None:
        try:
            await self._loop.sock_connect(wire.broker, self._to)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pass(wire.client, wire.broker, "to_broker"))
                both.create_task(self._pass(wire.broker, wire.client, "to_client"))
        except* OSError:
            wire.breaks()  # one end was reset, so reset the other

    async def _pass(self, source: socket.socket, target: socket.socket, direction: Direction) -> None:
        while data := await self._loop.sock_recv(source, CHUNK):
            await self._send(target, memoryview(data), direction)
        await self._flows[direction].wait()
        target.shutdown(socket.SHUT_WR)

    async def _send(self, target: socket.socket, data: memoryview, direction: Direction) -> None:
        while data:
            await self._flows[direction].wait()
            rate = self._bytes_per_second
            size = max(1, int(rate / STEPS_A_SECOND)) if rate else len(data)
            await self._loop.sock_sendall(target, data[:size])
            data = data[size:]
            if rate:
                await asyncio.sleep(size / rate)


class _Wire:
    """One connection: the client's end, and the broker's."""

    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self.broker = socket.socket()
        for end in (self.client, self.broker):
            end.settimeout(0)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        """Close both ends."""
        self.client.close()
        self.broker.close()

    def breaks(self) -> None:
        """Make the next close a reset at both ends."""
        for end in (self.client, self.broker):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)


async def _ended(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
