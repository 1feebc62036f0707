"""A program's own context: entered before the first message, left after the last, by one thread or one task."""

import asyncio
import contextvars
import logging
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from pathlib import Path
from typing import Any, Self

import pytest

from pump.errors import ConfigurationError
from pump.program.dispatcher import Dispatcher
from pump.program.life import StopAsked
from pump.subscription import Publication, Subscription
from support.programs import pump
from support.pumps import KINDS, Broker, Kind, Order, Outcomes
from support.waiting import LIMIT, eventually, eventually_async


class Lived:
    """A lifespan of either colour that notes what happens, where, and fails where it is told to."""

    def __init__(self, *, awaits: bool, fails: str = "", error: BaseException | None = None) -> None:
        self.events: list[str] = []
        self.places: set[object] = set()
        self.gates = {"enter": threading.Event(), "leave": threading.Event()}
        for gate in self.gates.values():
            gate.set()
        self._awaits = awaits
        self._fails = fails
        self._error = error or OSError("no database")

    def __call__(self) -> AbstractContextManager[None] | AbstractAsyncContextManager[None]:
        return self._awaiting() if self._awaits else self._blocking()

    @contextmanager
    def _blocking(self) -> Iterator[None]:
        self._note("enter")
        self.gates["enter"].wait(LIMIT)
        self._fail("enter")
        self.events.append("entered")
        yield
        self._note("leave")
        self.gates["leave"].wait(LIMIT)
        self._fail("leave")
        self.events.append("left")

    @asynccontextmanager
    async def _awaiting(self) -> AsyncIterator[None]:
        self._note("enter")
        await self._gate("enter")
        self._fail("enter")
        self.events.append("entered")
        yield
        self._note("leave")
        await self._gate("leave")
        self._fail("leave")
        self.events.append("left")

    async def _gate(self, name: str) -> None:
        try:
            await eventually_async(self.gates[name].is_set)
        except asyncio.CancelledError:
            self.events.append("cancelled")
            raise

    def _note(self, event: str) -> None:
        self.events.append(event)
        with suppress(RuntimeError):
            self.places.add(asyncio.current_task())
        self.places.add(threading.current_thread())

    def _fail(self, where: str) -> None:
        if self._fails == where:
            raise self._error


def living(kind: Kind, lived: Any, body: Callable[[Any], object], broker: Broker | None = None) -> Dispatcher:
    return Dispatcher(
        broker or Broker(),
        handlers=[kind.handler(body)],
        subscriptions=[Subscription(Order, topic="orders", grace=1, **kind.options)],
        publications=[Publication(Order, topic="orders")],
        lifespan=lived,
    )


def consume_in_a_with(dispatcher: Dispatcher, done: Callable[[], bool]) -> None:
    with dispatcher:
        eventually(done)


def consume_in_an_async_with(dispatcher: Dispatcher, done: Callable[[], bool]) -> None:
    async def main() -> None:
        async with dispatcher:
            await eventually_async(done)

    asyncio.run(main())


def consume_by_run(dispatcher: Dispatcher, done: Callable[[], bool]) -> None:
    thread = threading.Thread(target=dispatcher.run)
    thread.start()
    eventually(done)
    dispatcher.request_stop()
    thread.join(LIMIT)


CONSUME = {"with": consume_in_a_with, "async with": consume_in_an_async_with, "run": consume_by_run}
BOTH_COLOURS = pytest.mark.parametrize("awaits", [False, True], ids=["blocking", "awaiting"])
EVERY_WAY = pytest.mark.parametrize("way", CONSUME)


@BOTH_COLOURS
@EVERY_WAY
def test_it_is_entered_before_the_first_message_and_left_after_the_last(kind: Kind, awaits: bool, way: str) -> None:
    lived, broker = Lived(awaits=awaits), Broker()

    def handle(order: Order) -> None:
        lived.events.append(f"handled {order.number}")

    dispatcher = living(kind, lived, handle, broker)
    with dispatcher.publishing():
        dispatcher.post_many([Order(1), Order(2)])
    assert lived.events == []

    for _ in range(2):
        CONSUME[way](dispatcher, lambda: "handled 2" in lived.events)
        assert lived.events == ["enter", "entered", "handled 1", "handled 2", "leave", "left"]
        del lived.events[:]
        with dispatcher.publishing():
            dispatcher.post_many([Order(1), Order(2)])


@BOTH_COLOURS
@EVERY_WAY
def test_one_thread_or_one_task_enters_and_leaves_it(awaits: bool, way: str) -> None:
    lived, body = Lived(awaits=awaits), Outcomes(None)
    dispatcher = living(KINDS[0], lived, body)

    CONSUME[way](dispatcher, lambda: dispatcher.ready)

    assert len(lived.places - {None}) == (2 if awaits else 1)


