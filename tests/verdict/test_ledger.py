"""What is remembered of messages that did not go well: little, not for ever, and safely from many threads."""

import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from pump.clock import ManualClock
from pump.dead_letter import Rejection
from pump.errors import DontAckAction, RejectMessageAction
from pump.in_hand.book import Book, Record
from pump.in_hand.folder import StateFolder
from pump.ledger import CAPACITY, LIFETIME, NO_RUNS, Ledger
from support.court import Court, message

REJECTION = Rejection("delivery error", "failed")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ledger(clock: ManualClock) -> Ledger:
    return Ledger(clock)


# -- bounded


def test_it_keeps_no_more_accounts_than_it_may_and_forgets_the_oldest(clock: ManualClock) -> None:
    ledger = Ledger(clock, capacity=100)

    for number in range(250):
        ledger.count(message(str(number)), 1)

    assert len(ledger) == 100
    assert ledger.arrived(message("149")) is NO_RUNS
    assert ledger.arrived(message("150")) == (1, 0)


def test_an_account_that_is_used_is_not_the_oldest(clock: ManualClock) -> None:
    ledger = Ledger(clock, capacity=2)
    for name in "abac":
        ledger.count(message(name), 1)

    assert ledger.arrived(message("a")) == (1, 0)
    assert ledger.arrived(message("b")) is NO_RUNS


@pytest.mark.parametrize(
    "enter",
    [
        lambda ledger, name: ledger.count(message(name), 1),
        lambda ledger, name: ledger.forgive(message(name)),
        lambda ledger, name: ledger.nacked(message(name), 1.0),
        lambda ledger, name: ledger.ignore(message(name)),
    ],
    ids=["spend", "forgive", "refuse", "spare"],
)
def test_every_entry_is_bounded(clock: ManualClock, enter: Callable[[Ledger, str], None]) -> None:
    ledger = Ledger(clock, capacity=10)

    for number in range(100):
        enter(ledger, str(number))

    assert len(ledger) == 10


def test_it_is_bounded_by_default(ledger: Ledger) -> None:
    for number in range(CAPACITY + 1000):
        ledger.count(message(str(number)), 1)

    assert len(ledger) == CAPACITY


# -- expiring


def test_an_account_nobody_uses_expires(clock: ManualClock, ledger: Ledger) -> None:
    ledger.count(message("a"), 1)
    clock.advance(LIFETIME / 2)
    ledger.count(message("b"), 1)
    clock.advance(LIFETIME / 2 + 1)
    ledger.count(message("c"), 1)

    assert len(ledger) == 2
    assert ledger.arrived(message("a")) is NO_RUNS
    assert ledger.arrived(message("b")) == (1, 0)


def test_an_account_is_kept_for_its_whole_lifetime(clock: ManualClock, ledger: Ledger) -> None:
    ledger.count(message("a"), 1)
    clock.advance(LIFETIME)

    assert ledger.past_runs(message("a")) == (1, 0)
    ledger.count(message("b"), 1)
    assert len(ledger) == 2


def test_what_has_expired_is_forgotten_though_nothing_else_happens(clock: ManualClock, ledger: Ledger) -> None:
    nightly = message("nightly-report")
    ledger.nacked(nightly, clock.monotonic() + 10 * LIFETIME)
    ledger.count(nightly, 2, REJECTION)

    clock.advance(LIFETIME + 1)

    assert ledger.arrived(nightly) is NO_RUNS
    assert ledger.rejection(nightly) is None
    assert ledger.due(nightly) == 0.0
    assert ledger.nacks(nightly) == 0
    assert ledger.first_failure(nightly) == clock.wall()


def test_what_begins_after_it_expired_begins_anew(clock: ManualClock, ledger: Ledger) -> None:
    ledger.count(message(), 2, REJECTION)
    clock.advance(LIFETIME + 1)

    ledger.forgive(message())

    assert ledger.arrived(message()) == (0, 0)
    assert ledger.rejection(message()) is None


def test_a_rejection_that_is_tried_again_outlasts_any_outage(clock: ManualClock) -> None:
    ledger = Ledger(clock, capacity=2)
    ledger.count(message(), 3, REJECTION)

    for number in range(20):
        clock.advance(LIFETIME * 0.9)
        assert ledger.rejection(message()) is REJECTION
        ledger.count(message(f"other-{number}"), 1)


# -- erased at the end


@pytest.mark.parametrize("ending", ["returned", "rejected"])
def test_a_terminal_verdict_erases_the_account(ending: str) -> None:
    court = Court()
    court.turn(message(), ValueError("bad"))
    court.turn(message(), DontAckAction())
    assert len(court.ledger) == 1

    court.turn(message(), None if ending == "returned" else RejectMessageAction("no"))

    assert len(court.ledger) == 0


def test_forgetting_the_unknown_does_nothing(ledger: Ledger) -> None:
    ledger.forget(message())
    ledger.count(message("a"), 1)
    ledger.forget(message())

    assert len(ledger) == 1


def test_a_message_that_goes_well_leaves_no_trace() -> None:
    court = Court()

    court.turn(message())

    assert len(court.ledger) == 0


