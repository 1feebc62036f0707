"""Headers to properties and back, what copies keep of other programs' messages, and bytes that cannot be read."""

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pump.message import Header, Message
from pump.transports.rabbitmq.headers import read_message, write_properties
from pump.transports.rabbitmq.pika_internals import Content
from pump.transports.rabbitmq.properties import entry, join, split

texts = st.text(max_size=300)
names = st.text(max_size=60)
headers = st.builds(
    Header,
    texts,
    st.just("topic"),
    texts,
    texts,
    st.sampled_from(["command", "event", "document"]),
    texts,
    st.none() | texts,
    st.none() | texts,
    st.none() | texts,
    st.floats(0, 4e9) | st.just(0.0),
    st.dictionaries(
        names.filter(lambda name: not name.startswith(("pump-", "x-")) and name not in {"CC", "BCC"}), texts
    ),
)


def arrived(
    properties: bytes, body: bytes = b"body", exchange: str = "topic", tag: int = 1, *, redelivered: bool = False
) -> Message:
    return read_message(Content(tag, exchange, "key", properties, body, redelivered), "default", generation=1)


def by_pika(**properties: Any) -> bytes:
    """Properties as another program's pika writes them."""
    return b"".join(pika.BasicProperties(**properties).encode())


def read_by_pika(properties: bytes) -> pika.BasicProperties:
    read = pika.BasicProperties()
    read.decode(properties)
    return read


def table(*entries: bytes) -> bytes:
    """Properties with nothing but these headers."""
    parts: list[bytes | None] = [None] * 14
    parts[2] = b"".join(entries)
    return join(parts)


@given(headers, st.integers(0, 9))
def test_a_header_arrives_as_it_was_sent(header: Header, attempts: int) -> None:
    message = arrived(write_properties(header, attempts=attempts))

    assert message.header == header
    assert (message.attempts, message.fault, message.deliveries) == (attempts, "", 1)


@given(headers)
def test_other_programs_can_read_what_we_write(header: Header) -> None:
    read = read_by_pika(write_properties(header))

    assert read.delivery_mode == 2
    assert {name: (read.headers or {})[name] for name in header.headers} == header.headers


@pytest.mark.requirement("P-17")
@given(st.binary(max_size=200), st.binary(max_size=20))
def test_any_bytes_make_a_message_with_its_body(properties: bytes, body: bytes) -> None:
    message = arrived(properties, body)

    assert message.body == body
    assert message.identity
    assert message.receipt is not None


SIZES = {3: 1, 4: 1, 9: 8}
parts_of_properties = st.tuples(
    *(
        st.none()
        | (st.binary(min_size=SIZES[place], max_size=SIZES[place]) if place in SIZES else st.binary(max_size=9))
        for place in range(14)
    )
)


@given(
    parts_of_properties, st.dictionaries(st.sampled_from(["pump-timestamp", "pump-due", "pump-long-id", "x"]), texts)
)
def test_whatever_came_can_be_sent_on(parts: tuple[bytes | None, ...], said: dict[str, str]) -> None:
    numbers = ["inf", "nan", "-1", "1e300", "1e30"]
    entries_of_ours = [entry("pump-timestamp", text) for text in numbers]
    for extra in (*entries_of_ours, b"".join(entry(name, text) for name, text in said.items())):
        properties = list(parts)
        properties[2] = extra
        message = arrived(join(properties))

        copy = arrived(write_properties(message.header, message, topic="t", attempts=1))

        assert copy.fault == ""


@given(st.binary(max_size=120), st.data())
def test_no_header_of_any_kind_breaks_more_than_its_message(value: bytes, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(list(b"StbBUusIiLlfdxADFTVqQ")))
    message = arrived(table(b"\x01n" + bytes([kind]) + value))

    copy = arrived(write_properties(message.header, message))

    assert copy.fault == ""


STRANGERS: Mapping[str, Any] = {
    "text": "é",
    "number": 42,
    "long": 2**40,
    "flag": True,
    "nothing": None,
    "list": [1, "two"],
    "table": {"a": 1},
    "when": datetime(2020, 1, 1, tzinfo=UTC),
    "price": Decimal("1.25"),
}


