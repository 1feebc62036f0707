"""Connections to one queue by the vendor's awaiting client: receivers and senders. Used on one loop."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Protocol, Self, TypeAlias

from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.amqp import AmqpAnnotatedMessage

from pump.duration import seconds
from pump.errors import TransportError
from pump.transport_kit.call_threads import CallThreads
from pump.transports.servicebus.client_internals import connection_of, hurry, release, take_back_credit, was_not_sent
from pump.transports.servicebus.entities import DEAD
from pump.transports.servicebus.errors import outages
from pump.transports.servicebus.settings import ServiceBusSettings

READ_SECONDS: Final = 0.05
"""How long the client waits for data before it checks its time-outs."""
SLICE_SECONDS: Final = 0.1
"""How long one receive of the client lasts: settlements and a stop wait no longer."""
BUSY_SECONDS: Final = 0.4
"""The same while many messages come: after a receive that is cut short, Azure sends the rest twice."""
CLOSE_SECONDS: Final = 0.2
"""How long to wait until the client has closed a connection; after that, it ends with the loop."""
PURGED_AT_ONCE: Final = 100
PURGE_SECONDS: Final = 0.3

Sendable: TypeAlias = ServiceBusMessage | AmqpAnnotatedMessage


class _AwaitedCredential:
    """A blocking credential, for a client that awaits."""

    def __init__(self, credential: Any) -> None:  # noqa: ANN401 - whatever has a get_token
        self._credential: Final = credential

    async def get_token(self, *scopes: str, **options: Any) -> Any:  # noqa: ANN401 - as the credential has it
        """Get the token on a thread, since that may take long; the process can end without waiting for it."""
        threads = CallThreads(1, "pump-servicebus-token")
        asked = threads.submit(self._credential.get_token, *scopes, **options)
        threads.close()  # the thread ends after this call
        return await asyncio.wrap_future(asked)

    async def close(self) -> None:
        """Do nothing: the credential belongs to the user."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Do nothing: the credential belongs to the user."""


def new_client(settings: ServiceBusSettings) -> ServiceBusClient:
    """A client, which connects when it is used. It repeats nothing by itself: the pump does."""
    options: dict[str, Any] = {"retry_total": 0, "socket_timeout": READ_SECONDS}
    if settings.credential is not None:
        return ServiceBusClient(settings.namespace, _AwaitedCredential(settings.credential), **options)
    return ServiceBusClient.from_connection_string(settings.connection_string(), **options)


