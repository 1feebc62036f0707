"""The counters of a server since it started, as JSON and as Prometheus text."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, TypeAlias

from pump.queue.vocabulary import GroupInfo

Labels: TypeAlias = tuple[tuple[str, str], ...]

BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the histogram of request times, in seconds."""


_COUNTERS: Final[Mapping[str, str]] = {
    "pump_queue_pushed_messages_total": "Messages stored.",
    "pump_queue_duplicate_messages_total": "Messages that were there already.",
    "pump_queue_refused_messages_total": "Messages that their queue had no room for.",
    "pump_queue_popped_messages_total": "Messages handed out.",
    "pump_queue_empty_pops_total": "Requests for messages that were answered without any.",
    "pump_queue_settled_messages_total": "Messages settled, by what became of them.",
    "pump_queue_refused_settlements_total": "Settlements refused, by why.",
    "pump_queue_unavailable_total": "Requests answered with 503, and maintenance put off, by cause.",
    "pump_queue_refused_connections_total": "Connections refused before their request was read, or ended, by why.",
    "pump_queue_returned_messages_total": "Messages given back since their consumer disconnected before it had them.",
}
_SECONDS: Final = "pump_queue_request_seconds"


@dataclass(slots=True)
class _Times:
    """How long the replies of one route took."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0


@dataclass(slots=True)
class Gauges:
    """Numbers from the database at this moment."""

    up: bool = False
    groups: Sequence[GroupInfo] = ()
    dead_letters: Mapping[str, int] = field(default_factory=dict)
    warnings: int = 0


class Metrics:
    """Counts for one server; used from its loop alone."""

    def __init__(self) -> None:
        self._counts: Final[Counter[tuple[str, Labels]]] = Counter()
        self._times: Final[defaultdict[tuple[str, int], _Times]] = defaultdict(_Times)
        self._parked: Final[Counter[str]] = Counter()

    def count(self, what: str, number: int = 1, **labels: str) -> None:
        """Add to the counter `pump_queue_<what>_total`."""
        if number:
            self._counts[f"pump_queue_{what}_total", tuple(labels.items())] += number

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count one request and the time that it took."""
        times = self._times[route, status]
        times.buckets[bisect_left(BUCKETS, seconds)] += 1
        times.total += seconds

    @contextmanager
    def parked(self, queue: str) -> Iterator[None]:
        """Count a consumer as waiting during this block."""
        self._parked[queue] += 1
        try:
            yield
        finally:
            self._parked[queue] -= 1
            if not self._parked[queue]:
                del self._parked[queue]

    def totals(self) -> dict[str, int]:
        """All counters without their labels."""
        totals = dict.fromkeys(_COUNTERS, 0)
        for (name, _), number in self._counts.items():
            totals[name] += number
        return {"requests": sum(sum(each.buckets) for each in self._times.values()), **totals}

    def text(self, gauges: Gauges) -> str:
        """All metrics in the text format of Prometheus."""
        lines = [*self._counter_lines(), *self._gauge_lines(gauges), *self._histogram_lines()]
        return "\n".join(lines) + "\n"

    def _counter_lines(self) -> Iterable[str]:
        for name, about in _COUNTERS.items():
            samples = {labels: number for (counted, labels), number in self._counts.items() if counted == name}
            yield from _lines(name, "counter", about, samples)

    def _gauge_lines(self, gauges: Gauges) -> Iterable[str]:
        parked: Mapping[Labels, float] = {(("queue", queue),): number for queue, number in self._parked.items()}
        dead: Mapping[Labels, float] = {(("queue", queue),): number for queue, number in gauges.dead_letters.items()}
        warnings: Mapping[Labels, float] = {(): gauges.warnings} if gauges.up else {}
        lags = {_of(each): each.lag for each in gauges.groups}
        ages = {_of(each): each.lag_seconds for each in gauges.groups}
        yield from _gauge("database_up", "Whether the database answered when this was asked for.", {(): int(gauges.up)})
        yield from _gauge("parked_consumers", "Consumers that wait for a message on this server.", parked)
        yield from _gauge("lag_messages", "Messages that a group has not settled.", lags)
        yield from _gauge("lag_seconds", "Age of the oldest message that a group has not settled.", ages)
        yield from _gauge("dead_letters", "Dead letters of a queue.", dead)
        yield from _gauge("warnings", "What an operator should see to; /health says what.", warnings)

    def _histogram_lines(self) -> Iterable[str]:
        yield from _head(_SECONDS, "histogram", "Time from a request to its answer, waiting included.")
        ends = [*map(str, BUCKETS), "+Inf"]
        for (route, status), times in self._times.items():
            labels: Labels = (("route", route), ("status", str(status)))
            for end, number in zip(ends, accumulate(times.buckets), strict=True):
                yield _line(f"{_SECONDS}_bucket", (*labels, ("le", end)), number)
            yield _line(f"{_SECONDS}_sum", labels, times.total)
            yield _line(f"{_SECONDS}_count", labels, sum(times.buckets))


def _of(group: GroupInfo) -> Labels:
    return (("queue", group.queue), ("group", group.name))


def _gauge(name: str, about: str, samples: Mapping[Labels, float]) -> Iterable[str]:
    return _lines(f"pump_queue_{name}", "gauge", about, samples)


def _lines(name: str, kind: str, about: str, samples: Mapping[Labels, float]) -> Iterable[str]:
    yield from _head(name, kind, about)
    yield from (_line(name, labels, number) for labels, number in samples.items())


def _head(name: str, kind: str, about: str) -> Iterable[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {kind}"


def _line(name: str, labels: Labels, number: float) -> str:
    inner = ",".join(f'{label}="{_escaped(value)}"' for label, value in labels)
    return f"{name}{{{inner}}} {number}" if inner else f"{name} {number}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
