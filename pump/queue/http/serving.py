"""Runs the server in this process, under uvicorn, until a signal."""

import socket
import sys
from typing import Final

import uvicorn

from pump.errors import SetupError
from pump.process_signals import handling
from pump.queue.http.request import log
from pump.queue.http.server import QueueServer

_KEEP_ALIVE_SECONDS: Final = 75
"""Longer than clients keep an idle connection, so that none is closed just as it is used again."""
_GRACE_SECONDS: Final = 10
_BACKLOG: Final = 2048
_SWITCH_SECONDS: Final = 0.0005
"""A thread that has the database's answer waits no longer than this for the loop's thread."""


class _Uvicorn(uvicorn.Server):
    """Ends the waiting of consumers before it waits for the last reply."""

    def __init__(self, server: QueueServer) -> None:
        config = uvicorn.Config(
            server,
            lifespan="on",
            access_log=False,
            log_config=None,
            log_level="warning",
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
        super().__init__(config)
        self._server: Final = server

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._server.stop_waiting()
        await super().shutdown(sockets)


def serve(server: QueueServer, host: str, port: int) -> None:
    """Answer requests until SIGTERM or SIGINT; then finish those that have begun."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    with _listening(host, port) as listener:
        log.info("listening on %s", _address(listener))
        uvicorn_server = _Uvicorn(server)
        with handling(uvicorn_server.handle_exit):  # a signal ends the server, not the process, at any moment
            uvicorn_server.run([listener])


def _listening(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        family, kind, protocol, _, address = found
        listener = socket.socket(family, kind, protocol)  # with it, asyncio sets TCP_NODELAY: small replies go at once
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        raise SetupError(f"cannot listen on {host}, port {port}: {error.strerror or error}") from error
    return listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
