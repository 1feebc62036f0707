"""Fixtures of the tests of channels: a line of either colour, closed after the test."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pump.colour import Colour
from support.channels import COLOURS, Line

MakeLine = Callable[..., Line]


@pytest.fixture(params=COLOURS)
def line_colour(request: pytest.FixtureRequest) -> Colour:
    """Each colour in turn."""
    chosen: Colour = request.param
    return chosen


@pytest.fixture
def make_line(line_colour: Colour) -> Iterator[MakeLine]:
    """Makes lines with these options."""
    lines: list[Line] = []

    def make(**options: Any) -> Line:
        lines.append(Line(line_colour, **options))
        return lines[-1]

    yield make
    for line in lines:
        line.script.broken.clear()
        line.end()


@pytest.fixture
def line(make_line: MakeLine) -> Line:
    """A line with every default."""
    return make_line()
