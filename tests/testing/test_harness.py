"""The harness for users' tests: what it runs, what it tells, and when it comes to rest."""

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from pump.errors import (
    ConfigurationError,
    DeferMessageAction,
    DontAckAction,
    InvalidMessageAction,
    PumpError,
    RejectMessageAction,
)
from pump.handlers import FeatureSwitch, Retry
from pump.handling.registry import RequestHandler
from pump.mapping.mapper import JsonMapper
from pump.message import Message
from pump.program.dispatcher import Dispatcher
from pump.request import Command
from pump.settling import Acknowledge, Nack, Reject, Requeue
from pump.subscription import Publication, Subscription
from pump.testing import Call, DeadLetter, PumpHarness
from support.pump_fixtures import Pumping
from support.pumps import REACTOR, Kind, Order, Outcomes, Placed, numbers


@dataclass(frozen=True)
class PlaceOrder(Command):
    sku: str
    quantity: int


class PlaceOrderHandler(RequestHandler[PlaceOrder]):
    def handle(self, order: PlaceOrder, /) -> None:
        if order.quantity < 1:
            raise RejectMessageAction("nothing ordered")


@pytest.mark.requirement("P-18")
def test_places_orders(pump_harness: type[PumpHarness]) -> None:
    harness = pump_harness(PlaceOrderHandler)
    harness.post(PlaceOrder("tea", 2))
    harness.run()
    assert harness.acknowledged == [PlaceOrder("tea", 2)]


@pytest.mark.requirement("P-18")
def test_what_becomes_of_messages_is_told_in_requests(pumping: Pumping) -> None:
    endings: dict[int, Any] = {
        1: Outcomes(None),
        2: Outcomes(RejectMessageAction("no")),
        3: Outcomes(InvalidMessageAction("wrong")),
        4: Outcomes(DeferMessageAction(60), None),
        5: Outcomes(DontAckAction()),
    }
    harness = pumping(lambda order: endings[order.number](order))
    harness.post_orders(1, 2, 3, 4)
    harness.run()
    harness.post_orders(5)
    harness.run()

    assert sorted(numbers(harness.acknowledged)) == [1, 4]
    assert numbers(harness.deferred) == [4]
    assert numbers(harness.nacked) == [5]
    assert numbers(harness.pending) == [5]
    assert [(each.request, each.reason) for each in harness.dead_letters] == [(Order(2), "no")]
    assert [(each.request, each.reason) for each in harness.invalid] == [(Order(3), "wrong")]
    assert harness.stopped is None


def test_a_dead_letter_says_where_it_comes_from(pumping: Pumping) -> None:
    error = ValueError("down")
    harness = pumping(Outcomes(error), max_attempts=2)
    harness.post(Order(1), headers={"tenant": "a"})

    harness.run()

    (letter,) = harness.dead_letters
    (real,) = harness.bus.messages("Order.dead")
    assert isinstance(letter, DeadLetter)
    assert (letter.error, letter.attempts, letter.description) == (error, 2, "")
    assert dict(letter.headers) == dict(real.header.headers)
    assert letter.headers["tenant"] == "a"
    assert letter.headers["pump-origin"] == "Order"
    assert letter.headers["pump-error"] == "ValueError: down"


def test_calls_equal_their_names_and_know_their_message(pumping: Pumping) -> None:
    harness = pumping(Outcomes(DeferMessageAction(7), DontAckAction(), RejectMessageAction("no")))
    harness.post_orders(1)

    harness.run(turns=3)

    first, second, third = harness.calls
    assert harness.calls == ["requeue", "nack", "reject"]
    assert isinstance(first, Call)
    assert (first.request, first.message.id, first.delay, first.attempts) == (Order(1), "order-1", 7, 1)
    assert (second.delay, second.rejection, second.error) == (1.0, None, None)
    assert third.rejection is not None
    assert third.rejection.reason == "no"
    assert third.ends
    assert not second.ends


def test_verdicts_are_told_with_their_requests(pumping: Pumping) -> None:
    harness = pumping(Outcomes(DontAckAction(), DeferMessageAction(1), None))
    harness.post_orders(1)

    harness.run(turns=3)

    assert [request for request, _ in harness.verdicts] == [Order(1)] * 3
    assert [type(verdict) for _, verdict in harness.verdicts] == [Nack, Requeue, Acknowledge]


