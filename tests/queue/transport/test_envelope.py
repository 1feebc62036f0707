"""Envelopes: every message arrives byte for byte, and any bytes can be read as a message."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pump import Command, Subscription
from pump.dead_letter import TOTAL_LIMIT, Rejection, dead_letter
from pump.errors import ConfigurationError, PublishError
from pump.message import Header, Message
from pump.queue.limits import LARGEST_PAYLOAD_BYTES
from pump.queue.transport.consumer import DEAD_ROWS
from pump.queue.transport.envelope import SHARDS, START, partition_of, read, write
from pump.queue.transport.producer import QueueProducer
from pump.queue.transport.transport import LARGEST_BODY, LARGEST_HEADERS, dead_letter_topics
from pump.queue.vocabulary import DEFAULT_PARTITION, Push, Pushed
from pump.transport_kit.destinations import Destinations
from pump.transport_kit.protocol import transport_from
from pump.transports.postgres import PostgresTransport
from pump.transports.sqlite import SqliteTransport

TEXT = st.text(st.characters(exclude_categories=()))  # halves of surrogate pairs too
HEADERS = st.builds(
    Header,
    id=TEXT,
    topic=st.just("orders"),
    type=TEXT,
    version=TEXT,
    kind=st.sampled_from(["command", "event", "document"]),
    content_type=TEXT,
    key=st.none() | TEXT,
    correlation_id=st.none() | TEXT,
    reply_to=st.none() | TEXT,
    timestamp=st.floats(0, 1e11),
    headers=st.dictionaries(TEXT, TEXT),
)
BODIES = st.binary() | st.text().map(str.encode) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner)
).map(lambda tree: json.dumps(tree).encode())  # fmt: skip


@given(HEADERS, BODIES)
@example(Header("", "orders"), b"")
@example(Header("", "orders"), b"NaN")
@example(Header("", "orders"), b' {"a": 1,  "a":1.0} \n')
@example(Header("", "orders"), b'"\\ud800"')
@example(Header("", "orders"), b"\xef\xbb\xbf{}")
@example(Header("", "orders"), b"[" * 100_000)
@example(Header("", "orders"), START + b'000002","header":{},"json":1}')
def test_what_was_written_is_read_to_the_byte(header: Header, body: bytes) -> None:
    envelope = write(header, body)

    assert read(envelope, "orders") == (header, body, "")
    assert isinstance(json.loads(envelope), dict)


@given(st.binary())
def test_what_is_no_envelope_is_all_body(payload: bytes) -> None:
    header, body, fault = read(b"x" + payload, "orders")

    assert (header, body, fault) == (Header("", "orders"), b"x" + payload, "")


@given(st.data())
def test_a_broken_envelope_is_all_body_and_says_so(data: st.DataObject) -> None:
    envelope = write(Header("1", "orders", headers={"a": "b"}), data.draw(BODIES))
    place = data.draw(st.integers(len(START), len(envelope) - 1))
    broken = envelope[:place]

    header, body, fault = read(broken, "orders")

    assert (header, body) == (Header("", "orders", content_type=""), broken)
    assert fault.startswith("the envelope cannot be read")


def test_an_envelope_that_lost_only_its_last_brace_is_broken() -> None:
    broken = write(Header("1", "orders"), b'{"sku": "tea"}')[:-1]

    header, body, fault = read(broken, "orders")

    assert (header, body) == (Header("", "orders", content_type=""), broken)
    assert fault == "the envelope cannot be read: its body is not whole"


@given(st.binary(), st.binary())
def test_no_bytes_are_an_error(begin: bytes, end: bytes) -> None:
    header, body, fault = read(START + begin + b'","header":' + end, "orders")

    assert header.topic == "orders"
    assert isinstance(body, bytes)
    assert isinstance(fault, str)


def test_json_can_be_read_by_others_and_so_can_text() -> None:
    assert json.loads(write(Header("1", key="k"), b'{"sku": "tea"}'))["json"] == {"sku": "tea"}
    assert json.loads(write(Header("1"), "not JSON, but tea: ü".encode()))["text"] == "not JSON, but tea: ü"
    assert json.loads(write(Header("1", key="k"), b""))["header"] == {"id": "1", "key": "k"}


@given(st.binary(min_size=1, max_size=1), st.sampled_from(["\x01", '"', "ü", "\U0001f375"]))
def test_the_dead_letter_of_the_largest_message_fits(byte: bytes, character: str) -> None:
    width = len(character.encode())
    headers = {"h": character * ((LARGEST_HEADERS - 1) // width)}
    message = Message(Header("1", "orders", type="T" * 255, key="k" * 255, headers=headers), byte * LARGEST_BODY)
    text = character * TOTAL_LIMIT
    why = Rejection("delivery error", "Reason", text, error=ValueError(text), handler=text)

    assert len(write(dead_letter(message, why), message.body)) <= LARGEST_PAYLOAD_BYTES


# -- where messages go


def test_a_key_has_one_partition_and_there_are_no_more_than_so_many() -> None:
    partitions = {partition_of(Header("", key=f"key-{number}")) for number in range(2000)}

    assert len(partitions) == SHARDS
    assert partition_of(Header("", key="tea")) == partition_of(Header("other", key="tea"))
    assert partition_of(Header("")) == DEFAULT_PARTITION


class Order(Command):
    """A request to subscribe to."""


def test_rejected_messages_go_where_the_subscription_says() -> None:
    rules = Subscription(Order, topic="orders", channel="billing")
    rows = DEAD_ROWS.replace("<channel>", "billing")

    def of(**changes: Any) -> tuple[str | None, str | None, list[str]]:
        found = Destinations.of(replace(rules, **changes), DEAD_ROWS)
        return found.for_rejected("delivery error"), found.for_rejected("unacceptable"), dead_letter_topics(found)

    assert of() == of(dead_letter=rows) == (rows, rows, [])
    assert of(dead_letter="dead", invalid="odd") == ("dead", "odd", ["dead", "odd"])
    assert of(dead_letter=None) == (None, None, [])
    with pytest.raises(ConfigurationError, match="its own dead letters"):
        of(dead_letter="orders")


# -- producers


class Store:
    """The part of an engine that a producer needs."""

    def __init__(self) -> None:
        self.calls: list[list[Push]] = []

    def push(self, items: list[Push]) -> list[Pushed]:
        self.calls.append(items)
        full = "queue is full" if len(self.calls) > 1 else ""
        return [Pushed(item.queue, item.partition, "p", "m", item.transaction_id, refused=full) for item in items]


def producer(store: Any) -> QueueProducer:
    return QueueProducer(store, SqliteTransport.capabilities, lambda: None)


def test_many_messages_go_in_few_calls_and_what_is_known_of_a_failure_is_said() -> None:
    store = Store()
    messages = [Message(Header(str(number), "orders"), b"{}") for number in range(1500)]

    with pytest.raises(PublishError, match="queue is full") as failed:
        producer(store).send(messages)

    assert [len(items) for items in store.calls] == [1000, 500]
    assert failed.value.sent is None


def test_what_is_too_large_is_not_sent_and_nothing_with_it() -> None:
    store = Store()
    messages = [Message(Header("1", "orders"), b"{}"), Message(Header("2", "orders"), bytes(LARGEST_BODY + 1))]

    with pytest.raises(PublishError) as refused:
        producer(store).send(messages)

    assert (refused.value.sent, refused.value.retriable, store.calls) == (False, False, [])


def test_a_closed_producer_sends_nothing() -> None:
    store = Store()
    closed = producer(store)
    closed.close()

    with pytest.raises(PublishError, match="closed"):
        closed.send([Message(Header("1", "orders"), b"{}")])


# -- URLs


def test_a_url_says_which_file() -> None:
    relative, absolute = transport_from("sqlite:///shop.db"), transport_from("sqlite:////var/lib/my%20shop.db?lease=5")

    assert isinstance(relative, SqliteTransport)
    assert isinstance(absolute, SqliteTransport)
    assert (str(relative.path), str(absolute.path)) == ("shop.db", "/var/lib/my shop.db")
    assert absolute._lease == 5.0


@pytest.mark.requirement("P-17")
@pytest.mark.parametrize("scheme", ["postgres", "postgresql"])
def test_a_url_says_which_database_and_nobody_sees_the_password(scheme: str) -> None:
    transport = transport_from(f"{scheme}://user:secret@host:5433/shop?schema=queue&sslmode=require&pool_size=3")

    assert isinstance(transport, PostgresTransport)
    assert transport._url == "postgresql://user:secret@host:5433/shop?sslmode=require"
    assert repr(transport) == "<PostgresTransport to postgres://host:5433/shop?schema=queue>"


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://shop.db",
        "sqlite:///",
        "sqlite:///shop.db#x",
        "sqlite:///shop.db?leese=1",
        "sqlite:///shop.db?lease",
        "sqlite:///shop.db?lease=long",
        "sqlite:///shop.db?lease=0",
        "sqlite:///shop.db?keep=0",
        "postgres://user:secret@host/shop?pool_size=many",
        "postgres://user:secret@host/shop#x",
    ],
)
def test_a_url_that_makes_no_sense_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        transport_from(url)

    assert "secret" not in str(refused.value)