def test_headers_of_others_that_are_not_text_are_kept_raw() -> None:
    message = arrived(by_pika(headers=dict(STRANGERS)))

    assert message.header.headers == {"text": "é"}
    assert message.raw_headers == {name: value for name, value in STRANGERS.items() if name != "text"}


def test_a_copy_carries_what_others_said_exactly() -> None:
    original = arrived(
        by_pika(
            headers=dict(STRANGERS),
            content_encoding="gzip",
            priority=3,
            app_id="shop",
            user_id="ann",
            expiration="60000",
            cluster_id="c",
        )
    )

    read = read_by_pika(write_properties(original.header, original, topic="topic", attempts=1))

    assert read.headers == {**STRANGERS, "pump-topic": "topic", "pump-carried-attempts": "1"}
    assert (read.content_encoding, read.priority, read.app_id) == ("gzip", 3, "shop")
    assert (read.user_id, read.expiration, read.cluster_id) == (None, None, None)


def test_a_fraction_is_not_rounded_by_being_copied() -> None:
    entry_of_a_double = b"\x05ratiod" + b"\x3f\xe0\x00\x00\x00\x00\x00\x00"
    original = arrived(table(entry_of_a_double))

    assert original.raw_headers == {"ratio": 0.5}
    assert entry_of_a_double in write_properties(original.header, original)


def test_a_copy_leaves_behind_what_is_the_brokers_own() -> None:
    brokers = {
        "x-death": [{"count": 1}],
        "x-first-death-queue": "q",
        "x-last-death-reason": "expired",
        "x-delivery-count": 3,
        "CC": ["other"],
    }
    original = arrived(by_pika(headers={**brokers, "x-request-id": "r"}), redelivered=True)

    assert original.deliveries == 4
    assert dict(original.header.headers) == {"x-request-id": "r"}
    copy = read_by_pika(write_properties(original.header, original))
    assert copy.headers == {"x-request-id": "r"}


def test_on_a_first_delivery_the_count_is_the_senders_and_says_nothing() -> None:
    innocent = arrived(by_pika(headers={"x-delivery-count": 9}))

    assert (innocent.deliveries, innocent.unexplained) == (1, 0)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pump-carried-attempts", "some"),
        ("pump-carried-attempts", "-1"),
        ("pump-kind", "wish"),
        ("pump-timestamp", "x"),
        ("pump-due", "?"),
    ],
)
def test_a_header_of_ours_that_makes_no_sense_is_a_fault(name: str, text: str) -> None:
    message = arrived(table(entry(name, text)))

    assert text in message.fault or name in message.fault or "float" in message.fault


def test_a_type_that_is_no_text_is_a_fault() -> None:
    parts: list[bytes | None] = [None] * 14
    parts[10] = b"\xff"

    assert arrived(join(parts)).fault


def test_a_moment_beyond_every_calendar_is_a_number() -> None:
    message = arrived(table(b"\x04whenT" + b"\xff" * 8))

    assert message.raw_headers == {"when": 2**64 - 1}


def test_headers_nested_without_end_are_a_fault() -> None:
    nested = b""
    for _ in range(1000):
        nested = b"A" + len(nested).to_bytes(4, "big") + nested

    assert "nested" in arrived(table(b"\x01n" + nested)).fault


def test_a_message_without_an_id_is_known_by_what_it_is_however_often_it_comes() -> None:
    first = arrived(by_pika(headers={"a": "b"}), b"1", tag=1)
    again = arrived(by_pika(headers={"a": "b", "x-delivery-count": 1}), b"1", tag=9, redelivered=True)
    other = arrived(by_pika(headers={"a": "b"}), b"2", tag=2)

    assert first.id == ""
    assert first.identity == again.identity != other.identity


def test_a_text_too_long_for_a_property_is_carried_as_a_header() -> None:
    header = Header("i" * 300, "topic", "t" * 256, correlation_id="ü" * 128, reply_to="r" * 999, content_type="c" * 256)

    assert arrived(write_properties(header)).header == header


def test_a_header_whose_name_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than 255"):
        write_properties(Header("1", headers={"n" * 256: ""}))


@given(st.lists(st.none() | st.binary(max_size=8), min_size=14, max_size=14))
def test_properties_taken_apart_are_put_together_again(parts: list[bytes | None]) -> None:
    for place, size in SIZES.items():
        if parts[place] is not None:
            parts[place] = bytes(size)

    assert split(join(parts)) == parts
