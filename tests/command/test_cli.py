"""The command `pump`: what it does, what it ends with, and what it says when it cannot."""

import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from support.programs import DEADLINE, PUMP, pump, pump_run

SHOP = """
import sys, threading, time
from dataclasses import dataclass

from pump import *
from pump.transports.memory import MemoryTransport


@dataclass(frozen=True)
class PlaceOrder(Command):
    sku: str


class PlaceOrderHandler(RequestHandler[PlaceOrder]):
    def handle(self, order: PlaceOrder) -> None:
        print("handling", order.sku, flush=True)
        if order.sku == "slow":
            time.sleep(1)
        if order.sku == "endless":
            SystemClock().wait(self.context.stopping, 60)
            print("asked to stop", flush=True)
            time.sleep(60)
        if order.sku == "broken":
            raise RuntimeError("a bug")
        print("handled", order.sku, flush=True)


def make(transport="memory://", handlers=(PlaceOrderHandler,), **options):
    return Dispatcher(
        transport,
        handlers=handlers,
        subscriptions=[Subscription(PlaceOrder, topic="orders", **options)],
        publications=[Publication(PlaceOrder, topic="orders")],
    )


def feeding(sku, **options):
    made = make(**options)

    def feed():
        while not made.ready:
            time.sleep(0.01)
        made.post(PlaceOrder(sku))

    threading.Thread(target=feed, daemon=True).start()
    return made


dispatcher = make()


class Namespace:
    made = make()


def quick(): return feeding("tea")
def slow(): return feeding("slow")
def endless(): return feeding("endless", grace=30)
def limited(): return feeding("broken", unacceptable_limit=1)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


def write(folder: Path, name: str, program: str) -> None:
    (folder / name).write_text(f"from shop import *\n{program}\n")


def only_line(text: str) -> str:
    """The one line that says what is wrong; that it was about to start is no error, nor is that it is in memory."""
    (line,) = wrong_lines(text)
    return line


def wrong_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if " INFO " not in line and IN_MEMORY not in line]


IN_MEMORY = "memory is reachable from this process only: no other program can post to it"


# -- run


@pytest.mark.requirement("P-20")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("target", ["shop:quick", "shop:quick()"])
def test_run_consumes_until_a_signal_and_ends_well(folder: Path, target: str, number: signal.Signals) -> None:
    with pump("run", target, folder=folder) as program:
        program.says("handled tea")

        program.send(number)

        assert program.ends() == 0


@pytest.mark.requirement("P-20")
def test_what_is_in_hand_is_finished_before_run_ends(folder: Path) -> None:
    with pump("run", "shop:slow", folder=folder) as program:
        program.says("handling slow")

        program.send(signal.SIGTERM)

        assert program.ends() == 0
        program.says("handled slow")


@pytest.mark.requirement("P-20")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_run_at_once(folder: Path, number: signal.Signals) -> None:
    with pump("run", "shop:endless", folder=folder) as program:
        program.says("handling endless")
        program.send(number)
        program.says("asked to stop")

        program.send(number)

        assert program.ends() == -number


STUCK = """
import asyncio

async def handle(order: PlaceOrder) -> None:
    print("handling", order.sku, flush=True)
    {wait}

