"""Sends to queues and topics. Its calls block; the vendor's client runs on a loop of the producer's own."""

import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Final

from pump.capabilities import Capabilities
from pump.clock import Clock
from pump.errors import ConfigurationError, PublishError, PumpError
from pump.message import Message
from pump.transport_kit.loop_thread import LoopThread
from pump.transport_kit.sending import check_sizes, not_sent, portions, together
from pump.transports.servicebus.consumer import LONGEST_DELAY
from pump.transports.servicebus.errors import publish_error
from pump.transports.servicebus.link import Senders
from pump.transports.servicebus.messages import write_message
from pump.transports.servicebus.settings import ServiceBusSettings

AT_ONCE: Final = 500
OVERHEAD: Final = 600
"""The most bytes of a message beside its body and headers."""
HEAVIEST: Final = 200 * 1024
"""The most bytes of a batch: the Standard tier takes 256 KiB."""


class ServiceBusProducer:
    """Sends to the topics in the messages' headers, on one connection for each. Any thread may use it."""

    def __init__(
        self, settings: ServiceBusSettings, capabilities: Capabilities, clock: Clock, *, sessions: bool = False
    ) -> None:
        self._sessions: Final = sessions
        """Whether every message has a session."""
        self._capabilities: Final = capabilities
        self._clock: Final = clock
        self._thread: Final = LoopThread("pump-servicebus", ends_connections=True)
        self._lock: Final = threading.Lock()
        self._closed = False
        self._senders: Final = self._thread.run(_senders(settings))

    def send(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        """Return when every message is stored."""
        if self._closed:
            raise not_sent("the producer is closed", retriable=True)
        for message in messages:
            check_sizes(message, self._capabilities)
        try:
            self._thread.run(self._send(messages, delay))
        except RuntimeError as error:
            raise not_sent("the producer is closed", retriable=True) from error
        except CancelledError as error:
            raise PublishError("it is not known whether it was stored: the producer was closed meanwhile") from error

    async def _send(self, messages: Sequence[Message], delay: float) -> None:
        due = self._clock.wall() + min(delay, LONGEST_DELAY) if delay > 0 else 0.0
        failures: dict[int, PublishError] = {}
        topics: dict[str, list[int]] = {}
        for place, message in enumerate(messages):
            topics.setdefault(message.header.topic, []).append(place)
        for topic, places in topics.items():
            for portion in portions(places, lambda place: _weight(messages[place]), AT_ONCE, HEAVIEST):
                failure = await self._send_portion(topic, [messages[place] for place in portion], due)
                if failure is not None:
                    failures.update(dict.fromkeys(portion, failure))
        if failures:
            raise together(failures, len(messages))

    async def _send_portion(self, topic: str, messages: Sequence[Message], due: float) -> PublishError | None:
        try:
            written = [write_message(each.header, each.body, due=due, sessions=self._sessions) for each in messages]
            await self._senders.send(topic, written)
        except ConfigurationError as error:
            return not_sent(str(error))
        except PumpError as error:
            return publish_error(error, topic)
        except Exception as error:
            return publish_error(error, topic)
        return None

    def close(self) -> None:
        """Disconnect."""
        if self._closed:
            return
        self._closed = True
        try:
            with suppress(RuntimeError):
                self._thread.run(self._senders.close())
        finally:
            self._thread.close()


async def _senders(settings: ServiceBusSettings) -> Senders:
    return Senders(settings)


def _weight(message: Message) -> int:
    headers = sum(len(name) + 4 * len(text) for name, text in message.header.headers.items())
    return OVERHEAD + len(message.body) + headers
