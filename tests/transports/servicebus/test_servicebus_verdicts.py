"""What each verdict does in a queue, as the broker and the vendor's own client see it."""

import json
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusReceiver
from azure.servicebus.amqp import AmqpAnnotatedMessage

from brokers.servicebus import ServiceBus
from pump.dead_letter import Rejection
from pump.errors import LeaseLost, TransportError
from pump.transports.servicebus import client_internals
from pump.transports.servicebus import link as links
from pump.transports.servicebus.messages import LockReceipt, raw_of
from support.servicebus_bench import QueueBench, receive
from support.waiting import eventually

REJECTED = Rejection("delivery error", "OutOfTea", "no leaves", ValueError("no tea"), "PlaceOrderHandler", 3, 1.0, 2.0)


def test_a_copy_is_not_taken_for_a_duplicate(servicebus: ServiceBus, hurried: None) -> None:
    with ExitStack() as stack:
        bench = QueueBench(servicebus, stack, duplicate_detection=True)
        consumer = bench.consumer()
        (sent,) = bench.send("1")
        bench.send_foreign(ServiceBusMessage(b"2", message_id=sent.id))  # this one is
        (first,) = receive(consumer)

        consumer.requeue(first, 0.0, 1)
        (second,) = receive(consumer)
        consumer.requeue(second, 0.0, 2)
        (third,) = receive(consumer)

        assert [each.id for each in (first, second, third)] == [sent.id] * 3
        assert (first.identity, second.identity) == (second.identity, third.identity)
        assert (second.attempts, third.attempts, third.body) == (1, 2, b"1")
        consumer.acknowledge(third)
        bench.holds(0)


def test_a_dead_letter_stays_where_azure_keeps_those_of_the_queue(bench: QueueBench) -> None:
    consumer = bench.consumer()
    bench.send("1", headers={"tenant": "t"})
    (message,) = receive(consumer)
    message.origin = bench.name

    consumer.reject(message, REJECTED)

    (dead,) = bench.dead()
    assert dead.dead_letter_reason == "OutOfTea"
    assert json.loads(dead.dead_letter_error_description or "")["pump-handler"] == "PlaceOrderHandler"
    reader = bench.again(channel=f"{bench.name}/$deadletterqueue", dead_letter=None)
    (read,) = receive(reader)
    assert read.header.headers["pump-error"] == "ValueError: no tea"
    assert read.header.headers["tenant"] == "t"
    assert (read.deliveries, read.unexplained, read.attempts) == (1, 0, 0)
    reader.acknowledge(read)
    bench.holds(0, f"{bench.name}/$deadletterqueue")


def test_however_much_is_said_of_a_dead_letter_azure_takes_it(bench: QueueBench) -> None:
    consumer = bench.consumer()
    bench.send("1")
    (message,) = receive(consumer)
    text = "ü" * 9_000

    consumer.reject(message, replace(REJECTED, reason=text, description=text, error=ValueError(text)))

    (dead,) = bench.dead()
    assert len(dead.dead_letter_reason or "") <= 4096
    assert len(dead.dead_letter_error_description or "") <= 4096


def test_what_goes_back_unseen_charges_no_delivery_and_keeps_its_place(bench: QueueBench) -> None:
    consumer = bench.consumer()
    bench.send("1", "2", "3")
    messages = receive(consumer, 3, 3)

    for _ in range(3):
        consumer.hand_back(messages)
        messages = receive(consumer, 3, 3)

    assert [(each.body, each.deliveries) for each in messages] == [(b"1", 1), (b"2", 1), (b"3", 1)]


@pytest.mark.requirement("B-28")
def test_a_nacked_message_is_abandoned(bench: QueueBench, monkeypatch: pytest.MonkeyPatch) -> None:
    abandoned, abandon = list[Any](), ServiceBusReceiver.abandon_message

    async def noted(self: ServiceBusReceiver, message: Any) -> None:
        abandoned.append(message)
        await abandon(self, message)

    monkeypatch.setattr(ServiceBusReceiver, "abandon_message", noted)
    consumer = bench.consumer()
    bench.send("1", "2")
    first, second = receive(consumer, 2, 2)

    consumer.nack(first)

    assert abandoned == [raw_of(first)]
    (again,) = receive(bench.again())
    assert (again.id, again.body, again.deliveries) == (first.id, b"1", 2)
    assert bench.dead() == []
    consumer.acknowledge(second)