def test_an_explicit_settlement_is_one_verdict(explicitly: Pumping) -> None:
    harness = explicitly(lambda delivery: delivery.reject("no"))
    harness.post_orders(1)

    harness.run()

    assert [type(verdict) for _, verdict in harness.verdicts] == [Reject]


def test_logs_and_events_are_kept(pumping: Pumping) -> None:
    harness = pumping(Outcomes(DontAckAction()))
    harness.post_orders(1)

    harness.run()

    assert any(record.getMessage().startswith("Not acknowledging") for record in harness.logs)
    assert [event for event, _ in harness.events] == ["nack"]


def test_it_logs_only_while_it_runs_and_leaves_the_logger_as_it_was(pumping: Pumping) -> None:
    from pump.telemetry import log

    before = (log.level, list(log.handlers))
    harness = pumping(Outcomes(None))
    harness.run()

    log.warning("elsewhere")

    assert harness.logs == []
    assert (log.level, list(log.handlers)) == before


# -- how long it runs


def test_a_run_without_messages_ends_at_once(pumping: Pumping) -> None:
    harness = pumping(Outcomes(None))

    harness.run()

    assert harness.calls == []


def test_a_run_ends_when_all_is_done_however_late_that_is(pumping: Pumping) -> None:
    harness = pumping(Outcomes(DeferMessageAction(86_400), None))
    harness.post_orders(1)
    began = harness.clock.monotonic()

    harness.run()

    assert numbers(harness.acknowledged) == [1]
    assert harness.clock.monotonic() - began == pytest.approx(86_400, abs=1)


def test_a_message_that_is_left_is_looked_at_once_a_run(pumping: Pumping) -> None:
    body = Outcomes(DontAckAction())
    harness = pumping(body)
    harness.post_orders(1, 2, key="k")

    harness.run()
    harness.run()

    assert numbers(body.seen) == [1, 1]


@pytest.mark.parametrize("turns", [1, 3, 7])
def test_turns_are_messages(pumping: Pumping, turns: int) -> None:
    body = Outcomes(None)
    harness = pumping(body)
    harness.post_orders(*range(20))

    harness.run(turns=turns)

    assert body.runs == turns
    assert len(harness.pending) == 20 - turns


def test_a_step_is_one_message(pumping: Pumping) -> None:
    body = Outcomes(DontAckAction(), DontAckAction(), None)
    harness = pumping(body)
    harness.post_orders(1)
    runs = []
    for _ in range(4):
        harness.step()
        runs.append(body.runs)

    assert runs == [1, 2, 3, 3]


def test_seconds_pass_whatever_is_left(pumping: Pumping) -> None:
    harness = pumping(Outcomes(None))
    harness.post_orders(1)
    began = harness.clock.monotonic()

    harness.run(seconds=60)

    assert harness.clock.monotonic() - began == pytest.approx(60, abs=0.5)
    assert numbers(harness.acknowledged) == [1]


