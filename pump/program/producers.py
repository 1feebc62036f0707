"""The producers of one dispatcher: one for blocking callers, and one for each event loop of awaiting callers."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final

from pump.clock import Signal, SystemClock
from pump.errors import ConfigurationError, PublishError, PumpError
from pump.message import Message
from pump.telemetry import Telemetry, log
from pump.transport_kit.bridge import awaiting, blocking
from pump.transport_kit.gathering import GatheredSends
from pump.transport_kit.protocol import AsyncProducer, Producer, Transport
from pump.transport_kit.sending import not_sent

_real_clock: Final = SystemClock()
CLOSING_TIMEOUT: Final = 10.0
"""How many seconds to wait until one producer is closed, unless the caller has less time."""


class Producers:
    """Opens producers when they are first needed, and closes them all.

    They do not share the consumers' connections: a broker that blocks publishers must not block acknowledgements.
    """

    def __init__(self, transport: Transport, telemetry: Telemetry | None = None) -> None:
        self._transport: Final = transport
        self._telemetry: Final = telemetry or Telemetry()
        self._lock: Final = threading.Lock()
        self._open = False
        self._producer: Producer | None = None
        self._loops: Final[dict[asyncio.AbstractEventLoop, _LoopProducer]] = {}

    def open(self) -> None:
        """Allow sending from now on."""
        self._open = True

    def send(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        """Send messages; returns when the broker has confirmed all of them."""
        with self._lock:
            self._check()
            if self._producer is None:
                self._producer = blocking(self._transport).producer()
            producer = self._producer
        began = _real_clock.monotonic()
        try:
            producer.send(messages, delay)
        except PumpError as error:
            self._tell(messages, began, error)
            raise
        except Exception as error:
            failure = PublishError(f"posting failed: {type(error).__name__}: {error}")
            self._tell(messages, began, failure)
            raise failure from error
        self._tell(messages, began)

    async def send_async(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        """The same, awaited."""
        self._check()
        loop = asyncio.get_running_loop()
        producer = self._loops.get(loop)
        if producer is None:
            for ended in [each for each in self._loops if each.is_closed()]:
                self._loops.pop(ended, None)
            producer = self._loops[loop] = _LoopProducer(self._transport)
        began = _real_clock.monotonic()
        try:
            await producer.send(messages, delay)
        except PumpError as error:
            self._tell(messages, began, error)
            raise
        except Exception as error:
            failure = PublishError(f"posting failed: {type(error).__name__}: {error}")
            self._tell(messages, began, failure)
            raise failure from error
        self._tell(messages, began)

    def _tell(self, messages: Sequence[Message], began: float, error: PumpError | None = None) -> None:
        """Tell the listeners what became of each message: confirmed, or not and why; equal ones are told together."""
        if not self._telemetry:
            return
        took = _real_clock.monotonic() - began
        each_failed = error.failures if isinstance(error, PublishError) else {}
        outcomes = Counter(
            (message.header.topic, each_failed.get(place) if each_failed else error)
            for place, message in enumerate(messages)
        )
        for (topic, failure), number in outcomes.items():
            event = "published" if failure is None else "publish_failed"
            self._telemetry.tell(event, topic=topic, messages=number, seconds=took, error=failure)

    def closing(self) -> Sequence[Signal]:
        """Begin to close every producer; returns a signal for each, set once it is closed. Confirmed posts are stored.

        A producer of a loop that no longer runs ended with its loop.
        """
        self._open = False
        awaited = list(self._loops.items())
        self._loops.clear()
        there_is_one = self._producer is not None or self._lock.locked()  # locked: it is being opened now
        closing = [_in_a_thread(self._close_own)] if there_is_one else []
        closing += [asyncio.run_coroutine_threadsafe(each.close(), loop) for loop, each in awaited if loop.is_running()]
        return [_ended(each) for each in closing]

    def close(self) -> None:
        """Close every producer, and wait for that."""
        for closed in self.closing():
            _real_clock.wait(closed, CLOSING_TIMEOUT)

    def _close_own(self) -> None:
        with self._lock:
            producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    def _check(self) -> None:
        if not self._open:
            raise ConfigurationError(
                "nothing can be posted here: the dispatcher is not running. Use `with dispatcher:`, or "
                "`with dispatcher.publishing():` to post without consuming"
            )


class _LoopProducer:
    """The producer for the callers of one loop: opened once, for the first of them. No caller can cancel that."""

    def __init__(self, transport: Transport) -> None:
        self._transport: Final = transport
        self._opening: asyncio.Task[GatheredSends] | None = None
        self._producer: AsyncProducer | None = None
        self._closed = False
        self._sends: GatheredSends | None = None

    async def send(self, messages: Sequence[Message], delay: float) -> None:
        """As the producer's `send`. Callers that wait for the opening then send in the order in which they came."""
        sends = self._sends
        if sends is None:
            if self._opening is None:
                self._opening = asyncio.create_task(self._open(), name="pump-open")
            sends = await asyncio.shield(self._opening)
        await sends.send(messages, delay)

    async def _open(self) -> GatheredSends:
        try:
            self._check()
            producer = await awaiting(self._transport).async_producer()
        finally:
            self._opening = None
        if self._closed:
            await producer.close()
            self._check()
        self._producer, self._sends = producer, GatheredSends(producer.send)
        return self._sends

    def _check(self) -> None:
        if self._closed:
            raise not_sent("the producer is closed", retriable=True)

    async def close(self) -> None:
        """Close the producer; one that is still being opened is closed afterwards."""
        self._closed = True
        if self._producer is not None:
            await self._producer.close()


def _in_a_thread(close: Callable[[], None]) -> Future[None]:
    """Make a call that may block on a thread of its own, so that a caller can stop waiting for it."""
    future = Future[None]()

    def run() -> None:
        try:
            close()
            future.set_result(None)
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="pump-close", daemon=True).start()
    return future


def _ended(future: Future[None]) -> Signal:
    ended = Signal()

    def end(_: object) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None:
            log.warning("closing a producer failed: %s", str(error) or type(error).__name__)
        ended.set()

    future.add_done_callback(end)
    return ended
