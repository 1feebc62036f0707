"""How messages become bodies and attributes, and are read again, whoever wrote them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from pump.message import Header
from pump.transports.sqs.attributes import MOST_ATTRIBUTES, PUMP, TYPE, Carried, pack, unpack
from pump.transports.sqs.names import LONGEST_GROUP, group_of

TEXTS = some.text(some.characters(codec="utf-8"), max_size=20)
FOUND = "topic", "message-id"


def string(text: str, kind: str = "String") -> dict[str, Any]:
    return {"DataType": kind, "StringValue": text}


@given(body=some.binary(max_size=50) | TEXTS.map(str.encode), headers=some.dictionaries(TEXTS, TEXTS, max_size=14))
def test_whatever_is_sent_is_read_again(body: bytes, headers: dict[str, str]) -> None:
    header = Header("1", "topic", "Order", key="ü\0", timestamp=1.5, headers=headers)

    parcel = pack(header, body, Carried("original", 2, 3, 4.5))
    found = unpack(parcel.body, parcel.attributes, *FOUND)

    assert parcel.body
    assert len(parcel.attributes) <= MOST_ATTRIBUTES
    assert all(attribute["StringValue"] for attribute in parcel.attributes.values())
    assert (found.header, found.body, found.fault) == (header, body, "")
    assert found.carried == Carried("original", 2, 3, 4.5)


def test_headers_are_attributes_of_their_own_as_long_as_there_is_room() -> None:
    headers = {f"header-{number}": str(number) for number in range(12)}

    parcel = pack(Header("1", type="Order", headers=headers), b"{}")

    assert parcel.attributes[TYPE] == string("Order")
    assert parcel.attributes["header-7"] == string("7")
    assert set(json.loads(parcel.attributes[PUMP]["StringValue"])["folded"]) == {f"header-{n}" for n in range(8, 12)}


@pytest.mark.parametrize("name", ["AWS.trace", "amazon.x", "a..b", ".a", "a.", "ü", "", "a b", PUMP, TYPE, "x" * 257])
def test_a_header_that_no_attribute_can_be_called_like_arrives(name: str) -> None:
    parcel = pack(Header("1", headers={name: "text"}), b"{}")

    assert set(parcel.attributes) == {PUMP}
    assert unpack(parcel.body, parcel.attributes, *FOUND).header.headers == {name: "text"}


def test_a_copy_keeps_what_others_have_written() -> None:
    theirs: dict[str, Any] = {f"n{number}": string(str(number), "Number.int") for number in range(9)}
    theirs["bytes"] = {"DataType": "Binary.png", "BinaryValue": b"\0\xff"}
    found = unpack("body", theirs, *FOUND)

    copy = pack(found.header, found.body, Carried("it"), found.attributes)
    again = unpack(copy.body, copy.attributes, *FOUND)

    assert len(copy.attributes) == MOST_ATTRIBUTES
    assert again.attributes.items() >= theirs.items()
    assert again.header.headers == {f"n{number}": str(number) for number in range(9)}


def test_what_a_stranger_sends_is_a_message() -> None:
    found = unpack("text", {"tenant": string("t"), "rank": string("7", "Number")}, *FOUND)

    assert found.header == Header("message-id", "topic", headers={"tenant": "t", "rank": "7"})
    assert (found.body, found.fault) == (b"text", "")


def test_the_envelope_of_sns_is_opened() -> None:
    attributes = {"tenant": {"Type": "String", "Value": "t"}, "bytes": {"Type": "Binary", "Value": "AP8="}}
    envelope = {"Type": "Notification", "TopicArn": "arn", "Message": "{}", "MessageAttributes": attributes}

    found = unpack(json.dumps(envelope), {}, *FOUND)

    assert (found.body, found.header.headers) == (b"{}", {"tenant": "t"})


@pytest.mark.parametrize(
    "body",
    [
        '{"Type": "Notification", "TopicArn": 1, "Message": 2}',
        '{"Type": "Notification", "TopicArn": "a", "Message": "m", "MessageAttributes": {"a": 1}}',
        '{"TopicArn" "Notification"',
    ],
)
def test_what_only_looks_like_an_envelope_is_a_body(body: str) -> None:
    assert unpack(body, {}, *FOUND).body.decode() == body


@pytest.mark.parametrize(
    "document",
    [
        "{]",
        "[]",
        "null",
        "[" * 100_000,
        '{"id": 1}',
        '{"kind": "?"}',
        '{"time": "soon"}',
        '{"time": NaN}',
        '{"attempts": -1}',
        '{"before": 1e99}',
        '{"attempts": 9999999999}',
        '{"due": NaN}',
        '{"due": Infinity}',
        '{"due": -Infinity}',
        '{"due": -1}',
        '{"due": 1' + "0" * 400 + "}",
        '{"time": 1' + "0" * 400 + "}",
        '{"folded": {"pump": []}}',
        '{"folded": {"pump": ["String"]}}',
        '{"folded": {"pump": ["String", 1]}}',
        '{"folded": {"bytes": ["Binary", "A"]}}',
        '{"folded": [1]}',
        '{"folded": {"a": [1]}}',
        '{"folded": {"a": ["String", 1]}}',
        '{"encoding": "rot13"}',
        '{"encoding": "base64"}',
        '{"encoding": {}}',
    ],
    ids=lambda document: document[:30],
)
def test_what_no_pump_has_written_is_read_whole_with_a_fault(document: str) -> None:
    found = unpack("what is this?", {PUMP: string(document)}, *FOUND)

    assert found.fault.startswith("its attribute pump")
    assert (found.header.id, found.body) == ("message-id", b"what is this?")


def test_a_binary_attribute_of_our_name_is_a_fault() -> None:
    assert unpack("x", {PUMP: {"DataType": "Binary", "BinaryValue": b"{}"}}, *FOUND).fault


@given(some.none() | some.text(max_size=200))
def test_every_key_has_a_group(key: str | None) -> None:
    group = group_of(key)

    assert group.isascii()
    assert group.isprintable()
    assert " " not in group
    assert 0 < len(group) <= LONGEST_GROUP
    assert (group == group_of(key)) is (key is not None)
