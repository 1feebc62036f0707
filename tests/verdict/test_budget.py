"""How often a message may fail: attempts and deliveries, on every kind of broker and across restarts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from pump.errors import (
    ConfigurationError,
    DeferMessageAction,
    DontAckAction,
    LeaseLost,
    RejectMessageAction,
    TransportError,
)
from pump.in_hand.book import Record
from pump.message import Message
from pump.settling import UNSETTLED, Verdict
from pump.verdict import SetupFault
from support.court import Call, Court, message

EXHAUSTED: Call = ("reject", "delivery error", "attempts exhausted")
DIED: Call = ("reject", "delivery error", "process died")


@dataclass
class Broker:
    """One message on a broker, and what the broker counts of it."""

    counts: bool
    """Whether a delivery that was not settled raises the count of the next."""
    counts_refusals: bool
    """Whether a nack, a hand-back or a requeue of the same message does."""
    copies: bool
    """Whether a requeue makes a copy, which says in its header how many attempts are behind it."""
    carries: bool = True
    deliveries: int = 1
    attempts: int = 0

    def deliver(self) -> Message:
        return message(deliveries=self.deliveries, attempts=self.attempts)

    def refused(self) -> None:
        self.deliveries += self.counts_refusals

    def requeued(self, attempts: int) -> None:
        self.attempts = attempts if self.carries else 0
        self.deliveries = 1 if self.copies else self.deliveries + self.counts_refusals

    def crashed(self) -> None:
        self.deliveries += self.counts


BROKERS: dict[str, Callable[[], Broker]] = {
    "counts every delivery": lambda: Broker(counts=True, counts_refusals=True, copies=False, carries=False),
    "counts, and requeues copies": lambda: Broker(counts=True, counts_refusals=True, copies=True),
    "counts nothing, and requeues copies": lambda: Broker(counts=False, counts_refusals=False, copies=True),
    "counts what was not settled": lambda: Broker(counts=True, counts_refusals=False, copies=False),
}
COUNTING = [name for name in BROKERS if BROKERS[name]().counts]


class Life:
    """A message's way over a broker through processes that may end."""

    def __init__(self, broker: str, **options: Any) -> None:
        self.broker = BROKERS[broker]()
        self.options = options
        self.runs = 0
        self.calls: list[Call] = []
        self.restart()

    def restart(self) -> None:
        """Another process, which remembers nothing."""
        self.court = Court(**self.options)

    def deliver(self, raised: BaseException | None = None, *, settles: bool = True) -> Verdict:
        """One delivery; the handler, if it runs, raises this or returns."""
        delivered = self.broker.deliver()
        self.runs += self.court.runs(delivered)
        verdict = self.court.verdict(delivered, raised)
        if not settles:
            self.court.judge.unsettled(delivered, verdict, TransportError("down"))
            self.broker.crashed()
            return verdict
        verdict.settle(self.court.spy, delivered)
        self.court.judge.settled(delivered, verdict)
        self.calls.append(self.court.spy.calls[-1])
        self._carry_out(self.calls[-1])
        return verdict

    def _carry_out(self, call: Call) -> None:
        if call[0] in {"nack", "hand_back"}:
            self.broker.refused()
        elif call[0] == "requeue":
            attempts = call[2]
            assert isinstance(attempts, int)
            self.broker.requeued(attempts)

    def hand_back(self) -> None:
        """A delivery that nobody begins to handle."""
        self.court.judge.handed_back(self.broker.deliver())
        self.broker.refused()

    def crash(self) -> None:
        """A delivery during which the process ends, whoever's fault that is."""
        delivered = self.broker.deliver()
        self.runs += self.court.runs(delivered)
        self.broker.crashed()
        self.restart()

    def until_dead(self, raised: BaseException, at_most: int = 60) -> int:
        """Deliver until it is a dead letter; says how often the handler has run."""
        while not (self.calls and self.calls[-1][0] == "reject"):
            self.deliver(raised)
            assert self.runs < at_most
        return self.runs


@pytest.fixture(params=BROKERS)
def broker(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


# -- P-04


@pytest.mark.requirement("P-04")
@pytest.mark.parametrize("may_block", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 3, 7])
@pytest.mark.parametrize("raised", [ValueError("bad"), DeferMessageAction(), DeferMessageAction(0)])
def test_a_message_that_always_fails_runs_as_often_as_it_may(
    broker: str, limit: int, raised: Exception, *, may_block: bool
) -> None:
    life = Life(broker, max_attempts=limit, may_block=may_block)

    assert life.until_dead(raised) == limit
    assert life.court.rejection.attempts == limit


