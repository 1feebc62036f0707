"""Posting to NATS: confirmed or reported, tried again where that may help, and stored once."""

import asyncio
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import nats.errors
import nats.js.errors
import pytest
from nats.aio.client import Client

from brokers.fixtures import ProxyTo
from brokers.nats import Nats
from pump.clock import ManualClock
from pump.context import current_context
from pump.errors import ConfigurationError, PublishError, PublishExhausted, SetupError, TransportError
from pump.message import Header, Message
from pump.program.dispatcher import Dispatcher
from pump.subscription import Publication
from pump.telemetry import Telemetry
from pump.transport_kit.bridge import blocking
from pump.transports.nats import NatsProducer, NatsTransport
from pump.transports.nats import producer as nats_producer
from pump.transports.nats.client_internals import header_block, publish_frame
from pump.transports.nats.connection import ServerAddress
from pump.transports.nats.headers import MSG_ID
from pump.transports.nats.producer import OutgoingMessage, PublishDenied, PublishFailure, PublishRetries
from support.nats_wire import ACK, Seen, Wire, pumping, stays, subscribed
from support.pumps import Kind, Order
from support.waiting import eventually

Events = list[tuple[str, dict[str, Any]]]
TIMEOUT = nats.errors.TimeoutError()


class FakeConnection:
    """A connection on which each posting first has the results that the test sets, and then is confirmed."""

    alive = True
    closed = False

    def __init__(self, outcomes: list[BaseException | None]) -> None:
        self.posted: list[OutgoingMessage] = []
        self._outcomes = outcomes

    def outcome(self, outgoing: OutgoingMessage) -> BaseException | None:
        self.posted.append(outgoing)
        return self._outcomes.pop(0) if self._outcomes else None

    async def request(self, _: str, __: object) -> dict[str, Any]:
        return {"streams": []}

    async def close(self) -> None: ...


class FakeProducer(NatsProducer):
    """A producer with a fake connection, and a clock that moves when code waits."""

    def __init__(self, outcomes: Sequence[BaseException | None], **retries: Any) -> None:
        self.clock = ManualClock(automatic=True)
        self.events: Events = []
        telemetry = Telemetry(lambda event, fields: self.events.append((event, dict(fields))))
        super().__init__(
            ServerAddress(),
            "testing",
            capabilities=NatsTransport.capabilities,
            clock=self.clock,
            retries=PublishRetries(**retries),
            telemetry=telemetry,
            chance=lambda: 0.5,
        )
        self.connection = FakeConnection(list(outcomes))
        self.opened = 0

    async def _connected(self) -> Any:
        self.opened += 1
        self._connection = self.connection  # type: ignore[assignment]
        return self.connection

    async def _send_batch(self, connection: Any, batch: Sequence[OutgoingMessage]) -> list[Any]:
        return [connection.outcome(each) for each in batch]

    def send_all(self, *outgoing: OutgoingMessage) -> None:
        asyncio.run(self.publish(outgoing or (order(),)))

    def count(self, event: str) -> int:
        return sum(name == event for name, _ in self.events)


def order(subject: str = "orders") -> OutgoingMessage:
    headers = {MSG_ID: "once", "x-assignment-id": "a-1", "request_id": "r-1"}
    return OutgoingMessage(subject, b"{}", headers, "1")


# -- tries


@pytest.mark.requirement("R-20", "R-21", "R-24", "R-25")
def test_what_times_out_is_posted_again_with_growing_pauses_under_the_same_id() -> None:
    producer = FakeProducer([TIMEOUT, TIMEOUT, None])

    producer.send_all()

    assert [each.headers[MSG_ID] for each in producer.connection.posted] == ["once"] * 3
    assert producer.clock.waits == pytest.approx([0.1 * 1.05, 0.2 * 1.05])
    assert producer.count("router_assignment_retry_total") == 2
    assert producer.count("router_assignment_published_total") == 1
    assert producer.count("router_assignment_publish_failures_total") == 0


@pytest.mark.requirement("R-20", "R-21")
def test_the_defaults_are_three_tries_in_all_and_a_tenth_of_a_second() -> None:
    retries = PublishRetries()

    assert (retries.max_retries, retries.retry_base_ms) == (3, 100)
    assert [retries.delay(1, 0.0), retries.delay(2, 0.0), retries.delay(2, 1.0)] == pytest.approx([0.1, 0.2, 0.22])