@BOTH_COLOURS
def test_it_may_post_when_it_is_entered_and_when_it_is_left(kind: Kind, awaits: bool) -> None:
    @contextmanager
    def blocking() -> Iterator[None]:
        dispatcher.post(Order(1))
        yield
        dispatcher.post(Order(2))

    @asynccontextmanager
    async def awaiting() -> AsyncIterator[None]:
        await dispatcher.post_async(Order(1))
        yield
        await dispatcher.post_async(Order(2))

    body, broker = Outcomes(None), Broker()
    dispatcher = living(kind, awaiting if awaits else blocking, body, broker)
    with dispatcher:
        eventually(lambda: body.runs == 1)

    assert broker.bus.pending("orders") == 1


class Pool:
    """An object that is a context manager itself, and can be entered again."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def __enter__(self) -> Self:
        self.events.append("open")
        return self

    def __exit__(self, *_: object) -> None:
        self.events.append("closed")


@pytest.mark.parametrize("form", ["object", "class", "lambda"])
def test_an_object_a_class_and_any_function_without_arguments_will_do(form: str) -> None:
    pool = Pool()

    class Made(Pool):
        def __enter__(self) -> Self:
            pool.__enter__()
            return self

        def __exit__(self, *_: object) -> None:
            pool.__exit__()

    given: Any = {"object": pool, "class": Made, "lambda": lambda: pool}[form]
    dispatcher = living(KINDS[0], given, Outcomes(None))
    with dispatcher:
        assert pool.events == ["open"]
    with dispatcher:
        pass

    assert pool.events == ["open", "closed"] * 2


@pytest.mark.parametrize("way", ["with", "async with"])
def test_another_dispatcher_that_publishes_is_a_lifespan(kind: Kind, way: str) -> None:
    broker, other = Broker(), Broker()
    outgoing = Dispatcher(other, publications=[Publication(Order, topic="orders")])
    other.prepare([Subscription(Order, topic="orders", channel="orders", dead_letter="dead")], [])

    def forward(order: Order) -> object:
        return outgoing.post_async(order) if kind.awaits else outgoing.post(order)

    dispatcher = living(kind, outgoing.publishing, forward, broker)
    with dispatcher.publishing():
        dispatcher.post(Order(7))
    CONSUME[way](dispatcher, lambda: bool(other.bus.pending("orders")))

    assert other.bus.pending("orders") == 1
    with pytest.raises(ConfigurationError, match="not running"):
        outgoing.post(Order(8))


# -- when it fails


@BOTH_COLOURS
@pytest.mark.parametrize("way", ["with", "async with"])
@pytest.mark.parametrize("error", [OSError("no database"), SystemExit("no settings")], ids=["error", "exit"])
def test_what_it_raises_when_it_is_entered_comes_out_and_nothing_is_consumed(
    kind: Kind, awaits: bool, way: str, error: BaseException
) -> None:
    lived, body, broker = Lived(awaits=awaits, fails="enter", error=error), Outcomes(None), Broker()
    dispatcher = living(kind, lived, body, broker)
    with pytest.raises(type(error), match="no ") as raised:
        CONSUME[way](dispatcher, lambda: True)

    assert lived.events == ["enter"]
    assert "raised by the dispatcher's lifespan" in raised.value.__notes__[0]
    assert broker.named("open") == []
    eventually(lambda: not [each for each in threading.enumerate() if each.name in {"pump-loop", "pump-lifespan"}])
    with dispatcher.publishing():  # it may be used again
        dispatcher.post(Order(1))


@BOTH_COLOURS
@EVERY_WAY
def test_what_it_raises_when_it_is_left_comes_out_when_all_else_is_closed(
    kind: Kind, awaits: bool, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived, broker, errors = Lived(awaits=awaits, fails="leave"), Broker(), list[BaseException]()
    dispatcher = living(kind, lived, Outcomes(None), broker)
    if way == "run":
        monkeypatch.setattr(threading, "excepthook", lambda given: errors.append(given.exc_value))
        CONSUME[way](dispatcher, lambda: dispatcher.ready)
    else:
        with pytest.raises(OSError, match="no database") as raised:
            CONSUME[way](dispatcher, lambda: dispatcher.ready)
        errors.append(raised.value)

    assert [str(each) for each in errors] == ["no database"]
    assert broker.named("close") == ["close"]
    assert dispatcher._life.ended.is_set()
    eventually(lambda: not [each for each in threading.enumerate() if each.name in {"pump-loop", "pump-lifespan"}])


@BOTH_COLOURS
@pytest.mark.parametrize("way", ["with", "async with"])
def test_an_error_in_the_block_leaves_it_too_and_comes_out(kind: Kind, awaits: bool, way: str) -> None:
    def fail() -> bool:
        raise ValueError("the block")

    lived = Lived(awaits=awaits)
    with pytest.raises(ValueError, match="the block"):
        CONSUME[way](living(kind, lived, Outcomes(None)), fail)

    assert lived.events[-1] == "left"


@BOTH_COLOURS
def test_a_stop_while_it_is_entered_begins_nothing(kind: Kind, awaits: bool) -> None:
    lived, broker = Lived(awaits=awaits), Broker()
    lived.gates["enter"].clear()
    dispatcher = living(kind, lived, Outcomes(None), broker)
    codes: list[int] = []
    running = threading.Thread(target=lambda: codes.append(dispatcher.run()))
    running.start()
    eventually(lambda: lived.events == ["enter"])
    dispatcher.request_stop()
    if not awaits:  # it cannot be interrupted: the stop waits for it within the grace, and then leaves it
        eventually(dispatcher._life.asked.is_set)
        lived.gates["enter"].set()
    running.join(LIMIT)

    assert codes == [0]
    assert lived.events == (["enter", "cancelled"] if awaits else ["enter", "entered", "leave", "left"])
    assert broker.named("open") == []
    lived.gates["enter"].set()
    with dispatcher:
        eventually(lambda: dispatcher.ready)


def test_a_with_that_is_stopped_while_it_is_entered_raises(kind: Kind) -> None:
    lived = Lived(awaits=True)
    lived.gates["enter"].clear()
    dispatcher = living(kind, lived, Outcomes(None))

    def stop() -> None:
        eventually(lambda: lived.events == ["enter"])
        dispatcher.stop()

    stopping = threading.Thread(target=stop)
    stopping.start()
    with pytest.raises(StopAsked, match="while it was starting"):
        dispatcher.start()
    stopping.join(LIMIT)

    assert lived.events == ["enter", "cancelled"]


@BOTH_COLOURS
def test_one_that_does_not_end_is_left_in_time(kind: Kind, awaits: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    lived = Lived(awaits=awaits)
    lived.gates["leave"].clear()
    dispatcher = living(kind, lived, Outcomes(None))
    dispatcher.start()
    began = time.monotonic()
    dispatcher.stop(grace=0)
    took = time.monotonic() - began
    lived.gates["leave"].set()

    assert took < 2
    if awaits:
        assert lived.events[-1] == "cancelled"
    else:
        assert "has not ended in time" in caplog.text


def test_the_context_variables_of_the_program_are_seen_in_an_async_one() -> None:
    variable, seen = contextvars.ContextVar("variable", default="unset"), list[str]()

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        seen.append(variable.get())
        yield

    async def main() -> None:
        variable.set("set")
        async with living(KINDS[1], lifespan, Outcomes(None)):
            pass

    asyncio.run(main())

    assert seen == ["set"]


# -- what is refused


def wants_a_parameter(_: object) -> Pool:
    return Pool()


def not_decorated() -> Iterator[None]:
    yield


async def not_decorated_async() -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (3, "lifespan=int is neither a context manager nor a function that makes one"),
        (wants_a_parameter, "lifespan=wants_a_parameter has to be called without arguments"),
        (not_decorated, "lifespan=not_decorated is a generator: put @contextlib.contextmanager on it"),
        (not_decorated_async, "lifespan=not_decorated_async is a generator: put @contextlib.asynccontextmanager on it"),
    ],
)
def test_what_cannot_be_a_lifespan_is_refused_when_the_dispatcher_is_made(given: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        living(KINDS[0], given, Outcomes(None))


def test_a_function_that_makes_none_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigurationError, match="returned int, which is not a context manager"):
        living(KINDS[0], lambda: 3, Outcomes(None)).start()


# -- as a process

SHOP = """
import os, sys
from contextlib import contextmanager
from dataclasses import dataclass
from pump import *

