"""Which messages retention removes behind a message that is not settled."""

from collections.abc import Sequence

import pytest

from pump.queue.limits import LOOKED_AT_A_SECOND
from pump.queue.vocabulary import DEFAULT_GROUP, Leased, Push, State
from support.queue_rig import FAIL, Rig

MANY = 2500
"""More messages than one pass looks at."""


@pytest.fixture
def kept(loose: Rig) -> Rig:
    """An unordered queue that keeps completed messages for 100 s."""
    loose.configure(retention_enabled=True, completed_retention=100.0)
    return loose


def maintain(rig: Rig) -> int:
    """Run maintenance until there is no more to do; returns the number of runs."""
    calls = 1
    while rig.engine.maintain() == 0:
        calls += 1
    return calls


def defer(rig: Rig, messages: Sequence[Leased], group: str = DEFAULT_GROUP) -> None:
    rig.settle(*((each, FAIL) for each in messages), group=group, delay=100_000.0)


@pytest.mark.requirement("Q-63")
def test_a_message_that_is_deferred_does_not_keep_later_ones_from_going(kept: Rig) -> None:
    kept.push("1", "2", "3", "4", "5")
    taken = kept.pop()
    defer(kept, (taken[0], taken[2]))
    kept.complete((taken[1], taken[3], taken[4]))
    kept.later(101)

    maintain(kept)

    assert kept.states() == {"1": State.PENDING, "3": State.PENDING}
    assert kept.progress().completed == 3
    assert (kept.progress().pending, kept.engine.groups()[0].lag) == (2, 2)
    assert kept.engine.groups()[0].lag_seconds == pytest.approx(101, abs=5)
    assert kept.dead() == []


@pytest.mark.requirement("Q-63")
def test_what_is_gone_from_the_midst_is_nobodys_backlog(kept: Rig) -> None:
    kept.push("1", "2", "3", "4", "5")
    first, *others = kept.pop()
    defer(kept, (first,))
    kept.complete(others)
    kept.later(101)
    maintain(kept)
    kept.push("6")

    kept.engine.subscribe(kept.queue, "late")
    kept.engine.seek(DEFAULT_GROUP, kept.queue, 0.0)

    assert {each.name: each.lag for each in kept.engine.groups()} == {"late": 2, DEFAULT_GROUP: 2}
    assert kept.progress().completed == 4
    assert kept.names() == kept.names(group="late") == ["1", "6"]
    assert kept.progress(group="late").completed == 0


@pytest.mark.requirement("Q-65")
def test_a_group_may_go_back_to_a_moment_of_which_all_messages_are_gone(kept: Rig) -> None:
    kept.push("1")
    kept.later(10)
    kept.push("2", "3")
    kept.later(10)
    kept.push("4")
    taken = kept.pop()
    moment = taken[1].created_at
    defer(kept, (taken[0], taken[3]))
    kept.complete(taken[1:3])
    kept.later(101)
    maintain(kept)

    kept.engine.seek(DEFAULT_GROUP, kept.queue, moment)

    assert kept.engine.groups()[0].lag == 1
    assert kept.names() == ["4"]


@pytest.mark.requirement("Q-56", "Q-63")
def test_what_is_gone_may_be_pushed_again_and_what_is_left_may_not(kept: Rig) -> None:
    kept.push("1", "2")
    first, second = kept.pop()
    defer(kept, (first,))
    kept.complete((second,))
    kept.later(101)
    maintain(kept)

    assert [each.duplicate for each in kept.push("1", "2")] == [True, False]
    assert kept.names() == ["2"]


@pytest.mark.requirement("Q-63")
def test_nothing_goes_that_a_group_has_not_settled(kept: Rig) -> None:
    kept.engine.subscribe(kept.queue, "slow")
    kept.push("1", "2", "3", "4")
    quick = kept.pop(group="quick")
    defer(kept, quick[:1], group="quick")
    kept.complete(quick[1:], group="quick")
    slow = kept.pop(3, group="slow")
    defer(kept, slow[1:2], group="slow")
    kept.complete((slow[0], slow[2]), group="slow")
    kept.later(101)

    maintain(kept)

    assert set(kept.states("slow")) == {"1", "2", "4"}
    assert kept.names(group="slow") == ["4"]
    assert kept.progress(group="slow").completed == 2
    assert kept.dead() == []


@pytest.mark.requirement("Q-63")
def test_what_is_leased_keeps_nothing_else_from_going(kept: Rig) -> None:
    kept.configure(retention_enabled=True, retention=100.0)
    kept.push("held", "deferred", "done", "fresh")
    held, deferred, done = kept.pop(3, lease_time=1000.0)
    defer(kept, (deferred,))
    kept.complete((done,))
    kept.later(101)

    maintain(kept)

    assert kept.states() == {"held": State.LEASED}
    assert kept.dead_names() == ["deferred", "fresh"]
    assert kept.complete((held,))[0].success
    kept.push("next")
    assert kept.names() == ["next"]


