"""The report of a journal: one HTML page with its plots, that needs no network, no script and no other file."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from typing import Final

from pump.journal.plots import Point, bars, lines, number, span
from pump.journal.summary import SUMMED, WINDOW, Latency, Summary, Window, share

_MOST_LINES: Final = 6
_MOST_ROWS: Final = 20
_MOST_POINTS: Final = 400
_OTHERS: Final = "all others"
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_VERDICTS: Final = {"acknowledge": 2, "requeue": 4, "nack": 1, "reject": 3, "hand back": 5, "unsettled": 0}
"""In this order, each with the number of its colour."""

_STYLE: Final = (
    """
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1f24; --soft: #5c6670; --rule: #d9dee3; --card: #f5f7f9;
  --bad: #b3261e; --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #b0559b; --c4: #8a6d00; --c5: #56697f; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171a; --ink: #e7ebef; --soft: #9aa5b0; --rule: #333b43;
  --card: #1d2227; --bad: #ff8a80; --c0: #56b4e9; --c1: #ff9a4d; --c2: #34c79b; --c3: #e08fcb; --c4: #f0e442;
  --c5: #a9b8c8; } }
* { box-sizing: border-box; }
body { background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; margin: 0 auto;
  max-width: 1180px; padding: 28px 22px 60px; }
h1 { font-size: 26px; margin: 0; } h2 { font-size: 19px; margin: 38px 0 10px; border-bottom: 1px solid var(--rule);
  padding-bottom: 4px; }
.about { color: var(--soft); margin: 4px 0 20px; overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(136px, 1fr)); gap: 10px; }
.tile { background: var(--card); border-radius: 8px; padding: 10px 14px; }
.tile b { display: block; font-size: 23px; font-variant-numeric: tabular-nums; } .tile span { color: var(--soft); }
.tile.bad b { color: var(--bad); }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 520px), 1fr)); gap: 22px; }
figure { margin: 0; break-inside: avoid; min-width: 0; } figcaption { font-weight: 600; margin-bottom: 2px; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--soft); font: 12px system-ui, sans-serif; } svg text.name { fill: var(--ink); }
.grid { stroke: var(--rule); stroke-width: 1; } polyline { fill: none; stroke-width: 2; stroke-linejoin: round; }
.key { width: 22px; height: 8px; display: inline-block; margin-right: 6px; } .key line { stroke-width: 3; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 18px; margin: 0 0 4px; padding: 0;
  color: var(--soft); font-size: 13px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; } .wide { overflow-x: auto; }
