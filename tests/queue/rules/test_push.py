"""Storing messages: which are stored, which are not, and what results a caller gets."""

import re
import threading
import uuid

import pytest

from pump.queue.engine import Engine
from pump.queue.errors import BadRequest
from pump.queue.vocabulary import DEFAULT_PARTITION, Filter, Push, State
from support.queue_rig import Rig

UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


@pytest.mark.requirement("Q-10", "Q-58")
def test_a_push_makes_its_queue_and_partition(engine: Engine) -> None:
    (pushed,) = engine.push([Push("made.here", b"{}")])

    (info,) = engine.queues("made.here")
    assert (info.namespace, info.task) == ("made", "here")
    assert [each.name for each in info.partitions] == [DEFAULT_PARTITION]
    assert pushed.partition_id == info.partitions[0].id
    assert not pushed.duplicate
    assert not pushed.refused
    assert str(uuid.UUID(pushed.transaction_id)) == pushed.transaction_id
    assert UUID7.fullmatch(pushed.message_id)


@pytest.mark.requirement("Q-10")
def test_a_message_is_delivered_as_it_was_pushed(either: Rig) -> None:
    trace_id = str(uuid.uuid4())
    (pushed,) = either.push("1", partition="P", trace_id=trace_id, producer="shop")

    (got,) = either.pop()

    assert (got.id, got.transaction_id, got.partition_id) == (pushed.message_id, "1", pushed.partition_id)
    assert (got.partition, got.queue, got.payload) == ("P", either.queue, b"1")
    assert (got.trace_id, got.producer, got.sequence) == (trace_id, "shop", 1)
    assert (got.deliveries, got.retries, got.crashes) == (1, 0, 0)
    assert got.lease_id


@pytest.mark.requirement("Q-10")
@pytest.mark.parametrize(
    "payload",
    [b"", b"null", b"0", b"false", b'""', b'"\\u0000"', b'{"a":1,"a":2}', bytes(range(256)), b"x" * 1_000_000],
)
def test_every_payload_comes_back_byte_for_byte(either: Rig, payload: bytes) -> None:
    either.engine.push([Push(either.queue, payload, transaction_id="1")])

    (got,) = either.pop()
    assert got.payload == payload
    stored = either.engine.message(got.partition_id, "1")
    assert stored is not None
    assert stored.payload == payload


@pytest.mark.requirement("Q-56", "Z-13")
def test_pushing_again_stores_nothing_and_answers_with_the_first(either: Rig) -> None:
    (first,) = either.push("1")

    again, other = either.push("1", "2")

    assert (again.duplicate, again.message_id, again.partition_id) == (True, first.message_id, first.partition_id)
    assert not other.duplicate
    assert either.names() == ["1", "2"]


@pytest.mark.requirement("Q-56")
def test_the_same_message_twice_in_one_call_is_stored_once(either: Rig) -> None:
    answers = either.push("1", "2", "1")

    assert [each.duplicate for each in answers] == [False, False, True]
    assert answers[2].message_id == answers[0].message_id
    assert either.names() == ["1", "2"]


@pytest.mark.requirement("Q-56")
def test_a_message_that_is_completed_is_still_known(either: Rig) -> None:
    either.push("1")
    either.complete(either.pop())

    assert either.push("1")[0].duplicate
    assert either.names() == []


@pytest.mark.requirement("Q-56")
def test_of_racing_pushes_of_one_message_one_is_stored(either: Rig) -> None:
    answers: list[bool] = []
    threads = [threading.Thread(target=lambda: answers.append(either.push("1")[0].duplicate)) for _ in range(20)]

    for each in threads:
        each.start()
    for each in threads:
        each.join(30)

    assert sorted(answers) == [False] + [True] * 19
    assert either.names() == ["1"]


