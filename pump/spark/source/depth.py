"""How many messages wait in a channel, asked by the driver's process before each tick."""

from contextlib import suppress
from typing import Final

from pump.clock import Signal, SystemClock
from pump.errors import PumpError, TransportError
from pump.spark.source.options import SourceOptions
from pump.telemetry import log
from pump.transport_kit.bridge import blocking
from pump.transport_kit.protocol import Consumer, CountsWaiting

EMPTY_SECONDS: Final = 0.1
"""How long to wait before a broker that had nothing is asked again: Spark would ask a hundred times in a second."""


class ChannelDepth:
    """Asks by one consumer, which never receives. A broker that is away for a while ends no query."""

    def __init__(self, options: SourceOptions) -> None:
        self._options: Final = options
        self._transport: Final = blocking(options.transport())
        self._consumer: Consumer | None = None
        self._prepared = False
        self._clock: Final = SystemClock()
        self._ask_at = 0.0

    def prepare(self) -> None:
        """Create or validate the channel, as the options say; once."""
        if not self._prepared:
            self._transport.prepare([self._options.subscription(self._options.missing)], [])
            self._prepared = True

    def waiting(self, *, or_raise: bool = False) -> int | None:
        """About how many messages wait; 0 only if there are none. None: the broker does not say, or not cheaply.

        A broker that does not answer has none for now, unless `or_raise`.
        """
        self._clock.wait(Signal(), self._ask_at - self._clock.monotonic())
        try:
            waiting = self._ask()
        except TransportError as error:
            self._close()
            if or_raise:
                raise
            log.warning("spark: channel %s: the broker does not answer: %s", self._options.channel, error)
            waiting = 0
        self._ask_at = self._clock.monotonic() + EMPTY_SECONDS if waiting == 0 else 0.0
        return waiting

    def _ask(self) -> int | None:
        self.prepare()
        if self._consumer is None:
            self._consumer = self._transport.consumer(self._options.subscription())
        return self._consumer.count_waiting() if isinstance(self._consumer, CountsWaiting) else None

    def _close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            with suppress(PumpError):  # it has received nothing
                consumer.close()
