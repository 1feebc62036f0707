"""Bodies: what is carried stays as it was written, and what is no JSON is refused with a word on why."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pump.queue.errors import BadRequest
from pump.queue.wire.raw_json import DEEPEST, Raw, is_json, parse

CARRIED = frozenset({"payload"})

TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
UNITS = st.sampled_from(['{"', '":', "[", "]", "}", ",", '"', "1", "null", " ", "payload", "\\", "tru", "e", "\x00"])


@given(TREES, st.booleans())
def test_any_tree_is_read_as_it_is(tree: object, ascii_only: bool) -> None:
    body = json.dumps({"tree": tree}, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")

    assert parse(body, CARRIED - {"payload"}) == {"tree": tree}


@given(TREES, st.booleans(), st.sampled_from([None, 1]))
def test_a_carried_value_stays_as_it_was_written(tree: object, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(tree, ensure_ascii=ascii_only, indent=indent)
    body = f'{{"items" : [ {{"payload" :\n{text} , "queue": "q"}} ] }}'.encode()

    found = parse(body, CARRIED)

    assert found == {"items": [{"payload": Raw(text), "queue": "q"}]}


@given(st.lists(UNITS, max_size=12).map("".join))
def test_what_json_refuses_is_refused(text: str) -> None:
    body = text.encode()
    try:
        expected = json.loads(text)
    except ValueError:
        with pytest.raises(BadRequest):
            parse(body)
        assert not is_json(body)
    else:
        assert parse(body) == expected
        assert is_json(body)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "Empty request body"),
        (b" \n", "Empty request body"),
        (b"{", "Expecting a name in double quotes"),
        (b'{"a":1,}', "Expecting a name in double quotes"),
        (b'{"a" 1}', "Expecting ':'"),
        (b'{"a":1 "b":2}', "Expecting ',' or '}'"),
        (b'{"a":[1,]}', "Expecting value"),
        (b'{"payload":}', "Expecting value"),
        (b'{"a":NaN}', "NaN is no number"),
        (b'{"payload":[-Infinity]}', "-Infinity is no number"),
        (b'{"a":1} x', "goes on after its end"),
        (b'{"a":1,"a":2}', "'a' stands twice"),
        (b'{"a":"\xff"}', "not UTF-8 at byte 6"),
        (b'{"a":"\\ud800"}', "half of a surrogate pair"),
        (b'{"payload":{"b":"\\udc00","b":1}}', "half of a surrogate pair"),
        (b'{"\\ud800":1}', "half of a surrogate pair"),
        (b'{"a":' + b"9" * 5000 + b"}", "too many digits"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"payload":' + b"[" * (DEEPEST + 1) + b"]" * (DEEPEST + 1) + b"}", "nested too deeply"),
    ],
)
def test_it_says_why_not(body: bytes, why: str) -> None:
    with pytest.raises(BadRequest, match=why.replace("[", r"\[")):
        parse(body, CARRIED)


@pytest.mark.parametrize(
    "payload",
    [
        b'{"a":1,"a":2}',
        b'"\\ud83d\\ude00 \\\\ud800"',
        b'"' + b"[" * (DEEPEST + 1) + b'"',
        b"[" * DEEPEST + b"]" * DEEPEST,
        b"1e999",
        b"-0",
        b'{"a": "\\u0000"}',
    ],
)
def test_it_carries_what_others_would_change(payload: bytes) -> None:
    body = b'{"payload":%s}' % payload

    assert parse(body, CARRIED) == {"payload": Raw(payload.decode())}
    assert is_json(payload)


@pytest.mark.parametrize("body", [b"", b"{}{}", b'1,"x":2', b"\xff", b"NaN", b'"\\ud800"', b"[" * 100_000])
def test_it_knows_what_cannot_stand_in_a_reply(body: bytes) -> None:
    assert not is_json(body)
