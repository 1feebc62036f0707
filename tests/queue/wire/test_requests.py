"""Requests: the values that were written are read back, whatever else the bodies hold."""

import json
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pump.queue.errors import BadRequest
from pump.queue.ids import mint_many
from pump.queue.vocabulary import DEFAULT_PARTITION, Push, Settled, Settlement, Status
from pump.queue.wire import requests

TEXTS = st.sampled_from(["q", "", "a b", "ä", "😀", '"', "\\", "\t", "\x7f", "null", "x" * 300]) | st.text(max_size=5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
NAMES = ["queue", "partition", "transactionId", "payload", "traceId", "data", "delaySeconds", "producer"]
ODD = ["", " ", ",", "]", "}", '"', "\\ud800", "\\ud83d\\ude00", "NaN", "1e999", "nul", '"payload":1,', '"queue":"z",']
TRACE = "0198c5a0-0000-7000-8000-000000000000"


@st.composite
def items(draw: st.DrawFn) -> str:
    """One item of a push, most often in the order that clients have."""
    usual = draw(st.sampled_from([NAMES[:4], ["queue", "partition", "payload", "transactionId"], NAMES[:5]]))
    names = draw(st.just(usual) | st.lists(st.sampled_from(NAMES), max_size=6))
    space = draw(st.sampled_from(["", " ", "\n\t"]))
    members = []
    for name in names:
        value = draw(JSON if name in {"payload", "data"} else st.sampled_from(["q", "p"]) | TEXTS | st.none())
        value = draw(st.sampled_from([value, TRACE])) if name == "traceId" else value
        members.append(f'"{name}"{space}:{space}{json.dumps(value, ensure_ascii=draw(st.booleans()))}')
    return "{" + f"{space},{space}".join(members) + space + "}"


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A push, sometimes with something odd inside."""
    text = (
        '{"items":[' + ",".join(draw(st.lists(items(), max_size=4))) + draw(st.sampled_from(["]}", "] }", '],"a":1}']))
    )
    place = draw(st.integers(0, len(text)))
    odd = draw(st.just("") | st.sampled_from(ODD))
    return (text[:place] + odd + text[place:]).encode("utf-8", "surrogatepass")


class RefusedError(Exception):
    """The model refuses a body."""


def refuse(_: str) -> NoReturn:
    raise RefusedError


class Members(list[tuple[str, Any]]):
    """An object with all of its members."""

    def read(self) -> dict[str, Any]:
        if len(dict(self)) < len(self):
            raise RefusedError
        return dict(self)


def modelled(body: bytes) -> list[tuple[object, ...]]:
    """The items of a push, read by the standard library and checked member by member."""
    try:
        found = json.loads(body.decode(), parse_constant=refuse, object_pairs_hook=Members)
        json.dumps(found, ensure_ascii=False).encode()
    except ValueError:
        raise RefusedError from None
    if not isinstance(found, Members) or not isinstance(items := found.read().get("items"), list):
        raise RefusedError
    check_names([value for name, value in found if name not in {"payload", "data"}])
    return [modelled_item(item) for item in items]


def modelled_item(item: object) -> tuple[object, ...]:
    if not isinstance(item, Members):
        raise RefusedError
    members = item.read()
    texts = [members.get(name) for name in ("queue", "partition", "transactionId", "traceId")]
    delay = members.get("delaySeconds")
    if any(not isinstance(text, str | None) for text in texts) or not texts[0]:
        raise RefusedError
    if delay is not None and (not isinstance(delay, int | float) or isinstance(delay, bool) or not 0 <= delay < 4e9):
        raise RefusedError
    payload = members.get("payload", members.get("data"))
    return texts[0], texts[1] or DEFAULT_PARTITION, texts[2] or "", texts[3], float(delay or 0), payload


def check_names(value: object) -> None:
    """Refuse repeated names, but not within payloads."""
    if isinstance(value, Members):
        value.read()
        check_names([inner for name, inner in value if name not in {"payload", "data"}])
    elif isinstance(value, list):
        for each in value:
            check_names(each)


def as_read(push: Push) -> tuple[object, ...]:
    payload = json.loads(push.payload, object_pairs_hook=Members)
    return push.queue, push.partition, push.transaction_id, push.trace_id, push.delay, payload


@given(bodies(), st.sampled_from([None, "token"]))
def test_a_push_is_read_as_the_standard_reader_reads_it(body: bytes, producer: str | None) -> None:
    try:
        expected = modelled(body)
    except RefusedError:
        with pytest.raises(BadRequest):
            requests.pushes(body, producer)
    else:
        found = requests.pushes(body, producer)
        assert list(map(as_read, found)) == expected
        assert {each.producer for each in found} <= {producer}


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (
            '{"queue":"q","partition":"p","transactionId":"t","payload":{"a": [1,"}"]}}',
            Push("q", b'{"a": [1,"}"]}', "p", "t"),
        ),
        ('{"queue":"q","partition":"p","payload":"text","transactionId":"t"}', Push("q", b'"text"', "p", "t")),
        (f'{{"queue":"q","payload":null,"traceId":"{TRACE}"}}', Push("q", b"null", trace_id=TRACE)),
        ('{ "queue" : "q" , "payload" : 1.50 }', Push("q", b"1.50")),
        ('{"queue":"q","partition":null,"transactionId":null,"traceId":null,"data":0}', Push("q", b"0")),
        (
            '{"queue":"q","delaySeconds":5,"notBefore":"1970-01-01T00:00:09Z"}',
            Push("q", b"null", delay=5, not_before=9),
        ),
    ],
)
def test_what_clients_write_is_read(item: str, expected: Push) -> None:
    assert requests.pushes(f'{{"items":[{item}, {item}]}}'.encode(), None) == [expected] * 2


def acknowledged(**members: object) -> object:
    body = {"acknowledgments": [{"transactionId": "t", "partitionId": "p", "leaseId": "l", **members}]}
    return requests.acknowledgements(json.dumps(body).encode())[0]


def test_what_consumers_say_most_often_is_read() -> None:
    assert acknowledged(status="failed", consumerGroup="g") == Settlement("t", "p", "l", Status.FAILED, "g")


def test_every_member_of_an_acknowledgment_is_read() -> None:
    found = acknowledged(status="dlq", consumerGroup="g", error="no tea", delaySeconds=0, reason="tea")

    assert found == Settlement("t", "p", "l", Status.DEAD, "g", "no tea", 0.0, "tea")


@pytest.mark.parametrize(
    ("error", "expected"), [(None, None), ({"a": [1, None]}, '{"a": [1, null]}'), (0, "0"), ("a\0b", "a\ufffdb")]
)
def test_an_error_may_be_any_json(error: object, expected: str | None) -> None:
    found = acknowledged(error=error)

    assert isinstance(found, Settlement)
    assert found.error == expected


def test_an_error_that_no_reader_could_read_keeps_no_message_from_being_settled() -> None:
    found = requests.acknowledgement(b'{"transactionId":"t","partitionId":"p","error":[1e999, {"a":1,"a":2}]}')

    assert isinstance(found, Settlement)
    assert found.error == '[1e999, {"a":1,"a":2}]'


@pytest.mark.parametrize("leave_out", [True, False])
def test_null_is_the_same_as_absent(leave_out: bool) -> None:
    members = dict.fromkeys(["leaseId", "status", "consumerGroup", "error", "delaySeconds", "reason"])

    found = requests.acknowledgement(
        json.dumps({"transactionId": "t", "partitionId": "p"} | ({} if leave_out else members)).encode()
    )

    assert found == Settlement("t", "p")


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({"transactionId": ""}, "Each acknowledgment must have a valid transactionId string (acknowledgments[0])"),
        ({"transactionId": 5}, "Each acknowledgment must have a valid transactionId string (acknowledgments[0])"),
        (
            {"partitionId": None},
            "Each acknowledgment must have a valid partitionId string to ensure message uniqueness",
        ),
        ({"leaseId": 5}, "leaseId must be a string (acknowledgments[0])"),
        ({"leaseId": "a\nb"}, "control characters (acknowledgments[0])"),
        ({"status": 5}, "status must be a string (acknowledgments[0])"),
        ({"delaySeconds": -1}, "delaySeconds must be a number of seconds, 0 or more (acknowledgments[0])"),
        ({"consumerGroup": "x" * 256}, "longer than 255 characters (acknowledgments[0])"),
    ],
)
def test_an_acknowledgment_that_is_not_valid_is_named(members: dict[str, object], why: str) -> None:
    with pytest.raises(BadRequest) as told:
        acknowledged(**members)

    assert why in str(told.value)


def test_a_status_that_there_is_not_is_answered_for_that_item_alone() -> None:
    assert acknowledged(status="done") == Settled(
        "t", success=False, message="unknown_status", error="Unknown status 'done'"
    )


@pytest.mark.parametrize("ids", [b'{"ids":["a","b"]}', b'{"ids":[]}'])
def test_dead_letters_are_named_by_their_ids(ids: bytes) -> None:
    assert list(requests.redrive_ids(ids)) == json.loads(ids)["ids"]


@pytest.mark.parametrize("body", [b"{}", b'{"ids":null}', b'{"ids":"a"}', b'{"ids":[1]}'])
def test_ids_have_to_be_an_array_of_strings(body: bytes) -> None:
    with pytest.raises(BadRequest, match="ids array is required"):
        requests.redrive_ids(body)


def test_a_large_push_is_read_whole() -> None:
    ids = mint_many(3000)
    items = [{"queue": "q", "transactionId": each, "payload": {"n": n}} for n, each in enumerate(ids)]

    found = requests.pushes(json.dumps({"items": items}).encode(), None)

    assert [each.transaction_id for each in found] == ids
    assert [json.loads(each.payload)["n"] for each in found] == list(range(3000))
