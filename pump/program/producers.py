"""The producers of one dispatcher: one for blocking callers, and one for each event loop of awaiting callers."""

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from typing import Final

from pump.errors import ConfigurationError, PublishError, PumpError
from pump.message import Message
from pump.transport_kit.bridge import awaiting, blocking
from pump.transport_kit.gathering import GatheredSends
from pump.transport_kit.protocol import AsyncProducer, Producer, Transport
from pump.transport_kit.sending import not_sent


class Producers:
    """Opens producers when they are first needed, and closes them all.

    They do not share the consumers' connections: a broker that blocks publishers must not block acknowledgements.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport: Final = transport
        self._lock: Final = threading.Lock()
        self._open = False
        self._producer: Producer | None = None
        self._loops: Final[dict[asyncio.AbstractEventLoop, _LoopProducer]] = {}

    def open(self) -> None:
        """From now on messages may be sent."""
        self._open = True

    def send(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        """Send messages; returns when the broker has confirmed all of them."""
        self._check()
        with self._lock:
            if self._producer is None:
                self._producer = blocking(self._transport).producer()
            producer = self._producer
        try:
            producer.send(messages, delay)
        except PumpError:
            raise
        except Exception as error:
            raise PublishError(f"posting failed: {type(error).__name__}: {error}") from error

    async def send_async(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        """The same, awaited."""
        self._check()
        loop = asyncio.get_running_loop()
        producer = self._loops.get(loop)
        if producer is None:
            for ended in [each for each in self._loops if each.is_closed()]:
                self._loops.pop(ended, None)
            producer = self._loops[loop] = _LoopProducer(self._transport)
        try:
            await producer.sends.send(messages, delay)
        except PumpError:
            raise
        except Exception as error:
            raise PublishError(f"posting failed: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Close every producer, but for those of loops that do not run any more: they ended with their loop."""
        self._open = False
        with self._lock:
            producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()
        running = [(loop, each) for loop, each in self._loops.items() if loop.is_running()]
        self._loops.clear()
        closing = [asyncio.run_coroutine_threadsafe(each.close(), loop) for loop, each in running]
        if asyncio._get_running_loop() is None:  # noqa: SLF001 - as must_not_block asks; a loop must not wait for another
            for future in closing:
                with contextlib.suppress(Exception):  # what could not be closed ends with its loop
                    future.result()

    async def close_async(self) -> None:
        """The same, where one of them belongs to the running loop."""
        producer = self._loops.pop(asyncio.get_running_loop(), None)
        if producer is not None:
            await producer.close()
        self.close()

    def _check(self) -> None:
        if not self._open:
            raise ConfigurationError(
                "nothing can be posted here: the dispatcher is not running. Use `with dispatcher:`, or "
                "`with dispatcher.publishing():` to post without consuming"
            )


class _LoopProducer:
    """The producer for the callers of one loop: opened once, by the first of them."""

    def __init__(self, transport: Transport) -> None:
        self._transport: Final = transport
        self._opening: Final = asyncio.Lock()
        self._producer: AsyncProducer | None = None
        self._closed = False
        self.sends: Final = GatheredSends(self._send)

    async def _send(self, messages: Sequence[Message], delay: float) -> None:
        producer = self._producer
        if producer is None:
            producer = await self._open()
        await producer.send(messages, delay)

    async def _open(self) -> AsyncProducer:
        async with self._opening:
            if self._closed:
                raise not_sent("the producer is closed", retriable=True)
            if self._producer is None:
                self._producer = await awaiting(self._transport).async_producer()
            return self._producer

    async def close(self) -> None:
        """Close the producer, also one that is being opened."""
        async with self._opening:
            self._closed = True
            if self._producer is not None:
                await self._producer.close()
