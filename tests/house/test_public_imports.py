"""What programs import: the names that are public, and every import and name that the documentation shows."""

import ast
import importlib
import re
from collections.abc import Iterator
from importlib.metadata import entry_points
from textwrap import dedent

import pytest

from support.tree import ROOT

PUBLIC = {
    "pump": """
        AsyncDelivery Attribute Command CommandProcessor ConfigurationError Context DeferMessageAction Delivery
        Dispatcher Document DontAckAction Event HandlerTimeout Header InvalidMessageAction JsonMapper LeaseLost
        ManualClock Mapper Message MessageAction Post Publication PublishError PublishExhausted PumpError
        RejectMessageAction RequestHandler Rest SetupError Steps Subscription SystemClock TransportError
        UnknownPublication""",
    "pump.attribute": "Attribute Rest Scope Steps",
    "pump.context": "Context",
    "pump.describe": "describe",
    "pump.handlers": """
        CircuitBreaker DeferMessageOnError DontAckOnError EnvironmentSwitches Fallback FeatureSwitch FileSwitches
        RateLimit RejectMessageOnError RequestLogging Retry Switches Timeout Validate""",
    "pump.queue.async_client": "AsyncQueueClient QueueMessage Transaction",
    "pump.queue.client": "QueueClient QueueMessage Transaction",
    "pump.queue.postgres_engine": "PostgresEngine",
    "pump.queue.sqlite_engine": "SqliteEngine",
    "pump.testing": """
        Bus ManualClock PumpHarness SelfMovingClock SubscriptionOptions Switchboard TransportContract
        memory_transport""",
    "pump.transports.memory": "MemoryTransport",
    "pump.transports.nats": "AsyncNatsMessage NatsMessage NatsSubscription NatsTransport",
    "pump.transports.postgres": "PostgresTransport",
    "pump.transports.rabbitmq": "RabbitMQSettings RabbitMQTransport",
    "pump.transports.mqtt": "MqttServer MqttTransport Will",
    "pump.transports.kafka": "Cluster KafkaTransport",
    "pump.transports.redis": "RedisListTransport RedisTransport Server",
    "pump.transports.sqlite": "SqliteTransport",
}
"""Programs import these. A name goes only by a decision, with its line in CHANGELOG.md."""

BLOCK = re.compile(r"^( *)```(?:python|py)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
IMPORT = re.compile(r"^ *(?:>>> )?((?:from pump[\w.]* import (?:\([^)]*\)|.+))|import pump[\w.]*)", re.MULTILINE)
INLINE = re.compile(r"`(pump(?:\.[A-Za-z_]\w*)+)")


def pages() -> dict[str, str]:
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {str(file.relative_to(ROOT)): file.read_text() for file in files if file.name != "walk.md"}


def shown_in(text: str) -> Iterator[str]:
    """The full names of all that a page imports from pump, and those that it names in a sentence."""
    yield from INLINE.findall(text)
    for _, block in BLOCK.findall(text):
        for statement in IMPORT.findall(dedent(block)):
            for node in ast.walk(ast.parse(statement)):
                if isinstance(node, ast.Import):
                    yield from (alias.name for alias in node.names)
                if isinstance(node, ast.ImportFrom):
                    yield from (f"{node.module}.{alias.name}" for alias in node.names)


def find(name: str) -> object:
    """What a full name stands for: a module, or something in one."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name is None or not missing.name.startswith("pump"):
            pytest.skip(f"needs {missing.name}")
        owner, _, attribute = name.rpartition(".")
        if not owner:
            raise
        return getattr(find(owner), attribute)


@pytest.mark.parametrize("name", [f"{module}.{name}" for module in PUBLIC for name in PUBLIC[module].split()])
def test_a_public_name_can_be_imported(name: str) -> None:
    assert find(name) is not None


@pytest.mark.parametrize("page", pages())
def test_what_a_page_shows_can_be_imported(page: str) -> None:
    for name in sorted(set(shown_in(pages()[page]))):
        assert find(name) is not None


def test_all_that_pump_exports_is_listed_as_public() -> None:
    assert sorted(importlib.import_module("pump").__all__) == sorted(PUBLIC["pump"].split())


@pytest.mark.parametrize("entry", entry_points(group="pump.transports"), ids=lambda entry: entry.name)
def test_a_transport_is_found_by_its_scheme(entry: object) -> None:
    module, _, name = getattr(entry, "value", "").partition(" ")[0].partition(":")

    assert callable(find(f"{module}.{name}"))


def test_the_pages_show_something() -> None:
    shown = {name for text in pages().values() for name in shown_in(text)}

    assert {"pump.Dispatcher", "pump.handlers.Retry", "pump.transports.nats.NatsMessage"} <= shown


def test_a_wrong_name_is_seen() -> None:
    page = "```python\nfrom pump import (\n    Dispatcher,\n    Nothing,\n)\n```\nand `pump.nothing.at_all`"

    assert set(shown_in(page)) == {"pump.Dispatcher", "pump.Nothing", "pump.nothing.at_all"}
    for name in ("pump.Nothing", "pump.nothing.at_all"):
        with pytest.raises((AttributeError, ImportError)):
            find(name)
