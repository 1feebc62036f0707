"""For every group, each message is always in exactly one state, and a pop gets every message that is ready."""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from pump.queue.engine import Engine
from pump.queue.options import QueueOptions
from pump.queue.vocabulary import (
    DeadLetter,
    Filter,
    GroupInfo,
    Leased,
    PopRequest,
    Push,
    Settlement,
    State,
    Status,
    Step,
)
from support.queue_model import MAX_WAIT_SECONDS, RETRY_LIMIT, Key, Model

EngineMaker = Callable[..., Engine]

LEASE_SECONDS = 1000.0
DELAY_SECONDS = 1500.0
PARTITIONS = st.sampled_from(["A", "B"])
GROUPS = st.sampled_from(["one", "two"])
NAMES = st.sampled_from([str(number) for number in range(30)])
STATUSES = st.sampled_from([*Status, *[Status.COMPLETED] * 4])

PICKS = st.integers(0, 20)
WHOLE_LOOK = 8
"""After this number of steps, an operator looks at every partition too."""

Held = tuple[Leased, str]
"""A message and the group that got it."""
States: TypeAlias = dict[tuple[Key, str], State]
"""The state of each message for each group."""
OPEN_STATES = {State.PENDING, State.LEASED}
T = TypeVar("T")

numbers = itertools.count()


