"""What a restart in good order remembers: attempts, wherever they were counted."""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from pump import Dispatcher, Publication, Subscription
from pump.errors import DontAckAction
from pump.transports.memory import MemoryTransport
from support.pumps import PROACTOR, REACTOR, Kind, Order, Outcomes
from support.waiting import eventually

pytestmark = pytest.mark.requirement("P-04")

KEPT = 0.3
"""How long a message that failed waits here, in seconds: longer than a stop takes."""


@pytest.fixture(params=[REACTOR, PROACTOR], ids=["reactor", "proactor"])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


class Shop:
    """One channel, its dead letters, and programs that consume it one after another."""

    def __init__(self, kind: Kind, transport: Callable[[], Any], folder: Path) -> None:
        self.letters: list[Order] = []
        self._kind = kind
        self._transport = transport
        self._folder = folder
        self._topic = f"orders-{uuid4().hex[:8]}"

    def program(self, body: Callable[[Any], object], **options: Any) -> Dispatcher:
        rules = {"max_attempts": 3, "requeue_backoff": (KEPT, KEPT), "lease": 2.0, "dont_ack_delay": 0.0, **options}
        grave = f"{self._topic}-dead"
        return Dispatcher(
            self._transport(),
            handlers=[self._kind.handler(body)],
            subscriptions=[Subscription(Order, topic=self._topic, channel=self._topic, dead_letter=grave, **rules)],
            publications=[Publication(Order, topic=self._topic)],
            state_folder=self._folder,
        )

    def sexton(self) -> Dispatcher:
        grave = f"{self._topic}-dead"
        return Dispatcher(
            self._transport(),
            handlers=[self._kind.handler(self.letters.append)],
            subscriptions=[Subscription(Order, topic=grave, channel=grave, dead_letter=None)],
            state_folder=self._folder,
        )

    def lives(self, failing: Outcomes, **options: Any) -> None:
        """Restart the program after each run, until there is a dead letter."""
        with self.program(failing, **options).publishing() as posting:
            posting.post(Order(1))
        with self.sexton():
            while not self.letters:
                runs = failing.runs
                with self.program(failing, **options):
                    eventually(lambda runs=runs: failing.runs > runs or self.letters)  # type: ignore[misc]
                assert failing.runs < 60


@pytest.fixture
def shop(kind: Kind, url: str, tmp_path: Path) -> Shop:
    return Shop(kind, lambda: url, tmp_path / "state")


@pytest.mark.parametrize("may_block", [False, True])
def test_what_is_held_keeps_its_attempts(shop: Shop, *, may_block: bool) -> None:
    failing = Outcomes(ValueError("no tea"))

    shop.lives(failing, ordered=True, may_block=may_block)

    assert failing.runs == 3


def test_what_comes_again_by_the_broker_keeps_its_attempts_though_handlers_may_refuse(shop: Shop) -> None:
    failing = Outcomes(ValueError("no tea"))

    shop.lives(failing, may_block=True)

    assert failing.runs == 3


def test_refusals_between_failures_cost_nothing_and_forget_nothing(shop: Shop) -> None:
    refusals = [DontAckAction() for _ in range(4)]
    failing = Outcomes(ValueError("1"), *refusals[:2], ValueError("2"), *refusals[2:], ValueError("3"))

    shop.lives(failing, ordered=True, may_block=True)

    assert failing.runs == 7


@pytest.mark.parametrize("ordered", [False, True])
def test_the_memory_bus_keeps_them_too(kind: Kind, tmp_path: Path, *, ordered: bool) -> None:
    failing = Outcomes(ValueError("no tea"))
    name = uuid4().hex

    Shop(kind, lambda: MemoryTransport(name), tmp_path).lives(failing, ordered=ordered, may_block=True)

    assert failing.runs == 3


def test_what_waited_unseen_through_three_lives_is_run_as_often_as_any_other(shop: Shop) -> None:
    """A broker that counts deliveries has counted three by then, and no handler has seen the message."""
    handled, failed = list[int](), Counter[int]()

    def handle_slowly(order: Order) -> None:
        time.sleep(0.1)  # the program is stopped meanwhile, with the others here
        handled.append(order.number)

    def fail(order: Order) -> None:
        failed[order.number] += 1
        raise ValueError("no tea")

    with shop.program(handle_slowly).publishing() as posting:
        posting.post_many([Order(number) for number in range(12)])
    for life in range(3):
        with shop.program(handle_slowly):
            eventually(lambda life=life: len(handled) > life)  # type: ignore[misc]
    assert len(handled) < 10
    with shop.sexton(), shop.program(fail):
        eventually(lambda: len(shop.letters) == 12 - len(handled))

    assert failed == {number: 3 for number in range(12) if number not in handled}
