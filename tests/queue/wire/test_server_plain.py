"""What is read and written by hand, since there is much of it, is the same as member by member."""

import json
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pump.errors import PumpError
from pump.queue.vocabulary import DEFAULT_GROUP, Push, Pushed, Settled, Settlement, Status
from pump.queue.wire import plain_pushes as wire_plain
from pump.queue.wire import replies as wire_replies
from pump.queue.wire import requests as wire

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
    """A push, sometimes with something odd in the midst of it."""
    text = (
        '{"items":[' + ",".join(draw(st.lists(items(), max_size=4))) + draw(st.sampled_from(["]}", "] }", '],"a":1}']))
    )
    place = draw(st.integers(0, len(text)))
    odd = draw(st.just("") | st.sampled_from(ODD))
    return (text[:place] + odd + text[place:]).encode("utf-8", "surrogatepass")


def outcome(read: Callable[[], Sequence[Push]]) -> object:
    try:
        return list(read())
    except PumpError as error:
        return type(error), str(error)


@given(bodies(), st.sampled_from([None, "token"]))
def test_a_push_is_read_alike_at_one_go_and_by_its_members(body: bytes, producer: str | None) -> None:
    at_one_go = wire_plain.plain_pushes(body, producer)

    by_members = outcome(lambda: wire.pushes_by_member(body, producer))

    assert outcome(lambda: wire.pushes(body, producer)) == by_members
    assert at_one_go in (None, by_members)


@pytest.mark.parametrize(
    "item",
    [
        '{"queue":"q","partition":"p","transactionId":"t","payload":{"a": [1,"}"]}}',
        '{"queue":"q","partition":"p","payload":"text","transactionId":"t"}',
        f'{{"queue":"q","partition":"p","payload":null,"transactionId":"t","traceId":"{TRACE}"}}',
        '{ "queue" : "q" , "payload" : 1.50 }',
    ],
)
def test_what_clients_write_is_read_at_one_go(item: str) -> None:
    body = f'{{"items":[{item}, {item}]}}'.encode()

    found = wire_plain.plain_pushes(body, None)

    assert found is not None
    assert found == wire.pushes_by_member(body, None)


@given(
    st.lists(
        st.fixed_dictionaries(
            {"transactionId": TEXTS | st.none(), "partitionId": TEXTS, "leaseId": TEXTS | st.none() | st.just(1)},
            optional={"status": st.sampled_from(["completed", "failed", "odd", None, 1]), "error": TEXTS},
        ),
        max_size=4,
    )
)
def test_an_ordinary_settlement_says_what_it_would_say_otherwise(said: list[dict[str, object]]) -> None:
    for item in said:
        ordinary = wire._ordinary(item, DEFAULT_GROUP)

        assert ordinary is None or ordinary == wire._numbered_settlement(item, 0, DEFAULT_GROUP)


def test_what_consumers_say_most_often_is_ordinary() -> None:
    said = {"transactionId": "t", "partitionId": "p", "leaseId": "l", "status": "failed"}

    assert wire._ordinary(said, "g") == Settlement("t", "p", "l", Status.FAILED, "g")


@given(
    st.lists(
        st.builds(
            Pushed, TEXTS, TEXTS, TEXTS, TEXTS, TEXTS, st.booleans(), st.sampled_from(["", "queue is full"]),
            st.booleans(), st.none() | TEXTS,
        )
    )
)  # fmt: skip
def test_what_producers_are_told_is_written_alike(results: list[Pushed]) -> None:
    told = json.loads(wire_replies.pushed(results))

    assert told == [dict(wire_replies._pushed(index, each)) for index, each in enumerate(results)]


@given(
    st.lists(
        st.builds(
            Settled, TEXTS, st.booleans(), st.sampled_from(["acknowledged", "invalid_lease"]), st.none() | TEXTS,
            st.none() | TEXTS, st.none() | TEXTS, st.booleans(), st.booleans(),
        )
    )
)  # fmt: skip
def test_what_consumers_are_told_is_written_alike(results: list[Settled]) -> None:
    told = json.loads(wire_replies.settled(results))

    assert told == [dict(wire_replies._settled(index, each)) for index, each in enumerate(results)]
