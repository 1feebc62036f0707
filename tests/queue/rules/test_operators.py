"""Operators' calls: options, seeking, deleting, listings, retention, notes."""

import uuid
from collections.abc import Callable
from dataclasses import fields

import pytest

from pump.queue.engine import Engine
from pump.queue.errors import BadRequest, Conflict, NotFound
from pump.queue.options import QueueOptions
from pump.queue.vocabulary import DEFAULT_GROUP, Filter, PopRequest, Push, State, Trace
from support.queue_rig import BACK, DEAD, FAIL, Rig


@pytest.mark.requirement("Q-67")
def test_options_are_replaced_as_a_whole(engine: Engine) -> None:
    changed = QueueOptions(
        ordered=False, lease_time=7.0, retry_limit=9, retry_delay=3.0, max_size=11, ttl=12.0, priority=13,
        delayed_processing=1.5, window_buffer=2.5, dead_letter_queue=False, dead_letter_after_max_retries=False,
        max_wait_time=99.0, retention_enabled=True, retention=100.0, completed_retention=50.0,
    )  # fmt: skip
    assert engine.options("q") is None

    engine.configure("q", changed, namespace="n", task="t")
    assert engine.options("q") == changed
    (info,) = engine.queues("q")
    assert (info.namespace, info.task, info.ordered) == ("n", "t", False)
    engine.configure("q", QueueOptions(ordered=False, retry_limit=None))

    assert engine.options("q") == QueueOptions(ordered=False, retry_limit=None)
    assert (engine.queues("q")[0].namespace, engine.queues("q")[0].task) == ("n", "t")


@pytest.mark.requirement("Q-67")
def test_the_options_of_a_queue_that_was_only_pushed_to_are_the_defaults(engine: Engine) -> None:
    engine.push([Push("q", b"")])

    assert engine.options("q") == QueueOptions()
    assert len(fields(QueueOptions)) == 16


@pytest.mark.requirement("Q-55")
def test_the_mode_does_not_change_while_somebody_has_a_lease(either: Rig) -> None:
    either.push("1", "2")
    (message,) = either.pop(1)
    other = QueueOptions(ordered=not either.ordered, retry_delay=0.0)

    with pytest.raises(Conflict):
        either.engine.configure(either.queue, other)
    either.one(message, BACK)
    either.engine.configure(either.queue, other)

    taken = either.pop(ordered=not either.ordered)
    assert [each.transaction_id for each in taken] == ["1", "2"]
    assert all(each.success for each in either.complete(taken))


@pytest.mark.requirement("Q-55")
def test_the_mode_may_change_when_leases_have_ended(either: Rig) -> None:
    either.push("1", "2")
    either.pop(1)
    either.expire()

    either.engine.configure(either.queue, QueueOptions(ordered=not either.ordered))

    assert sorted(either.names(ordered=None)) == ["1", "2"]


@pytest.mark.requirement("Q-62")
def test_nobody_gets_a_message_younger_than_the_queue_says(either: Rig) -> None:
    either.configure(delayed_processing=10.0)
    either.push("1")
    either.later(6)
    either.push("2")

    assert either.names() == []
    assert either.take().due_in == pytest.approx(4, abs=1)
    either.later(5)
    assert either.names(auto_ack=True) == ["1"]
    either.later(6)
    assert either.names() == ["2"]


@pytest.mark.requirement("Q-62")
def test_a_partition_is_withheld_until_nothing_came_for_a_while(either: Rig) -> None:
    either.configure(window_buffer=10.0)
    either.push("1")
    either.later(6)
    either.push("2")
    either.later(6)

    assert either.take(partition="Default").why_empty == "window_buffer"
    assert either.names() == []
    assert either.take().due_in == pytest.approx(4, abs=1)
    either.later(5)

    assert either.names() == ["1", "2"]


@pytest.mark.requirement("Q-63")
def test_nothing_goes_unless_retention_is_switched_on(either: Rig) -> None:
    either.configure(retention=10.0, completed_retention=10.0)
    either.push("1", "2")
    either.complete(either.pop(1))
    either.later(1000)

    either.engine.maintain()

    assert either.states() == {"1": State.COMPLETED, "2": State.PENDING}


@pytest.mark.requirement("Q-63", "Z-12")
def test_what_is_still_pending_when_it_goes_is_a_dead_letter(either: Rig) -> None:
    either.configure(retention_enabled=True, retention=100.0)
    either.push("done", "left", "waiting")
    done, _ = either.pop(2)
    either.one(done)
    either.expire()
    either.push("young")

    while either.engine.maintain() == 0:
        pass

    assert set(either.states()) == {"young"}
    assert either.dead_names() == ["left", "waiting"]
    assert {each.reason for each in either.dead()} == {"retention"}
    assert either.names() == ["young"]


