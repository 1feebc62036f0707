"""Dead letters: when one is made, what it holds, and how its message comes back."""

import pytest

from pump.queue.errors import QueueError
from pump.queue.vocabulary import DEFAULT_GROUP, Filter, State
from support.queue_rig import BACK, DEAD, FAIL, Rig


@pytest.mark.requirement("Q-38")
def test_a_dead_letter_says_all_about_its_message(either: Rig) -> None:
    (pushed,) = either.push("1", partition="P", producer="shop")
    (message,) = either.pop(group="g")
    either.one(message, BACK, group="g")
    (message,) = either.pop(group="g")
    either.later(5)

    either.one(message, DEAD, group="g", error="Broken: it is", reason="unacceptable")

    (dead,) = either.dead()
    assert (dead.message_id, dead.transaction_id, dead.partition_id) == (pushed.message_id, "1", pushed.partition_id)
    assert (dead.partition, dead.queue, dead.group, dead.payload) == ("P", either.queue, "g", b"1")
    assert (dead.reason, dead.error, dead.producer) == ("unacceptable", "Broken: it is", "shop")
    assert (dead.retries, dead.crashes, dead.deliveries) == (0, 0, 2)
    assert dead.created_at == pytest.approx(message.created_at)
    assert dead.moved_at == pytest.approx(message.created_at + 5, abs=1)
    assert dead.redriven_at is None


@pytest.mark.requirement("Q-50")
def test_what_is_given_up_at_once_is_delivered_once(either: Rig) -> None:
    either.push("1")

    answer = either.one(either.pop()[0], DEAD)

    assert (answer.message, answer.dead) == ("failed_dlq", True)
    either.expire()
    assert either.names() == []
    assert either.states() == {"1": State.DEAD}


@pytest.mark.requirement("Q-36")
def test_where_retries_never_end_nothing_is_dropped(either: Rig) -> None:
    either.configure(retry_limit=1, retry_delay=7.0, dead_letter_after_max_retries=False)
    either.push("1")

    for _ in range(5):
        assert either.one(either.pop()[0], FAIL).message == "failed_retry"
        assert either.names() == []
        either.later(8)
    for _ in range(5):
        either.pop()
        either.expire()

    assert either.names() == ["1"]
    assert either.dead() == []


@pytest.mark.requirement("Q-39")
def test_there_is_one_dead_letter_a_message_and_group(either: Rig) -> None:
    either.push("1")
    (mine,), (theirs,) = either.pop(group="a"), either.pop(group="b")

    for _ in range(3):
        either.one(mine, DEAD, group="a")
        either.one(mine, FAIL, group="a")
    either.one(theirs, DEAD, group="b")

    assert sorted(each.group for each in either.dead()) == ["a", "b"]


@pytest.mark.requirement("Q-40")
def test_dead_letters_are_found_by_all_that_is_asked_for(either: Rig) -> None:
    for index, partition in enumerate(["A", "A", "B"]):
        either.push(str(index), partition=partition)
        either.one(either.pop(1, partition=partition)[0], DEAD)
        either.later(100)
    either.one(either.pop(1, group="g", partition="B")[0], DEAD, group="g")
    everything = either.dead()
    moments = sorted(each.moved_at for each in everything)

    assert [each.moved_at for each in everything] == sorted(moments, reverse=True)
    assert either.dead_names(partition="A") == ["0", "1"]
    assert either.dead_names(group=DEFAULT_GROUP) == ["0", "1", "2"]
    assert either.dead_names(queue="other") == []
    assert either.dead_names(since=moments[1] - 1) == ["1", "2", "2"]
    assert either.dead_names(until=moments[1] + 1) == ["0", "1"]
    page, total = either.engine.dead_letters(Filter(queue=either.queue, limit=2, offset=1))
    assert ([each.moved_at for each in page], total) == ([moments[2], moments[1]], 4)


@pytest.mark.requirement("Q-41")
def test_a_dead_letter_is_pushed_again_once(either: Rig) -> None:
    either.push("1", partition="P")
    either.one(either.pop()[0], DEAD)
    (dead,) = either.dead()

    first = either.engine.redrive([dead.id, "no such id"])
    second = either.engine.redrive([dead.id])

    assert first[0] is not None
    assert (first[0].transaction_id, first[0].partition, first[1:]) == ("reprocess-1", "P", [None])
    assert second == [None]
    (again,) = either.pop()
    assert (again.transaction_id, again.payload) == ("reprocess-1", b"1")
    assert (again.retries, again.crashes, again.deliveries) == (0, 0, 1)
    assert either.dead()[0].redriven_at is not None


