"""Handlers that take the bare request: how the pump settles their messages."""

import asyncio
import logging
import threading
import time
from typing import Any

import pytest
from nats.aio.client import Client

from brokers.nats import Nats
from pump.mapping.mapper import JsonMapper
from pump.message import Message
from pump.transports.nats import NatsSubscription, NatsTransport
from support.nats_wire import ACK, NAK, TERM, Seen, Wire, explicit, in_each_pump, pumping, stays, subscribed
from support.pumps import PROACTOR, Kind, Order
from support.waiting import eventually, eventually_async


@pytest.mark.requirement("E-19", "R-04")
def test_a_handler_that_returns_is_followed_by_one_ack(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str
) -> None:
    before: list[list[tuple[str, bytes]]] = []

    async def work() -> None:
        await asyncio.sleep(0.2)
        before.append(list(wire.heard))

    def body(_: Order) -> object:
        if kind.awaits:
            return work()
        time.sleep(0.2)
        before.append(list(wire.heard))
        return None

    with pumping(transport, kind, Seen(body), subscribed(kind, topic)):
        wire.orders(topic, 1)
        eventually(lambda: before and wire.settled(topic, topic))

    assert [each for each in before[0] if each[0] == topic] == []
    assert wire.acknowledgements(topic) == [ACK]
    assert wire.consumer(topic, topic).num_redelivered == 0


@pytest.mark.requirement("E-20", "R-05")
def test_a_handler_that_raises_is_followed_by_one_nak_without_a_delay(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str
) -> None:
    def body(_: Order) -> None:
        if len(seen) == 1:
            raise ValueError("once")

    seen = Seen(body)
    slow = {"requeue_backoff": (60, 60), "failure_backoff": (60, 60), "dont_ack_delay": 60, "lease": 60}
    with pumping(transport, kind, seen, subscribed(kind, topic, **slow)):
        wire.orders(topic, 1)
        eventually(lambda: len(seen) == 2 and wire.settled(topic, topic))

    assert wire.acknowledgements(topic) == [NAK, ACK]
    assert wire.consumer(topic, topic).delivered.consumer_seq == 2  # type: ignore[union-attr]


@pytest.mark.requirement("E-21", "P-11")
@in_each_pump
def test_a_handler_that_is_ended_by_the_stop_has_not_failed(
    wire: Wire, transport: NatsTransport, topic: str, kind: Kind
) -> None:
    begun, release = threading.Event(), threading.Event()

    async def forever() -> None:
        begun.set()
        await asyncio.sleep(60)

    def body(_: Order) -> object:
        if kind.awaits:
            return forever()
        begun.set()
        release.wait(1)
        raise KeyboardInterrupt

    with pumping(transport, kind, Seen(body), subscribed(kind, topic, grace=0.2, lease=2)):
        wire.orders(topic, 1)
        assert begun.wait(10)
    again = Seen()
    with pumping(transport, kind, again, subscribed(kind, topic, lease=2)):
        again.wait(1)
        eventually(lambda: wire.settled(topic, topic))

    assert ACK not in wire.acknowledgements(topic)[:-1]
    assert wire.acknowledgements(topic)[-1] == ACK
    assert wire.count(f"{topic}=2Edlq") == 0


class Mute(Client):
    """A client whose acknowledgements fail as often as the test says."""

    failing: dict[bytes, int] = {}  # noqa: RUF012 - a test replaces it

    async def publish(self, subject: str, payload: bytes = b"", *arguments: Any, **options: Any) -> None:
        if subject.startswith("$JS.ACK.") and self.failing.get(payload[:4], 0) > 0:
            self.failing[payload[:4]] -= 1
            raise ConnectionError("no way out")
        await super().publish(subject, payload, *arguments, **options)


def mute(**failing: int) -> type[Client]:
    words = {"ack": ACK, "nak": NAK, "term": TERM[:4]}
    return type("Muted", (Mute,), {"failing": {words[name]: times for name, times in failing.items()}})


