"""Whatever a header has arrives as it was, in attributes that Pub/Sub takes; and deliveries are renewed in time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pump.message import ATTEMPTS_HEADER, FIRST_FAILURE_HEADER, Header
from pump.transports.pubsub.attributes import (
    LONGEST_NAME,
    LONGEST_VALUE,
    MOST_ATTRIBUTES,
    copy_attributes,
    copy_of,
    from_attributes,
    to_attributes,
    unpacked,
)
from pump.transports.pubsub.deliveries import PubSubDeliveries, PubSubDelivery

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
HEADERS = st.builds(
    Header,
    id=st.text("abc", min_size=1, max_size=5),
    topic=st.just("t"),
    type=TEXT,
    version=TEXT,
    kind=st.sampled_from(["command", "event", "document"]),
    content_type=TEXT,
    key=st.none() | TEXT | st.just("k" * 2000),
    correlation_id=st.none() | TEXT,
    reply_to=st.none() | TEXT,
    timestamp=st.floats(0, 1e10),
    headers=st.dictionaries(TEXT | st.sampled_from(["pump-id", "pump-folded-0", "googx"]), TEXT | st.just("ü" * 900)),
)


def check(attributes: dict[str, str]) -> None:
    assert len(attributes) <= MOST_ATTRIBUTES
    for name, value in attributes.items():
        assert 0 < len(name.encode()) <= LONGEST_NAME
        assert len(value.encode()) <= LONGEST_VALUE
        assert not name.lower().startswith("goog")


@given(HEADERS)
def test_a_header_arrives_as_it_was(header: Header) -> None:
    attributes, ordering_key = to_attributes(header)

    check(attributes)
    read, fault = from_attributes(attributes, ordering_key, "t", "id")
    assert read == header
    assert fault == ""


@given(HEADERS, st.integers(0, 99))
def test_a_copy_has_its_header_and_its_attempts(header: Header, attempts: int) -> None:
    header = header._replace(headers={**header.headers, ATTEMPTS_HEADER: str(attempts)})

    attributes, packed = copy_attributes(header, "identity", 12.5)

    check(attributes)
    assert copy_of(attributes) == ("identity", 12.5, attempts)
    whole, body = unpacked(attributes, packed + b"body")
    read, _ = from_attributes(whole, "", "t", "id")
    assert body == b"body"
    assert read == header


@pytest.mark.parametrize("count", [0, 90, 94, 95, 96, 99, 100, 150])
def test_the_attempts_of_a_copy_are_never_folded(count: int) -> None:
    headers = {**{f"h{number}": "v" for number in range(count)}, ATTEMPTS_HEADER: "2", FIRST_FAILURE_HEADER: "1.000"}
    header = Header("1", "t", "type", headers=headers)

    attributes, packed = copy_attributes(header, "identity", 12.5)

    check(attributes)
    assert copy_of(attributes) == ("identity", 12.5, 2)
    assert from_attributes(unpacked(attributes, packed)[0], "", "t", "id")[0] == header


STRANGE = {
    "deep": "[" * 100_000,
    "no list": "7",
    "two numbers": "[1,2]",
    "one mapping": "[{}]",
    "a number": '[{"pump-time":7},{}]',
    "a list": '[{"pump-time":[]},{}]',
    "a header of a list": '[{},{"a":[]}]',
    "half a pair": r'[{},{"a":"\ud800"}]',
    "no JSON": "{]",
    "many digits": f"[{'9' * 9000},{{}}]",
}


@pytest.mark.parametrize("text", STRANGE.values(), ids=STRANGE)
def test_what_no_pump_folds_is_a_fault_and_no_error(text: str) -> None:
    attributes = {f"pump-folded-{place}": text[begin : begin + 1024]
                  for place, begin in enumerate(range(0, len(text), 1024))}  # fmt: skip

    header, fault = from_attributes({**attributes, "a": "b"}, "", "t", "id")

    assert "pump-folded" in fault
    assert (header.id, header.headers) == ("id", {"a": "b"})
    packed = {"pump-packed": str(len(text)), "a": "b"}
    assert unpacked(packed, text.encode()) == (packed, text.encode())


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e400", "soon", ""])
def test_what_is_no_time_is_a_fault(text: str) -> None:
    header, fault = from_attributes({"pump-time": text}, "", "t", "id")

    assert header.timestamp == 0.0
    assert "must be a time" in fault


@pytest.mark.parametrize("count", [101, 500])
def test_many_headers_are_folded_and_too_much_is_refused(count: int) -> None:
    header = Header("1", "t", headers={f"h{number}": "v" * 50 for number in range(count)})
    attributes, key = to_attributes(header)
    check(attributes)
    assert from_attributes(attributes, key, "t", "id")[0] == header

    with pytest.raises(ValueError, match="too many, or too large"):
        to_attributes(Header("1", "t", headers={"x": "\1" * 100_000}))


def test_what_cannot_be_written_is_refused() -> None:
    with pytest.raises(ValueError, match="surrogates"):
        to_attributes(Header("1", "t", headers={"x": "\ud800"}))


def delivery(name: str, now: float = 0.0, longest: float = 100.0) -> PubSubDelivery:
    return PubSubDelivery(name, now, 10.0, longest=longest, name="s")


def test_deliveries_that_end_soon_are_renewed_and_those_that_have_ended_are_lost() -> None:
    deliveries = PubSubDeliveries()
    ended, ending, fresh = delivery("ended", -11.0), delivery("ending", -5.0), delivery("fresh")
    for each in (ended, ending, fresh):
        deliveries.add(each)

    assert deliveries.to_renew(0.0, 6.0) == [ending]

    assert ended.lost
    deliveries.renewed([ending], 0.0, 10.0)
    assert ending.expires == 10.0
    assert len(deliveries) == 2


def test_only_a_final_refusal_loses_a_delivery() -> None:
    deliveries = PubSubDeliveries()
    one, two = delivery("one"), delivery("two")
    deliveries.add(one)
    deliveries.add(two)

    deliveries.refused({"one": "PERMANENT_FAILURE_INVALID_ACK_ID", "two": "TRANSIENT_FAILURE_X", "strange": "P"})

    assert one.lost
    assert not two.lost


def test_a_delivery_is_renewed_no_longer_than_it_may() -> None:
    deliveries = PubSubDeliveries()
    one = delivery("one", longest=12.0)
    deliveries.add(one)
    deliveries.renewed([one], 5.0, 10.0)
    assert one.expires == 12.0

    assert deliveries.to_renew(11.5, 20.0) == []

    assert "longest_lease" in one.lost
