"""A dispatcher's life: entered, left and entered again, in both colours; a start that fails leaves nothing behind."""

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from pump.clock import SystemClock
from pump.errors import (
    ConfigurationError,
    DontAckAction,
    PublishError,
    PumpError,
    SetupError,
    TransportError,
    UnknownPublication,
)
from pump.handling.registry import RequestHandler
from pump.program.dispatcher import Dispatcher
from pump.program.performer import Activity
from pump.subscription import Publication, Subscription
from support.pumps import PROACTOR, REACTOR, Bench, Broker, Kind, Order, Outcomes, Placed, consuming
from support.waiting import eventually, eventually_async


def pump_threads() -> list[str]:
    """The names of the threads that pumps have made, without the clock's own, which stays."""
    return [each.name for each in threading.enumerate() if each.name.startswith("pump-") and each.name != "pump-alarms"]


# -- with, async with


def test_making_one_opens_nothing(kind: Kind) -> None:
    before = threading.active_count()
    broker = Broker()

    consuming(kind, Outcomes(None), broker)

    assert broker.calls == []
    assert threading.active_count() == before


def test_with_consumes(kind: Kind) -> None:
    body = Outcomes(None)
    with consuming(kind, body) as dispatcher:
        dispatcher.post(Order(1))
        dispatcher.post_many([Order(2), Order(3)])
        eventually(lambda: body.runs == 3)

    eventually(lambda: pump_threads() == [])


@pytest.mark.parametrize("kind", [PROACTOR, Kind("concurrent", awaits=True, options={"in_flight": 4}), REACTOR])
def test_async_with_consumes_on_the_callers_loop(kind: Kind) -> None:
    loops: set[object] = set()
    body = Outcomes(None)

    def noting(order: Order) -> None:
        if kind.awaits:
            loops.add(asyncio.get_running_loop())
        body(order)

    async def consume() -> object:
        async with consuming(kind, noting) as dispatcher:
            await dispatcher.post_async(Order(1))
            await dispatcher.post_many_async([Order(2), Order(3)])
            await eventually_async(lambda: body.runs == 3)
        return asyncio.get_running_loop()

    loop = asyncio.run(consume())

    assert loops == ({loop} if kind.awaits else set())
    eventually(lambda: pump_threads() == [])


def test_it_can_be_entered_again(kind: Kind) -> None:
    body = Outcomes(None)
    dispatcher = consuming(kind, body)
    for number in range(3):
        with dispatcher:
            dispatcher.post(Order(number))
            eventually(lambda least=number: body.runs > least)  # type: ignore[misc]

    assert body.runs == 3


def test_a_private_bus_lives_as_long_as_its_dispatcher(kind: Kind) -> None:
    body = Outcomes(None)
    dispatcher = Dispatcher(
        "memory://",
        handlers=[kind.handler(body)],
        subscriptions=[Subscription(Order, **kind.options)],
        publications=[Publication(Order)],
    )
    with dispatcher.publishing():
        dispatcher.post(Order(1))
    with dispatcher:
        eventually(lambda: body.runs == 1)


def test_it_cannot_be_entered_twice_at_once(kind: Kind) -> None:
    body = Outcomes(None)
    with consuming(kind, body) as dispatcher:
        with pytest.raises(ConfigurationError, match="running already"), dispatcher:
            pytest.fail("it was entered")
        with pytest.raises(ConfigurationError, match="running already"), dispatcher.publishing():
            pytest.fail("it was entered")
        dispatcher.post(Order())
        eventually(lambda: body.runs == 1)


def test_stopping_twice_is_stopping_once(kind: Kind) -> None:
    with consuming(kind, Outcomes(None)) as dispatcher:
        dispatcher.stop()
        dispatcher.stop()

    eventually(lambda: pump_threads() == [])