@pytest.mark.requirement("Q-57")
def test_answers_are_in_the_order_of_the_items(engine: Engine) -> None:
    items = [
        Push(f"q{index % 3}", b"", partition=f"p{index % 2}", transaction_id=str(index // 2)) for index in range(40)
    ]

    answers = engine.push(items)

    assert [(each.queue, each.partition, each.transaction_id) for each in answers] == [
        (each.queue, each.partition, each.transaction_id) for each in items
    ]


def refused_items() -> list[Push]:
    return [
        Push("", b""),
        Push("q" * 256, b""),
        Push("q\0", b""),
        Push("q\n", b""),
        Push("\ud800", b""),
        Push("q", b"", partition=""),
        Push("q", b"", partition="\x7f"),
        Push("q", b"", transaction_id="x" * 256),
        Push("q", b"", transaction_id="é" * 128),
        Push("q", b"", transaction_id="a\0b"),
        Push("q", b"", trace_id="not a uuid"),
        Push("q", b"", trace_id=""),
        Push("q", b"x" * 1_000_001),
        Push("q", b"", delay=-1.0),
        Push("q", b"", delay=float("nan")),
        Push("q", b"", not_before=float("inf")),
        Push("q", b"", producer="\0"),
    ]


@pytest.mark.requirement("Q-72", "Z-11")
@pytest.mark.parametrize("item", refused_items())
def test_what_no_database_could_keep_is_refused_before_anything_is_stored(engine: Engine, item: Push) -> None:
    with pytest.raises(BadRequest, match="item 1: "):
        engine.push([Push("q", b""), item])

    assert list(engine.queues()) == []


@pytest.mark.requirement("Q-58")
@pytest.mark.parametrize("name", ["a/b", "a b", "%2F", "ü", "𝄞", "'; drop table message; --", "x" * 255])
def test_names_are_any_text(engine: Engine, name: str) -> None:
    rig = Rig(engine, queue=name)

    rig.push("1", partition=name)

    assert rig.names(partition=name, group=name) == ["1"]


@pytest.mark.requirement("Q-51")
def test_a_message_that_is_not_due_has_no_place_and_keeps_nobody_back(either: Rig) -> None:
    (first,) = either.push("later", delay=60.0)
    either.push("now")

    assert first.scheduled
    assert either.names() == ["now"]
    assert either.take().due_in == pytest.approx(60, abs=1)
    assert either.states() == {"later": State.PENDING, "now": State.LEASED}
    stored = either.engine.message(first.partition_id, "later")
    assert stored is not None
    assert (stored.sequence, stored.payload) == (None, b"later")
    assert either.progress().pending == 1


@pytest.mark.requirement("Q-51")
def test_a_message_gets_its_place_when_it_is_due(either: Rig) -> None:
    either.push("b", delay=60.0)
    either.push("a", delay=30.0)
    either.push("first")
    either.later(61)
    either.push("last")

    assert either.names() == ["first", "a", "b", "last"]


@pytest.mark.requirement("Q-51")
def test_the_later_of_moment_and_delay_counts(either: Rig) -> None:
    either.push("probe")
    now = either.pop()[0].created_at
    either.push("1", not_before=now + 100, delay=50.0)
    either.push("2", not_before=now + 50, delay=100.0)
    either.push("3", not_before=now - 100)

    assert either.names(10, group="g") == ["probe", "3"]
    either.later(75)
    assert either.names(group="h") == ["probe", "3"]
    either.later(30)
    assert either.names(group="i") == ["probe", "3", "1", "2"]


@pytest.mark.requirement("Q-51", "Q-56")
def test_a_message_that_is_not_due_is_known(either: Rig) -> None:
    (first,) = either.push("1", delay=60.0)

    (again,) = either.push("1")

    assert (again.duplicate, again.message_id) == (True, first.message_id)
    assert either.names() == []
    either.later(61)
    assert either.names() == ["1"]
    assert either.push("1")[0].duplicate


@pytest.mark.requirement("Q-51")
def test_maintenance_says_when_the_next_is_due(either: Rig) -> None:
    either.push("1", delay=30.0)
    assert either.engine.maintain() == pytest.approx(30, abs=1)
    either.later(31)

    either.engine.maintain()

    stored = either.engine.stored(Filter(queue=either.queue))
    assert [each.sequence for each in stored] == [1]


@pytest.mark.requirement("Q-67")
def test_a_full_queue_says_so_and_takes_what_fits(either: Rig) -> None:
    either.configure(max_size=3)

    answers = either.push("1", "2", "3", "4")

    assert [each.refused for each in answers] == ["", "", "", "queue is full"]
    assert answers[3].message_id == ""
    assert [each.refused for each in either.push("1", "5")] == ["", "queue is full"]
    either.one(either.pop(1)[0])
    assert [each.refused for each in either.push("5", delay=5.0)] == [""]
    assert [each.refused for each in either.push("6")] == ["queue is full"]


@pytest.mark.requirement("Q-67")
def test_a_full_queue_does_not_hold_back_another(either: Rig) -> None:
    either.configure(max_size=1)
    either.push("1")

    answers = either.engine.push([Push(either.queue, b""), Push("other", b"")])

    assert [each.refused for each in answers] == ["queue is full", ""]


@pytest.mark.requirement("Z-14", "Z-11")
def test_more_at_once_than_a_call_may_carry_is_refused(engine: Engine) -> None:
    with pytest.raises(BadRequest):
        engine.push([Push("q", b"")] * 10_001)
