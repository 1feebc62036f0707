"""What a dispatcher's listeners make of its events, read back from the libraries themselves."""

from dataclasses import dataclass
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from prometheus_client import CollectorRegistry, generate_latest

from pump import Command, Dispatcher, Publication, RequestHandler, Subscription
from pump.errors import DontAckAction, RejectMessageAction
from pump.observers.opentelemetry import OpenTelemetryListener
from pump.observers.prometheus import PrometheusListener
from support.waiting import eventually

TRACE = "0af7651916cd43dd8448eb211c80319c"


@dataclass(frozen=True)
class Order(Command):
    """Something to do."""


class Refuses(RequestHandler[Order]):
    """Refuses twice, then gives up."""

    def __init__(self) -> None:
        self.runs = 0

    def handle(self, _: Order, /) -> None:
        self.runs += 1
        if self.runs < 3:
            raise DontAckAction from ValueError("the till is closed")
        raise RejectMessageAction("enough")


class AwaitingRefuses(Refuses):
    async def handle(self, order: Order, /) -> None:  # type: ignore[override]
        super().handle(order)


@pytest.fixture(params=[Refuses, AwaitingRefuses])
def handler(request: pytest.FixtureRequest) -> Any:
    return request.param()


def run(handler: Refuses, *listeners: Any) -> None:
    rules = Subscription(Order, channel="orders", topic="orders", may_block=True, dont_ack_delay=0.01)
    dispatcher = Dispatcher(
        "memory://",
        handlers=[handler],
        subscriptions=[rules],
        publications=[Publication(Order, topic="orders")],
        listeners=listeners,
    )
    with dispatcher:
        dispatcher.post(Order(), headers={"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"})
        eventually(lambda: handler.runs == 3)


@pytest.mark.requirement("B-37")
def test_each_nack_is_counted_and_is_a_span_in_error(handler: Refuses) -> None:
    registry, spans = CollectorRegistry(), InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))

    run(handler, PrometheusListener(registry), OpenTelemetryListener(provider))

    assert 'pump_nack_total{channel="orders"} 2.0' in generate_latest(registry).decode()
    first, second = spans.get_finished_spans()
    for span in (first, second):
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "Not acknowledging message")
        assert facts(span) == ("settle orders", "orders", "nack", "ValueError")
        assert f"{span.get_span_context().trace_id:032x}" == TRACE  # type: ignore[union-attr]


def facts(span: ReadableSpan) -> tuple[object, ...]:
    found = span.attributes or {}
    names = ("messaging.destination.name", "messaging.operation.name", "error.type")
    return (span.name, *(found[name] for name in names))


def test_what_becomes_of_messages_is_counted_by_verdict(handler: Refuses) -> None:
    registry = CollectorRegistry()

    run(handler, PrometheusListener(registry))

    assert registry.get_sample_value("pump_not_acknowledged_total", {"channel": "orders", "verdict": "reject"}) == 1.0
    assert registry.get_sample_value("pump_settle_failed_total", {"channel": "orders"}) is None


def test_events_that_others_tell_are_no_errors() -> None:
    PrometheusListener(CollectorRegistry())("switch", {"switch": "orders"})
    OpenTelemetryListener(TracerProvider())("switch", {"switch": "orders"})