@pytest.mark.requirement("P-04")
def test_fifty_refusals_spend_nothing(broker: str) -> None:
    life = Life(broker, may_block=True)

    for _ in range(50):
        life.deliver(DontAckAction())

    assert life.until_dead(ValueError("bad")) == 53


@pytest.mark.requirement("P-04")
def test_fifty_refusals_before_a_restart_spend_nothing(broker: str) -> None:
    life = Life(broker, may_block=True)

    for _ in range(50):
        life.deliver(DontAckAction())
    life.restart()

    assert life.until_dead(ValueError("bad")) == 53


@pytest.mark.requirement("P-04")
@pytest.mark.parametrize("before", [1, 2])
def test_a_restart_between_runs_forgets_none_of_them(broker: str, before: int) -> None:
    life = Life(broker)

    for _ in range(before):
        life.deliver(ValueError("bad"))
    life.restart()

    assert life.until_dead(ValueError("bad")) == 3


@pytest.mark.requirement("P-04")
def test_refusals_between_failures_spend_nothing(broker: str) -> None:
    life = Life(broker, may_block=True)

    for raised in (ValueError("1"), DontAckAction(), DontAckAction(), ValueError("2"), DontAckAction()):
        life.deliver(raised)

    assert life.until_dead(ValueError("3")) == 6


@pytest.mark.requirement("P-04")
def test_while_dead_letters_are_down_the_handler_does_not_run_again(broker: str) -> None:
    life = Life(broker)
    for _ in range(2):
        life.deliver(ValueError("bad"))

    for _ in range(40):
        life.deliver(ValueError("bad"), settles=False)
    life.deliver(ValueError("bad"))

    assert life.calls[-1] == EXHAUSTED
    assert life.runs == 3
    assert life.court.rejection.attempts == 3


@pytest.mark.requirement("P-04")
@pytest.mark.parametrize("broker", ["counts, and requeues copies", "counts what was not settled"])
def test_a_restart_while_dead_letters_are_down_runs_it_at_most_once_more(broker: str) -> None:
    life = Life(broker)
    for _ in range(2):
        life.deliver(ValueError("bad"))

    life.deliver(ValueError("bad"), settles=False)
    life.restart()
    life.deliver(ValueError("bad"))

    assert life.calls[-1] == EXHAUSTED
    assert life.runs <= 4


@pytest.mark.requirement("P-04")
@pytest.mark.parametrize("broker", COUNTING)
def test_a_message_that_kills_its_process_is_found_out(broker: str) -> None:
    life = Life(broker)

    for _ in range(9):
        assert life.court.runs(life.broker.deliver())
        life.crash()
    life.deliver()

    assert life.calls == [DIED]
    assert (
        life.court.rejection.description == "delivered 10 times, and no run ended with a verdict: each may have crashed"
    )


@pytest.mark.requirement("P-04")
@pytest.mark.parametrize("broker", COUNTING)
def test_a_neighbour_of_crashes_is_acknowledged_when_it_is_handled(broker: str) -> None:
    life = Life(broker)

    for _ in range(8):
        life.crash()
    life.deliver()

    assert life.calls == [("acknowledge",)]


@pytest.mark.parametrize("broker", COUNTING)
def test_crashes_count_towards_the_verdict_where_nobody_refuses(broker: str) -> None:
    life = Life(broker)

    life.crash()
    life.deliver(ValueError("bad"))
    life.deliver(ValueError("bad"))

    assert life.calls[-1] == EXHAUSTED


@pytest.mark.parametrize("broker", COUNTING)
def test_where_handlers_may_refuse_a_count_proves_nothing(broker: str) -> None:
    life = Life(broker, may_block=True)

    for _ in range(100):
        life.crash()

    assert life.court.judge.suspect(life.broker.deliver())
    assert life.until_dead(ValueError("bad"), 200) == 103


@pytest.mark.parametrize("delay", [60.0, 7200.0, 500_000.0])
def test_a_long_delay_between_runs_forgets_none_of_them(broker: str, delay: float) -> None:
    life = Life(broker, may_block=True)

    for _ in range(10):
        if not (life.calls and life.calls[-1][0] == "reject"):
            life.deliver(DeferMessageAction(delay))
        life.court.clock.advance(delay)
        life.court.turn(message("another"), ValueError("bad"))

    assert life.calls[-1] == EXHAUSTED
    assert life.runs == 3


def test_a_long_refusal_is_remembered_until_its_time() -> None:
    court = Court(may_block=True, dont_ack_delay=7200)

    court.turn(message(), DontAckAction())
    court.clock.advance(7000)

    assert court.ledger.due(message()) == court.clock.monotonic() + 200


