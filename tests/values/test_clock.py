"""Clocks: who is woken, and when; the machine's own, and the one that is moved by hand."""

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from pump.clock import Clock, ManualClock, Signal, SystemClock
from pump.transport_kit.loop_thread import LoopThread
from support.waiting import LIMIT, eventually


def quickest(act: Callable[[], float], times: int = 5) -> float:
    """The shortest of several times: a busy machine may make any one of them longer."""
    return min(act() for _ in range(times))


# -- waiting, on either clock


@pytest.mark.parametrize("timeout", [None, 0.0, -1.0, 5.0, float("inf"), 1e300])
def test_a_wait_for_what_is_set_already_ends_at_once(timeout: float | None) -> None:
    flag = Signal()
    flag.set()

    for clock in (SystemClock(), ManualClock(), ManualClock(automatic=True)):
        assert clock.wait(flag, timeout)
        assert asyncio.run(_wait(clock, flag, timeout))


@pytest.mark.parametrize("timeout", [0.0, -1.0])
def test_a_wait_for_no_time_ends_at_once(timeout: float) -> None:
    for clock in (SystemClock(), ManualClock(), ManualClock(automatic=True)):
        assert not clock.wait(Signal(), timeout)
        assert not asyncio.run(_wait(clock, Signal(), timeout))


async def _wait(clock: Clock, flag: Signal, timeout: float | None) -> bool:
    return await clock.wait_async(flag, timeout)


def test_a_wait_on_the_systems_clock_lasts_as_long_as_it_shall() -> None:
    clock = SystemClock()
    began = time.monotonic()

    assert not clock.wait(Signal(), 0.03)
    assert not asyncio.run(_wait(clock, Signal(), 0.03))

    assert 0.06 <= time.monotonic() - began < LIMIT


@pytest.mark.parametrize("timeout", [None, LIMIT, float("inf"), 1e300])
def test_setting_ends_a_blocking_wait_within_50_ms(timeout: float | None) -> None:
    clock = SystemClock()

    def once() -> float:
        flag, ended = Signal(), list[float]()

        def wait() -> None:
            clock.wait(flag, timeout)
            ended.append(time.monotonic())

        thread = threading.Thread(target=wait)
        thread.start()
        eventually(lambda: flag._callbacks)
        began = time.monotonic()
        flag.set()
        thread.join()
        return ended[0] - began

    assert quickest(once) < 0.05


@pytest.mark.parametrize("timeout", [None, LIMIT, float("inf")])
def test_setting_from_a_thread_ends_an_awaiting_wait_within_50_ms(timeout: float | None) -> None:
    clock = SystemClock()

    async def once() -> float:
        flag = Signal()
        began: list[float] = []

        def set_it() -> None:
            eventually(lambda: flag._callbacks)
            began.append(time.monotonic())
            flag.set()

        threading.Thread(target=set_it).start()
        assert await clock.wait_async(flag, timeout)
        return time.monotonic() - began[0]

    assert quickest(lambda: asyncio.run(once())) < 0.05


def test_one_signal_wakes_threads_and_tasks_of_several_loops() -> None:
    clock, flag = SystemClock(), Signal()
    loops = [LoopThread(f"loop-{number}") for number in range(2)]
    waits = [loop.submit(_wait(clock, flag, LIMIT)) for loop in loops for _ in range(3)]
    woken: list[bool] = []
    threads = [threading.Thread(target=lambda: woken.append(clock.wait(flag, LIMIT))) for _ in range(3)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(flag._callbacks) == 9)

    flag.set()

    assert [wait.result(LIMIT) for wait in waits] == [True] * 6
    for thread in threads:
        thread.join()
    for loop in loops:
        loop.close()
    assert woken == [True] * 3


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock(automatic=True)])
def test_waits_leave_nothing_behind(clock: Clock) -> None:
    flag = Signal()

    for _ in range(100):
        clock.wait(flag, 0.0001)
        asyncio.run(_wait(clock, flag, 0.0001))

    assert flag._callbacks == {}


