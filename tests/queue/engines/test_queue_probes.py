"""The probes: the scenarios in which the queue that this one replaces lost or repeated messages."""

import threading

import pytest

from pump.queue.errors import BadRequest
from pump.queue.vocabulary import Push, Settlement, State, Status
from support.queue_rig import BACK, DEAD, FAIL, OK, Rig, settlement


@pytest.mark.requirement("Z-01", "Z-04")
def test_p1_a_later_acknowledgement_does_not_swallow_earlier_messages(rig: Rig) -> None:
    rig.push("1", "2", "3", "4", "5")
    taken = rig.pop(5)
    rig.one(taken[4])

    rig.one(taken[2], FAIL)

    assert rig.names() == ["1", "2", "3", "4"]


@pytest.mark.requirement("Z-01", "Z-04")
def test_p2_an_earlier_acknowledgement_does_not_bring_later_ones_back(rig: Rig) -> None:
    rig.push("1", "2", "3", "4", "5")
    taken = rig.pop(5)
    rig.one(taken[4])
    rig.one(taken[0])

    rig.expire()

    assert rig.names() == ["2", "3", "4"]


@pytest.mark.requirement("Z-01", "Z-02", "Q-21")
def test_p3_a_failure_amid_successes_comes_back(either: Rig) -> None:
    either.push("1", "2", "3")
    taken = either.pop(3)

    settled = either.settle((taken[0], OK), (taken[1], FAIL), (taken[2], OK))

    assert [each.success for each in settled] == [True, True, True]
    assert either.names() == ["2"]


@pytest.mark.requirement("Z-02", "Z-09")
def test_p3b_after_a_single_failure_the_lease_of_its_partition_is_over(rig: Rig) -> None:
    rig.push("1", "2", "3")
    taken = rig.pop(3)
    rig.one(taken[0])
    rig.one(taken[1], FAIL)

    late = rig.one(taken[2])

    assert (late.success, late.error) == (False, "Invalid or expired lease")
    assert rig.names() == ["2", "3"]


@pytest.mark.requirement("Z-05", "Q-46")
def test_p4_acknowledging_twice_does_not_release_the_lease(rig: Rig) -> None:
    rig.push("1", "2")
    taken = rig.pop(2)
    rig.one(taken[0])

    again = rig.one(taken[0])

    assert (again.success, again.message, again.lease_released) == (True, "already_acknowledged", False)
    assert rig.names() == []


@pytest.mark.requirement("Z-06", "Q-17", "Q-18")
def test_p5_each_message_has_its_own_retries(either: Rig) -> None:
    either.push("first", "second")

    for _ in range(4):
        either.one(either.pop(1)[0], FAIL)
    assert either.dead_names() == ["first"]

    for _ in range(3):
        assert not either.one(either.pop(1)[0], FAIL).dead
    assert either.one(either.pop(1)[0], FAIL).dead
    assert either.dead_names() == ["first", "second"]


@pytest.mark.requirement("Z-03")
def test_p6_a_batch_that_fails_whole_is_dead_whole(either: Rig) -> None:
    either.push("1", "2", "3")

    for _ in range(3):
        either.settle(*((each, FAIL) for each in either.pop()))
    last = either.settle(*((each, FAIL) for each in either.pop()))

    assert [(each.success, each.dead, each.message) for each in last] == [(True, True, "failed_dlq")] * 3
    assert either.dead_names() == ["1", "2", "3"]
    assert either.names() == []


@pytest.mark.requirement("Z-08")
def test_p7_a_message_that_kills_its_consumers_dies_in_the_end(either: Rig) -> None:
    either.configure(retry_limit=1)
    either.push("killer")

    assert either.names() == ["killer"]
    either.expire()
    assert either.names() == ["killer"]
    either.expire()

    assert either.names() == []
    (dead,) = either.dead()
    assert (dead.transaction_id, dead.crashes, dead.retries) == ("killer", 2, 0)


