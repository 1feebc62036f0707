"""Who gets a post: default topics, dead letters, one command once, and handlers of one subscription."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from pump.errors import ConfigurationError
from pump.program.dispatcher import Dispatcher
from pump.request import Command
from pump.subscription import Publication, Subscription
from pump.testing import PumpHarness
from support.pumps import KINDS, REACTOR, Broker, Kind, Order, Outcomes, Placed
from support.waiting import eventually

NOTHING = Outcomes(None)


@dataclass(frozen=True)
class Renamed(Command):
    wire_type: ClassVar[str] = "shop.order.place"
    number: int = 1


each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def dispatcher(
    *subscriptions: Subscription, capabilities: Mapping[str, Any] | None = None, **settings: Any
) -> Dispatcher:
    return Dispatcher(Broker(**(capabilities or {})), subscriptions=subscriptions, **settings)


def in_process(kind: Kind, made: Dispatcher, what: str, request: object) -> object:
    if kind.awaits:
        return asyncio.run(getattr(made.processor, f"{what}_async")(request))
    return getattr(made.processor, what)(request)


def found(made: Dispatcher) -> list[str]:
    return [str(each) for each in made.check()]


# -- the topic by default


@each_kind
def test_what_has_a_name_of_its_own_on_the_wire_is_posted_to_where_it_is_read(kind: Kind) -> None:
    body = Outcomes(None)
    made = dispatcher(
        Subscription(Renamed, **kind.options),
        handlers=[kind.handler(body, takes=Renamed)],
        publications=[Publication(Renamed)],
    )

    with made:
        made.post(Renamed(1))
        eventually(lambda: body.seen == [Renamed(1)])

    assert made.plans[0].rules.topic == made.publications[0].destination == "shop.order.place"
    assert found(made) == []


@pytest.mark.parametrize("request_", [Order, Renamed, list[int]])
def test_a_subscription_by_itself_reads_the_topic_that_a_dispatcher_gives_it(request_: Any) -> None:
    subscription = Subscription(request_)
    made = dispatcher(subscription, handlers=[REACTOR.handler(NOTHING, takes=request_)])

    assert subscription.source == made.plans[0].rules.topic == made.plans[0].rules.source


def test_the_harness_posts_it_to_where_it_is_read() -> None:
    with PumpHarness(REACTOR.handler(NOTHING, takes=Renamed)) as harness:
        harness.post(Renamed(1))
        harness.run()

        assert harness.acknowledged == [Renamed(1)]


# -- a topic that nobody reads


@pytest.mark.parametrize("system", [{}, {"between_processes": True}])
def test_a_publication_to_another_topic_than_its_subscription_reads_is_warned_of(system: Mapping[str, Any]) -> None:
    made = dispatcher(
        Subscription(Order, topic="orders"),
        handlers=[REACTOR.handler(NOTHING)],
        publications=[Publication(Order, topic="order")],
        capabilities=system,
    )

    (warning,) = found(made)
    assert warning.startswith("warning: Order is posted to the topic 'order', and what handles it here reads 'orders'")


def test_a_topic_that_nobody_in_the_only_process_reads_is_warned_of() -> None:
    subscription, handler = Subscription(Order), REACTOR.handler(NOTHING)
    alone = dispatcher(subscription, handlers=[handler], publications=[Publication(Placed)])
    among_others = dispatcher(
        subscription,
        handlers=[handler],
        publications=[Publication(Placed)],
        capabilities={"between_processes": True},
    )

    assert [text.startswith("warning: Placed is posted to the topic 'Placed'") for text in found(alone)] == [True]
    assert found(among_others) == []


@pytest.mark.parametrize("read", ["orders.*", "orders.>", ">", "*.new", "orders.new"])
def test_a_topic_that_is_read_by_a_pattern_is_read(read: str) -> None:
    made = dispatcher(
        Subscription(Order, topic=read, channel="all"),
        handlers=[REACTOR.handler(NOTHING)],
        publications=[Publication(Order, topic="orders.new")],
    )

    assert found(made) == []


@pytest.mark.parametrize(
    ("read", "posted"),
    [("orders.*", "orders.old.new"), ("order.>", "orders.new"), ("orders", "orders.new"), ("*.new", "orders.old")],
)
def test_a_topic_beside_the_pattern_is_not_read(read: str, posted: str) -> None:
    made = dispatcher(
        Subscription(Order, topic=read, channel="all"),
        handlers=[REACTOR.handler(NOTHING)],
        publications=[Publication(Order, topic=posted)],
    )

    (warning,) = found(made)
    assert f"Order is posted to the topic {posted!r}" in warning


# -- dead letters


@each_kind
def test_a_subscription_to_dead_letters_gets_them_and_nothing_else(kind: Kind) -> None:
    works, fails = Outcomes(None, ValueError("broken")), Outcomes(None)
    made = dispatcher(
        Subscription(Order, handlers=[kind.handler(works)], on_unhandled="reject", **kind.options),
        Subscription(Order, handlers=[kind.handler(fails)], channel="Order.dead", **kind.options),
        publications=[Publication(Order)],
    )

    with made:
        made.post(Order(1))
        eventually(lambda: works.seen == [Order(1)])
        made.post(Order(2))
        eventually(lambda: fails.seen != [])

    assert found(made) == []
    assert (works.seen, fails.seen) == ([Order(1), Order(2)], [Order(2)])


@pytest.mark.parametrize(
    ("options", "channel"),
    [
        ({}, "Order.dead"),
        ({"dead_letter": "given-up"}, "given-up"),
        ({"invalid": "wrong"}, "wrong"),
        ({"dead_letter": "given-up"}, "elsewhere.dead"),
    ],
)
def test_a_channel_of_dead_letters_is_not_bound_to_the_topic_of_its_request(
    options: dict[str, Any], channel: str
) -> None:
    handler = REACTOR.handler(NOTHING)
    subscriptions = [Subscription(Order, handlers=[handler], channel=channel), Subscription(Order, **options)]

    made = dispatcher(*subscriptions, handlers=[handler])
    turned = dispatcher(*reversed(subscriptions), handlers=[handler])

    assert [each.rules.topic for each in made.plans] == [channel, "Order"]
    assert [each.rules.topic for each in turned.plans] == ["Order", channel]


def test_dead_letters_are_read_from_a_topic_too_if_one_is_given() -> None:
    handler = REACTOR.handler(NOTHING)
    made = dispatcher(Subscription(Order, topic="again", channel="Order.dead"), handlers=[handler])

    assert made.plans[0].rules.topic == "again"


def test_where_dead_letters_are_named_after_the_topic_their_channel_is_one_too() -> None:
    made = dispatcher(
        Subscription(Order, channel="orders.dlq"),
        handlers=[REACTOR.handler(NOTHING)],
        capabilities={"default_dead_letter": "<subject>.dlq"},
    )

    assert made.plans[0].rules.topic == "orders.dlq"


@pytest.mark.parametrize(
    ("options", "warns"), [({}, True), ({"dead_letter": "Order.dead"}, False), ({"invalid": "Order.dead"}, False)]
)
def test_a_channel_named_for_dead_letters_that_go_elsewhere_is_warned_of(
    options: dict[str, Any], *, warns: bool
) -> None:
    handler = REACTOR.handler(NOTHING)
    made = dispatcher(
        Subscription(Order, handlers=[handler], **options),
        Subscription(Order, handlers=[handler], channel="Order.dead"),
        capabilities={"default_dead_letter": "rows of <channel>"},
    )

    assert [each.rules.topic for each in made.plans] == ["Order", "Order.dead"]
    assert [text.startswith("warning: channel Order.dead is named as one of dead letters") for text in found(made)] == (
        [True] * warns
    )


# -- one command, once


@pytest.mark.parametrize("scoped", [0, 1])
def test_one_command_on_two_channels_of_a_topic_is_refused(scoped: int) -> None:
    handler = REACTOR.handler(NOTHING)
    made = dispatcher(
        Subscription(Order, channel="first", handlers=[handler] * scoped),
        Subscription(Order, channel="second"),
        handlers=[handler],
    )

    (error,) = found(made)
    assert error.startswith("error: each Order reaches both the channel first and the channel second")
    with pytest.raises(ConfigurationError, match="would be handled twice"), made:
        pass


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"topic": "urgent"}, {"topic": "slow"}),
        (
            {"channel": "a", "handlers": [REACTOR.handler(NOTHING)]},
            {"channel": "b", "handlers": [REACTOR.handler(NOTHING)]},
        ),
    ],
)
def test_one_command_on_two_topics_or_with_handlers_chosen_for_each_is_as_it_should_be(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    made = dispatcher(Subscription(Order, **first), Subscription(Order, **second), handlers=[REACTOR.handler(NOTHING)])

    assert [text for text in found(made) if text.startswith("error")] == []


def test_one_event_on_two_channels_is_as_it_should_be() -> None:
    handler = REACTOR.handler(NOTHING, takes=Placed)
    made = dispatcher(Subscription(Placed, channel="mail"), Subscription(Placed, channel="stock"), handlers=[handler])

    assert found(made) == []


# -- in the process


@each_kind
def test_publish_runs_the_handlers_of_single_subscriptions_too_each_once(kind: Kind) -> None:
    mail, stock, every = Outcomes(None), Outcomes(None), Outcomes(None)
    shared = kind.handler(every, takes=Placed)
    made = dispatcher(
        Subscription(Placed, channel="mail", handlers=[kind.handler(mail, takes=Placed), shared], **kind.options),
        Subscription(Placed, channel="stock", handlers=[kind.handler(stock, takes=Placed)], **kind.options),
        handlers=[shared],
    )

    in_process(kind, made, "publish", Placed(1))

    assert (mail.seen, stock.seen, every.seen) == ([Placed(1)],) * 3


@each_kind
def test_send_runs_the_handler_of_a_single_subscription(kind: Kind) -> None:
    body = Outcomes("done")
    made = dispatcher(Subscription(Order, handlers=[kind.handler(body)], **kind.options))

    assert in_process(kind, made, "send", Order(1)) == "done"
