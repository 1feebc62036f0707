"""The programs in docs/examples: each runs, and proves what it promises."""

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest

from pump.dead_letter import PROVENANCE
from pump.queue.sqlite.engine import SqliteEngine
from pump.queue.vocabulary import PopRequest, Push
from support.programs import DEADLINE, pump, pump_run
from support.tree import ROOT

EXAMPLES = ROOT / "docs" / "examples"
IN_MEMORY = "warning: memory is reachable from this process only"
SCENARIOS = (
    "feature_switch.py",
    "ordered_stream.py",
    "other_consumers.py",
    "transactions.py",
    "dead_letters.py",
)


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
@pytest.mark.parametrize("name", ["feature_switch.py", "ordered_stream.py", "dead_letters.py"])
def test_a_scenario_is_set_up_soundly(name: str) -> None:
    ended = pump_run("check", f"{name.removesuffix('.py')}:dispatcher", folder=EXAMPLES)

    (line,) = ended.stdout.splitlines()
    assert (ended.returncode, ended.stderr) == (0, "")
    assert line.startswith(IN_MEMORY)


# -- the programs of the introduction

README = (ROOT / "README.md").read_text("utf-8")
CONSOLE = "".join(re.findall(r"```console\n(.*?)```", README, re.DOTALL))
CHANGING = re.compile(
    r"\b[0-9a-f]{32}\b|\d{4}-\d\d-\d\d [\d:,]+|\[\d+\]|\([^()]*/shop\.db\)|\d+\.\d s\b|\^C|(?<=stopping, ).*"
)
"""What differs from run to run: ids, times, processes, folders, and whether the last message was settled already."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("shop.py", "sell.py"):
        shutil.copy(EXAMPLES / name, tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["shop.py", "sell.py"])
def test_the_program_of_the_introduction_is_one_that_runs(name: str) -> None:
    assert f"```python\n{(EXAMPLES / name).read_text('utf-8')}```" in README


@pytest.mark.requirement("P-20")
def test_what_the_introduction_shows_is_what_the_programs_print(folder: Path) -> None:
    here = {**os.environ, "PYTHONPATH": str(folder)}  # tox keeps the folder of a program off its path
    sold = subprocess.run(
        [sys.executable, "sell.py"], cwd=folder, env=here, check=True, capture_output=True, text=True, timeout=DEADLINE
    )
    with pump("run", "shop:dispatcher", folder=folder) as program:
        program.says("1 × coffee")
        program.says("2 × tea")
        program.send(signal.SIGINT)

        assert program.ends() == 0
        program.says("stopped after")

    printed = CHANGING.sub("", f"{sold.stdout}{program.output}").splitlines()
    shown = [CHANGING.sub("", line) for line in CONSOLE.splitlines() if not line.startswith("$ ")]
    assert sold.stderr == ""
    assert sorted(printed) == sorted(shown)


@pytest.mark.requirement("P-20")
def test_the_program_of_the_introduction_has_no_problems() -> None:
    ended = pump_run("check", "shop:dispatcher", folder=EXAMPLES)

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_the_extras_of_the_introduction_are_those_there_are() -> None:
    there = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    table = README.partition("| extra | for | |")[2].partition("\n\n")[0]
    shown = [name for line in table.splitlines()[2:] for name in re.findall(r"`([\w-]+)`", line.split("|")[1])]

    assert sorted(shown) == sorted(there)


# -- dead letters

DEAD_LETTERS = (ROOT / "docs" / "dead-letters.md").read_text("utf-8")


def test_the_page_on_dead_letters_names_every_header_of_one() -> None:
    assert {name for name in PROVENANCE if f"`{name}`" not in DEAD_LETTERS} == set()


def test_dead_letters_of_the_durable_queue_are_posted_again(tmp_path: Path) -> None:
    (tmp_path / "redrive.py").write_text(re.findall(r"```python\n# redrive.py\n(.*?)```", DEAD_LETTERS, re.DOTALL)[0])
    with closing(SqliteEngine(tmp_path / "shop.db")) as queue:
        (pushed,) = queue.push([Push("orders", b"{}", transaction_id="order-1")])
        queue.give_up(pushed.partition_id, "order-1")

        ran = subprocess.run(
            [sys.executable, "redrive.py"], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=DEADLINE
        )

        assert ran.stdout == "operator order-1\n"
        assert [each.transaction_id for each in queue.pop(PopRequest(queue="orders")).messages] == ["reprocess-order-1"]


@pytest.fixture(scope="module")
def known_types(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder in which mypy keeps what it knows of the project, for one example after another."""
    return str(tmp_path_factory.mktemp("mypy"))


@pytest.mark.parametrize("name", [file.name for file in sorted(EXAMPLES.glob("*.py"))])
def test_the_types_of_an_example_are_right(name: str, known_types: str) -> None:
    if find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", known_types, f"docs/examples/{name}"]

    beside = {**os.environ, "MYPYPATH": str(EXAMPLES)}  # one example may import another

    checked = subprocess.run(command, cwd=ROOT, env=beside, check=False, capture_output=True, text=True, timeout=120)

    assert checked.returncode == 0, checked.stdout
