"""What the ledger leaves in the book for the next process, and what it puts on messages for the broker to keep."""

from pathlib import Path

import pytest

from pump.clock import ManualClock
from pump.in_hand.book import Book, ChannelBook, Record
from pump.in_hand.folder import StateFolder
from pump.ledger import Ledger
from support.court import message


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def book(tmp_path: Path) -> ChannelBook:
    return Book(StateFolder(tmp_path)).channel("channel")


def recorded(book: ChannelBook) -> dict[str, Record]:
    """What the book says, without the times of writing."""
    return {identity: record._replace(written=0.0) for identity, record in book.read().items()}


@pytest.fixture
def accusing(book: ChannelBook, clock: ManualClock) -> Ledger:
    """A ledger after a process died with message 1 and others in hand, in its second run."""
    book.write({"1": Record(attempts=2, shared=1, died=True)})
    return Ledger(clock, book=book)


# -- the records of earlier processes


def test_a_run_that_is_forgiven_clears_the_message_for_the_next_process_too(
    accusing: Ledger, book: ChannelBook
) -> None:
    accusing.forgive(message())

    assert recorded(book) == {"1": Record(attempts=2, judged=0)}
    assert accusing.accused == set()


def test_a_nack_clears_the_message_for_the_next_process_too(accusing: Ledger, book: ChannelBook) -> None:
    accusing.nacked(message(), 0.0)

    assert recorded(book) == {"1": Record(attempts=2, judged=0)}


def test_a_counted_run_is_counted_for_the_next_process_too(accusing: Ledger, book: ChannelBook) -> None:
    accusing.count(message(), 3)

    assert recorded(book) == {"1": Record(attempts=3, judged=0)}


def test_a_message_of_which_the_book_has_no_record_is_not_written_before_the_end(
    accusing: Ledger, book: ChannelBook
) -> None:
    accusing.count(message("2"), 1)
    accusing.forgive(message("3"))
    accusing.nacked(message("4"), 0.0)

    assert set(book.read()) == {"1"}


def test_a_message_that_is_done_is_neither_accused_nor_recorded(accusing: Ledger, book: ChannelBook) -> None:
    assert accusing.accused == {"1"}

    accusing.forget(message())

    assert accusing.accused == set()
    assert recorded(book) == {}


def test_a_ledger_without_a_book_judges_and_keeps_nothing(clock: ManualClock) -> None:
    ledger = Ledger(clock)
    ledger.count(message(), 1)

    ledger.keep(attempts=True)

    assert ledger.past_runs(message()) == (1, 0)


# -- what is kept at the end of the process


def test_all_attempts_are_kept_where_the_broker_does_not_keep_them(clock: ManualClock, book: ChannelBook) -> None:
    ledger = Ledger(clock, book=book)
    ledger.count(message("1"), 2)
    ledger.forgive(message("2", deliveries=3))

    ledger.keep(attempts=True)

    assert recorded(book) == {"1": Record(attempts=2, judged=0), "2": Record(explained=2, judged=2)}


def test_where_the_broker_keeps_the_attempts_only_what_is_explained_is_kept(
    clock: ManualClock, book: ChannelBook
) -> None:
    ledger = Ledger(clock, book=book)
    ledger.count(message("1", deliveries=2), 2)

    ledger.keep(attempts=False)

    assert recorded(book) == {"1": Record(attempts=0, explained=1, judged=1)}


def test_the_attempts_of_a_message_that_is_recorded_already_are_kept_all_the_same(
    accusing: Ledger, book: ChannelBook
) -> None:
    accusing.count(message(), 3)

    accusing.keep(attempts=False)

    assert recorded(book) == {"1": Record(attempts=3, judged=0)}


def test_the_book_is_not_written_if_there_is_nothing_to_keep(
    clock: ManualClock, book: ChannelBook, tmp_path: Path
) -> None:
    ledger = Ledger(clock, book=book)
    ledger.forgive(message("1"))
    ledger.forget(message("1"))

    ledger.keep(attempts=True)

    assert list(tmp_path.iterdir()) == []


# -- what a slot notes when a run begins


def test_of_an_unknown_message_a_slot_notes_what_the_delivery_says(clock: ManualClock) -> None:
    assert Ledger(clock).known(message(attempts=1, deliveries=3)) == (1, 0, 2)


@pytest.mark.parametrize(("carried", "noted"), [(0, 2), (5, 5)])
def test_of_a_known_message_a_slot_notes_the_higher_number_of_attempts(
    clock: ManualClock, carried: int, noted: int
) -> None:
    ledger = Ledger(clock)
    ledger.count(message(deliveries=3), 2)

    assert ledger.known(message(attempts=carried, deliveries=4)) == (noted, 3, 3)


# -- what is put on the message


@pytest.mark.parametrize(("carried", "kept"), [(0, 2), (5, 5)])
def test_the_broker_gets_the_higher_number_of_attempts_with_a_message_that_goes_back(
    clock: ManualClock, carried: int, kept: int
) -> None:
    ledger = Ledger(clock)
    ledger.count(message(), 2)
    nacked, handed_back = message(attempts=carried), message(attempts=carried)

    ledger.nacked(nacked, 0.0)
    ledger.ignore(handed_back)

    assert (nacked.attempts, handed_back.attempts) == (kept, kept)


# -- what the broker counts


def test_only_a_lower_count_has_started_over(clock: ManualClock) -> None:
    """A broker that does not count a nack delivers with the same count; a later, higher one stands for that nack."""
    ledger = Ledger(clock)
    ledger.forgive(message(deliveries=3))

    assert ledger.arrived(message(deliveries=3)) == (0, 0)
    assert ledger.past_runs(message(deliveries=4)) == (0, 0)
    assert ledger.arrived(message(deliveries=2)) == (0, 0)
    assert ledger.past_runs(message(deliveries=4)) == (0, 2)


def test_a_run_that_is_forgiven_clears_a_message_whose_hand_back_the_broker_did_not_count(clock: ManualClock) -> None:
    ledger = Ledger(clock)
    ledger.ignore(message(deliveries=3))
    assert ledger.past_runs(message(deliveries=3)) == (0, 2)

    ledger.forgive(message(deliveries=3))

    assert ledger.past_runs(message(deliveries=3)) == (0, 0)
