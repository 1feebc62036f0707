"""The programs in docs/examples: each runs, and proves what it promises."""

import ast
import signal
import subprocess
import sys
from importlib.util import find_spec

import pytest

from support.programs import DEADLINE, Program, pump_run
from support.tree import ROOT

EXAMPLES = ROOT / "docs" / "examples"
IN_MEMORY = "warning: memory is reachable from this process only"
SCENARIOS = ("feature_switch.py", "ordered_stream.py", "other_consumers.py", "transactions.py")


@pytest.mark.requirement("B-34")
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_comes_out_as_it_says(name: str) -> None:
    ran = subprocess.run(
        [sys.executable, name], cwd=EXAMPLES, check=False, capture_output=True, text=True, timeout=DEADLINE
    )

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout != ""


@pytest.mark.requirement("B-34")
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_can_be_read_at_a_glance_and_asserts_its_outcome(name: str) -> None:
    source = (EXAMPLES / name).read_text()

    assert len(source.splitlines()) < 60
    assert sum(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(source))) >= 2


@pytest.mark.requirement("B-34")
@pytest.mark.parametrize("name", SCENARIOS[:2])
def test_a_scenario_is_set_up_soundly(name: str) -> None:
    ended = pump_run("check", f"{name.removesuffix('.py')}:dispatcher", folder=EXAMPLES)

    (line,) = ended.stdout.splitlines()
    assert (ended.returncode, ended.stderr) == (0, "")
    assert line.startswith(IN_MEMORY)


# -- the program of the introduction

SELLING = """
import sys, threading, time
from pump.command.cli import main

def sell():
    while not (hasattr(sys.modules.get("shop"), "dispatcher") and sys.modules["shop"].dispatcher.ready):
        time.sleep(0.01)
    shop = sys.modules["shop"]
    shop.dispatcher.post(shop.PlaceOrder("tea", 2))

threading.Thread(target=sell, daemon=True).start()
sys.exit(main(["run", "shop:dispatcher"]))
"""


@pytest.mark.requirement("P-20")
def test_the_program_that_people_write_runs_as_it_stands() -> None:
    with Program([sys.executable, "-c", SELLING], EXAMPLES) as program:
        program.says("starting: orders (2 performers) on memory")
        program.says("2 × tea")

        program.send(signal.SIGTERM)

        assert program.ends() == 0


@pytest.mark.requirement("P-20")
def test_the_program_that_people_write_has_no_problems() -> None:
    ended = pump_run("check", "shop:dispatcher", folder=EXAMPLES)

    (line,) = ended.stdout.splitlines()
    assert (ended.returncode, ended.stderr) == (0, "")
    assert line.startswith(IN_MEMORY)


@pytest.mark.parametrize("name", [file.name for file in sorted(EXAMPLES.glob("*.py"))])
def test_the_types_of_an_example_are_right(name: str) -> None:
    if find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    command = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", f"docs/examples/{name}"]

    checked = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=120)

    assert checked.returncode == 0, checked.stdout