def test_what_never_comes_to_rest_is_an_error(pumping: Pumping, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pump.testing.harness.MOST_LOOKS", 500)
    harness = pumping(Outcomes(DeferMessageAction(1)), max_attempts=None)
    harness.post_orders(1)

    with pytest.raises(PumpError, match=r"does not come to rest.*Order\(number=1\)"):
        harness.run()


def test_a_pump_that_has_stopped_runs_no_more(pumping: Pumping) -> None:
    body = Outcomes(RejectMessageAction("no"))
    harness = pumping(body, unacceptable_limit=1)
    harness.post_orders(1, 2, key="k")
    harness.run()
    harness.run(seconds=60)
    harness.run(turns=5)

    assert body.runs == 1
    assert harness.bus.pending("Order") == 1


def test_time_passes_in_between(pumping: Pumping) -> None:
    harness = pumping(Outcomes(DeferMessageAction(60), None))
    harness.post_orders(1)
    harness.step()
    harness.advance(61)
    began = harness.clock.monotonic()

    harness.run()

    assert harness.clock.monotonic() - began < 1
    assert numbers(harness.acknowledged) == [1]


def test_a_post_may_be_delayed(pumping: Pumping) -> None:
    harness = pumping(Outcomes(None))
    began = harness.clock.monotonic()
    harness.post(Order(1), delay=30)

    harness.run()

    assert harness.clock.monotonic() - began >= 30


# -- one handler by itself


@pytest.mark.requirement("P-18")
def test_a_handler_can_be_run_by_itself_attributes_included(kind: Kind, benches: ExitStack) -> None:
    body = Outcomes(ValueError("a"), ValueError("b"), "done")
    harness = benches.enter_context(PumpHarness(kind.handler(body, Retry(3)), **kind.options))

    assert harness.handle(Order(7)) == "done"
    assert body.seen == [Order(7)] * 3
    assert harness.calls == []


def test_what_it_raises_comes_out(kind: Kind, benches: ExitStack) -> None:
    harness = benches.enter_context(PumpHarness(kind.handler(Outcomes(ValueError("a"))), **kind.options))

    with pytest.raises(ValueError, match="a"):
        harness.handle(Order())


def test_of_several_handlers_none_is_run_by_itself(kind: Kind, benches: ExitStack) -> None:
    handlers = [kind.handler(Outcomes(None), takes=Placed) for _ in range(2)]
    harness = benches.enter_context(PumpHarness(*handlers))

    with pytest.raises(ConfigurationError, match="post it, and run"):
        harness.handle(Placed())
    with pytest.raises(ConfigurationError, match="post it, and run"):
        harness.handle(Order())


def test_its_switches_are_the_tests(kind: Kind, benches: ExitStack) -> None:
    body = Outcomes("done")
    handler = kind.handler(body, FeatureSwitch("a"), FeatureSwitch("b"))
    harness = benches.enter_context(PumpHarness(handler, switches={"a": True, "b": False}))
    results = [harness.handle(Order())]
    harness.switches.set("b", on=True)
    results.append(harness.handle(Order()))
    harness.switches.set("a", on=False)
    results.append(harness.handle(Order()))
    harness.switches.clear("a")
    results.append(harness.handle(Order()))

    assert results == [None, "done", None, "done"]


# -- what it is given


def test_a_whole_dispatcher_is_run_as_it_is(benches: ExitStack) -> None:
    told: list[str] = []
    seen: list[str] = []

    class Shop(RequestHandler[PlaceOrder]):
        def __init__(self, name: str) -> None:
            self.name = name

        @FeatureSwitch("open")
        def handle(self, order: PlaceOrder, /) -> None:
            seen.append(f"{self.name}: {order.sku}")
            self.context.processor.post(Placed(order.quantity))

    async def on_placed(event: Placed) -> None:
        await asyncio.sleep(1)
        if event.number > 2:
            raise DontAckAction

    dispatcher = Dispatcher(
        "memory://",
        name="shop",
        handlers=[Shop, on_placed],
        subscriptions=[Subscription(PlaceOrder, topic="orders", performers=3), Subscription(Placed)],
        publications=[Publication(PlaceOrder, topic="orders"), Publication(Placed)],
        factory=lambda cls: cls("tea shop"),
        switches=lambda name: name != "closed",
        listeners=[lambda event, _: told.append(event)],
    )
    harness = benches.enter_context(PumpHarness(dispatcher, max_attempts=2))
    harness.post(PlaceOrder("tea", 2))
    harness.post(PlaceOrder("cups", 3))

    harness.run()

    assert seen == ["tea shop: tea", "tea shop: cups"]
    assert harness.posted == [Placed(2), Placed(3)]
    assert {PlaceOrder("tea", 2), Placed(2)} <= set(harness.acknowledged)
    assert harness.nacked == [Placed(3)]
    assert harness.pending == [Placed(3)]
    assert told == ["nack"]
    assert harness.bus.pending("shop.Placed") == 1
    assert not dispatcher.states


def test_messages_flow_from_one_subscription_to_the_next_before_time_passes(benches: ExitStack) -> None:
    """A deferred message of one channel does not hold up another channel."""

    class First(RequestHandler[Order]):
        def handle(self, order: Order, /) -> None:
            if not self.context.message.attempts:
                raise DeferMessageAction(600)
            self.context.processor.post(Placed(order.number))

    times: list[float] = []

    async def second(_: Placed) -> None:
        await asyncio.sleep(0)
        times.append(harness.clock.monotonic() - began)

    harness = benches.enter_context(PumpHarness(First, second))
    began = harness.clock.monotonic()
    harness.post(Order(1))
    harness.post(Placed(2))

    harness.run()

    assert len(times) == 2
    assert times[0] < 5
    assert 600 <= times[1] < 605


def test_events_handlers_and_functions_go_together(kind: Kind, benches: ExitStack) -> None:
    orders, first, second = Outcomes(None), Outcomes(None), Outcomes(None)
    harness = benches.enter_context(
        PumpHarness(
            kind.handler(orders), kind.handler(first, takes=Placed), kind.handler(second, takes=Placed), **kind.options
        )
    )
    harness.post(Order(1))
    harness.post(Placed(2))

    harness.run()

    assert (orders.seen, first.seen, second.seen) == ([Order(1)], [Placed(2)], [Placed(2)])


def test_mappers_are_the_tests(kind: Kind, benches: ExitStack) -> None:
    class Doubling(JsonMapper[Order]):
        def decode(self, message: Message) -> Order:
            return Order(2 * super().decode(message).number)

    harness = benches.enter_context(PumpHarness(kind.handler(Outcomes(None)), mappers={Order: Doubling(Order)}))
    harness.post(Order(4))

    harness.run()

    assert harness.acknowledged == [Order(8)]


def test_settings_that_would_not_start_do_not_here(benches: ExitStack) -> None:
    with pytest.raises(ConfigurationError, match="takes handlers"):
        PumpHarness()
    with pytest.raises(ConfigurationError, match="2 handlers"):
        PumpHarness(REACTOR.handler(Outcomes(None)), REACTOR.handler(Outcomes(None)))
    with pytest.raises(ConfigurationError, match="exactly one parameter"):
        PumpHarness(lambda: None)
    with pytest.raises(ConfigurationError, match="has itself as dead_letter"):
        PumpHarness(REACTOR.handler(Outcomes(None)), dead_letter="Order")


def test_it_is_not_for_use_on_a_running_loop(kind: Kind, benches: ExitStack) -> None:
    harness = benches.enter_context(PumpHarness(kind.handler(Outcomes(None))))

    async def on_a_loop() -> None:
        harness.run()

    with pytest.raises(ConfigurationError, match="use it in a `def` test"):
        asyncio.run(on_a_loop())


def test_messages_of_strangers_are_posted_raw(pumping: Pumping) -> None:
    harness = pumping(Outcomes(None))
    harness.post_raw('{"number": 4}', headers={"a": "b"}, id="one")
    harness.post_raw(b"nonsense", type="Order", id="two")
    harness.post_raw("{}", type="Other", topic="Order", content_type="text/plain", version="2", key="k")

    harness.run()

    assert harness.acknowledged == [Order(4)]
    assert harness.invalid[0].message.id == "two"
    assert [letter.message.header.type for letter in harness.invalid] == ["Order", "Other"]
    assert isinstance(harness.invalid[0].request, Message)
    assert harness.pending == []


@pytest.mark.parametrize(
    ("own", "carried"),
    [
        ({}, {"traceparent": "00-a", "tracestate": "x=1"}),
        ({"tenant": "t"}, {"tenant": "t", "traceparent": "00-a", "tracestate": "x=1"}),
        ({"traceparent": "00-b"}, {"traceparent": "00-b"}),
    ],
)
def test_what_a_handler_posts_carries_the_trace_of_its_message(own: dict[str, str], carried: dict[str, str]) -> None:
    class Relay(RequestHandler[PlaceOrder]):
        def handle(self, order: PlaceOrder, /) -> None:
            self.context.processor.post(Placed(order.quantity), headers=own)

    with PumpHarness(Relay, publications=[Publication(Placed, topic="placed")]) as harness:
        subscribed = harness.post(PlaceOrder("tea", 1), headers={"traceparent": "00-a", "tracestate": "x=1"})
        harness.run()

        (message,) = [message for message, by_a_handler in harness._sent if by_a_handler]
        assert dict(message.header.headers) == carried
        assert message.header.correlation_id == subscribed
