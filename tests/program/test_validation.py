"""Errors and warnings before anything starts: each names the thing and says what to change."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from pump.errors import ConfigurationError
from pump.handlers import (
    CircuitBreaker,
    DeferMessageOnError,
    DontAckOnError,
    Fallback,
    FeatureSwitch,
    RejectMessageOnError,
    RequestLogging,
    Retry,
    Timeout,
)
from pump.handling.delivery import Delivery
from pump.handling.registry import RequestHandler
from pump.program.dispatcher import Dispatcher
from pump.program.plan import Plan
from pump.request import Command
from pump.subscription import Publication, Subscription
from pump.testing import SubscriptionOptions
from support.pumps import PROACTOR, REACTOR, Broker, Order, Outcomes, Placed

NOTHING = Outcomes(None)


def dispatcher(*handlers: object, capabilities: Mapping[str, Any] | None = None, **settings: Any) -> Dispatcher:
    return Dispatcher(Broker(**(capabilities or {})), handlers=handlers, **settings)


def problems(*handlers: object, **settings: Any) -> list[str]:
    return [str(each) for each in dispatcher(*handlers, **settings).check()]


def subscribed(**options: Any) -> list[Subscription]:
    return [Subscription(Order, **options)]


def test_sound_settings_have_no_problems() -> None:
    found = problems(REACTOR.handler(NOTHING), subscriptions=[Subscription(Order)], publications=[Publication(Order)])

    assert found == []


# -- a subscription by itself


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"performers": 0}, "performers must be at least 1, not 0"),
        ({"in_flight": 0}, "in_flight must be at least 1, not 0"),
        ({"buffer_size": 0}, "buffer_size must be at least 1, not 0"),
        ({"receive_timeout": -1}, "receive_timeout must be at least 0, not -1"),
        ({"empty_delay": -1}, "empty_delay must be at least 0"),
        ({"dont_ack_delay": -0.1}, "dont_ack_delay must be at least 0"),
        ({"dont_ack_delay": timedelta(seconds=-1)}, "dont_ack_delay must be at least 0"),
        ({"unacceptable_window": -1}, "unacceptable_window must be at least 0"),
        ({"grace": -1}, "grace must be at least 0"),
        ({"max_attempts": 0}, "max_attempts must be at least 1, or None for no limit"),
        ({"dont_ack_limit": 0}, "dont_ack_limit must be at least 1, or None for no limit"),
        ({"requeue_backoff": (5, 1)}, r"requeue_backoff must be \(first, longest\), not \(5.0, 1.0\)"),
        ({"failure_backoff": (-1, 1)}, "failure_backoff must be"),
        ({"lease": 0}, "lease must be longer than 0 s"),
        ({"on_unhandled": "ignore"}, "on_unhandled must be one of .*'retry'.*not 'ignore'"),
        ({"pump": "actor"}, "pump must be one of"),
        ({"missing": "invent"}, "missing must be one of"),
        ({"pump": "reactor", "in_flight": 4}, "in_flight=4 needs async handlers.*use performers=4"),
    ],
)
def test_a_subscription_that_makes_no_sense_cannot_be_made(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        Subscription(Order, **options)


@pytest.mark.parametrize("request_", [42, "Order", None])
def test_a_subscription_is_of_a_type_or_a_function(request_: Any) -> None:
    with pytest.raises(ConfigurationError, match="takes a request type or a function"):
        Subscription(request_)


def test_a_subscription_by_a_function_needs_a_topic() -> None:
    with pytest.raises(ConfigurationError, match="needs a topic="):
        Subscription(lambda _: Order)


@pytest.mark.parametrize("request_", [42, "Order", lambda _: Order])
def test_a_publication_is_of_a_type(request_: Any) -> None:
    with pytest.raises(ConfigurationError, match="takes a request type"):
        Publication(request_)


def test_durations_are_seconds_or_timedeltas() -> None:
    Subscription(Order, dont_ack_delay=timedelta(minutes=1), requeue_backoff=(timedelta(seconds=1), 60))


def test_the_harness_takes_every_option_of_a_subscription() -> None:
    options = {name for name in Subscription.__dataclass_fields__ if name not in {"request", "handlers"}}

    assert set(SubscriptionOptions.__annotations__) == options


# -- what is filled in


def plan_of(*handlers: object, name: str = "", **options: Any) -> Plan:
    (plan,) = dispatcher(*handlers, subscriptions=subscribed(**options), name=name).plans
    return plan


def test_a_commands_topic_and_channel_are_its_name() -> None:
    rules = plan_of(REACTOR.handler(NOTHING)).rules

    assert (rules.topic, rules.channel, rules.dead_letter) == ("Order", "Order", "Order.dead")


def test_a_commands_channel_is_its_topic() -> None:
    rules = plan_of(REACTOR.handler(NOTHING), topic="orders").rules

    assert (rules.topic, rules.channel, rules.dead_letter) == ("orders", "orders", "orders.dead")


def test_an_events_channel_is_of_its_dispatcher() -> None:
    handler = REACTOR.handler(NOTHING, takes=Placed)
    (plan,) = dispatcher(handler, subscriptions=[Subscription(Placed)], name="shop").plans

    assert (plan.rules.topic, plan.rules.channel) == ("Placed", "shop.Placed")


def test_an_event_without_a_dispatchers_name_is_refused() -> None:
    handler = REACTOR.handler(NOTHING, takes=Placed)
    with pytest.raises(ConfigurationError, match=r"the event Placed needs Dispatcher\(name=…\)"):
        dispatcher(handler, subscriptions=[Subscription(Placed)])


def test_an_event_with_a_channel_needs_no_name() -> None:
    handler = REACTOR.handler(NOTHING, takes=Placed)
    (plan,) = dispatcher(handler, subscriptions=[Subscription(Placed, channel="mine")]).plans

    assert plan.rules.channel == "mine"


@pytest.mark.parametrize(("kind", "pump"), [(REACTOR, "reactor"), (PROACTOR, "proactor")])
def test_the_pump_follows_the_handlers_colour(kind: Any, pump: str) -> None:
    assert plan_of(kind.handler(NOTHING)).rules.pump == pump


@pytest.mark.parametrize(
    ("attributes", "options", "expected"),
    [
        ((), {}, False),
        ((DontAckOnError(),), {}, True),
        ((FeatureSwitch("a", dont_ack=True),), {}, True),
        ((FeatureSwitch("a"),), {}, False),
        ((), {"on_unhandled": "dont_ack"}, True),
        ((), {"may_block": True}, True),
        ((DontAckOnError(),), {"may_block": False}, False),
    ],
)
def test_whether_it_may_block_is_read_off(attributes: Any, options: dict[str, Any], *, expected: bool) -> None:
    assert plan_of(REACTOR.handler(NOTHING, *attributes), **options).rules.may_block == expected


def test_an_explicit_handler_may_block() -> None:
    assert plan_of(REACTOR.explicit(NOTHING)).rules.may_block


def test_a_subscriptions_own_handlers_are_its_only_ones() -> None:
    own, others = REACTOR.handler(NOTHING), PROACTOR.handler(NOTHING)
    (plan,) = dispatcher(others, subscriptions=subscribed(handlers=[own])).plans

    assert [each.handle for each in plan.handlers] == [own]


@pytest.mark.parametrize(
    ("attributes", "told"),
    [
        ((Retry(), DontAckOnError()), "@Retry stands above @DontAckOnError"),
        ((Retry(), Timeout(1), RejectMessageOnError()), "@Retry stands above @RejectMessageOnError"),
        ((Retry(on=(KeyError, OSError)), DeferMessageOnError(only=(LookupError, OSError))), "@Retry stands above"),
        ((Fallback(len), DontAckOnError()), "@Fallback stands above @DontAckOnError"),
        ((CircuitBreaker(), DontAckOnError()), "@CircuitBreaker stands above @DontAckOnError"),
        ((RejectMessageOnError(), DontAckOnError()), "@RejectMessageOnError stands above @DontAckOnError"),
        ((DontAckOnError(), Retry()), ""),
        ((Retry(), DontAckOnError(only=OSError)), ""),
        ((Retry(on=LookupError), DontAckOnError(only=KeyError)), ""),
        ((Retry(), DontAckOnError(but=OSError)), ""),
        ((Retry(on=OSError), DontAckOnError(but=ConnectionError)), ""),
        ((Retry(on=KeyError), DontAckOnError(but=OSError)), "@Retry stands above @DontAckOnError"),
        ((RejectMessageOnError(only=OSError), DontAckOnError(only=KeyError)), ""),
        ((RequestLogging(), FeatureSwitch("a"), DontAckOnError()), ""),
        ((RequestLogging(), DontAckOnError(), CircuitBreaker(), Timeout(1)), ""),
    ],
    ids=repr,
)
def test_an_attribute_that_never_acts_because_of_one_beneath_it_is_told(attributes: Any, told: str) -> None:
    handler = REACTOR.handler(NOTHING, *attributes)
    found = [str(each) for each in dispatcher(handler, subscriptions=subscribed()).check()]

    assert [each for each in found if "stands above" in each] == [each for each in found if told and told in each]
    assert any(told in each and each.startswith("warning: ") for each in found) is bool(told)


# -- what is refused


@pytest.mark.parametrize(
    ("kind", "other"), [(REACTOR, "proactor"), (PROACTOR, "reactor")], ids=["blocking", "awaiting"]
)
def test_a_handler_of_the_other_colour_than_the_pump_is_refused(kind: Any, other: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"has pump='{other}', but .*handle.* is `(async )?def`"):
        dispatcher(kind.handler(NOTHING), subscriptions=subscribed(pump=other))


def test_handlers_of_both_colours_on_one_channel_are_refused() -> None:
    handlers = [kind.handler(NOTHING, takes=Placed) for kind in (REACTOR, PROACTOR)]
    with pytest.raises(ConfigurationError, match="handlers of both colours"):
        dispatcher(*handlers, subscriptions=[Subscription(Placed, channel="placed")])


def test_several_in_flight_of_a_blocking_handler_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"in_flight=4 needs async handlers.*use performers=4"):
        dispatcher(REACTOR.handler(NOTHING), subscriptions=subscribed(in_flight=4))


class WantsArguments(RequestHandler[Order]):
    def __init__(self, database: str, *, retries: int, optional: bool = False) -> None: ...

    def handle(self, order: Order, /) -> None: ...


@dataclass(frozen=True)
class Dispatch(Command):
    wire_type: ClassVar[str] = "Order"


ERRORS: dict[str, tuple[Dispatcher, str]] = {
    "no handler": (
        dispatcher(subscriptions=subscribed()),
        r"channel Order has no handler of Order: add one to Dispatcher\(handlers=\[…\]\)",
    ),
    "no handler, and a pump": (dispatcher(subscriptions=subscribed(pump="proactor")), "has no handler of Order"),
    "no handler of what a function tells": (
        dispatcher(subscriptions=[Subscription(lambda _: Order, topic="mixed")]),
        "channel mixed has no handler of its types",
    ),
    "two handlers of a command": (
        dispatcher(REACTOR.handler(NOTHING), REACTOR.handler(NOTHING), subscriptions=subscribed()),
        "Order has 2 handlers .*: only an Event may have more than one",
    ),
    "an explicit handler beside another": (
        dispatcher(
            REACTOR.handler(NOTHING, takes=Placed),
            REACTOR.handler(NOTHING, takes=Delivery[Placed]),
            subscriptions=[Subscription(Placed, channel="placed")],
        ),
        "has several handlers, and one settles",
    ),
    "arguments without a factory": (
        dispatcher(WantsArguments, subscriptions=subscribed()),
        r"WantsArguments wants database, retries when it is made.*Dispatcher\(factory=…\)",
    ),
    "ordered, and several performers": (
        dispatcher(REACTOR.handler(NOTHING), subscriptions=subscribed(ordered=True, performers=2)),
        "ordered and has 2 performers.*use performers=1",
    ),
    "its own dead letters": (
        dispatcher(REACTOR.handler(NOTHING), subscriptions=subscribed(dead_letter="Order")),
        "has itself as dead_letter",
    ),
    "its own invalid messages": (
        dispatcher(REACTOR.handler(NOTHING), subscriptions=subscribed(topic="orders", channel="c", invalid="orders")),
        "has itself as invalid",
    ),
    "one wire type for two": (
        dispatcher(
            REACTOR.handler(NOTHING), subscriptions=subscribed(), publications=[Publication(Dispatch, topic="d")]
        ),
        "Order and .*Dispatch both travel as 'Order'",
    ),
    "one channel for two": (
        dispatcher(REACTOR.handler(NOTHING), subscriptions=[*subscribed(), *subscribed(pump="reactor")]),
        "2 subscriptions share the channel Order",
    ),
    "one channel for two topics": (
        dispatcher(
            REACTOR.handler(NOTHING),
            REACTOR.handler(NOTHING, takes=Placed),
            subscriptions=[Subscription(Order, channel="one"), Subscription(Placed, channel="one")],
        ),
        "2 subscriptions share the channel one",
    ),
    "two publications of one type": (
        dispatcher(publications=[Publication(Order), Publication(Order, topic="elsewhere")]),
        "Order has 2 Publications",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_it_is_found_by_the_check_and_stops_the_start(name: str) -> None:
    found, text = ERRORS[name]

    errors = [each.text for each in found.check() if each.level == "error"]

    assert len(errors) == 1
    with pytest.raises(ConfigurationError, match=text), found:
        pytest.fail("it started")


def test_all_problems_are_told_at_once() -> None:
    found = dispatcher(WantsArguments, subscriptions=subscribed(ordered=True, performers=2, dead_letter="Order"))

    with pytest.raises(ConfigurationError, match=r"ordered.*itself as dead_letter"), found:
        pytest.fail("it started")


def test_with_a_factory_arguments_are_its_business() -> None:
    found = problems(WantsArguments, subscriptions=subscribed(), factory=lambda cls: cls("here", retries=3))

    assert found == []


def test_an_ordered_channel_may_have_several_performers_where_keys_stay_together() -> None:
    rules = subscribed(ordered=True, performers=2)

    assert problems(REACTOR.handler(NOTHING), subscriptions=rules, capabilities={"shards_by_key": True}) == []


# -- what is warned of


WARNINGS: dict[str, tuple[Any, dict[str, Any], dict[str, Any], str]] = {
    "left, and held": (DontAckOnError(), {}, {"nack": "holds"}, "stays with this consumer"),
    "unhandled, and held": (None, {"on_unhandled": "dont_ack"}, {"nack": "holds"}, "stays with this consumer"),
    "left, ordered, and several": (
        DontAckOnError(),
        {"ordered": True, "performers": 2},
        {"shards_by_key": True},
        "DontAck blocks one performer; the others go on past",
    ),
    "deferred, and held": (DeferMessageOnError(), {}, {"requeue": "hold"}, "cannot deliver a message later"),
    "rejected, and gone": (RejectMessageOnError(), {"dead_letter": None}, {}, "gone"),
    "longer than it can be": (None, {"requeue_backoff": (1, 3600)}, {"longest_delay": 900.0}, "by at most 900 s"),
}


@pytest.mark.parametrize("name", WARNINGS)
def test_a_surprise_is_warned_of_and_does_not_stop_the_start(name: str) -> None:
    attribute, options, capabilities, text = WARNINGS[name]
    handler = REACTOR.handler(NOTHING, *([attribute] if attribute else []))
    warned = dispatcher(handler, subscriptions=subscribed(**options), capabilities=capabilities)
    unsurprising = dispatcher(REACTOR.handler(NOTHING), subscriptions=subscribed(), capabilities={})

    found = [(each.level, text in each.text) for each in warned.check()]
    with warned:
        pass

    assert found == [("warning", True)]
    assert unsurprising.check() == []
