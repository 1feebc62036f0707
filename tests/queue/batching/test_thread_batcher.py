"""Small calls of many threads are merged: which thread leads, who gets which result, and what an error does."""

import threading
from collections.abc import Callable, Sequence

import pytest

from pump.errors import PumpError
from pump.queue.batching.thread_batcher import ThreadBatcher
from pump.queue.batching.waiting_call import HEAVIEST, LARGE, MOST
from pump.queue.errors import BadRequest, QueueUnavailable
from support.waiting import eventually


class Counter:
    """Returns ten times each number; its first call waits until the test lets it go."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.begun = threading.Event()
        self.go = threading.Event()
        self.error: Callable[[Sequence[int]], BaseException | None] = lambda _: None

    def __call__(self, items: Sequence[int]) -> list[int]:
        self.calls.append(list(items))
        if len(self.calls) == 1:
            self.begun.set()
            assert self.go.wait(10.0)
        error = self.error(items)
        if error is not None:
            raise error
        return [item * 10 for item in items]


class Crowd:
    """Threads with one call each: the first call is running, the others wait for the next batch."""

    def __init__(self, counter: Counter, *, weigh: Callable[[int], int] = lambda _: 0) -> None:
        self.counter = counter
        self.batcher = ThreadBatcher[int, int](counter, weigh)
        self.answers: dict[tuple[int, ...], Sequence[int] | BaseException] = {}
        self._threads: list[threading.Thread] = []

    def ask(self, *wanted: Sequence[int]) -> None:
        for items in wanted:
            before = len(self.batcher._waiting)
            thread = threading.Thread(target=self._do, args=(items,))
            thread.start()
            self._threads.append(thread)
            if len(self._threads) == 1:
                assert self.counter.begun.wait(10.0)
            elif len(items) < LARGE:
                eventually(lambda before=before: len(self.batcher._waiting) > before)  # type: ignore[misc]

    def _do(self, items: Sequence[int]) -> None:
        try:
            self.answers[tuple(items)] = self.batcher.do(items)
        except BaseException as error:
            self.answers[tuple(items)] = error

    def end(self) -> None:
        self.counter.go.set()
        for thread in self._threads:
            thread.join(10.0)
            assert not thread.is_alive()


@pytest.mark.requirement("Q-54")
def test_what_gathers_behind_a_call_goes_in_one_and_everybody_has_his_answers() -> None:
    crowd = Crowd(Counter())

    crowd.ask([1], [2, 3], [4])
    crowd.end()

    assert crowd.counter.calls == [[1], [2, 3, 4]]
    assert crowd.answers == {(1,): [10], (2, 3): [20, 30], (4,): [40]}


def test_a_call_without_company_is_made_at_once() -> None:
    counter = Counter()
    counter.go.set()
    batcher = ThreadBatcher[int, int](counter)

    assert [batcher.do([number]) for number in (1, 2)] == [[10], [20]]


def test_a_large_call_neither_waits_nor_is_waited_for() -> None:
    crowd, large = Crowd(Counter()), list(range(LARGE))

    crowd.ask([1])
    assert crowd.batcher.do(large) == [number * 10 for number in large]
    crowd.end()


def test_not_more_go_together_than_one_call_should_carry() -> None:
    crowd, half = Crowd(Counter(), weigh=lambda item: item), HEAVIEST // 2

    crowd.ask([0], [half], [half], [1])
    crowd.end()

    assert crowd.counter.calls == [[0], [half, half], [1]]


def test_not_more_items_go_together_than_one_call_should_carry() -> None:
    crowd = Crowd(Counter())
    wanted = [[number] * (LARGE - 1) for number in range(1, 13)]

    crowd.ask([0], *wanted)
    crowd.end()

    assert [len(call) <= MOST for call in crowd.counter.calls] == [True] * len(crowd.counter.calls)
    assert sum(map(len, crowd.counter.calls)) == 1 + 12 * (LARGE - 1)


@pytest.mark.requirement("Q-71", "Z-11")
def test_what_is_wrong_with_one_is_not_the_others_affair() -> None:
    crowd = Crowd(Counter())
    crowd.counter.error = lambda items: BadRequest("2 is wrong") if 2 in items else None

    crowd.ask([1], [2], [3])
    crowd.end()

    assert isinstance(crowd.answers.pop((2,)), BadRequest)
    assert crowd.answers == {(1,): [10], (3,): [30]}


def test_an_outage_is_everybodys_and_tried_once() -> None:
    crowd = Crowd(Counter())
    crowd.counter.error = lambda items: QueueUnavailable("gone") if 2 in items else None

    crowd.ask([1], [2], [3])
    crowd.end()

    assert [isinstance(crowd.answers[key], QueueUnavailable) for key in ((2,), (3,))] == [True, True]
    assert crowd.counter.calls == [[1], [2, 3]]


def test_a_thread_that_is_interrupted_while_it_leads_tells_the_others_that_nobody_knows() -> None:
    crowd = Crowd(Counter())
    crowd.counter.error = lambda items: KeyboardInterrupt() if 2 in items else None

    crowd.ask([1], [2], [3])
    crowd.end()

    errors = [crowd.answers[(2,)], crowd.answers[(3,)]]
    assert sorted(type(error).__name__ for error in errors) == ["KeyboardInterrupt", "QueueUnavailable"]
    assert all(isinstance(error, KeyboardInterrupt | PumpError) for error in errors)
    assert crowd.batcher.do([4]) == [40]


def test_a_thread_that_is_interrupted_while_it_waits_leaves_the_others_to_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The interrupt comes at the moment when its call became the leader: the next call leads instead."""
    crowd = Crowd(Counter())
    lead = crowd.batcher._lead

    def interrupted() -> None:
        if crowd.batcher._waiting[0].items == [2]:
            raise KeyboardInterrupt
        lead()

    monkeypatch.setattr(crowd.batcher, "_lead", interrupted)

    crowd.ask([1], [2], [3])
    crowd.end()

    assert isinstance(crowd.answers.pop((2,)), KeyboardInterrupt)
    assert crowd.answers == {(1,): [10], (3,): [30]}


def test_sixteen_threads_have_each_of_their_calls_done_once() -> None:
    done: list[int] = []

    def run(items: Sequence[int]) -> list[int]:
        done.extend(items)
        return [item * 10 for item in items]

    batcher = ThreadBatcher[int, int](run)
    wrong: list[int] = []

    def work(number: int) -> None:
        for step in range(500):
            item = number * 500 + step
            if batcher.do([item]) != [item * 10]:
                wrong.append(item)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)

    assert wrong == []
    assert sorted(done) == list(range(16 * 500))
