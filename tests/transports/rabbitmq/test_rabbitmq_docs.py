"""The documentation on RabbitMQ: its examples are run as they stand, on a broker of the tests."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokers.rabbitmq import RabbitMQ
from support.programs import Program, pump, pump_run, runs
from support.tree import ROOT
from support.waiting import eventually

BLOCK = re.compile(r"```python\n# (\w+\.py)\n(.*?)```", re.DOTALL)
EXAMPLES = dict(BLOCK.findall((ROOT / "docs" / "rabbitmq.md").read_text()))


@pytest.fixture
def folder(rabbitmq: RabbitMQ, tmp_path: Path) -> Path:
    for name, source in EXAMPLES.items():
        (tmp_path / name).write_text(source.replace("amqp://guest:guest@localhost/", rabbitmq.url))
    return tmp_path


@pytest.fixture
def shop(folder: Path) -> Iterator[Program]:
    with pump("run", "shop:dispatcher", folder=folder) as program:
        yield program


def test_no_example_is_left_out() -> None:
    assert set(EXAMPLES) == {"shop.py", "sell.py", "options.py"}


def test_the_shop_sells_what_is_ordered(rabbitmq: RabbitMQ, shop: Program, folder: Path) -> None:
    shop.says("runs shop:dispatcher")

    runs("sell.py", folder)

    shop.says("2 × tea")
    shop.says("1 × coffee")
    eventually(lambda: rabbitmq.list_queues().get("orders.dead") == 1)
    shop.send(signal.SIGTERM)
    assert shop.ends() == 0


def test_the_shop_is_set_up_soundly(folder: Path) -> None:
    ended = pump_run("check", "shop:dispatcher", folder=folder)

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_typed_options_open_nothing(folder: Path) -> None:
    runs("options.py", folder)


def test_a_wrong_password_is_told_in_one_line(folder: Path) -> None:
    shop = folder / "shop.py"
    shop.write_text(shop.read_text().replace("guest:guest@", "guest:wrong@"))

    ended = pump_run("run", "shop:dispatcher", folder=folder)

    assert ended.returncode != 0
    assert ended.stderr.count("refuses the user 'guest': the name or the password is wrong") == 1
    assert "Traceback" not in ended.stderr
    assert "pika" not in ended.stderr
