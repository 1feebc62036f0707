"""Operators' actions on unsettled messages: give them up or complete them, for one group or for all."""

import logging

import pytest

from pump.queue.errors import NotFound
from pump.queue.vocabulary import DEFAULT_GROUP, PopRequest, State
from support.queue_rig import FAIL, Rig


@pytest.mark.requirement("Z-01", "Q-38")
def test_a_pending_message_is_given_up_for_every_group_that_has_not_settled_it(either: Rig) -> None:
    (pushed, *_) = either.push("1", "2")
    either.complete(either.pop(1, group="done"), group="done")
    either.engine.subscribe(either.queue, "a")
    either.engine.subscribe(either.queue, "b")

    number = either.engine.give_up(pushed.partition_id, "1", error="it is poison")

    assert number == 2
    assert either.states("a") == {"1": State.DEAD, "2": State.PENDING}
    assert either.states("done") == {"1": State.COMPLETED, "2": State.PENDING}
    assert sorted((each.group, each.reason, each.error) for each in either.dead()) == [
        ("a", "operator", "it is poison"),
        ("b", "operator", "it is poison"),
    ]
    assert {(each.retries, each.crashes, each.deliveries) for each in either.dead()} == {(0, 0, 0)}
    assert either.names(group="a") == either.names(group="b") == ["2"]
    assert either.engine.give_up(pushed.partition_id, "1") == 0


@pytest.mark.requirement("Z-01")
def test_a_message_is_given_up_for_one_group_alone(either: Rig) -> None:
    (pushed,) = either.push("1")
    either.engine.subscribe(either.queue, "a")
    either.engine.subscribe(either.queue, "b")

    assert either.engine.give_up(pushed.partition_id, "1", group="a") == 1
    assert either.engine.give_up(pushed.partition_id, "1", group="nobody") == 0

    assert either.names(group="a") == []
    assert either.names(group="b") == ["1"]


@pytest.mark.requirement("Z-01", "Q-53")
def test_what_is_given_up_ahead_of_others_is_passed_over_and_not_counted(either: Rig) -> None:
    pushed = either.push("1", "2", "3", "4", "5")
    either.engine.subscribe(either.queue, DEFAULT_GROUP)
    for name in ("2", "3", "5"):
        either.engine.give_up(pushed[0].partition_id, name)
    (group,) = either.engine.groups()

    assert group.lag == 2
    assert either.progress().pending == 2
    assert either.progress().dead == 3
    assert either.names(1) == ["1"]
    either.expire()
    taken = either.pop()
    assert [each.transaction_id for each in taken] == ["1", "4"]
    either.complete(taken)
    assert (either.progress().completed, either.engine.groups()[0].lag) == (2, 0)
    assert either.engine.groups()[0].lag_seconds == 0
    either.push("6")
    assert either.names() == ["6"]


@pytest.mark.requirement("Q-53")
def test_where_all_that_is_left_was_given_up_nothing_is_ready(either: Rig) -> None:
    (pushed, _) = either.push("1", "2")
    either.engine.subscribe(either.queue, DEFAULT_GROUP)
    either.engine.give_up(pushed.partition_id, "1")
    either.engine.give_up(pushed.partition_id, "2")

    assert either.take().due_in is None
    assert either.take().due_in is None
    assert (either.engine.groups()[0].lag, either.engine.groups()[0].lag_seconds) == (0, 0)
    either.push("3")
    assert either.names() == ["3"]


@pytest.mark.requirement("Z-01", "Q-51")
def test_a_message_that_is_not_due_is_given_up_where_it_is(either: Rig) -> None:
    (pushed,) = either.push("1", delay=60.0)
    either.engine.subscribe(either.queue, "a")
    either.engine.subscribe(either.queue, "b")

    assert either.engine.give_up(pushed.partition_id, "1", group="a") == 1
    assert either.engine.give_up(pushed.partition_id, "1", group="a") == 0

    assert (either.states("a"), either.states("b")) == ({"1": State.DEAD}, {"1": State.PENDING})
    assert [each.payload for each in either.dead()] == [b"1"]
    assert (either.progress(group="a").pending, either.progress(group="b").pending) == (0, 1)
    assert either.push("1")[0].duplicate
    either.later(61)
    either.push("2")
    assert either.names(group="a") == ["2"]
    assert either.names(group="b") == ["1", "2"]
    assert either.states("a") == {"1": State.DEAD, "2": State.LEASED}
    assert either.engine.retry(pushed.partition_id, "1") == 1


@pytest.mark.requirement("Z-09", "Q-12")
def test_whoever_has_a_message_that_is_given_up_has_it_no_more(either: Rig) -> None:
    either.push("1", "2", "3")
    first, *others = either.pop(2)

    assert either.engine.give_up(first.partition_id, "1", error="stop") == 1

    late = either.one(first)
    assert (late.success, late.message) == (False, "invalid_lease")
    (dead,) = either.dead()
    assert (dead.retries, dead.crashes, dead.deliveries) == (0, 0, 1)
    assert [each.success for each in either.complete(others)] == [True]
    assert either.names() == ["3"]


