"""Attributes for a whole dispatcher or subscription: the same objects, around those of the handlers."""

import asyncio
from typing import Any

import pytest

from pump.attribute import Attribute, Rest, Scope, Steps
from pump.clock import ManualClock
from pump.describe import describe
from pump.errors import ConfigurationError, DontAckAction, RejectMessageAction
from pump.handlers import CircuitBreaker, DontAckOnError, RejectMessageOnError, Retry
from pump.program.dispatcher import Dispatcher
from pump.subscription import Publication, Subscription
from pump.testing import PumpHarness
from support.pumps import KINDS, Kind, Order, Outcomes, Placed

SEEN: list[str] = []


class Named(Attribute):
    """Notes when it begins, and for which pipelines it was prepared."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.scopes: list[tuple[str, str]] = []

    def prepare(self, scope: Scope) -> Attribute:
        self.scopes.append((scope.channel, scope.handler))
        return self

    def around(self, request: object, rest: Rest) -> Steps:
        SEEN.append(self.name)
        return (yield from rest(request))


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    SEEN.clear()


def program(kind: Kind, body: Any, *own: Attribute, of_all: Any = (), of_one: Any = (), **options: Any) -> Dispatcher:
    return Dispatcher(
        "memory://",
        handlers=[kind.handler(body, *own), kind.handler(body, takes=Placed)],
        subscriptions=[
            Subscription(Order, topic="orders", attributes=of_one, **{**kind.options, **options}),
            Subscription(Placed, channel="placed", **kind.options),
        ],
        publications=[Publication(Order, topic="orders"), Publication(Placed)],
        attributes=of_all,
    )


def test_they_stand_outermost_those_of_the_dispatcher_above_those_of_the_subscription(kind: Kind) -> None:
    dispatcher = program(
        kind,
        lambda _: SEEN.append("handler"),
        Named("own"),
        of_all=[Named("dispatcher 1"), Named("dispatcher 2")],
        of_one=[Named("subscription")],
    )
    with PumpHarness(dispatcher) as harness:
        harness.post(Order(1))
        harness.run()
        assert SEEN == ["dispatcher 1", "dispatcher 2", "subscription", "own", "handler"]

        SEEN.clear()
        harness.post(Placed(1))
        harness.run()
        assert SEEN == ["dispatcher 1", "dispatcher 2", "handler"]


def test_handlers_of_one_subscription_have_them_too(kind: Kind) -> None:
    dispatcher = Dispatcher(
        "memory://",
        subscriptions=[
            Subscription(
                Order, handlers=[kind.handler(lambda _: None)], attributes=[Named("subscription")], **kind.options
            )
        ],
        publications=[Publication(Order)],
        attributes=[Named("dispatcher")],
    )
    with PumpHarness(dispatcher) as harness:
        harness.post(Order(1))
        harness.run()

    assert SEEN == ["dispatcher", "subscription"]


def test_what_is_sent_in_the_process_is_within_those_of_the_dispatcher_once(kind: Kind) -> None:
    body = Outcomes(None)
    dispatcher = program(kind, body, of_all=[Named("dispatcher")], of_one=[Named("subscription")])
    if kind.awaits:
        asyncio.run(dispatcher.processor.send_async(Order(1)))
        asyncio.run(dispatcher.processor.publish_async(Order(1)))
    else:
        dispatcher.processor.send(Order(1))
        dispatcher.processor.publish(Order(1))

    assert SEEN == ["dispatcher", "dispatcher"]
    assert body.runs == 2


def test_each_channel_has_state_of_its_own(kind: Kind) -> None:
    breaker = CircuitBreaker(1, reset_after=60)
    body = Outcomes(ValueError("down"), None)
    dispatcher = program(kind, body, of_all=[DontAckOnError(), breaker], dont_ack_delay=1)
    with PumpHarness(dispatcher) as harness:
        harness.post(Order(1))
        harness.run(turns=2)
        harness.post(Placed(1))
        harness.run()

        assert harness.acknowledged == [Placed(1)]
        assert body.runs == 2, "the breaker of one channel is open, and the other's is not"


def test_the_same_object_is_prepared_once_for_each_pipeline() -> None:
    named = Named("dispatcher")
    dispatcher = program(KINDS[0], Outcomes(None), of_all=[named])
    with dispatcher:
        assert {channel for channel, _ in named.scopes} >= {"orders", "placed"}


def test_what_they_declare_counts_for_every_channel() -> None:
    dispatcher = program(KINDS[0], Outcomes(None), of_all=[DontAckOnError()], of_one=[RejectMessageOnError()])

    orders, placed = dispatcher.plans
    assert orders.declares == {DontAckAction, RejectMessageAction}
    assert placed.declares == {DontAckAction}
    assert (orders.rules.may_block, placed.rules.may_block) == (True, True)


def test_describe_shows_them_with_the_handlers() -> None:
    dispatcher = program(KINDS[0], Outcomes(None), DontAckOnError(), of_all=[Retry(3)], of_one=[CircuitBreaker(2)])

    shown = [each.partition("(")[0] for each in describe(dispatcher)["channels"][0]["handlers"][0]["attributes"]]
    assert shown == ["Retry", "CircuitBreaker", "DontAckOnError"]


def test_decorators_are_still_on_the_function_alone() -> None:
    handler = KINDS[0].handler(Outcomes(None), Retry(3))
    for attributes in ([Retry(2)], []):
        dispatcher = Dispatcher(
            "memory://", handlers=[handler], subscriptions=[Subscription(Order)], attributes=attributes
        )
        assert len(dispatcher.plans[0].handlers[0].attributes) == 1 + len(attributes)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([Retry], r"attributes has the class Retry: write Retry\(\)"),
        ([3], "attributes is a list of attributes, such as Retry"),
        (Retry(3), r"attributes is a list: write \[Retry"),
    ],
)
@pytest.mark.parametrize("where", ["of_all", "of_one"])
def test_what_is_no_attribute_is_refused_and_named(given: Any, text: str, where: str) -> None:
    with pytest.raises(ConfigurationError, match=text) as raised:
        program(KINDS[0], Outcomes(None), **{where: given})

    assert str(raised.value).startswith("Dispatcher" if where == "of_all" else "Subscription")


def test_a_clock_of_its_own_reaches_them(kind: Kind) -> None:
    clocks: list[object] = []

    class Clocked(Attribute):
        def around(self, request: object, rest: Rest) -> Steps:
            clocks.append(rest.clock)
            return (yield from rest(request))

    clock = ManualClock()
    dispatcher = Dispatcher("memory://", handlers=[kind.handler(Outcomes(None))], attributes=[Clocked()], clock=clock)
    if kind.awaits:
        asyncio.run(dispatcher.processor.send_async(Order(1)))
    else:
        dispatcher.processor.send(Order(1))

    assert clocks == [clock]
