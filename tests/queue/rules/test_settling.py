"""Which settlements there are, and which consumers may make them."""

import threading
from collections.abc import Callable

import pytest

from pump.queue.engine import Engine
from pump.queue.options import QueueOptions
from pump.queue.vocabulary import DEFAULT_GROUP, Filter, Push, Settlement, State, Status
from support.queue_rig import BACK, DEAD, FAIL, OK, Rig, settlement

EngineMaker = Callable[..., Engine]


@pytest.mark.requirement("Q-01")
def test_what_is_completed_does_not_come_again_and_stays_listed(either: Rig) -> None:
    either.push("1")

    answer = either.one(either.pop(1)[0])

    assert (answer.success, answer.message) == (True, "acknowledged")
    either.expire()
    assert either.names() == []
    assert either.states() == {"1": State.COMPLETED}


@pytest.mark.requirement("Q-02", "Q-16", "Q-17")
def test_what_failed_is_counted_for_itself_alone_and_keeps_its_error(either: Rig) -> None:
    either.push("1", "2")
    first, _ = either.pop()

    either.one(first, FAIL, error="ValueError: no")

    again = {each.transaction_id: each for each in either.pop()}
    assert again["1"].retries == 1
    either.expire()
    either.names()
    stored = either.engine.message(first.partition_id, "1")
    assert stored is not None
    assert (stored.retries, stored.error) == (1, "ValueError: no")
    other = either.engine.message(first.partition_id, "2")
    assert other is not None
    assert (other.retries, other.error) == (0, None)


@pytest.mark.requirement("Q-03")
def test_what_a_consumer_leaves_behind_goes_to_another_when_its_lease_ends(either: Rig) -> None:
    either.push("1")
    assert QueueOptions().lease_time == 300
    either.pop()

    either.later(299)
    assert either.names() == []
    either.later(2)

    (again,) = either.pop()
    assert (again.deliveries, again.crashes, again.retries) == (2, 1, 0)


@pytest.mark.requirement("Q-03")
def test_a_consumer_may_name_its_own_lease_time(either: Rig) -> None:
    either.push("1")
    either.pop(lease_time=2.0)

    either.later(3)

    assert either.names() == ["1"]


@pytest.mark.requirement("Q-05")
def test_a_consumer_without_leases_has_settled_what_it_gets(either: Rig) -> None:
    either.push("1", "2")

    taken = either.take(auto_ack=True)

    assert ([each.transaction_id for each in taken.messages], taken.lease_id) == (["1", "2"], "")
    assert {each.lease_id for each in taken.messages} == {""}
    either.expire()
    assert either.names() == []
    assert either.dead() == []
    assert either.progress().completed == 2


@pytest.mark.requirement("Q-05")
def test_a_consumer_without_leases_gets_what_came_back_first(either: Rig) -> None:
    either.push("1", "2")
    either.one(either.pop(1)[0], FAIL)

    taken = either.take(auto_ack=True)

    assert sorted(each.transaction_id for each in taken.messages) == ["1", "2"]
    assert either.states() == {"1": State.COMPLETED, "2": State.COMPLETED}


@pytest.mark.requirement("Q-09")
def test_the_same_id_in_two_partitions_is_two_messages(either: Rig) -> None:
    either.push("1", partition="A")
    either.push("1", partition="B")

    either.one(either.pop(partition="A")[0])

    assert [(each.transaction_id, each.partition) for each in either.pop(partition="B")] == [("1", "B")]


def wrong_leases(rig: Rig) -> list[Settlement]:
    """Settlements by consumers that do not have the messages."""
    first, second = rig.pop(2)
    other_partition = rig.push("1", partition="Other")[0].partition_id
    good = settlement(first)
    return [
        settlement(first, lease_id="no such lease"),
        settlement(first, lease_id=None),
        settlement(first, lease_id=""),
        settlement(first, group="another group"),
        settlement(first, partition_id=other_partition),
        settlement(second, lease_id=first.partition_id),
        Settlement("3", good.partition_id, good.lease_id),
    ]