@pytest.mark.requirement("Z-09", "Q-28", "Q-44")
@pytest.mark.parametrize("status", list(Status))
def test_p8_nothing_is_settled_after_its_lease_is_over(either: Rig, status: Status) -> None:
    either.push("1")
    (message,) = either.pop()
    either.expire()

    with_lease = either.one(message, status)
    without = either.one(message, status, lease_id=None)

    assert [(each.success, each.message) for each in (with_lease, without)] == [(False, "invalid_lease")] * 2
    assert either.states() == {"1": State.PENDING}


@pytest.mark.requirement("Z-09")
@pytest.mark.parametrize("status", list(Status))
def test_p9_nothing_is_settled_that_nobody_was_given(either: Rig, status: Status) -> None:
    (pushed,) = either.push("1")
    either.names(partition="Other")

    answer = either.engine.settle([Settlement("1", pushed.partition_id, None, status)])

    assert [(each.success, each.message) for each in answer] == [(False, "invalid_lease")]
    assert either.names() == ["1"]


@pytest.mark.requirement("Z-07")
def test_p10_whatever_order_pushes_come_in_nothing_is_passed_over(either: Rig) -> None:
    names = [[f"{producer}-{index}" for index in range(25)] for producer in range(4)]

    def produce(mine: list[str]) -> None:
        for name in mine:
            either.push(name)

    producers = [threading.Thread(target=produce, args=(mine,)) for mine in names]
    got: list[str] = []
    for each in producers:
        each.start()
    while any(each.is_alive() for each in producers):
        got += complete_all(either)
    for each in producers:
        each.join()
    while found := complete_all(either):
        got += found

    assert sorted(got) == sorted(name for mine in names for name in mine)


def complete_all(rig: Rig) -> list[str]:
    taken = rig.pop()
    rig.complete(taken)
    return [each.transaction_id for each in taken]


@pytest.mark.requirement("Z-11", "Q-71")
@pytest.mark.parametrize("partition_id", ["not a uuid", "00000000-0000-0000-0000-000000000000", "\ud800", "a\0b", ""])
def test_p11_a_bad_id_among_settlements_is_answered_and_holds_nobody_back(either: Rig, partition_id: str) -> None:
    either.push("1", "2")
    first, second = either.pop()
    bad = Settlement("1", partition_id, first.lease_id)

    answers = either.engine.settle([settlement(first), bad, settlement(second)])

    assert [each.success for each in answers] == [True, False, True]
    assert (answers[1].message, answers[1].error) == ("not_found", "Message not found")


@pytest.mark.requirement("Z-11", "Q-72")
def test_p12_a_bad_trace_id_is_refused_and_nothing_of_its_call_is_stored(either: Rig) -> None:
    bad = Push(either.queue, b"{}", transaction_id="bad", trace_id="no trace")

    with pytest.raises(BadRequest, match="item 1"):
        either.engine.push([Push(either.queue, b"{}", transaction_id="good"), bad])

    assert either.engine.healthy()
    assert either.states() == {}


@pytest.mark.requirement("Z-10", "Z-11")
def test_p13_an_empty_call_is_answered(engine: object, rig: Rig) -> None:
    assert rig.engine.push([]) == []
    assert rig.engine.settle([]) == []
    assert rig.engine.redrive([]) == []
    committed = rig.engine.transaction([])
    assert (committed.success, list(committed.results)) == (True, [])


@pytest.mark.requirement("Z-04")
@pytest.mark.parametrize("first", [OK, FAIL, BACK, DEAD])
@pytest.mark.parametrize("second", [OK, FAIL, BACK, DEAD])
def test_of_two_words_about_one_message_in_a_call_the_first_counts(either: Rig, first: Status, second: Status) -> None:
    either.push("1", "2")
    taken = either.pop()

    answers = either.settle((taken[0], first), (taken[0], second), (taken[1], OK))

    benign = (first, second) == (OK, OK)
    assert [each.success for each in answers] == [True, benign, True]
    assert either.names() == ([] if first in {OK, DEAD} else ["1"])
    assert either.dead_names() == (["1"] if first is DEAD else [])