@pytest.mark.requirement("Q-27")
def test_a_lease_ends_when_the_last_message_of_it_is_given_up(rig: Rig) -> None:
    rig.push("1", "2")
    taken = rig.take(1)

    rig.engine.give_up(taken.messages[0].partition_id, "1")

    assert not rig.engine.extend(taken.lease_id).success
    assert rig.names() == ["2"]


@pytest.mark.requirement("Q-55")
@pytest.mark.parametrize("act", ["give_up", "delete_message"])
def test_the_rest_is_ready_when_the_message_that_kept_it_back_is_taken_away(either: Rig, act: str) -> None:
    either.push("1", "2")
    either.one(either.pop(1)[0], FAIL, delay=1000.0, error="first")
    partition_id = either.engine.queues(either.queue)[0].partitions[0].id

    assert getattr(either.engine, act)(partition_id, "1")

    assert either.names() == ["2"]
    assert [(each.error, each.retries, each.deliveries) for each in either.dead()] == (
        [("first", 1, 1)] if act == "give_up" else []
    )


@pytest.mark.requirement("Q-41", "Z-01")
def test_what_was_given_up_ahead_of_others_is_tried_again_in_its_place(either: Rig) -> None:
    pushed = either.push("1", "2", "3")
    either.push("4", delay=60.0)
    either.engine.subscribe(either.queue, DEFAULT_GROUP)
    for name in ("2", "4"):
        either.engine.give_up(pushed[0].partition_id, name)

    assert either.engine.retry(pushed[0].partition_id, "2") == 1
    assert either.engine.retry(pushed[0].partition_id, "4") == 1

    assert either.dead() == []
    assert either.names(2) == ["1", "2"]
    either.expire()
    assert either.names() == ["1", "2", "3", "4"]


@pytest.mark.requirement("Q-65")
def test_a_group_that_goes_back_finds_pending_what_was_given_up_ahead(either: Rig) -> None:
    pushed = either.push("1", "2")
    either.push("3", delay=60.0)
    either.engine.subscribe(either.queue, DEFAULT_GROUP)
    for name in ("2", "3"):
        either.engine.give_up(pushed[0].partition_id, name)

    either.engine.seek(DEFAULT_GROUP, either.queue, 0.0)

    assert set(either.states().values()) == {State.PENDING}
    assert either.progress().pending == 3
    assert either.names() == ["1", "2"]
    assert either.engine.give_up(pushed[0].partition_id, "3") == 1
    assert either.dead_names() == ["2", "3"]


@pytest.mark.requirement("Z-01")
def test_what_was_given_up_ahead_may_be_deleted(either: Rig) -> None:
    pushed = either.push("1", "2", "3")
    either.push("4", delay=60.0)
    either.engine.subscribe(either.queue, DEFAULT_GROUP)
    for name in ("2", "4"):
        either.engine.give_up(pushed[0].partition_id, name)

    removed = [either.engine.delete_message(pushed[0].partition_id, name) for name in ("2", "4")]

    assert removed == [True, True]
    assert either.engine.groups()[0].lag == 2
    assert (either.progress().pending, either.progress().completed) == (2, 0)
    assert either.names() == ["1", "3"]
    either.later(61)
    assert either.dead_names() == ["2", "4"]


@pytest.mark.requirement("Q-37")
def test_where_nobody_ever_consumed_a_message_is_given_up_for_the_default_group(either: Rig) -> None:
    (pushed,) = either.push("1")

    assert either.engine.give_up(pushed.partition_id, "unknown") == 0
    assert list(either.engine.groups()) == []
    assert either.engine.give_up(pushed.partition_id, "1") == 1

    assert [each.group for each in either.dead()] == [DEFAULT_GROUP]
    assert either.names() == []
    assert either.names(group="late") == ["1"]


@pytest.mark.requirement("Q-38")
def test_what_is_not_there_is_not_given_up(either: Rig) -> None:
    (pushed,) = either.push("1")

    assert either.engine.give_up("not a uuid", "1") == 0
    assert either.engine.give_up(pushed.partition_id, "a\0b") == 0
    assert either.engine.give_up(pushed.message_id, "1") == 0
    assert either.engine.give_up(pushed.partition_id, "\ud800") == 0
    assert either.dead() == []


