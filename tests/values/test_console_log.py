"""How the commands log: colours for a terminal, and for nothing else."""

import io
import logging

import pytest

from pump.console_log import ConsoleFormatter, has_colours


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def record(level: int, error: BaseException | None = None) -> logging.LogRecord:
    info = None if error is None else (type(error), error, None)
    return logging.LogRecord("pump", level, "shop.py", 1, "sold %d", (3,), info)


@pytest.mark.parametrize(
    ("environment", "colours"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_only_a_terminal_has_colours_and_may_ask_for_none(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, *, colours: bool
) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert has_colours(Terminal()) == colours
    assert not has_colours(io.StringIO())


@pytest.mark.parametrize(
    ("level", "begins"), [(logging.ERROR, "\x1b[31m"), (logging.WARNING, "\x1b[33m"), (logging.DEBUG, "\x1b[2m")]
)
def test_a_line_has_the_colour_of_its_level(level: int, begins: str) -> None:
    sold = record(level)
    coloured = ConsoleFormatter(colours=True).format(sold)
    plain = ConsoleFormatter(colours=False).format(sold)

    assert coloured == f"{begins}{plain}\x1b[0m"
    assert plain.endswith("pump: sold 3")


def test_what_is_ordinary_has_the_terminals_colour() -> None:
    formatters, sold = [ConsoleFormatter(colours=colours) for colours in (True, False)], record(logging.INFO)

    assert len({each.format(sold) for each in formatters}) == 1


def test_a_traceback_is_not_coloured() -> None:
    text = ConsoleFormatter(colours=True).format(record(logging.ERROR, ValueError("sold out")))

    assert text.endswith("sold 3\x1b[0m\nValueError: sold out")
