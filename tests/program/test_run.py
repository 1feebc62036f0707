"""`dispatcher.run()` as a process: the signals that end it, and its exit status."""

import asyncio
import signal
import sys
import threading
import time
from pathlib import Path
from textwrap import dedent, indent

import pytest

from pump.clock import Signal
from pump.errors import RejectMessageAction
from pump.program.dispatcher import Dispatcher
from pump.program.stopping import go_through, go_through_async, looking_up
from pump.subscription import Publication, Subscription
from support.programs import Program
from support.pumps import Kind, Order, Outcomes
from support.waiting import LIMIT, eventually

PROGRAM = """
import asyncio, signal, sys, threading, time
from dataclasses import dataclass
from pump import *

signal.signal(signal.SIGINT, {interrupt})  # whoever starts the tests may ignore it

@dataclass(frozen=True)
class Order(Command):
    number: int

class Handling(RequestHandler[Order]):
    {handle}

def factory(cls):
    if {broken}:
        raise ConfigurationError("there is no database")
    return cls()

dispatcher = Dispatcher(
    "memory://",
    handlers=[Handling],
    subscriptions=[Subscription(Order, grace=60, unacceptable_limit=1)],
    publications=[Publication(Order)],
    factory=factory,
)

def tell():
    while not any(each.state.value == "stopping" for each in dispatcher.states):
        time.sleep(0.01)
    print("stopping", flush=True)

threading.Thread(target=tell, daemon=True).start()
before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
with dispatcher.publishing():
    dispatcher.post(Order(1))
code = {run}
if (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before:
    print("signals are as before")
for _ in range(500):
    threads = [each.name for each in threading.enumerate() if each.name.startswith("pump-")]
    if threads:
        time.sleep(0.01)
print("left:", dispatcher.transport.bus.pending("Order"), "threads:", threads)
sys.exit(code)
"""

BLOCKING = """
def handle(self, order):
    print("begun", flush=True)
    {wait}
    print("handled", flush=True)
"""
AWAITING = """
async def handle(self, order):
    print("begun", flush=True)
    {wait}
    print("handled", flush=True)
"""
FORMS = {
    "reactor": (BLOCKING, "time.sleep({seconds})"),
    "proactor": (AWAITING, "await asyncio.sleep({seconds})"),
}


RUNS = {"run": "dispatcher.run()", "run_async": "asyncio.run(dispatcher.run_async())"}
IN_A_TERMINAL = "signal.default_int_handler"
IN_THE_BACKGROUND = "signal.SIG_IGN"


def program(
    folder: Path,
    form: str,
    *,
    seconds: float = 0,
    wait: str = "",
    broken: bool = False,
    run: str = "run",
    interrupt: str = IN_A_TERMINAL,
) -> Program:
    body, sleep = FORMS[form]
    handle = dedent(body).format(wait=wait or sleep.format(seconds=seconds))
    text = PROGRAM.format(handle=indent(handle, "    ").strip(), broken=broken, run=RUNS[run], interrupt=interrupt)
    (folder / "shop.py").write_text(text)
    return Program([sys.executable, "shop.py"], folder)


SIGNALS = (signal.SIGTERM, signal.SIGINT)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_it_when_the_message_in_hand_is_done(
    tmp_path: Path, form: str, number: signal.Signals, run: str
) -> None:
    with program(tmp_path, form, seconds=0.5, run=run) as running:
        running.says("begun")
        running.send(number)
        code = running.ends()

        output = running.says("threads: []")
    assert code == 0
    assert "handled\n" in output
    assert "left: 0" in output
    assert "signals are as before" in output


