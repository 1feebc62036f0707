"""Faults in every call of a broker, at random: nothing is lost, and no word changes its meaning."""

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from pump.errors import (
    DeferMessageAction,
    DontAckAction,
    InvalidMessageAction,
    PublishError,
    RejectMessageAction,
    TransportError,
)
from support.pumps import Bench, Kind, Order

RAISED: dict[str, Callable[[], Exception]] = {
    "leave": DontAckAction,
    "defer": lambda: DeferMessageAction(3),
    "defer at once": lambda: DeferMessageAction(0),
    "fail": lambda: ValueError("any"),
    "reject": lambda: RejectMessageAction("asked to"),
    "invalid": lambda: InvalidMessageAction("wrong"),
}
COUNTED = {"defer", "defer at once", "fail"}
DECIDED = {"reject", "invalid"}
FAULTS: tuple[Callable[[], Exception], ...] = (
    lambda: TransportError("away"),
    lambda: PublishError("not confirmed"),
    lambda: OSError("reset"),
    lambda: ValueError("nobody expected that"),
)
MOST_FAULTS = 400


class Script:
    """What each message's handler does, run by run; and what it did."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.runs: defaultdict[int, list[str]] = defaultdict(list)
        self.endings: dict[int, list[str]] = {}
        for number in range(chance.randrange(1, 40)):
            middle = chance.choices(["leave", "defer", "defer at once", "fail"], k=chance.randrange(6))
            self.endings[number] = [*middle, chance.choice(["return", "return", "return", "reject", "invalid"])]

    def __call__(self, order: Order) -> None:
        endings, runs = self.endings[order.number], self.runs[order.number]
        ending = endings[min(len(runs), len(endings) - 1)]
        runs.append(ending)
        if ending in RAISED:
            error = RAISED[ending]()
            raise error


def faulty(chance: random.Random) -> Callable[[str], None]:
    """Is told of each call, and makes some of them fail."""
    rate, left = chance.choice([0, 0.02, 0.1, 0.3]), [MOST_FAULTS]

    def on_call(_: str) -> None:
        if left[0] and chance.random() < rate:
            left[0] -= 1
            error = chance.choice(FAULTS)()
            raise error

    return on_call


def capabilities(chance: random.Random) -> dict[str, Any]:
    return {
        "leases": chance.choice([True, False]),
        "nack": chance.choice(["releases", "releases", "holds"]),
        "requeue": chance.choice(["same", "same", "hold"]),
        "blocks": chance.choice(["channel", "partition", "nothing"]),
    }


def run(seed: int, kind: Kind, stack: ExitStack) -> None:
    chance = random.Random(seed)
    script, limit = Script(chance), chance.choice([1, 2, 3, 5])
    bench = stack.enter_context(
        Bench(
            kind.handler(script),
            **kind.options,
            capabilities=capabilities(chance),
            max_attempts=limit,
            may_block=True,
            ordered=chance.choice([True, False, False]),
            buffer_size=chance.choice([1, 3, 10]),
        )
    )
    bench.broker.on_call = faulty(chance)
    for number in script.endings:
        bench.post(Order(number), id=str(number), key=chance.choice([None, None, "a", "b"]))
    bench.run(seconds=3_000)
    bench.broker.on_call = str
    bench.run(seconds=20_000)

    bus = bench.broker.bus
    acknowledged = Counter(request.number for request in bench.acknowledged)  # type: ignore[attr-defined]
    dead = Counter(int(message.id) for message in bus.messages("Order.dead"))
    assert bench.stopped is None
    assert bench.pending == []
    assert bus.pending("Order") + bus.locked("Order") + bus.scheduled("Order") == 0
    for number in script.endings:
        runs = script.runs[number]
        counted = sum(ending in COUNTED for ending in runs)
        assert acknowledged[number] + dead[number] == 1, (number, runs)
        assert counted <= limit, f"{number} ran too often: {runs}"
        assert not DECIDED & set(runs[:-1]), f"{number} ran after it was decided: {runs}"
        if acknowledged[number]:
            assert runs[-1] == "return", f"{number} was acknowledged: {runs}"
        else:
            assert runs[-1] in DECIDED or counted == limit, f"{number} was given up: {runs}"


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_lost_and_nothing_given_up_too_soon(seed: int, kind: Kind, benches: ExitStack) -> None:
    run(seed, kind, benches)


@pytest.mark.long
@pytest.mark.parametrize("hundred", range(1, 6))
def test_the_same_many_times(hundred: int, kind: Kind) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        with ExitStack() as stack:
            run(seed, kind, stack)
