"""The sessions of one queue that one consumer has: it accepts the next free ones, and gives up those that are idle."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusReceiver
from azure.servicebus.exceptions import OperationTimeoutError

from pump.clock import Clock
from pump.duration import seconds
from pump.errors import LeaseLost, PumpError, TransportError
from pump.telemetry import log
from pump.transports.servicebus.client_internals import hurry
from pump.transports.servicebus.entities import Facts
from pump.transports.servicebus.link import CLOSE_SECONDS, PURGE_SECONDS, Handle, new_client, pause
from pump.transports.servicebus.session import SLICE_SECONDS, Session, session_id
from pump.transports.servicebus.settings import ServiceBusSettings

ACCEPT_SECONDS: Final = 10.0
"""How long Azure is asked to wait for a free session."""
QUICK_SECONDS: Final = 1.0
"""The same during an outage, whose end nobody would know of for so long, and while a purge looks for more."""
AT_ONCE: Final = 4
"""So many sessions are accepted at a time, as long as there are any."""
KEEP_SECONDS: Final = 0.1
"""How often sessions that are idle, or whose locks have ended, are looked for."""
MOST_KEPT: Final = 100
GRACE_SECONDS: Final = 3.0
"""How much later than Azure the client gives up waiting for a session."""


class SessionLink:
    """Of each session one message is here at a time, and `most` sessions have one.

    The next message of a session is asked for once Azure has confirmed what became of the last one. So whatever breaks,
    no message is run again after a later one of its session.
    """

    def __init__(self, settings: ServiceBusSettings, queue: str, facts: Facts, *, most: int, clock: Clock) -> None:
        self._client: Final = new_client(settings)
        self._queue: Final = queue
        self._lock: Final = facts.lock_seconds
        self._most: Final = most
        self._clock: Final = clock
        self._timeout: Final = seconds(settings.timeout)
        self._idle: Final = min(seconds(settings.session_idle), (facts.lock_seconds or seconds(settings.lease)) / 3)
        self._sessions: Final[dict[str, Session]] = {}
        self._arrived: Final[deque[Session]] = deque()
        """Those whose message is not handed out yet."""
        self._came: Final = asyncio.Event()
        """Set when something has come, or has failed."""
        self._accepting = 0
        self._plenty = False
        """Whether the last accept found a session at once."""
        self._failure: TransportError | None = None
        """Why no session could be accepted; None as soon as Azure has answered again."""
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._closing: Final[set[asyncio.Task[None]]] = set()
        self._kept: deque[Handle | Session] = deque(maxlen=MOST_KEPT)
        """What is not closed yet: Python warns of a connection that is forgotten open."""
        self._closed = False
        self._held: Sequence[object] = ()
        """The connections of accepts that a close cuts off, so that they end with the loop."""
        self._start(self._keep(), self._tasks)

    def _start(self, work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    # -- receiving

    async def receive(self, limit: int, wait: float) -> Sequence[ServiceBusReceivedMessage]:
        """Up to so many messages, each of another session, within a time that is no longer than a slice."""
        self._came.clear()
        self._accept()
        self._ask(limit)
        if not self._arrived:
            await self._until_something_comes(min(wait, SLICE_SECONDS))
        if self._failure is not None and not self._sessions:
            raise self._failure
        found: list[ServiceBusReceivedMessage] = []
        while self._arrived and len(found) < limit:
            session = self._arrived.popleft()
            if not session.over and session.raw is not None:
                found.append(session.raw)
        return found

    async def _until_something_comes(self, wait: float) -> None:
        try:
            async with asyncio.timeout(max(0.01, wait)):
                await self._came.wait()
        except TimeoutError:
            pass

    def _ask(self, limit: int) -> None:
        """Have messages come for all who are free, as many as are wanted; those of new sessions first."""
        under_way = len(self._arrived) + sum(each.asking for each in self._sessions.values())
        free = [each for each in self._sessions.values() if each.raw is None and not each.asking]
        for session in sorted(free, key=lambda each: (each.empty, each.asked_at))[: max(0, limit - under_way)]:
            session.asking, session.asked_at = True, self._clock.monotonic()
            self._start(self._ask_one(session), self._tasks)

    async def _ask_one(self, session: Session) -> None:
        try:
            if await session.receive():
                self._arrived.append(session)
                self._came.set()
        except PumpError:
            self._drop_ended()
        finally:
            session.asking = False

    # -- accepting and giving up

    def _accept(self) -> None:
        """Look for free sessions, while fewer than may be have messages."""
        busy = sum(each.is_busy for each in self._sessions.values())
        wanted = min(self._most - busy, AT_ONCE if self._plenty else 1) - self._accepting
        for _ in range(0 if self._closed else wanted):
            self._accepting += 1
            self._start(self._accept_one(), self._tasks)

    async def _accept_one(self) -> None:
        began = self._clock.monotonic()
        try:
            session = await self._accepted(ACCEPT_SECONDS if self._failure is None else QUICK_SECONDS)
            self._plenty = session is not None and self._clock.monotonic() - began < QUICK_SECONDS
            self._failure = None
            if session is not None:
                self._came.set()
        except PumpError as error:
            failure = error if isinstance(error, TransportError) else TransportError(str(error))
            self._failure, self._plenty = failure, False
            self._came.set()
        finally:
            self._accepting -= 1

    async def _accepted(self, wait: float) -> Session | None:
        """The next free session, or None if there is none for so long."""
        handle = Handle(lambda: self._receiver(wait), wait + GRACE_SECONDS)
        self._keep_open(handle)
        try:
            async with handle.turn("accepting a session") as receiver:
                session = Session(receiver, lock=self._lock, timeout=self._timeout, clock=self._clock)
        except PumpError as error:
            await handle.close()
            if isinstance(error.__cause__, OperationTimeoutError):
                return None
            raise
        except asyncio.CancelledError:
            await handle.close()
            raise
        self._make_room()
        self._sessions[session.name] = session
        return session

    def _receiver(self, wait: float) -> ServiceBusReceiver:
        receiver = self._client.get_queue_receiver(self._queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=wait)
        hurry(receiver)
        return receiver

    def _make_room(self) -> None:
        """Idle ones are kept for a while, in case that more comes; but no more of them than may have messages."""
        idle = [each for each in self._sessions.values() if not each.is_busy and not each.asking]
        if len(self._sessions) >= 2 * self._most and idle:
            self._give_up(min(idle, key=lambda each: each.idle_since), "another one has messages")

    async def _keep(self) -> None:
        """Give up what is idle, for others: also while nobody receives here."""
        while True:
            await pause(KEEP_SECONDS)
            now = self._clock.monotonic()
            for session in list(self._sessions.values()):
                if session.message is None and not session.asking and now - session.idle_since >= self._idle:
                    self._give_up(session, "it was idle")
                elif now >= session.expires:
                    self._give_up(session, "its lock has ended")
            self._drop_ended()

    def _give_up(self, session: Session, why: str) -> None:
        session.end(why)
        self._drop_ended()

    def _drop_ended(self) -> None:
        for session in [each for each in self._sessions.values() if each.over]:
            del self._sessions[session.name]
            if session.message is not None:
                text = "servicebus: the session %s of %s is lost, and its message comes again: %s"
                log.info(text, session.name, self._queue, session.over)
            self._start(self._closed_session(session), self._closing)

    def _keep_open(self, one: Handle | Session) -> None:
        self._kept = deque((each for each in self._kept if not each.is_closed), MOST_KEPT)
        self._kept.append(one)

    async def _closed_session(self, session: Session) -> None:
        self._keep_open(session)
        await session.close()

    # -- settling

    def session_of(self, raw: ServiceBusReceivedMessage) -> Session:
        """The session that gave this message; LeaseLost if it is over, also where we have accepted it anew."""
        session = self._sessions.get(session_id(raw))
        if session is None or session.over or session.raw is not raw:
            name, message = session_id(raw), raw.message_id
            raise LeaseLost(f"the session {name} of message {message} no longer belongs to this consumer")
        return session

    async def _settle(self, raw: ServiceBusReceivedMessage, doing: str, call: Callable[[Any], Any]) -> None:
        session = self.session_of(raw)
        try:
            async with session.turn(doing) as receiver:
                await call(receiver)
        except TransportError as error:
            if not session.over:
                raise
            raise LeaseLost(f"{doing}: the session {session.name} is lost: {error}") from error
        finally:
            self._drop_ended()
        session.settled()
        self._came.set()

    async def complete(self, raw: ServiceBusReceivedMessage) -> None:
        """Azure has removed it when this returns."""
        await self._settle(raw, "acknowledging", lambda receiver: receiver.complete_message(raw))

    async def abandon(self, raw: ServiceBusReceivedMessage) -> None:
        """It is the next of its session when this returns; a delivery is counted."""
        await self._settle(raw, "giving back", lambda receiver: receiver.abandon_message(raw))

    async def dead_letter(self, raw: ServiceBusReceivedMessage, reason: str, description: str) -> None:
        """It is among the queue's dead letters when this returns."""

        def call(receiver: Any) -> Any:  # noqa: ANN401 - the client's
            return receiver.dead_letter_message(raw, reason=reason, error_description=description)

        await self._settle(raw, "dead-lettering", call)

    async def release(self, raws: Sequence[ServiceBusReceivedMessage]) -> None:
        """Others may have their sessions when this returns, as if they had not been received."""
        given_up = [each for each in self._sessions.values() if each.raw is not None and each.raw in raws]
        for session in given_up:
            session.message = None  # nobody has begun it: it is not lost
            session.end("it was handed back")
            self._sessions.pop(session.name, None)
        await asyncio.gather(*(self._closed_session(session) for session in given_up))

    async def renew(self, raw: ServiceBusReceivedMessage, timeout: float) -> None:
        """Renew the lock of its session."""
        try:
            await self.session_of(raw).renew(timeout)
        finally:
            self._drop_ended()

    async def purge(self) -> int:
        """Remove what waits in all sessions that are free, or ours; returns how many messages that were."""
        purged = 0
        while True:
            for session in list(self._sessions.values()):
                if session.message is None:
                    purged += await self._purge(session)
            more = await self._accepted(PURGE_SECONDS)
            if more is None and not any(each.message is None and each.is_busy for each in self._sessions.values()):
                return purged

    async def _purge(self, session: Session) -> int:
        purged = 0
        async with session.turn("purging") as receiver:
            if session.raw is not None:  # it came, and was not handed out
                await receiver.complete_message(session.raw)
                session.settled()
                purged = 1
            while found := await receiver.receive_messages(100, max_wait_time=SLICE_SECONDS):
                for raw in found:
                    await receiver.complete_message(raw)
                purged += len(found)
        session.empty = True
        return purged

    # -- what a queue without sessions needs, and this does not

    def reconnect(self) -> None:
        """Sessions have a connection each, and end with it; the next one is accepted on a new one."""

    async def ask_no_more(self) -> None:
        """Nobody else is waiting for a session that is ours: what comes late is asked for again."""

    async def quiet(self) -> None:
        """The same."""

    async def close(self) -> None:
        """Give up all sessions, and do not wait for long."""
        self._closed = True
        self._held = [each.connection for each in self._kept if isinstance(each, Handle)]
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS)
        for session in list(self._sessions.values()):
            session.message = None  # its channel is closed: nobody is to be told
            session.end("its consumer is closed")
        self._drop_ended()
        if self._closing:
            await asyncio.wait(self._closing, timeout=CLOSE_SECONDS)
