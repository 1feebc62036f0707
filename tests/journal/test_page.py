"""The page of a journal: all of it is there, nothing is fetched, and no text of a message becomes markup."""

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from pump.journal.counting import summarise
from pump.journal.files import live
from pump.journal.page import page
from pump.journal.plots import bars, lines, number, span
from pump.journal.summary import Summary
from support.journals import NOON, event, write

MADE = datetime(2026, 3, 2, tzinfo=UTC)
VOID = {"meta", "rect", "line", "circle", "polyline"}


class _Checks(HTMLParser):
    """Whether all tags are closed in order, and what they refer to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.references += [str(value) for name, value in attributes if name in {"src", "href", "xlink:href"}]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def checked(html: str) -> _Checks:
    checks = _Checks()
    checks.feed(html)
    assert checks.open == []
    return checks


def summary(folder: Path) -> Summary:
    nasty = "<script>alert('x')</script>"
    failing: dict[str, Any] = {
        "verdict": "reject",
        "error": "E",
        "cause": f"E: {nasty}",
        "reason": nasty,
        "exhausted": True,
    }
    rows = [
        event("received", after=300 * n, channel="orders", count=10, posted=NOON - timedelta(seconds=3))
        for n in range(6)
    ]
    rows += [
        event(after=300 * n, handling_seconds=0.01 * n, settling_seconds=0.001, posted=NOON, message_id=f"{n}")
        for n in range(6)
    ]
    rows += [event(after=60, handler="<b>bold</b>", channel=nasty, **failing)]
    rows += [event("lag", channel="orders", count=7), event("lost", count=3)]
    rows += [event("publish_failed", subject="bills & co", error="timeout", exhausted=True)]
    write(folder, rows)
    return summarise(live(folder).all)


def test_the_page_shows_all_that_is_known(tmp_path: Path) -> None:
    html = page("Journal shop", summary(tmp_path), MADE)

    checks = checked(html)
    assert checks.seen.count("svg") > 8
    for text in (
        "Received a minute",
        "Verdicts by handler",
        "orders: handling",
        "Age of the oldest",
        "Messages that wait",
    ):
        assert text in html
    for text in (
        "Dead letters by signature",
        "Failed deliveries by error",
        "bills &amp; co",
        "attempts or tries were used up",
    ):
        assert text in html
    assert "2026-03-01 12:00 to 2026-03-01 12:30" in html
    assert re.search(r"<b>3</b><span>events not recorded", html)


def test_no_text_of_a_message_becomes_markup(tmp_path: Path) -> None:
    html = page("Journal <i>", summary(tmp_path), MADE)

    checks = checked(html)
    assert not {"script", "i"} & set(checks.seen)
    assert "&lt;script&gt;" in html
    assert "bold</b>" not in html


def test_the_page_needs_no_network_and_is_made_for_light_dark_and_paper(tmp_path: Path) -> None:
    html = page("Journal", summary(tmp_path), MADE)

    assert checked(html).references == []
    assert "http" not in html
    assert "url(" not in html
    assert "prefers-color-scheme: dark" in html
    assert "@media print" in html


def test_an_empty_journal_has_a_page(tmp_path: Path) -> None:
    html = page("Journal", summarise(live(tmp_path).all), MADE)

    checked(html)
    assert "nothing was recorded" in html


def test_a_long_time_is_drawn_with_no_more_points_than_one_can_see(tmp_path: Path) -> None:
    rows = [event(after=300 * n, handling_seconds=0.5, channel=f"c{n % 9}") for n in range(5000)]
    write(tmp_path, rows)

    html = page("Journal", summarise(live(tmp_path).all), MADE)

    checked(html)
    assert "all others" in html
    assert max(len(points.split()) for points in re.findall(r'points="([^"]*)"', html)) <= 401
    assert len(html) < 1_000_000


def test_a_line_has_a_gap_where_there_is_no_value() -> None:
    at = [NOON + timedelta(minutes=5 * n) for n in range(4)]
    drawn = lines("t", {"a": [(at[0], 1.0), (at[1], None), (at[2], 2.0), (at[3], 0.5)]}, "%")

    assert drawn.count("<polyline") == 2


@pytest.mark.parametrize("logarithmic", [True, False])
@pytest.mark.parametrize("value", [0.0, 1e-7, 1.0, 12345.0, 1e12])
def test_any_single_value_can_be_drawn(value: float, *, logarithmic: bool) -> None:
    drawn = lines("t", {"a": [(NOON, value)]}, "s", logarithmic=logarithmic)

    assert "nan" not in drawn
    assert "<circle" in drawn


def test_bars_are_as_long_as_their_numbers() -> None:
    drawn = bars("t", [("a", {"x": 30, "y": 10}), ("b", {"x": 20, "y": 0})], {"x": 0, "y": 1})

    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', drawn)]
    assert widths == pytest.approx([345.0, 115.0, 230.0, 0.0], rel=0.01)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.0, "0 µs"), (0.00002, "20 µs"), (0.0123, "12.3 ms"), (7, "7 s"), (200_000, "2.31 d")],
)
def test_a_time_is_shown_in_a_unit_that_fits(value: float | None, text: str) -> None:
    assert span(value) == text


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (1234.5, "1,234"), (0.125, "0.125"), (0.0000012, "1.2e-06")])
def test_a_number_has_as_many_digits_as_one_reads(value: float, text: str) -> None:
    assert number(value) == text
