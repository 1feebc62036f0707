"""Runs the server in this process, under uvicorn, until a signal."""

import asyncio
import errno
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Final

import uvicorn

from pump.clock import Clock, Signal, SystemClock
from pump.errors import PumpError, SetupError
from pump.process_signals import handling
from pump.queue.http.connection import ClientConnection
from pump.queue.http.front import Front, raise_descriptor_limit
from pump.queue.http.request import log
from pump.queue.http.server import QueueServer

_KEEP_ALIVE_SECONDS: Final = 75
"""Longer than clients keep an idle connection: the server never closes one just when a client uses it again."""
_GRACE_SECONDS: Final = 10
_BACKLOG: Final = 2048
_SWITCH_SECONDS: Final = 0.0005
"""Python's switch interval: a thread with a database result waits no longer than this for the loop's thread."""
_LOOK_SECONDS: Final = 0.5
"""How often to look for connections whose time is over."""
_NOT_OF_THIS_MACHINE: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})
"""A name may have addresses of a family that this machine does not use."""
_NO_FILE_SECONDS: Final = 1.0
"""The pause after a connection cannot be accepted, for example because no more files can be opened."""


class _Uvicorn(uvicorn.Server):
    """Accepts connections as long as there is room for them.

    At shutdown it first answers waiting consumers, then waits for the last reply.
    """

    def __init__(
        self, server: QueueServer, front: Front, clock: Clock, reload: Callable[[], None], hung_up: Signal
    ) -> None:
        config = uvicorn.Config(
            server,
            lifespan="on",
            access_log=False,
            log_config=None,
            log_level="error",
            server_header=False,
            proxy_headers=False,
            ws="none",
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
        super().__init__(config)
        self._server: Final = server
        self._front: Final = front
        self._clock: Final = clock
        self._reload: Final = reload
        self._hung_up: Final = hung_up
        self._closing: Final = Signal()
        self._tasks: Final[list[asyncio.Task[None]]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])  # no sockets: `_accept` accepts connections, not uvicorn
        self._tasks.extend(asyncio.create_task(self._accept(each)) for each in sockets or ())
        self._tasks.append(asyncio.create_task(self._end_slow()))
        self._tasks.append(asyncio.create_task(self._read_again()))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._closing.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._server.stop_waiting()
        await super().shutdown(sockets)

    async def _read_again(self) -> None:
        """Read tokens and keys again after each signal; if that fails, log it and go on with the old ones.

        One reading ends before the next begins: an earlier one could otherwise bring back a token that is gone.
        Signals that come during a reading cause one more.
        """
        while await self._clock.wait_async(self._hung_up, None):
            self._hung_up.clear()
            try:
                await asyncio.to_thread(self._reload)
            except PumpError as error:
                log.error("tokens and keys stay as they were: %s", error)
            except Exception:
                log.exception("tokens and keys stay as they were")
            else:
                log.info("tokens and keys were read again")

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        connect = partial(
            ClientConnection, self._front, config=self.config, server_state=self.server_state,
            app_state=self.lifespan.state,
        )  # fmt: skip
        listener.settimeout(0)
        can_open = True
        while True:
            await self._front.wait_for_room()
            try:
                accepted, _ = await loop.sock_accept(listener)
            except OSError as error:
                if can_open:
                    log.error("no connection can be accepted just now: %s", error.strerror)
                can_open = False
                await self._clock.wait_async(self._closing, _NO_FILE_SECONDS)
                continue
            can_open = True
            with suppress(OSError):  # the client has gone already
                await loop.connect_accepted_socket(connect, accepted)

    async def _end_slow(self) -> None:
        while not await self._clock.wait_async(self._closing, _LOOK_SECONDS):
            self._front.end_slow()


def serve(server: QueueServer, host: str, port: int, reload: Callable[[], None], hung_up: Signal) -> None:
    """Answer requests until SIGTERM or SIGINT; then finish the ones that have begun. `hung_up` asks for a `reload`.

    Signals are handled before the log says that the server listens: whoever reads that may send one at once.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    clock = SystemClock()
    front = Front(clock, server.count_refused, most=raise_descriptor_limit())
    uvicorn_server = _Uvicorn(server, front, clock, reload, hung_up)
    with ExitStack() as stack:
        listeners = _listening(host, port, stack)
        stack.enter_context(handling(uvicorn_server.handle_exit))  # a signal ends the server, not the process
        log.info("listening on %s", " and ".join(map(_address, listeners)))
        uvicorn_server.run(listeners)


def _listening(host: str, port: int, stack: ExitStack) -> list[socket.socket]:
    """A listener for each address of the host, all on the same port."""
    listeners: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for number, (family, kind, protocol, _, address) in enumerate(dict.fromkeys(found), start=1):
            at_port = (address[0], listeners[0].getsockname()[1] if listeners else port, *address[2:])
            try:
                listeners.append(stack.enter_context(_listener(family, kind, protocol, at_port)))
            except OSError as error:
                is_last = number == len(found) and not listeners
                if error.errno not in _NOT_OF_THIS_MACHINE or is_last:
                    raise
    except OSError as error:
        raise SetupError(f"cannot listen on {host}, port {port}: {error.strerror or error}") from error
    return listeners


def _listener(family: int, kind: int, protocol: int, address: Sequence[object]) -> socket.socket:
    listener = socket.socket(family, kind, protocol)  # with the protocol, asyncio sets TCP_NODELAY
    try:
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # the other family has its own listener
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(tuple(address))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
