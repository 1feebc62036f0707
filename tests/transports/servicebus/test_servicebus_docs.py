"""The documentation on Service Bus: its examples are run as they stand, on the tests' own broker."""

import re
from pathlib import Path

import pytest

from brokers.servicebus import ServiceBus
from support.programs import pump, pump_run, runs
from support.tree import ROOT
from support.waiting import eventually

BLOCK = re.compile(r"```python\n# (\w+\.py)\n(.*?)```", re.DOTALL)
EXAMPLES = dict(BLOCK.findall((ROOT / "docs" / "servicebus.md").read_text()))
URL = "servicebus://RootManageSharedAccessKey:key@shop.servicebus.windows.net/"
SESSIONS = URL.replace("servicebus", "servicebus+sessions", 1)


@pytest.fixture
def folder(servicebus: ServiceBus, tmp_path: Path) -> Path:
    for name, source in EXAMPLES.items():
        sessions = servicebus.url.replace("servicebus", "servicebus+sessions", 1)
        (tmp_path / name).write_text(source.replace(SESSIONS, sessions).replace(URL, servicebus.url))
    return tmp_path


def test_no_example_is_left_out() -> None:
    assert set(EXAMPLES) == {"shop.py", "sell.py", "options.py", "letters.py", "sessions.py"}


def test_the_shop_sells_and_what_it_cannot_read_is_a_dead_letter(servicebus: ServiceBus, folder: Path) -> None:
    with pump("run", "shop:dispatcher", folder=folder) as program:
        program.says("runs shop:dispatcher")
        runs("sell.py", folder)
        program.says("2 × tea")
        program.says("6 × cups")
        eventually(lambda: servicebus.command("count", entity="orders")["all"] == 0)


@pytest.mark.parametrize("program", ["shop:dispatcher", "letters:reading", "sessions:by_cart"])
def test_the_programs_are_set_up_soundly(folder: Path, program: str) -> None:
    if program.startswith("letters"):
        assert pump_run("check", "shop:dispatcher", folder=folder).returncode == 0  # the queue has to be there
    ended = pump_run("check", program, folder=folder)

    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_options_are_as_they_are_shown(folder: Path) -> None:
    runs("options.py", folder)