def stuck(): return feeding("tea", handlers=[handle], grace=0.2)
"""


@pytest.mark.parametrize(
    "wait", ["await asyncio.to_thread(time.sleep, 3600)", "time.sleep(3600)"], ids=["in a thread", "on the loop"]
)
def test_run_ends_in_time_though_a_handler_has_left_something_that_never_does(folder: Path, wait: str) -> None:
    write(folder, "odd.py", STUCK.format(wait=wait))
    with pump("run", "odd:stuck", folder=folder) as program:
        program.says("handling tea")
        program.send(signal.SIGTERM)
        status = program.ends()  # not after an hour

        output = program.output
    assert status == 0
    assert "performer pump-orders-1 has not ended" in output or "the process ends, although this still runs" in output


@pytest.mark.requirement("P-20")
def test_run_ends_with_1_when_the_performers_of_a_channel_have_stopped_by_themselves(folder: Path) -> None:
    with pump("run", "shop:limited", folder=folder) as program:
        assert program.ends() == 1
        program.says("channel orders: every performer has stopped")


@pytest.mark.requirement("P-20")
@pytest.mark.parametrize(("error", "text"), [("SetupError", "no such vhost"), ("TransportError", "connection refused")])
def test_run_ends_with_3_when_the_broker_refuses(folder: Path, error: str, text: str) -> None:
    write(
        folder,
        "refused.py",
        f"class Refusing(MemoryTransport):\n    def prepare(self, *_):\n        raise {error}({text!r})\n"
        "dispatcher = make(Refusing())",
    )

    ended = pump_run("run", "refused:dispatcher", folder=folder)

    assert ended.returncode == 3
    assert only_line(ended.stderr) == f"pump: {text}"


@pytest.mark.requirement("P-20")
def test_credentials_in_an_error_are_not_shown(folder: Path) -> None:
    write(
        folder,
        "refused.py",
        "class Refusing(MemoryTransport):\n    def prepare(self, *_):\n"
        "        raise TransportError('amqp://guest:hunter2@broker/ refuses, password=hunter2')\n"
        "dispatcher = make(Refusing())",
    )

    ended = pump_run("run", "refused:dispatcher", folder=folder)

    assert only_line(ended.stderr) == "pump: amqp://…@broker/ refuses, password=…"


@pytest.mark.requirement("P-20")
def test_without_subscriptions_there_is_nothing_to_run(folder: Path) -> None:
    write(folder, "idle.py", "dispatcher = Dispatcher('memory://')")

    ended = pump_run("run", "idle:dispatcher", folder=folder)

    assert ended.returncode == 2
    assert "idle:dispatcher has no subscriptions" in only_line(ended.stderr)


@pytest.mark.requirement("P-20")
def test_run_logs_as_asked(folder: Path) -> None:
    with pump("run", "shop:limited", "--log-level", "critical", folder=folder) as program:
        program.ends()

        assert " CRITICAL " in program.says("every performer has stopped")
        assert " ERROR " not in program.output


# -- what cannot be run

TWO_ERRORS = "dispatcher = Dispatcher('memory://', subscriptions=[Subscription(PlaceOrder), Subscription(Namespace)])"

WRONG = {
    "shop": "such as shop:dispatcher",
    "shop:": "such as shop:dispatcher",
    "shop.py": "such as shop:dispatcher",
    "shop.py:dispatcher": "write shop:dispatcher",
    "./shop.py:dispatcher": "write shop:dispatcher",
    "shp:dispatcher": "there is no module 'shp'",
    "shop.sub:dispatcher": "there is no module 'shop.sub'",
    "shop:dispacher": "did you mean shop:dispatcher?",
    "shop:Namespace.mad": "shop has no 'Namespace.mad'",
    "shop:PlaceOrder": "shop:PlaceOrder is a class, not a Dispatcher; did you mean",
    "shop:SHOP": "shop has no 'SHOP'",
    "shop:feeding": "missing a required argument: 'sku'",
    "wrong:number": "wrong:number is of type int, not a Dispatcher; make one there",
    "wrong:returns_none": "wrong:returns_none returns NoneType, not a Dispatcher",
    "wrong:coroutine": "wrong:coroutine is `async def`",
    "wrong:raises": "wrong:raises cannot be made: ValueError: two lines (wrong.py, line 4)",
    "wrong:leaves": "wrong:leaves cannot be made: SystemExit: 3 (wrong.py, line 5)",
    "wrong:transport": "no transport is installed for foo://; there are ",
    "imports:dispatcher": "cannot be imported: ModuleNotFoundError: No module named 'not_there' (imports.py, line 2)",
    "deeper:dispatcher": "deeper cannot be imported: ModuleNotFoundError: No module named 'not_there' (imports.py",
    "typo:dispatcher": "typo cannot be imported: SyntaxError: '(' was never closed (typo.py, line 2)",
    "options:dispatcher": "performers must be at least 1, not 0 (options.py, line 2)",
}

WRONG_MODULES = {
    "wrong.py": "number = 1\n"
    "def returns_none(): return None\n"
    "async def coroutine(): pass\n"
    "def raises(): raise ValueError('two\\nlines')\n"
    "def leaves(): raise SystemExit(3)\n"
    "def transport(): from pump import Dispatcher; return Dispatcher('foo://user:hunter2@host')",
    "imports.py": "import os\nimport not_there",
    "deeper.py": "import imports",
    "typo.py": "import os\nprint(",
    "options.py": "from pump import Subscription\nSubscription(int, performers=0)",
}


@pytest.mark.requirement("P-20")
@pytest.mark.parametrize("target", WRONG)
def test_what_cannot_be_found_is_said_in_a_line(folder: Path, target: str) -> None:
    for name, program in WRONG_MODULES.items():
        (folder / name).write_text(program)

    ended = pump_run("check", target, folder=folder)

    assert ended.returncode == 2
    assert ended.stdout == ""
    assert WRONG[target] in only_line(ended.stderr)
    assert "hunter2" not in ended.stderr


@pytest.mark.requirement("P-20")
def test_a_traceback_is_shown_when_asked_for(folder: Path) -> None:
    (folder / "typo.py").write_text("print(")

    ended = pump_run("run", "typo:dispatcher", "--traceback", folder=folder)

    assert ended.returncode == 2
    assert "Traceback" in ended.stderr
    assert "SyntaxError" in ended.stderr


def test_an_error_that_pump_raises_is_placed_in_the_users_own_code(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "options.py").write_text(WRONG_MODULES["options.py"])
    monkeypatch.setenv("PYTHONPATH", str(folder))

    ended = pump_run("check", "options:dispatcher", folder=tmp_path_factory.mktemp("elsewhere"))

    assert f"({folder / 'options.py'}, line 2)" in ended.stderr


@pytest.mark.requirement("P-20")
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["walk"], "invalid choice: 'walk'"),
        (["run"], "required: module:dispatcher; see pump run --help"),
        (["run", "shop:dispatcher", "--workers", "0"], "'0' is not a number of at least 1"),
        (["run", "shop:dispatcher", "--worker", "2"], "unrecognized arguments: --worker 2; see pump run --help"),
        (["check", "shop:dispatcher", "--nothing"], "unrecognized arguments: --nothing; see pump check --help"),
        (["queue", "serve", "--nothing"], "unrecognized arguments: --nothing; see pump queue serve --help"),
        (["--nothing"], "required: COMMAND; see pump --help"),
        (["describe"], "say what to describe"),
        (["describe", "--write-docs", "nowhere"], "there is no page nowhere/settlement.md"),
        (["demo", "--seconds", "nan"], "'nan' is not a number above 0"),
    ],
)
def test_a_wrong_call_is_said_in_a_line(folder: Path, arguments: list[str], text: str) -> None:
    ended = pump_run(*arguments, folder=folder)

    assert ended.returncode == 2
    assert text in only_line(ended.stderr)


@pytest.mark.requirement("P-20")
def test_the_bare_command_shows_its_help(folder: Path) -> None:
    bare, asked = pump_run(folder=folder), pump_run("--help", folder=folder)

    assert (bare.returncode, bare.stdout, bare.stderr) == (0, asked.stdout, "")
    assert "usage: pump" in bare.stdout


@pytest.mark.requirement("P-20")
@pytest.mark.parametrize("level", ["debug", "DEBUG"])
def test_a_level_may_be_written_in_capitals_and_says_nothing_of_other_packages(folder: Path, level: str) -> None:
    write(
        folder,
        "levels.py",
        "import logging\n"
        "def handle(order: PlaceOrder) -> None: logging.getLogger('other').debug('a detail of another package')\n"
        "def quick(): return feeding('tea', handlers=[handle])\n",
    )
    with pump("run", "levels:quick", "--log-level", level, folder=folder) as program:
        program.says("Message acknowledged after")
        program.send(signal.SIGTERM)

        assert program.ends() == 0
        assert " DEBUG " in program.output
        assert "a detail of another" not in program.output


@pytest.mark.requirement("P-20")
def test_run_prints_each_error_on_a_line_before_anything_starts(folder: Path) -> None:
    write(folder, "errors.py", TWO_ERRORS)

    ended = pump_run("run", "errors:dispatcher", folder=folder)

    first, second = ended.stderr.splitlines()
    assert ended.returncode == 2
    assert first.startswith("pump: error: channel PlaceOrder has no handler")
    assert second.startswith("pump: error: channel Namespace has no handler")


@pytest.mark.requirement("P-20")
def test_unchecked_run_is_refused_by_the_dispatcher_itself(folder: Path) -> None:
    write(folder, "errors.py", TWO_ERRORS)

    ended = pump_run("run", "errors:dispatcher", "--no-check", folder=folder)

    assert ended.returncode == 2
    assert only_line(ended.stderr).count("has no handler") == 2


# -- check


@pytest.mark.requirement("P-20")
def test_check_says_nothing_when_there_is_nothing_to_say(folder: Path) -> None:
    write(folder, "stored.py", "dispatcher = make('sqlite:///shop.db')")

    ended = pump_run("check", "stored:dispatcher", folder=folder)

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


@pytest.mark.requirement("P-20")
@pytest.mark.parametrize("url", ["memory://", "memory://shared"])
def test_check_and_run_say_that_no_other_program_reaches_memory(folder: Path, url: str) -> None:
    write(folder, "alone.py", f"def quick(): return feeding('tea', transport={url!r})")

    ended = pump_run("check", "alone:quick", folder=folder)
    with pump("run", "alone:quick", folder=folder) as program:
        assert " WARNING " in program.says(IN_MEMORY).splitlines()[0]
        program.says("handled tea")
        program.send(signal.SIGTERM)

        assert program.ends() == 0
    assert ended.returncode == 0
    assert ended.stdout.startswith(f"warning: {IN_MEMORY}")
    assert len(ended.stdout.splitlines()) == 1


@pytest.mark.requirement("P-20")
def test_check_prints_each_problem_on_a_line(folder: Path) -> None:
    write(folder, "errors.py", TWO_ERRORS)

    ended = pump_run("check", "errors:dispatcher", folder=folder)

    assert ended.returncode == 2
    assert [line.split(" ", 4)[:3] for line in wrong_lines(ended.stdout)] == [
        ["error:", "channel", "PlaceOrder"],
        ["error:", "channel", "Namespace"],
    ]


@pytest.mark.requirement("P-20")
def test_a_warning_is_printed_and_is_no_failure(folder: Path) -> None:
    write(
        folder,
        "warned.py",
        "from pump.handlers import RejectMessageOnError\n"
        "@RejectMessageOnError()\ndef handle(order: PlaceOrder): ...\n"
        "dispatcher = make(handlers=[handle], dead_letter=None)",
    )

    ended = pump_run("check", "warned:dispatcher", folder=folder)

    assert ended.returncode == 0
    assert only_line(ended.stdout).startswith("warning: channel orders: handlers reject messages")


@pytest.mark.requirement("P-20")
@pytest.mark.parametrize("url", ["memory://", "memory://shared"])
def test_messages_of_one_process_are_not_for_several_workers(folder: Path, url: str) -> None:
    write(folder, "several.py", f"dispatcher = make({url!r})")

    checked = pump_run("check", "several:dispatcher", "--workers", "2", folder=folder)
    started = pump_run("run", "several:dispatcher", "--workers", "2", folder=folder)

    assert checked.returncode == started.returncode == 2
    assert "with --workers 2 each would have messages of its own" in only_line(checked.stdout)
    assert only_line(started.stderr) == only_line(checked.stdout)


# -- the rest


@pytest.mark.requirement("P-20")
def test_the_console_script_finds_modules_in_the_current_folder(folder: Path) -> None:
    script = Path(sys.executable).with_name("pump")
    if not script.exists():
        pytest.skip("pump is not installed beside this Python")

    ended = subprocess.run(
        [script, "check", "shop:dispatcher"],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )

    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.requirement("P-20")
def test_the_version_is_that_of_the_distribution(tmp_path: Path) -> None:
    assert pump_run("--version", folder=tmp_path).stdout == f"pump {version('message-pump')}\n"


@pytest.mark.requirement("P-20")
def test_a_reader_that_has_read_enough_is_no_error(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*PUMP, "describe", "--settlement"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()

        assert process.stderr.read() == b""
        assert process.wait(DEADLINE) == 0


@pytest.mark.requirement("P-20")
def test_a_defect_of_pump_itself_says_how_to_see_more(folder: Path) -> None:
    write(folder, "defect.py", "dispatcher = make()\ndispatcher.check = lambda: 1 / 0")

    ended = pump_run("check", "defect:dispatcher", folder=folder)

    assert ended.returncode == 70
    assert "ZeroDivisionError" in only_line(ended.stderr)
    assert "--traceback shows where" in ended.stderr