def test_a_cancelled_wait_leaves_nothing_behind_and_the_others_are_woken() -> None:
    async def scenario(clock: Clock) -> list[bool]:
        flag = Signal()
        cancelled, other = (asyncio.create_task(clock.wait_async(flag, LIMIT)) for _ in range(2))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.sleep(0)
        assert len(flag._callbacks) == 1
        flag.set()
        return [await other, cancelled.cancelled()]

    for clock in (SystemClock(), ManualClock()):
        assert asyncio.run(scenario(clock)) == [True, True]


def test_a_wait_that_ends_in_both_ways_at_once_ends_once() -> None:
    async def scenario() -> bool:
        clock, flag = ManualClock(), Signal()
        waiting = asyncio.create_task(clock.wait_async(flag, 1.0))
        await asyncio.sleep(0)
        clock.advance(1.0)
        flag.set()
        return await waiting

    assert asyncio.run(scenario())


def test_setting_after_the_loop_of_a_wait_was_closed_disturbs_nobody() -> None:
    clock, flag = SystemClock(), Signal()
    loop = asyncio.new_event_loop()
    task = loop.create_task(clock.wait_async(flag, None))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()

    flag.set()

    assert not task.done()
    task._log_destroy_pending = False  # type: ignore[attr-defined] # left behind on purpose
    with pytest.raises(RuntimeError, match="closed"):
        task.cancel()
    task.get_coro().close()


def test_the_systems_clock_tells_the_systems_time() -> None:
    clock = SystemClock()

    assert abs(clock.monotonic() - time.monotonic()) < 1
    assert abs(clock.wall() - time.time()) < 1


# -- the systems alarms


def test_alarms_ring_in_the_order_of_their_time() -> None:
    clock, rung = SystemClock(), list[int]()

    for number in (3, 1, 2):
        clock.alarm(number * 0.02, lambda number=number: rung.append(number))  # type: ignore[misc] # bound now
    eventually(lambda: len(rung) == 3)

    assert rung == [1, 2, 3]


def test_an_earlier_alarm_is_not_kept_by_a_later_one() -> None:
    clock, rung = SystemClock(), Signal()
    cancel = clock.alarm(1000.0, lambda: None)

    clock.alarm(0.01, rung.set)

    assert clock.wait(rung, LIMIT)
    cancel()


def test_a_cancelled_alarm_does_not_ring_and_may_be_cancelled_again() -> None:
    clock, rung, later = SystemClock(), list[str](), Signal()
    cancel = clock.alarm(0.01, lambda: rung.append("cancelled"))
    clock.alarm(0.03, later.set)

    cancel()
    cancel()

    assert clock.wait(later, LIMIT)
    assert rung == []


def test_a_failing_alarm_does_not_stop_the_others() -> None:
    clock, rung = SystemClock(), Signal()

    for delay in (0.0, 0.005):
        clock.alarm(delay, lambda: 1 / 0)  # type: ignore[arg-type] # fails before it returns
    clock.alarm(0.01, rung.set)

    assert clock.wait(rung, LIMIT)


def test_a_thread_of_alarms_ends_when_there_is_nothing_to_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pump.clock.ALARM_IDLE_SECONDS", 0.05)
    clock, threads = SystemClock(), list[threading.Thread]()

    for number in (1, 2):
        clock.alarm(0.0, lambda: threads.append(threading.current_thread()))
        eventually(lambda number=number: len(threads) == number)  # type: ignore[misc] # bound now
        threads[-1].join(LIMIT)
        assert not threads[-1].is_alive()

    assert threads[0] is not threads[1]


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock()])
def test_cancelled_alarms_do_not_pile_up(clock: SystemClock | ManualClock) -> None:
    keep = clock.alarm(1000.0, lambda: None)

    for _ in range(5000):
        clock.alarm(500.0, lambda: None)()

    agenda = clock._agenda if isinstance(clock, ManualClock) else clock._alarms._agenda
    assert len(agenda) == 1
    assert len(agenda._entries) < 200
    keep()


def test_a_clock_that_rings_nothing_has_no_thread() -> None:
    before = threading.active_count()

    SystemClock().wait(Signal(), 0.001)

    assert threading.active_count() == before


