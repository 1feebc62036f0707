"""Consumer groups, partitions, order and fairness."""

import threading
from collections import Counter

import pytest

from pump.queue.engine import Engine
from pump.queue.errors import BadRequest, Conflict, NotFound
from pump.queue.vocabulary import DEFAULT_GROUP, PopRequest, Push
from support.queue_rig import BACK, FAIL, Rig


@pytest.mark.requirement("Q-32", "Q-54")
def test_competing_consumers_get_each_message_once(either: Rig) -> None:
    names = [str(number) for number in range(1000)]
    for index in range(4):
        either.push(*names[index::4], partition=f"p{index}")
    got: list[str] = []

    def consume() -> None:
        while taken := either.pop(10):
            assert all(each.success for each in either.complete(taken))
            got.extend(each.transaction_id for each in taken)

    consumers = [threading.Thread(target=consume) for _ in range(4)]
    for each in consumers:
        each.start()
    for each in consumers:
        each.join(60)
    while taken := either.pop():
        either.complete(taken)
        got += [each.transaction_id for each in taken]

    assert sorted(got) == sorted(names)


@pytest.mark.requirement("Q-33")
def test_no_partition_waits_for_ever(either: Rig) -> None:
    for partition in range(10):
        either.push(*(f"{partition}-{index}" for index in range(20)), partition=str(partition))

    seen = Counter[str]()
    for turn in range(1, 41):
        taken = either.pop(2)
        seen[taken[0].partition] += 1
        either.complete(taken)
        either.later(0.01)
        if turn % 10 == 0:
            assert set(seen.values()) == {turn // 10}


@pytest.mark.requirement("Q-34", "Q-35")
def test_every_group_gets_every_message(either: Rig) -> None:
    names = [str(number) for number in range(100)]
    either.push(*names)

    either.complete(first := either.pop(group="a"), group="a")
    second = either.pop(group="b")
    either.settle(*((each, FAIL) for each in second), group="b")

    assert [each.transaction_id for each in first] == names
    assert [each.transaction_id for each in second] == names
    assert either.names(group="a") == []
    assert either.names(group="b") == names


@pytest.mark.requirement("Q-35")
def test_each_group_goes_on_where_it_stopped(rig: Rig) -> None:
    rig.push(*(str(number) for number in range(1, 201)))

    rig.complete(rig.pop(100, group="a"), group="a")
    rig.complete(rig.pop(98, group="b"), group="b")

    assert (rig.progress(group="a").cursor, rig.progress(group="b").cursor) == (100, 98)
    assert (rig.names(1, group="a"), rig.names(1, group="b")) == (["101"], ["99"])


@pytest.mark.requirement("Q-55")
def test_a_partition_is_for_one_consumer_of_a_group_at_a_time(rig: Rig) -> None:
    rig.push("1", "2", partition="slow")
    rig.push("3", "4", partition="fast")

    slow = rig.pop(1, partition="slow")

    assert rig.take(partition="slow").why_empty == "lease_held"
    assert rig.names(1) == ["3"]
    assert rig.names() == []
    assert rig.names(partition="slow", group="another") == ["1", "2"]
    rig.complete(slow)
    assert rig.names(partition="slow") == ["2"]


@pytest.mark.requirement("Q-57")
def test_a_partition_keeps_its_order_whatever_comes_back(rig: Rig) -> None:
    names = [f"{number:04}" for number in range(200)]
    for name in names:
        rig.push(name)
    firsts: list[str] = []
    rounds = 0

    while taken := rig.pop(7):
        rounds += 1
        got = [each.transaction_id for each in taken]
        assert got == sorted(got)
        firsts += [each.transaction_id for each in taken if each.deliveries == 1]
        if rounds % 5 == 1:
            rig.one(taken[len(taken) // 2], FAIL if rounds % 2 else BACK)
        elif rounds % 5 == 3:
            rig.expire()
        else:
            rig.complete(taken)

    assert firsts == names
    assert rig.dead() == []


@pytest.mark.requirement("Q-60")
def test_a_new_group_begins_where_it_says(either: Rig) -> None:
    either.push("old")
    either.later(100)
    either.push("middle")
    moment = {each.transaction_id: each.created_at for each in either.pop(group="probe")}["middle"]
    either.later(100)
    either.push("young")

    assert either.names(group="everything") == ["old", "middle", "young"]
    assert either.names(group="new", subscribe_from="new") == []
    assert either.names(group="since", subscribe_from=moment - 1) == ["middle", "young"]
    assert either.names(group="exactly", subscribe_from=moment) == ["middle", "young"]
    assert either.names(group="later", subscribe_from=moment + 1) == ["young"]
    either.push("last")
    assert either.names(group="new") == ["last"]


@pytest.mark.requirement("Q-60")
def test_an_old_group_keeps_its_place_whatever_it_says_later(either: Rig) -> None:
    either.engine.subscribe(either.queue, "g", "new")
    either.push("1", "2")

    either.complete(either.pop(1, group="g", subscribe_from="all"), group="g")

    assert either.names(group="g", subscribe_from="new") == ["2"]


@pytest.mark.requirement("Q-60")
def test_a_new_group_has_all_of_a_partition_that_is_made_later(either: Rig) -> None:
    either.push("old", partition="A")
    either.engine.subscribe(either.queue, "g", "new")

    either.push("young", partition="B")

    assert either.names(group="g", partitions=5) == ["young"]


@pytest.mark.requirement("Q-60")
def test_a_group_may_come_before_its_queue(engine: Engine) -> None:
    assert not engine.pop(PopRequest(queue="later", group="g", subscribe_from="new")).messages

    engine.push([Push("later", b"x", transaction_id="1")])

    assert [each.transaction_id for each in engine.pop(PopRequest(queue="later", group="g")).messages] == ["1"]


@pytest.mark.requirement("Q-60")
@pytest.mark.parametrize("start", ["newest", "", -1.0, float("nan"), float("inf")])
def test_a_beginning_that_is_none_is_refused(rig: Rig, start: float | str) -> None:
    with pytest.raises(BadRequest):
        rig.take(group="g", subscribe_from=start)
    with pytest.raises(BadRequest):
        rig.engine.subscribe(rig.queue, "g", start)


@pytest.mark.requirement("Q-61")
def test_one_lease_may_span_partitions_and_the_limit_is_for_all(rig: Rig) -> None:
    for partition in "ABCD":
        rig.push(*(partition + index for index in "123"), partition=partition)

    taken = rig.take(7, partitions=3)

    assert Counter(each.partition for each in taken.messages).most_common() == [("A", 3), ("B", 3), ("C", 1)]
    assert {each.lease_id for each in taken.messages} == {taken.lease_id}
    assert taken.partitions == 3
    rig.later(200)
    assert rig.engine.extend(taken.lease_id, 300).success
    rig.later(200)
    rig.complete([each for each in taken.messages if each.partition != "B"])
    assert rig.names(10, partitions=10) == ["D1", "D2", "D3", "C2", "C3"]
    of_b = [each for each in taken.messages if each.partition == "B"]
    assert [each.success for each in rig.complete(of_b)] == [True] * 3


@pytest.mark.requirement("Q-61")
def test_one_partition_is_taken_from_where_no_more_are_asked_for(either: Rig) -> None:
    either.push("A1", partition="A")
    either.push("B1", partition="B")

    assert [len(either.pop()), len(either.pop()), len(either.pop())] == [1, 1, 0]


@pytest.mark.requirement("Q-61")
def test_an_answer_is_no_larger_than_asked_for_but_never_empty_for_that(either: Rig) -> None:
    for name in ("1", "2", "3"):
        either.engine.push([Push(either.queue, b"x" * 1000, transaction_id=name)])

    assert either.names(largest_reply=10) == ["1"]
    either.expire()
    assert sorted(either.names(largest_reply=2500)) == ["1", "2"]


@pytest.mark.requirement("Q-61")
def test_a_partition_that_is_not_there_is_told(either: Rig) -> None:
    either.push("1")
    either.names()

    taken = either.take(partition="elsewhere")

    assert (taken.messages, taken.why_empty) == ((), "partition_not_found")
    assert either.take().why_empty == "no_available_partition"


@pytest.mark.requirement("Q-53")
def test_a_groups_lag_is_what_it_has_not_settled(either: Rig) -> None:
    either.push("1", "2", "3", partition="A")
    either.push("4", partition="B")
    either.complete(either.pop(2, partition="A"))
    either.later(50)
    either.pop(1, partition="B")

    (group,) = [each for each in either.engine.groups() if each.queue == either.queue]

    assert (group.name, group.partitions, group.partitions_with_lag, group.lag) == (DEFAULT_GROUP, 2, 2, 2)
    assert group.lag_seconds == pytest.approx(50, abs=1)
    assert (group.subscription, group.subscription_from) == ("all", None)
    assert either.engine.groups("nobody") == []


@pytest.mark.requirement("Q-55")
def test_the_first_consumer_decides_whether_a_queue_has_order(engine: Engine) -> None:
    engine.push([Push("q", b"x")])
    assert engine.queues("q")[0].ordered is None

    engine.pop(PopRequest(queue="q", ordered=False))

    assert engine.queues("q")[0].ordered is False
    with pytest.raises(Conflict):
        engine.pop(PopRequest(queue="q", ordered=True))
    assert not engine.pop(PopRequest(queue="q")).messages


@pytest.mark.requirement("Q-55")
def test_a_queue_whose_consumer_says_nothing_has_order(engine: Engine) -> None:
    engine.push([Push("q", b"x")])

    engine.pop(PopRequest(queue="q"))

    assert engine.queues("q")[0].ordered is True


@pytest.mark.requirement("Q-32")
def test_a_group_that_may_not_be_made_is_not_made(rig: Rig) -> None:
    rig.push("1")

    with pytest.raises(NotFound):
        rig.take(group="typo", create_group=False)

    assert rig.engine.groups("typo") == []
    rig.engine.subscribe(rig.queue, "known")
    assert rig.names(group="known", create_group=False) == ["1"]