@pytest.mark.requirement("Q-12", "Q-28", "Z-09")
@pytest.mark.parametrize("status", list(Status))
def test_whoever_has_no_lease_changes_nothing(either: Rig, status: Status) -> None:
    either.push("1", "2", "3")
    wrong = wrong_leases(either)
    before = (either.states(), either.progress(), either.engine.dead_letters(Filter()))

    answers = either.engine.settle([settlement_with(each, status) for each in wrong])

    assert {(each.success, each.message, each.error) for each in answers} == {
        (False, "invalid_lease", "Invalid or expired lease")
    }
    assert all(not each.lease_released for each in answers)
    after = (either.states(), either.progress(), either.engine.dead_letters(Filter()))
    assert [before[0], before[1].leased, before[1].cursor] == [after[0], after[1].leased, after[1].cursor]


def settlement_with(each: Settlement, status: Status) -> Settlement:
    return Settlement(each.transaction_id, each.partition_id, each.lease_id, status, each.group)


@pytest.mark.requirement("Q-28")
def test_a_lease_that_somebody_else_has_taken_over_is_over(either: Rig) -> None:
    either.push("1")
    (mine,) = either.pop()
    either.expire()
    (theirs,) = either.pop()

    assert not either.one(mine).success
    assert either.one(theirs).success


@pytest.mark.requirement("Q-28", "Q-46")
def test_what_nobody_ever_pushed_is_not_found(either: Rig) -> None:
    either.push("1")
    (message,) = either.pop()

    answer = either.engine.settle([settlement(message, transaction_id="other")])[0]

    assert (answer.success, answer.message, answer.error) == (False, "not_found", "Message not found")


@pytest.mark.requirement("Q-46", "Z-05")
def test_acknowledging_again_is_benign_and_not_counted(either: Rig) -> None:
    either.push("1", "2")
    first, _ = either.pop()

    answers = [either.one(first) for _ in range(3)]

    assert [each.success for each in answers] == [True, True, True]
    assert [each.message for each in answers] == ["acknowledged", "already_acknowledged", "already_acknowledged"]
    assert either.progress().completed == 1
    assert either.names() == []


@pytest.mark.requirement("Q-28", "Q-46")
@pytest.mark.parametrize("status", [FAIL, BACK, DEAD])
def test_nothing_else_may_be_said_of_what_is_completed(either: Rig, status: Status) -> None:
    either.push("1")
    (message,) = either.pop()
    either.one(message)

    answer = either.one(message, status)

    assert (answer.success, answer.message) == (False, "invalid_lease")
    assert either.states() == {"1": State.COMPLETED}


@pytest.mark.requirement("Q-28")
def test_a_dead_message_is_not_acknowledged(either: Rig) -> None:
    either.push("1")
    (message,) = either.pop()
    either.one(message, DEAD)

    assert not either.one(message).success
    assert either.states() == {"1": State.DEAD}


@pytest.mark.requirement("Q-13", "Q-19")
def test_progress_counts_what_is_completed_and_never_passes_what_is_not(rig: Rig) -> None:
    rig.push("1", "2", "3")
    taken = rig.pop()

    rig.one(taken[2])
    assert (rig.progress().completed, rig.progress().cursor, rig.progress().leased) == (1, 0, 2)
    rig.one(taken[0])
    assert (rig.progress().completed, rig.progress().cursor, rig.progress().leased) == (2, 1, 1)
    rig.one(taken[1])

    assert (rig.progress().completed, rig.progress().cursor, rig.progress().leased) == (3, 3, 0)
    assert rig.progress().last_consumed_at is not None


@pytest.mark.requirement("Q-19")
def test_a_failed_message_is_the_next_of_its_partition(rig: Rig) -> None:
    rig.push("1", "2", "3")

    rig.one(rig.pop(1)[0], FAIL)

    assert rig.names(1) == ["1"]


@pytest.mark.requirement("Q-18")
def test_a_limit_of_none_at_all_is_one_delivery(either: Rig) -> None:
    either.configure(retry_limit=0)
    either.push("1")

    answer = either.one(either.pop(1)[0], FAIL)

    assert (answer.message, answer.dead) == ("failed_dlq", True)
    assert either.dead_names() == ["1"]


