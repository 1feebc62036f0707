"""An event loop on a thread of its own: whatever is begun on it ends, also when it is closed meanwhile."""

import asyncio
import socket
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError

import pytest

from pump.clock import Signal, SystemClock
from pump.transport_kit.loop_thread import LoopThread
from support.waiting import LIMIT


def test_it_runs_work_and_gives_back_what_that_returns_or_raises() -> None:
    async def fail() -> None:
        raise ValueError("odd")

    loop = LoopThread("pump-consumer")

    assert loop.run(asyncio.sleep(0, "done")) == "done"
    assert loop.submit(asyncio.sleep(0, "later")).result(LIMIT) == "later"
    with pytest.raises(ValueError, match="odd"):
        loop.run(fail())
    assert loop.loop.is_running()
    loop.close()


def run_all(*acts: Callable[[], object]) -> None:
    threads = [threading.Thread(target=act) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert not any(thread.is_alive() for thread in threads)


def test_work_begun_while_a_loop_thread_is_closed_always_ends() -> None:
    for _ in range(30):
        loop = LoopThread("pump-consumer")
        ended: list[object] = []

        def work(loop: LoopThread = loop, ended: list[object] = ended) -> None:
            for _ in range(20):
                try:
                    ended.append(loop.run(asyncio.sleep(0.0001, "done")))
                except BaseException as error:
                    ended.append(error)

        run_all(work, work, loop.close)

        assert len(ended) == 40
        assert all(each == "done" or isinstance(each, RuntimeError | CancelledError) for each in ended)


def test_closing_a_loop_thread_cancels_what_runs_and_what_that_begins() -> None:
    loop, seen, began = LoopThread("pump-consumer"), list[str](), Signal()
    others: list[asyncio.Task[None]] = []

    async def last_words() -> None:
        try:
            await asyncio.sleep(LIMIT)
        finally:
            seen.append("second")

    async def work() -> None:
        began.set()
        try:
            await asyncio.sleep(LIMIT)
        finally:
            seen.append("first")
            others.append(loop.loop.create_task(last_words()))

    loop.submit(work())
    SystemClock().wait(began, LIMIT)
    loop.close()

    assert seen == ["first", "second"]
    assert others[0].cancelled()
    assert not loop._thread.is_alive()


def test_a_loop_thread_may_be_closed_twice_and_by_two() -> None:
    loop = LoopThread("pump-consumer")

    run_all(loop.close, loop.close)
    loop.close()

    with pytest.raises(RuntimeError, match="pump-consumer is closed"):
        loop.run(asyncio.sleep(0))


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_a_task_that_would_end_the_loop_ends_alone_and_whoever_awaits_it_is_told(error: BaseException) -> None:
    async def end() -> None:
        raise error

    async def parent() -> str:
        try:
            await asyncio.gather(end())
        except BaseException as raised:
            return type(raised).__name__
        return "nothing"

    loop = LoopThread("pump-loop")

    assert loop.run(parent()) == type(error).__name__
    assert loop.run(asyncio.sleep(0, "goes on")) == "goes on"
    loop.close()
    assert loop.ended.is_set()


def test_a_task_that_raises_system_exit_while_the_loop_is_closed_keeps_no_other_from_ending() -> None:
    seen, began = list[str](), Signal()

    async def work(name: str) -> None:
        try:
            await asyncio.sleep(LIMIT)
        finally:
            seen.append(name)
            raise SystemExit(name)

    async def begin() -> None:
        tasks = [asyncio.create_task(work(name)) for name in ("first", "second")]
        began.set()
        await asyncio.wait(tasks)

    loop = LoopThread("pump-loop")
    loop.submit(begin())
    SystemClock().wait(began, LIMIT)
    loop.close()

    assert sorted(seen) == ["first", "second"]
    assert loop.loop.is_closed()


def test_a_task_that_stops_the_loop_stops_nothing() -> None:
    async def stop() -> None:
        asyncio.get_running_loop().stop()

    loop = LoopThread("pump-loop")
    loop.run(stop())

    assert loop.run(asyncio.sleep(0.001, "goes on")) == "goes on"
    loop.close()


def test_connections_left_open_are_cut_where_that_is_asked_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        loop = LoopThread("pump-consumer", ends_connections=True)
        loop.run(loop.loop.create_connection(asyncio.Protocol, *server.getsockname()))
        peer, _ = server.accept()
        peer.settimeout(LIMIT)

        loop.close()

        with peer:
            assert not peer.recv(1)


def test_a_connection_that_is_closed_already_is_left_alone() -> None:
    async def connect_and_close(address: tuple[str, int]) -> None:
        _, writer = await asyncio.open_connection(*address)
        writer.close()
        await writer.wait_closed()

    with socket.create_server(("127.0.0.1", 0)) as server:
        loop = LoopThread("pump-consumer", ends_connections=True)
        loop.run(connect_and_close(server.getsockname()))

        loop.close()

        assert loop.ended.is_set()