# -- what spends nothing


def test_what_nobody_began_has_spent_nothing(broker: str) -> None:
    life = Life(broker)

    for _ in range(30):
        life.hand_back()

    assert life.until_dead(ValueError("bad")) == 3


@pytest.mark.parametrize("broker", COUNTING)
@pytest.mark.parametrize("times", [1, 2, 20])
def test_handing_a_suspect_back_neither_accuses_it_nor_clears_it(broker: str, times: int) -> None:
    life = Life(broker)
    for _ in range(4):
        life.crash()

    for _ in range(times):
        life.hand_back()

    delivered = life.broker.deliver()
    assert life.court.ledger.arrived(delivered) == (0, 4)
    assert life.court.judge.suspect(delivered)
    assert life.court.runs(delivered)


@pytest.mark.parametrize("broker", COUNTING)
def test_a_run_that_went_well_clears_a_suspect_though_its_settlement_failed(broker: str) -> None:
    life = Life(broker)
    for _ in range(4):
        life.crash()

    for _ in range(20):
        life.deliver(settles=False)

    assert life.runs == 24
    assert not life.court.judge.suspect(life.broker.deliver())


@pytest.mark.parametrize("broker", COUNTING)
def test_runs_that_went_well_on_a_lease_that_was_lost_are_not_held_against_it(broker: str) -> None:
    life = Life(broker)

    for _ in range(20):
        delivered = life.broker.deliver()
        delivered.lost = True
        assert life.court.turn(delivered) == ("leave_unsettled",)
        life.broker.crashed()

    assert life.until_dead(ValueError("bad")) == 3


@pytest.mark.parametrize("broker", COUNTING)
def test_a_fault_of_the_set_up_is_not_the_messages(broker: str) -> None:
    life = Life(broker)
    for _ in range(2):
        life.crash()

    fault = SetupFault("no mapper")
    fault.__cause__ = ConfigurationError("no mapper")
    life.deliver(fault)
    life.hand_back()

    assert life.court.ledger.arrived(life.broker.deliver()) == (0, 2)


@pytest.mark.parametrize("raised", [None, ValueError("bad")])
@pytest.mark.parametrize("broker", COUNTING)
def test_where_the_pump_settles_nothing_runs_that_ended_spend_nothing(broker: str, raised: Exception | None) -> None:
    life = Life(broker, auto_ack=False)

    for _ in range(20):
        assert life.deliver(raised, settles=False) is UNSETTLED
        assert life.court.spy.calls == []

    assert life.runs == 20


@pytest.mark.parametrize("broker", COUNTING)
def test_a_killer_is_found_out_where_the_pump_settles_nothing_else(broker: str) -> None:
    life = Life(broker, auto_ack=False)

    for _ in range(9):
        life.crash()
    life.deliver()

    assert life.calls == [DIED]


# -- what others and other times add


def test_a_copy_carries_its_attempts_and_its_count_starts_over() -> None:
    life = Life("counts, and requeues copies", may_block=True)
    for _ in range(10):
        life.deliver(DontAckAction())

    life.deliver(ValueError("bad"))

    assert life.court.ledger.arrived(life.broker.deliver()) == (1, 0)
    life.broker.crashed()
    assert life.court.ledger.arrived(life.broker.deliver()) == (1, 1)


def test_deliveries_to_others_are_unexplained_here() -> None:
    court = Court(may_block=True)

    court.turn(message(), DontAckAction())

    assert court.ledger.arrived(message(deliveries=2)) == (0, 0)
    assert court.ledger.arrived(message(deliveries=5)) == (0, 3)


def test_what_was_dead_lettered_and_sent_again_begins_anew(broker: str) -> None:
    life = Life(broker)
    life.until_dead(ValueError("bad"))

    life.calls.clear()
    life.broker = BROKERS[broker]()

    assert life.until_dead(ValueError("bad")) == 6


# -- the in-hand slot


class Left:
    """What earlier processes have left of messages, and what this one writes of them."""

    def __init__(self, **records: Record) -> None:
        self.records = {f"{name.removeprefix('_')}": record for name, record in records.items()}

    def read(self) -> dict[str, Record]:
        return self.records

    def write(self, records: Mapping[str, Record | None]) -> None:
        for identity, record in records.items():
            self.records.pop(identity, None)
            if record is not None:
                self.records[identity] = record


@pytest.mark.parametrize("counts", [False, True])
def test_a_run_that_ended_with_its_process_is_charged_once(*, counts: bool) -> None:
    court = Court(book=Left(_1=Record(attempts=2, judged=0, died=True)))

    assert court.ledger.arrived(message(attempts=1, deliveries=1 + counts)) == (2, 0)


