"""The documentation on testing: its examples are run as they stand, by a user's own pytest."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.tree import ROOT

PRELUDE = """
import threading
from dataclasses import dataclass

import pytest

from pump import Attribute, Command, Delivery, Dispatcher, DontAckAction, Publication, RequestHandler, Subscription
from pump.handlers import DontAckOnError, FeatureSwitch
from pump.testing import TransportContract, memory_transport


@dataclass(frozen=True)
class PlaceOrder(Command):
    sku: str
    quantity: int


class PlaceOrderHandler(RequestHandler[PlaceOrder]):
    @FeatureSwitch("orders.place", dont_ack=True)
    @DontAckOnError()
    def handle(self, order: PlaceOrder, /) -> None:
        if order.sku != "tea":
            raise ValueError(f"no {order.sku}")


class Failing(RequestHandler[PlaceOrder]):
    def handle(self, order: PlaceOrder, /) -> None:
        raise ValueError("down")


class Keeping:
    def __init__(self, kept: list) -> None:
        self.kept = kept

    def handle(self, delivery: Delivery[PlaceOrder]) -> None:
        self.kept.append(delivery)


class Telling:
    def __init__(self, done: threading.Event) -> None:
        self.done = done

    def handle(self, order: PlaceOrder) -> None:
        self.done.set()


class Seeing(Attribute):
    def around(self, request, rest):
        yield from rest(request)
        return "seen"


class Blocking(RequestHandler[PlaceOrder]):
    @Seeing()
    def handle(self, order: PlaceOrder, /) -> None: ...


class Awaiting(RequestHandler[PlaceOrder]):
    @Seeing()
    async def handle(self, order: PlaceOrder, /) -> None: ...


def MyTransport(url):
    return memory_transport()


dispatcher = Dispatcher(
    "memory://",
    handlers=[PlaceOrderHandler],
    subscriptions=[Subscription(PlaceOrder, topic="orders", performers=2)],
    publications=[Publication(PlaceOrder, topic="orders")],
)
"""


def examples() -> list[str]:
    text = (ROOT / "docs" / "testing.md").read_text()
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


@pytest.mark.requirement("P-18")
def test_every_example_passes_in_a_project_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(PRELUDE + "\n\n".join(examples()))
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nfilterwarnings = error\nmarkers =\n    requirement(*ids): of the project itself\n"
    )

    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not MyTransport or as_it_was_sent"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.requirement("P-18")
def test_a_test_of_a_handler_has_fewer_than_ten_lines() -> None:
    first = next(each for each in examples() if "def test_places_orders" in each)

    assert len(first.strip().splitlines()) < 10
    assert "pump_harness" in first


@pytest.mark.requirement("P-18")
def test_the_fixtures_are_described_where_pytest_lists_them(tmp_path: Path) -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "--fixtures", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    ).stdout

    for fixture in ("pump_harness", "memory_transport", "manual_clock"):
        assert re.search(rf"^{fixture}\b.*\n +\S", listed, flags=re.MULTILINE), listed