@pytest.mark.requirement("Q-18", "Q-20")
def test_three_retries_are_four_deliveries(either: Rig) -> None:
    either.push("1")

    answers = []
    deliveries = []
    while taken := either.pop(1):
        deliveries.append(taken[0].deliveries)
        answers.append(either.one(taken[0], FAIL).message)

    assert deliveries == [1, 2, 3, 4]
    assert answers == ["failed_retry", "failed_retry", "failed_retry", "failed_dlq"]


@pytest.mark.requirement("Q-18", "Z-08")
def test_retries_and_crashes_count_together(either: Rig) -> None:
    either.configure(retry_limit=1)
    either.push("1")
    either.one(either.pop(1)[0], FAIL)
    either.pop(1)

    either.expire()

    assert either.names() == []
    (dead,) = either.dead()
    assert (dead.retries, dead.crashes, dead.deliveries) == (1, 1, 2)


@pytest.mark.requirement("Q-18")
def test_a_consumer_that_decides_itself_is_never_overruled(either: Rig) -> None:
    either.configure(retry_limit=0)
    either.push("1")

    for retries in range(1, 6):
        (message,) = either.pop(1, retry_limit=None)
        assert message.retries == retries - 1
        assert either.one(message, FAIL, retries=retries).message == "failed_retry"
    either.pop(1, retry_limit=None)
    either.expire()

    (message,) = either.pop(1, retry_limit=None)
    assert (message.retries, message.crashes) == (5, 1)
    assert either.one(message, DEAD, reason="unacceptable", error="five times").dead
    (dead,) = either.dead()
    assert (dead.reason, dead.error) == ("unacceptable", "five times")


@pytest.mark.requirement("Q-18")
def test_a_message_that_is_given_back_is_not_charged(either: Rig) -> None:
    either.configure(retry_limit=0)
    either.push("1")

    for delivery in range(1, 10):
        (message,) = either.pop(1)
        assert (message.deliveries, message.retries, message.crashes) == (delivery, 0, 0)
        assert either.one(message, BACK).message == "released"

    assert either.dead() == []


@pytest.mark.requirement("Q-22")
def test_items_are_answered_in_order_and_each_for_itself(either: Rig) -> None:
    either.push("1", "2", "3", partition="A")
    either.push("4", partition="B")
    taken = either.pop(partition="A")
    (other,) = either.pop(partition="B")
    unknown = settlement(taken[0], transaction_id="unknown")

    answers = either.engine.settle([
        settlement(other), unknown, settlement(taken[2]), settlement(taken[0], lease_id="x"), settlement(taken[1], FAIL)
    ])  # fmt: skip

    assert [each.transaction_id for each in answers] == ["4", "unknown", "3", "1", "2"]
    assert [each.message for each in answers] == [
        "acknowledged", "not_found", "acknowledged", "invalid_lease", "failed_retry"
    ]  # fmt: skip
    assert [each.partition for each in answers] == ["B", None, "A", "A", "A"]


@pytest.mark.requirement("Q-14", "Q-26", "Q-27")
def test_a_partition_is_free_when_the_last_of_its_lease_is_settled(rig: Rig) -> None:
    rig.push(*(str(number) for number in range(12)))
    taken = rig.pop(10)

    released = [rig.one(each).lease_released for each in taken[:9]]

    assert released == [False] * 9
    assert (rig.names(), rig.progress().lease_id) == ([], taken[0].lease_id)
    assert rig.one(taken[9]).lease_released
    assert rig.progress().lease_id is None
    assert rig.names() == ["10", "11"]


@pytest.mark.requirement("Q-29")
def test_leases_of_different_groups_have_nothing_to_do_with_each_other(either: Rig) -> None:
    either.push("1", "2")
    (mine, _), theirs = either.pop(group="a"), either.pop(group="b")

    either.one(mine, FAIL, group="a")

    assert [each.success for each in either.complete(theirs, group="b")] == [True, True]
    assert "1" in either.names(group="a")


