"""The events about redeliveries and used-up attempts, for a router's metrics and its log."""

import logging
from collections.abc import Mapping
from typing import Any

import pytest

from pump.dead_letter import Rejection
from pump.errors import DeferMessageAction, DontAckAction, HandlerTimeout, MessageRefused, PublishError, TransportError
from pump.message import Header, Message
from pump.settling import Reject, Requeue
from pump.telemetry import Telemetry
from pump.transports.nats import NatsTransport
from pump.transports.nats.events import SOURCES, NatsEvents, reason_for, source_of
from support.nats_message_setup import MessageSetup
from support.nats_wire import Seen, Wire, explicit, pumping, subscribed
from support.pumps import Kind, Order
from support.waiting import eventually

REDELIVERED = "router_jetstream_redelivery_total"
EXHAUSTED = "router_jetstream_maxdeliver_exhausted_total"


class Listener:
    """Keeps the events that it receives."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, event: str, fields: Mapping[str, object]) -> None:
        self.told.append((event, dict(fields)))

    def of(self, event: str) -> list[dict[str, Any]]:
        return [fields for name, fields in self.told if name == event]


@pytest.mark.requirement("R-09", "R-10", "R-37", "R-40")
def test_an_exhausted_message_is_counted_once_and_each_nak_before(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str
) -> None:
    listener = Listener()
    seen = Seen(lambda _: 1 / 0)
    with pumping(transport, kind, seen, subscribed(kind, topic), listeners=[listener]) as dispatcher:
        wire.orders(topic, 1, headers={"assignment_id": "a-1", "x-request-id": "r-1"})
        eventually(lambda: wire.settled(topic, topic) and listener.of(EXHAUSTED))
        ledger = dispatcher._groups[topic]._ledger
        eventually(lambda: len(ledger) == 0)

    ids = {"assignment_id": "a-1", "request_id": "r-1"}
    assert listener.of(EXHAUSTED) == [
        {
            "reason": "maxdeliver_exhausted",
            "source": "handler",
            "delivery_count": 3,
            "max_deliver": 3,
            "exemplar": ids,
        }
    ]
    assert listener.of(REDELIVERED) == [{"reason": "handler_error", "source": "handler", "exemplar": ids}] * 2


@pytest.mark.requirement("R-09", "R-18", "R-37")
def test_a_refused_tenant_is_counted_by_its_reason(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str
) -> None:
    listener = Listener()
    with pumping(transport, kind, Seen(), subscribed(kind, topic, tenants={"acme"}), listeners=[listener]):
        wire.orders(topic, 1, headers={"tenant_id": "other"})
        eventually(lambda: listener.of(EXHAUSTED))

    assert [each["source"] for each in listener.of(REDELIVERED)] == ["tenant_validation"] * 2
    assert [each["reason"] for each in listener.of(EXHAUSTED)] == ["tenant_validation_failed"]
    assert [each["source"] for each in listener.of(EXHAUSTED)] == ["tenant_validation"]


@pytest.mark.requirement("R-07", "R-38")
def test_each_redelivery_that_is_asked_for_is_logged_with_what_it_is_about(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    seen = Seen(lambda message: message.ack() if message.metadata.redelivery_count > 1 else message.nak())
    with pumping(transport, kind, seen, subscribed(kind, topic), takes=explicit(kind)):
        wire.orders(topic, 1, headers={"assignment_id": "a-1", "request_id": "r-1", "Nats-Msg-Id": "m-1"})
        eventually(lambda: wire.settled(topic, topic) and len(seen) == 3)

    records = [each for each in caplog.records if each.getMessage().startswith("Message redelivery requested")]
    assert [each.levelno for each in records] == [logging.INFO] * 2
    fields = ("assignment_id", "request_id", "reason", "source", "delivery_count", "msg_id")
    assert [tuple(getattr(each, field) for field in fields) for each in records] == [
        ("a-1", "r-1", "requested", "handler", 1, "m-1"),
        ("a-1", "r-1", "requested", "handler", 2, "m-1"),
    ]


@pytest.mark.requirement("R-37")
def test_what_is_refused_for_now_is_back_pressure(wire: Wire, transport: NatsTransport, kind: Kind, topic: str) -> None:
    listener = Listener()
    outcomes: list[Exception] = [DontAckAction(), DeferMessageAction(0.05)]

    def body(_: Order) -> None:
        if outcomes:
            raise outcomes.pop(0)

    rules = subscribed(kind, topic, dont_ack_delay=0.05)
    with pumping(transport, kind, Seen(body), rules, listeners=[listener]):
        wire.orders(topic, 1)
        eventually(lambda: wire.settled(topic, topic) and not outcomes)

    assert [each["source"] for each in listener.of(REDELIVERED)] == ["backpressure", "backoff"]


@pytest.mark.requirement("R-37")
@pytest.mark.parametrize(
    ("reason", "source"),
    [
        ("tenant_validation_failed", "tenant_validation"),
        ("backoff", "backoff"),
        ("backpressure", "backpressure"),
        ("ack_error", "ack_failure"),
        ("nak_error", "nak_failure"),
        ("processing_timeout", "processing_timeout"),
        ("publish_error", "publish_failure"),
        ("nats_disconnect", "nats_disconnect"),
        ("maxdeliver_exhausted", "maxdeliver_exhausted"),
        ("whatever", "handler"),
    ],
)
def test_every_reason_has_its_source(reason: str, source: str) -> None:
    assert source_of(reason) == source


@pytest.mark.requirement("R-37")
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (None, "requested"),
        (DeferMessageAction(1), "backoff"),
        (DontAckAction(), "backpressure"),
        (HandlerTimeout("too long"), "processing_timeout"),
        (TimeoutError(), "processing_timeout"),
        (PublishError("no"), "publish_error"),
        (TransportError("no"), "nats_disconnect"),
        (MessageRefused("tenant_validation_failed"), "tenant_validation_failed"),
        (MessageRefused("odd headers"), "undecodable"),
        (ValueError("any text that anybody makes up"), "handler_error"),
    ],
)
def test_every_error_has_a_reason_out_of_a_few(error: BaseException | None, reason: str) -> None:
    assert reason_for(error) == reason
    assert source_of(reason) in {*SOURCES.values(), "handler"}


@pytest.mark.requirement("R-28")
def test_ten_thousand_ids_are_no_ten_thousand_labels() -> None:
    setup = MessageSetup("blocking")
    listener = Listener()
    events = NatsEvents(Telemetry(listener))
    verdicts = [Requeue(0, 1, ValueError(f"{number}")) for number in range(3)]

    for number in range(10_000):
        headers = {"assignment_id": f"a-{number}", "request_id": f"r-{number}"}
        message = Message(Header(f"m-{number}", headers=headers), b"", receipt=setup.delivery.receipt)
        events("not_acknowledged", {"message": message, "verdict": verdicts[number % 3]})
        rejection = Rejection("delivery error", "attempts exhausted", error=ValueError(f"{number}"))
        events("not_acknowledged", {"message": message, "verdict": Reject(rejection)})

    labels = [{**fields, "exemplar": None, "event": event} for event, fields in listener.told]
    series = {tuple(sorted(each.items(), key=str)) for each in labels}
    assert len(listener.told) == 20_000
    assert len(series) == 2
    setup.close()