@pytest.mark.parametrize("interrupt", [IN_A_TERMINAL, IN_THE_BACKGROUND], ids=["in a terminal", "in the background"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("first", SIGNALS)
@pytest.mark.parametrize("second", SIGNALS)
def test_a_second_signal_of_either_kind_ends_it_at_once(
    tmp_path: Path, form: str, first: signal.Signals, second: signal.Signals, interrupt: str
) -> None:
    with program(tmp_path, form, seconds=3600, interrupt=interrupt) as running:
        running.says("begun")
        running.send(first)
        running.says("stopping")
        running.send(second)
        code = running.ends()

    assert code != 0
    assert "handled" not in running.output


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("second", SIGNALS)
def test_a_second_signal_ends_run_async_at_once(tmp_path: Path, form: str, second: signal.Signals) -> None:
    with program(tmp_path, form, seconds=3600, run="run_async") as running:
        running.says("begun")
        running.send(signal.SIGTERM)
        running.says("stopping")
        running.send(second)
        code = running.ends()

    assert code != 0
    assert "handled" not in running.output


@pytest.mark.parametrize("form", FORMS)
def test_it_exits_with_1_when_a_limit_was_reached(tmp_path: Path, form: str) -> None:
    with program(tmp_path, form, wait="raise RejectMessageAction('no')") as running:
        code = running.ends()

        output = running.says("threads: []")
    assert code == 1
    assert "channel Order: every performer has stopped" in output


@pytest.mark.parametrize("form", FORMS)
def test_it_exits_with_1_when_the_set_up_is_wrong(tmp_path: Path, form: str) -> None:
    with program(tmp_path, form, broken=True) as running:
        code = running.ends()

        output = running.says("left: 1")
    assert code == 1
    assert "there is no database" in output


@pytest.mark.parametrize("form", FORMS)
def test_it_ends_when_a_handler_raises_a_keyboard_interrupt(tmp_path: Path, form: str) -> None:
    with program(tmp_path, form, wait="raise KeyboardInterrupt") as running:
        code = running.ends()

        output = running.says("left: 1")
    assert code == 1
    assert "stops: a handler raised KeyboardInterrupt" in output


def consuming(kind: Kind, body: Outcomes) -> Dispatcher:
    return Dispatcher(
        "memory://",
        handlers=[kind.handler(body)],
        subscriptions=[Subscription(Order, unacceptable_limit=1, **kind.options)],
        publications=[Publication(Order)],
    )


def test_in_another_thread_it_ends_when_the_dispatcher_is_stopped(kind: Kind) -> None:
    body = Outcomes(None)
    dispatcher = consuming(kind, body)
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(dispatcher.run()))
    thread.start()
    eventually(lambda: dispatcher.ready)
    dispatcher.post(Order())
    eventually(lambda: body.runs == 1)
    dispatcher.stop()
    thread.join(LIMIT)

    assert codes == [0]


def test_in_another_thread_it_ends_when_a_limit_was_reached(kind: Kind) -> None:
    dispatcher = consuming(kind, Outcomes(RejectMessageAction("no")))
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(dispatcher.run()))
    thread.start()
    eventually(lambda: dispatcher.ready)
    dispatcher.post(Order())
    thread.join(LIMIT)

    assert codes == [1]


def test_a_signal_that_comes_just_before_a_wait_is_heard() -> None:
    class Handled(Signal):
        """Set by a signal handler that runs as soon as Python runs any code, and that wakes no waiting thread."""

        looks = 0

        def is_set(self) -> bool:
            self.looks += 1
            return self.looks > 3

    async def awaiting() -> None:
        await go_through_async(iter([(Handled(), None)]))

    go_through(iter([(Handled(), None)]))
    asyncio.run(awaiting())


def test_no_wait_is_longer_than_was_asked_for() -> None:
    never, began = Signal(), time.monotonic()

    waits = list(looking_up(iter([(never, 0.0), (never, -1.0)])))
    first, left = next(looking_up(iter([(never, 0.2)])))
    go_through(iter([(never, 0.05)]))

    assert waits == []
    assert first is never
    assert left is not None
    assert left <= 0.2
    assert time.monotonic() - began >= 0.05
