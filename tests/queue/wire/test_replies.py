"""The server writes the expected JSON."""

import base64
import json
from datetime import UTC, datetime

from hypothesis import example, given
from hypothesis import strategies as st

from pump.queue.vocabulary import Leased, PopRequest, PopResult, Pushed, Settled
from pump.queue.wire.replies import popped, pushed, settled
from pump.queue.wire.times import time_text

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SECONDS = st.floats(0, 4e9)
MESSAGES = st.builds(
    lambda partition_id, **others: Leased(
        partition_id=partition_id, partition=f"called {partition_id}", queue='the "queue"\\', **others
    ),
    id=TEXTS,
    transaction_id=TEXTS,
    partition_id=st.sampled_from(["one", '"two"']),
    payload=st.sampled_from([b'{"a": 1,"a":2}', b" 0 ", '"\\u0000é"'.encode(), b"", b"\xff", b'"\\ud800"']),
    created_at=SECONDS,
    sequence=st.integers(1),
    deliveries=st.integers(1),
    retries=st.integers(0),
    crashes=st.integers(0),
    lease_id=st.sampled_from(["red", "blue"]),
    trace_id=st.none() | TEXTS,
    producer=st.none() | TEXTS,
)


@given(SECONDS)
@example(0.0)
@example(1.9999996)
@example(1_789_000_000.9999999)
@example(1e-7)
def test_a_time_is_written_to_the_nearest_microsecond(seconds: float) -> None:
    expected = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")

    assert time_text(seconds) == expected.replace("+00:00", "Z")


def test_no_time_is_null() -> None:
    assert time_text(None) is None


@given(st.lists(MESSAGES, min_size=1, max_size=5), TEXTS, st.booleans())
def test_a_reply_to_a_consumer_says_all_of_every_message(messages: list[Leased], group: str, auto_ack: bool) -> None:
    want = PopRequest(queue="q", group=group, auto_ack=auto_ack)

    reply = popped(want, PopResult(messages, "lease", 0.5, 2))

    assert json.loads(reply) == {
        "success": True,
        "queue": "q",
        "partition": messages[0].partition,
        "partitionId": messages[0].partition_id,
        "leaseId": "" if auto_ack else "lease",
        "expiresAt": None if auto_ack else "1970-01-01T00:00:00.500000Z",
        "consumerGroup": group,
        "partitionsClaimed": 2,
        "messages": [expected(each, want) for each in messages],
    }
    for each in messages:
        assert not is_json(each.payload) or b'"data":' + each.payload + b"}" in reply


def expected(message: Leased, want: PopRequest) -> dict[str, object]:
    """One message as it should be read."""
    found: dict[str, object] = {
        "id": message.id,
        "transactionId": message.transaction_id,
        "traceId": message.trace_id,
        "producerSub": message.producer,
        "createdAt": time_text(message.created_at),
        "queue": message.queue,
        "partitionId": message.partition_id,
        "partition": message.partition,
        "leaseId": "" if want.auto_ack else message.lease_id,
        "consumerGroup": want.group,
        "sequence": message.sequence,
        "deliveries": message.deliveries,
        "retries": message.retries,
        "crashes": message.crashes,
    }
    if is_json(message.payload):
        return {**found, "data": json.loads(message.payload)}
    return {**found, "data": base64.b64encode(message.payload).decode(), "dataEncoding": "base64"}


def is_json(payload: bytes) -> bool:
    return payload not in {b"", b"\xff", b'"\\ud800"'}


@given(st.lists(st.builds(Pushed, *[TEXTS] * 5, st.booleans(), st.sampled_from(["", "queue is full"]), st.booleans())))
def test_producers_are_told_what_became_of_each_message(results: list[Pushed]) -> None:
    assert json.loads(pushed(results)) == [expected_push(index, each) for index, each in enumerate(results)]


def expected_push(index: int, result: Pushed) -> dict[str, object]:
    status = "failed" if result.refused else "duplicate" if result.duplicate else "queued"
    found = {
        "index": index,
        "transaction_id": result.transaction_id,
        "queueName": result.queue,
        "status": status,
    }
    if status == "failed":
        return {**found, "error": result.refused}
    if status == "duplicate":
        return {**found, "message_id": result.message_id}
    stored = {
        **found,
        "message_id": result.message_id,
        "partition_id": result.partition_id,
        "trace_id": result.trace_id,
    }
    return {**stored, "scheduled": True} if result.scheduled else stored


@given(
    st.lists(
        st.builds(
            Settled, TEXTS, st.booleans(), st.sampled_from(["acknowledged", "invalid_lease"]), st.none() | TEXTS,
            st.none() | TEXTS, st.none() | TEXTS, st.booleans(), st.booleans(),
        )
    )
)  # fmt: skip
def test_consumers_are_told_what_became_of_each_settlement(results: list[Settled]) -> None:
    errors = {"acknowledged": "acknowledged", "invalid_lease": "Invalid or expired lease"}

    assert json.loads(settled(results)) == [
        {
            "index": index,
            "transactionId": each.transaction_id,
            "success": each.success,
            "message": each.message,
            "error": None if each.success else each.error or errors[each.message],
            "queueName": each.queue,
            "partitionName": each.partition,
            "leaseReleased": each.lease_released,
            "dlq": each.dead,
        }
        for index, each in enumerate(results)
    ]