th, td { text-align: left; padding: 5px 12px 5px 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
td { overflow-wrap: anywhere; } th { color: var(--soft); font-weight: 600; white-space: nowrap; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; } .none { color: var(--soft); }
code { font: 13px ui-monospace, monospace; }
"""
    + "".join(f".l{n} {{ stroke: var(--c{n}); }} .f{n} {{ fill: var(--c{n}); }}\n" for n in range(6))
    + """
@media print { :root { --paper: #fff; --ink: #000; --soft: #444; --rule: #bbb; --card: #fff; --bad: #900;
  --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #b0559b; --c4: #8a6d00; --c5: #56697f; }
  body { max-width: none; padding: 0; font-size: 12px; } .tile { border: 1px solid var(--rule); }
  .tiles { grid-template-columns: repeat(5, 1fr); } .plots { grid-template-columns: 1fr 1fr; }
  h2 { break-after: avoid; } tr { break-inside: avoid; } }
"""
)


def page(title: str, summary: Summary, made: datetime) -> str:
    """The whole page."""
    body = "".join(
        (
            f"<h1>{escape(title)}</h1><p class=about>{_about(summary, made)}</p>",
            _tiles(summary),
            _alerts(summary),
            _section("Messages", _rates(summary)),
            _section("Verdicts", [_verdicts(summary)]) + _acknowledging(summary),
            _section("How long it takes", _latencies(summary)),
            _section("Lag", _lag(summary)),
            _section("Dead letters and errors", _failures(summary)) + _dead_letters(summary),
            _posts(summary),
        )
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>{body}</body></html>\n"
    )


def _about(summary: Summary, made: datetime) -> str:
    times = [each.window_start for each in summary.windows]
    when = f"{_time(min(times))} to {_time(max(times) + WINDOW)}" if times else "no window"
    text = f"{when} (UTC) · {summary.events:,} events, counted by {summary.counted_by} · made {_time(made)}"
    return escape(text)


def _time(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M}"


def totals_by_channel(summary: Summary) -> Mapping[str, Counter[str]]:
    """The sums of all windows of each channel."""
    totals: dict[str, Counter[str]] = defaultdict(Counter)
    for window in summary.windows:
        totals[window.channel].update({name: getattr(window, name) for name in SUMMED})
    return dict(sorted(totals.items()))


def _tiles(summary: Summary) -> str:
    total = sum(totals_by_channel(summary).values(), Counter[str]())
    tiles = [
        ("received", f"{total['received']:,}", False),
        ("acknowledged", f"{total['acknowledged']:,}", False),
        ("failed", _percent(share(total["failed"], total["deliveries"])), False),
        ("redelivered", _percent(share(total["redelivered"], total["deliveries"])), False),
        ("attempts used up", f"{total['exhausted']:,}", total["exhausted"] > 0),
        ("dead letters", f"{total['rejected']:,}", total["rejected"] > 0),
        ("not settled", f"{total['settle_failed']:,}", total["settle_failed"] > 0),
        ("mean settling", span(share(total["settling_seconds"], total["settled"])), False),
        ("alerts", f"{len(summary.alerts):,}", bool(summary.alerts)),
        ("events not recorded", f"{summary.lost:,}", summary.lost > 0),
    ]
    drawn = "".join(
        f'<div class="tile{" bad" * bad}"><b>{escape(value)}</b><span>{name}</span></div>' for name, value, bad in tiles
    )
    return f'<div class="tiles">{drawn}</div>'


def _percent(part: float | None) -> str:
    return "–" if part is None else f"{number(100 * part)} %"


def _section(title: str, plots: Iterable[str]) -> str:
    return f'<h2>{title}</h2><div class="plots">{"".join(plots)}</div>'


def _alerts(summary: Summary) -> str:
    rows = [
        (_time(each.since), each.rule, each.channel, each.kind, f"{each.value:,}", each.text) for each in summary.alerts
    ]
    latest = rows[: -_MOST_ROWS - 1 : -1]
    more = f"<p class=none>and {len(rows) - len(latest):,} before</p>" if len(rows) > len(latest) else ""
    head = ("since", "rule", "channel or subject", "kind", "#counted", "it means")
    return "<h2>Alerts</h2>" + _table(head, latest) + more


# -- over time


def _step(windows: Sequence[Window]) -> timedelta:
    """How much time a point stands for: five minutes, or more where these would be too many points."""
    times = [each.window_start for each in windows]
    length = max(times) - min(times) if times else WINDOW
    return max(1, -(-length // (WINDOW * _MOST_POINTS))) * WINDOW


def _floor(time: datetime, step: timedelta) -> datetime:
    return time - (time - _EPOCH) % step


def _channels(windows: Sequence[Window]) -> Callable[[str], str]:
    """The name under which a channel is drawn: the largest ones have their own."""
    weights = Counter[str]()
    for each in windows:
        weights[each.channel] += each.received + each.deliveries
    own = {name for name, _ in weights.most_common(_MOST_LINES if len(weights) <= _MOST_LINES else _MOST_LINES - 1)}
    return lambda name: name if name in own else _OTHERS


def _by_time(summary: Summary) -> tuple[timedelta, Mapping[str, Mapping[datetime, Counter[str]]]]:
    """The sums of all windows, by drawn channel and point of time; a point at which nothing happened is there too."""
    step, name_of = _step(summary.windows), _channels(summary.windows)
    times = sorted({_floor(each.window_start, step) for each in summary.windows})
    every = [times[0] + place * step for place in range((times[-1] - times[0]) // step + 1)] if times else []
    sums: dict[str, dict[datetime, Counter[str]]] = defaultdict(lambda: {time: Counter() for time in every})
    for each in summary.windows:
        sums[name_of(each.channel)][_floor(each.window_start, step)].update(
            {name: getattr(each, name) for name in SUMMED}
        )
    return step, dict(sorted(sums.items(), key=lambda item: (item[0] == _OTHERS, item[0])))


def _rates(summary: Summary) -> Iterable[str]:
    step, sums = _by_time(summary)
    minutes = step / timedelta(minutes=1)

    def rate(name: str) -> Mapping[str, Sequence[Point]]:
        return {
            channel: [(time, counts[name] / minutes) for time, counts in points.items()]
            for channel, points in sums.items()
        }

    def part(name: str) -> Mapping[str, Sequence[Point]]:
        return {
            channel: [(time, share(counts[name], counts["deliveries"])) for time, counts in points.items()]
            for channel, points in sums.items()
        }

    yield lines("Received a minute", rate("received"), "/min")
    yield lines("Acknowledged a minute", rate("acknowledged"), "/min")
    yield lines("Failed deliveries", part("failed"), "%")
    yield lines("Redeliveries", part("redelivered"), "%")
    yield lines("Dead letters a minute", rate("rejected"), "/min")
    yield lines("Attempts used up", part("exhausted"), "%")


def _latencies(summary: Summary) -> Iterable[str]:
    step, name_of = _step(summary.windows), _channels(summary.windows)
    named = sorted({name_of(each.channel) for each in summary.latencies}, key=lambda name: (name == _OTHERS, name))
    note = "" if step == WINDOW else ", the slowest five minutes of each point"
    for channel in named:
        mine = [each for each in summary.latencies if name_of(each.channel) == channel]
        yield lines(f"{channel}: handling{note}", _percentiles(mine, "handling", step), "s", logarithmic=True)
    for measure, title in (("age", "From posting to verdict"), ("settling", "Settling")):
        at = {
            channel: _stepped(
                [
                    (each.window_start, each.p95)
                    for each in summary.latencies
                    if each.measure == measure and name_of(each.channel) == channel
                ],
                step,
            )
            for channel in named
        }
        yield lines(f"{title}, 95 of 100{note}", at, "s", logarithmic=True)


def _percentiles(mine: Sequence[Latency], measure: str, step: timedelta) -> Mapping[str, Sequence[Point]]:
    ours = [each for each in mine if each.measure == measure]
    return {
        text: _stepped([(each.window_start, getattr(each, name)) for each in ours], step)
        for name, text in (("p50", "median"), ("p95", "95 of 100"), ("p99", "99 of 100"))
    }


def _stepped(points: Iterable[tuple[datetime, float]], step: timedelta) -> Sequence[Point]:
    """The largest value of each step."""
    largest: dict[datetime, float] = {}
    for time, value in points:
        at = _floor(time, step)
        largest[at] = max(value, largest.get(at, value))
    return sorted(largest.items())


def _lag(summary: Summary) -> Iterable[str]:
    step, name_of = _step(summary.windows), _channels(summary.windows)
    ages: dict[str, list[tuple[datetime, float]]] = defaultdict(list)
    waiting: dict[str, list[tuple[datetime, float]]] = defaultdict(list)
    for each in summary.windows:
        if each.lag_seconds is not None:
            ages[name_of(each.channel)].append((each.window_start, each.lag_seconds))
        if each.waiting is not None:
            waiting[name_of(each.channel)].append((each.window_start, each.waiting))
    yield lines(
        "Age of the oldest message when it was received",
        {name: _stepped(points, step) for name, points in sorted(ages.items())},
        "s",
        logarithmic=True,
    )
    if waiting:
        yield lines("Messages that wait", {name: _stepped(at, step) for name, at in sorted(waiting.items())}, "")


# -- by handler, error and subject


def _verdicts(summary: Summary) -> str:
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    several = len({each.channel for each in summary.outcomes}) > 1
    for each in summary.outcomes:
        handler = each.handler or "no handler"
        rows[f"{handler} ({each.channel})" if several else handler][each.verdict] += each.number
    ordered = sorted(rows.items(), key=lambda item: -item[1].total())[:_MOST_ROWS]
    known = [kind for kind in _VERDICTS if any(kind in parts for _, parts in ordered)]
    return bars(
        "Verdicts by handler", [(name, {kind: parts[kind] for kind in known}) for name, parts in ordered], _VERDICTS
    )


def _acknowledging(summary: Summary) -> str:
    rows = [
        (
            each.channel,
            f"{each.total:,}",
            f"{each.failed:,}",
            _percent(each.success_rate),
            span(each.mean_seconds),
            span(each.p95_seconds),
        )
        for each in summary.acknowledgements
    ]
    return _table(("channel", "#acknowledging", "#failed", "#success", "#mean time", "#95 of 100"), rows)


def _failures(summary: Summary) -> Iterable[str]:
    letters = Counter[str]()
    for each in summary.dead_letters:
        letters[each.signature or each.reason or "no reason"] += each.number
    top = letters.most_common(_MOST_ROWS)
    yield bars(
        "Dead letters by signature", [(name, {"dead letters": count}) for name, count in top], {"dead letters": 3}
    )
    errors = [(each.group, {"failed deliveries": each.number}) for each in summary.errors[:_MOST_ROWS]]
    yield bars("Failed deliveries by error", errors, {"failed deliveries": 1})


def _dead_letters(summary: Summary) -> str:
    rows = [
        (
            each.channel,
            each.signature,
            each.reason,
            f"{each.number:,}",
            _time(each.first),
            _time(each.last),
            each.example_id,
        )
        for each in summary.dead_letters[:_MOST_ROWS]
    ]
    more = len(summary.dead_letters) - len(rows)
    note = f"<p class=none>and {more:,} more signatures</p>" if more > 0 else ""
    return _table(("channel", "signature", "reason", "#count", "first", "last", "one of them"), rows) + note


def _posts(summary: Summary) -> str:
    rows = [
        (each.subject, f"{each.published:,}", f"{each.failed:,}", f"{each.retries:,}", f"{each.exhausted:,}")
        for each in summary.posts
    ]
    head = ("subject", "#confirmed", "#failed", "#retries", "#tries used up")
    return "<h2>Posts</h2>" + _table(head, rows) if rows else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; a column whose name begins with # has numbers."""
    if not rows:
        return "<p class=none>none</p>"
    kinds = [' class="n"' if name.startswith("#") else "" for name in head]
    top = "".join(f"<th{kind}>{escape(name.lstrip('#'))}</th>" for kind, name in zip(kinds, head, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{escape(text)}</td>" for kind, text in zip(kinds, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
