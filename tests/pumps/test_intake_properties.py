"""The Intake against a simple account of where every delivery is, under any sequence of events."""

from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pump.message import Message
from pump.pumps.intake import CHANNEL, Intake
from support.court import message

KEYS = st.sampled_from([None, "a", "b"])
PARTITIONS = st.sampled_from([None, 0, 1])
DELAYS = st.sampled_from([0.0, 1.0, 2.0, 5.0])
WHICH = st.integers(0, 1_000)


class Delivery:
    """What the account knows of one delivery."""

    def __init__(self, delivered: Message) -> None:
        self.message = delivered
        self.where = "ready"
        """The others are held, in hand, gone."""
        self.due = 0.0
        self.again = False
        """Whether it was held before it came in hand."""


class IntakeMachine(RuleBasedStateMachine):
    """Offers, takes and ends messages as a broker, a pump and time might."""

    @initialize(
        slots=st.integers(1, 4),
        largest=st.integers(1, 6),
        ordered=st.booleans(),
        blocks=st.sampled_from(["partition", "channel", "nothing"]),
        suspicion=st.integers(1, 3),
    )
    def open(self, slots: int, largest: int, ordered: bool, blocks: Any, suspicion: int) -> None:
        self.slots, self.largest = slots, max(largest, slots)
        self.ordered, self.blocks = ordered, blocks
        self.suspicion = suspicion
        self.now, self.generation, self.receipts = 0.0, 1, 0
        self.deliveries: dict[int, Delivery] = {}
        self.dues: dict[str, float] = {}
        self.explained: set[str] = set()
        """Identities whose redeliveries are known to be harmless."""
        self.careful = True
        """Whether only one message is asked for."""
        self.left: set[int] = set()
        """Receipts in hand whose handlers have returned."""
        self.refused: dict[str, int] = {}
        """The receipt with which a message went back, by identity, until the message is settled."""
        self.intake = Intake(
            largest=largest,
            slots=slots,
            ordered=ordered,
            blocks=blocks,
            suspect=self.suspect,
            unknown=lambda each: each.identity not in self.explained,
            due=lambda each: self.dues.get(each.identity, 0.0),
            dropped=self.dropped,
        )

    # -- the account

    def suspect(self, each: Message) -> bool:
        return each.unexplained >= self.suspicion

    def dropped(self, each: Message) -> None:
        known = self.known(each)
        assert known.where in {"ready", "held"}
        known.where = "gone"

    def known(self, each: Message) -> Delivery:
        assert isinstance(each.receipt, int)
        return self.deliveries[each.receipt]

    def at(self, *places: str) -> list[Delivery]:
        return [each for each in self.deliveries.values() if each.where in places]

    def in_hand(self, which: int) -> Delivery:
        hand = self.at("hand")
        return hand[which % len(hand)]

    def valid(self) -> list[Delivery]:
        return [each for each in self.at("hand") if not self.lapsed(each.message)]

    def lapsed(self, each: Message) -> bool:
        return each.lost or (each.lease_expires is not None and each.lease_expires <= self.now)

    def ends_now(self, each: Message) -> bool:
        return not each.lost and self.lapsed(each)

    def key(self, each: Message) -> Hashable:
        if each.header.key is not None:
            return each.header.key
        return each.partition if each.partition is not None else (CHANNEL if self.ordered else None)

    def domain(self, each: Message) -> Hashable:
        if each.partition is not None:
            return each.partition
        channel = self.ordered or self.blocks == "channel"
        return each.header.key if each.header.key is not None else (CHANNEL if channel else None)

    def blockers(self) -> Iterable[Delivery]:
        """The messages that none of their domain may overtake: held, or in hand and held or released before."""
        for each in self.at("held", "hand"):
            identity = each.message.identity
            if each.where == "held" or each.again or identity in self.refused:
                yield each

    # -- what happens

    @rule(delay=DELAYS)
    def time_passes(self, delay: float) -> None:
        self.now += delay

    def arrive(self, arriving: Message) -> None:
        self.deliveries[self.receipts] = Delivery(arriving)
        if self.dues.get(arriving.identity, 0.0) > self.now:
            self.deliveries[self.receipts].where = "held"
            self.deliveries[self.receipts].due = self.dues[arriving.identity]

    @rule(
        count=st.integers(1, 4),
        key=KEYS,
        partition=PARTITIONS,
        unexplained=st.sampled_from([0, 0, 0, 0, 1, 2, 3]),
        lease=st.sampled_from([None, 2.0, 6.0]),
        harmless=st.booleans(),
    )
    def new_messages_arrive(
        self,
        count: int,
        key: str | None,
        partition: int | None,
        unexplained: int,
        lease: float | None,
        harmless: bool,
    ) -> None:
        batch = []
        for _ in range(min(count, self.intake.room())):
            self.receipts += 1
            batch.append(
                message(
                    f"m{self.receipts}",
                    receipt=self.receipts,
                    generation=self.generation,
                    deliveries=1 + unexplained,
                    key=key,
                    partition=partition,
                    lease_expires=None if lease is None else self.now + lease,
                )
            )
            self.arrive(batch[-1])
        if unexplained and batch and harmless:
            self.explained.update(each.identity for each in batch)
        size = self.intake.size
        self.offer(batch)
        if unexplained and batch:
            assert self.intake.size == (size if harmless else 1)

    def returnable(self) -> list[Delivery]:
        """The deliveries that may come again: without a lease, only those that are no longer here."""
        unleased = {
            each.message.identity for each in self.at("ready", "held", "hand") if not each.message.lease_expires
        }
        return [each for each in self.deliveries.values() if each.message.identity not in unleased]

    @precondition(lambda self: self.returnable())
    @rule(which=WHICH, counted=st.booleans())
    def a_message_arrives_again(self, which: int, *, counted: bool) -> None:
        candidates = self.returnable()
        earlier = candidates[which % len(candidates)]
        latest = max(
            (each.message for each in self.deliveries.values() if each.message.identity == earlier.message.identity),
            key=lambda each: (each.deliveries, each.receipt),
        )
        here = [each for each in self.at("ready", "held", "hand") if each.message.identity == latest.identity]
        self.receipts += 1
        again = message(
            latest.identity,
            receipt=self.receipts,
            generation=self.generation,
            deliveries=latest.deliveries + (counted or bool(here)),
            key=latest.header.key,
            partition=latest.partition,
            lease_expires=None if latest.lease_expires is None else self.now + 3,
        )
        replaced = next((each for place in ("held", "ready") for each in here if each.where == place), None)
        self.arrive(again)
        if replaced is not None:
            self.deliveries[self.receipts].where, self.deliveries[self.receipts].due = replaced.where, replaced.due
        self.offer([again])
        assert replaced is None or replaced.where == "gone"

    @precondition(lambda self: self.at("ready", "held", "hand"))
    @rule(which=WHICH)
    def another_message_of_the_same_id_arrives(self, which: int) -> None:
        here = self.at("ready", "held", "hand")
        first = here[which % len(here)].message
        self.receipts += 1
        twin = message(
            first.identity,
            receipt=self.receipts,
            generation=self.generation,
            key=first.header.key,
            partition=first.partition,
        )
        self.arrive(twin)
        self.offer([twin])

    def offer(self, batch: list[Message]) -> None:
        self.intake.offer(batch, self.now)
        if batch:
            self.careful = any(each.unexplained and each.identity not in self.explained for each in batch)
        here = {each.message.identity for each in self.at("ready", "held", "hand")}
        self.refused = {
            each: receipt
            for each, receipt in self.refused.items()
            if each in here or self.dues.get(each, 0.0) > self.now
        }

    @rule(count=st.integers(1, 4), swept=st.booleans())
    def some_are_taken(self, count: int, *, swept: bool) -> None:
        for _ in range(count):
            if swept:  # as before each receive; else lapsed messages are still here, and may be in the way
                self.what_is_lapsed_is_dropped()
                self.one_is_taken(self.next_by_the_rules())
            else:
                self.one_is_taken()

    def next_by_the_rules(self) -> Message | None:
        """The next message, found by looking at all of them."""
        hand = [each.message for each in self.at("hand")]
        running = [each for each in hand if each.receipt not in self.left]
        if len(hand) == self.slots or any(self.suspect(each) for each in running):
            return None
        first = next(self.may_begin(hand), None)
        beside = len(running) + len(self.intake.waiting) - 1
        return None if first is not None and self.suspect(first) and beside else first

    def may_begin(self, hand: list[Message]) -> Iterator[Message]:
        identities = {each.identity for each in hand}
        busy = {self.key(each) for each in hand} - {None}
        blocked = {self.domain(each.message) for each in self.blockers() if each.where == "hand"} - {None}
        for each in self.intake.waiting:
            known, domain, key = self.known(each), self.domain(each), self.key(each)
            in_time = known.where == "ready" or known.due <= self.now
            if in_time and domain not in blocked and key not in busy and each.identity not in identities:
                yield each
            if known.where == "held":
                blocked |= {domain} - {None}
            else:
                busy |= {key} - {None}

    def one_is_taken(self, *expected: Message | None) -> None:
        taken = self.intake.take(self.now)
        assert not expected or taken is expected[0]
        self.freed(taken)
        if taken is None:
            return
        known = self.known(taken)
        suspects = [each for each in self.running() if self.suspect(each.message)]
        blocked = {self.domain(each.message) for each in self.blockers() if each.where == "hand"}
        assert known.where in {"ready", "held"}
        assert not self.lapsed(taken)
        assert not suspects
        if self.suspect(taken):
            assert len(self.intake) == 1 + len(self.at("hand"))
            assert not self.running()
        for each in self.at("hand"):
            assert each.message.identity != taken.identity
            assert self.key(taken) is None or self.key(each.message) != self.key(taken)
        assert self.domain(taken) is None or self.domain(taken) not in blocked
        if known.where == "held":
            assert known.due <= self.now
            known.again = True
        else:
            self.check_order(known)
        known.where = "hand"

    def running(self) -> list[Delivery]:
        """The messages in hand whose handlers have not returned."""
        return [each for each in self.at("hand") if each.message.receipt not in self.left]

    def check_order(self, taken: Delivery) -> None:
        domain, key = self.domain(taken.message), self.key(taken.message)
        for each in self.at("held"):
            assert domain is None or self.domain(each.message) != domain
        order = [each for each in self.intake.waiting if self.known(each).where == "ready"]
        ahead = [each for each in order if self.before(each, taken.message)]
        assert all(key is None or self.key(each) != key for each in ahead)

    def before(self, one: Message, other: Message) -> bool:
        """Whether it came first. A redelivery has the place of the one it replaced; this does not follow that."""
        first = min(r for r, each in self.deliveries.items() if each.message.identity == one.identity)
        return (
            one.deliveries == 1 and one.receipt == first and first < int(str(other.receipt)) and other.deliveries == 1
        )

    @precondition(lambda self: self.at("hand"))
    @rule(which=WHICH)
    def one_is_settled(self, which: int) -> None:
        known, size = self.in_hand(which), self.intake.size
        identity = known.message.identity
        self.intake.settled(known.message)
        known.where = "gone"
        if self.settles_what_was_refused(known.message):
            del self.refused[identity]
            assert self.intake.size == size
        elif self.refused or known.message.unexplained or known.message.lost:
            assert self.intake.size == size
        else:
            assert self.intake.size == min(self.largest, 2 * size)

    def settles_what_was_refused(self, settled: Message) -> bool:
        refused = self.refused.get(settled.identity)
        return refused is not None and (refused != settled.receipt or self.domain(settled) is None)

    @precondition(lambda self: self.at("gone"))
    @rule(which=WHICH)
    def what_has_ended_long_ago_ends_once_more(self, which: int) -> None:
        gone = self.at("gone")
        size = self.intake.size

        self.intake.settled(gone[which % len(gone)].message)

        assert self.intake.size == size

    @precondition(lambda self: self.valid())
    @rule(which=WHICH, delay=DELAYS)
    def one_is_held(self, which: int, delay: float) -> None:
        known = self.valid()[which % len(self.valid())]
        held = known.message
        newer = next(
            (
                each
                for each in self.at("ready")
                if each.message.identity == held.identity
                and each.message.deliveries > held.deliveries
                and (held.lease_expires is not None or each.message.generation != held.generation)
            ),
            None,
        )
        self.intake.hold(held, self.now + delay)
        shown = known if newer is None else newer
        known.where, known.again = "gone", False
        self.left.discard(int(str(held.receipt)))
        shown.where, shown.due = "held", self.now + delay
        shown.message = next(each for each in self.intake.waiting if each.receipt == shown.message.receipt)

    @precondition(lambda self: self.valid())
    @rule(which=WHICH, delay=DELAYS)
    def one_is_refused(self, which: int, delay: float) -> None:
        known = self.valid()[which % len(self.valid())]
        self.dues[known.message.identity] = self.now + delay
        expected = [each for each in self.intake.waiting if self.domain(each) == self.domain(known.message)]
        back = self.intake.release(known.message, self.now + delay)

        assert list(back) == ([] if self.domain(known.message) is None else expected)
        assert self.intake.size == 1
        for each in back:
            self.known(each).where = "gone"
        self.refused[known.message.identity] = int(str(known.message.receipt))
        self.intake.settled(known.message)
        if self.domain(known.message) is None:
            del self.refused[known.message.identity]
        known.where = "gone"

    @precondition(lambda self: self.at("hand"))
    @rule(which=WHICH)
    def one_is_left(self, which: int) -> None:
        known = self.in_hand(which)
        self.intake.leave_unsettled(known.message)
        self.left.add(int(str(known.message.receipt)))
        assert known.message not in self.intake.leased(float("inf"))

    @rule()
    def what_is_lapsed_is_dropped(self) -> None:
        lapsed = [each for each in self.at("ready", "held") if self.lapsed(each.message)]
        newly = {each.message.receipt for each in self.at("hand") if self.ends_now(each.message)}
        lost = {each.receipt for each in self.intake.expire(self.now)}
        assert all(each.where == "gone" for each in lapsed)
        assert newly <= lost <= {each.message.receipt for each in self.at("hand") if self.lapsed(each.message)}
        self.freed()

    @rule()
    def the_consumer_is_another(self) -> None:
        self.generation += 1
        lost = {each.receipt for each in self.intake.drop_others(self.generation)}
        assert lost == {
            each.message.receipt for each in self.at("hand") if each.message.lost and each.message.receipt in lost
        }
        assert all(each.generation == self.generation for each in self.intake.waiting)
        self.freed()

    def freed(self, taken: Message | None = None) -> None:
        """Messages that were left unsettled and are lost have given their slots back."""
        here = {each.receipt for each in self.intake.in_hand if each is not taken}
        for each in self.at("hand"):
            if each.message.receipt not in here:
                assert each.message.lost
                each.where = "gone"

    @rule()
    def room_is_made_for_a_suspect(self) -> None:
        running, waiting = self.running(), self.at("ready", "held")
        back = self.intake.to_hand_back(self.now)
        if not back:
            return
        assert not running
        assert len(back) == len(waiting) - 1
        assert self.intake.size == 1
        for each in back:
            self.known(each).where = "gone"
        (suspect,) = self.intake.waiting
        assert self.suspect(suspect)
        assert self.known(suspect).where == "ready" or self.known(suspect).due <= self.now

    @rule()
    def everything_that_waits_goes_back(self) -> None:
        for each in self.intake.drain():
            self.known(each).where = "gone"
        assert not self.at("ready", "held")

    @rule()
    def what_waits_behind_nothing_in_hand_goes_back(self) -> None:
        domains = {self.domain(each.message) for each in self.at("hand")} - {None}
        free = [each for each in self.intake.waiting if self.domain(each) not in domains]

        assert list(self.intake.drain_all_but_successors()) == free
        for each in free:
            self.known(each).where = "gone"

    @rule(which=WHICH)
    def leases_are_renewed(self, which: int) -> None:
        for each in self.intake.leased(self.now + 2):
            assert each.lease_expires is not None
            assert not each.lost
            if which % 3:
                each.lease_expires = self.now + 5

    # -- what always holds

    @invariant()
    def nothing_vanishes_and_nothing_is_here_twice(self) -> None:
        if not hasattr(self, "intake"):
            return
        waiting = [each.receipt for each in self.intake.waiting]
        in_hand = [each.receipt for each in self.intake.in_hand]
        assert sorted(waiting, key=str) == sorted((each.message.receipt for each in self.at("ready", "held")), key=str)
        assert sorted(in_hand, key=str) == sorted((each.message.receipt for each in self.at("hand")), key=str)

    @invariant()
    def no_more_is_in_hand_or_asked_for_than_may_be(self) -> None:
        if not hasattr(self, "intake"):
            return
        assert len(self.intake.in_hand) <= self.slots
        assert 1 <= self.intake.size <= self.largest
        assert 0 <= self.intake.room() <= max(0, self.largest - len(self.intake))
        assert self.intake.room() == self.room_by_the_rules()

    def room_by_the_rules(self) -> int:
        running, ready = len(self.running()), len(self.at("ready"))
        if any(self.suspect(each.message) for each in self.running()):
            return 0
        room = max(self.intake.size, self.slots) - running - ready
        if self.careful:
            room = 1 - running - ready
        elif self.refused:
            room = min(1, self.slots - len(self.at("hand"))) - ready
        return max(0, min(room, self.largest - len(self.intake)))

    @invariant()
    def a_suspect_in_hand_is_alone(self) -> None:
        if not hasattr(self, "intake"):
            return
        hand = self.running()
        if any(self.suspect(each.message) for each in hand):
            assert len(hand) == 1
            assert self.intake.room() == 0


SETTINGS = settings(deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])


def test_the_intake_keeps_its_promises_under_any_sequence_of_events() -> None:
    run_state_machine_as_test(IntakeMachine, settings=settings(SETTINGS, max_examples=150, stateful_step_count=40))


@pytest.mark.long
def test_the_intake_keeps_its_promises_under_very_many_sequences() -> None:
    run_state_machine_as_test(IntakeMachine, settings=settings(SETTINGS, max_examples=5_000, stateful_step_count=80))
