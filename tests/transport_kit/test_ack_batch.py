"""Acknowledgements in batches: how many, how long they wait, and what becomes of those that could not be sent."""

from collections.abc import Callable

from pump.clock import ManualClock
from pump.errors import TransportError
from pump.transport_kit.ack_batch import LONGEST_SECONDS, AckBatch

RETRY_SECONDS = 0.5


class Sender:
    """Sends what is pending, or fails and puts it back."""

    def __init__(self, most: int = 3) -> None:
        self.clock = ManualClock()
        self.batch = AckBatch[str, int](self.clock, self.send, retry_seconds=RETRY_SECONDS, most=most)
        self.sent: list[dict[str, int]] = []
        self.broken = False

    def send(self) -> None:
        acks = self.batch.take()
        if self.broken:
            self.batch.put_back(acks)
            raise TransportError("gone")
        self.sent.append(acks)

    def add(self, *names: str) -> list[bool]:
        return [self.batch.add(name, number) for number, name in enumerate(names)]


def made(*names: str) -> Callable[[], list[tuple[str, int]]]:
    return lambda: [(name, number) for number, name in enumerate(names)]


def test_what_is_added_is_sent_together_and_soon() -> None:
    sender = Sender()

    sender.add("a", "b")
    sender.clock.advance(LONGEST_SECONDS)

    assert sender.sent == [{"a": 0, "b": 1}]


def test_several_may_be_added_at_once() -> None:
    sender = Sender()

    assert sender.batch.add_made(made("a", "b"))
    sender.clock.advance(LONGEST_SECONDS)

    assert sender.sent == [{"a": 0, "b": 1}]


def test_a_full_batch_takes_nothing_more_and_nothing_more_is_made() -> None:
    sender = Sender(most=2)

    def refused() -> list[tuple[str, int]]:
        raise AssertionError("it is made only if there is room")

    assert sender.add("a", "b", "c") == [True, True, False]
    assert not sender.batch.add_made(refused)
    assert sender.batch.take() == {"a": 0, "b": 1}
    assert sender.add("c") == [True]


def test_what_is_added_after_something_was_sent_has_a_time_of_its_own() -> None:
    sender = Sender()
    sender.add("a")
    sender.clock.advance(LONGEST_SECONDS / 2)
    sender.send()
    sender.add("b")

    sender.clock.advance(LONGEST_SECONDS * 0.6)
    assert sender.sent == [{"a": 0}]

    sender.clock.advance(LONGEST_SECONDS / 2)
    assert sender.sent == [{"a": 0}, {"b": 0}]


def test_what_could_not_be_sent_is_sent_again_before_what_was_added_since() -> None:
    sender = Sender()
    sender.broken = True
    sender.add("a")
    sender.clock.advance(LONGEST_SECONDS)
    sender.add("b")
    sender.broken = False

    sender.clock.advance(RETRY_SECONDS)

    assert [list(acks) for acks in sender.sent] == [["a", "b"]]


def test_what_is_put_back_without_having_been_added_is_sent_too() -> None:
    sender = Sender()

    sender.batch.put_back(sender.batch.take({"a": 1}))
    sender.clock.advance(RETRY_SECONDS)

    assert sender.sent == [{"a": 1}]


def test_the_first_acknowledgement_of_a_delivery_stands() -> None:
    sender = Sender()
    sender.add("a")

    assert sender.batch.take({"a": 9, "b": 2}) == {"a": 0, "b": 2}


def test_once_closed_nothing_is_sent_on_a_timer_and_nothing_is_lost() -> None:
    sender = Sender()
    sender.add("a")

    sender.batch.close()
    sender.clock.advance(10.0)

    assert sender.sent == []
    assert sender.batch.take() == {"a": 0}
