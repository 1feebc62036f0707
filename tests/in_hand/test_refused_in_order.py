"""A message that its handler refuses comes again before those behind it, wherever order is kept."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest

from pump import Command, Dispatcher, DontAckAction, Publication, Subscription
from support.waiting import eventually

EVERYWHERE = pytest.mark.parametrize(
    "url",
    [
        *("quorum", "classic", "nats", "streams", "lists", "sqlite", "postgres", "memory", "kafka", "mqtt"),
        *("servicebus", "sessions", "sqs", "fifo", "pubsub"),
    ],
    indirect=True,
)
REFUSALS = 3
"""How often the first messages of each key are refused."""
EACH = 6
"""How many messages each key has."""
KEYS = ("tea", "coffee")


@dataclass(frozen=True)
class Step(Command):
    key: str
    number: int


class Refusing:
    """Refuses the first two messages of each key at first, and notes every run."""

    def __init__(self) -> None:
        self.runs: dict[str, list[int]] = defaultdict(list)
        self._seen: Counter[Step] = Counter()

    def __call__(self, step: Step) -> None:
        self.runs[step.key].append(step.number)
        self._seen[step] += 1
        if step.number < 2 and self._seen[step] <= REFUSALS:
            raise DontAckAction

    @property
    def expected(self) -> list[int]:
        refused = [number for number in (0, 1) for _ in range(REFUSALS + 1)]
        return [*refused, *range(2, EACH)]

    def are_done(self) -> bool:
        return all(self._seen[Step(key, EACH - 1)] for key in KEYS)


def runs(url: str, *, awaiting: bool, **options: Any) -> Refusing:
    """Let all steps be handled, two keys in turn."""
    refusing, topic = Refusing(), f"steps-{uuid4().hex[:8]}"

    def handle(step: Step) -> None:
        refusing(step)

    async def handle_awaiting(step: Step) -> None:
        refusing(step)

    dispatcher = Dispatcher(
        url,
        handlers=[handle_awaiting if awaiting else handle],
        subscriptions=[
            Subscription(Step, topic=topic, channel=topic, may_block=True, dont_ack_delay=0.05, lease=5.0, **options)
        ],
        publications=[Publication(Step, topic=topic, key="key")],
    )
    with dispatcher:
        dispatcher.post_many([Step(key, number) for number in range(EACH) for key in KEYS])
        eventually(refusing.are_done)
    return refusing


@EVERYWHERE
@pytest.mark.parametrize("awaiting", [False, True])
def test_in_a_channel_that_keeps_order(url: str, *, awaiting: bool) -> None:
    done = runs(url, awaiting=awaiting, ordered=True)

    assert done.runs == dict.fromkeys(KEYS, done.expected)


@EVERYWHERE
def test_within_a_key_where_many_are_in_flight(url: str) -> None:
    done = runs(url, awaiting=True, in_flight=4)

    assert done.runs == dict.fromkeys(KEYS, done.expected)
