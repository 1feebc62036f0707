"""The batched engine: merges calls that arrive together, waits at no cost, and gives each caller its own results."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import pytest

from pump.clock import ManualClock
from pump.queue.batching import waiting_call
from pump.queue.batching.batched_engine import BatchedEngine
from pump.queue.errors import BadRequest, QueueUnavailable
from pump.queue.vocabulary import Leased, PopRequest, PopResult, Push, Pushed, Settled, Settlement, Status

WANT = PopRequest(queue="orders")


class ScriptedEngine:
    """An engine that does what a test says, and records its calls."""

    def __init__(self) -> None:
        self.gate: Final = threading.Event()
        """Calls wait until it is set."""
        self.gate.set()
        self.begun: Final = threading.Semaphore(0)
        self.pushes: Final[list[Sequence[Push]]] = []
        self.settled: Final[list[Sequence[Settlement]]] = []
        self.ready: Final[deque[str]] = deque()
        self.looks = 0
        self.due_in: float | None = None
        self.listeners: Final[dict[str, list[Callable[[], None]]]] = {}
        self.failures: Final[deque[Exception]] = deque()

    def _begin(self) -> None:
        self.begun.release()
        assert self.gate.wait(10)
        if self.failures:
            raise self.failures.popleft()

    def push(self, items: Sequence[Push]) -> list[Pushed]:
        self.pushes.append(items)
        self._begin()
        if any(item.payload == b"bad" for item in items):
            raise BadRequest("bad")
        return [Pushed(item.queue, item.partition, "p", f"of {item.transaction_id}", "") for item in items]

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        self.settled.append(settlements)
        self._begin()
        return [Settled(each.transaction_id, success=True, message="") for each in settlements]

    def pop(self, want: PopRequest) -> PopResult:
        self.looks += 1
        ready = self.ready.popleft() if self.ready else ""
        self._begin()
        if not ready:
            return PopResult(why_empty="no_available_partition", due_in=self.due_in)
        return PopResult([Leased(ready, ready, "p", "Default", want.queue, b"", 0.0, 1, 1, 0, 0, "lease")], "lease")

    def listen(self, queue: str, on_ready: Callable[[], None]) -> Callable[[], None]:
        listeners = self.listeners.setdefault(queue, [])
        listeners.append(on_ready)
        return lambda: listeners.remove(on_ready)

    def notify(self, queue: str = "orders") -> None:
        for on_ready in list(self.listeners.get(queue, ())):
            on_ready()


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def batched(engine: ScriptedEngine, clock: ManualClock) -> BatchedEngine:
    return a_batched(engine, clock, threads=4)


def a_batched(engine: Any, clock: ManualClock, *, threads: int) -> BatchedEngine:
    """A batched engine in front of a scripted engine."""
    return BatchedEngine(engine, clock=clock, threads=threads)


def run(batched: BatchedEngine, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario on a loop, and close the batched engine on the same loop."""

    async def whole() -> None:
        try:
            async with asyncio.timeout(20):
                await work()
        finally:
            await batched.close()

    asyncio.run(whole())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what it looks at happens on other threads
            await asyncio.sleep(0.001)


