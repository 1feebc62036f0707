"""What a dispatcher says of itself, and what the documentation prints from the code."""

import asyncio
import json
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from pump import (
    Command,
    ConfigurationError,
    Delivery,
    Dispatcher,
    Event,
    Message,
    Publication,
    RequestHandler,
    Subscription,
)
from pump.attribute import Attribute
from pump.capabilities import Capabilities
from pump.command import tables
from pump.describe import as_text, describe, without_credentials
from pump.handlers import DontAckOnError, Fallback, FeatureSwitch, Retry
from pump.pumps.reactor import Reactor
from support.programs import eventually, pump_run
from support.tree import ROOT


@dataclass(frozen=True)
class PlaceOrder(Command):
    number: int = 0


@dataclass(frozen=True)
class OrderPlaced(Event):
    number: int = 0


@dataclass(frozen=True)
class Paid(Event):
    order: int = 0


class Secretive(Attribute):
    def __init__(self) -> None:
        self.url = "amqp://guest:hunter2@broker/"
        self.password = "hunter2"
        self.headers = {"api_key": "hunter2"}


class OwnWords(Attribute):
    def __repr__(self) -> str:
        return "OwnWords(token='hunter2')"


def apologise(order: PlaceOrder) -> None:
    pass


class PlaceOrderHandler(RequestHandler[PlaceOrder]):
    @FeatureSwitch("orders.place", dont_ack=True)
    @DontAckOnError(only=(OSError, ValueError))
    @Secretive()
    @OwnWords()
    @Fallback(apologise)
    @Retry(attempts=3)
    def handle(self, order: PlaceOrder) -> None:
        pass


async def audit(event: OrderPlaced) -> None:
    pass


def settle(delivery: Delivery[Paid]) -> None:
    delivery.ack()


def told_by_topic(message: Message) -> type:
    return Paid


def by_customer(order: PlaceOrder) -> str | None:
    return None


@pytest.fixture
def dispatcher() -> Dispatcher:
    return Dispatcher(
        "memory://",
        name="shop",
        handlers=[PlaceOrderHandler, audit],
        subscriptions=[
            Subscription(PlaceOrder, topic="orders", performers=2, max_attempts=None, dead_letter=None),
            Subscription(OrderPlaced, in_flight=4, lease=60, invalid="odd", on_unhandled="dont_ack"),
            Subscription(told_by_topic, topic="paid", handlers=[settle]),
        ],
        publications=[Publication(PlaceOrder, topic="orders", key=by_customer), Publication(Paid, key="order")],
    )


# -- describe


@pytest.mark.requirement("P-19")
def test_every_channel_is_described_with_its_defaults_filled_in(dispatcher: Dispatcher) -> None:
    orders, placed, paid = describe(dispatcher)["channels"]

    wanted = {
        "channel": "orders",
        "topic": "orders",
        "requests": ["PlaceOrder"],
        "pump": "reactor",
        "performers": 2,
        "in_flight": 1,
        "ordered": False,
        "max_attempts": None,
        "on_unhandled": "retry",
        "dead_letter": None,
        "invalid": None,
        "lease": None,
        "may_block": True,
    }
    assert {name: value for name, value in orders.items() if name != "handlers"} == wanted
    assert (placed["channel"], placed["topic"]) == ("shop.OrderPlaced", "OrderPlaced")
    assert (placed["pump"], placed["in_flight"], placed["lease"]) == ("proactor", 4, 60.0)
    assert (placed["dead_letter"], placed["invalid"]) == ("shop.OrderPlaced.dead", "odd")
    assert (paid["dead_letter"], paid["invalid"]) == ("paid.dead", "paid.dead")
    assert (paid["channel"], paid["requests"]) == ("paid", ["Paid"])


@pytest.mark.requirement("P-19")
def test_handlers_are_described_with_their_attributes_outermost_first(dispatcher: Dispatcher) -> None:
    orders, placed, paid = describe(dispatcher)["channels"]

    (handler,) = orders["handlers"]
    assert (handler["name"], handler["request"], handler["settles"]) == ("PlaceOrderHandler", "PlaceOrder", "pump")
    assert [text.partition("(")[0] for text in handler["attributes"]] == [
        "FeatureSwitch",
        "DontAckOnError",
        "Secretive",
        "OwnWords",
        "Fallback",
        "Retry",
    ]
    assert "name='orders.place', dont_ack=True" in handler["attributes"][0]
    assert "only=(OSError, ValueError)" in handler["attributes"][1]
    assert "alternative=apologise" in handler["attributes"][4]
    assert placed["handlers"] == [{"name": "audit", "request": "OrderPlaced", "settles": "pump", "attributes": []}]
    assert paid["handlers"][0]["settles"] == "handler"