@pytest.mark.requirement("Q-63")
def test_retention_makes_a_dead_letter_for_each_group_that_lags(either: Rig) -> None:
    either.configure(retention_enabled=True, retention=100.0)
    either.push("1", "2")
    either.complete(either.pop(group="quick"), group="quick")
    either.complete(either.pop(1, group="slow"), group="slow")
    either.later(101)

    either.engine.maintain()

    assert [(each.transaction_id, each.group, each.reason) for each in either.dead()] == [("2", "slow", "retention")]
    assert either.states("slow") == {}
    assert either.progress(group="slow").pending == 0
    either.push("3")
    assert either.names(group="slow") == ["3"]
    assert either.names(group="quick") == ["3"]


@pytest.mark.requirement("Q-63")
def test_what_is_leased_does_not_go(either: Rig) -> None:
    either.configure(retention_enabled=True, retention=100.0, lease_time=1000.0)
    either.push("1")
    (message,) = either.pop()
    either.later(200)

    either.engine.maintain()

    assert either.one(message).success
    assert either.dead() == []
    either.engine.maintain()
    assert either.states() == {}


@pytest.mark.requirement("Q-63")
def test_completed_messages_go_when_every_group_is_done_with_them(either: Rig) -> None:
    either.configure(retention_enabled=True, completed_retention=100.0)
    either.push("1", "2", "3")
    either.complete(either.pop(group="a"), group="a")
    either.complete(either.pop(1, group="b"), group="b")

    either.engine.maintain()
    assert set(either.states("a")) == {"1", "2", "3"}
    either.later(101)
    either.engine.maintain()

    assert set(either.states("a")) == {"2", "3"}
    assert either.names(group="b") == ["2", "3"]
    assert either.names(group="late") == ["2", "3"]
    assert either.progress(group="late").leased == 2
    assert either.dead() == []


@pytest.mark.requirement("Q-56", "Q-63")
def test_a_message_that_is_gone_may_be_pushed_again(either: Rig) -> None:
    either.configure(retention_enabled=True, completed_retention=100.0)
    either.push("1")
    either.complete(either.pop())
    either.later(101)
    either.engine.maintain()

    assert not either.push("1")[0].duplicate
    assert either.names() == ["1"]


@pytest.mark.requirement("Q-65")
def test_a_group_may_be_moved_to_a_moment_or_to_the_end(either: Rig) -> None:
    for name in ("1", "2", "3"):
        either.push(name)
        either.later(100)
    first, *_ = taken = either.pop()
    either.complete(taken)
    moment = taken[1].created_at

    assert either.engine.seek(DEFAULT_GROUP, either.queue, moment) == 1
    assert either.names() == ["2", "3"]
    either.engine.seek(DEFAULT_GROUP, either.queue, 0.0)
    assert either.names() == ["1", "2", "3"]
    either.engine.seek(DEFAULT_GROUP, either.queue, None)

    assert either.names() == []
    assert not either.one(first, FAIL).success
    assert set(either.states().values()) == {State.COMPLETED}
    either.push("4")
    assert either.names() == ["4"]


@pytest.mark.requirement("Q-65", "Z-09")
def test_leases_end_when_their_group_is_moved(either: Rig) -> None:
    either.push("1", "2")
    taken = either.take()

    either.engine.seek(DEFAULT_GROUP, either.queue, 0.0)

    assert not either.engine.extend(taken.lease_id).success
    assert {each.success for each in either.complete(taken.messages)} == {False}
    assert either.names() == ["1", "2"]


@pytest.mark.requirement("Q-65")
def test_one_partition_may_be_moved_alone(either: Rig) -> None:
    either.push("1", partition="A")
    either.push("2", partition="B")
    either.complete(either.pop(partitions=2))

    assert either.engine.seek(DEFAULT_GROUP, either.queue, 0.0, "B") == 1

    assert either.names(partitions=2) == ["2"]
    with pytest.raises(NotFound):
        either.engine.seek(DEFAULT_GROUP, either.queue, 0.0, "C")
    with pytest.raises(NotFound):
        either.engine.seek("nobody", either.queue, 0.0)
    with pytest.raises(NotFound):
        either.engine.seek(DEFAULT_GROUP, "nothing", 0.0)


@pytest.mark.requirement("Q-65", "Z-01")
def test_a_dead_message_that_a_group_goes_back_to_is_pending_and_may_be_completed(either: Rig) -> None:
    either.push("1")
    either.one(either.pop()[0], DEAD)

    either.engine.seek(DEFAULT_GROUP, either.queue, 0.0)

    assert either.states() == {"1": State.PENDING}
    either.complete(either.pop())
    assert either.states() == {"1": State.COMPLETED}
    assert either.dead_names() == ["1"]


