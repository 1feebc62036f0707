"""Posts messages of rows, some at a time, each confirmed."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pump.errors import PublishError
from pump.message import Message
from pump.spark.sink.options import SinkOptions
from pump.transport_kit.bridge import blocking
from pump.transport_kit.sending import portions

if TYPE_CHECKING:
    from pump.transport_kit.protocol import Producer

HEAVIEST: Final = 4 * 2**20
"""Bytes of bodies that may wait for a confirmation together; a larger one goes alone."""


class Posting:
    """One producer, opened for the first message. No more messages than the options say wait for a confirmation."""

    def __init__(self, options: SinkOptions) -> None:
        self._options: Final = options
        self._transport: Final = blocking(options.transport())
        self._producer: Producer | None = None
        self._topics: Final = {options.topic}
        """Those that are there, as far as the options ask for that."""
        self.count = 0
        """How many are confirmed."""

    def send(self, messages: Sequence[Message]) -> None:
        """Return when all are confirmed; the error says how many of this task were before."""
        for some in portions(messages, lambda each: len(each.body), self._options.in_flight, HEAVIEST):
            self._prepare(some)
            if self._producer is None:
                self._producer = self._transport.producer()
            try:
                self._producer.send(some)
            except PublishError as error:
                self.count += len(some) - len(error.failures) if error.failures else 0
                error.args = (f"{self.count} messages of this task were posted, and stay posted; then: {error}",)
                raise
            self.count += len(some)

    def prepare(self, *topics: str) -> None:
        """Create or validate topics, as the options say."""
        self._transport.prepare([], [self._options.publication(topic) for topic in topics])
        self._topics.update(topics)

    def _prepare(self, messages: Sequence[Message]) -> None:
        new = sorted({each.header.topic for each in messages} - self._topics)
        if new:
            self.prepare(*new)

    def close(self) -> None:
        """Disconnect."""
        if self._producer is not None:
            self._producer.close()
