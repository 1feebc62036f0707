"""What the log says of an error: one traceback, of the program's own lines, and one line for a repeat."""

import logging
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from pump.clock import ManualClock
from pump.error_log import MOST_KNOWN, REPEAT_SECONDS, ErrorLog, in_a_line, place
from pump.errors import PumpError
from pump.mapping.errors import MappingError
from pump.mapping.mapper import JsonMapper
from pump.message import Header, Message
from support.pumps import Order


@pytest.fixture(autouse=True)
def no_details() -> Iterator[None]:
    log = logging.getLogger("pump")
    level = log.level
    log.setLevel(logging.INFO)
    yield
    log.setLevel(level)


def sell(text: str) -> None:
    raise ValueError(text)


def raised(text: str = "sold out") -> Exception:
    with pytest.raises(ValueError, match=text) as caught:
        sell(text)
    return caught.value


def through_the_pump(text: str = "sold out") -> Exception:
    """As `raised`, by a function of the program that the pump has called."""

    def upcast(_: str, data: dict[str, object]) -> dict[str, object]:
        raise PumpError(text)

    mapper = JsonMapper(Order, upcast=upcast)
    with pytest.raises(MappingError) as caught:
        mapper.decode(Message(Header("1", version="1"), b"{}"))
    assert isinstance(caught.value.__cause__, PumpError)
    return caught.value.__cause__


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def told(clock: ManualClock) -> ErrorLog:
    return ErrorLog(clock)


def test_the_first_time_an_error_has_its_traceback(told: ErrorLog) -> None:
    error = raised()

    text, info = told.told(error, logging.ERROR)

    assert text == ""
    assert info is not None
    assert info[:2] == (ValueError, error)
    assert info[2] is not None


def test_a_repeat_is_told_in_a_line_with_its_own_text(told: ErrorLog) -> None:
    told.told(raised("tea"), logging.ERROR)

    text, info = told.told(raised("coffee"), logging.ERROR)

    assert text.startswith(": ValueError: coffee (test_error_log.py, line ")
    assert text.endswith("), as before")
    assert info is None


def test_after_a_while_it_has_its_traceback_again(told: ErrorLog, clock: ManualClock) -> None:
    told.told(raised(), logging.ERROR)
    clock.advance(REPEAT_SECONDS)

    assert told.told(raised(), logging.ERROR)[1] is not None


def test_what_was_told_at_a_lower_level_is_no_repeat(told: ErrorLog) -> None:
    told.told(raised(), logging.WARNING)

    assert told.told(raised(), logging.ERROR)[1] is not None
    assert told.told(raised(), logging.WARNING)[1] is None


def test_another_type_or_another_line_is_no_repeat(told: ErrorLog) -> None:
    told.told(raised(), logging.ERROR)

    with pytest.raises(ValueError, match="invalid literal") as caught:
        int("sold out")

    assert told.told(caught.value, logging.ERROR)[1] is not None
    assert told.told(KeyError("sold out"), logging.ERROR)[1] is not None


def test_what_was_never_raised_is_told_by_its_text(told: ErrorLog) -> None:
    told.told(ValueError("tea"), logging.ERROR)

    assert told.told(ValueError("coffee"), logging.ERROR)[0] == ""
    assert told.told(ValueError("tea"), logging.ERROR) == (": ValueError: tea, as before", None)


def test_only_so_many_places_are_remembered(told: ErrorLog) -> None:
    for number in range(MOST_KNOWN):
        told.told(ValueError(str(number)), logging.ERROR)
    assert told.told(ValueError("0"), logging.ERROR)[1] is None

    told.told(ValueError("one more"), logging.ERROR)

    assert told.told(ValueError("0"), logging.ERROR)[1] is not None
    assert told.told(ValueError("one more"), logging.ERROR)[1] is None


def test_threads_tell_of_errors_at_once(told: ErrorLog) -> None:
    def tell(first: int) -> None:
        for number in range(2000):
            told.told(ValueError(str(first + number % 300)), logging.ERROR)

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(tell, first) for first in (0, 100, 200, 300)]:
            done.result()


def test_a_traceback_has_no_line_of_the_pump(told: ErrorLog) -> None:
    _, info = told.told(through_the_pump(), logging.ERROR)

    assert info is not None
    assert {frame.name for frame in traceback.extract_tb(info[2])} <= {"upcast"}
    assert "upcast" in "".join(traceback.format_exception(*info))


def test_what_is_the_pumps_alone_has_no_traceback_where_it_is_expected(told: ErrorLog) -> None:
    mapper, message = JsonMapper(Order), Message(Header("1"), b"[]")
    with pytest.raises(MappingError) as caught:
        mapper.decode(message)

    _, info = told.told(caught.value, logging.WARNING)
    assert place(caught.value).startswith("test_error_log.py")
    assert info is not None
    assert {frame.name for frame in traceback.extract_tb(info[2])} == {
        "test_what_is_the_pumps_alone_has_no_traceback_where_it_is_expected"
    }


def test_with_details_the_traceback_is_whole(told: ErrorLog) -> None:
    logging.getLogger("pump").setLevel(logging.DEBUG)
    error = through_the_pump()

    _, info = told.told(error, logging.ERROR)

    assert info is not None
    assert info[2] is error.__traceback__


class Unreadable(Exception):  # noqa: N818 - it is what it says
    def __str__(self) -> str:
        raise RuntimeError


def test_an_error_that_cannot_be_read_is_told_all_the_same(told: ErrorLog) -> None:
    assert in_a_line(Unreadable()) == "Unreadable: <Unreadable, whose text raised RuntimeError>"
    assert told.told(Unreadable(), logging.ERROR)[1] is not None
    assert len(in_a_line(ValueError("x" * 1000))) < 300
    assert in_a_line(ValueError("two\nlines")) == "ValueError: two lines"
