"""A consumer of a queue, without a channel above it: order, counts, delays, leases, and long polls that end."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from brokers.sqs import Sqs, depth
from pump import Subscription
from pump.clock import SystemClock
from pump.message import Header, Message
from pump.transports.sqs import Account, SqsFifoTransport, SqsTransport
from support.waiting import eventually
from support.works import Job, Works


class Bench:
    """A consumer of a queue of its own, beside the broker's own view of it."""

    def __init__(self, server: Sqs, name: str, *, fifo: bool = False, **options: Any) -> None:
        kind = SqsFifoTransport if fifo else SqsTransport
        self.client = server.client()
        self.name = name
        self.transport = kind(Account(region="eu-central-1", endpoint=server.endpoint), **{"poll": 0, **options})
        self.rules = Subscription(Job, topic=name, channel=name, dead_letter=None)
        self.consumer = self.transport.consumer(self.rules)

    def post(self, *bodies: str, delay: float = 0.0) -> None:
        messages = [Message(Header(body, self.name, key="k"), body.encode()) for body in bodies]
        self.transport.producer().send(messages, delay)

    def receive(self, count: int) -> Sequence[Message]:
        found: list[Message] = []

        def have_come() -> bool:
            found.extend(self.consumer.receive(10, 0.5))
            return len(found) >= count

        eventually(have_come)
        return found


@pytest.fixture
def name(works: Works) -> str:
    return works.channel


def test_the_order_of_a_group_is_kept_over_nacks(sqs_server: Sqs, name: str) -> None:
    bench = Bench(sqs_server, name, fifo=True)
    bench.post("1", "2", "3")
    for _ in range(3):
        first, *rest = bench.receive(3)
        bench.consumer.hand_back(rest)
        bench.consumer.nack(first)

    again = bench.receive(3)

    assert [message.id for message in again] == ["1", "2", "3"]
    assert [message.unexplained for message in again] == [0, 0, 0]
    bench.consumer.close()


def test_what_is_handed_back_has_the_count_it_had(sqs_server: Sqs, name: str) -> None:
    bench = Bench(sqs_server, name)
    bench.post("1", "2")
    before = bench.receive(2)
    bench.consumer.hand_back(before)
    for _ in range(2):
        bench.consumer.hand_back(bench.receive(2))
    (held, _) = after = bench.receive(2)

    assert {each.identity for each in after} == {each.identity for each in before}
    assert [(each.deliveries, each.unexplained, each.attempts) for each in after] == [(1, 0, 0), (1, 0, 0)]
    held.attempts = 2  # it was run while it was held
    bench.consumer.hand_back([held])
    (again,) = bench.receive(1)
    assert (again.attempts, again.unexplained, again.identity) == (2, 0, held.identity)
    bench.consumer.close()


@pytest.mark.parametrize("posted", [True, False])
def test_what_is_due_after_the_longest_delay_comes_when_it_is_due_and_uncounted(
    sqs_server: Sqs, name: str, monkeypatch: pytest.MonkeyPatch, *, posted: bool
) -> None:
    monkeypatch.setattr("pump.transports.sqs.producer.LONGEST_DELAY_SECONDS", 1)
    monkeypatch.setattr("pump.transports.sqs.consumer.LONGEST_DELAY_SECONDS", 1)
    monkeypatch.setattr("pump.transports.sqs.consumer.LONGEST_HIDDEN_SECONDS", 2)
    clock = SystemClock()
    bench = Bench(sqs_server, name)
    bench.consumer._longest_hidden = 2  # type: ignore[misc]
    if posted:
        bench.post("1", delay=5.0)
    else:
        bench.post("1")
        (message,) = bench.receive(1)
        bench.consumer.requeue(message, 5.0, 2)
    began = clock.monotonic()

    (late,) = bench.receive(1)

    assert clock.monotonic() - began >= 4.9
    assert (late.id, late.deliveries, late.attempts) == ("1", 1, 0 if posted else 2)
    bench.consumer.close()


def test_a_thousand_years_are_no_mistake(sqs_server: Sqs, name: str) -> None:
    bench = Bench(sqs_server, name)
    bench.post("1", delay=1e12)
    bench.post("2")
    (message,) = bench.receive(1)

    bench.consumer.requeue(message, 1e12, 1)

    assert depth(bench.client, name) == 2
    assert not bench.consumer.receive(10, 0.5)
    bench.consumer.close()


def test_a_long_poll_ends_with_its_consumer_and_what_it_brings_goes_back(sqs_server: Sqs, name: str) -> None:
    bench = Bench(sqs_server, name, poll=20)
    assert not bench.consumer.receive(10, 0.2)
    began = time.monotonic()
    bench.consumer.close()
    assert time.monotonic() - began <= 10.0  # it would have lasted for twenty

    bench.post("1")  # the poll that is under way takes it, and gives it back

    second = Bench(sqs_server, name)
    (message,) = second.receive(1)
    assert message.id == "1"
    second.consumer.close()


def test_many_leases_are_renewed_together(sqs_server: Sqs, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(sqs_server, name, lease=30)
    bench.post(*map(str, range(30)))
    messages = bench.receive(30)
    requests = 0
    ask = bench.consumer._set_visibility

    def counted(*arguments: Any) -> Any:
        nonlocal requests
        requests += 1
        return ask(*arguments)

    monkeypatch.setattr(bench.consumer, "_set_visibility", counted)
    later = bench.consumer._clock.monotonic() + 10
    monkeypatch.setattr(bench.transport.clock, "monotonic", lambda: later)
    for message in messages:
        bench.consumer.extend(message)

    assert requests == 3
    assert {message.lease_expires for message in messages} == {later + 30}
    monkeypatch.undo()
    bench.consumer.close()


def test_a_receipt_outlives_the_consumer_that_received_it(sqs_server: Sqs, name: str) -> None:
    bench = Bench(sqs_server, name)
    bench.post("1")
    (message,) = bench.receive(1)
    bench.consumer.close()
    second = bench.transport.consumer(replace(bench.rules))

    second.acknowledge(message)
    second.close()

    eventually(lambda: depth(bench.client, name) == 0)