@pytest.mark.requirement("Q-63")
def test_what_stays_is_looked_at_once_however_much_of_it_there_is(kept: Rig) -> None:
    kept.engine.push([Push(kept.queue, b"", transaction_id=f"deferred {number}") for number in range(MANY)])
    defer(kept, kept.pop(MANY))
    kept.push(*(f"done {number}" for number in range(MANY)))
    kept.complete(kept.pop(MANY))
    kept.later(101)

    calls = maintain(kept)

    assert kept.engine.queues(kept.queue)[0].partitions[0].messages == MANY
    assert calls <= 2 * MANY / 1000 + 1
    assert maintain(kept) == 1, "it begins again before it has rested"
    assert (kept.engine.groups()[0].lag, kept.progress().completed) == (MANY, MANY)
    kept.later(61)
    assert maintain(kept) == MANY // 1000 + 1


@pytest.mark.parametrize("seconds", [5.0, 0.5])
def test_what_is_settled_behind_something_unsettled_goes_as_soon_as_is_set(kept: Rig, seconds: float) -> None:
    kept.engine.sweep_seconds = seconds
    kept.push("deferred", *(f"done {number}" for number in range(5)))
    deferred, *done = kept.pop()
    defer(kept, (deferred,))
    kept.complete(done[:2])
    kept.later(101)
    maintain(kept)
    assert kept.engine.queues(kept.queue)[0].partitions[0].messages == 4

    kept.complete(done[2:])
    kept.later(seconds)
    maintain(kept)

    assert set(kept.states()) == {"deferred"}


@pytest.mark.long
def test_with_very_many_that_stay_it_looks_less_often(kept: Rig) -> None:
    """Whatever is set: a look at these messages is followed by a rest of two seconds."""
    kept.engine.sweep_seconds = 0.0
    for first in range(0, 2 * LOOKED_AT_A_SECOND, 10_000):
        kept.engine.push([Push(kept.queue, b"", transaction_id=str(first + number)) for number in range(10_000)])
        defer(kept, kept.pop(10_000))
    kept.push("done")
    kept.complete(kept.pop())
    kept.later(101)
    maintain(kept)

    assert maintain(kept) == 1
    kept.later(2.1)
    assert maintain(kept) == 2 * LOOKED_AT_A_SECOND // 1000 + 1


@pytest.mark.requirement("Q-63")
def test_what_goes_in_one_partition_does_not_wait_for_another(kept: Rig) -> None:
    for partition in ("A", "B"):
        kept.push("1", *(f"{number}" for number in range(2, 1200)), partition=partition)
        first, *others = kept.pop(1199, partition=partition)
        defer(kept, (first,))
        kept.complete(others)
    kept.later(101)

    calls = maintain(kept)

    assert [each.messages for each in kept.engine.queues(kept.queue)[0].partitions] == [1, 1]
    assert calls <= 3


@pytest.mark.requirement("Q-63")
def test_a_partition_forgets_its_gaps_when_what_stood_before_them_is_gone(kept: Rig) -> None:
    kept.push("1", "2", "3", "4", "5", "6")
    taken = kept.pop()
    defer(kept, (taken[0], taken[3]))
    kept.complete([taken[index] for index in (1, 2, 4, 5)])
    kept.later(101)
    maintain(kept)
    kept.later(100_000)
    kept.complete(kept.pop())

    maintain(kept)

    assert kept.states() == {}
    assert (kept.progress().completed, kept.engine.groups()[0].lag) == (6, 0)
    kept.push("7")
    assert kept.names(group="late") == ["7"]
    kept.engine.seek(DEFAULT_GROUP, kept.queue, 0.0)
    assert kept.names() == ["7"]
    assert {each.lag for each in kept.engine.groups()} == {1}


@pytest.mark.requirement("Q-63")
def test_a_removed_message_and_what_retention_removes_become_one_gap(kept: Rig) -> None:
    pushed = kept.push("1", "2", "3", "4", "5")
    taken = kept.pop()
    defer(kept, (taken[0],))
    kept.complete(taken[1:3])
    kept.engine.delete_message(pushed[0].partition_id, "4")
    kept.complete(taken[4:])
    kept.later(101)

    maintain(kept)

    assert set(kept.states()) == {"1"}
    assert kept.progress().completed == 3
    kept.engine.delete_message(pushed[0].partition_id, "1")
    kept.engine.seek(DEFAULT_GROUP, kept.queue, 0.0)
    assert kept.engine.groups()[0].lag == 0
    assert kept.names() == []


@pytest.mark.requirement("Q-63")
def test_a_clock_that_was_put_back_does_not_keep_retention_from_its_work(kept: Rig) -> None:
    kept.later(100_000)
    kept.push("0", "1")
    taken = kept.pop()
    defer(kept, taken[:1])
    kept.complete(taken[1:])
    kept.later(200)
    maintain(kept)
    kept.engine.clock_offset = 0.0
    kept.push("2")
    kept.complete(kept.pop())
    kept.later(101)

    maintain(kept)

    assert "1" not in kept.states()
