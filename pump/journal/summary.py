"""What a journal says in numbers, and how they are counted of a journal that is small enough for one process.

`pump.spark.journal` counts the same of large ones. Who shows the numbers need not know who counted them.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import ceil
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from pump.journal.events import SCHEMA
from pump.journal.files import live
from pump.journal.open_file import recover
from pump.journal.rules import Alert, MinuteCount, alerts
from pump.journal.signature import error_group

WINDOW: Final = timedelta(minutes=5)
FAILED: Final = ("nack", "requeue", "reject")
"""The verdicts on a delivery that failed; one that is handed back, or left unsettled, has not."""
QUANTILES: Final = (0.5, 0.95, 0.99)
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_MINUTE_MICROS: Final = 60_000_000
_WINDOW_MICROS: Final = 5 * _MINUTE_MICROS
_COLUMNS: Final = [
    *("event", "time", "channel", "subject", "handler", "message_id", "count", "redelivered", "verdict", "reason"),
    *("error", "cause", "signature", "exhausted", "posted", "handling_seconds", "settling_seconds"),
]


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


def journal_files(folder: Path) -> Sequence[Path]:
    """The files that count now; what a dead process has left is made whole first, where one may write."""
    with suppress(OSError):
        recover(folder)
    return live(folder).all


def row_count(files: Sequence[Path]) -> int:
    """How many events there are, read from the footers only."""
    return int(_dataset(files).count_rows()) if files else 0


def summarise(files: Sequence[Path]) -> Summary:
    """Count everything in this process."""
    count = _Count()
    if files:
        for batch in _dataset(files).to_batches(columns=_COLUMNS):
            for row in _rows(batch):
                count.add(row)
    return count.summary()


def _rows(batch: pa.RecordBatch) -> Iterator[Mapping[str, Any]]:
    """The rows, with times in microseconds: a datetime for each would take most of the time."""
    columns = [
        (pc.cast(column, pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
        for column in batch.columns
    ]
    for values in zip(*columns, strict=True):
        yield dict(zip(_COLUMNS, values, strict=True))


def _dataset(files: Sequence[Path]) -> ds.Dataset:
    return ds.dataset([str(each) for each in files], schema=SCHEMA, format="parquet")


@dataclass(slots=True)
class _Count:
    windows: dict[tuple[int, str], Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    lags: dict[tuple[int, str], dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    latencies: dict[tuple[int, str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    outcomes: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    acknowledgements: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    acknowledging: Counter[tuple[str, str]] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    dead_letters: dict[tuple[str, str], list[Mapping[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    posts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    minutes: Counter[tuple[str, str, str, int]] = field(default_factory=Counter)
    events: int = 0
    lost: int = 0

    def add(self, row: Mapping[str, Any]) -> None:
        self.events += 1
        act = _ACTS.get(row["event"])
        if act is not None:
            act(self, row, (row["time"] - row["time"] % _WINDOW_MICROS, row["channel"] or ""))
        for rule, channel, kind in _rules(row):
            self.minutes[rule, channel, kind, row["time"] // _MINUTE_MICROS] += row["count"]

    def received(self, row: Mapping[str, Any], key: tuple[int, str]) -> None:
        self.windows[key]["received"] += row["count"]
        if row["posted"] is not None:
            self._lag(key, "lag_seconds", (row["time"] - row["posted"]) / 1e6)

    def lag(self, row: Mapping[str, Any], key: tuple[int, str]) -> None:
        self.windows[key]["received"] += 0
        self._lag(key, "waiting", row["count"])

    def _lag(self, key: tuple[int, str], name: str, value: float) -> None:
        self.lags[key][name] = max(value, self.lags[key].get(name, value))

    def delivery(self, row: Mapping[str, Any], key: tuple[int, str]) -> None:
        verdict, channel = row["verdict"], key[1]
        counts = self.windows[key]
        counts["deliveries"] += 1
        counts["acknowledged"] += verdict == "acknowledge"
        counts["redelivered"] += row["redelivered"] or 0
        counts["exhausted"] += bool(row["exhausted"])
        counts["failed"] += verdict in FAILED
        counts["rejected"] += verdict == "reject"
        self.outcomes[channel, row["handler"] or "", verdict] += 1
        self.acknowledging[channel, "total"] += verdict == "acknowledge"
        if verdict in FAILED and row["cause"]:
            self.errors[error_group(row["cause"])] += 1
        if verdict == "reject":
            self.dead_letters[channel, row["signature"] or ""].append(row)
        self._took(key, "handling", row["handling_seconds"])
        if row["posted"] is not None:
            self._took(key, "age", (row["time"] - row["posted"]) / 1e6)
        self.settled(row, key)

    def settled(self, row: Mapping[str, Any], key: tuple[int, str]) -> None:
        took = row["settling_seconds"]
        if took is not None:
            self.windows[key]["settled"] += 1
            self.windows[key]["settling_seconds"] += took
            self._took(key, "settling", took)
            if row["verdict"] == "acknowledge":
                self.acknowledgements[key[1]].append(took)

    def settle_failed(self, row: Mapping[str, Any], key: tuple[int, str]) -> None:
        self.windows[key]["settle_failed"] += 1
        if row["verdict"] == "acknowledge":
            self.windows[key]["acknowledged"] -= 1
            self.acknowledging[key[1], "failed"] += 1

    def post(self, row: Mapping[str, Any], _: object) -> None:
        counts = self.posts[row["subject"] or ""]
        counts[row["event"]] += row["count"]
        counts["exhausted"] += row["count"] * bool(row["exhausted"])

    def loses(self, row: Mapping[str, Any], _: object) -> None:
        self.lost += row["count"]

    def _took(self, key: tuple[int, str], measure: str, took: float | None) -> None:
        if took is not None:
            self.latencies[*key, measure].append(took)

    def summary(self) -> Summary:
        counted = (MinuteCount(*key, number) for key, number in self.minutes.items())
        return Summary(
            windows=[
                Window(_time(key[0]), key[1], **counts, **self.lags.get(key, {}))  # type: ignore[arg-type] # by name
                for key, counts in sorted(self.windows.items())
            ],
            latencies=[
                Latency(_time(key[0]), *key[1:], *_quantiles(times, *QUANTILES))
                for key, times in sorted(self.latencies.items())
            ],
            outcomes=[OutcomeCount(*key, number) for key, number in sorted(self.outcomes.items())],
            acknowledgements=[self._of_channel(each) for each in sorted({name for name, _ in self.acknowledging})],
            errors=sorted((ErrorGroup(*each) for each in self.errors.items()), key=lambda each: (-each.number, each)),
            dead_letters=sorted(self._dead_letters(), key=lambda each: (-each.number, each)),
            posts=[
                Posts(name, each["published"], each["publish_failed"], each["publish_retry"], each["exhausted"])
                for name, each in sorted(self.posts.items())
            ],
            alerts=alerts(counted),
            events=self.events,
            lost=self.lost,
            counted_by="this process",
        )

    def _of_channel(self, channel: str) -> Acknowledgements:
        times = self.acknowledgements[channel]
        total, failed = self.acknowledging[channel, "total"], self.acknowledging[channel, "failed"]
        mean = share(sum(times), len(times))
        return Acknowledgements(channel, total, failed, mean, _quantiles(times, 0.95)[0] if times else None)

    def _dead_letters(self) -> Iterator[DeadLetterGroup]:
        for (channel, signature), rows in self.dead_letters.items():
            times = [each["time"] for each in rows]
            reason, example = (max(each[name] or "" for each in rows) for name in ("reason", "message_id"))
            yield DeadLetterGroup(channel, signature, reason, len(rows), _time(min(times)), _time(max(times)), example)


_ACTS: Final[Mapping[str, Callable[[_Count, Mapping[str, Any], tuple[int, str]], None]]] = {
    "received": _Count.received,
    "lag": _Count.lag,
    "delivery": _Count.delivery,
    "settled": _Count.settled,
    "settle_failed": _Count.settle_failed,
    "published": _Count.post,
    "publish_failed": _Count.post,
    "publish_retry": _Count.post,
    "lost": _Count.loses,
}


def _rules(row: Mapping[str, Any]) -> Iterable[tuple[str, str, str]]:
    """The rules that look at an event, each with channel and kind."""
    event, where = row["event"], row["channel"] or row["subject"] or ""
    if event == "publish_retry" or (event == "delivery" and row["verdict"] == "requeue"):
        yield "retry rate", where, ""
    if event in {"delivery", "publish_failed"} and row["exhausted"]:
        yield "exhausted", where, ""
    if event == "publish_failed":
        yield "publish failures", where, row["error"] or ""
    if event == "delivery" and row["verdict"] == "reject":
        yield "dead letters", where, ""


def _quantiles(values: Sequence[float], *parts: float) -> Sequence[float]:
    """For each part the smallest value that so large a part of the values does not exceed."""
    ordered = sorted(values)
    return [ordered[max(0, ceil(part * len(ordered)) - 1)] for part in parts]


def _time(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)
