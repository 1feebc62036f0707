"""Asking a durable for messages: one request at a time, for no more than was wanted, ended by the server's own word.

A pull asks with `no_wait` and `expires` together: the server sends what it has and then says that there is no more, or,
having nothing, waits that long for the first. Either way it says when the request is over. So nothing is ever under way
that nobody wants any more, and no request is cancelled, which would leave a message in nobody's hands. That word is
also the heartbeat: a server that does not say it in time does not work.
"""

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nats.aio.msg import Msg
from nats.js import api

from pump.clock import Clock
from pump.errors import TransportError
from pump.transports.nats.connection import Link

if TYPE_CHECKING:
    from nats.aio.subscription import Subscription

STALL_SECONDS: Final = 2.0
"""How much later than due the server may say that a request is over."""
LONGEST_SECONDS: Final = 1.0
"""A request lasts no longer, whatever the caller's patience: a closing consumer waits for its end."""
PAUSE_SECONDS: Final = 0.1
"""Before the next request to a server that is too busy for one."""

_NO_MESSAGES: Final = frozenset({"404", "408"})
_NOBODY: Final = "503"
_HEARTBEAT: Final = "100"
_CONFLICT: Final = "409"
_GONE: Final = frozenset({"Consumer Deleted", "Consumer is push based"})
"""Conflicts after which nothing more comes of this consumer as it is; after any other one, trying again may help."""


class Change:
    """Something has changed, for the one task that waits for that. On the loop it costs no call of the system."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop: Final = loop
        self._set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Wake who waits, or else the next to wait. On the loop."""
        self._set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def set_soon(self) -> None:
        """The same, from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there any more
            self._loop.call_soon_threadsafe(self.set)

    def clear(self) -> None:
        """Let the next wait wait."""
        self._set = False

    async def wait(self, timeout: float) -> None:
        """Wait until it is set, or the time is over."""
        if self._set or timeout <= 0:
            return
        waiter = self._waiter = self._loop.create_future()
        timer = self._loop.call_later(timeout, _end, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiter = None


def _end(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)


@dataclass(slots=True)
class _Request:
    left: int
    """How many messages may still come."""
    sent: float
    """No message that it brings was sent before; leases are counted from here."""
    due: float
    """When the server ends it at the latest."""


class Puller:
    """The requests of one consumer and what they bring, on the loop of its link."""

    def __init__(
        self, link: Link, stream: str, durable: str, *, longest: float, clock: Clock, changed: Callable[[], None]
    ) -> None:
        self.arrived: Final[deque[tuple[Msg, float]]] = deque()
        """What has come and was not taken yet, with the time since when it may be ours."""
        self.busy_until = 0.0
        """When the next request may be sent to a server that was too busy for the last one."""
        self._link: Final = link
        self._subject: Final = f"{link.prefix}.CONSUMER.MSG.NEXT.{stream}.{durable}"
        self._what: Final = f"the consumer {durable!r} of the stream {stream!r}"
        self._longest: Final = longest
        self._clock: Final = clock
        self._changed: Final = changed
        self._inbox = ""
        self._subscription: Subscription | None = None
        self._reconnects = 0
        self._request: _Request | None = None
        self._trouble: TransportError | None = None
        self._nobody_since: float | None = None

    @property
    def under_way(self) -> bool:
        """Whether something may still come of what was asked for."""
        return self._request is not None

    @property
    def due(self) -> float:
        """When the server has told the end of what is under way, if it works at all."""
        return 0.0 if self._request is None else self._request.due + STALL_SECONDS

    async def ask(self, limit: int, timeout: float) -> None:
        """Ask for up to so many messages: what is there, or what comes in time."""
        if self._subscription is None or self._reconnects != self._link.reconnects:
            await self._listen()
        expires = min(timeout, self._longest)
        wish: dict[str, object] = {"batch": limit, "no_wait": True}
        if expires > 0:
            wish["expires"] = int(expires * 1e9)
        now = self._clock.monotonic()
        self._request = _Request(limit, now, now + expires)
        await self._link.client.publish(self._subject, json.dumps(wish).encode(), self._inbox)

    def check(self) -> None:
        """Raise what the server has against this consumer, or that it is silent. Forget requests that were cut off."""
        if self._trouble is not None:
            trouble, self._trouble = self._trouble, None
            raise trouble
        request = self._request
        if request is None:
            return
        if not self._link.alive or self._reconnects != self._link.reconnects:
            self._request = None  # the server has forgotten it together with the connection
        elif self._clock.monotonic() >= self.due:
            self._request = None
            raise TransportError(f"the NATS server is silent about {self._what}")

    async def _listen(self) -> None:
        """An inbox for each connection: what was asked for on an earlier one would come here too, on top."""
        before, self._reconnects = self._subscription, self._link.reconnects
        self._inbox = self._link.client.new_inbox()
        self._subscription = await self._link.client.subscribe(
            self._inbox, cb=self._on_message, pending_msgs_limit=0, pending_bytes_limit=0
        )  # what was asked for is the limit
        if before is not None:
            await before.unsubscribe()

    async def _on_message(self, message: Msg) -> None:
        request = self._request
        if message.reply:
            self._nobody_since = None
            self.arrived.append((message, self._clock.monotonic() if request is None else request.sent))
            if request is not None:
                request.left -= 1
                if not request.left:
                    self._request = None
        else:
            self._on_status(message.headers or {})
        self._changed()

    def _on_status(self, headers: Mapping[str, str]) -> None:
        status, text = headers.get(api.Header.STATUS, ""), headers.get(api.Header.DESCRIPTION, "")
        if status == _HEARTBEAT:
            return
        self._request, now = None, self._clock.monotonic()
        if status in _NO_MESSAGES:
            self._nobody_since = None
        elif status == _NOBODY and now - (self._nobody_since or now) < STALL_SECONDS:  # a leader may be being elected
            self._nobody_since = self._nobody_since or now
            self.busy_until = now + PAUSE_SECONDS
        elif status == _NOBODY:
            self._nobody_since = None
            self._trouble = TransportError(f"{self._what} is not there, or JetStream is not")
        elif status == _CONFLICT and text not in _GONE:
            self.busy_until = now + PAUSE_SECONDS
        else:
            self._trouble = TransportError(f"{self._what}: {text or status}")