@pytest.mark.requirement("Q-31")
def test_a_lease_that_is_extended_ends_no_earlier_than_before(either: Rig) -> None:
    either.push("1")
    taken = either.take()

    shorter = either.engine.extend(taken.lease_id, 10)
    longer = either.engine.extend(taken.lease_id, 1000)

    assert shorter.success
    assert shorter.expires_at == pytest.approx(taken.expires_at, abs=0.01)
    assert longer.expires_at == pytest.approx(taken.expires_at + 700, abs=5)
    either.later(900)
    assert either.names() == []
    either.later(200)
    assert either.names() == ["1"]


@pytest.mark.requirement("Q-31")
def test_a_lease_is_extended_by_its_queues_lease_time_where_none_is_named(either: Rig) -> None:
    either.configure(lease_time=50)
    either.push("1")
    taken = either.take()
    either.later(40)

    assert either.engine.extend(taken.lease_id).expires_at == pytest.approx(taken.expires_at + 40, abs=5)


@pytest.mark.requirement("Q-31")
def test_a_lease_that_is_over_or_never_was_is_not_extended(either: Rig) -> None:
    either.push("1")
    taken = either.take()
    either.expire()

    over = either.engine.extend(taken.lease_id)
    unknown = either.engine.extend("00000000-0000-4000-8000-000000000000")
    nonsense = either.engine.extend("nonsense")

    assert (over.success, over.error) == (False, "Lease already expired")
    assert (unknown.success, unknown.error) == (False, "Lease not found")
    assert (nonsense.success, nonsense.error) == (False, "Lease not found")


@pytest.mark.requirement("Q-44")
def test_a_lenient_engine_takes_the_word_of_old_clients_for_what_is_handed_out(make_engine: EngineMaker) -> None:
    rig = Rig(make_engine(lenient=True))
    rig.configure()
    rig.push("1", "2", "3")
    first, second = rig.pop(2)
    unasked = Settlement("3", first.partition_id, None)

    assert rig.one(first, lease_id=None).success
    assert not rig.engine.settle([unasked])[0].success
    assert not rig.one(second, lease_id="wrong").success
    rig.expire()
    assert rig.one(second, lease_id=None).success
    assert rig.names() == ["3"]


@pytest.mark.requirement("Q-44")
@pytest.mark.parametrize("ordered", [True, False])
def test_a_lenient_engine_cannot_know_who_asks_but_loses_nothing(make_engine: EngineMaker, *, ordered: bool) -> None:
    """The first consumer's lease has ended, and another one has the message; both say what became of it."""
    rig = Rig(make_engine(lenient=True), ordered=ordered)
    rig.configure()
    rig.push("done late", "failed late", "given back")
    late = rig.pop(3)
    rig.expire()
    now = rig.pop(3)

    completed = rig.one(late[0], lease_id=None)
    failed = rig.one(late[1], FAIL, lease_id=None)

    assert (completed.success, failed.success) == (True, True)
    assert rig.one(now[0]).message == "already_acknowledged"
    assert rig.one(now[1]).success is False, "it has failed: it comes again"
    rig.one(now[2], BACK, lease_id=None)
    assert rig.one(late[2], lease_id=None).success is False, "nobody has it"
    rig.expire()
    assert sorted(rig.names()) == ["failed late", "given back"]


@pytest.mark.requirement("Q-44")
@pytest.mark.parametrize("ordered", [True, False])
def test_a_lenient_engine_checks_the_lease_of_who_names_one(make_engine: EngineMaker, *, ordered: bool) -> None:
    rig = Rig(make_engine(lenient=True), ordered=ordered)
    rig.configure()
    rig.push("1")
    (late,) = rig.pop()
    rig.expire()
    (now,) = rig.pop()
    without = Settlement(late.transaction_id, late.partition_id, None)
    pushed = Push("result", b"1")

    refused = rig.engine.transaction([without, pushed], frozenset({late.lease_id}))
    done = rig.engine.transaction([without, pushed], frozenset({now.lease_id}))

    assert (refused.success, done.success) == (False, True)
    assert len(rig.engine.stored(Filter(queue="result"))) == 1


