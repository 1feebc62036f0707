"""Random calls at the same time, on several engines: in the end each message was settled once for each group."""

import contextlib
import random
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from pump.queue.engine import Engine
from pump.queue.errors import Conflict
from pump.queue.options import QueueOptions
from pump.queue.vocabulary import Filter, PopRequest, Push, State, Status
from support.queue_races import drained, patiently, race, settlements

EngineMaker = Callable[..., Engine]

GROUPS = ("one", "two")
STATUSES = [*Status, *[Status.COMPLETED] * 5]


class Storm:
    """State of all threads: which messages were confirmed, and how often each was acknowledged."""

    def __init__(self, engines: list[Engine], *, ordered: bool) -> None:
        self.engines = engines
        self.ordered = ordered
        self.pushed: set[tuple[str, str]] = set()
        self.acknowledged: Counter[tuple[str, str, str]] = Counter()
        self._lock = threading.Lock()

    def rage(self, number: int, acts: int) -> None:
        """The calls of one thread."""
        chance = random.Random(number)
        engine = self.engines[number % len(self.engines)]
        for turn in range(acts):
            act = chance.choice([self.push, self.consume, self.consume, self.consume, self.operate])
            act(engine, chance, f"{number}-{turn}")

    def push(self, engine: Engine, chance: random.Random, name: str) -> None:
        part = chance.choice("ABC")
        names = [f"{name}-{number}" for number in range(chance.randrange(1, 5))]
        delay = chance.choice([0.0, 0.0, 0.02])
        items = [Push("orders", each.encode(), part, each, delay=delay) for each in names]
        patiently(partial(engine.push, items))
        with self._lock:
            self.pushed |= {(part, each) for each in names}

    def consume(self, engine: Engine, chance: random.Random, name: str) -> None:
        group = chance.choice(GROUPS)
        want = PopRequest(
            queue="orders", group=group, limit=chance.randrange(1, 6), partitions=chance.randrange(1, 4),
            lease_time=chance.choice([0.01, 60.0]), largest_reply=chance.choice([20, 10_000]),
        )  # fmt: skip
        taken = patiently(partial(engine.pop, want))
        if chance.random() < 0.2:
            patiently(partial(engine.extend, taken.lease_id, 60.0))
        said = [
            each
            for message in taken.messages
            for each in settlements([message], group, status=chance.choice(STATUSES))
        ]  # fmt: skip
        partitions = {each.partition_id: each.partition for each in taken.messages}
        if chance.random() < 0.3 and len(said) > 1:
            committed = patiently(partial(engine.transaction, said[:2]))
            answers = committed.results if committed.success else ()
        else:
            answers = patiently(partial(engine.settle, said))
        for one, answer in zip(said, answers, strict=False):
            if getattr(answer, "message", "") == "acknowledged":
                with self._lock:
                    self.acknowledged[group, partitions[one.partition_id], one.transaction_id] += 1

    def operate(self, engine: Engine, chance: random.Random, name: str) -> None:
        """Operators' calls that remove no message."""
        letters, _ = patiently(partial(engine.dead_letters, Filter(queue="orders", limit=3)))
        for letter in letters:
            patiently(partial(engine.retry, letter.partition_id, letter.transaction_id))
        patiently(engine.maintain)
        with contextlib.suppress(Conflict):
            patiently(partial(engine.configure, "orders", options(ordered=self.ordered)))


def options(*, ordered: bool) -> QueueOptions:
    return QueueOptions(ordered=ordered, retry_delay=0.0, retry_limit=4)


@pytest.mark.requirement("Z-01", "Z-05", "Z-09", "Q-54", "Q-34")
@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
@pytest.mark.parametrize("acts", [40, pytest.param(1_000, marks=pytest.mark.long)])
def test_in_the_end_each_message_was_settled_once_for_each_group(
    make_engine: EngineMaker, acts: int, *, ordered: bool
) -> None:
    engines = [make_engine(), make_engine()]
    engines[0].configure("orders", options(ordered=ordered))
    for group in GROUPS:
        engines[0].subscribe("orders", group)
    storm = Storm(engines, ordered=ordered)

    race(*(partial(storm.rage, number, acts) for number in range(6)))

    final: Counter[tuple[str, str, str]] = Counter()
    for _ in range(3):
        for group in GROUPS:
            final.update((group, each.partition, each.transaction_id) for each in drained(engines[1], "orders", group))
        engines[1].clock_offset += 400
    found = engines[0].stored(Filter(queue="orders", limit=100_000))
    assert {(each.partition, each.transaction_id) for each in found} == storm.pushed
    assert len(found) == len(storm.pushed)
    done = storm.acknowledged + final
    for each in found:
        for group in GROUPS:
            times = done[group, each.partition, each.transaction_id]
            assert (times, each.states[group]) in {(1, State.COMPLETED), (0, State.DEAD)}, (group, each)
    assert {(each.lag, each.partitions_with_lag) for each in engines[1].groups()} == {(0, 0)}