class Handle:
    """A receiver or sender of the client: opened when needed, one call at a time, and a new one after a failure."""

    def __init__(self, make: Callable[[], ServiceBusReceiver | ServiceBusSender], timeout: float) -> None:
        self._make: Final = make
        self._timeout: Final = timeout
        self._turn: Final = asyncio.Lock()
        self._opened: Any = None
        self._closing: Final[dict[asyncio.Task[None], Any]] = {}
        """The connections that are being closed: the client warns if one is forgotten."""

    @asynccontextmanager
    async def turn(self, doing: str, *, timeout: float | None = None) -> AsyncIterator[Any]:
        """The receiver or sender, for one call. Its errors become ours."""
        async with self._turn:
            with outages(doing):
                try:
                    async with asyncio.timeout(self._timeout if timeout is None else timeout):
                        if self._opened is None:
                            self._opened = self._make()
                        await self._opened.__aenter__()
                        yield self._opened
                except (TimeoutError, asyncio.CancelledError):  # its connection may be in any state
                    self._drop()
                    raise

    def reopen(self) -> None:
        """Have the next call use a new connection."""
        self._drop()

    @property
    def is_closed(self) -> bool:
        """Whether nothing of it is open, or being closed."""
        return self._opened is None and not self._closing

    @property
    def connection(self) -> object:
        """What holds its connection."""
        return connection_of(self._opened)

    def _drop(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            task = asyncio.get_running_loop().create_task(self._closed(opened))
            self._closing[task] = opened
            task.add_done_callback(lambda task: None if task.cancelled() else self._closing.pop(task))

    @staticmethod
    async def _closed(opened: Any) -> None:  # noqa: ANN401 - either kind
        with suppress(Exception):
            await opened.close()

    async def close(self) -> None:
        """Disconnect, without waiting long. A connection that is not closed then ends with the loop."""
        self._drop()
        if self._closing:
            await asyncio.wait(self._closing, timeout=CLOSE_SECONDS)


async def pause(delay: float) -> None:
    """Wait for so many seconds."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    timer = loop.call_later(delay, over.set_result, None)
    try:
        await over
    finally:
        timer.cancel()


class Link(Protocol):
    """What a consumer needs of the connections to its queue."""

    async def receive(self, limit: int, wait: float) -> Sequence[ServiceBusReceivedMessage]: ...  # noqa: D102 - as QueueLink's
    async def ask_no_more(self) -> None: ...  # noqa: D102 - as QueueLink's
    async def quiet(self) -> None: ...  # noqa: D102 - as QueueLink's
    async def complete(self, raw: ServiceBusReceivedMessage) -> None: ...  # noqa: D102 - as QueueLink's
    async def abandon(self, raw: ServiceBusReceivedMessage) -> None: ...  # noqa: D102 - as QueueLink's
    async def release(self, raws: Sequence[ServiceBusReceivedMessage]) -> None: ...  # noqa: D102 - as QueueLink's
    async def dead_letter(self, raw: ServiceBusReceivedMessage, reason: str, description: str) -> None: ...  # noqa: D102 - as QueueLink's
    async def renew(self, raw: ServiceBusReceivedMessage, timeout: float) -> None: ...  # noqa: D102 - as QueueLink's
    async def purge(self) -> int: ...  # noqa: D102 - as QueueLink's
    def reconnect(self) -> None: ...  # noqa: D102 - as QueueLink's
    async def close(self) -> None: ...  # noqa: D102 - as QueueLink's


class QueueLink:
    """The connections of one consumer: one receives and settles, one renews."""

    def __init__(self, settings: ServiceBusSettings, queue: str) -> None:
        self._client: Final = new_client(settings)
        self._queue: Final = queue
        self._timeout: Final = seconds(settings.timeout)
        self._receiving: Final = Handle(self._receiver, self._timeout)
        self._renewing: Final = Handle(self._receiver, self._timeout)
        self._asked = False
        """Whether more messages were asked for than came."""
        self._busy = False
        """Whether the last receive brought as many messages as it asked for."""

    def _receiver(self, mode: ServiceBusReceiveMode = ServiceBusReceiveMode.PEEK_LOCK) -> ServiceBusReceiver:
        name, options = self._queue, dict[str, Any]()
        if name.lower().endswith(DEAD):
            name, options = name[: -len(DEAD)], {"sub_queue": ServiceBusSubQueue.DEAD_LETTER}
        receiver = self._client.get_queue_receiver(name, receive_mode=mode, **options)
        hurry(receiver)
        return receiver

    async def receive(self, limit: int, wait: float) -> Sequence[ServiceBusReceivedMessage]:
        """Up to `limit` messages, within at most SLICE_SECONDS."""
        async with self._receiving.turn("receiving") as receiver:
            self._asked = True
            wait = max(0.01, min(wait, BUSY_SECONDS if self._busy else SLICE_SECONDS))
            found: Sequence[ServiceBusReceivedMessage] = await receiver.receive_messages(limit, max_wait_time=wait)
            self._busy = len(found) == limit > 1
            return found

    async def ask_no_more(self) -> None:
        """Stop asking for messages, so that other consumers get them."""
        if self._asked:
            self._asked = False
            async with self._receiving.turn("receiving") as receiver:
                await take_back_credit(receiver)

    async def quiet(self) -> None:
        """Give back messages that came after `ask_no_more`: the client does that when it reads."""
        async with self._receiving.turn("receiving") as receiver:
            await receiver.peek_messages(1, timeout=self._timeout)

    async def complete(self, raw: ServiceBusReceivedMessage) -> None:
        """Complete the message: Azure has removed it when this returns."""
        async with self._receiving.turn("acknowledging") as receiver:
            await receiver.complete_message(raw)

    async def abandon(self, raw: ServiceBusReceivedMessage) -> None:
        """Give the message back, for any consumer; Azure counts the delivery."""
        async with self._receiving.turn("giving back") as receiver:
            await receiver.abandon_message(raw)

    async def release(self, raws: Sequence[ServiceBusReceivedMessage]) -> None:
        """Give the messages back, for any consumer, as if they had not been received."""
        async with self._receiving.turn("handing back") as receiver:
            for raw in raws:
                if not await release(receiver, raw):
                    await receiver.abandon_message(raw)
            await receiver.peek_messages(1, timeout=self._timeout)  # its answer comes after all that was sent before

    async def dead_letter(self, raw: ServiceBusReceivedMessage, reason: str, description: str) -> None:
        """Move the message to the queue's dead letters."""
        async with self._receiving.turn("dead-lettering") as receiver:
            await receiver.dead_letter_message(raw, reason=reason, error_description=description)

    async def renew(self, raw: ServiceBusReceivedMessage, timeout: float) -> None:
        """Renew the message's lock on a separate connection, which is made again if it is broken."""
        try:
            async with self._renewing.turn("renewing", timeout=timeout) as receiver:
                await receiver.renew_message_lock(raw, timeout=timeout)
        except TransportError:
            self._renewing.reopen()
            raise

    async def purge(self) -> int:
        """Remove the messages that wait; returns how many there were."""
        purged = 0
        handle = Handle(lambda: self._receiver(ServiceBusReceiveMode.RECEIVE_AND_DELETE), self._timeout)
        try:
            while True:
                async with handle.turn("purging") as receiver:
                    found = await receiver.receive_messages(PURGED_AT_ONCE, max_wait_time=PURGE_SECONDS)
                if not found:
                    return purged
                purged += len(found)
        finally:
            await handle.close()

    def reconnect(self) -> None:
        """Have the next call use a new connection."""
        self._receiving.reopen()

    async def close(self) -> None:
        """Disconnect."""
        await asyncio.gather(self._receiving.close(), self._renewing.close())


class Senders:
    """The senders of one client, one for each queue or topic."""

    def __init__(self, settings: ServiceBusSettings) -> None:
        self._client: Final = new_client(settings)
        self._timeout: Final = seconds(settings.timeout)
        self._handles: Final[dict[str, Handle]] = {}

    async def send(self, name: str, messages: Sequence[Sendable]) -> None:
        """Return when all are stored. The client's errors are not changed here: they tell what was sent."""
        handle = self._handles.get(name)
        if handle is None:
            handle = self._handles[name] = Handle(lambda: self._client.get_queue_sender(name), self._timeout)
        try:
            await self._send(handle, messages)
        except Exception as error:
            if not was_not_sent(error):
                raise
            await self._send(handle, messages)  # the connection broke while it was idle

    async def _send(self, handle: Handle, messages: Sequence[Sendable]) -> None:
        try:
            async with handle.turn("sending") as sender:
                await sender.send_messages(messages[0] if len(messages) == 1 else list(messages))
        except TransportError as error:
            handle.reopen()
            cause = error.__cause__
            raise (cause if isinstance(cause, Exception) else error) from None

    async def close(self) -> None:
        """Disconnect."""
        await asyncio.gather(*(each.close() for each in self._handles.values()))