@pytest.mark.requirement("Q-30", "Q-31")
def test_a_lease_set_before_the_clock_was_put_back_is_over(either: Rig) -> None:
    either.later(30 * 86400)
    either.push("1")
    (message,) = either.pop()

    either.later(-29 * 86400)
    either.engine.maintain()

    assert not either.one(message).success
    assert either.names() == ["1"]


@pytest.mark.requirement("Q-54")
def test_many_settle_at_once_and_nobody_waits_for_ever(either: Rig) -> None:
    names = [str(number) for number in range(64)]
    either.push(*names)
    taken = either.pop()
    answers: list[bool] = []
    threads = [threading.Thread(target=lambda each=each: answers.append(either.one(each).success)) for each in taken]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert answers == [True] * 64
    assert either.progress().completed == 64


@pytest.mark.requirement("Q-51")
def test_a_message_waits_as_long_as_its_consumer_says(either: Rig) -> None:
    either.push("1")
    either.one(either.pop(1)[0], BACK, delay=60.0)

    assert either.names() == []
    assert either.take().due_in == pytest.approx(60, abs=1)
    either.later(61)

    assert either.names() == ["1"]


@pytest.mark.requirement("Q-51")
def test_a_waiting_head_keeps_its_partition_back_and_nothing_else(rig: Rig) -> None:
    rig.push("1", "2", partition="A")
    rig.push("3", partition="B")
    rig.one(rig.pop(1, partition="A")[0], FAIL, delay=60.0)

    assert rig.names() == ["3"]
    assert rig.names() == []
    rig.later(61)
    assert rig.names() == ["1", "2"]


@pytest.mark.requirement("Q-51")
def test_without_order_a_waiting_message_is_passed(loose: Rig) -> None:
    loose.push("1", "2")
    loose.one(loose.pop(1)[0], FAIL, delay=60.0)

    assert loose.names() == ["2"]
    loose.later(61)
    assert loose.names() == ["1"]


@pytest.mark.requirement("Q-02")
def test_a_retry_waits_as_long_as_its_queue_says(either: Rig) -> None:
    either.configure(retry_delay=5.0)
    either.push("1")
    either.one(either.pop(1)[0], FAIL)

    assert either.names() == []
    either.later(6)
    assert either.names() == ["1"]


@pytest.mark.requirement("Q-01")
def test_the_default_group_is_meant_where_none_is_named(either: Rig) -> None:
    either.push("1")
    (message,) = either.pop()

    assert either.engine.settle([settlement(message, group=DEFAULT_GROUP)])[0].success


@pytest.mark.requirement("Q-54")
def test_without_order_every_message_has_a_lease_of_its_own(loose: Rig) -> None:
    loose.push("1", "2", "3")
    first, second = loose.pop(1), loose.pop(1)

    assert [each[0].transaction_id for each in (first, second)] == ["1", "2"]
    loose.one(first[0], FAIL)
    assert loose.one(second[0]).success
    assert loose.names() == ["1", "3"]


@pytest.mark.requirement("Q-21", "Z-02")
def test_a_message_that_a_call_names_twice_is_settled_by_whoever_has_it_though_another_of_its_lease_fails(
    either: Rig,
) -> None:
    either.push("a", "b")
    late = either.pop()
    either.expire()
    first, second = either.pop()

    done = either.settle((late[1], OK), (first, FAIL), (second, OK))

    assert [each.success for each in done] == [False, True, True]
    assert either.states() == {"a": State.PENDING, "b": State.COMPLETED}


@pytest.mark.requirement("Q-28", "Q-46")
def test_what_is_said_first_of_a_message_in_a_call_counts(either: Rig) -> None:
    either.push("a", "b", "c")
    first, second, third = either.pop()

    done = either.settle(
        (first, FAIL), (first, OK), (second, OK), (second, OK), (second, FAIL), (third, DEAD), (third, OK)
    )

    assert [each.message for each in done] == [
        "failed_retry",
        "invalid_lease",
        "acknowledged",
        "already_acknowledged",
        "invalid_lease",
        "failed_dlq",
        "invalid_lease",
    ]
    assert either.states() == {"a": State.PENDING, "b": State.COMPLETED, "c": State.DEAD}
    assert either.names() == ["a"]