def begin(work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
    return asyncio.get_running_loop().create_task(work)


def a_push(name: str, payload: bytes = b"") -> Push:
    return Push("orders", payload, transaction_id=name)


# -- batching


def test_pushes_that_come_while_one_is_under_way_go_together_and_each_caller_gets_his_own_answers(
    batched: BatchedEngine, engine: ScriptedEngine
) -> None:
    async def work() -> None:
        engine.gate.clear()
        first = begin(batched.push([a_push("0")]))
        await until(lambda: len(engine.pushes) == 1)
        others = [begin(batched.push([a_push(f"{number}a"), a_push(f"{number}b")])) for number in range(1, 20)]
        await asyncio.sleep(0)
        engine.gate.set()

        assert [each.message_id for each in await first] == ["of 0"]
        for number, other in enumerate(others, 1):
            assert [each.message_id for each in await other] == [f"of {number}a", f"of {number}b"]
        assert [len(items) for items in engine.pushes] == [1, 38]

    run(batched, work)


def test_settlements_that_come_together_go_together(batched: BatchedEngine, engine: ScriptedEngine) -> None:
    async def work() -> None:
        answers = await asyncio.gather(*(batched.settle([Settlement(str(number), "p")]) for number in range(30)))

        assert [answer[0].transaction_id for answer in answers] == [str(number) for number in range(30)]
        assert len(engine.settled) == 1

    run(batched, work)


@pytest.mark.requirement("Q-71")
def test_what_is_wrong_with_one_push_is_told_to_its_caller_alone(
    batched: BatchedEngine, engine: ScriptedEngine
) -> None:
    async def work() -> None:
        names = ("a", "bad", "c")
        pushes = [batched.push([a_push(name, name.encode())]) for name in names]
        answers = await asyncio.gather(*pushes, return_exceptions=True)

        assert isinstance(answers[1], BadRequest)
        stored = [answer[0].message_id for answer in answers if not isinstance(answer, BaseException)]
        assert stored == ["of a", "of c"]
        assert [len(items) for items in engine.pushes] == [3, 1, 1, 1]

    run(batched, work)


def test_an_outage_is_told_to_all_and_nothing_is_tried_again(batched: BatchedEngine, engine: ScriptedEngine) -> None:
    async def work() -> None:
        engine.failures.append(QueueUnavailable("down"))
        answers = await asyncio.gather(*(batched.push([a_push("x")]) for _ in range(3)), return_exceptions=True)

        assert [type(answer) for answer in answers] == [QueueUnavailable] * 3
        assert len(engine.pushes) == 1

    run(batched, work)


def test_a_large_push_goes_by_itself_and_holds_up_nobody(batched: BatchedEngine, engine: ScriptedEngine) -> None:
    async def work() -> None:
        engine.gate.clear()
        large = begin(batched.push([a_push(str(number)) for number in range(waiting_call.LARGE)]))
        small = begin(batched.push([a_push("small")]))
        await until(lambda: len(engine.pushes) == 2)
        engine.gate.set()

        assert len(await large) == waiting_call.LARGE
        assert [each.message_id for each in await small] == ["of small"]

    run(batched, work)


@pytest.mark.requirement("Z-11")
def test_many_large_calls_go_at_the_same_time_and_hold_up_no_small_one(
    engine: ScriptedEngine, clock: ManualClock
) -> None:
    many = 4
    batched = a_batched(engine, clock, threads=many)

    async def work() -> None:
        engine.gate.clear()
        pushes = [
            begin(batched.push([a_push(str(number)) for number in range(waiting_call.LARGE)])) for _ in range(many)
        ]
        await until(lambda: len(engine.pushes) == many)
        small = begin(batched.push([a_push("small")])), begin(batched.settle([Settlement("small", "p")]))
        await until(lambda: len(engine.pushes) == many + 1 and len(engine.settled) == 1)
        engine.gate.set()

        await asyncio.gather(*pushes, *small)

    run(batched, work)


def test_a_merged_call_stays_small_enough(
    batched: BatchedEngine, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_call, "MOST", 4)
    monkeypatch.setattr(waiting_call, "HEAVIEST", 10)

    async def work() -> None:
        await asyncio.gather(*(batched.push([a_push(str(number))]) for number in range(6)))
        await asyncio.gather(*(batched.push([a_push(str(number), b"sixteen chars...")]) for number in range(2)))

        assert [len(items) for items in engine.pushes] == [4, 2, 1, 1]

    run(batched, work)


def test_a_push_whose_caller_has_gone_is_left_out(batched: BatchedEngine, engine: ScriptedEngine) -> None:
    async def work() -> None:
        engine.gate.clear()
        first = begin(batched.push([a_push("1")]))
        await until(lambda: len(engine.pushes) == 1)
        gone, kept = begin(batched.push([a_push("2")])), begin(batched.push([a_push("3")]))
        await asyncio.sleep(0)
        gone.cancel()
        engine.gate.set()

        await asyncio.gather(first, kept)
        assert [[item.transaction_id for item in items] for items in engine.pushes] == [["1"], ["3"]]

    run(batched, work)


def test_nothing_to_push_asks_nobody(batched: BatchedEngine, engine: ScriptedEngine) -> None:
    async def work() -> None:
        assert await batched.push([]) == []
        assert await batched.settle([]) == []
        assert engine.pushes == []

    run(batched, work)


# -- waiting


def ids(taken: PopResult) -> list[str]:
    return [each.id for each in taken.messages]


def test_a_pop_that_does_not_wait_says_why_it_is_empty(batched: BatchedEngine, engine: ScriptedEngine) -> None:
    async def work() -> None:
        assert (await batched.pop(WANT)).why_empty == "no_available_partition"
        assert engine.looks == 1
        assert not engine.listeners

    run(batched, work)


@pytest.mark.requirement("Q-59")
def test_a_waiting_pop_is_woken_by_a_notification(
    batched: BatchedEngine, engine: ScriptedEngine, clock: ManualClock
) -> None:
    async def work() -> None:
        waiting = begin(batched.pop(WANT, 30.0))
        await until(lambda: bool(engine.listeners))
        await asyncio.to_thread(clock.wait_for_sleepers, 2)
        engine.ready.append("1")
        engine.notify()

        assert ids(await waiting) == ["1"]

    run(batched, work)


def test_a_waiting_pop_holds_no_thread(engine: ScriptedEngine, clock: ManualClock) -> None:
    batched = a_batched(engine, clock, threads=1)

    async def work() -> None:
        waiting = [begin(batched.pop(WANT, 30.0)) for _ in range(50)]
        await asyncio.to_thread(clock.wait_for_sleepers, 51)

        assert await batched.call(lambda: "done") == "done"
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    run(batched, work)


@pytest.mark.requirement("Q-59")
def test_a_pop_returns_empty_when_its_time_is_over(
    batched: BatchedEngine, engine: ScriptedEngine, clock: ManualClock
) -> None:
    async def work() -> None:
        waiting = begin(batched.pop(WANT, 0.5))
        await asyncio.to_thread(clock.wait_for_sleepers, 2)
        await asyncio.to_thread(clock.advance, 0.5)

        assert (await waiting).why_empty == "no_available_partition"

    run(batched, work)


def test_one_message_wakes_one_of_those_who_wait(
    batched: BatchedEngine, engine: ScriptedEngine, clock: ManualClock
) -> None:
    async def work() -> None:
        waiting = [begin(batched.pop(WANT, 30.0)) for _ in range(100)]
        await asyncio.to_thread(clock.wait_for_sleepers, 101)
        before = engine.looks
        engine.ready.append("1")
        engine.notify()

        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.to_thread(clock.wait_for_sleepers, 100)
        assert sum(each.done() for each in waiting) == 1
        assert engine.looks - before <= 2  # the one that got it, and the next one, since there might have been more
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    run(batched, work)


def test_those_who_wait_are_served_in_the_order_in_which_they_came(
    batched: BatchedEngine, engine: ScriptedEngine, clock: ManualClock
) -> None:
    async def work() -> None:
        served: list[int] = []

        async def wait(number: int) -> None:
            await batched.pop(WANT, 30.0)
            served.append(number)

        waiting = []
        for number in range(10):
            waiting.append(begin(wait(number)))
            await asyncio.to_thread(clock.wait_for_sleepers, number + 2)
        engine.notify()  # there is no message: no task loses its place
        await until(lambda: engine.looks == 3)
        await asyncio.to_thread(clock.wait_for_sleepers, 11)
        engine.ready.extend("0123456789")
        engine.notify()

        await asyncio.gather(*waiting)
        assert served == list(range(10))

    run(batched, work)


def test_a_notification_during_a_look_in_vain_causes_another_look(
    batched: BatchedEngine, engine: ScriptedEngine, clock: ManualClock
) -> None:
    async def work() -> None:
        waiting = begin(batched.pop(WANT, 30.0))
        await asyncio.to_thread(clock.wait_for_sleepers, 2)
        engine.gate.clear()
        looks = engine.looks
        engine.notify()
        await until(lambda: engine.looks == looks + 1)  # it has found nothing, and has not reported it yet
        engine.ready.append("1")
        engine.notify()
        await asyncio.sleep(0.01)
        engine.gate.set()

        assert ids(await waiting) == ["1"]

    run(batched, work)


@pytest.mark.parametrize(("due_in", "after"), [(None, 1.0), (0.25, 0.25), (60.0, 1.0)])
def test_somebody_looks_when_something_is_due_or_after_a_second_even_without_a_notification(
    batched: BatchedEngine, engine: ScriptedEngine, clock: ManualClock, due_in: float | None, after: float
) -> None:
    engine.due_in = due_in

    async def work() -> None:
        waiting = [begin(batched.pop(WANT, 30.0)) for _ in range(3)]
        await asyncio.to_thread(clock.wait_for_sleepers, 4)
        engine.ready.append("1")
        await asyncio.to_thread(clock.advance, after)

        done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert [ids(each.result()) for each in done] == [["1"]]
        for each in pending:
            each.cancel()
        await asyncio.gather(*pending, return_exceptions=True)

    run(batched, work)


def test_listening_that_fails_leaves_the_look_once_a_second(
    batched: BatchedEngine, engine: ScriptedEngine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise QueueUnavailable("no listening")

    monkeypatch.setattr(engine, "listen", refuse)

    async def work() -> None:
        waiting = begin(batched.pop(WANT, 30.0))
        await asyncio.to_thread(clock.wait_for_sleepers, 2)
        engine.ready.append("1")
        await asyncio.to_thread(clock.advance, 1.0)

        assert ids(await waiting) == ["1"]

    run(batched, work)


def test_groups_do_not_wait_for_one_another(batched: BatchedEngine, engine: ScriptedEngine, clock: ManualClock) -> None:
    async def work() -> None:
        first = begin(batched.pop(PopRequest(queue="orders", group="a"), 30.0))
        second = begin(batched.pop(PopRequest(queue="orders", group="b"), 30.0))
        await asyncio.to_thread(clock.wait_for_sleepers, 4)
        engine.ready.extend("12")
        engine.notify()

        assert sorted(ids(await first) + ids(await second)) == ["1", "2"]

    run(batched, work)


# -- callers that go away


def test_a_cancelled_pop_gives_back_uncounted_what_it_was_taking(
    batched: BatchedEngine, engine: ScriptedEngine
) -> None:
    async def work() -> None:
        engine.ready.append("1")
        engine.gate.clear()
        popping = begin(batched.pop(WANT, 30.0))
        await until(lambda: engine.looks == 1)
        popping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await popping
        engine.gate.set()

        await until(lambda: bool(engine.settled))
        assert [(each.transaction_id, each.lease_id, each.status) for each in engine.settled[0]] == [
            ("1", "lease", Status.RETRY)
        ]

    run(batched, work)


def test_a_waiting_pop_that_is_cancelled_passes_its_wake_up_on(
    batched: BatchedEngine, engine: ScriptedEngine, clock: ManualClock
) -> None:
    async def work() -> None:
        first = begin(batched.pop(WANT, 30.0))
        await asyncio.to_thread(clock.wait_for_sleepers, 2)
        second = begin(batched.pop(WANT, 30.0))
        await asyncio.to_thread(clock.wait_for_sleepers, 3)
        engine.ready.append("1")
        batched._waiters["orders"].wake()  # on the loop, so that the cancellation comes before the look
        first.cancel()

        assert ids(await second) == ["1"]
        assert first.cancelled()

    run(batched, work)


def test_what_cannot_be_handed_over_is_given_back_uncounted(batched: BatchedEngine, engine: ScriptedEngine) -> None:
    async def work() -> None:
        engine.ready.append("1")
        taken = await batched.pop(WANT)
        await batched.release(WANT, taken)

        assert [each.status for each in engine.settled[0]] == [Status.RETRY]

    run(batched, work)


def test_an_outage_is_told_to_whoever_looked_and_the_others_go_on(
    batched: BatchedEngine, engine: ScriptedEngine, clock: ManualClock
) -> None:
    async def work() -> None:
        waiting = [begin(batched.pop(WANT, 30.0)) for _ in range(2)]
        await asyncio.to_thread(clock.wait_for_sleepers, 3)
        engine.failures.append(QueueUnavailable("down"))
        engine.notify()
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        engine.ready.append("1")
        await asyncio.to_thread(clock.advance, 1.0)

        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert sorted(type(each).__name__ for each in results) == ["PopResult", "QueueUnavailable"]

    run(batched, work)


# -- closing


def test_closing_ends_every_wait_with_nothing_and_all_listening(
    batched: BatchedEngine, engine: ScriptedEngine, clock: ManualClock
) -> None:
    async def work() -> None:
        waiting = [begin(batched.pop(WANT, 30.0)) for _ in range(3)]
        await asyncio.to_thread(clock.wait_for_sleepers, 4)

        await batched.close()

        assert [taken.messages for taken in await asyncio.gather(*waiting)] == [(), (), ()]
        assert engine.listeners == {"orders": []}
        with pytest.raises(QueueUnavailable):
            await batched.push([a_push("late")])
        with pytest.raises(QueueUnavailable):
            await batched.pop(WANT)

    run(batched, work)


def test_closing_carries_out_what_has_gathered(batched: BatchedEngine, engine: ScriptedEngine) -> None:
    async def work() -> None:
        engine.gate.clear()
        pushes = [begin(batched.push([a_push(str(number))])) for number in range(2)]
        await until(lambda: len(engine.pushes) == 1)
        pushes.append(begin(batched.push([a_push("2")])))
        await asyncio.sleep(0)
        closing = begin(batched.close())
        await asyncio.sleep(0)
        engine.gate.set()

        await closing
        assert [(await each)[0].message_id for each in pushes] == ["of 0", "of 1", "of 2"]

    run(batched, work)
