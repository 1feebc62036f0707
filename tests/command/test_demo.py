"""`pump demo`: what it shows, and that its numbers add up."""

import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pump.command.demo import Demo
from support.programs import DEADLINE, PUMP, Program, pump, pump_run


def account(output: str) -> dict[str, int]:
    """The numbers of the summary, which have to add up."""
    found = re.search(
        r"posted (\d+) = handled (\d+) \+ dead letters (\d+) \+ still waiting (\d+): nothing is lost", output
    )
    assert found is not None, output
    posted, handled, dead, waiting = map(int, found.groups())
    assert posted == handled + dead + waiting
    return {"posted": posted, "handled": handled, "dead": dead, "waiting": waiting}


@pytest.mark.requirement("P-20")
def test_the_demo_shows_everything_that_can_become_of_a_message(tmp_path: Path) -> None:
    ended = pump_run("demo", "--seconds", "4", folder=tmp_path)

    said = ended.stdout
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "comes again later: the bank does not answer" in said
    assert "is handled at last" in said
    assert re.search(r"ShipParcel \d+ is held: switch shipping is off", said)
    assert re.search(r"ShipParcel \d+ was held, and is handled now", said)
    assert re.search(r"PlaceOrder \d+ is rejected: no such item", said)
    assert len(re.findall(r"PlaceOrder \d+ failed: ZeroDivisionError", said)) == 3
    dead = said[said.index("\ndead letters\n") :]
    assert "orders.dead     attempts exhausted (ZeroDivisionError" in dead
    assert "orders.dead     no such item (KeyError: 'unicorn')" in dead
    assert "nothing here handles the type 'OrderFromOldTill'" in dead


@pytest.mark.requirement("P-20")
def test_its_numbers_add_up_and_nothing_is_left(tmp_path: Path) -> None:
    ended = pump_run("demo", "--seconds", "3", "--speed", "10", "--plain", folder=tmp_path)

    numbers = account(ended.stdout)
    assert numbers["posted"] > 200
    assert numbers["dead"] > 5
    assert numbers["waiting"] == 0


@pytest.mark.requirement("P-20")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_well_when_interrupted_and_its_numbers_add_up(tmp_path: Path, number: signal.Signals) -> None:
    with pump("demo", "--seconds", "8", "--speed", "20", folder=tmp_path) as program:
        program.says("comes again later")

        program.send(number)

        assert program.ends() == 0
        assert account(program.output)["waiting"] > 0


@pytest.mark.requirement("P-20")
def test_on_a_terminal_it_draws_one_picture_again_and_again(tmp_path: Path) -> None:
    shown = on_a_terminal([*PUMP, "demo", "--seconds", "3"], tmp_path)

    assert shown.startswith("\x1b[?1049h"), "on the terminal's other page"
    pictures, _, last = shown.partition("\x1b[?1049l")
    assert pictures.count("\x1b[H") > 10
    assert "bank      DOWN   payments are deferred" in pictures
    assert "shipping  OFF    parcels are held" in pictures
    assert "\x1b[?25h" in pictures, "the cursor is shown again"
    assert "\x1b" not in last
    account(last)


@pytest.mark.requirement("P-20")
@pytest.mark.parametrize(("arguments", "terminal"), [(["--plain"], "xterm"), ([], "dumb")])
def test_on_a_terminal_it_can_be_plain(
    tmp_path: Path, arguments: list[str], terminal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", terminal)

    shown = on_a_terminal([*PUMP, "demo", "--seconds", "1", *arguments], tmp_path)

    assert "\x1b" not in shown
    account(shown)


def test_numbers_that_do_not_add_up_are_no_success() -> None:
    demo = Demo(1, 1, show=lambda _: None)
    demo.shop.posted["orders"] = 1

    adds_up, words = demo.summary()

    assert not adds_up
    assert "posted 1 = handled 0 + dead letters 0 + still waiting 0: this does not add up" in words
    assert "orders    1" in demo.table()


def test_the_demo_imports_no_handler_until_it_is_shown(tmp_path: Path) -> None:
    program = "import sys, pump.command.cli; print([name for name in sys.modules if name.startswith('pump.handlers')])"

    with Program([sys.executable, "-c", program], tmp_path) as ran:
        assert ran.ends() == 0
        assert ran.says("[]\n")


def on_a_terminal(command: list[str], folder: Path) -> str:
    """What a program prints to a terminal of 120 × 40."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "120", "LINES": "40", "TERM": os.environ.get("TERM", "") or "xterm"}
    process = subprocess.Popen(command, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = bytearray()
    try:
        while part := os.read(ours, 65536):
            shown += part
    except OSError:
        pass  # on Linux, how a terminal ends
    finally:
        os.close(ours)
        assert process.wait(DEADLINE) == 0
    return shown.decode().replace("\r\n", "\n")