@pytest.mark.requirement("P-19")
def test_publications_and_capabilities_are_described(dispatcher: Dispatcher) -> None:
    described = describe(dispatcher)

    assert described["publications"] == [
        {"request": "PlaceOrder", "topic": "orders", "key": "by_customer"},
        {"request": "Paid", "topic": "Paid", "key": "order"},
    ]
    assert described["transport"] == "MemoryTransport"
    assert set(described["capabilities"]) == {field.name for field in fields(Capabilities)}


@pytest.mark.requirement("P-19")
def test_what_is_described_is_plain_data(dispatcher: Dispatcher) -> None:
    described = describe(dispatcher)

    assert json.loads(json.dumps(described)) == described


@pytest.mark.requirement("P-19")
def test_credentials_are_never_described(dispatcher: Dispatcher) -> None:
    described = describe(dispatcher)

    assert "hunter2" not in json.dumps(described)
    assert "hunter2" not in as_text(described)
    assert "amqp://…@broker/" in described["channels"][0]["handlers"][0]["attributes"][2]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("amqp://guest:p@ss@host/a", "amqp://…@host/a"),
        ("no route to nats://token@a:4222, redis://:x@b", "no route to nats://…@a:4222, redis://…@b"),
        ("https://host/a@b", "https://host/a@b"),
        ("password='a b', user='c'", "password=…, user='c'"),
        ('{"client_secret": "x", "region": "eu"}', '{"client_secret": …, "region": "eu"}'),
        ("aws_secret_access_key=x", "aws_secret_access_key=…"),
        ("Connect(passwd=None)", "Connect(passwd=…)"),
        ("no password given", "no password given"),
    ],
)
def test_what_looks_like_credentials_is_hidden(text: str, shown: str) -> None:
    assert without_credentials(text) == shown


@pytest.mark.requirement("P-19")
def test_the_text_says_all_that_the_data_says(dispatcher: Dispatcher) -> None:
    text = as_text(describe(dispatcher))

    assert text.startswith("Dispatcher shop on memory\n")
    heads, orders, placed, _ = text.split("\n\n")[1].splitlines()
    assert heads.split("  ")[0] == "CHANNEL"
    assert " ".join(orders.split()) == "orders orders PlaceOrder reactor 2 1 no limit retry nowhere nowhere default yes"
    assert placed.split()[:6] == ["shop.OrderPlaced", "OrderPlaced", "OrderPlaced", "proactor", "1", "4"]
    assert "paid: Paid → settle, which settles its messages itself" in text
    assert "orders: PlaceOrder → PlaceOrderHandler\n    FeatureSwitch(" in text
    assert all(f"\n{field.name} " in text for field in fields(Capabilities))


@pytest.mark.requirement("P-19")
@pytest.mark.parametrize("arguments", [[], ["--format", "table"], ["--format", "json"]])
def test_the_command_prints_either(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "shop.py").write_text("from pump import *\ndispatcher = Dispatcher('memory://', name='ünique')")

    ended = pump_run("describe", "shop:dispatcher", *arguments, folder=tmp_path)

    assert (ended.returncode, ended.stderr) == (0, "")
    if "json" in arguments:
        assert json.loads(ended.stdout)["name"] == "ünique"
        assert "ünique" in ended.stdout
    else:
        assert ended.stdout.startswith("Dispatcher ünique on memory\n")


# -- what runs


@pytest.mark.requirement("P-08")
def test_nothing_is_said_of_performers_before_they_run(dispatcher: Dispatcher) -> None:
    assert "performers" not in describe(dispatcher)


@pytest.mark.requirement("P-08")
def test_performers_are_described_while_they_run_and_after(dispatcher: Dispatcher) -> None:
    with dispatcher:
        eventually(lambda: dispatcher.ready, "all performers run")
        running = describe(dispatcher)
    stopped = describe(dispatcher)

    assert [(each["channel"], each["state"]) for each in running["performers"]] == [
        ("orders", "running"),
        ("orders", "running"),
        ("shop.OrderPlaced", "running"),
        ("paid", "running"),
    ]
    assert running["ready"] is True
    assert len({each["name"] for each in running["performers"]}) == 4
    assert {(each["state"], each["stopped"]) for each in stopped["performers"]} == {("stopped", "requested")}
    assert stopped["ready"] is False
    assert "PERFORMER" in as_text(running)
    assert json.loads(json.dumps(running)) == running


@pytest.mark.requirement("P-08")
def test_a_dispatcher_that_runs_on_a_loop_is_described_there(dispatcher: Dispatcher) -> None:
    async def run() -> dict[str, object]:
        async with dispatcher:
            while not dispatcher.ready:  # noqa: ASYNC110 - what is waited for sets no event
                await asyncio.sleep(0.01)
            return describe(dispatcher)

    assert asyncio.run(run())["ready"] is True