def test_where_the_client_cannot_release_a_message_it_is_abandoned(
    bench: QueueBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cannot(*_: object) -> bool:
        return False

    monkeypatch.setattr(links, "release", cannot)
    consumer = bench.consumer()
    bench.send("1")

    consumer.hand_back(receive(consumer))

    (again,) = receive(consumer)
    assert again.deliveries == 2


def test_a_client_without_what_is_looked_for_misses_nothing() -> None:
    client_internals.hurry(object())  # type: ignore[arg-type]
    assert client_internals.sendable_number(5) == 5


def test_what_strangers_wrote_stays_in_a_copy(bench: QueueBench) -> None:
    consumer = bench.consumer(dead_letter=f"{bench.name}-dead")
    long, number = 2**40, uuid4()
    plain: dict[Any, Any] = {"id": number, "yes": True, "part": 0.5, "text": "ü", "low": -3}
    typed: dict[Any, Any] = {"long": {"TYPE": "LONG", "VALUE": long}, "raw": {"TYPE": "BINARY", "VALUE": b"\xff\xfe"}}
    odd = AmqpAnnotatedMessage(value_body="hello", application_properties={"n": 1})
    with bench.client() as client, client.get_queue_sender(bench.name) as sender:
        foreign = ServiceBusMessage(b"1", application_properties={**plain, **typed})
        sender.send_messages(foreign)
        sender.send_messages(odd)
    first, second = receive(consumer, 2, 2)

    consumer.requeue(first, 0.0, 1)
    consumer.requeue(second, 0.0, 1)

    first, second = receive(consumer, 2, 2)
    assert (first.body, second.body) == (b"1", b"hello")
    assert first.header.headers["text"] == "ü"
    assert first.raw_headers == {"long": long, "id": number, "yes": True, "part": 0.5, "raw": b"\xff\xfe", "low": -3}
    consumer.reject(first, REJECTED)
    consumer.acknowledge(second)
    bench.holds(1, f"{bench.name}-dead")


@pytest.mark.parametrize("properties", [{"pump-carried-attempts": "-1"}, {"pump-time": "nan"}, {"pump-kind": "order"}])
def test_what_cannot_be_read_has_a_fault_and_can_be_given_up(bench: QueueBench, properties: dict[Any, Any]) -> None:
    consumer = bench.consumer()
    bench.send_foreign(ServiceBusMessage(b"1", application_properties=properties))
    (message,) = receive(consumer)

    assert message.fault

    consumer.reject(message, REJECTED)
    assert len(bench.dead()) == 1


@pytest.mark.parametrize("delay", [float("inf"), 1e12])
def test_a_delay_that_is_longer_than_any_is_the_longest_there_is(bench: QueueBench, delay: float) -> None:
    consumer = bench.consumer()
    bench.send("1")
    (message,) = receive(consumer)

    consumer.requeue(message, delay, 1)

    assert bench.count()["all"] == 1
    assert consumer.receive(1, 0.2) == []


def test_a_dead_letter_outlives_the_time_that_its_sender_gave_the_message(bench: QueueBench) -> None:
    dead, lifetime = f"{bench.name}-dead", timedelta(hours=1)
    consumer = bench.consumer(dead_letter=dead)
    bench.send_foreign(ServiceBusMessage(b"1", time_to_live=lifetime))
    (message,) = receive(consumer)

    consumer.requeue(message, 0.0, 1)
    (again,) = receive(consumer)
    consumer.reject(again, REJECTED)

    assert isinstance(again.receipt, LockReceipt)
    assert again.receipt.raw.time_to_live == lifetime
    with bench.client() as client, client.get_queue_receiver(dead) as receiver:
        (letter,) = receiver.peek_messages(1)
    assert letter.time_to_live is None


@pytest.mark.parametrize("description", ["[" * 4000, "{"])
def test_a_message_that_says_no_sense_as_a_dead_letter_is_received(bench: QueueBench, description: str) -> None:
    consumer = bench.consumer()
    said: dict[Any, Any] = {"DeadLetterReason": "why", "DeadLetterErrorDescription": description}
    bench.send_foreign(ServiceBusMessage(b"1", application_properties=said))

    (message,) = receive(consumer)

    assert message.body == b"1"
    assert message.header.headers["pump-reason"]


def test_deliveries_are_counted_whatever_a_message_says_of_itself(bench: QueueBench) -> None:
    consumer = bench.consumer()
    said: dict[Any, Any] = {"DeadLetterReason": "none"}
    bench.send_foreign(ServiceBusMessage(b"1", application_properties=said))

    for deliveries in (1, 2, 3):
        (message,) = receive(consumer)
        assert message.deliveries == deliveries
        consumer.nack(message)


@pytest.mark.parametrize("verdict", ["requeue", "reject"])
def test_a_verdict_that_is_tried_again_stores_its_copy_once(
    own_servicebus: ServiceBus, verdict: str, hurried: None
) -> None:
    with ExitStack() as stack:
        bench = QueueBench(own_servicebus, stack)
        dead = f"{bench.name}-dead"
        consumer = bench.consumer(dead_letter=dead, lease=60.0)
        bench.send("1")
        (message,) = receive(consumer)

        def decided() -> bool:
            try:
                if verdict == "requeue":
                    consumer.requeue(message, 3600.0, 1)
                else:
                    consumer.reject(message, REJECTED)
            except TransportError:
                return False
            return True

        own_servicebus.command("busy", kind="settle", count=3)
        assert not decided()
        eventually(decided)

        left = {"requeue": (1, 0), "reject": (0, 1)}[verdict]
        assert (bench.count()["all"], bench.count(dead)["all"]) == left


def test_a_delivery_is_settled_once(bench: QueueBench) -> None:
    consumer = bench.consumer()
    bench.send("1")
    (message,) = receive(consumer)
    consumer.acknowledge(message)

    with pytest.raises(LeaseLost):
        consumer.nack(message)
    with pytest.raises(LeaseLost):
        consumer.requeue(message, 0.0, 1)
    with pytest.raises(LeaseLost):
        consumer.reject(message, REJECTED)
    with pytest.raises(LeaseLost):
        consumer.acknowledge(message)

    bench.holds(0)
    assert bench.dead() == []


def test_a_queue_says_itself_how_often_it_delivers(servicebus: ServiceBus, hurried: None) -> None:
    with ExitStack() as stack:
        bench = QueueBench(servicebus, stack, max_delivery_count=7)

        assert bench.consumer().broker_limit == 7
        assert bench.again(channel=f"{bench.name}/$deadletterqueue", dead_letter=None).broker_limit is None


def test_a_purge_removes_what_waits(bench: QueueBench) -> None:
    consumer = bench.consumer()
    bench.send(*map(str, range(150)))

    assert consumer.purge() == 150

    bench.holds(0)
