"""One session that a consumer has locked: its receiver, and the one message of it that is here. Used on one loop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusReceiver

from pump.clock import Clock
from pump.errors import LeaseLost, PumpError
from pump.message import Message
from pump.transports.servicebus.errors import outages, passes

CLOSE_SECONDS: Final = 2.0
"""How long closing one may take."""
SLICE_SECONDS: Final = 0.1
"""How long one receive of the client lasts."""


class Session:
    """It is locked from its construction until it is over. What it gave is void then, and nothing is sent for it.

    A lock ends with its link, whatever breaks that: so whoever looks at a session that is over finds no way back.
    """

    raw: ServiceBusReceivedMessage | None
    """The message that was received and is not settled. No other one is asked for meanwhile."""
    message: Message | None
    """The same, once it was handed out."""

    def __init__(self, receiver: ServiceBusReceiver, *, lock: float | None, timeout: float, clock: Clock) -> None:
        """`lock` is the lock duration of the queue, if that is known."""
        self.name: Final[str] = receiver.session.session_id
        self.raw = None
        self.message = None
        self.asking = False
        """Whether a receive is under way."""
        self.asked_at = 0.0
        """When the last one began."""
        self.empty = False
        """Whether the last one brought nothing."""
        self.is_closed = False
        """Whether its connection is."""
        self.over = ""
        """Why it is over; empty as long as it is not."""
        self._receiver: Final = receiver
        self._lock: Final = lock
        self._timeout: Final = timeout
        self._clock: Final = clock
        self._turn: Final = asyncio.Lock()
        self.renewed = clock.monotonic()
        """When it was locked, or renewed last."""
        self.expires = 0.0
        """When the lock ends, on the monotonic clock."""
        self._read_lock()
        self.idle_since = self.renewed

    def _read_lock(self) -> None:
        until = self._receiver.session.locked_until_utc
        ends = [] if self._lock is None else [self.renewed + self._lock]
        if until is not None:
            ends.append(self._clock.monotonic() + (until - datetime.now(UTC)).total_seconds())
        self.expires = min(ends, default=self.renewed + self._timeout)

    @property
    def is_busy(self) -> bool:
        """Whether a message of it is here, or may be waiting."""
        return self.raw is not None or not self.empty

    @asynccontextmanager
    async def turn(self, doing: str, *, timeout: float | None = None) -> AsyncIterator[ServiceBusReceiver]:
        """The receiver, for one call. After a failure nobody knows whether the lock lasts: then it is over."""
        async with self._turn:
            if self.over:
                raise LeaseLost(f"{doing} came too late: the session {self.name} is over: {self.over}")
            try:
                with outages(doing):
                    async with asyncio.timeout(self._timeout if timeout is None else timeout):
                        yield self._receiver
            except PumpError as error:
                if not passes(error):
                    self.end(str(error))
                raise
            except asyncio.CancelledError:
                self.end("it was cut off")
                raise

    async def receive(self) -> bool:
        """Wait a moment for its next message; whether there is one."""
        async with self.turn("receiving") as receiver:
            found = await receiver.receive_messages(1, max_wait_time=SLICE_SECONDS)
        self.empty = not found
        if found:
            self.raw, self.message = found[0], None
            self.idle_since = self._clock.monotonic()
        return bool(found)

    def settled(self) -> None:
        """The message is done; the next one may be asked for."""
        self.raw = self.message = None
        self.idle_since = self._clock.monotonic()

    async def renew(self, timeout: float) -> None:
        """Renew the lock, and with it that of the message."""
        async with self.turn("renewing", timeout=timeout) as receiver:
            began = self._clock.monotonic()
            await receiver.session.renew_lock(timeout=timeout)
            self.renewed = began
            self._read_lock()

    def end(self, why: str) -> None:
        """It no longer belongs to this consumer: the handler of its message is told at once."""
        if self.over:
            return
        self.over = why or "it was given up"
        message = self.message
        if message is not None:
            message.lost = True
            interrupt = message.interrupt
            if interrupt is not None:
                with suppress(Exception):  # its loop may have ended
                    interrupt()

    async def close(self) -> None:
        """Let others have it at once. Azure counts no delivery for what was not settled."""
        self.end("it was given up")
        with suppress(Exception):
            async with asyncio.timeout(CLOSE_SECONDS), self._turn:  # a call that is under way ends first
                await self._receiver.close()
                self.is_closed = True

    def __repr__(self) -> str:
        return f"<Session {self.name}>"


def session_id(raw: Any) -> str:  # noqa: ANN401 - the client's
    """The session of a message."""
    return str(raw.session_id or "")