@pytest.mark.requirement("Q-39", "Q-65")
def test_a_message_that_dies_again_after_its_group_went_back_has_one_dead_letter(either: Rig) -> None:
    either.push("1")
    either.one(either.pop()[0], DEAD, error="first")
    either.engine.seek(DEFAULT_GROUP, either.queue, 0.0)

    either.one(either.pop()[0], DEAD, error="second")

    assert [each.error for each in either.dead()] == ["second"]
    assert either.states() == {"1": State.DEAD}


@pytest.mark.requirement("Q-65")
def test_a_group_that_was_deleted_begins_anew(either: Rig) -> None:
    either.push("1", "2")
    (message, _) = either.pop(group="g")
    either.one(message, group="g")

    assert either.engine.delete_group("g", either.queue)

    assert not either.engine.delete_group("g", either.queue)
    assert not either.engine.delete_group("g", "no such queue")
    assert either.engine.groups("g") == []
    assert either.names(group="g") == ["1", "2"]
    assert either.engine.delete_group("g")


@pytest.mark.requirement("Q-65")
def test_a_queue_that_was_deleted_is_another_one(either: Rig) -> None:
    (pushed,) = either.push("1")
    (message,) = either.pop()

    assert either.engine.delete_queue(either.queue)
    assert not either.engine.delete_queue(either.queue)

    assert either.engine.options(either.queue) is None
    assert either.one(message).message == "not_found"
    assert either.push("1")[0].message_id != pushed.message_id
    assert either.names(ordered=None) == ["1"]


@pytest.mark.requirement("Q-65")
def test_a_queue_or_partition_may_be_emptied(either: Rig) -> None:
    either.push("1", "2", partition="A")
    either.push("3", partition="B")
    either.push("4", partition="A", delay=50.0)
    (message,) = either.pop(1, partition="A")

    assert either.engine.clear(either.queue, "A") == 3
    assert either.names(partitions=9) == ["3"]
    assert either.engine.clear(either.queue) == 1

    assert either.states() == {}
    assert either.one(message).message == "not_found"
    either.push("1", partition="A")
    assert either.names() == ["1"]
    with pytest.raises(NotFound):
        either.engine.clear("nothing")
    with pytest.raises(NotFound):
        either.engine.clear(either.queue, "nothing")


def test_a_lease_whose_time_is_over_ends_with_its_last_message_though_the_clock_goes_back(rig: Rig) -> None:
    (pushed,) = rig.push("1")
    (message,) = rig.pop()
    rig.expire()

    assert rig.engine.delete_message(pushed.partition_id, "1")
    rig.later(-100)
    rig.push("2")

    assert not rig.engine.extend(message.lease_id, 5000).success
    rig.later(100)
    assert rig.names() == ["2"]


@pytest.mark.requirement("Q-53", "Z-01")
def test_a_message_may_be_removed_for_all_groups(either: Rig) -> None:
    pushed = either.push("1", "2", "3")
    either.push("4", delay=60.0)
    either.pop(1, group="g")
    partition_id = pushed[0].partition_id

    removed = [either.engine.delete_message(partition_id, name) for name in ("1", "2", "4", "2", "unknown")]

    assert removed == [True, True, True, False, False]
    assert either.names() == ["3"]
    assert either.names(group="g") == ["3"]
    (group,) = either.engine.groups("g")
    assert group.lag == 1
    either.later(61)
    assert not either.engine.delete_message("not a uuid", "1")


@pytest.mark.requirement("Q-53")
def test_a_removed_message_is_not_counted_by_anybody(either: Rig) -> None:
    pushed = either.push("1", "2", "3")
    either.engine.subscribe(either.queue, "old")
    either.engine.delete_message(pushed[1].partition_id, "2")
    either.engine.subscribe(either.queue, "young")

    assert {each.name: each.lag for each in either.engine.groups()} == {"old": 2, "young": 2}
    assert either.names(1, group="old") == ["1"]
    assert {each.lag for each in either.engine.groups()} == {2}


@pytest.mark.requirement("Q-01", "Q-27")
def test_messages_are_listed_newest_first_with_their_states(either: Rig) -> None:
    for name in ("1", "2", "3", "4"):
        either.push(name, partition="A" if name in "13" else "B")
        either.later(10)
    taken = {each.transaction_id: each for each in either.pop(3, partitions=2)}
    either.one(taken["1"])
    either.one(taken["2"], DEAD, error="broken")

    listed = either.engine.stored(Filter(queue=either.queue))

    assert [each.transaction_id for each in listed] == ["4", "3", "2", "1"]
    assert [each.payload for each in listed] == [None] * 4
    states = {each.transaction_id: each.states[DEFAULT_GROUP] for each in listed}
    assert (states["1"], states["2"], states["4"]) == (State.COMPLETED, State.DEAD, State.PENDING)
    moment = listed[1].created_at
    assert [each.transaction_id for each in either.engine.stored(Filter(partition="A"))] == ["3", "1"]
    assert [each.transaction_id for each in either.engine.stored(Filter(state=State.DEAD))] == ["2"]
    assert [each.transaction_id for each in either.engine.stored(Filter(since=moment - 1))] == ["4", "3"]
    assert [each.transaction_id for each in either.engine.stored(Filter(until=moment - 1))] == ["2", "1"]
    assert [each.transaction_id for each in either.engine.stored(Filter(limit=2, offset=1))] == ["3", "2"]
    assert either.engine.stored(Filter(queue="other")) == []