def test_what_has_killed_as_often_as_it_may_is_given_up_unrun() -> None:
    court = Court(book=Left(_1=Record(attempts=3, judged=2, died=True)), may_block=True)

    assert court.runs(message("2"))
    assert court.turn(message(deliveries=4)) == DIED
    assert court.rejection.attempts == 3


def test_attempts_that_an_earlier_process_kept_are_the_messages_own() -> None:
    court = Court(book=Left(_1=Record(attempts=3, judged=2)), may_block=True)

    assert court.turn(message(deliveries=4)) == EXHAUSTED


def test_a_charge_is_part_of_the_next_verdict_and_not_counted_twice() -> None:
    left = Left(_1=Record(attempts=1, judged=0, died=True))
    court = Court(book=left)

    court.turn(message(deliveries=2), ValueError("bad"))

    assert court.spy.calls == [("requeue", 2.0, 2)]
    assert court.ledger.arrived(message(attempts=2)) == (2, 0)
    assert left.records["1"][:5] == (2, 0, 1, 1, False)


def test_a_charge_blames_nobody_else() -> None:
    court = Court(book=Left(_1=Record(attempts=1, died=True)))

    assert court.ledger.arrived(message("2", deliveries=2)) == (0, 1)


@pytest.mark.parametrize("ending", [None, RejectMessageAction("no")])
def test_what_has_come_to_its_end_leaves_nothing_for_the_next_process(ending: Exception | None) -> None:
    left = Left(_1=Record(attempts=1, died=True), _2=Record(shared=1))
    court = Court(book=left)

    court.turn(message(), ending)

    assert set(left.records) == {"2"}


@pytest.mark.parametrize("deliveries", [1, 4])
def test_who_was_there_whenever_a_process_died_is_a_suspect_and_has_spent_nothing(deliveries: int) -> None:
    court = Court(book=Left(_1=Record(shared=3, judged=2, explained=2)), may_block=True)
    suspect = message(deliveries=deliveries)

    assert court.judge.suspect(suspect)
    assert court.turn(suspect, ValueError("bad")) == ("requeue", 1.0, 1)
    assert not court.judge.suspect(suspect)


@pytest.mark.parametrize(("shared", "attempts"), [(1, 1), (2, 0), (0, 2)])
def test_who_was_there_seldom_is_no_suspect(shared: int, attempts: int) -> None:
    court = Court(book=Left(_1=Record(attempts=attempts, shared=shared)))

    assert not court.judge.suspect(message())


def test_a_run_that_is_cut_off_by_a_stop_leaves_the_record_as_it_was() -> None:
    left = Left(_1=Record(attempts=1, shared=1))
    court = Court(book=left)

    court.judge.handed_back(message())

    assert left.records == {"1": Record(attempts=1, shared=1)}


# -- the same, with late and lost deliveries


def sequence(*counts: int) -> Sequence[Message]:
    return [message(deliveries=count) for count in counts]


def test_a_late_hand_back_of_an_older_delivery_changes_nothing() -> None:
    court = Court(may_block=True)
    older, newer = sequence(1, 2)

    court.turn(newer, DontAckAction())
    court.judge.handed_back(older)

    assert court.ledger.arrived(message(deliveries=3)) == (0, 0)


@pytest.mark.parametrize("late", ["returned, and could not be settled", "failed", "refused", "lost"])
def test_what_ends_late_on_an_older_delivery_takes_back_nothing_that_later_ones_explained(late: str) -> None:
    court = Court(may_block=True, max_attempts=None)
    older, *newer = sequence(1, 2, 3)
    assert court.runs(older)
    for each in newer:
        court.turn(each, DontAckAction())

    if late == "returned, and could not be settled":
        court.judge.unsettled(older, court.judge.handled(older), LeaseLost("gone"))
    elif late == "lost":
        older.lost = True
        court.judge.handled(older)
    else:
        court.judge.failed(older, ValueError("bad") if late == "failed" else DontAckAction())

    assert court.ledger.arrived(message(deliveries=4)) == (late == "failed", 0)


def test_the_verdict_on_what_cannot_be_read_is_kept_as_well_and_counts_once() -> None:
    court = Court()
    unreadable = message(fault="no header")

    court.turn_that_cannot_be_settled(unreadable, None, TransportError("down"))
    court.turn(message(fault="no header", deliveries=2))

    assert court.spy.calls == [("reject", "unacceptable", "unreadable")]
    assert court.judge.unacceptable == 1
