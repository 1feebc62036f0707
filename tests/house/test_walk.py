"""docs/walk.md: no message takes a longer walk than the page says, and what the page names exists."""

import importlib
import re
from collections.abc import Mapping
from inspect import isfunction

import pytest

from brokers.rabbitmq import RabbitMQ
from walk.page import PAGE, counts, written_counts, written_functions
from walk.walks import Walks, all_walks

AGAIN = "run `python -m walk --write` in the folder tests"


@pytest.fixture(scope="module")
def walks(rabbitmq: RabbitMQ) -> Mapping[str, Walks]:
    return all_walks(rabbitmq)


@pytest.mark.parametrize("name", written_counts())
def test_a_message_walks_no_further_than_the_page_says(name: str, walks: Mapping[str, Walks]) -> None:
    found, written = counts(walks[name][0]), written_counts()[name]

    assert not found.exceeds(written), f"{found}, where the page says {written}: shorten it, or {AGAIN}"


def test_every_walk_is_on_the_page(walks: Mapping[str, Walks]) -> None:
    assert written_counts().keys() == walks.keys()


@pytest.mark.parametrize("walk", ["RabbitMQ, Reactor", "RabbitMQ, Proactor"])
def test_a_walk_from_rabbitmq_passes_a_handler_and_an_acknowledgement(walk: str, walks: Mapping[str, Walks]) -> None:
    hops = walks[walk][0].hops

    assert hops[0].module.startswith("pump.transports.rabbitmq")
    assert any(hop.module.startswith("pump.handling") for hop in hops)
    assert any(hop.name.endswith(".acknowledge") for hop in hops)


@pytest.mark.parametrize("module", sorted({module for module, _ in written_functions()}))
def test_what_the_page_names_exists(module: str) -> None:
    names = {name for where, name in written_functions() if where == module}

    missing = sorted(name for name in names if not exists(module, name))

    assert missing == [], f"renamed or removed: {AGAIN}"


def exists(module: str, name: str) -> bool:
    """Whether there is such a function; of one that is made within another, whether the other exists."""
    found: object = importlib.import_module(module)
    for part in name.split("."):
        if isfunction(found) or part == "<lambda>":
            break
        found = getattr(found, part, None)
    return found is not None


def test_the_page_draws_every_walk() -> None:
    headings = re.findall(r"^## (.+)$", PAGE.read_text(), re.MULTILINE)

    assert headings == list(written_counts())
