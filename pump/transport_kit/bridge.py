"""Lets awaiting code use a blocking transport, by threads, and blocking code an awaiting one, by an event loop.

A receive is never cancelled. It is interrupted, and the messages that it returns are kept for the next receive, or
handed back.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final, Generic, ParamSpec, TypeVar

from pump.dead_letter import Rejection
from pump.errors import ConfigurationError
from pump.message import Message
from pump.subscription import Publication, Subscription
from pump.transport_kit.call_threads import CallThreads
from pump.transport_kit.loop_thread import LoopThread
from pump.transport_kit.protocol import (
    AcknowledgesSoon,
    AsyncConsumer,
    AsyncProducer,
    AwaitingTransport,
    AwaitsWaiting,
    BlockingTransport,
    Consumer,
    PostsAwaiting,
    Producer,
    ReceivesAhead,
    ReceivesSoon,
    Transport,
    ignore_uncounted,
)

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")
Inner = TypeVar("Inner", Consumer, AsyncConsumer)

SENDS_AT_A_TIME: Final = 8
"""How many sends of one producer run at a time: each mostly waits for the broker to confirm."""


def blocking(transport: Transport) -> BlockingTransport:
    """The transport for blocking callers: itself, or bridged."""
    if isinstance(transport, BlockingTransport):
        return transport
    if isinstance(transport, AwaitingTransport):
        return _BlockingBridge(transport)
    raise ConfigurationError(
        f"{type(transport).__name__} is not a transport: it has neither consumer nor async_consumer"
    )


def awaiting(transport: Transport) -> AwaitingTransport:
    """The transport for awaiting callers: itself, or bridged."""
    if isinstance(transport, AwaitingTransport):
        return transport
    if isinstance(transport, BlockingTransport):
        return _AwaitingBridge(transport)
    raise ConfigurationError(
        f"{type(transport).__name__} is not a transport: it has neither consumer nor async_consumer"
    )


async def _run(
    threads: CallThreads, call: Callable[Arguments, Result], *args: Arguments.args, **options: Arguments.kwargs
) -> Result:
    """Await a call on a thread. If the wait is cancelled, the call goes on: a thread cannot be stopped."""
    future = threads.submit(call, *args, **options)
    await _ended(future)
    return future.result()


class _AwaitingBridge:
    """A blocking transport for awaiting callers."""

    def __init__(self, transport: BlockingTransport) -> None:
        self._transport: Final = transport

    async def async_prepare(self, subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> None:
        thread = CallThreads(1, "pump-prepare")
        try:
            await _run(thread, self._transport.prepare, subscriptions, publications)
        finally:
            thread.close()

    async def async_consumer(self, subscription: Subscription) -> AsyncConsumer:
        settling = CallThreads(1, "pump-settle")
        try:
            consumer = await _run(settling, self._transport.consumer, subscription)
        except BaseException:
            settling.close()
            raise
        return _AwaitingConsumer(consumer, settling)

    async def async_producer(self) -> AsyncProducer:
        if isinstance(self._transport, PostsAwaiting):
            return await self._transport.async_producer()
        threads = CallThreads(SENDS_AT_A_TIME, "pump-publish")
        try:
            producer = await _run(threads, self._transport.producer)
        except BaseException:
            threads.close()
            raise
        return _AwaitingProducer(producer, threads)


class _BridgedConsumer(Generic[Inner]):
    """What is the same for a bridged consumer of either colour."""

    def __init__(self, consumer: Inner) -> None:
        self._consumer: Final[Inner] = consumer
        self._acknowledge_soon: Final = consumer.acknowledge_soon if isinstance(consumer, AcknowledgesSoon) else None

    @property
    def on_uncounted(self) -> Callable[[Message], None]:
        return self._consumer.on_uncounted if isinstance(self._consumer, ReceivesAhead) else ignore_uncounted

    @on_uncounted.setter
    def on_uncounted(self, tell: Callable[[Message], None]) -> None:
        if isinstance(self._consumer, ReceivesAhead):
            self._consumer.on_uncounted = tell

    @property
    def generation(self) -> int:
        return self._consumer.generation

    @property
    def broker_limit(self) -> int | None:
        return self._consumer.broker_limit

    def interrupt(self) -> None:
        self._consumer.interrupt()


class _AwaitingConsumer(_BridgedConsumer[Consumer]):
    """A blocking consumer for awaiting callers: one thread receives, another settles and renews."""

    def __init__(self, consumer: Consumer, settling: CallThreads) -> None:
        super().__init__(consumer)
        self._settling: Final = settling
        self._receiving: Final = CallThreads(1, "pump-receive")
        self._under_way: Future[Sequence[Message]] | None = None
        self._receive_soon: Final = consumer.receive_soon if isinstance(consumer, ReceivesSoon) else None

    async def receive(self, limit: int, timeout: float) -> Sequence[Message]:
        if self._under_way is None and self._receive_soon is not None:
            await asyncio.sleep(0)  # else nothing but this pump would run on its loop while messages are there
            messages = self._receive_soon(limit)
            if messages:
                return messages
        if self._under_way is None:
            self._under_way = self._receiving.submit(self._consumer.receive, limit, timeout)
        await _ended(self._under_way)
        received, self._under_way = self._under_way, None
        return received.result()

    async def acknowledge(self, message: Message) -> None:
        if self._acknowledge_soon is None or not self._acknowledge_soon(message):
            await _run(self._settling, self._consumer.acknowledge, message)

    async def nack(self, message: Message) -> None:
        await _run(self._settling, self._consumer.nack, message)

    async def requeue(self, message: Message, delay: float, attempts: int) -> None:
        await _run(self._settling, self._consumer.requeue, message, delay, attempts)

    async def reject(self, message: Message, rejection: Rejection) -> None:
        await _run(self._settling, self._consumer.reject, message, rejection)

    async def extend(self, message: Message) -> None:
        await _run(self._settling, self._consumer.extend, message)

    def extend_from_thread(self, message: Message) -> None:
        self._consumer.extend(message)

    async def hand_back(self, messages: Sequence[Message]) -> None:
        await _run(self._settling, self._consumer.hand_back, messages)

    async def purge(self) -> int:
        return await _run(self._settling, self._consumer.purge)

    async def close(self) -> None:
        try:
            await self._hand_back_what_is_under_way()
        finally:
            closing = self._settling.submit(self._consumer.close)
            self._settling.close()
            self._receiving.close()
            await _ended(closing)
            closing.result()

    async def _hand_back_what_is_under_way(self) -> None:
        under_way = self._under_way
        if under_way is None:
            return
        self._consumer.interrupt()
        await _ended(under_way)
        if under_way.exception() is None and under_way.result():
            await self.hand_back(under_way.result())


class _AwaitingProducer:
    """A blocking producer for awaiting callers. One send that waits for the broker does not delay another."""

    def __init__(self, producer: Producer, threads: CallThreads) -> None:
        self._producer: Final = producer
        self._threads: Final = threads

    async def send(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        await _run(self._threads, self._producer.send, messages, delay)

    async def close(self) -> None:
        last = CallThreads(1, "pump-publish")
        try:
            await _run(last, self._finish)
        finally:
            last.close()

    def _finish(self) -> None:
        self._threads.close()
        self._threads.join()
        self._producer.close()


async def _ended(future: Future[Result]) -> None:
    """Wait until the future has ended, with any result or error."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def end(_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits on it
            loop.call_soon_threadsafe(ended.set)

    future.add_done_callback(end)
    await ended.wait()