@pytest.mark.parametrize(
    "options",
    [{"max_retries": 0}, {"retry_base_ms": -1}, {"publish_timeout": 0}, {"publish_timeout": float("nan")}],
)
def test_a_setting_that_would_post_nothing_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        NatsTransport(**options)


@pytest.mark.requirement("R-21", "R-22", "R-24", "R-26", "R-27", "R-29")
@pytest.mark.parametrize("tries", [1, 3, 5])
def test_after_the_last_try_it_is_given_up_and_the_caller_is_told(tries: int) -> None:
    producer = FakeProducer([nats.errors.ConnectionClosedError()] * 9, max_retries=tries)

    with pytest.raises(PublishExhausted) as exhausted:
        producer.send_all()

    assert len(producer.connection.posted) == tries
    assert (exhausted.value.kind, exhausted.value.tries, exhausted.value.sent) == ("connection_failed", tries, False)
    assert exhausted.value.retriable
    assert producer.count("router_assignment_retry_total") == tries - 1
    assert producer.count("router_assignment_published_total") == 0
    ends = [each for each in producer.events if each[0] != "router_assignment_retry_total"]
    assert ends == [
        (
            "router_assignment_publish_failures_total",
            {"error_kind": "connection_failed", "subject": "orders", "exemplar": IDS},
        ),
        ("router_retry_exhausted_total", {"error_kind": "connection_failed", "retries": tries, "exemplar": IDS}),
    ]


IDS = {"assignment_id": "a-1", "request_id": "r-1"}


@pytest.mark.requirement("R-23")
@pytest.mark.parametrize(
    ("error", "kind", "tries", "sent"),
    [
        (nats.errors.TimeoutError(), "timeout", 3, None),
        (TimeoutError(), "timeout", 3, None),
        (nats.errors.ConnectionClosedError(), "connection_failed", 3, False),
        (nats.errors.OutboundBufferLimitError(), "connection_failed", 3, False),
        (nats.errors.StaleConnectionError(), "connection_failed", 3, None),
        (ConnectionResetError(), "connection_failed", 3, None),
        (TransportError("nobody there"), "connection_failed", 3, False),
        (nats.js.errors.ServiceUnavailableError(), "nats_unavailable", 3, False),
        (nats.js.errors.ServerError(), "nats_unavailable", 3, False),
        (RuntimeError("what is this"), "unknown", 3, None),
        (nats.js.errors.NoStreamResponseError(), "no_stream", 1, False),
        (nats.errors.NoRespondersError(), "no_stream", 1, False),
        (PublishDenied("permissions violation"), "permission_denied", 1, False),
        (SetupError("wrong password"), "permission_denied", 1, False),
        (nats.errors.MaxPayloadError(), "invalid_format", 1, False),
        (nats.errors.BadSubjectError(), "invalid_format", 1, False),
        (nats.errors.BadHeaderError("a b"), "invalid_format", 1, False),
        (nats.js.errors.BadRequestError(), "invalid_format", 1, False),
    ],
)
def test_what_may_help_is_tried_again_and_what_cannot_is_not(
    error: Exception, kind: str, tries: int, *, sent: bool | None
) -> None:
    producer = FakeProducer([error] * 9)

    with pytest.raises(PublishError) as failed:
        producer.send_all()

    assert PublishFailure.of(order(), error).kind == kind
    assert len(producer.connection.posted) == tries
    assert isinstance(failed.value, PublishExhausted) is (tries > 1)
    assert (failed.value.sent, failed.value.retriable) == (sent, tries > 1)
    assert failed.value.__cause__ is error
    assert producer.count("router_retry_exhausted_total") == (tries > 1)
    assert producer.count("router_assignment_publish_failures_total") == 1


@pytest.mark.requirement("R-20", "R-27")
def test_of_several_only_those_that_failed_are_posted_again() -> None:
    producer = FakeProducer([None, TIMEOUT, None, None])

    producer.send_all(order("a"), order("b"), order("c"))

    assert [each.subject for each in producer.connection.posted] == ["a", "b", "c", "b"]
    assert producer.count("router_assignment_published_total") == 3
    assert producer.count("router_assignment_publish_failures_total") == 0