def test_an_error_in_the_block_stops_it_and_comes_out(kind: Kind) -> None:
    dispatcher = consuming(kind, Outcomes(None))
    with pytest.raises(LookupError), dispatcher:
        raise LookupError

    assert [state.state for state in dispatcher.states] == [Activity.STOPPED]


# -- start-up


@pytest.mark.parametrize("error", [SetupError("no such queue"), TransportError("refused"), OSError("any")])
def test_what_fails_at_the_start_leaves_nothing_behind(kind: Kind, error: Exception) -> None:
    body = Outcomes(None)
    broker = Broker()
    broker.fail("prepare", error)
    dispatcher = consuming(kind, body, broker)
    with pytest.raises(type(error)), dispatcher:
        pytest.fail("it started")
    eventually(lambda: pump_threads() == [])

    with dispatcher:
        dispatcher.post(Order())
        eventually(lambda: body.runs == 1)


@pytest.mark.parametrize("error", [SetupError("no such queue"), OSError("any")])
def test_the_same_awaited(kind: Kind, error: Exception) -> None:
    async def start() -> None:
        broker = Broker()
        broker.fail("prepare", error, error)
        dispatcher = consuming(kind, Outcomes(None), broker)
        with pytest.raises(type(error)):
            await dispatcher.__aenter__()
        with pytest.raises(type(error)):
            await dispatcher.publishing().__aenter__()
        async with dispatcher:
            await dispatcher.post_async(Order())

    asyncio.run(start())


def test_a_configuration_that_makes_no_sense_connects_to_nothing() -> None:
    broker = Broker()
    dispatcher = Dispatcher(broker, subscriptions=[Subscription(Order)])
    with pytest.raises(ConfigurationError, match="has no handler of Order"), dispatcher:
        pytest.fail("it started")
    with pytest.raises(ConfigurationError, match="has no handler of Order"), dispatcher.publishing():
        pytest.fail("it started")

    assert broker.calls == []


def test_warnings_are_logged_at_the_start(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker(nack="holds")
    with consuming(kind, Outcomes(None), broker, on_unhandled="dont_ack"):
        pass

    assert any("stays with this consumer" in each.getMessage() for each in caplog.records)


def test_a_broker_that_is_away_at_the_start_is_waited_for_by_the_pumps(kind: Kind) -> None:
    """Only preparing has to succeed: a consumer that cannot be opened yet is opened later."""
    body = Outcomes(None)
    broker = Broker()
    broker.fail("open", TransportError("away"), TransportError("away"))
    with consuming(kind, body, broker, failure_backoff=(0.001, 0.01)) as dispatcher:
        dispatcher.post(Order())
        eventually(lambda: body.runs == 1)


# -- publishing


def test_publishing_only_publishes(kind: Kind) -> None:
    body = Outcomes(None)
    broker = Broker()
    dispatcher = consuming(kind, body, broker)
    with dispatcher.publishing() as publisher:
        assert publisher is dispatcher
        dispatcher.post(Order(1))
        dispatcher.post_many([Order(2)])

    assert broker.bus.pending("orders") == 2
    assert body.runs == 0
    eventually(lambda: pump_threads() == [])


def test_publishing_awaited(kind: Kind) -> None:
    broker = Broker()
    dispatcher = consuming(kind, Outcomes(None), broker)

    async def publish() -> None:
        async with dispatcher.publishing() as publisher:
            await publisher.post_async(Order(1))
            await publisher.post_many_async([Order(2)])

    asyncio.run(publish())

    assert broker.bus.pending("orders") == 2


@pytest.mark.parametrize("when", ["before", "after"])
def test_posting_outside_of_either_raises(kind: Kind, when: str) -> None:
    dispatcher = consuming(kind, Outcomes(None))
    if when == "after":
        with dispatcher.publishing():
            pass

    with pytest.raises(ConfigurationError, match=r"with dispatcher.publishing\(\):"):
        dispatcher.post(Order())
    with pytest.raises(ConfigurationError, match=r"with dispatcher.publishing\(\):"):
        asyncio.run(dispatcher.post_async(Order()))


def test_posting_what_no_publication_knows_raises_and_names_those_there_are(kind: Kind) -> None:
    with consuming(kind, Outcomes(None)).publishing() as dispatcher, pytest.raises(UnknownPublication, match="Order"):
        dispatcher.post(Placed())


def test_a_post_that_is_not_confirmed_raises() -> None:
    broker = Broker()
    dispatcher = Dispatcher(broker, publications=[Publication(Order, topic="nowhere", missing="assume")])
    with dispatcher.publishing(), pytest.raises(PublishError, match="nothing was sent"):
        dispatcher.post(Order())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"headers": {"pump-attempts": "9"}}, "cannot be set"),
        ({"headers": {"count": 3}}, "headers are text"),
        ({"delay": -1}, "cannot be negative"),
    ],
)
def test_options_of_a_post_that_make_no_sense_are_refused(options: dict[str, Any], text: str) -> None:
    dispatcher = Dispatcher(Broker(), publications=[Publication(Order)])
    with dispatcher.publishing(), pytest.raises(ConfigurationError, match=text):
        dispatcher.post(Order(), **options)


