"""What one task of a stream does: it serves a staged part, or else receives, stages, publishes and acknowledges."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Final

import pyarrow as pa

from pump.clock import Clock, SystemClock
from pump.spark.columns import table_of
from pump.spark.source.batch import HeldBatch
from pump.spark.source.options import SourceOptions
from pump.spark.staging import ROWS_AT_ONCE, Slot, Staged, StagingLog
from pump.transport_kit.bridge import blocking
from pump.transport_kit.protocol import Consumer


class StagedPart:
    """One part of one tick. Until it is committed, `read` yields the same rows whenever and wherever it is called."""

    def __init__(
        self,
        options: SourceOptions,
        log: StagingLog,
        slot: Slot,
        most: int,
        *,
        consumer: Callable[[], Consumer] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._options: Final = options
        self._log: Final = log
        self._slot: Final = slot
        self._most: Final = most
        self._open: Final = consumer or self._consumer
        self._clock: Final = clock or SystemClock()

    def read(self) -> Iterator[pa.RecordBatch]:
        """The rows. Nothing is in hand, and no connection open, when the first one is yielded."""
        self._log.require(self._slot.epoch)
        published = self._log.find(self._slot)
        if published is None:
            won, rows = self._fill()
            if won:
                return (rows.slice(begin, ROWS_AT_ONCE) for begin in range(0, rows.num_rows, ROWS_AT_ONCE))
            published = self._log.find(self._slot)
        return self._log.serve(self._slot, published or Staged("", 0))

    def _fill(self) -> tuple[bool, pa.RecordBatch]:
        """Decide the part, unless another attempt decides it first. An error hands back what was not stored."""
        with closing(self._open()) as consumer, HeldBatch(consumer, self._clock) as batch:
            try:
                batch.gather(
                    most=self._most,
                    most_bytes=self._options.bytes_per_partition,
                    window=self._options.window_seconds,
                )
                batch.end()
                messages = batch.messages()
                rows = table_of(messages, channel=self._options.channel, received=self._clock.wall())
                won = self._log.publish(self._slot, self._log.stage(self._slot, rows))
            except BaseException:
                batch.hand_back()
                raise
            if won:
                batch.acknowledge(messages)
            else:
                batch.hand_back()
            return won, rows

    def _consumer(self) -> Consumer:
        return blocking(self._options.transport()).consumer(self._options.subscription())