@pytest.mark.requirement("Q-41")
def test_a_dead_message_is_tried_again_in_its_place(either: Rig) -> None:
    (pushed,) = either.push("1")
    either.push("2")
    either.one(either.pop(1)[0], DEAD)

    assert either.engine.retry(pushed.partition_id, "1") == 1

    assert either.dead() == []
    assert either.states() == {"1": State.PENDING, "2": State.PENDING}
    taken = either.pop()
    assert [each.transaction_id for each in taken] == ["1", "2"]
    assert (taken[0].retries, taken[0].crashes) == (0, 0)
    assert either.engine.retry(pushed.partition_id, "1") == 0
    assert either.engine.retry(pushed.partition_id, "unknown") == 0


@pytest.mark.requirement("Q-38", "Z-12")
def test_dead_letters_outlive_their_queue(either: Rig) -> None:
    either.push("1")
    either.one(either.pop()[0], DEAD)

    either.engine.delete_queue(either.queue)

    (dead,) = either.dead()
    assert dead.payload == b"1"
    again = either.engine.redrive([dead.id])[0]
    assert again is not None
    assert either.names(ordered=None) == ["reprocess-1"]


@pytest.mark.requirement("Q-38", "Z-12")
def test_a_dead_letter_of_a_message_that_is_gone_is_not_tried_in_its_place(either: Rig) -> None:
    (pushed,) = either.push("1")
    either.one(either.pop()[0], DEAD)
    either.engine.clear(either.queue)

    assert either.engine.retry(pushed.partition_id, "1") == 0
    assert either.dead_names() == ["1"]


@pytest.mark.requirement("Q-37")
def test_what_nobody_settles_in_time_is_a_dead_letter(either: Rig) -> None:
    either.configure(max_wait_time=60.0, lease_time=1000.0)
    either.push("held")
    (held,) = either.pop()
    either.push("waiting", partition="B")
    either.later(61)
    either.push("young", partition="B")

    either.engine.maintain()

    assert [(each.transaction_id, each.reason) for each in either.dead()] == [("waiting", "max_wait_time")]
    assert either.one(held).success
    assert either.names() == ["young"]


@pytest.mark.requirement("Q-37")
def test_what_came_back_may_wait_too_long_as_well(either: Rig) -> None:
    either.configure(max_wait_time=60.0)
    either.push("1")
    either.one(either.pop()[0], FAIL, error="first", delay=1000.0)
    either.later(61)

    either.engine.maintain()

    (dead,) = either.dead()
    assert (dead.reason, dead.retries, dead.deliveries) == ("max_wait_time", 1, 1)
    assert either.states() == {"1": State.DEAD}


@pytest.mark.requirement("Q-37")
def test_where_nobody_ever_consumed_the_default_group_has_waited(either: Rig) -> None:
    either.configure(max_wait_time=60.0)
    either.push("1")
    either.later(61)

    either.engine.maintain()

    assert [(each.transaction_id, each.group) for each in either.dead()] == [("1", DEFAULT_GROUP)]
    assert either.names() == []


@pytest.mark.requirement("Q-37")
def test_the_longest_wait_is_each_groups_own(either: Rig) -> None:
    either.configure(max_wait_time=60.0)
    either.push("1")
    either.complete(either.pop(group="done"), group="done")
    either.engine.subscribe(either.queue, "idle")
    either.later(61)

    either.engine.maintain()

    assert [each.group for each in either.dead()] == ["idle"]
    assert either.states("done") == {"1": State.COMPLETED}


@pytest.mark.requirement("Q-16")
def test_an_error_that_no_database_could_keep_is_kept_all_the_same(either: Rig) -> None:
    either.push("1")

    answer = either.one(either.pop()[0], DEAD, error="a\0b\ud800c" + "x" * 100_000)

    assert answer.success
    assert either.dead()[0].error.startswith("a")


@pytest.mark.requirement("Q-40")
def test_a_page_that_is_none_is_refused(either: Rig) -> None:
    with pytest.raises(QueueError):
        either.dead(limit=-1)