# -- again and again


def test_every_goes_on_until_it_is_ended_though_one_of_its_acts_fails() -> None:
    clock, acts, enough = SystemClock(), list[int](), Signal()

    def act() -> None:
        acts.append(len(acts))
        if len(acts) == 2:
            raise ValueError("once")
        if len(acts) == 4:
            enough.set()

    end = clock.every(0.005, act)
    assert clock.wait(enough, LIMIT)
    end()
    eventually(lambda: not any(thread.name == "pump-keeper" for thread in threading.enumerate()))

    assert len(acts) in {4, 5}


def keepers() -> int:
    return sum(each.name == "pump-keeper" for each in threading.enumerate())


def test_all_that_is_done_every_so_often_has_one_thread_which_ends_with_the_last_of_it() -> None:
    clock, acts, before = SystemClock(), [0] * 50, keepers()

    def act(number: int) -> None:
        acts[number] += 1

    ends = [clock.every(0.005, partial(act, number)) for number in range(50)]
    eventually(lambda: min(acts) > 2)
    most = keepers() - before
    for end in ends:
        end()

    assert most <= 5  # more than one only while this machine takes long
    eventually(lambda: keepers() <= before)
    end = clock.every(0.005, partial(act, 0))
    done = acts[0]
    eventually(lambda: acts[0] > done)
    end()


def test_an_act_that_takes_long_keeps_no_other_from_its_time() -> None:
    clock, may_end, before = SystemClock(), threading.Event(), keepers()
    acts: list[str] = []

    def slow() -> None:
        acts.append("slow")
        may_end.wait(LIMIT)

    end_slow = clock.every(0.005, slow)
    eventually(lambda: acts)

    end = clock.every(0.005, lambda: acts.append("quick"))
    eventually(lambda: acts.count("quick") > 3)
    end_slow()
    may_end.set()
    end()

    assert acts.count("slow") == 1
    eventually(lambda: keepers() <= before)


def test_every_async_goes_on_until_it_is_ended_though_one_of_its_acts_fails() -> None:
    clock, acts = SystemClock(), list[int]()

    async def scenario() -> None:
        enough = Signal()

        async def act() -> None:
            acts.append(len(acts))
            if len(acts) == 2:
                raise ValueError("once")
            if len(acts) == 4:
                enough.set()

        end = clock.every_async(0.005, act)
        gc.collect()  # nothing but the clock holds its task
        assert await clock.wait_async(enough, LIMIT)
        end()
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()}, timeout=LIMIT)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(scenario())

    assert len(acts) in {4, 5}


# -- the clock that is moved by hand


def test_it_stands_still_until_it_is_moved() -> None:
    clock = ManualClock(100.0)

    assert (clock.monotonic(), clock.wall()) == (100.0, 100.0)
    clock.advance(2.5)
    assert (clock.monotonic(), clock.wall()) == (102.5, 102.5)


def test_moving_it_rings_everything_on_the_way_at_its_own_time() -> None:
    clock, rung = ManualClock(0.0), list[tuple[str, float]]()

    def ring(name: str) -> None:
        rung.append((name, clock.monotonic()))
        if name == "early":
            clock.alarm(1.0, lambda: ring("next"))

    clock.alarm(3.0, lambda: ring("late"))
    clock.alarm(1.0, lambda: ring("early"))
    clock.alarm(9.0, lambda: ring("not yet"))

    clock.advance(5.0)

    assert rung == [("early", 1.0), ("next", 2.0), ("late", 3.0)]
    assert clock.monotonic() == 5.0


def test_alarms_of_one_time_ring_in_the_order_they_were_set() -> None:
    clock, rung = ManualClock(), list[int]()
    for number in range(5):
        clock.alarm(1.0, lambda number=number: rung.append(number))  # type: ignore[misc] # bound now

    clock.advance(1.0)

    assert rung == [0, 1, 2, 3, 4]


