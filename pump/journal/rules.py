"""The rules of the alerts, and when one holds: on counts by minute, so that it does not matter who counted."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

WINDOW_MINUTES: Final = 5
_DAY_MINUTES: Final = 24 * 60


class Rule(NamedTuple):
    """More than `limit` of what it counts within `minutes`."""

    name: str
    minutes: int
    limit: int
    text: str


RULES: Final[Mapping[str, Rule]] = {
    each.name: each
    for each in (
        Rule("retry rate", 5, 50, "more than 10 retries a minute for 5 minutes"),
        Rule("exhausted", 1, 0, "attempts or tries were used up"),
        Rule("publish failures", 5, 25, "more than 5 failed posts a minute for 5 minutes, of one kind and subject"),
        Rule("dead letters", _DAY_MINUTES, 100, "more than 100 new dead letters within a day"),
    )
}


class MinuteCount(NamedTuple):
    """How often a rule's event happened in one minute."""

    rule: str
    channel: str
    """Of failed posts the subject."""
    kind: str
    """The kind of the error, where the rule looks at each kind for itself."""
    minute: int
    """Minutes since the epoch."""
    number: int


class Alert(NamedTuple):
    """A rule that held. The id is the same whenever the same window is looked at again: the latest one replaces it."""

    id: str
    rule: str
    channel: str
    kind: str
    window_start: datetime
    since: datetime
    """The end of the first minute in which the rule held."""
    value: int
    """The most that were counted within the rule's time."""
    text: str


def alerts(counts: Iterable[MinuteCount]) -> Sequence[Alert]:
    """The alerts that these counts give: for each rule, channel, kind and window of five minutes in which it held."""
    series: dict[tuple[str, str, str], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for rule, channel, kind, minute, number in counts:
        series[rule, channel, kind][minute] += number
    found = [alert for key, minutes in series.items() for alert in _of_series(*key, minutes)]
    return sorted(found, key=lambda each: (each.window_start, each.id))


def _of_series(name: str, channel: str, kind: str, counts: Mapping[int, int]) -> Iterable[Alert]:
    rule = RULES[name]
    held: dict[int, list[tuple[int, int]]] = defaultdict(list)
    times, within = sorted(counts), 0
    first = 0
    for minute in times:  # a rule begins to hold in a minute that counts something
        within += counts[minute]
        while times[first] <= minute - rule.minutes:
            within -= counts[times[first]]
            first += 1
        if within > rule.limit:
            held[minute - minute % WINDOW_MINUTES].append((minute, within))
    for window, holds in held.items():
        start = _time(window)
        parts = [f"{start:%Y-%m-%dT%H:%MZ}", channel, name, *([kind] if kind else [])]
        value = max(number for _, number in holds)
        since = _time(holds[0][0]) + timedelta(minutes=1)
        yield Alert("|".join(parts), name, channel, kind, start, since, value, rule.text)


def _time(minute: int) -> datetime:
    return datetime.fromtimestamp(minute * 60, UTC)


LONGEST_MINUTES: Final = max(each.minutes for each in RULES.values())
"""So many minutes before a window have to be known to say whether a rule holds in it."""
