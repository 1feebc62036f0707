"""The producers of one dispatcher: one for blocking callers, and one for each event loop of awaiting callers."""

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from typing import Final

from pump.errors import ConfigurationError, PublishError, PumpError
from pump.message import Message
from pump.transport_kit.bridge import awaiting, blocking
from pump.transport_kit.protocol import AsyncProducer, Producer, Transport


class Producers:
    """Opens producers when they are first needed, and closes them all.

    They do not share the consumers' connections: a broker that blocks publishers must not block acknowledgements.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport: Final = transport
        self._lock: Final = threading.Lock()
        self._open = False
        self._producer: Producer | None = None
        self._async_producers: Final[dict[asyncio.AbstractEventLoop, AsyncProducer]] = {}

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
        producer = self._async_producers.get(loop)
        if producer is None:
            producer = self._async_producers.setdefault(loop, await awaiting(self._transport).async_producer())
        try:
            await producer.send(messages, delay)
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
        running = [(loop, each) for loop, each in self._async_producers.items() if loop.is_running()]
        self._async_producers.clear()
        closing = [asyncio.run_coroutine_threadsafe(each.close(), loop) for loop, each in running]
        if asyncio._get_running_loop() is None:  # noqa: SLF001 - as must_not_block asks; a loop must not wait for another
            for future in closing:
                with contextlib.suppress(Exception):  # what could not be closed ends with its loop
                    future.result()

    async def close_async(self) -> None:
        """The same, where one of them belongs to the running loop."""
        producer = self._async_producers.pop(asyncio.get_running_loop(), None)
        if producer is not None:
            await producer.close()
        self.close()

    def _check(self) -> None:
        if not self._open:
            raise ConfigurationError(
                "nothing can be posted here: the dispatcher is not running. Use `with dispatcher:`, or "
                "`with dispatcher.publishing():` to post without consuming"
            )