@pytest.mark.parametrize(
    "messages", [10_000, pytest.param(1_000_000, marks=pytest.mark.long)], ids=["short", "a million"]
)
def test_memory_is_flat_over_messages_that_go_well(messages: int) -> None:
    court = Court()
    court.turn(message("stays"), ValueError("bad"))  # the slower path: there is an account to look for
    for number in range(1000):
        court.turn(message(f"warm-{number}"))
    court.spy.calls.clear()

    tracemalloc.start()
    try:
        for number in range(messages):
            verdict = court.verdict(message(str(number)))
            court.judge.settled(message(str(number)), verdict)
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(court.ledger) == 1
    assert grown < 20_000


# -- what it says


def test_a_message_that_says_nothing_and_of_which_nothing_is_known_is_fresh(ledger: Ledger) -> None:
    ledger.count(message("other"), 1)

    assert ledger.arrived(message()) is NO_RUNS
    assert ledger.arrived(message(attempts=2)) == (2, 0)
    assert ledger.arrived(message(deliveries=4)) == (0, 3)


def test_of_carried_and_remembered_attempts_the_higher_number_counts(ledger: Ledger) -> None:
    ledger.count(message(), 2)

    assert ledger.arrived(message(attempts=1)).attempts == 2
    assert ledger.arrived(message(attempts=5)).attempts == 5


def test_when_a_message_may_be_shown_again_and_how_often_it_was_left_is_known(ledger: Ledger) -> None:
    ledger.nacked(message(), 7.0)
    ledger.nacked(message(deliveries=2), 9.0)

    assert ledger.due(message()) == 9.0
    assert ledger.nacks(message()) == 2
    assert ledger.due(message("2")) == 0.0
    assert ledger.nacks(message("2")) == 0


def test_asking_opens_no_account(ledger: Ledger) -> None:
    for ask in (ledger.arrived, ledger.past_runs, ledger.due, ledger.nacks, ledger.rejection, ledger.first_failure):
        ask(message(deliveries=3))

    assert len(ledger) == 0


def test_the_first_failure_is_when_it_first_failed(clock: ManualClock, ledger: Ledger) -> None:
    assert ledger.first_failure(message()) == clock.wall()

    ledger.ignore(message())
    clock.advance(10)
    ledger.count(message(), 1)
    first = clock.wall()
    clock.advance(10)
    ledger.count(message(), 2)

    assert ledger.first_failure(message()) == first


def test_a_refusal_is_a_failure_and_a_hand_back_is_none(clock: ManualClock, ledger: Ledger) -> None:
    ledger.ignore(message())
    ledger.forgive(message())
    clock.advance(10)
    ledger.nacked(message(), 0.0)
    refused = clock.wall()
    clock.advance(10)

    assert ledger.first_failure(message()) == refused


@pytest.mark.parametrize(("text", "first"), [("1700000000.5", 1_700_000_000.5), ("", None), ("yesterday", None)])
def test_the_first_failure_that_travels_with_a_message_is_believed_if_it_is_one(
    clock: ManualClock, ledger: Ledger, text: str, first: float | None
) -> None:
    ledger.count(message(), 1)
    remembered = clock.wall()
    clock.advance(10)

    delivered = message(headers={"pump-first-failure": text})

    assert ledger.first_failure(delivered) == (remembered if first is None else first)


# -- from many threads


def hammer(ledger: Ledger, clock: ManualClock, seed: int, rounds: int) -> None:
    for number in range(rounds):
        name = str((seed * 31 + number * 7) % 60)
        delivered = message(name, deliveries=1 + number % 5)
        ledger.arrived(delivered)
        ledger.due(delivered)
        ledger.rejection(delivered)
        match (seed + number) % 7:
            case 0:
                ledger.count(delivered, number % 4, REJECTION)
            case 1:
                ledger.forgive(delivered)
            case 2:
                ledger.nacked(delivered, 1.0)
            case 3:
                ledger.ignore(delivered)
            case 4:
                ledger.known(delivered)
                ledger.shared(delivered)
            case 5:
                ledger.forget(delivered)
            case _:
                clock.advance(0.5)


def test_eight_threads_may_use_it_at_once(clock: ManualClock) -> None:
    ledger = Ledger(clock, capacity=50, lifetime=20.0)
    failures: list[BaseException] = []

    def run(seed: int) -> None:
        try:
            hammer(ledger, clock, seed, 2000)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    assert len(ledger) <= 50


def test_no_refusal_of_eight_threads_is_lost(ledger: Ledger) -> None:
    def run() -> None:
        for _ in range(1000):
            ledger.nacked(message("2"), 0.0)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert ledger.nacks(message("2")) == 8000


def test_of_many_accused_no_more_are_remembered_than_there_are_accounts(clock: ManualClock, tmp_path: Path) -> None:
    book = Book(StateFolder(tmp_path)).channel("channel")
    book.write({str(number): Record(shared=1) for number in range(50)})

    ledger = Ledger(clock, book=book, capacity=20)

    assert ledger.accused == set(ledger.accounts)
    assert len(ledger) == 20
