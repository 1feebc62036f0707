"""Messages in hand of one reader: their leases are renewed for as long as they need it, and no longer."""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import pytest

from pump.clock import ManualClock
from pump.errors import TransportError
from pump.message import Header, Message
from pump.spark.source.batch import HeldBatch

if TYPE_CHECKING:
    from pump.transport_kit.protocol import Consumer

LEASE = 10.0


class Lender:
    """A consumer that lends three messages, and does something whenever it is asked to renew a lease."""

    generation = 1

    def __init__(self, clock: ManualClock, act: Callable[[], object] = lambda: None) -> None:
        self._clock, self._act = clock, act
        self.done: list[str] = []

    def receive(self, limit: int, timeout: float) -> Sequence[Message]:
        expires = self._clock.monotonic() + LEASE
        return [Message(Header(name, "orders"), b"{}", generation=1, lease_expires=expires) for name in "abc"[:limit]]

    def extend(self, message: Message) -> None:
        self.done.append(f"renew {message.id}")
        self._act()
        message.lease_expires = self._clock.monotonic() + LEASE
        self.done.append(f"{message.id} is renewed")

    def acknowledge(self, message: Message) -> None:
        self.done.append(f"acknowledge {message.id}")

    def hand_back(self, messages: Sequence[Message]) -> None:
        self.done.append(f"hand back {''.join(each.id for each in messages)}")


def held(lender: Lender, clock: ManualClock) -> HeldBatch:
    batch = HeldBatch(cast("Consumer", lender), clock)
    batch.gather(most=3, most_bytes=1000, window=1.0)
    return batch


def test_leases_are_renewed_in_time() -> None:
    clock = ManualClock()
    lender = Lender(clock)

    with held(lender, clock) as batch:
        for _ in range(3):
            clock.advance(LEASE / 2 + 1)
        still = batch.messages()

    assert [message.id for message in still] == ["a", "b", "c"]


@pytest.mark.parametrize("settle", ["acknowledge", "hand_back"])
def test_what_is_settled_is_not_renewed(settle: str) -> None:
    clock = ManualClock()
    settled: list[Any] = []

    def settle_once() -> None:
        if not settled:
            settled.append(batch.messages())
            batch.acknowledge(settled[0]) if settle == "acknowledge" else batch.hand_back()

    lender = Lender(clock, settle_once)
    with held(lender, clock) as batch:
        clock.advance(LEASE)

    assert [each for each in lender.done if each.startswith("renew")] == ["renew a"]


def test_nothing_is_renewed_once_the_batch_is_over() -> None:
    clock = ManualClock()
    begun, ending = threading.Event(), threading.Event()

    def wait_for_the_end() -> None:
        begun.set()
        assert ending.wait(10.0)

    lender = Lender(clock, wait_for_the_end)
    batch = held(lender, clock)
    renewing = threading.Thread(target=lambda: clock.advance(LEASE))
    renewing.start()
    assert begun.wait(10.0)

    ending.set()
    batch.__exit__()
    lender.done.append("closed")
    renewing.join(10.0)

    assert lender.done[-1] == "closed"
    assert lender.done[:2] == ["renew a", "a is renewed"]


def test_a_broker_that_does_not_answer_is_asked_once_in_a_round(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()

    def fail() -> None:
        raise TransportError("nobody answers")

    lender = Lender(clock, fail)
    with held(lender, clock), caplog.at_level(logging.WARNING, "pump"):
        clock.advance(LEASE / 2 + 1.1)

    rounds = lender.done.count("renew a")
    assert rounds >= 1
    assert lender.done == ["renew a"] * rounds
    assert len([each for each in caplog.records if "not renewed" in each.getMessage()]) == rounds
