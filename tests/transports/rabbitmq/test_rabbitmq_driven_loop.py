"""Pika's loop is driven by whoever waits for it; and by its own thread, where nobody does."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from pump.clock import Signal
from pump.transports.rabbitmq.driven_loop import DrivenLoop
from support.waiting import LIMIT, eventually


class Driven:
    """A loop with its thread, and what it failed with."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []
        self.loop = DrivenLoop(self.errors.append)
        self.thread = threading.Thread(target=self.loop.run, daemon=True)
        self.thread.start()

    def where(self) -> str:
        """The thread that does what the loop is asked for."""
        names, done = list[str](), Signal()

        def note() -> None:
            names.append(threading.current_thread().name)
            done.set()

        self.loop.call(note)
        assert self.loop.wait(done, LIMIT)
        return names[0]

    def use(self) -> None:
        """Use it until its thread rests."""
        eventually(lambda: self.where() == threading.current_thread().name)

    def stop(self) -> None:
        self.loop.call(self.loop.stop)
        self.thread.join(LIMIT)
        assert not self.thread.is_alive()
        self.loop.io.close()


@pytest.fixture
def driven() -> Iterator[Driven]:
    made = Driven()
    yield made
    made.stop()


def test_its_thread_drives_until_somebody_waits_and_again_when_nobody_does(driven: Driven) -> None:
    rung = Signal()
    assert driven.where() == driven.thread.name

    driven.use()
    driven.loop.call(lambda: driven.loop.io.call_later(0.01, rung.set))

    eventually(rung.is_set)  # nobody waits by the loop


def test_who_waits_drives_and_is_woken_by_what_another_thread_does(driven: Driven) -> None:
    driven.use()
    own, others = Signal(), Signal()
    names: list[str] = []

    driven.loop.call(
        lambda: driven.loop.io.call_later(0.01, lambda: (names.append(threading.current_thread().name), own.set()))
    )
    assert driven.loop.wait(own, LIMIT)
    assert names == [threading.current_thread().name]

    threading.Timer(0.01, others.set).start()
    assert driven.loop.wait(others, LIMIT)


def test_a_wait_ends_in_time(driven: Driven) -> None:
    assert not driven.loop.wait(Signal(), 0.01)
    driven.use()
    assert not driven.loop.wait(Signal(), 0.01)


def test_many_threads_that_wait_are_all_served(driven: Driven) -> None:
    def post() -> None:
        for _ in range(50):
            driven.where()

    threads = [threading.Thread(target=post) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)

    assert not any(thread.is_alive() for thread in threads)


def test_what_fails_while_somebody_drives_is_told_and_ends_it() -> None:
    driven = Driven()
    driven.use()

    def fail() -> None:
        raise ValueError("never seen before")

    driven.loop.call(lambda: driven.loop.io.call_later(0.0, fail))
    driven.loop.wait(Signal(), 0.2)

    eventually(lambda: not driven.thread.is_alive())
    assert [str(error) for error in driven.errors] == ["never seen before"]
    driven.loop.io.close()


def test_an_event_loop_drives_it_until_it_is_blocked(driven: Driven) -> None:
    async def use() -> None:
        main, names = threading.current_thread().name, list[str]()
        deadline = asyncio.get_running_loop().time() + LIMIT
        while main not in names and asyncio.get_running_loop().time() < deadline:
            done = asyncio.Event()
            loop = asyncio.get_running_loop()

            def note(loop: asyncio.AbstractEventLoop = loop, done: asyncio.Event = done) -> None:
                names.append(threading.current_thread().name)
                loop.call_soon_threadsafe(done.set)

            driven.loop.call(lambda note=note: driven.loop.io.call_later(0.0, note))  # type: ignore[misc]
            driven.loop.serve()
            driven.loop.io.add_callback_threadsafe(lambda: None)
            await asyncio.wait_for(done.wait(), LIMIT)
        assert main in names

        rung = Signal()
        driven.loop.call(lambda: driven.loop.io.call_later(0.01, rung.set))
        eventually(rung.is_set)  # this blocks the event loop
        driven.loop.leave()

    asyncio.run(use())