class _BlockingBridge:
    """An awaiting transport for blocking callers; each consumer and producer has a loop of its own."""

    def __init__(self, transport: AwaitingTransport) -> None:
        self._transport: Final = transport

    def prepare(self, subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> None:
        thread = LoopThread("pump-prepare")
        try:
            thread.run(self._transport.async_prepare(subscriptions, publications))
        finally:
            thread.close()

    def consumer(self, subscription: Subscription) -> Consumer:
        thread = LoopThread("pump-consumer")
        try:
            return _BlockingConsumer(thread.run(self._transport.async_consumer(subscription)), thread)
        except BaseException:
            thread.close()
            raise

    def producer(self) -> Producer:
        thread = LoopThread("pump-producer")
        try:
            return _BlockingProducer(thread.run(self._transport.async_producer()), thread)
        except BaseException:
            thread.close()
            raise


class _BlockingConsumer(_BridgedConsumer[AsyncConsumer]):
    """An awaiting consumer for blocking callers."""

    def __init__(self, consumer: AsyncConsumer, thread: LoopThread) -> None:
        super().__init__(consumer)
        self._thread: Final = thread

    def receive(self, limit: int, timeout: float) -> Sequence[Message]:
        return self._thread.run(self._consumer.receive(limit, timeout))

    def acknowledge(self, message: Message) -> None:
        if self._acknowledge_soon is None or not self._acknowledge_soon(message):
            self._thread.run(self._consumer.acknowledge(message))

    def nack(self, message: Message) -> None:
        self._thread.run(self._consumer.nack(message))

    def requeue(self, message: Message, delay: float, attempts: int) -> None:
        self._thread.run(self._consumer.requeue(message, delay, attempts))

    def reject(self, message: Message, rejection: Rejection) -> None:
        self._thread.run(self._consumer.reject(message, rejection))

    def extend(self, message: Message) -> None:
        self._thread.run(self._consumer.extend(message))

    def hand_back(self, messages: Sequence[Message]) -> None:
        self._thread.run(self._consumer.hand_back(messages))

    def purge(self) -> int:
        return self._thread.run(self._consumer.purge())

    def count_waiting(self) -> int | None:
        return self._thread.run(self._consumer.count_waiting()) if isinstance(self._consumer, AwaitsWaiting) else None

    def close(self) -> None:
        try:
            self._thread.run(self._consumer.close())
        finally:
            self._thread.close()


class _BlockingProducer:
    """An awaiting producer for blocking callers."""

    def __init__(self, producer: AsyncProducer, thread: LoopThread) -> None:
        self._producer: Final = producer
        self._thread: Final = thread

    def send(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        self._thread.run(self._producer.send(messages, delay))

    def close(self) -> None:
        try:
            self._thread.run(self._producer.close())
        finally:
            self._thread.close()
