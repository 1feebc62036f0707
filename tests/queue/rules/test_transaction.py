"""Several steps as one transaction."""

from typing import Any

import pytest

from pump.queue.errors import BadRequest
from pump.queue.options import QueueOptions
from pump.queue.vocabulary import Filter, Push, Pushed, Settled, State, Step
from support.queue_rig import DEAD, FAIL, Rig, settlement


@pytest.mark.requirement("Q-49")
def test_what_is_settled_and_what_is_pushed_happen_together(either: Rig) -> None:
    either.push("1")
    (message,) = either.pop()

    committed = either.engine.transaction(
        [
            Push("next", b"a", transaction_id="2"),
            settlement(message),
            Push("next", b"b", transaction_id="3"),
        ]
    )

    assert (committed.success, committed.error) == (True, "")
    assert [type(each) for each in committed.results] == [Pushed, Settled, Pushed]
    assert [each.transaction_id for each in committed.results] == ["2", "1", "3"]
    assert either.states() == {"1": State.COMPLETED}
    assert [each.transaction_id for each in either.engine.stored(Filter(queue="next"))] == ["3", "2"]


@pytest.mark.requirement("Q-49")
@pytest.mark.parametrize("change", [{"lease_id": "x"}, {"lease_id": None}, {"transaction_id": "?"}, {"group": "other"}])
def test_nothing_happens_where_one_step_is_refused(either: Rig, change: dict[str, Any]) -> None:
    either.push("1", "2")
    first, second = either.pop()

    committed = either.engine.transaction([
        settlement(first), Push("next", b""), settlement(second, **change)
    ])  # fmt: skip

    assert not committed.success
    assert committed.error
    assert not any(isinstance(each, Settled) and each.success for each in committed.results)
    assert either.states() == {"1": State.LEASED, "2": State.LEASED}
    assert list(either.engine.queues("next")) == []
    assert all(each.success for each in either.complete([first, second]))


@pytest.mark.requirement("Q-49", "Q-46")
def test_in_a_transaction_what_was_completed_before_is_a_refusal(either: Rig) -> None:
    either.push("1")
    (message,) = either.pop()
    steps: list[Step] = [settlement(message), Push("next", b"")]

    assert either.engine.transaction(steps).success
    assert not either.engine.transaction(steps).success

    assert len(either.engine.stored(Filter(queue="next"))) == 1


@pytest.mark.requirement("Q-49", "Q-56")
def test_in_a_transaction_a_duplicate_is_a_refusal(either: Rig) -> None:
    either.push("1")
    (message,) = either.pop()

    again = either.engine.transaction([settlement(message), Push(either.queue, b"", transaction_id="1")])
    twice = either.engine.transaction([Push("q", b"", transaction_id="x"), Push("q", b"", transaction_id="x")])

    assert (again.success, twice.success) == (False, False)
    assert either.states() == {"1": State.LEASED}
    assert list(either.engine.queues("q")) == []


@pytest.mark.requirement("Q-49")
def test_in_a_transaction_a_full_queue_is_a_refusal(either: Rig) -> None:
    either.push("1")
    (message,) = either.pop()
    either.engine.configure("next", QueueOptions(max_size=1))

    committed = either.engine.transaction([settlement(message), Push("next", b""), Push("next", b"")])

    assert not committed.success
    assert "full" in committed.error
    assert either.engine.stored(Filter(queue="next")) == []


@pytest.mark.requirement("Q-49", "Q-44")
def test_a_live_lease_among_those_named_covers_what_names_none(either: Rig) -> None:
    either.push("1", partition="A")
    either.push("2", partition="B")
    (first,), (second,) = either.pop(partition="A"), either.pop(partition="B")
    steps = [settlement(first, lease_id=None), settlement(second, lease_id=None)]

    assert not either.engine.transaction(steps, frozenset({first.lease_id})).success
    assert not either.engine.transaction(steps, frozenset({"x", first.partition_id})).success
    assert either.engine.transaction(steps, frozenset({first.lease_id, second.lease_id, "x"})).success

    assert set(either.states().values()) == {State.COMPLETED}


@pytest.mark.requirement("Q-49", "Z-09")
def test_a_lease_that_is_over_covers_nothing(either: Rig) -> None:
    either.push("1")
    (message,) = either.pop()
    either.expire()

    assert not either.engine.transaction([settlement(message, lease_id=None)], frozenset({message.lease_id})).success
    assert either.names() == ["1"]


@pytest.mark.requirement("Q-49", "Q-18")
def test_in_a_transaction_failures_are_counted_as_elsewhere(either: Rig) -> None:
    either.configure(retry_limit=1)
    either.push("1")

    first = either.engine.transaction([settlement(either.pop()[0], FAIL)])
    second = either.engine.transaction([settlement(either.pop()[0], FAIL)])

    assert (first.success, second.success) == (True, True)
    assert [getattr(each.results[0], "message", "") for each in (first, second)] == ["failed_retry", "failed_dlq"]
    assert either.dead_names() == ["1"]


@pytest.mark.requirement("Q-51", "Q-49")
def test_a_message_may_be_put_off_by_pushing_it_again_later(rig: Rig) -> None:
    rig.push("1", "2")
    (message,) = rig.pop(1)

    rig.engine.transaction([settlement(message), Push(rig.queue, b"1", transaction_id="1 again", delay=60.0)])

    assert rig.names(auto_ack=True) == ["2"]
    rig.later(61)
    assert rig.names() == ["1 again"]


@pytest.mark.requirement("Q-49", "Z-12")
def test_a_dead_letter_and_its_copy_elsewhere_come_together(either: Rig) -> None:
    either.push("1")
    (message,) = either.pop()

    assert either.engine.transaction([settlement(message, DEAD), Push("dead-orders", message.payload)]).success

    assert either.dead_names() == ["1"]
    assert len(either.engine.stored(Filter(queue="dead-orders"))) == 1


@pytest.mark.requirement("Q-72")
def test_a_step_that_makes_no_sense_is_named(either: Rig) -> None:
    with pytest.raises(BadRequest, match="item 1"):
        either.engine.transaction([Push("q", b""), Push("", b"")])
