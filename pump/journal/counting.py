"""A journal counted in one process. pyarrow adds up what is alike, on all cores, while it reads the files.

What is left is a row for each window, channel, handler and so on, and is added up as Python objects. Only percentiles
need the times of all deliveries. `pump.spark.journal.counting` counts the same on a cluster.
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
from pyarrow.acero import AggregateNodeOptions, Declaration, ProjectNodeOptions, ScanNodeOptions

from pump.journal.events import SCHEMA
from pump.journal.files import live
from pump.journal.open_file import recover
from pump.journal.rules import MinuteCount, alerts
from pump.journal.summary import (
    FAILED,
    QUANTILES,
    WINDOW,
    Acknowledgements,
    DeadLetterGroup,
    ErrorGroup,
    Latency,
    OutcomeCount,
    Posts,
    Summary,
    Window,
)

_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_MINUTE_MICROS: Final = 60_000_000
_WINDOW_MINUTES: Final = WINDOW // timedelta(minutes=1)


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
        count.count(_dataset(files))
    return count.summary()


def _dataset(files: Sequence[Path]) -> ds.Dataset:
    return ds.dataset([str(each) for each in files], schema=SCHEMA, format="parquet")


class _Alike(NamedTuple):
    """Events that differ only in what can be added up, and in what nobody asks for."""

    event: str
    minute: int
    """When they were, in minutes since the epoch; where no rule looks at them, the first minute of their window."""
    channel: str
    subject: str
    handler: str
    verdict: str
    exhausted: bool
    error: str
    """The kind of a failed post; "" for all else."""
    group: str | None
    """Of a delivery that failed: what stands before the first colon of its cause."""
    events: int
    counted: int
    """The sum of the events' own counts."""
    most: int
    """The largest of them."""
    redelivered: int
    age: int | None
    """The longest time since posting, in microseconds."""
    settled: int
    """How many of them say how long settling took."""
    settling_seconds: float

    @property
    def window(self) -> tuple[int, str]:
        """The number of their window since the epoch, and their channel."""
        return self.minute // _WINDOW_MINUTES, self.channel


def _text(name: str) -> pc.Expression:
    return pc.coalesce(pc.field(name), "")


def _is(*events: str) -> pc.Expression:
    return pc.field("event").isin(events)


_VERDICT: Final = _text("verdict")
_CAUSE: Final = _text("cause")
_TIME: Final = pc.field("time").cast(pa.int64())
"""In microseconds since the epoch."""
_MINUTE: Final = pc.divide(_TIME, _MINUTE_MICROS)
_WINDOW: Final = pc.divide(_MINUTE, _WINDOW_MINUTES)
_AGE: Final = pc.subtract(_TIME, pc.field("posted").cast(pa.int64()))
_EXHAUSTED: Final = pc.coalesce(pc.field("exhausted"), False)


_KEYS: Final[Mapping[str, pc.Expression]] = {
    "event": pc.field("event"),
    "minute": pc.if_else(
        _is("publish_retry", "publish_failed") | (_is("delivery") & (_VERDICT.isin(FAILED) | _EXHAUSTED)),
        _MINUTE,
        pc.multiply(_WINDOW, _WINDOW_MINUTES),
    ),
    **{name: _text(name) for name in ("channel", "subject", "handler")},
    "verdict": _VERDICT,
    "exhausted": _EXHAUSTED,
    "error": pc.if_else(_is("publish_failed"), _text("error"), ""),
    "group": pc.if_else(
        _is("delivery") & _VERDICT.isin(FAILED) & (_CAUSE != ""),
        pc.utf8_trim_whitespace(pc.list_element(pc.split_pattern(_CAUSE, ":", max_splits=1), 0)),
        pa.scalar(None, pa.string()),
    ),
}
"""The fields of `_Alike` that are the same."""
_ADDED: Final[Mapping[str, pc.Expression]] = {
    **{name: pc.field(name) for name in ("count", "redelivered", "settling_seconds")},
    "age": _AGE,
}
_SUMS: Final = (
    *(("event", "count"), ("count", "sum"), ("count", "max"), ("redelivered", "sum")),
    *(("age", "max"), ("settling_seconds", "count"), ("settling_seconds", "sum")),
)
"""The fields that follow the keys."""
_TIMES: Final[Mapping[str, pc.Expression]] = {
    "window": _WINDOW,
    "channel": _text("channel"),
    "verdict": _VERDICT,
    "handling": pc.if_else(_is("delivery"), pc.field("handling_seconds"), pa.scalar(None, pa.float64())),
    "settling": pc.field("settling_seconds"),
    "age": pc.if_else(_is("delivery"), pc.divide(_AGE.cast(pa.float64()), 1e6), pa.scalar(None, pa.float64())),
}
"""How long things took, of deliveries and settlements."""
_REJECTED: Final[Mapping[str, pc.Expression]] = {
    **{name: _text(name) for name in ("channel", "signature", "reason", "message_id")},
    "time": _TIME,
}