# -- colours


BLOCKING: dict[str, tuple[Callable[[Dispatcher], object], str]] = {
    "with": (lambda each: each.__enter__(), "async with dispatcher:"),
    "start": (lambda each: each.start(), "start_async"),
    "run": (lambda each: each.run(), "run_async"),
    "stop": (lambda each: each.stop(), "stop_async"),
    "publishing": (lambda each: each.publishing().__enter__(), r"async with dispatcher.publishing\(\):"),
    "post": (lambda each: each.post(Order()), "post_async"),
    "post_many": (lambda each: each.post_many([Order()]), "post_many_async"),
    "send": (lambda each: each.processor.send(Order()), "send_async"),
    "publish": (lambda each: each.processor.publish(Order()), "publish_async"),
}


@pytest.mark.parametrize("name", BLOCKING)
def test_a_blocking_call_on_a_running_loop_raises_and_names_its_twin(kind: Kind, name: str) -> None:
    call, twin = BLOCKING[name]
    dispatcher = consuming(kind, Outcomes(None))

    async def on_a_loop() -> None:
        call(dispatcher)

    with pytest.raises(ConfigurationError, match=twin):
        asyncio.run(on_a_loop())

    eventually(lambda: pump_threads() == [])


@pytest.mark.parametrize(
    ("call", "twin"),
    [
        (lambda context: context.processor.post(Placed()), "post_async"),
        (lambda context: context.processor.send(Placed()), "send_async"),
        (lambda context: context.processor.publish(Placed()), "publish_async"),
    ],
)
def test_so_does_one_in_an_async_handler(benches: ExitStack, call: Callable[[Any], object], twin: str) -> None:
    class Handling(RequestHandler[Order]):
        async def handle(self, _: Order, /) -> None:
            call(self.context)

    bench = benches.enter_context(Bench(Handling, publications=[Placed]))

    with pytest.raises(ConfigurationError, match=twin):
        bench.handle(Order())


# -- in the process


def test_send_runs_the_one_handler_and_publish_every_one() -> None:
    first, second, only = Outcomes("first"), Outcomes(ValueError("second")), Outcomes("done")
    handlers = [REACTOR.handler(first, takes=Placed), REACTOR.handler(second, takes=Placed), REACTOR.handler(only)]
    dispatcher = Dispatcher("memory://", handlers=handlers)

    with pytest.raises(ExceptionGroup) as caught:
        dispatcher.processor.publish(Placed())

    assert dispatcher.processor.send(Order()) == "done"
    assert [str(each) for each in caught.value.exceptions] == ["second"]
    assert (first.runs, second.runs) == (1, 1)


