"""How a pump's header is written on NATS, and how the headers of other senders are read."""

from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as some

from pump.message import NO_HEADERS, Header
from pump.transports.nats.headers import ESCAPED, MSG_ID, from_nats, to_nats

texts = some.text(max_size=20)
names = some.text(min_size=1, max_size=12).filter(lambda name: name != MSG_ID and not name.startswith("Nats-"))
headers = some.dictionaries(names, texts, max_size=5)


def carried(fields: dict[str, str]) -> dict[str, str]:
    """Headers as nats-py and the server deliver them: values stripped, without line ends; names unchanged."""
    lines = [(name.strip(), value.strip().replace("\r", " ").replace("\n", " ")) for name, value in fields.items()]
    for name, value in lines:
        name.encode("ascii")
        value.encode()
    return dict(lines)


@given(
    id_=some.text(min_size=1, max_size=10),
    type_=texts,
    version=texts,
    kind=some.sampled_from(["command", "event", "document"]),
    content_type=texts,
    key=some.none() | texts,
    correlation=some.none() | texts,
    reply_to=some.none() | texts,
    timestamp=some.floats(min_value=0, allow_nan=False, allow_infinity=False),
    others=headers,
)
def test_every_header_arrives_as_it_was_sent(
    id_: str,
    type_: str,
    version: str,
    kind: str,
    content_type: str,
    key: str | None,
    correlation: str | None,
    reply_to: str | None,
    timestamp: float,
    others: dict[str, str],
) -> None:
    sent = Header(
        id_,
        "orders",
        type_,
        version,
        kind,  # type: ignore[arg-type]
        content_type,
        key,
        correlation,
        reply_to,
        timestamp,
        MappingProxyType(others),
    )

    received, fault = from_nats(carried(to_nats(sent, "once")), "orders", "S:1")

    assert fault == ""
    assert received == sent._replace(headers=received.headers)
    assert dict(received.headers) == others


def test_what_is_not_said_is_not_sent() -> None:
    assert to_nats(Header("1", "orders"), "once") == {MSG_ID: "once", "pump-id": "1"}


def test_plain_headers_stay_plain() -> None:
    header = Header("1", "orders", headers={"tenant": "é", "ce-type": "order", "x": "a b"})

    fields = to_nats(header, "once")

    assert ESCAPED not in fields
    assert (fields["tenant"], fields["ce-type"], fields["x"]) == ("é", "order", "a b")


def test_whoever_names_the_repetition_has_it_recognised_by_that_name() -> None:
    header = Header("1", "orders", headers={MSG_ID: "mine"})

    assert to_nats(header, "once")[MSG_ID] == "mine"


def test_a_header_cannot_pass_for_one_of_the_pumps_own() -> None:
    sent = Header("1", "orders", "Order", headers={"pump-id": "2", "content-type": "x/y", "PUMP-TYPE": "Other"})

    received, _ = from_nats(carried(to_nats(sent, "once")), "orders", "S:1")

    assert (received.id, received.type, received.content_type) == ("1", "Order", "application/json")
    assert received.headers == sent.headers


@pytest.mark.parametrize("none", [None, {}])
def test_a_strangers_message_without_headers_is_known_by_its_position(none: dict[str, str] | None) -> None:
    header, fault = from_nats(none, "orders", "ORDERS:7")

    assert header == Header("ORDERS:7", "orders")
    assert (header.headers, fault) == (NO_HEADERS, "")


def test_a_strangers_message_is_known_by_its_message_id() -> None:
    header, _ = from_nats({MSG_ID: "abc", "Nats-Expected-Stream": "X", "ce-id": "9"}, "orders", "ORDERS:7")

    assert header.id == "abc"
    assert header.headers == {"ce-id": "9"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"pump-time": "yesterday"},
        {"pump-kind": "rumour"},
        {ESCAPED: "{"},
        {ESCAPED: "[1, 2]"},
        {ESCAPED: '[{"a": 1}, {}]'},
        {ESCAPED: "[[]]"},
        {ESCAPED: "[" * 100_000},
    ],
)
def test_headers_that_no_pump_writes_are_a_fault_and_no_error(wrong: dict[str, str]) -> None:
    header, fault = from_nats({**wrong, "tenant": "t"}, "orders", "ORDERS:7")

    assert fault
    assert (header.id, header.headers["tenant"]) == ("ORDERS:7", "t")


@given(headers=some.dictionaries(some.text(max_size=8), some.text(max_size=8) | some.integers(), max_size=6))
def test_whatever_the_headers_are_they_can_be_read(headers: dict[str, object]) -> None:
    header, _ = from_nats(headers, "orders", "ORDERS:7")

    assert header.id
    assert all(isinstance(value, str) for value in header.headers.values())
