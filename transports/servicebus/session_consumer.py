"""A consumer of one queue that requires sessions: several sessions at a time, and of each one message."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from pump.clock import Clock
from pump.errors import LeaseLost, TransportError
from pump.message import Message
from pump.subscription import Subscription
from pump.telemetry import log
from pump.transports.servicebus.consumer import CLOSE_SECONDS, RETRY_SECONDS, ServiceBusConsumer
from pump.transports.servicebus.entities import Facts
from pump.transports.servicebus.link import pause
from pump.transports.servicebus.messages import claim, raw_of, read_message, receipt_of
from pump.transports.servicebus.session_link import SessionLink
from pump.transports.servicebus.settings import ServiceBusSettings


class SessionConsumer(ServiceBusConsumer):
    """As any other, but that a message's lock is that of its session, and is lost with it."""

    _sessions: SessionLink
    """The same as `_link`."""

    def __init__(self, settings: ServiceBusSettings, subscription: Subscription, facts: Facts, clock: Clock) -> None:
        self._most: Final = subscription.in_flight
        self._completing: Final[set[asyncio.Task[None]]] = set()
        super().__init__(settings, subscription, facts, clock)

    def _new_link(self, settings: ServiceBusSettings) -> SessionLink:
        self._sessions = SessionLink(settings, self._channel, self._facts, most=self._most, clock=self._clock)
        return self._sessions

    def _message(self, raw: Any, began: float) -> Message:  # noqa: ANN401 - the client's
        session = self._sessions.session_of(raw)
        session.message = read_message(
            raw,
            queue=self._channel,
            topic=self._destinations.topic,
            generation=self.generation,
            lease_expires=session.expires,
            session=session.name,
        )
        return session.message

    def acknowledge_soon(self, message: Message) -> bool:
        """Send it without waiting. The next message of its session comes once Azure has confirmed it."""
        claim(message)
        try:
            self._thread.loop.call_soon_threadsafe(self._begin_to_complete, message)
        except RuntimeError as error:
            raise TransportError(f"the consumer of {self._channel} is closed") from error
        return True

    def _begin_to_complete(self, message: Message) -> None:
        task = self._thread.loop.create_task(self._complete(message))
        self._completing.add(task)
        task.add_done_callback(self._completing.discard)

    async def _complete(self, message: Message) -> None:
        while True:
            try:
                await self._sessions.complete(raw_of(message))
            except LeaseLost as error:
                log.warning("servicebus: message %s of %s comes again: %s", message.id, self._channel, error)
            except TransportError:  # Azure is busy, and the session is still ours
                await pause(RETRY_SECONDS)
                continue
            return

    async def _flush(self) -> None:
        """Each acknowledgement was sent at once, on the connection of its session."""

    async def _renewed(self, message: Message, timeout: float) -> float:
        session = self._sessions.session_of(raw_of(message))
        try:
            await self._sessions.renew(raw_of(message), timeout)
        except TransportError as error:
            if session.over:
                raise LeaseLost(f"the session {session.name} is lost: {error}") from error
            raise
        return session.expires

    async def _close(self) -> None:
        if self._completing:
            await asyncio.wait(self._completing, timeout=CLOSE_SECONDS)
        await super()._close()

    async def _settled(self, message: Message, work: Coroutine[Any, Any, None]) -> None:
        """Carry a verdict out, once; only while the session is ours, so that no copy is made of a lost message."""
        if not receipt_of(message).settled:
            try:
                self._sessions.session_of(raw_of(message))
            except LeaseLost:
                work.close()
                raise
        await super()._settled(message, work)
