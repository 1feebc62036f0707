"""`pump run --workers` and `--reload`: real processes, watched over, begun again, and never left behind."""

import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pump.clock import ManualClock
from pump.command.workers import Supervisor, snapshot
from support.programs import Program, eventually, lives, pump

STOCK = """
import os, sys, threading, time
from dataclasses import dataclass, replace

from pump import *
from pump.transports.memory import MemoryTransport


def say(text):  # in one write: print makes several, and those of two processes mix
    sys.stdout.write(f"{text}\\n")
    sys.stdout.flush()


class Shared(MemoryTransport):
    capabilities = replace(MemoryTransport.capabilities, between_processes=True)


@dataclass(frozen=True)
class Count(Command):
    seconds: float = 0


class CountHandler(RequestHandler[Count]):
    def handle(self, count):
        say(f"handling in {os.getpid()}")
        if count.seconds == 0:
            raise RuntimeError("a bug")
        if count.seconds > 10:
            SystemClock().wait(self.context.stopping, 60)
            say("asked to stop")
        time.sleep(count.seconds)
        say(f"handled in {os.getpid()}")


def make(**options):
    return Dispatcher(
        Shared(),
        handlers=[CountHandler],
        subscriptions=[Subscription(Count, topic="stock", **options)],
        publications=[Publication(Count, topic="stock")],
    )


def when_ready(act, **options):
    made = make(**options)

    def wait():
        while not made.ready:
            time.sleep(0.01)
        say(f"ready in {os.getpid()}")
        act(made)

    threading.Thread(target=wait, daemon=True).start()
    return made


def idle(): return when_ready(lambda made: None)
def busy(): return when_ready(lambda made: made.post(Count(2)))
def endless(): return when_ready(lambda made: made.post(Count(60)), grace=60)
def dying(): return when_ready(lambda made: os._exit(9))
def limited(): return when_ready(lambda made: made.post(Count()), unacceptable_limit=1)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "stock.py").write_text(STOCK)
    return tmp_path


def pids(output: str) -> list[int]:
    return [int(pid) for pid in re.findall(r"ready in (\d+)", output)]


def left(program: Program) -> Callable[[], bool]:
    """Whether every process that it has started is gone."""
    started = [int(pid) for pid in re.findall(r" is process (\d+)", program.output)]
    assert started
    return lambda: not any(map(lives, started))


# -- workers


@pytest.mark.requirement("P-20")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_so_many_processes_run_until_a_signal(folder: Path, number: signal.Signals) -> None:
    with pump("run", "stock:idle", "--workers", "3", folder=folder) as program:
        workers = pids(program.says("ready in", times=3))
        assert len({*workers, program.pid}) == 4

        program.send(number)

        assert program.ends() == 0
        assert not any(map(lives, workers))


@pytest.mark.requirement("P-20")
def test_workers_finish_what_they_have_in_hand(folder: Path) -> None:
    with pump("run", "stock:busy", "--workers", "2", folder=folder) as program:
        program.says("handling in", times=2)

        program.send(signal.SIGTERM)

        assert program.ends() == 0
        assert program.output.count("handled in") == 2


@pytest.mark.requirement("P-20")
def test_a_worker_that_is_killed_is_begun_again(folder: Path) -> None:
    with pump("run", "stock:idle", "--workers", "2", folder=folder) as program:
        first, second = pids(program.says("ready in", times=2))

        os.kill(first, signal.SIGKILL)

        *_, third = pids(program.says("ready in", times=3))
        assert "was killed by SIGKILL; the next one starts in 1 s" in program.output
        assert third not in {first, second}
        assert lives(second)
        program.send(signal.SIGTERM)
        assert program.ends() == 0


@pytest.mark.requirement("P-20")
def test_a_worker_that_keeps_dying_is_begun_again_ever_later(folder: Path) -> None:
    with pump("run", "stock:dying", "--workers", "2", folder=folder) as program:
        program.says("ended with status 9; the next one starts in 1 s", times=2)
        program.says("ended with status 9; the next one starts in 2 s", times=2)

        program.send(signal.SIGTERM)

        assert program.ends() == 0


@pytest.mark.requirement("P-20")
def test_workers_that_stopped_by_themselves_are_not_begun_again(folder: Path) -> None:
    with pump("run", "stock:limited", "--workers", "2", folder=folder) as program:
        assert program.ends() == 1

        program.says("ended with status 1, and is not started again", times=2)
        assert program.output.count("is process") == 2


@pytest.mark.requirement("P-20")
def test_workers_that_are_set_up_wrongly_are_not_begun_again(folder: Path) -> None:
    with pump("run", "stock:nothing", "--workers", "2", "--no-check", folder=folder) as program:
        assert program.ends() == 2

        program.says("stock has no 'nothing'", times=2)
        assert program.output.count("is process") == 2


@pytest.mark.requirement("P-20")
def test_what_is_wrong_is_said_once_before_any_worker_starts(folder: Path) -> None:
    with pump("run", "stock:nothing", "--workers", "2", folder=folder) as program:
        assert program.ends() == 2

        assert program.output.count("stock has no 'nothing'") == 1
        assert "is process" not in program.output


@pytest.mark.requirement("P-20")
def test_workers_end_with_their_supervisor_and_finish_what_they_have_in_hand(folder: Path) -> None:
    with pump("run", "stock:busy", "--workers", "2", folder=folder) as program:
        program.says("handling in", times=2)

        program.send(signal.SIGKILL)

        program.ends()
        eventually(left(program), "the workers are gone")
        program.says("handled in", times=2)


@pytest.mark.requirement("P-20")
def test_a_second_signal_ends_everything_at_once(folder: Path) -> None:
    with pump("run", "stock:endless", "--workers", "2", folder=folder) as program:
        program.says("handling in", times=2)
        program.send(signal.SIGTERM)
        program.says("asked to stop", times=2)

        program.send(signal.SIGTERM)

        assert program.ends() == 128 + signal.SIGTERM
        eventually(left(program), "the workers are gone")


@pytest.fixture
def supervised(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[tuple[Supervisor, ManualClock, Path]]:
    """A supervisor of a worker that hears no SIGTERM, on a clock that stands still."""
    pid_file = tmp_path / "pid"
    deaf = (
        "import os, pathlib, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f"pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid())); time.sleep(60)"
    )
    clock = ManualClock()
    supervisor = Supervisor([sys.executable, "-c", deaf], 1, clock=clock)
    thread = threading.Thread(target=supervisor.run, daemon=True)
    thread.start()
    eventually(lambda: pid_file.exists() and bool(pid_file.read_text()), "the worker runs")
    yield supervisor, clock, pid_file
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.requirement("P-20")
def test_a_worker_that_does_not_end_within_its_grace_is_killed(
    supervised: tuple[Supervisor, ManualClock, Path],
) -> None:
    supervisor, clock, pid_file = supervised
    pid = int(pid_file.read_text())

    supervisor._on_signal(signal.SIGTERM)
    clock.wait_for_sleepers(1)
    clock.advance(14)
    clock.wait_for_sleepers(1)
    assert lives(pid)
    clock.advance(2)

    eventually(lambda: not lives(pid), "the worker is killed")


# -- reload


@pytest.mark.requirement("P-20")
def test_a_change_begins_the_worker_again(folder: Path) -> None:
    with pump("run", "stock:busy", "--reload", folder=folder) as program:
        program.says("handling in")

        (folder / "prices.py").write_text("TEA = 450")

        program.says("prices.py changed: starting again")
        first, second = pids(program.says("ready in", times=2))
        assert first != second
        assert program.output.index("handled in") < program.output.rindex("ready in"), (
            "the first one ended as it should"
        )
        program.send(signal.SIGTERM)
        assert program.ends() == 0
        assert left(program)()


@pytest.mark.requirement("P-20")
def test_a_broken_edit_is_shown_and_the_next_change_awaited(folder: Path) -> None:
    with pump("run", "stock:idle", "--reload", folder=folder) as program:
        program.says("ready in")

        (folder / "stock.py").write_text(STOCK + "\nprint(")
        program.says("SyntaxError: '(' was never closed (stock.py")
        program.says("ended with status 2, and starts again when a file has changed")

        (folder / "stock.py").write_text(STOCK + "\nprint()")
        program.says("ready in", times=2)
        program.send(signal.SIGINT)
        assert program.ends() == 0


@pytest.mark.requirement("P-20")
def test_reload_begins_even_with_what_is_broken(folder: Path) -> None:
    (folder / "stock.py").write_text(STOCK + "\nprint(")
    with pump("run", "stock:idle", "--reload", folder=folder) as program:
        program.says("starts again when a file has changed")

        (folder / "stock.py").write_text(STOCK)

        program.says("ready in")
        program.send(signal.SIGINT)
        assert program.ends() == 0


def test_only_the_projects_own_programs_are_watched(tmp_path: Path) -> None:
    for name in (
        "shop.py",
        "shop.txt",
        "sub/deep.py",
        ".git/hook.py",
        "env/pyvenv.cfg",
        "env/lib.py",
        "__pycache__/x.py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")

    assert set(snapshot(tmp_path)) == {"shop.py", "sub/deep.py"}
