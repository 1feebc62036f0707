"""Plots as SVG within a page: lines over time, and bars. Their colours come from the page, for light and dark."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from html import escape
from itertools import groupby
from math import ceil, floor, isfinite, log10
from typing import Final, NamedTuple, TypeAlias

Point: TypeAlias = tuple[datetime, float | None]
"""A time and a value; None where there is none, and the line has a gap."""

COLOURS: Final = 6
"""So many colours has the page, named --c0 and so on. A seventh line has the first colour again, and is dashed."""

_WIDTH: Final = 760
_HEIGHT: Final = 240
_LEFT: Final = 62
_RIGHT: Final = 12
_TOP: Final = 10
_BOTTOM: Final = 26
_BAR: Final = 26
_NAMES: Final = 210
_LONGEST_NAME: Final = 34
_FEW_POINTS: Final = 60
_STEPS: Final = (1.0, 2.0, 5.0, 10.0)
_TIME_STEPS: Final = tuple(
    timedelta(minutes=minutes) for minutes in (5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 7200, 14400, 43200)
)
_DASHES: Final = ("", "6 3", "2 3")


class _Scale(NamedTuple):
    """Where a value stands, and which values get a line."""

    low: float
    high: float
    marks: Sequence[float]
    is_log: bool

    def at(self, value: float) -> float:
        part = (
            (log10(max(value, self.low)) - log10(self.low)) / (log10(self.high) - log10(self.low))
            if self.is_log
            else (value - self.low) / (self.high - self.low)
        )
        return _HEIGHT - _BOTTOM - part * (_HEIGHT - _BOTTOM - _TOP)


class _Axes(NamedTuple):
    """From when to when a plot is, and how its values are drawn."""

    first: datetime
    last: datetime
    scale: _Scale
    unit: str


def lines(title: str, series: Mapping[str, Sequence[Point]], unit: str, *, logarithmic: bool = False) -> str:
    """A plot with a line for each series. Without any value it says so."""
    shown = {name: points for name, points in series.items() if any(value is not None for _, value in points)}
    if not shown:
        return _nothing(title)
    values = [value for points in shown.values() for _, value in points if value is not None and isfinite(value)]
    times = [time for points in shown.values() for time, _ in points]
    scale = _log_scale(values) if logarithmic and max(values) > 0 else _scale(max(values))
    first, last = min(times), max(times)
    parts = [*_y_axis(scale, unit), *_x_axis(first, last)]
    for number, (name, points) in enumerate(shown.items()):
        parts.append(_line(number, name, points, _Axes(first, last, scale, unit)))
    return _figure(title, "".join(parts), _HEIGHT, _legend(list(shown), range(len(shown))))


def bars(title: str, rows: Sequence[tuple[str, Mapping[str, float]]], colours: Mapping[str, int]) -> str:
    """A plot with a bar for each row, made of the parts that it names; each kind of parts has its colour."""
    total = max((sum(parts.values()) for _, parts in rows), default=0.0)
    if not total:
        return _nothing(title)
    kinds = list(dict.fromkeys(kind for _, parts in rows for kind in parts))
    width = _WIDTH - _NAMES - 90
    drawn: list[str] = []
    for place, (name, parts) in enumerate(rows):
        y, x = 4 + place * _BAR, float(_NAMES)
        short = name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
        drawn.append(
            f'<text class="name" x="{_NAMES - 8}" y="{y + 14}" text-anchor="end">{escape(short)}'
            f"<title>{escape(name)}</title></text>"
        )
        for kind, value in parts.items():
            length = width * value / total
            colour = colours[kind]
            drawn.append(
                f'<rect class="f{colour}" x="{x:.1f}" y="{y}" width="{max(length, 0.5 * bool(value)):.1f}" height="18">'
                f"<title>{escape(f'{name}: {value:,.0f} {kind}')}</title></rect>"
            )
            x += length
        drawn.append(f'<text x="{x + 6:.1f}" y="{y + 14}">{sum(parts.values()):,.0f}</text>')
    legend = _legend(kinds, [colours[kind] for kind in kinds]) if len(kinds) > 1 else ""
    return _figure(title, "".join(drawn), 8 + _BAR * len(rows), legend)


def number(value: float) -> str:
    """A number with as many digits as one reads."""
    if value == 0 or not isfinite(value):
        return f"{value:g}"
    if abs(value) >= 100 or value == int(value):  # noqa: PLR2004 - three digits before the point need none behind it
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 1e-3 else f"{value:.1e}"  # noqa: PLR2004 - smaller ones have too many zeros


def span(value: float | None) -> str:
    """A time in the unit in which it is a number of a few digits."""
    if value is None:
        return "–"
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)):
        if abs(value) >= (1.5 if length > 1 else 1) * length:
            return f"{number(value / length)} {unit}"
    return f"{number(value * 1e6)} µs"


def _figure(title: str, drawn: str, height: float, legend: str) -> str:
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>{legend}"
        f'<svg viewBox="0 0 {_WIDTH} {height:g}" role="img" aria-label="{escape(title)}">{drawn}</svg></figure>'
    )


def _nothing(title: str) -> str:
    return f'<figure><figcaption>{escape(title)}</figcaption><p class="none">nothing was recorded</p></figure>'


def _legend(names: Sequence[str], places: Sequence[int]) -> str:
    items = "".join(
        f'<li><svg class="key" viewBox="0 0 22 8"><line class="l{place % COLOURS}" x1="0" x2="22" y1="4" y2="4"'
        f"{_dash(place)}/></svg>{escape(name)}</li>"
        for place, name in zip(places, names, strict=True)
    )
    return f'<ul class="legend">{items}</ul>'


def _dash(place: int) -> str:
    dash = _DASHES[place // COLOURS % len(_DASHES)]
    return f' stroke-dasharray="{dash}"' if dash else ""


def _line(place: int, name: str, points: Sequence[Point], axes: _Axes) -> str:
    drawn = []
    for present, run in groupby(sorted(points), key=lambda each: each[1] is not None):
        if not present:
            continue
        times = (axes.first, axes.last)
        ends = [(_x(time, times), axes.scale.at(value), time, value) for time, value in run if value is not None]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _, _ in ends)
        drawn.append(f'<polyline class="l{place % COLOURS}" points="{path}"{_dash(place)}/>')
        if len(points) <= _FEW_POINTS or len(ends) == 1:
            drawn += [
                f'<circle class="f{place % COLOURS}" cx="{x:.1f}" cy="{y:.1f}" r="2.5">'
                f"<title>{escape(f'{name}, {time:%d %b %H:%M}: {_value(value, axes.unit)}')}</title></circle>"
                for x, y, time, value in ends
            ]
    return "".join(drawn)


def _value(value: float, unit: str) -> str:
    return span(value) if unit == "s" else f"{number(100 * value)} %" if unit == "%" else f"{number(value)} {unit}"


def _x(time: datetime, times: tuple[datetime, datetime]) -> float:
    first, last = times
    width = _WIDTH - _LEFT - _RIGHT
    return _LEFT + (width * ((time - first) / (last - first)) if last > first else width / 2)


def _y_axis(scale: _Scale, unit: str) -> Sequence[str]:
    return [
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{scale.at(mark):.1f}" y2="{scale.at(mark):.1f}"/>'
        f'<text x="{_LEFT - 6}" y="{scale.at(mark) + 4:.1f}" text-anchor="end">{_mark(mark, unit)}</text>'
        for mark in scale.marks
    ]


def _mark(value: float, unit: str) -> str:
    return "0" if value == 0 else _value(value, unit).removesuffix(f" {unit}" if unit not in {"s", "%"} else "")


def _x_axis(first: datetime, last: datetime) -> Sequence[str]:
    step = next((each for each in _TIME_STEPS if (last - first) / each <= 7), _TIME_STEPS[-1])  # noqa: PLR2004 - they fit
    midnight = first.replace(hour=0, minute=0, second=0, microsecond=0)
    time, drawn = midnight + ceil((first - midnight) / step) * step, list[str]()
    while time <= last:
        text = f"{time:%d %b}" if step >= timedelta(days=1) or time.hour == time.minute == 0 else f"{time:%H:%M}"
        x = _x(time, (first, last))
        drawn.append(f'<text x="{x:.1f}" y="{_HEIGHT - 8}" text-anchor="middle">{text}</text>')
        drawn.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>')
        time += step
    return drawn


def _scale(high: float) -> _Scale:
    high = high if high > 0 else 1.0
    rough = high / 4
    power = 10.0 ** floor(log10(rough))
    step = next(each * power for each in _STEPS if each * power >= rough * 0.999)
    count = ceil(high / step * 0.999)
    return _Scale(0.0, step * count, [step * place for place in range(count + 1)], is_log=False)


def _log_scale(values: Sequence[float]) -> _Scale:
    above = [value for value in values if value > 0]
    low, high = floor(log10(min(above))), ceil(log10(max(above)))
    high += high == low
    every = max(1, ceil((high - low) / 5))
    return _Scale(10.0**low, 10.0**high, [10.0**power for power in range(low, high + 1, every)], is_log=True)
