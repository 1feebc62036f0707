"""Where messages come from and where rejected ones go."""

from dataclasses import dataclass
from typing import Any

import pytest

from pump.errors import ConfigurationError
from pump.request import Command
from pump.subscription import Subscription
from pump.transport_kit.destinations import Destinations


@dataclass(frozen=True)
class Order(Command):
    sku: str = ""


def of(default: str = "<channel>.dead", **options: Any) -> Destinations:
    return Destinations.of(Subscription(Order, **options), default)


def test_all_names_have_a_default() -> None:
    assert of() == Destinations("Order", "Order", "Order.dead", "Order.dead")


def test_names_that_are_given_stay() -> None:
    assert of(topic="t", channel="c", dead_letter="d", invalid="i") == Destinations("t", "c", "d", "i")


def test_the_channel_is_the_topic_and_its_name_is_filled_in() -> None:
    assert of(topic="orders") == Destinations("orders", "orders", "orders.dead", "orders.dead")
    assert of(topic="orders", channel="shop").dead_letter == "shop.dead"


def test_a_transport_has_a_default_of_its_own() -> None:
    assert of("<subject>.dlq").dead_letter == "<subject>.dlq"
    assert of("rows of <channel>", channel="shop").dead_letter == "rows of shop"
    assert of("<subject>.dlq", dead_letter="d").dead_letter == "d"


def test_rejected_messages_go_by_kind() -> None:
    names = of(dead_letter="d", invalid="i")

    assert names.for_rejected("delivery error") == "d"
    assert names.for_rejected("unacceptable") == "i"


def test_invalid_messages_may_have_a_place_where_others_have_none() -> None:
    names = of(dead_letter=None, invalid="i")

    assert names.for_rejected("delivery error") is None
    assert names.for_rejected("unacceptable") == "i"
    assert names.dead_letters == ("i",)


def test_the_subject_of_the_message_is_filled_in() -> None:
    names = of("<subject>.dlq")

    assert names.for_rejected("unacceptable", "orders.eu") == "orders.eu.dlq"
    assert of(dead_letter=None).for_rejected("unacceptable", "orders.eu") is None


def test_each_destination_is_listed_once() -> None:
    assert of(dead_letter="d").dead_letters == ("d",)
    assert of(dead_letter="d", invalid="i").dead_letters == ("d", "i")
    assert of(dead_letter=None).dead_letters == ()


@pytest.mark.parametrize("name", ["topic", "channel"])
@pytest.mark.parametrize("option", ["dead_letter", "invalid"])
def test_a_subscription_does_not_receive_its_own_dead_letters(name: str, option: str) -> None:
    with pytest.raises(ConfigurationError, match="its own dead letters"):
        of(topic="topic", channel="channel", **{option: name})


def test_a_transport_whose_names_are_of_different_kinds_checks_by_itself() -> None:
    rules = Subscription(Order, topic="same", dead_letter="same")

    assert Destinations.of(rules, checked=False).dead_letter == "same"
