"""Acknowledgements that wait for company: how many, how long, and what becomes of those that could not be said."""

from collections.abc import Callable

from pump.clock import ManualClock
from pump.errors import TransportError
from pump.transport_kit.ack_batch import LONGEST_SECONDS, Unsaid

AGAIN = 0.5


class Speaker:
    """Says what is to be said, or fails and puts it back."""

    def __init__(self, most: int = 3) -> None:
        self.clock = ManualClock()
        self.unsaid = Unsaid[str, int](self.clock, self.say, again=AGAIN, most=most)
        self.said: list[dict[str, int]] = []
        self.broken = False

    def say(self) -> None:
        words = self.unsaid.take()
        if self.broken:
            self.unsaid.put_back(words)
            raise TransportError("gone")
        self.said.append(words)

    def note(self, *names: str) -> list[bool]:
        return [self.unsaid.note(word(name, number)) for number, name in enumerate(names)]


def word(name: str, number: int) -> Callable[[], list[tuple[str, int]]]:
    return lambda: [(name, number)]


def test_what_is_noted_is_said_together_and_soon() -> None:
    speaker = Speaker()

    speaker.note("a", "b")
    speaker.clock.advance(LONGEST_SECONDS)

    assert speaker.said == [{"a": 0, "b": 1}]


def test_where_enough_waits_nothing_more_is_noted_nor_made() -> None:
    speaker = Speaker(most=2)

    def refused() -> list[tuple[str, int]]:
        raise AssertionError("it is made only if it is noted")

    assert speaker.note("a", "b") == [True, True]
    assert not speaker.unsaid.note(refused)
    assert speaker.unsaid.take() == {"a": 0, "b": 1}
    assert speaker.note("c") == [True]


def test_the_time_of_what_comes_after_something_was_said_is_its_own() -> None:
    speaker = Speaker()
    speaker.note("a")
    speaker.clock.advance(LONGEST_SECONDS / 2)
    speaker.say()
    speaker.note("b")

    speaker.clock.advance(LONGEST_SECONDS * 0.6)
    assert speaker.said == [{"a": 0}]

    speaker.clock.advance(LONGEST_SECONDS / 2)
    assert speaker.said == [{"a": 0}, {"b": 0}]


def test_what_could_not_be_said_is_said_again_with_what_came_since_and_before_it() -> None:
    speaker = Speaker()
    speaker.broken = True
    speaker.note("a")
    speaker.clock.advance(LONGEST_SECONDS)
    speaker.note("b")
    speaker.broken = False

    speaker.clock.advance(AGAIN)

    assert [list(words) for words in speaker.said] == [["a", "b"]]


def test_what_is_put_back_unnoted_is_said_again_too() -> None:
    speaker = Speaker()

    speaker.unsaid.put_back(speaker.unsaid.take({"a": 1}))
    speaker.clock.advance(AGAIN)

    assert speaker.said == [{"a": 1}]


def test_what_was_said_first_of_something_stands() -> None:
    speaker = Speaker()
    speaker.note("a")

    assert speaker.unsaid.take({"a": 9, "b": 2}) == {"a": 0, "b": 2}


def test_once_closed_nothing_is_said_by_itself_and_nothing_is_lost() -> None:
    speaker = Speaker()
    speaker.note("a")

    speaker.unsaid.close()
    speaker.clock.advance(10.0)

    assert speaker.said == []
    assert speaker.unsaid.take() == {"a": 0}
