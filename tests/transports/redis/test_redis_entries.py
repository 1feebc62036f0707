"""Messages written to Redis and read back: entries of streams, elements of lists. Any bytes make a message."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pump.message import Header, Message
from pump.transports.redis import entries
from pump.transports.redis.entries import EntryReader, EntryReceipt
from support.redis_bench import REJECTED

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
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
    timestamp=st.floats(0, allow_infinity=False, allow_nan=False),
    headers=st.dictionaries(TEXT | st.sampled_from(["id", "body", "time", "header:x", "pump-identity"]), TEXT),
)
NAMES = st.sampled_from(["id", "kind", "time", "pump-carried-attempts", "key", "pump-identity", "x"])
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner))
READER = EntryReader("orders", "shop:orders", 7)


def entry(*fields: bytes, deliveries: int = 1, reader: EntryReader = READER) -> Message:
    return reader.read(EntryReceipt(1, b"5-1", deliveries, fields), 99.0)


def written(header: Header, body: bytes) -> Message:
    return entry(*entries.entry_fields(header, body, topic="orders"))


# -- streams


@given(HEADERS, st.binary())
def test_an_entry_is_read_as_it_was_written(header: Header, body: bytes) -> None:
    message = written(header, body)

    assert (message.header, message.body, message.fault) == (header, body, "")


def test_a_usual_message_has_four_fields() -> None:
    fields = entries.entry_fields(Header("1", "orders", "Sample", timestamp=5.5), b"{}", topic="orders")

    assert fields == [b"id", b"1", b"type", b"Sample", b"time", b"5.5", b"body", b"{}"]
    message = entry(*fields, deliveries=3)
    assert message.header == Header("1", "orders", "Sample", timestamp=5.5)
    assert (message.identity, message.position, message.generation) == ("shop:orders/5-1", "5-1", 7)
    assert (message.deliveries, message.unexplained, message.attempts) == (3, 2, 0)
    assert message.lease_expires == 99.0


@pytest.mark.requirement("P-17")
@given(st.lists(st.binary() | st.sampled_from([b"id", b"time", b"kind", b"body", b"pump-carried-attempts"])))
def test_any_entry_is_a_message(fields: list[bytes]) -> None:
    fields = fields[: len(fields) // 2 * 2]

    message = entry(*fields)

    assert message.identity
    assert bool(message.fault) == (b"body" not in fields[::2])
    for copied in (entries.copy_fields(message, 2, 9.0), entries.dead_letter_fields(message, REJECTED)):
        again = entry(*encoded(copied))
        assert (again.body, bool(again.fault)) == (message.body, bool(message.fault))


def test_an_entry_of_a_stranger_is_known_by_its_place() -> None:
    message = entry(b"body", b"x", b"colour", b"red")

    assert message.header == Header("", "orders", headers={"colour": "red"})
    assert message.identity == "shop:orders/5-1"


@pytest.mark.parametrize(
    ("name", "value"), [(b"time", b"noon"), (b"time", b"inf"), (b"kind", b"liquid"), (b"pump-carried-attempts", b"-1")]
)
def test_a_strangers_field_that_is_called_as_one_of_ours_is_a_header(name: bytes, value: bytes) -> None:
    message = entry(b"body", b"x", name, value)

    assert message.header == Header("", "orders", headers={name.decode(): value.decode()})
    assert (message.attempts, message.fault) == (0, "")


def test_what_is_no_text_is_kept_as_it_came() -> None:
    message = entry(b"body", b"x", b"id", b"\xff", b"\xfe", b"y", b"type", b"Sample")

    assert message.raw_headers == {"id": b"\xff", "\\xfe": b"y"}
    assert (message.header.id, message.header.type) == ("", "Sample")


def test_an_entry_without_a_body_says_so() -> None:
    message = entry(b"type", b"Sample", b"colour", b"red")

    assert message.fault == "the entry has no field 'body'"
    assert message.header.headers == {"colour": "red"}


def test_an_entry_with_too_many_fields_says_so() -> None:
    fields = [word for number in range(entries.MOST_FIELDS) for word in (b"%d" % number, b"x")]

    assert "more than" in entry(*fields, b"body", b"x").fault


def test_a_copy_says_how_many_attempts_are_behind_it_and_stays_itself() -> None:
    stranger = entry(b"body", b"x", b"pump-carried-attempts", b"1")
    named = entry(b"body", b"x", b"id", b"a")

    again = EntryReader("orders", "shop:orders", 7).read(
        EntryReceipt(2, b"9-9", 1, encoded(entries.copy_fields(stranger, 2, 9.0))), 0.0
    )

    assert (stranger.attempts, again.attempts) == (1, 2)
    assert again.identity == stranger.identity == "shop:orders/5-1"
    assert again.header == stranger.header._replace(headers={"pump-first-failure": "9.000"})
    later = entry(*encoded(entries.copy_fields(again, 3, 99.0)))
    assert (later.attempts, later.header.headers) == (3, {"pump-first-failure": "9.000"})
    assert entries.copy_fields(named, 2, 9.0).count("pump-identity") == 1


def test_a_dead_letter_says_where_it_comes_from_and_nothing_of_earlier_deaths() -> None:
    first = entry(
        b"body", b"x", b"id", b"a", b"pump-carried-attempts", b"2", b"pump-reason", b"old", b"pump-error", b"old"
    )

    dead = entry(*encoded(entries.dead_letter_fields(first, REJECTED)))

    assert dead.header.topic == "orders"
    assert dead.header.headers["pump-reason"] == "OutOfTea"
    assert "pump-error" not in dead.header.headers
    assert (dead.id, dead.attempts) == ("a", 0)


def encoded(fields: list[str | bytes]) -> list[bytes]:
    return [word.encode() if isinstance(word, str) else word for word in fields]


# -- lists


def envelope(header: Header, body: bytes = b"", **options: Any) -> Message:
    return entries.read_element(entries.envelope(header, body, topic="orders", **options), topic="orders", generation=7)


@given(HEADERS, st.binary(), st.integers(0, 10**6))
def test_an_envelope_is_read_as_it_was_written(header: Header, body: bytes, attempts: int) -> None:
    message = envelope(header, body, more={"pump-carried-attempts": str(attempts)})

    assert (message.header, message.body, message.fault, message.attempts) == (header, body, "", attempts)
    assert message.generation == 7


def test_no_envelope_is_equal_to_another_and_each_is_known_by_its_mark() -> None:
    one, two = (entries.envelope(Header("1"), b"x", topic="orders") for _ in range(2))

    assert one[: entries.RECEIPT_LENGTH] != two[: entries.RECEIPT_LENGTH]
    assert entries.is_envelope(one)


@pytest.mark.requirement("P-17")
@given(st.binary(), st.booleans())
def test_any_element_is_a_message(element: bytes, begins: bool) -> None:
    element = entries.MAGIC + element if begins else element

    message = entries.read_element(element, topic="orders", generation=1)

    assert message.identity
    assert message.fault or message.body == element or begins
    assert message.receipt == element[: entries.RECEIPT_LENGTH]


@given(JSON)
def test_any_header_makes_a_message(said: object) -> None:
    text = json.dumps(said).encode()
    element = entries.MAGIC + bytes(16) + len(text).to_bytes(4, "big") + text + b"body"

    message = entries.read_element(element, topic="orders", generation=1)

    assert message.body in {b"body", element}
    assert bool(message.fault) == (message.body == element)


@pytest.mark.parametrize(
    "header",
    [
        b"{]",
        b"[]",
        b'{"id": 1}',
        b'{"kind": "liquid"}',
        b'{"time": NaN}',
        b'{"time": "noon"}',
        b'{"headers": {"a": 1}}',
        b'{"headers": []}',
        b'{"pump-carried-attempts": -1}',
        b'{"pump-carried-attempts": true}',
        b'{"id": "\\ud800"}',
        b"[" * 5000,
    ],
)
def test_an_envelope_that_makes_no_sense_is_kept_whole(header: bytes) -> None:
    element = entries.MAGIC + bytes(16) + len(header).to_bytes(4, "big") + header + b"body"

    message = entries.read_element(element, topic="orders", generation=1)

    assert message.fault
    assert message.body == element
    assert message.header == Header("", "orders", content_type="")


def test_what_is_no_envelope_is_all_body() -> None:
    message = entries.read_element(b'{"sku": "tea"}', topic="orders", generation=1)

    assert message.header == Header("", "orders")
    assert (message.body, message.fault, message.receipt) == (b'{"sku": "tea"}', "", b'{"sku": "tea"}')
    assert message.identity == entries.read_element(b'{"sku": "tea"}', topic="orders", generation=2).identity


@given(st.binary())
def test_a_tag_is_no_part_of_the_element_and_tells_equal_ones_apart(element: bytes) -> None:
    tags = [entries.TAG + number for number in (b"%016d" % 1, b"%016d" % 2)]

    one, two = (entries.read_element(tag + element, topic="orders", generation=1) for tag in tags)

    assert [one.receipt, two.receipt] == tags
    assert one.identity == two.identity == entries.read_element(element, topic="orders", generation=1).identity
    assert one.body == two.body


def test_a_copy_of_what_has_no_id_stays_itself() -> None:
    first = entries.read_element(b"tea", topic="orders", generation=1)

    again = entries.read_element(entries.copy_envelope(first, 1, 9.0, topic="orders"), topic="orders", generation=2)
    later = entries.read_element(entries.copy_envelope(again, 2, 99.0, topic="orders"), topic="orders", generation=3)

    assert (again.identity, again.attempts, again.body) == (first.identity, 1, b"tea")
    assert (later.identity, later.attempts) == (first.identity, 2)
    assert later.header.headers == {"pump-first-failure": "9.000"}