@pytest.mark.requirement("Q-37")
def test_the_longest_wait_leaves_alone_what_was_given_up_ahead(either: Rig) -> None:
    either.configure(max_wait_time=60.0)
    pushed = either.push("1", "2")
    either.engine.subscribe(either.queue, DEFAULT_GROUP)
    either.engine.give_up(pushed[0].partition_id, "2")
    either.later(61)

    either.engine.maintain()

    assert sorted((each.transaction_id, each.reason) for each in either.dead()) == [
        ("1", "max_wait_time"),
        ("2", "operator"),
    ]
    assert either.engine.groups()[0].lag == 0


def test_an_operators_acts_are_logged(either: Rig, caplog: pytest.LogCaptureFixture) -> None:
    (pushed, _) = either.push("1", "2")
    either.engine.subscribe(either.queue, "g")
    caplog.set_level(logging.INFO, "pump.queue")

    either.engine.give_up(pushed.partition_id, "1")
    either.engine.purge(either.queue, "g")

    assert f"message 1 of partition {pushed.partition_id} was given up for 1 groups" in caplog.messages
    assert f"group g of queue {either.queue}: 1 messages were purged" in caplog.messages


# -- all pending messages


@pytest.mark.requirement("Z-01", "Q-53")
def test_a_purge_completes_all_that_nobody_has(either: Rig) -> None:
    either.push("leased", partition="A")
    either.push("deferred", partition="B")
    either.push("left", partition="C")
    (leased,) = either.pop(1, partition="A", lease_time=5000.0, group="g")
    either.one(either.pop(1, partition="B", group="g")[0], FAIL, delay=9000.0, group="g")
    either.pop(1, partition="C", group="g")
    either.expire()
    either.push("fresh", partition="A")
    either.push("later", delay=60.0, partition="D")
    either.engine.subscribe(either.queue, "other")

    number = either.engine.purge(either.queue, "g")

    assert number == 4
    assert either.states("g") == {
        "leased": State.LEASED,
        "deferred": State.COMPLETED,
        "left": State.COMPLETED,
        "fresh": State.COMPLETED,
        "later": State.COMPLETED,
    }
    assert set(either.states("other").values()) == {State.PENDING}
    assert [each.lag for each in either.engine.groups("g")] == [1]
    either.later(61)
    assert either.names(group="g", partitions=9) == []
    assert either.one(leased, group="g").success
    assert [each.lag for each in either.engine.groups("g")] == [0]
    either.push("next", partition="A")
    assert either.names(group="g", partitions=9) == ["next"]
    assert set(either.names(group="other", partitions=9)) == {"leased", "deferred", "left", "fresh", "later", "next"}
    assert either.engine.purge(either.queue, "g") == 0
    assert either.dead() == []


@pytest.mark.requirement("Q-53")
def test_a_purge_counts_what_it_completes_as_completed(either: Rig) -> None:
    pushed = either.push("1", "2", "3", "4")
    either.engine.subscribe(either.queue, DEFAULT_GROUP)
    either.complete(either.pop(1))
    either.engine.give_up(pushed[0].partition_id, "3")

    assert either.engine.purge(either.queue, DEFAULT_GROUP) == 2

    progress = either.progress()
    assert (progress.completed, progress.dead, progress.pending) == (3, 1, 0)
    assert either.dead_names() == ["3"]


@pytest.mark.requirement("Q-53")
def test_a_purge_is_no_matter_of_one_batch(either: Rig) -> None:
    either.push(*(str(number) for number in range(2300)))
    either.push(*(f"later {number}" for number in range(1100)), delay=60.0)
    for message in either.pop(1200):
        either.one(message, FAIL, delay=500.0) if not either.ordered else None
    either.expire()

    assert either.engine.purge(either.queue, DEFAULT_GROUP) == 3400

    assert set(either.states().values()) == {State.COMPLETED}
    either.later(400)
    assert either.names() == []


@pytest.mark.requirement("Q-53")
def test_what_is_not_there_is_not_purged(either: Rig) -> None:
    either.push("1")

    with pytest.raises(NotFound):
        either.engine.purge("nothing", "g")
    with pytest.raises(NotFound):
        either.engine.purge(either.queue, "nobody")


@pytest.mark.requirement("Q-65")
def test_a_purge_is_undone_by_going_back(either: Rig) -> None:
    either.push("1", "2")
    either.push("3", delay=60.0)
    either.engine.pop(PopRequest(queue=either.queue, limit=1, ordered=either.ordered))
    either.expire()
    either.engine.purge(either.queue, DEFAULT_GROUP)

    either.engine.seek(DEFAULT_GROUP, either.queue, 0.0)

    assert either.names() == ["1", "2", "3"]


@pytest.mark.requirement("Z-08")
def test_a_pop_goes_on_past_messages_that_have_killed_their_consumers_too_often(either: Rig) -> None:
    either.configure(retry_limit=0)
    either.push("1", "2", "3", "4")
    either.pop(2)
    either.expire()

    assert either.names(1) == ["3"]
    assert either.dead_names() == ["1", "2"]
