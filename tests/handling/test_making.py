"""What a factory opens for a message: entered before its handler runs, left before the message is done."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from typing import Any

import pytest

from pump.errors import ConfigurationError, DeferMessageAction, RejectMessageAction
from pump.handlers import Fallback, Retry
from pump.handling.delivery import AsyncDelivery, Delivery
from pump.program.dispatcher import Dispatcher
from pump.subscription import Publication, Subscription
from pump.testing import PumpHarness
from pump.verdict import Stopped
from support.pumps import CONCURRENT, PROACTOR, REACTOR, Broker, Kind, Order, Placed
from support.waiting import LIMIT, eventually

Made = AbstractContextManager[object] | AbstractAsyncContextManager[object]


class Opened:
    """A factory of either colour that notes what happens to what it opens, and fails where it is told to."""

    def __init__(self, *, awaits: bool, fails: str = "", turns_into: BaseException | None = None) -> None:
        self.events: list[str] = []
        self.errors: list[BaseException] = []
        """What it was left with."""
        self._awaits = awaits
        self._fails = fails
        self._turns_into = turns_into

    def __call__(self, cls: type) -> Made:
        return self._awaiting(cls) if self._awaits else self._blocking(cls)

    @contextmanager
    def _blocking(self, cls: type) -> Iterator[object]:
        self._note("open")
        try:
            yield cls()
        except BaseException as error:
            self._turned(error)
        self._note("close")

    @asynccontextmanager
    async def _awaiting(self, cls: type) -> AsyncIterator[object]:
        await asyncio.sleep(0)
        self._note("open")
        try:
            yield cls()
        except BaseException as error:
            self._turned(error)
        await asyncio.sleep(0)
        self._note("close")

    def _note(self, event: str) -> None:
        self.events.append(event)
        if event == self._fails:
            raise OSError(f"{event} failed")

    def _turned(self, error: BaseException) -> None:
        self.errors.append(error)
        self.events.append("failed")
        if self._turns_into is not None:
            raise self._turns_into from error


def consuming(
    kind: Kind, body: Callable[[Any], object], opened: Callable[[type], object], broker: Broker, **options: Any
) -> Dispatcher:
    return Dispatcher(
        broker,
        handlers=[kind.handler_class(body)],
        subscriptions=[Subscription(Order, topic="orders", **{**kind.options, **options})],
        publications=[Publication(Order, topic="orders")],
        factory=opened,
    )


COLOURS = pytest.mark.parametrize(
    ("kind", "awaits"),
    [
        pytest.param(REACTOR, False, id="reactor"),
        pytest.param(PROACTOR, False, id="proactor, blocking"),
        pytest.param(PROACTOR, True, id="proactor, awaiting"),
        pytest.param(CONCURRENT, True, id="concurrent, awaiting"),
    ],
)


@COLOURS
def test_it_is_open_while_the_handler_runs_and_closed_before_the_message_is_done(kind: Kind, awaits: bool) -> None:
    opened, broker = Opened(awaits=awaits), Broker()
    broker.on_call = lambda name: opened.events.append(name) if name == "acknowledge" else None
    with consuming(kind, lambda order: opened.events.append(f"handle {order.number}"), opened, broker) as dispatcher:
        dispatcher.post(Order(1))
        eventually(lambda: broker.named("acknowledge"))
        dispatcher.post(Order(2))
        eventually(lambda: len(broker.named("acknowledge")) == 2)

    assert opened.events == ["open", "handle 1", "close", "acknowledge", "open", "handle 2", "close", "acknowledge"]


@COLOURS
@pytest.mark.parametrize(
    ("error", "call"),
    [(ValueError("bad"), "requeue"), (RejectMessageAction("no"), "reject"), (DeferMessageAction(9), "requeue")],
    ids=["error", "reject", "defer"],
)
def test_it_is_closed_with_the_handlers_error_which_it_cannot_make_a_success(
    kind: Kind, awaits: bool, error: Exception, call: str
) -> None:
    def fail(_: object) -> None:
        raise error

    opened, broker = Opened(awaits=awaits), Broker()
    with consuming(kind, fail, opened, broker) as dispatcher:
        dispatcher.post(Order(1))
        eventually(lambda: broker.named(call))

    assert opened.events == ["open", "failed", "close"]
    assert opened.errors == [error]
    assert broker.named("acknowledge") == []


@COLOURS
@pytest.mark.parametrize("fails", ["open", "close"])
def test_what_cannot_be_opened_or_closed_fails_the_message(kind: Kind, awaits: bool, fails: str) -> None:
    opened = Opened(awaits=awaits, fails=fails)
    harness = PumpHarness(kind.handler_class(lambda _: None), factory=opened, max_attempts=2, **kind.options)
    with harness:
        harness.post(Order(1))
        harness.run()

        assert harness.calls == ["requeue", "reject"]
        assert str(harness.dead_letters[0].error) == f"{fails} failed"


@COLOURS
def test_an_error_that_it_raises_in_its_turn_takes_the_place_of_the_handlers(kind: Kind, awaits: bool) -> None:
    def fail(_: object) -> None:
        raise ValueError("a constraint")

    opened = Opened(awaits=awaits, turns_into=RejectMessageAction("known already"))
    with PumpHarness(kind.handler_class(fail), factory=opened, **kind.options) as harness:
        harness.post(Order(1))
        harness.run()

        assert [each.reason for each in harness.dead_letters] == ["known already"]


@COLOURS
def test_a_decision_stands_whatever_closing_raises(kind: Kind, awaits: bool, caplog: pytest.LogCaptureFixture) -> None:
    def decide(_: object) -> None:
        raise RejectMessageAction("sold out")

    caplog.set_level(logging.ERROR)
    opened = Opened(awaits=awaits, turns_into=OSError("rollback failed"))
    with PumpHarness(kind.handler_class(decide), factory=opened, **kind.options) as harness:
        harness.post(Order(1))
        harness.run()

        assert [each.reason for each in harness.dead_letters] == ["sold out"]
    assert "what its factory opened could not be closed: rollback failed" in caplog.text


@pytest.mark.parametrize("kind", [PROACTOR, CONCURRENT], ids=["proactor", "concurrent"])
@pytest.mark.parametrize("awaits", [False, True], ids=["blocking", "awaiting"])
def test_the_end_by_a_stop_stands_too(kind: Kind, awaits: bool) -> None:
    opened = Opened(awaits=awaits, turns_into=OSError("rollback failed"))
    broker = Broker()
    with consuming(kind, lambda _: asyncio.sleep(3600), opened, broker) as dispatcher:
        dispatcher.post(Order(1))
        eventually(lambda: opened.events == ["open"])
        eventually(lambda: dispatcher._groups["orders"].unfinished[0].waits_for.startswith("its handler"))
        dispatcher.stop(grace=0)

    assert isinstance(opened.errors[0], asyncio.CancelledError)
    assert [(each.attempts, each.unexplained) for each in broker.bus.messages("orders")] == [(0, 0)]
    assert broker.named("requeue", "reject", "acknowledge") == []


def test_retries_within_one_delivery_share_it(kind: Kind) -> None:
    runs: list[int] = []

    def fail_once(_: object) -> None:
        runs.append(1)
        if len(runs) == 1:
            raise ValueError("once")

    opened = Opened(awaits=kind.awaits)
    handler = kind.handler_class(fail_once)
    Retry(3)(handler.handle)  # type: ignore[attr-defined] # the class has been made by type()
    with PumpHarness(handler, factory=opened, **kind.options) as harness:
        harness.post(Order(1))
        harness.run()

    assert len(runs) == 2
    assert opened.events == ["open", "close"]


def test_each_handler_of_an_event_has_its_own(kind: Kind) -> None:
    opened = Opened(awaits=kind.awaits)
    handlers = [kind.handler_class(lambda _: opened.events.append("handled"), takes=Placed) for _ in range(2)]
    with PumpHarness(*handlers, factory=opened, **kind.options) as harness:
        harness.post(Placed(1))
        harness.run()

    assert opened.events == ["open", "handled", "close"] * 2


def test_what_is_sent_in_the_process_has_its_own_too(kind: Kind) -> None:
    opened = Opened(awaits=kind.awaits)
    dispatcher = Dispatcher("memory://", handlers=[kind.handler_class(lambda _: None)], factory=opened)
    if kind.awaits:
        asyncio.run(dispatcher.processor.send_async(Order(1)))
    else:
        dispatcher.processor.send(Order(1))

    assert opened.events == ["open", "close"]


def test_a_handler_that_is_a_context_manager_is_a_handler_and_is_not_entered(kind: Kind) -> None:
    entered: list[object] = []

    class Handling(kind.handler_class(lambda _: None)):  # type: ignore[misc] # it is made by type()
        def __enter__(self) -> None:
            entered.append(self)

        def __exit__(self, *_: object) -> None: ...

    with PumpHarness(Handling, factory=lambda cls: cls(), **kind.options) as harness:
        harness.post(Order(1))
        harness.run()

        assert harness.acknowledged == [Order(1)]
    assert entered == []


@pytest.mark.parametrize(
    ("factory", "text"),
    [
        (lambda _: None, "the factory made NoneType of it, which has no handle method"),
        (lambda _: nullcontext(3), "the factory made int of it"),
    ],
)
def test_a_factory_that_makes_no_handler_stops_the_pump(
    kind: Kind, factory: Callable[[type], object], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with PumpHarness(kind.handler_class(lambda _: None), factory=factory, **kind.options) as harness:
        harness.post(Order(1))
        harness.run(seconds=1)

        assert harness.stopped is Stopped.CONFIGURATION_ERROR
        assert any(text in str(each.exc_info) for each in harness.logs)


def test_an_async_context_manager_for_a_blocking_handler_stops_the_pump() -> None:
    with PumpHarness(REACTOR.handler_class(lambda _: None), factory=Opened(awaits=True)) as harness:
        harness.post(Order(1))
        harness.run(seconds=1)

        assert harness.stopped is Stopped.CONFIGURATION_ERROR
        assert any("its handle method is `def`" in str(each.exc_info) for each in harness.logs)


@asynccontextmanager
async def opens_async(cls: type) -> AsyncIterator[object]:
    yield cls()


def generates(cls: type) -> Iterator[object]:
    yield cls()


async def generates_async(cls: type) -> AsyncIterator[object]:
    yield cls()


async def makes_async(cls: type) -> object:
    return cls()


def test_an_async_context_manager_for_a_blocking_handler_is_seen_at_the_start_where_it_can_be() -> None:
    (problem,) = consuming(REACTOR, lambda _: None, opens_async, Broker()).check()

    assert problem.level == "error"
    assert "(opens_async) is an async context manager, and its handle method is `def`" in problem.text
    assert consuming(PROACTOR, lambda _: None, opens_async, Broker()).check() == []


@pytest.mark.parametrize(
    ("factory", "text"),
    [
        (generates, "factory is a generator: put @contextlib.contextmanager on generates"),
        (generates_async, "factory is an async generator: put @contextlib.asynccontextmanager on generates_async"),
        (makes_async, "factory is `async def`, and is called, not awaited: make makes_async an async context manager"),
    ],
)
def test_a_factory_that_would_make_no_handler_is_refused(factory: Callable[[type], object], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        consuming(PROACTOR, lambda _: None, factory, Broker())


# -- handlers that settle by themselves


class Kept:
    """A body that keeps its deliveries."""

    def __init__(self) -> None:
        self.deliveries: list[Any] = []

    def __call__(self, delivery: Any) -> None:
        self.deliveries.append(delivery)

    def settle(self, kind: Kind, dispatcher: Dispatcher) -> None:
        (delivery,) = self.deliveries
        if kind.awaits:
            assert dispatcher._loop_thread is not None
            dispatcher._loop_thread.run(delivery.ack())
        else:
            delivery.ack()


def explicit(kind: Kind, body: Callable[[Any], object]) -> type:
    takes: Any = AsyncDelivery[Order] if kind.awaits else Delivery[Order]
    return kind.handler_class(body, takes=takes)


def consuming_explicit(kind: Kind, body: Callable[[Any], object], opened: Opened, **options: Any) -> Dispatcher:
    return Dispatcher(
        Broker(),
        handlers=[explicit(kind, body)],
        subscriptions=[Subscription(Order, topic="orders", **{"grace": 0.05, **kind.options, **options})],
        publications=[Publication(Order, topic="orders")],
        factory=opened,
    )


def test_it_stays_open_until_the_handler_has_settled_its_message(kind: Kind) -> None:
    opened, body = Opened(awaits=kind.awaits), Kept()
    with consuming_explicit(kind, body, opened) as dispatcher:
        dispatcher.post(Order(1))
        eventually(lambda: body.deliveries and body.deliveries[0].message.interrupt is None)
        eventually(lambda: body.deliveries[0].message.release)
        assert opened.events == ["open"]

        body.settle(kind, dispatcher)
        eventually(lambda: opened.events == ["open", "close"])


def test_it_is_closed_at_once_where_the_handler_settles_before_it_returns(kind: Kind) -> None:
    opened = Opened(awaits=kind.awaits)
    with consuming_explicit(kind, lambda delivery: delivery.ack(), opened) as dispatcher:
        dispatcher.post(Order(1))
        eventually(lambda: opened.events == ["open", "close"])


def test_it_is_closed_when_a_message_is_lost_that_was_never_settled(kind: Kind) -> None:
    opened, body = Opened(awaits=kind.awaits), Kept()
    with consuming_explicit(kind, body, opened, lease=0.1, renew_lease=False) as dispatcher:
        dispatcher.post(Order(1))
        eventually(lambda: opened.events[:2] == ["open", "close"])


def test_it_is_closed_at_the_end_for_a_message_that_was_never_settled(kind: Kind) -> None:
    opened, body = Opened(awaits=kind.awaits), Kept()
    with consuming_explicit(kind, body, opened) as dispatcher:
        dispatcher.post(Order(1))
        eventually(lambda: body.deliveries and body.deliveries[0].message.release)

    eventually(lambda: opened.events == ["open", "close"])


def test_it_is_closed_where_an_attribute_answers_for_the_handler(kind: Kind) -> None:
    def fail(_: object) -> None:
        raise ValueError("bad")

    opened = Opened(awaits=kind.awaits)
    answer = kind.handler(lambda _: None)
    with consuming_explicit(kind, fail, opened, attributes=[Fallback(answer)]) as dispatcher:
        dispatcher.post(Order(1))
        eventually(lambda: opened.events == ["open", "close"])
        eventually(lambda: not dispatcher.transport.bus.locked("orders"))  # type: ignore[attr-defined] # the Broker's


def test_two_that_settle_at_once_close_it_once() -> None:
    opened, body = Opened(awaits=False), Kept()
    with consuming_explicit(REACTOR, body, opened) as dispatcher:
        dispatcher.post(Order(1))
        eventually(lambda: body.deliveries and body.deliveries[0].message.release)
        release = body.deliveries[0].message.release
        threads = [threading.Thread(target=release) for _ in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(LIMIT)

        assert opened.events == ["open", "close"]
        body.settle(REACTOR, dispatcher)
    assert opened.events == ["open", "close"]


def test_a_dispatcher_checks_nothing_by_calling_its_factory() -> None:
    opened = Opened(awaits=True)
    dispatcher = consuming(PROACTOR, lambda _: None, opened, Broker())

    assert dispatcher.check() == []
    assert opened.events == []
    with pytest.raises(ConfigurationError, match="factory must be a function"):
        Dispatcher("memory://", factory=3)  # type: ignore[arg-type] # what is tested