def test_a_blocking_wait_ends_when_the_time_is_moved_or_the_signal_is_set() -> None:
    clock, flag, results = ManualClock(), Signal(), list[bool]()
    threads = [
        threading.Thread(target=lambda timeout=timeout: results.append(clock.wait(flag, timeout)))
        for timeout in (1.0, 5.0)
    ]
    for thread in threads:
        thread.start()
    clock.wait_for_sleepers(2)

    clock.advance(1.0)
    eventually(lambda: results)
    assert results == [False]
    flag.set()
    for thread in threads:
        thread.join()

    assert results == [False, True]
    assert sorted(each or 0.0 for each in clock.waits) == [1.0, 5.0]


def test_an_awaiting_wait_ends_when_the_time_is_moved_from_a_thread() -> None:
    clock = ManualClock()
    loop = LoopThread("waits")
    waiting = loop.submit(_wait(clock, Signal(), 3.0))
    clock.wait_for_sleepers(1)

    clock.advance(3.0)

    assert waiting.result(LIMIT) is False
    loop.close()


def test_an_automatic_one_moves_when_somebody_waits() -> None:
    clock, rung = ManualClock(0.0, automatic=True), list[float]()
    clock.alarm(2.0, lambda: rung.append(clock.monotonic()))

    assert not clock.wait(Signal(), 3.0)
    assert not asyncio.run(_wait(clock, Signal(), 4.0))

    assert (clock.monotonic(), rung, list(clock.waits)) == (7.0, [2.0], [3.0, 4.0])


def test_an_alarm_may_set_what_an_automatic_wait_is_for() -> None:
    clock, flag = ManualClock(automatic=True), Signal()
    clock.alarm(2.0, flag.set)

    assert clock.wait(flag, 3.0)


def test_waiting_for_sleepers_has_an_end() -> None:
    with pytest.raises(TimeoutError, match="0 of 1"):
        ManualClock().wait_for_sleepers(1, timeout=0.01)


def test_every_on_it_acts_with_each_interval_and_leaves_nothing_when_it_is_ended() -> None:
    clock, acts = ManualClock(0.0), list[float]()
    end = clock.every(2.0, lambda: acts.append(clock.monotonic()))

    clock.advance(7.0)
    end()
    clock.advance(7.0)

    assert acts == [2.0, 4.0, 6.0]
    assert len(clock._agenda) == 0


def test_every_on_it_tells_of_an_act_that_fails_and_goes_on() -> None:
    clock, acts = ManualClock(0.0), list[float]()

    def act() -> None:
        acts.append(clock.monotonic())
        if len(acts) == 1:
            raise ValueError("once")

    end = clock.every(2.0, act)

    with pytest.raises(ValueError, match="once"):
        clock.advance(2.0)
    clock.advance(4.0)
    end()

    assert acts == [2.0, 4.0, 6.0]


def test_an_act_may_end_its_own_series() -> None:
    clock, acts = ManualClock(0.0), list[float]()

    def act() -> None:
        acts.append(clock.monotonic())
        end()

    end = clock.every(2.0, act)
    clock.advance(20.0)

    assert acts == [2.0]


def test_every_async_on_it_acts_in_a_task_of_the_loop() -> None:
    clock, acts = ManualClock(0.0), list[float]()

    async def act() -> None:
        await asyncio.sleep(0)
        acts.append(clock.monotonic())

    async def scenario() -> None:
        end = clock.every_async(2.0, act)
        for _ in range(3):
            clock.advance(2.0)
            for _ in range(5):
                await asyncio.sleep(0)
        end()
        clock.advance(10.0)
        await asyncio.sleep(0)

    asyncio.run(scenario())

    assert acts == [2.0, 4.0, 6.0]


def test_the_same_moves_have_the_same_effects() -> None:
    def scenario() -> list[float]:
        clock, seen = ManualClock(0.0), list[float]()
        for delay in (0.3, 0.1, 0.2, 0.1):
            clock.alarm(delay, lambda: seen.append(clock.monotonic()))
        clock.every(0.15, lambda: seen.append(-clock.monotonic()))
        for _ in range(10):
            clock.advance(0.05)
        return seen

    assert scenario() == scenario()
