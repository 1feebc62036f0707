"""Bodies: payloads stay unchanged, and an invalid body is refused with the reason and the place."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw, Struct

from pump.queue.errors import BadRequest
from pump.queue.wire.json_body import ABSENT, DEEPEST, Reader, encode, is_json, payload_of

TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
UNITS = st.sampled_from(['{"', '":', "[", "]", "}", ",", '"', "1", "null", " ", "payload", "\\", "tru", "e", "\x00"])

TREE: Reader[Any] = Reader(object)


class Item(Struct):
    queue: str | None = ABSENT
    payload: Raw = ABSENT
    a: Any = ABSENT


class Items(Struct):
    items: list[Item] | None = ABSENT


@given(TREES, st.booleans())
def test_any_tree_is_read_as_it_is(tree: object, ascii_only: bool) -> None:
    body = json.dumps({"tree": tree}, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")

    assert TREE.read(body) == {"tree": tree}


@given(TREES, st.booleans(), st.sampled_from([None, 1]))
def test_a_payload_stays_as_it_was_written(tree: object, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(tree, ensure_ascii=ascii_only, indent=indent)
    body = f'{{"items" : [ {{"payload" :\n{text} , "queue": "q"}} ] }}'.encode()

    [item] = Reader(Items).read(body).items or []

    assert (item.queue, payload_of(item.payload)) == ("q", text.encode())
    assert b'"payload":%s}' % text.encode() in encode({"payload": item.payload})


@given(st.lists(UNITS, max_size=12).map("".join))
def test_what_json_refuses_is_refused(text: str) -> None:
    body = text.encode()
    try:
        expected = json.loads(text, object_pairs_hook=without_repetition)
    except ValueError:
        with pytest.raises(BadRequest):
            TREE.read(body)
    else:
        assert TREE.read(body) == expected
    assert is_json(body) is reads(text)


def without_repetition(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name stands twice")
    return dict(pairs)


def reads(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "Empty request body"),
        (b" \n", "Empty request body"),
        (b"{", "truncated"),
        (b'{"a":1,}', "trailing comma in object"),
        (b'{"a" 1}', "expected ':'"),
        (b'{"a":1 "b":2}', "expected ',' or '}'"),
        (b'{"items":[1,]}', "items[0] must be an object"),
        (b'{"items":[{},]}', "trailing comma in array"),
        (b'{"items":[{"payload":}]}', "invalid character (byte 21)"),
        (b'{"a":NaN}', "invalid character (byte 5)"),
        (b'{"items":[{"payload":[-Infinity]}]}', "invalid character (byte 23)"),
        (b'{"a":1} x', "trailing characters"),
        (b'{"a":1,"a":2}', "'a' stands twice"),
        (b'{"items":[{"a":1,"queue":"\\u0022\\u0022","a":2}]}', "'a' stands twice"),
        (b'{"items":[{"a":{"b":1,"b":1}}]}', "'b' stands twice"),
        (b'{"items":[{"queue":null,"queue":null}]}', "'queue' stands twice"),
        (b'{"a":"\xff"}', "not UTF-8 at byte 6"),
        (b'{"items":[{"payload":"\xff"}]}', "not UTF-8 at byte 22"),
        (b'{"a":"\\ud800"}', "half of a surrogate pair"),
        (b'{"items":[{"payload":{"b":"\\udc00","b":1}}]}', "half of a surrogate pair"),
        (b'{"\\ud800":1}', "half of a surrogate pair"),
        (b'{"a":' + b"9" * 5000 + b',"a":1}', "Invalid JSON"),
        (b"[" * 100_000, "the body must be an object"),
        (b'{"items":[{"payload":' + b"[" * 100_000, "nested too deeply"),
        (b'{"items":[{"queue":5}]}', "queue must be a string (items[0])"),
    ],
)
def test_it_says_why_not(body: bytes, why: str) -> None:
    with pytest.raises(BadRequest) as told:
        Reader(Items).read(body)

    assert why in str(told.value)


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"[" * (DEEPEST + 1) + b"]" * (DEEPEST + 1), "nested too deeply"),
        (b'{"a":' + b"9" * 5000 + b"}", "too many digits"),
        (b'{"a":[1,-' + b"9" * 4301 + b"]}", "too many digits"),
    ],
)
def test_a_payload_that_a_reader_could_not_read_is_refused(payload: bytes, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        payload_of(Raw(payload))


@pytest.mark.parametrize(
    "payload",
    [
        b'{"a":1,"a":2}',
        b'"\\ud83d\\ude00 \\\\ud800"',
        b'"' + b"[" * (DEEPEST + 1) + b'"',
        b'"' + b"9" * 5000 + b'"',
        b"[" * DEEPEST + b"]" * DEEPEST,
        b"1e999",
        b"-0",
        b'{"a": "\\u0000"}',
        b"9" * 4300,
    ],
)
def test_it_carries_what_others_would_change(payload: bytes) -> None:
    body = b'{"items":[{"payload":%s}]}' % payload

    [item] = Reader(Items).read(body).items or []

    assert payload_of(item.payload) == payload
    assert is_json(payload)


@pytest.mark.parametrize(
    "body", [b"", b"{}{}", b'1,"x":2', b"\xff", b"NaN", b'"\\ud800"', b"[" * 100_000, b"9" * 5000, b'"\xff"']
)
def test_it_knows_what_cannot_stand_in_a_reply(body: bytes) -> None:
    assert not is_json(body)


def test_a_body_that_may_be_empty_is_read_as_an_empty_object() -> None:
    assert Reader(Items, may_be_empty=True).read(b" \n").items is ABSENT