@pytest.mark.requirement("E-22")
@in_each_pump
def test_an_ack_that_fails_for_good_is_no_success(
    nats_server: Nats, wire: Wire, topic: str, caplog: pytest.LogCaptureFixture, kind: Kind
) -> None:
    events: list[tuple[str, Any]] = []
    transport = NatsTransport(nats_server.url, client=mute(ack=1000))
    seen = Seen()
    options = {"listeners": [lambda event, fields: events.append((event, fields.get("error")))]}

    with pumping(transport, kind, seen, subscribed(kind, topic, lease=1, renew_lease=False), **options):
        wire.orders(topic, 1)
        seen.wait(2)
        eventually(lambda: "settle_failed" in [event for event, _ in events])

    assert wire.acknowledgements(topic) == []
    assert any(topic in text and "failed" in text for text in caplog.messages)


@pytest.mark.requirement("E-23", "B-23")
@in_each_pump
def test_a_nak_that_fails_is_told_together_with_what_the_handler_raised(
    nats_server: Nats, wire: Wire, topic: str, caplog: pytest.LogCaptureFixture, kind: Kind
) -> None:
    transport = NatsTransport(nats_server.url, client=mute(nak=1000))
    seen = Seen(lambda _: 1 / 0)

    with pumping(transport, kind, seen, subscribed(kind, topic, lease=1, renew_lease=False)):
        wire.orders(topic, 1)
        eventually(lambda: any(topic in text and "Settling message failed" in text for text in caplog.messages))

    records = [each for each in caplog.records if each.levelno == logging.ERROR and topic in each.getMessage()]
    kinds = {type(each.exc_info[1]).__name__ for each in records if each.exc_info}
    assert "ZeroDivisionError" in kinds
    assert len(kinds) >= 2


@pytest.mark.requirement("E-24")
@pytest.mark.parametrize("error", [None, ValueError("no")])
@in_each_pump
def test_without_auto_ack_nothing_is_said_and_the_message_comes_again(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str, error: Exception | None
) -> None:
    times: list[float] = []

    def body(_: Order) -> None:
        times.append(time.monotonic())
        if error is not None:
            raise error

    with pumping(transport, kind, Seen(body), subscribed(kind, topic, auto_ack=False, lease=1)):
        wire.orders(topic, 1)
        eventually(lambda: len(times) >= 2)

    assert set(wire.acknowledgements(topic)) <= {NAK}  # the hand-back of a redelivery that nobody has begun
    assert 0.8 <= times[1] - times[0] < 3


@pytest.mark.requirement("E-29")
def test_each_delivery_is_one_invocation(wire: Wire, transport: NatsTransport, kind: Kind, topic: str) -> None:
    failures = {3: 2, 5: 1}

    def body(order: Order) -> None:
        if failures.get(order.number, 0):
            failures[order.number] -= 1
            raise ValueError(order)

    seen = Seen(body)
    with pumping(transport, kind, seen, subscribed(kind, topic)):
        wire.orders(topic, *range(10))
        seen.wait(13)
        eventually(lambda: wire.settled(topic, topic))

    assert len(seen) == 13
    assert wire.consumer(topic, topic).delivered.consumer_seq == 13  # type: ignore[union-attr]


