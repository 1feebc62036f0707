"""What a journal says in numbers. Who shows them need not know who counted them.

`pump.journal.counting` counts a journal in one process, `pump.spark.journal.counting` on Spark.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from pump.journal.rules import Alert

WINDOW: Final = timedelta(minutes=5)
FAILED: Final = ("nack", "requeue", "reject")
"""The verdicts on a delivery that failed; one that is handed back, or left unsettled, has not."""
QUANTILES: Final = (0.5, 0.95, 0.99)


class Window(NamedTuple):
    """What happened in a channel within one window. The numbers of two parts of a window can be added."""

    window_start: datetime
    channel: str
    received: int = 0
    deliveries: int = 0
    """How many deliveries had a verdict."""
    acknowledged: int = 0
    redelivered: int = 0
    exhausted: int = 0
    failed: int = 0
    rejected: int = 0
    settle_failed: int = 0
    settled: int = 0
    """How many verdicts were carried out, as far as is known how long that took."""
    settling_seconds: float = 0.0
    """The sum of that."""
    lag_seconds: float | None = None
    """How old the oldest message was when it was received."""
    waiting: int | None = None
    """The most messages that waited, where the program counts them."""

    @property
    def redelivery_rate(self) -> float | None:
        """The share of the deliveries that were not the first."""
        return share(self.redelivered, self.deliveries)

    @property
    def exhaustion_rate(self) -> float | None:
        """The share of the deliveries that ended the attempts of their message."""
        return share(self.exhausted, self.deliveries)

    @property
    def failure_rate(self) -> float | None:
        """The share of the deliveries that failed."""
        return share(self.failed, self.deliveries)


SUMMED: Final = Window._fields[2:-2]
"""The fields of a window that are added; of the others the largest counts."""


class Latency(NamedTuple):
    """How long things took within one window, in seconds: the median, and what 95 and 99 of 100 stayed below."""

    window_start: datetime
    channel: str
    measure: str
    """`handling`, `settling`, or `age`: from posting until the verdict."""
    p50: float
    p95: float
    p99: float


class OutcomeCount(NamedTuple):
    """How many deliveries of a handler had a verdict."""

    channel: str
    handler: str
    verdict: str
    number: int


class Acknowledgements(NamedTuple):
    """How acknowledging went in a channel."""

    channel: str
    total: int
    failed: int
    mean_seconds: float | None
    p95_seconds: float | None

    @property
    def success_rate(self) -> float | None:
        """The share that the broker took."""
        return share(self.total - self.failed, self.total)


class ErrorGroup(NamedTuple):
    """How often deliveries failed with errors of one group: what stands before the first colon of their text."""

    group: str
    number: int


class DeadLetterGroup(NamedTuple):
    """The dead letters of one channel with one signature."""

    channel: str
    signature: str
    reason: str
    number: int
    first: datetime
    last: datetime
    example_id: str


class Posts(NamedTuple):
    """What became of the messages that were posted to a subject."""

    subject: str
    published: int
    failed: int
    retries: int
    exhausted: int


@dataclass(frozen=True, slots=True)
class Summary:
    """All that is known of a journal; each list in the order of its first fields."""

    windows: Sequence[Window]
    latencies: Sequence[Latency]
    outcomes: Sequence[OutcomeCount]
    acknowledgements: Sequence[Acknowledgements]
    errors: Sequence[ErrorGroup]
    dead_letters: Sequence[DeadLetterGroup]
    posts: Sequence[Posts]
    alerts: Sequence[Alert]
    events: int
    lost: int
    """How many events pumps could not write."""
    counted_by: str
    """What has counted this."""


def share(part: float, whole: float) -> float | None:
    """The part of the whole; None of nothing."""
    return part / whole if whole else None