class Machine(RuleBasedStateMachine):
    """Producers, consumers, operators and the clock, in any order."""

    make: EngineMaker
    ordered: bool

    def __init__(self) -> None:
        super().__init__()
        self.engine = self.make()
        self.engine.clock_offset = 0.0
        self.queue = f"q{next(numbers)}"
        self.model = Model(ordered=self.ordered)
        self.uids: dict[str, str] = {}
        self.handed_out: list[Held] = []
        """Every message that was ever handed out, newest last."""
        self.looks = itertools.count(1)
        self.latest = 0.0
        """While the clock shows less than it did, what became ready later than this may come late."""
        self.engine.configure(
            self.queue,
            QueueOptions(
                ordered=self.ordered,
                lease_time=LEASE_SECONDS,
                retry_limit=RETRY_LIMIT,
                retry_delay=0.0,
                max_wait_time=MAX_WAIT_SECONDS,
            ),
        )

    @property
    def now(self) -> float:
        return time.time() + self.engine.clock_offset

    # -- producers and consumers

    @initialize(names=st.lists(NAMES, min_size=2, max_size=5, unique=True))
    def begin(self, names: list[str]) -> None:
        for partition in ("A", "B"):
            self.push(partition=partition, names=names, delay=0.0)

    @rule(
        partition=PARTITIONS,
        names=st.lists(NAMES, min_size=1, max_size=4),
        delay=st.sampled_from([0.0, 0.0, DELAY_SECONDS]),
    )
    def push(self, partition: str, names: list[str], delay: float) -> None:
        items = [Push(self.queue, name.encode(), partition, name, delay=delay) for name in names]

        answers = self.engine.push(items)

        for name, answer in zip(names, answers, strict=True):
            key = (partition, name)
            assert answer.duplicate == (key in self.model.messages)
            self.uids[answer.partition_id] = partition
            self.model.push(key, self.now + delay if delay else 0.0 + self.now)

    @rule(
        group=GROUPS,
        limit=st.integers(1, 6),
        partition=st.none() | PARTITIONS,
        partitions=st.integers(1, 2),
        auto_ack=st.sampled_from([False, False, True]),
    )
    def pop(self, group: str, limit: int, partition: str | None, partitions: int, auto_ack: bool) -> None:
        self.take(group, limit, partition, partitions, auto_ack=auto_ack)

    def take(self, group: str, limit: int, partition: str | None, partitions: int, *, auto_ack: bool) -> list[Held]:
        """Pop messages, and check them."""
        want = PopRequest(
            queue=self.queue, group=group, limit=limit, partition=partition, partitions=partitions, auto_ack=auto_ack
        )
        now = self.now
        taken = self.engine.pop(want)
        if partition is None or taken.why_empty != "partition_not_found":
            self.model.groups.add(group)
        self.model.groups.update(each.name for each in self.engine.groups(group) if each.queue == self.queue)

        self.model.taken(group, taken, now + LEASE_SECONDS, now)
        self.learn_of_the_spent(group)
        assert len(taken.messages) <= limit
        assert len({each.partition for each in taken.messages}) <= partitions
        if not taken.messages and now >= self.latest:
            assert not list(self.model.ready(group, now, partition)), "something was ready, and was not handed out"
        if self.ordered:
            self.check_order(group, list(taken.messages))
        mine = [(each, group) for each in taken.messages]
        self.handed_out += mine
        return mine

    def check_order(self, group: str, messages: list[Leased]) -> None:
        """The messages that are handed out must be the first pending ones."""
        for partition in {each.partition for each in messages}:
            got = [each.sequence for each in messages if each.partition == partition]
            assert got == sorted(got)
            earlier = [
                each.transaction_id
                for each in self.engine.stored(Filter(queue=self.queue, partition=partition, state=State.PENDING))
                if each.states[group] is State.PENDING and each.sequence is not None and each.sequence < got[-1]
            ]
            assert not earlier

    def learn_of_the_spent(self, group: str) -> None:
        """A pop makes dead letters of messages whose attempts are used up, among those that it happens to look at."""
        spent = [key for key in self.model.messages if self.model.is_spent(group, key, self.now)]
        stored = self.states() if spent else {}
        for key in spent:
            if stored[key].get(group) is State.DEAD:
                standing = self.model.messages[key].of(group)
                standing.settled, standing.lease = State.DEAD, None

    @rule(group=GROUPS, limit=st.integers(1, 10), statuses=st.lists(STATUSES, min_size=1, max_size=6))
    def consume(self, group: str, limit: int, statuses: list[Status]) -> None:
        """Pop messages, and settle as many as there are statuses."""
        mine = self.take(group, limit, None, 2, auto_ack=False)

        self.settle_all([as_settlement(*each, status) for each, status in zip(mine, statuses, strict=False)])

    @rule(said=st.lists(st.tuples(PICKS, STATUSES), min_size=1, max_size=5), live=st.booleans())
    def settle(self, said: list[tuple[int, Status]], live: bool) -> None:
        self.settle_all([as_settlement(*each, status) for each, status in self.picked(said, live=live)])

    def picked(self, said: list[tuple[int, T]], *, live: bool) -> list[tuple[Held, T]]:
        """Messages that a consumer had or still has, with a settlement for each."""
        choice = [each for each in self.handed_out if not live or self.is_live(each)]
        return [(choice[-1 - number % len(choice)], word) for number, word in said] if choice else []

    def is_live(self, each: Held) -> bool:
        message, group = each
        return self.is_allowed(as_settlement(message, group, Status.COMPLETED), frozenset({message.lease_id}))

    def settle_all(self, settlements: list[Settlement]) -> None:
        answers = self.engine.settle(settlements)

        expected = self.model.settle(settlements, self.uids, self.now)
        for answer, allowed, settlement in zip(answers, expected, settlements, strict=True):
            benign = answer.message == "already_acknowledged"
            assert (answer.success and not benign) == allowed
            if benign:
                key = (self.uids[settlement.partition_id], settlement.transaction_id)
                assert self.model.state(settlement.group, key, self.now) is State.COMPLETED

    @rule(
        said=st.lists(st.tuples(PICKS, st.tuples(STATUSES, st.booleans())), max_size=3),
        pushed=st.lists(st.tuples(PARTITIONS, NAMES), max_size=2),
        live=st.booleans(),
    )
    def transact(
        self,
        said: list[tuple[int, tuple[Status, bool]]],
        pushed: list[tuple[str, str]],
        live: bool,
    ) -> None:
        picked = self.picked(said, live=live)
        settlements = [as_settlement(*each, status, named=named) for each, (status, named) in picked]
        leases = frozenset(message.lease_id for (message, _), _ in picked)
        pushes = [Push(self.queue, name.encode(), partition, name) for partition, name in pushed]
        steps: list[Step] = [*settlements, *pushes]
        fresh = len(set(pushed)) == len(pushed) and not any(key in self.model.messages for key in pushed)
        right = fresh and self.all_allowed(settlements, leases)

        committed = self.engine.transaction(steps, leases)

        assert committed.success == right, committed.error
        if right:
            self.model.settle(settlements, self.uids, self.now, leases)
            for (partition, name), answer in zip(pushed, committed.results[len(settlements) :], strict=True):
                self.model.push((partition, name), self.now)
                self.uids[getattr(answer, "partition_id", "")] = partition

    def all_allowed(self, settlements: list[Settlement], leases: frozenset[str]) -> bool:
        """Whether each settlement has a live lease, and no message is settled twice."""
        keys = [(each.group, self.uids[each.partition_id], each.transaction_id) for each in settlements]
        return len(set(keys)) == len(keys) and all(
            self.is_allowed(each, leases if each.lease_id is None else frozenset({each.lease_id}))
            for each in settlements
        )

    def is_allowed(self, said: Settlement, named: frozenset[str]) -> bool:
        key = (self.uids[said.partition_id], said.transaction_id)
        if key not in self.model.messages or not self.model.is_held(said.group, key, self.now):
            return False
        return self.model.messages[key].of(said.group).lease in named

    @rule(pick=PICKS, seconds=st.sampled_from([1.0, 5000.0]))
    def extend(self, pick: int, seconds: float) -> None:
        lease_id = next((message.lease_id for (message, _), _ in self.picked([(pick, None)], live=False)), "")

        extended = self.engine.extend(lease_id, seconds) if lease_id else None

        if extended is not None:
            assert extended.success == self.model.extend(lease_id, self.now + seconds, self.now)

    # -- time, crashes and operators

    @rule(seconds=st.sampled_from([400.0, 1600.0, 400.0, 1600.0, -700.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.latest = max(self.latest, self.now)
        self.engine.clock_offset += seconds

    @rule(act=st.integers(0, 9), group=GROUPS, partition=PARTITIONS, name=NAMES)
    def operate(self, act: int, group: str, partition: str, name: str) -> None:
        """Operators' calls, which are rarer."""
        acts: list[Callable[[], None]] = [
            self.start_again,
            self.maintain,
            self.redrive,
            lambda: self.seek(group, to_end=False),
            lambda: self.seek(group, to_end=True),
            lambda: self.delete_group(group),
            lambda: self.delete_message(partition, name),
            lambda: self.retry(partition, name),
            lambda: self.give_up(partition, name, group),
            lambda: self.purge(group),
        ]
        acts[act]()

    def start_again(self) -> None:
        """Every consumer that had a message is gone, without notice."""
        offset = self.engine.clock_offset
        self.engine.close()
        self.engine = self.make()
        self.engine.clock_offset = offset

    def maintain(self) -> None:
        had_groups = bool(self.model.groups)
        self.engine.maintain()

        stored = self.states()
        if not had_groups:
            self.model.groups.update(self.groups())
        for key, group in itertools.product(self.model.messages, self.model.groups):
            pending = self.model.state(group, key, self.now) is State.PENDING
            if pending and self.model.is_overdue(key, self.now) and stored[key][group] is State.DEAD:
                standing = self.model.messages[key].of(group)
                standing.settled, standing.lease = State.DEAD, None

    def seek(self, group: str, *, to_end: bool) -> None:
        if group in self.model.groups:
            self.maintain()

            self.engine.seek(group, self.queue, None if to_end else 0.0)

            self.model.seek(group, to_end=to_end)

    def delete_group(self, group: str) -> None:
        assert self.engine.delete_group(group, self.queue) == (group in self.model.groups)

        self.model.forget(group)

    def delete_message(self, partition: str, name: str) -> None:
        uid = self.uid_of(partition)
        if uid is not None:
            key = (partition, name)

            assert self.engine.delete_message(uid, name) == (key in self.model.messages)

            if key in self.model.messages:
                self.model.remove(key)

    def retry(self, partition: str, name: str) -> None:
        uid = self.uid_of(partition)
        if uid is not None and (partition, name) in self.model.messages:
            assert self.engine.retry(uid, name) == self.model.retry((partition, name))

    def give_up(self, partition: str, name: str, group: str) -> None:
        uid = self.uid_of(partition)
        if uid is not None:
            only = group if len(name) == 1 else None  # for one group or for all

            number = self.engine.give_up(uid, name, group=only)

            self.model.groups.update(self.groups())
            key = (partition, name)
            assert number == (self.model.give_up(key, only) if key in self.model.messages else 0)

    def purge(self, group: str) -> None:
        if group in self.model.groups:
            now = self.now

            assert self.engine.purge(self.queue, group) == self.model.purge(group, now)

    def redrive(self) -> None:
        letters, _ = self.engine.dead_letters(Filter(queue=self.queue, limit=1))
        for letter in letters:
            (pushed,) = self.engine.redrive([letter.id])
            assert (pushed is None) == (letter.redriven_at is not None)
            if pushed is not None and not pushed.duplicate:
                self.engine.delete_message(pushed.partition_id, pushed.transaction_id)

    def uid_of(self, partition: str) -> str | None:
        return next((uid for uid, name in self.uids.items() if name == partition), None)

    # -- invariants

    def states(self) -> dict[Key, dict[str, State]]:
        stored = self.engine.stored(Filter(queue=self.queue, limit=1000))
        assert len({each.id for each in stored}) == len(stored)
        for each in stored:
            known = self.model.messages.get((each.partition, each.transaction_id))
            if known is not None:
                known.placed = each.sequence is not None
        return {(each.partition, each.transaction_id): each.states for each in stored}

    def groups(self) -> dict[str, GroupInfo]:
        return {each.name: each for each in self.engine.groups() if each.queue == self.queue}

    @invariant()
    def what_is_promised_holds(self) -> None:
        """Check all invariants with one look after each step."""
        stored, now = self.states(), self.now
        letters, total = self.engine.dead_letters(Filter(queue=self.queue, limit=1000))
        assert total == len(letters)
        states = {
            (key, group): self.model.state(group, key, now)
            for key, group in itertools.product(self.model.messages, self.model.groups)
        }
        self.every_message_is_where_it_should_be(stored, states)
        self.there_is_one_dead_letter_a_message_and_group(letters, states)
        self.lags_are_what_is_not_settled(self.groups(), states)
        if next(self.looks) % WHOLE_LOOK == 0:
            self.counts_are_those_of_the_states(states)

    def every_message_is_where_it_should_be(self, stored: dict[Key, dict[str, State]], states: States) -> None:
        assert set(stored) == set(self.model.messages)
        for (key, group), state in states.items():
            assert stored[key][group] is state, (key, group)

    def there_is_one_dead_letter_a_message_and_group(self, letters: Sequence[DeadLetter], states: States) -> None:
        assert not [each for each, count in Counter((x.message_id, x.group) for x in letters).items() if count > 1]
        names = {(each.partition, each.transaction_id, each.group) for each in letters}
        for (key, group), state in states.items():
            if state is State.DEAD:
                assert (*key, group) in names

    def lags_are_what_is_not_settled(self, infos: dict[str, GroupInfo], states: States) -> None:
        assert set(infos) == self.model.groups
        for group, info in infos.items():
            placed = [key for key, message in self.model.messages.items() if message.placed]
            assert info.lag == sum(states[key, group] in OPEN_STATES for key in placed)

    def counts_are_those_of_the_states(self, states: States) -> None:
        (info,) = self.engine.queues(self.queue)
        assert {each.name: each.lag for each in info.groups} == {name: x.lag for name, x in self.groups().items()}
        for partition in info.partitions:
            keys = [key for key in self.model.messages if key[0] == partition.name]
            assert partition.messages == len(keys)
            for each in partition.progress:
                counted = Counter(states[key, each.group] for key in keys)
                assert (each.pending, each.leased) == (counted[State.PENDING], counted[State.LEASED])
                assert each.dead >= counted[State.DEAD]

    def teardown(self) -> None:
        """Clean up, so that the next example does not slow down."""
        self.engine.delete_queue(self.queue)
        self.engine.close()


def as_settlement(message: Leased, group: str, status: Status, *, named: bool = True) -> Settlement:
    lease_id = message.lease_id if named else None
    return Settlement(message.transaction_id, message.partition_id, lease_id, status, group)


def run(make_engine: EngineMaker, *, ordered: bool, examples: int, steps: int) -> None:
    machine = type("BoundMachine", (Machine,), {"make": staticmethod(make_engine), "ordered": ordered})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )


@pytest.mark.requirement("Z-01", "Z-02", "Z-03", "Z-04", "Z-05", "Z-06", "Z-08", "Z-09", "Z-13", "Q-39")
@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
def test_nothing_is_lost_whatever_anybody_does(make_engine: EngineMaker, ordered: bool) -> None:
    run(make_engine, ordered=ordered, examples=25, steps=30)


@pytest.mark.long
@pytest.mark.requirement("Z-01")
@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
def test_nothing_is_lost_whatever_anybody_does_for_long(make_engine: EngineMaker, ordered: bool) -> None:
    run(make_engine, ordered=ordered, examples=1000, steps=80)