@pytest.mark.requirement("E-03", "E-45")
def test_a_body_that_cannot_be_decoded_becomes_a_dead_letter_and_the_pump_goes_on(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()
    with pumping(transport, kind, seen, subscribed(kind, topic)):
        wire.post(topic, b"{not json", {"number": "seven"})
        wire.orders(topic, 3)
        seen.wait(1)
        eventually(lambda: wire.settled(topic, topic))

    assert seen.requests == [Order(3)]
    assert sorted(wire.acknowledgements(topic)) == [ACK, TERM, TERM]
    grave = f"{topic}=2Edlq"
    assert wire.count(grave) == 2
    letter = wire.stored(grave)
    assert letter.data == b"{not json"
    assert letter.headers is not None
    assert letter.headers["pump-reason"] == "cannot be mapped"
    told = [each for each in caplog.records if "cannot be mapped" in each.getMessage()]
    assert topic in told[0].getMessage()
    assert told[0].exc_info is not None
    assert "not JSON" in str(told[0].exc_info[1])


@pytest.mark.requirement("E-45")
def test_poison_may_be_asked_for_again_within_the_budget(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str
) -> None:
    seen = Seen()
    with pumping(transport, kind, seen, subscribed(kind, topic, on_undecodable="nak", max_attempts=4)):
        wire.post(topic, b"{not json")
        eventually(lambda: wire.count(f"{topic}=2Edlq") == 1)
        eventually(lambda: wire.settled(topic, topic))

    assert wire.acknowledgements(topic) == [NAK, NAK, NAK, TERM]
    assert len(seen) == 0


@pytest.mark.requirement("E-45")
def test_poison_may_be_ended_without_a_dead_letter_where_that_is_written_out(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pumping(transport, kind, Seen(), subscribed(kind, topic, on_undecodable="term")):
        wire.post(topic, b"{not json")
        eventually(lambda: wire.acknowledgements(topic) == [TERM])

    assert wire.count(f"{topic}=2Edlq") == 0
    assert any(each.levelno == logging.ERROR and f"{topic}:1" in each.getMessage() for each in caplog.records)


@pytest.mark.requirement("E-02")
def test_a_body_is_decoded_once_before_the_handler(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str
) -> None:
    decoded: list[Message] = []

    class Spy(JsonMapper[Order]):
        def decode(self, message: Message) -> Order:
            decoded.append(message)
            return super().decode(message)

    counts: list[int] = []

    def body(message: Any) -> object:
        assert message.payload is message.payload
        counts.append(len(decoded))
        return message.ack()

    seen = Seen(body)
    options = {"takes": explicit(kind), "mappers": {Order: Spy(Order)}}
    with pumping(transport, kind, seen, subscribed(kind, topic), **options):
        wire.orders(topic, 1)
        eventually(lambda: wire.acknowledgements(topic) == [ACK])

    assert counts == [1]
    assert len(decoded) == 1


@pytest.mark.requirement("E-17")
def test_a_durable_that_wants_no_acknowledgements_works_without_redelivery(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    wire.stream(topic)
    wire.durable(topic, "free", ack_policy="none")
    seen = Seen(lambda order: 1 / 0 if order.number == 1 else None)
    with pumping(transport, kind, seen, NatsSubscription(Order, stream=topic, consumer="free")):
        wire.orders(topic, 1, 2)
        seen.wait(2)
        stays(lambda: len(seen) == 2, 0.5)

    assert [each.number for each in seen.requests] == [1, 2]
    assert "acknowledgement policy 'none'" in caplog.text


@pytest.mark.requirement("E-41")
def test_no_more_is_in_hand_than_was_asked_for(wire: Wire, transport: NatsTransport, kind: Kind, topic: str) -> None:
    wire.stream(topic)
    wire.orders(topic, *range(60))
    out: list[int] = []

    def few() -> bool:
        out.append(wire.consumer(topic, topic).num_ack_pending or 0)
        return out[-1] <= 10  # once the server has counted the acknowledgements that are on their way

    seen = Seen(lambda _: eventually_async(few) if kind.awaits else eventually(few))
    with pumping(transport, kind, seen, subscribed(kind, topic)):
        seen.wait(60)
        eventually(lambda: wire.settled(topic, topic))

    assert len(seen) == 60
    assert out[0] == 1


@pytest.mark.requirement("E-41")
def test_so_many_are_handled_at_a_time_as_the_subscription_says(
    wire: Wire, transport: NatsTransport, topic: str
) -> None:
    wire.stream(topic)
    wire.orders(topic, *range(40))
    running: list[int] = [0, 0]

    async def work() -> None:
        running[0] += 1
        running[1] = max(running)
        await asyncio.sleep(0.05)
        running[0] -= 1

    seen = Seen(lambda _: work())
    with pumping(transport, PROACTOR, seen, subscribed(PROACTOR, topic, in_flight=4)):
        seen.wait(40)
        eventually(lambda: wire.settled(topic, topic))

    assert running[1] == 4