@pytest.mark.requirement("P-08")
def test_a_performer_that_died_is_described_with_what_it_died_of(
    dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def run(_: Reactor) -> None:
        raise MemoryError("no room for amqp://guest:hunter2@broker/")

    monkeypatch.setattr(Reactor, "run", run)

    with dispatcher:
        eventually(lambda: dispatcher.states[0].restarts > 0, "the performer dies")
        performer = describe(dispatcher)["performers"][0]

    assert (performer["state"], performer["restarts"]) == ("restarting", 1)
    assert performer["error"] == "MemoryError: no room for amqp://…@broker/"


# -- in the documentation


@pytest.mark.requirement("P-02")
@pytest.mark.parametrize("name", tables.TABLES)
def test_the_documentation_prints_what_the_code_says(name: str) -> None:
    unknown = [scheme for scheme, found in tables._transports() if found is None]
    if name == "capabilities" and unknown:
        pytest.skip(f"not installed: {', '.join(unknown)}")
    page = (ROOT / "docs" / f"{name}.md").read_text("utf-8")

    assert page == tables.with_table(page, name, tables.TABLES[name]()), "python -m pump describe --write-docs docs"


@pytest.mark.requirement("P-02")
def test_the_settlement_table_is_what_was_promised() -> None:
    rows = [line.strip("| ").split(" | ") for line in tables.TABLES["settlement"]().splitlines()]
    found = {row[0]: row[1:] for row in rows if len(row) == 5}

    again, last = "`requeue` in 1 s, 1 attempt spent", "`reject`, delivery error: attempts exhausted"
    assert found["returned"] == ["acknowledge", "`acknowledge`", "no", "next"]
    assert found["`DontAckAction`"] == ["nack", "`nack`", "yes", "wait 1 s, next"]
    assert found["`DeferMessageAction(5)`"][1:3] == ["`requeue` in 5 s, 1 attempt spent", "no"]
    assert found["`DeferMessageAction`, at the last attempt"] == ["dead letter", last, "yes", "next"]
    assert found["it cannot be mapped"][0] == "invalid"
    assert found["`ConfigurationError` of the pump: mapper, factory, set-up"] == [
        "nack",
        "`nack`",
        "no",
        "the pump stops, with ERROR",
    ]
    assert found["`ConfigurationError` of the handler: as any other"] == ["again later", again, "yes", "next"]
    assert found['any other exception, `on_unhandled="acknowledge"`'] == ["acknowledge", "`acknowledge`", "yes", "next"]
    assert found["the same, at the last attempt"] == ["dead letter", last, "yes", "next"]
    assert found["cancelled by this pump's own stop"] == ["hand back", "`hand_back`", "no", "the pump stops"]
    assert found["Defer, with any others"][0] == "again later"
    assert found["DontAck, with Reject, Invalid or errors"][0] == "nack"
    assert found["Reject, with Invalid or errors"][0] == "dead letter"
    assert found["Invalid, with errors"][0] == "invalid"


@pytest.mark.requirement("P-02")
def test_the_capability_table_has_a_row_for_every_capability() -> None:
    lines = tables.capability_table().splitlines()

    assert lines[0].startswith("|  | ")
    assert "`memory://`" in lines[0]
    assert [line.split("`")[1] for line in lines[2:]] == [field.name for field in fields(Capabilities)]


@pytest.mark.requirement("P-02")
@pytest.mark.parametrize(
    ("option", "table"),
    [
        ("--settlement", tables.TABLES["settlement"]),
        ("--options", tables.TABLES["options"]),
        ("--capabilities", tables.capability_table),
    ],
)
def test_the_command_prints_the_tables(tmp_path: Path, option: str, table: object) -> None:
    ended = pump_run("describe", option, folder=tmp_path)

    assert callable(table)
    assert ended.stdout == f"{table()}\n"


@pytest.mark.requirement("P-02")
def test_the_command_writes_the_tables_between_the_markers_of_their_pages(tmp_path: Path) -> None:
    for name in tables.TABLES:
        (tmp_path / f"{name}.md").write_text(f"before\n<!-- begin {name} -->\nold\n<!-- end {name} -->\nafter\n")

    first = pump_run("describe", "--write-docs", ".", folder=tmp_path)
    second = pump_run("describe", "--write-docs", ".", folder=tmp_path)

    page = (tmp_path / "settlement.md").read_text("utf-8")
    assert page.startswith("before\n<!-- begin settlement -->\n\n| outcome |")
    assert page.endswith("|\n\n<!-- end settlement -->\nafter\n")
    assert first.stdout.splitlines() == [f"{name}.md has changed" for name in tables.TABLES]
    assert second.stdout == ""


def test_a_page_without_markers_is_left_alone() -> None:
    with pytest.raises(ConfigurationError, match="write <!-- begin settlement --> and <!-- end settlement --> around"):
        tables.with_table("no table here", "settlement", "| |")


def test_a_cell_cannot_break_its_row() -> None:
    assert tables.markdown(["a"], [["x | y"]]).splitlines()[-1] == "| x &#124; y |"
