"""The server's replies: JSON, or messages, which are taken back if the client does not receive them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pump.queue.wire.json_body import encode

_LOOP_TURNS: Final = 2
"""The event loop notices within this many turns that a connection is broken."""


def reply(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A reply in JSON; if the body is bytes, it is JSON already."""
    content = body if isinstance(body, bytes) else encode(body)
    return Response(content, status, headers, "application/json")


def refusal(text: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """A reply that says why the request was refused."""
    return reply({"success": False, "error": text}, status, headers)


class PopResponse(Response):
    """A reply with messages that are leased for this client; `take_back` is called if they cannot be sent."""

    def __init__(
        self, body: bytes, is_disconnected: Callable[[], bool], take_back: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__(body, 200, None, "application/json")
        self._is_disconnected: Final = is_disconnected
        self._take_back: Final = take_back

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: D102 - as ASGI has it
        if await self._is_received(send):
            await send({"type": "http.response.body", "body": self.body[-1:], "more_body": False})
        else:
            await self._take_back()

    async def _is_received(self, send: Send) -> bool:
        """Send all but the last byte: a client that has gone by then cannot have read the whole reply."""
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            for piece in (self.body[:-1], b""):  # the second send waits until most of the first has gone out
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        except OSError:
            return False
        for _ in range(_LOOP_TURNS):
            await asyncio.sleep(0)
        return not self._is_disconnected()