def test_the_same_is_awaited() -> None:
    first, second, only = Outcomes("first"), Outcomes(ValueError("second")), Outcomes("done")
    handlers = [PROACTOR.handler(first, takes=Placed), REACTOR.handler(second, takes=Placed), PROACTOR.handler(only)]
    dispatcher = Dispatcher("memory://", handlers=handlers)

    async def run() -> object:
        with pytest.raises(ExceptionGroup):
            await dispatcher.processor.publish_async(Placed())
        return await dispatcher.processor.send_async(Order())

    assert asyncio.run(run()) == "done"
    assert (first.runs, second.runs) == (1, 1)


@pytest.mark.parametrize("handlers", [[], [REACTOR.handler(Outcomes(None)), REACTOR.handler(Outcomes(None))]])
def test_send_wants_exactly_one_handler(handlers: list[object]) -> None:
    with pytest.raises(ConfigurationError, match="exactly one handler"):
        Dispatcher("memory://", handlers=handlers).processor.send(Order())


def test_send_does_not_call_an_async_handler() -> None:
    dispatcher = Dispatcher("memory://", handlers=[PROACTOR.handler(Outcomes(None))])

    with pytest.raises(ConfigurationError, match="await send_async"):
        dispatcher.processor.send(Order())


def test_a_context_is_there_in_a_handler_and_nowhere_else(benches: ExitStack) -> None:
    class Handling(RequestHandler[Order]):
        def handle(self, order: Order, /) -> object:
            return (self.context.handler, self.context.headers, bool(self.context.message.id))

    handler = Handling()
    bench = benches.enter_context(Bench(handler))

    seen = bench.handle(Order(), headers={"a": "b"})

    assert seen == (Handling.__qualname__, {"a": "b"}, True)
    with pytest.raises(PumpError, match="no context here"):
        _ = handler.context


def test_what_a_handler_posts_belongs_to_the_message_it_handles(benches: ExitStack, kind: Kind) -> None:
    class Blocking(RequestHandler[Order]):
        def handle(self, order: Order, /) -> None:
            self.context.processor.post(Placed(order.number))

    class Awaiting(RequestHandler[Order]):
        async def handle(self, order: Order, /) -> None:
            await self.context.processor.post_async(Placed(order.number))

    handler = Awaiting if kind.awaits else Blocking
    bench = benches.enter_context(Bench(handler, publications=[Placed], **kind.options))
    bench.post_orders(1)

    bench.run()

    (message,) = bench.bus.messages("Placed")
    assert message.header.correlation_id == "order-1"
    assert bench.posted == [Placed(1)]


# -- listening


def test_a_listener_that_fails_is_logged_and_disturbs_nothing(kind: Kind, benches: ExitStack) -> None:
    def listener(*_: object) -> None:
        raise ValueError("broken")

    handler = kind.handler(Outcomes(DontAckAction(), None))
    bench = benches.enter_context(Bench(handler, listeners=[listener], **kind.options))
    bench.post_orders(1)

    bench.run(turns=2)

    assert len(bench.acknowledged) == 1
    assert any(each.levelno == logging.ERROR and "listener failed" in each.getMessage() for each in bench.logs)


def test_two_dispatchers_of_one_named_bus_talk(kind: Kind) -> None:
    body = Outcomes(None)
    consumer = Dispatcher(
        "memory://shared", handlers=[kind.handler(body)], subscriptions=[Subscription(Order, **kind.options)]
    )
    producer = Dispatcher("memory://shared", publications=[Publication(Order)])
    with consumer, producer.publishing():
        producer.post(Order())
        eventually(lambda: body.runs == 1)


def test_a_delayed_post_arrives_later(kind: Kind) -> None:
    body = Outcomes(None)
    clock = SystemClock()
    with consuming(kind, body) as dispatcher:
        began = clock.monotonic()
        dispatcher.post(Order(), delay=0.1)
        eventually(lambda: body.runs == 1)

        assert clock.monotonic() - began >= 0.1