@dataclass(frozen=True)
class Order(Command):
    number: int

@contextmanager
def database():
    sys.stdout.write(f"open in {{os.getpid()}}\\n")  # one write: print makes several, and those of workers mix
    {enter}
    yield
    sys.stdout.write(f"closed in {{os.getpid()}}\\n")
    {leave}

def handle(order: Order) -> None: ...

dispatcher = Dispatcher(
    "sqlite:///shop.db", handlers=[handle], subscriptions=[Subscription(Order)], publications=[Publication(Order)],
    lifespan=database,
)
"""


def written(folder: Path, *, enter: str = "", leave: str = "") -> Path:
    (folder / "shop.py").write_text(SHOP.format(enter=enter, leave=leave))
    return folder


def test_every_worker_has_its_own(tmp_path: Path) -> None:
    with pump("run", "shop:dispatcher", "--workers", "2", folder=written(tmp_path)) as program:
        program.says("open in", times=2)
        opened = {line.split()[-1] for line in program.output.splitlines() if line.startswith("open in")}
        program.send(signal.SIGTERM)
        program.says("closed in", times=2)
        status = program.ends()

    closed = {line.split()[-1] for line in program.output.splitlines() if line.startswith("closed in")}
    assert status == 0
    assert len(opened) == 2
    assert closed == opened
    assert str(program.pid) not in opened


@pytest.mark.parametrize("fails", ["enter", "leave"])
def test_pump_run_says_in_a_line_what_it_raised_and_where(tmp_path: Path, fails: str) -> None:
    folder = written(tmp_path, **{fails: 'raise OSError("no database")'})
    with pump("run", "shop:dispatcher", folder=folder) as program:
        program.says("open in")
        if fails == "leave":
            program.says("starting")
            program.send(signal.SIGTERM)
        status = program.ends()

        output = program.says("OSError: no database (shop.py, line")
    assert status == 3
    assert "Traceback" not in output