@pytest.mark.requirement("R-28")
def test_ids_are_told_apart_from_labels() -> None:
    producer = FakeProducer([TIMEOUT, None])

    producer.send_all()

    assert [fields["exemplar"] for _, fields in producer.events] == [IDS, IDS]
    assert not any(set(fields) & set(IDS) for _, fields in producer.events)


@pytest.mark.requirement("R-20")
def test_a_pause_between_tries_ends_when_the_producer_is_closed() -> None:
    producer = FakeProducer([TIMEOUT] * 9)

    async def send() -> None:
        await producer.close()
        await producer.publish((order(),))

    with pytest.raises(PublishExhausted):
        asyncio.run(send())

    assert len(producer.connection.posted) == 1


# -- on a server


@contextmanager
def producing(transport: NatsTransport) -> Iterator[Any]:
    """A producer, called as if it blocked."""
    producer = blocking(transport).producer()
    try:
        yield producer
    finally:
        producer.close()


def message(subject: str, name: str = "1", **headers: str) -> Message:
    return Message(Header(name, subject, headers=headers), b'{"number": 1}')


@pytest.mark.requirement("R-20", "Z-14")
def test_a_confirmation_that_is_lost_does_not_store_the_message_twice(
    own_nats_server: Nats, proxy_to: ProxyTo, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    proxy = proxy_to(own_nats_server.port)
    transport = NatsTransport(proxy.url(own_nats_server.url), publish_timeout=0.5)
    with Wire(own_nats_server.url) as wire, producing(transport) as producer:
        wire.stream(topic)
        producer.send([message(topic, "first")])
        proxy.stall("to_client")

        def heal() -> None:
            eventually(lambda: "try 2 follows" in caplog.text)
            proxy.heal()

        healing = threading.Thread(target=heal)
        healing.start()
        producer.send([message(topic, "second")])
        healing.join()

        assert wire.count(topic) == 2


@pytest.mark.requirement("R-29", "R-30", "R-22", "Z-14")
def test_what_was_given_up_is_never_posted_later(own_nats_server: Nats, topic: str) -> None:
    with Wire(own_nats_server.url) as wire:
        wire.stream(topic)
    transport = NatsTransport(own_nats_server.url)
    with producing(transport) as producer:
        producer.send([message(topic, "first")])
        own_nats_server.stop()

        with pytest.raises(PublishExhausted) as exhausted:
            producer.send([message(topic, "lost")])

        assert exhausted.value.kind == "connection_failed"
        own_nats_server.start()
        with Wire(own_nats_server.url) as wire:
            eventually(lambda: _sends(producer, topic))
            stays(lambda: wire.count(topic) == 2, 1)
            ids = [wire.stored(topic, each + 1).headers["pump-id"] for each in range(wire.count(topic))]  # type: ignore[index]
    assert ids == ["first", "again"]


def _sends(producer: Any, topic: str) -> bool:
    try:
        producer.send([message(topic, "again")])
    except PublishError:
        return False
    return True


@pytest.mark.requirement("R-23")
def test_where_there_is_no_stream_one_try_says_so(transport: NatsTransport, topic: str) -> None:
    with producing(transport) as producer, pytest.raises(PublishError, match="no_stream") as failed:
        producer.send([message(topic)])

    assert (failed.value.sent, failed.value.retriable) == (False, False)
    assert not isinstance(failed.value, PublishExhausted)


@pytest.mark.requirement("R-23")
def test_a_posting_that_is_not_permitted_is_tried_once(topic: str, caplog: pytest.LogCaptureFixture) -> None:
    with Nats(users={"admin": "secret-of-admin"}) as server:
        server.stop()
        text = server._configuration.read_text().replace(
            '"password": "secret-of-admin"',
            f'"password": "secret-of-admin", "permissions": {{"publish": {{"deny": "{topic}"}}}}',
        )
        server._configuration.write_text(text)
        server.start()
        transport = NatsTransport.from_url(server.url)
        with producing(transport) as producer, pytest.raises(PublishError, match="permission_denied") as failed:
            producer.send([message(topic)])

        assert "try 2 follows" not in caplog.text
        assert (failed.value.sent, failed.value.retriable) == (False, False)
        assert "secret-of-admin" not in caplog.text + str(failed.value)


@pytest.mark.requirement("R-23")
def test_a_stream_that_is_full_is_unavailable_and_may_be_tried_again(
    wire: Wire, transport: NatsTransport, topic: str
) -> None:
    wire.stream(topic, max_msgs=1, discard="new")
    with producing(transport) as producer:
        producer.send([message(topic, "1")])

        with pytest.raises(PublishExhausted, match="maximum messages exceeded") as failed:
            producer.send([message(topic, "2")])

    assert (failed.value.kind, failed.value.sent) == ("nats_unavailable", False)


def test_of_many_the_error_says_which_were_stored(wire: Wire, transport: NatsTransport, topic: str) -> None:
    wire.stream(topic, max_msgs=10, discard="new")
    words = r"20 of 30 messages .*positions 10-29; the others are stored"
    with producing(transport) as producer, pytest.raises(PublishError, match=words) as failed:
        producer.send([message(topic, str(number)) for number in range(30)])

    assert wire.count(topic) == 10
    assert failed.value.sent is None
    assert {place: each.sent for place, each in failed.value.failures.items()} == dict.fromkeys(range(10, 30), False)


def test_a_try_that_may_have_stored_it_is_not_forgotten() -> None:
    producer = FakeProducer([TIMEOUT, *[nats.errors.ConnectionClosedError()] * 3], max_retries=2)

    with pytest.raises(PublishExhausted) as failed:
        producer.send_all(order("a"), order("b"))

    assert {place: each.sent for place, each in failed.value.failures.items()} == {0: None, 1: False}
    assert failed.value.sent is None


def test_a_client_that_publishes_in_its_own_way_is_used_as_it_is(wire: Wire, nats_server: Nats, topic: str) -> None:
    class Own(Client):
        published = 0

        async def publish(self, *arguments: Any, **options: Any) -> None:
            Own.published += 1
            await super().publish(*arguments, **options)

    wire.stream(topic)
    with producing(NatsTransport(nats_server.url, client=Own)) as producer:
        producer.send([message(topic, str(number), x=f"{number}") for number in range(5)])

    assert (wire.count(topic), Own.published >= 5) == (5, True)


def test_a_client_that_is_made_in_another_way_is_used_by_its_public_methods(
    wire: Wire, nats_server: Nats, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_producer, "read_answers", lambda *_: False)
    wire.stream(topic)
    with producing(NatsTransport(nats_server.url)) as producer:
        producer.send([message(topic, str(number)) for number in range(5)])
        with pytest.raises(PublishError, match="no_stream"):
            producer.send([message(f"{topic}-nowhere")])

    assert wire.count(topic) == 5


def test_what_cannot_be_written_as_it_is_goes_through_the_client() -> None:
    assert header_block({"a": "1", "b": "two"}) == b"NATS/1.0\r\na: 1\r\nb: two\r\n\r\n"
    assert header_block({"a": "1\r\nb: 2"}) == b""
    block = header_block({"a": "1"})
    assert publish_frame("t", "i", block, b"body") == b"HPUB t i %d %d\r\n%bbody\r\n" % (
        len(block),
        len(block) + 4,
        block,
    )
    for subject in ("", "a b", "a\r\nPUB b", "a\tb"):
        assert publish_frame(subject, "i", block, b"") == b""


def test_two_messages_of_one_id_are_two_messages(wire: Wire, transport: NatsTransport, topic: str) -> None:
    wire.stream(topic)
    with producing(transport) as producer:
        producer.send([message(topic, "same")])
        producer.send([message(topic, "same"), message(topic, "same")])

    assert wire.count(topic) == 3


def test_whoever_names_the_repetition_stores_it_once(wire: Wire, transport: NatsTransport, topic: str) -> None:
    wire.stream(topic)
    with producing(transport) as producer:
        for _ in range(2):
            producer.send([message(topic, **{MSG_ID: "mine"})])

    assert wire.count(topic) == 1


def test_thousands_are_posted_in_order(wire: Wire, transport: NatsTransport, topic: str) -> None:
    wire.stream(topic)
    with producing(transport) as producer:
        producer.send([message(topic, str(each)) for each in range(1700)])

    assert wire.count(topic) == 1700
    picked = [wire.stored(topic, each + 1).headers["pump-id"] for each in (0, 499, 500, 1699)]  # type: ignore[index]
    assert picked == ["0", "499", "500", "1699"]


def test_a_producer_that_is_closed_sends_nothing(wire: Wire, transport: NatsTransport, topic: str) -> None:
    wire.stream(topic)

    async def send() -> None:
        producer: NatsProducer = await transport.async_producer()
        await producer.send([message(topic)])
        await producer.close()
        with pytest.raises(PublishError):
            await producer.send([message(topic)])

    asyncio.run(send())

    assert wire.count(topic) == 1


@pytest.mark.requirement("R-31")
@pytest.mark.parametrize("caught", [True, False])
def test_a_posting_that_fails_in_a_handler_is_the_handlers_to_judge(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str, *, caught: bool
) -> None:
    def body(request: Order) -> object:
        processor: Any = current_context().processor
        if kind.awaits:
            return post_async(processor, request)
        try:
            processor.post(request)
        except PublishError:
            if not caught:
                raise
        return None

    async def post_async(processor: Any, request: Order) -> None:
        try:
            await processor.post_async(request)
        except PublishError:
            if not caught:
                raise

    seen = Seen(body)
    dispatcher = Dispatcher(
        transport,
        handlers=[kind.handler(seen)],
        subscriptions=[subscribed(kind, topic)],
        publications=[Publication(Order, topic=f"nowhere-{topic}", missing="assume")],
    )
    with dispatcher:
        wire.orders(topic, 1)
        seen.wait(1 if caught else 3)
        eventually(lambda: wire.settled(topic, topic))

    assert len(seen) == (1 if caught else 3)
    assert wire.consumer(topic, topic).delivered.consumer_seq == len(seen)  # type: ignore[union-attr]


@pytest.mark.requirement("R-32")
def test_a_result_that_comes_after_its_publisher_gave_up_is_handled_as_any_other(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str
) -> None:
    seen = Seen()
    with pumping(transport, kind, seen, subscribed(kind, topic)) as dispatcher:
        with pytest.raises(PublishError), producing(transport) as producer:
            producer.send([message(f"nowhere-{topic}", "a-1")])
        wire.orders(topic, 1, headers={"assignment_id": "a-1"})
        seen.wait(1)
        eventually(lambda: wire.settled(topic, topic))
        assert dispatcher.ready

    assert wire.acknowledgements(topic) == [ACK]


@pytest.mark.requirement("R-17")
def test_the_trace_of_a_message_goes_on_in_what_its_handler_posts(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str
) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    inside: list[str | None] = []
    other = f"{topic}-out"

    def body(request: Order) -> object:
        context = current_context()
        inside.append(context.headers.get("traceparent"))
        processor: Any = context.processor
        return processor.post_async(request) if kind.awaits else processor.post(request)

    dispatcher = Dispatcher(
        transport,
        handlers=[kind.handler(body)],
        subscriptions=[subscribed(kind, topic)],
        publications=[Publication(Order, topic=other)],
    )
    with dispatcher:
        wire.orders(topic, 1, headers={"traceparent": parent, "tracestate": "a=b"})
        eventually(lambda: wire.count(other) == 1)
        posted = wire.stored(other).headers
        outside = dispatcher.post(Order(2), headers={"traceparent": "00-1-2-00"})

    assert inside == [parent]
    assert posted is not None
    assert (posted["traceparent"], posted["tracestate"]) == (parent, "a=b")
    assert wire.stored(other, 2).headers["traceparent"] == "00-1-2-00"  # type: ignore[index]
    assert outside


def test_retries_are_logged_without_the_body(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    producer = FakeProducer([TIMEOUT, None])

    producer.send_all(OutgoingMessage("orders", b"the body", {MSG_ID: "1"}, "1"))

    assert "posting to orders failed (timeout); try 2 follows in 0.105 s" in caplog.text
    assert "the body" not in caplog.text


def test_a_client_that_fails_in_an_unknown_way_is_tried_again(nats_server: Nats, wire: Wire, topic: str) -> None:
    class Odd(Client):
        tries = 0

        async def publish(self, subject: str, *arguments: Any, **options: Any) -> None:
            if subject == topic:
                Odd.tries += 1
                if Odd.tries == 1:
                    raise RuntimeError("never seen before")
            await super().publish(subject, *arguments, **options)

    wire.stream(topic)
    with producing(NatsTransport(nats_server.url, client=Odd)) as producer:
        producer.send([message(topic)])

    assert (Odd.tries, wire.count(topic)) == (2, 1)
