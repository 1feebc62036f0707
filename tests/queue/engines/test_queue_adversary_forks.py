"""A process forks while it has an engine open: parent and child each go on with their own connections."""

import itertools
import os
import select
import threading
from collections.abc import Callable

import pytest

from pump.queue.engine import Engine
from pump.queue.vocabulary import Filter, PopRequest, Push
from support.queue_child import LIMIT_SECONDS, Child
from support.queue_races import drained, names
from support.waiting import eventually

EngineMaker = Callable[..., Engine]

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
    pytest.mark.parametrize("make_engine", ["sqlite", "postgres"], indirect=True),
]


def push(engine: Engine, *ids: str) -> None:
    pushed = engine.push([Push("jobs", each.encode(), transaction_id=each) for each in ids])
    assert all(each.message_id and not each.duplicate for each in pushed)


@pytest.mark.requirement("Z-01", "Z-14")
def test_parent_and_children_work_side_by_side(engine: Engine) -> None:
    push(engine, "first")

    def work(who: str) -> None:
        for number in range(40):
            push(engine, f"{who}-{number}")
            found = engine.stored(Filter(queue="jobs", limit=1))
            assert found[0].queue == "jobs"

    children = [Child(lambda who=who: work(f"child{who}")).go() for who in range(3)]  # type: ignore[misc]
    work("parent")

    assert [child.ended() for child in children] == [""] * 3
    wanted = ["first", *(f"{who}-{number}" for who in ("parent", "child0", "child1", "child2") for number in range(40))]
    assert sorted(names(drained(engine, "jobs"))) == sorted(wanted)


@pytest.mark.requirement("Z-01")
def test_a_child_that_ends_or_closes_takes_nothing_from_its_parent(engine: Engine) -> None:
    push(engine, "1")

    assert Child(engine.close).go().ended() == ""
    assert Child(lambda: None).go().ended() == ""

    push(engine, "2")
    assert names(drained(engine, "jobs")) == ["1", "2"]


@pytest.mark.requirement("Q-59")
def test_a_child_is_notified_and_notifies(engine: Engine) -> None:
    heard = threading.Event()
    engine.pop(PopRequest(queue="jobs", ordered=False))
    engine.listen("jobs", heard.set)
    told, tell = os.pipe()

    def listen() -> None:
        notified = threading.Event()
        engine.listen("jobs", notified.set)
        assert notified.wait(LIMIT_SECONDS)
        os.write(tell, b"x")

    child = Child(listen).go()
    pushed = itertools.takewhile(lambda _: not select.select([told], [], [], 0.05)[0], range(200))
    for number in pushed:
        push(engine, f"{number}")
    assert child.ended() == ""

    heard.clear()
    assert Child(lambda: announce(engine)).go().ended() == ""
    eventually(heard.is_set)
    os.close(told)
    os.close(tell)


def announce(engine: Engine) -> None:
    """Push, then close the engine, so that all notifications have been sent."""
    push(engine, "the child's")
    engine.close()