def _alike(events: ds.Dataset) -> Iterator[_Alike]:
    """All events, added up."""
    columns = {**_KEYS, **_ADDED}
    sums = [(name, f"hash_{kind}", None, f"{name} {kind}") for name, kind in _SUMS]
    table = Declaration.from_sequence(
        [
            Declaration("scan", ScanNodeOptions(events, columns=columns)),
            Declaration("project", ProjectNodeOptions(list(columns.values()), list(columns))),
            Declaration("aggregate", AggregateNodeOptions(sums, list(_KEYS))),
        ]
    ).to_table()
    return map(_Alike, *(table[name].to_pylist() for name in (*_KEYS, *(name for *_, name in sums))))


@dataclass(slots=True)
class _Rejected:
    """The dead letters of one channel with one signature."""

    reason: str = ""
    number: int = 0
    first: int | None = None
    last: int = 0
    example_id: str = ""

    def add(self, reason: str, message_id: str, time: int) -> None:
        self.reason, self.example_id = max(self.reason, reason), max(self.example_id, message_id)
        self.number += 1
        self.first = time if self.first is None else min(self.first, time)
        self.last = max(self.last, time)


@dataclass(slots=True)
class _Count:
    windows: dict[tuple[int, str], Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    lags: dict[tuple[int, str], dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    outcomes: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    acknowledging: Counter[tuple[str, str]] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    dead_letters: dict[tuple[str, str], _Rejected] = field(default_factory=lambda: defaultdict(_Rejected))
    posts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    minutes: Counter[tuple[str, str, str, int]] = field(default_factory=Counter)
    times: pa.Table = None
    """How long things took, a row for each verdict; None if there are no files."""
    events: int = 0
    lost: int = 0

    def count(self, events: ds.Dataset) -> None:
        for alike in _alike(events):
            self.events += alike.events
            act = _ACTS.get(alike.event)
            if act is not None:
                act(self, alike)
            for rule, kind in _rules(alike):
                self.minutes[rule, alike.channel or alike.subject, kind, alike.minute] += alike.counted
        rejected = events.to_table(_REJECTED, filter=_is("delivery") & (_VERDICT == "reject"))
        for channel, signature, *each in zip(*(column.to_pylist() for column in rejected.columns), strict=True):
            self.dead_letters[channel, signature].add(*each)
        self.times = events.to_table(_TIMES, filter=_is("delivery", "settled"))

    def received(self, alike: _Alike) -> None:
        self.windows[alike.window]["received"] += alike.counted
        if alike.age is not None:
            self._lag(alike, "lag_seconds", alike.age / 1e6)

    def lag(self, alike: _Alike) -> None:
        self.windows[alike.window]["received"] += 0
        self._lag(alike, "waiting", alike.most)

    def _lag(self, alike: _Alike, name: str, value: float) -> None:
        lags = self.lags[alike.window]
        lags[name] = max(value, lags.get(name, value))

    def delivery(self, alike: _Alike) -> None:
        number, verdict = alike.events, alike.verdict
        counts = self.windows[alike.window]
        counts["deliveries"] += number
        counts["acknowledged"] += number * (verdict == "acknowledge")
        counts["redelivered"] += alike.redelivered or 0
        counts["exhausted"] += number * alike.exhausted
        counts["failed"] += number * (verdict in FAILED)
        counts["rejected"] += number * (verdict == "reject")
        self.outcomes[alike.channel, alike.handler, verdict] += number
        self.acknowledging[alike.channel, "total"] += number * (verdict == "acknowledge")
        if alike.group is not None:
            self.errors[alike.group] += number
        self.settled(alike)

    def settled(self, alike: _Alike) -> None:
        if alike.settled:
            self.windows[alike.window]["settled"] += alike.settled
            self.windows[alike.window]["settling_seconds"] += alike.settling_seconds  # type: ignore[assignment] # a number

    def settle_failed(self, alike: _Alike) -> None:
        counts = self.windows[alike.window]
        counts["settle_failed"] += alike.events
        if alike.verdict == "acknowledge":
            counts["acknowledged"] -= alike.events
            self.acknowledging[alike.channel, "failed"] += alike.events

    def post(self, alike: _Alike) -> None:
        counts = self.posts[alike.subject]
        counts[alike.event] += alike.counted
        counts["exhausted"] += alike.counted * alike.exhausted

    def loses(self, alike: _Alike) -> None:
        self.lost += alike.counted

    def summary(self) -> Summary:
        times = self.times
        counted = (MinuteCount(*key, number) for key, number in self.minutes.items())
        return Summary(
            windows=[
                Window(_window_start(key[0]), key[1], **counts, **self.lags.get(key, {}))  # type: ignore[arg-type] # by name
                for key, counts in sorted(self.windows.items())
            ],
            latencies=[] if times is None else sorted(_latencies(times)),
            outcomes=[OutcomeCount(*key, number) for key, number in sorted(self.outcomes.items())],
            acknowledgements=[] if times is None else list(self._acknowledgements(times)),
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

    def _acknowledgements(self, times: pa.Table) -> Iterator[Acknowledgements]:
        done = times.filter(pc.equal(times["verdict"], "acknowledge")).select(["channel", "settling"])
        sums = done.group_by("channel").aggregate([("settling", "mean")])
        means = dict(zip(sums["channel"].to_pylist(), sums["settling_mean"].to_pylist(), strict=True))
        at_95 = {channel: at for (channel,), (at,) in _quantiles(done, ["channel"], "settling", [0.95])}
        for channel in sorted({name for name, _ in self.acknowledging}):
            total, failed = self.acknowledging[channel, "total"], self.acknowledging[channel, "failed"]
            yield Acknowledgements(channel, total, failed, means.get(channel), at_95.get(channel))

    def _dead_letters(self) -> Iterator[DeadLetterGroup]:
        for key, each in self.dead_letters.items():
            first, last = _time(each.first or 0), _time(each.last)
            yield DeadLetterGroup(*key, each.reason, each.number, first, last, each.example_id)


_ACTS: Final[Mapping[str, Callable[[_Count, _Alike], None]]] = {
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


def _rules(alike: _Alike) -> Iterable[tuple[str, str]]:
    """The rules that look at such events, each with the kind."""
    event = alike.event
    if event == "publish_retry" or (event == "delivery" and alike.verdict == "requeue"):
        yield "retry rate", ""
    if event in {"delivery", "publish_failed"} and alike.exhausted:
        yield "exhausted", ""
    if event == "publish_failed":
        yield "publish failures", alike.error
    if event == "delivery" and alike.verdict == "reject":
        yield "dead letters", ""


def _latencies(times: pa.Table) -> Iterator[Latency]:
    for measure in ("handling", "settling", "age"):
        for (window, channel), at in _quantiles(times, ["window", "channel"], measure, QUANTILES):
            yield Latency(_window_start(window), channel, measure, *at)


def _quantiles(
    table: pa.Table, keys: Sequence[str], name: str, parts: Sequence[float]
) -> Iterator[tuple[tuple[Any, ...], Sequence[float]]]:
    """For each group of rows and each part: the smallest value that so large a part of the values does not exceed."""
    known = table.filter(pc.is_valid(table[name])).select([*keys, name])
    ordered = known.sort_by([(each, "ascending") for each in (*keys, name)])
    groups = ordered.group_by(keys).aggregate([(name, "count")]).sort_by([(each, "ascending") for each in keys])
    sizes = groups[f"{name}_count"].to_pylist()
    begin, places = 0, []
    for size in sizes:
        places += [begin + max(0, ceil(part * size) - 1) for part in parts]
        begin += size
    values = ordered[name].take(pa.array(places, pa.int64())).to_pylist()
    for number, key in enumerate(zip(*(groups[each].to_pylist() for each in keys), strict=True)):
        yield key, values[number * len(parts) : (number + 1) * len(parts)]


def _window_start(window: int) -> datetime:
    return _time(window * _WINDOW_MINUTES * _MINUTE_MICROS)


def _time(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)