@pytest.mark.requirement("Q-27")
def test_a_message_is_shown_with_its_payload_lease_and_states(either: Rig) -> None:
    either.push("1")
    taken = either.take(group="a")
    either.engine.subscribe(either.queue, "b")

    found = either.engine.message(taken.messages[0].partition_id, "1")

    assert found is not None
    assert (found.payload, found.states) == (b"1", {"a": State.LEASED, "b": State.PENDING})
    assert found.lease_until == pytest.approx(taken.expires_at)
    assert either.engine.message(found.partition_id, "unknown") is None
    assert either.engine.message(str(uuid.uuid4()), "1") is None
    assert either.engine.message("not a uuid", "1") is None


@pytest.mark.requirement("Q-27")
def test_a_message_that_no_group_knows_is_pending(engine: Engine) -> None:
    (pushed,) = engine.push([Push("q", b"")])

    found = engine.message(pushed.partition_id, pushed.transaction_id)

    assert found is not None
    assert found.states == {DEFAULT_GROUP: State.PENDING}


@pytest.mark.requirement("Q-53")
def test_a_queue_is_shown_with_its_partitions_and_everybodys_progress(either: Rig) -> None:
    either.push("1", "2", "3", "4")
    either.push("5", delay=60.0)
    taken = either.pop(3)
    either.settle((taken[0], DEAD))
    if not either.ordered:
        either.one(taken[1])

    (info,) = either.engine.queues(either.queue)

    (partition,) = info.partitions
    (progress,) = partition.progress
    assert (partition.messages, partition.last_sequence) == (5, 4)
    done = 0 if either.ordered else 1
    assert (progress.group, progress.dead, progress.completed) == (DEFAULT_GROUP, 1, done)
    assert (progress.leased, progress.pending) == (2 - done, 2)
    assert progress.cursor == 1 + done
    assert [len(each.partitions) for each in either.engine.queues()] == [0]
    assert list(either.engine.queues("nothing")) == []


@pytest.mark.requirement("Q-66")
def test_notes_are_found_by_message_and_by_name(engine: Engine) -> None:
    partition_id, other = str(uuid.uuid4()), str(uuid.uuid4())
    noted = [
        Trace(
            transaction_id="1", partition_id=partition_id, data=b'{"a":1}', group="g", event="step", names=("n", "m")
        ),
        Trace(transaction_id="1", partition_id=partition_id, data=b"[]"),
        Trace(transaction_id="1", partition_id=other, data=b"null", names=("m",)),
    ]

    ids = [engine.add_trace(each) for each in noted]

    assert [each.id for each in engine.traces(partition_id=partition_id, transaction_id="1")] == ids[:2]
    assert [each.id for each in engine.traces(name="m")] == [ids[0], ids[2]]
    assert [each.id for each in engine.traces(name="m", limit=1, offset=1)] == [ids[2]]
    assert list(engine.trace_names()) == ["m", "n"]
    (found,) = engine.traces(name="n")
    assert (found.transaction_id, found.partition_id, found.data) == ("1", partition_id, b'{"a":1}')
    assert (found.group, found.event, sorted(found.names)) == ("g", "step", ["m", "n"])
    assert found.created_at > 0


@pytest.mark.requirement("Q-66")
def test_a_note_that_could_not_be_found_again_is_refused(engine: Engine) -> None:
    with pytest.raises(BadRequest):
        engine.add_trace(Trace(transaction_id="1", partition_id="not a uuid", data=b""))
    with pytest.raises(BadRequest):
        engine.add_trace(Trace(transaction_id="", partition_id=str(uuid.uuid4()), data=b""))


@pytest.mark.requirement("Q-60")
def test_the_same_queue_is_meant_by_everybody(make_engine: Callable[..., Engine], engine: Engine) -> None:
    other = make_engine()

    engine.push([Push("q", b"x", transaction_id="1")])

    assert [each.transaction_id for each in other.pop(PopRequest(queue="q")).messages] == ["1"]
    assert not engine.pop(PopRequest(queue="q")).messages
