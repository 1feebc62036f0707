"""A stop: intake ends first, what is in hand goes on within the grace, and the rest goes back as if never received."""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from types import FunctionType
from typing import Any, cast

import pytest

from pump.attribute import Attribute
from pump.clock import SystemClock
from pump.context import current_context
from pump.errors import DontAckAction, RejectMessageAction
from pump.handlers import CircuitBreaker, DontAckOnError, Fallback, RejectMessageOnError, Retry
from pump.handling.registry import RequestHandler
from pump.program.dispatcher import Dispatcher
from pump.program.performer import Activity
from pump.subscription import Publication, Subscription
from support.pumps import CONCURRENT, PROACTOR, REACTOR, Broker, Kind, Order, Outcomes, Placed, consuming, consuming_by
from support.waiting import LIMIT, eventually, eventually_async

SHORT = 0.05
"""A short grace, in seconds."""

AWAITING = pytest.mark.parametrize("kind", [PROACTOR, CONCURRENT], ids=["proactor", "concurrent"])


def left_behind(broker: Broker) -> list[tuple[str, int, int]]:
    """Ids of the messages that can be received, with their attempts and unexplained deliveries so far."""
    return [(each.id, each.attempts, each.unexplained) for each in broker.bus.messages("orders")]


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """A gate that handlers wait for; opened when the test ends, so that no handler is left behind."""
    gate = threading.Event()
    yield gate
    gate.set()


@AWAITING
@pytest.mark.requirement("E-21")
@pytest.mark.parametrize(
    "attributes",
    [(), (DontAckOnError(), RejectMessageOnError()), (Fallback(lambda *_: None), Retry(3))],
    ids=["bare", "on error", "retried"],
)
def test_an_async_handler_that_outlasts_the_grace_is_cancelled_and_its_message_handed_back(
    kind: Kind, attributes: tuple[Any, ...]
) -> None:
    ended: list[str] = []

    async def long() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    broker = Broker()
    body = Outcomes(None)
    with consuming_by(kind, kind.handler(lambda order: body(order) or long(), *attributes), broker) as dispatcher:
        dispatcher.post(Order(1), id="order-1")
        eventually(lambda: body.runs == 1)
        began = time.monotonic()
        dispatcher.stop(grace=SHORT)

    assert time.monotonic() - began < LIMIT
    assert ended == ["cancelled"]
    assert left_behind(broker) == [("order-1", 0, 0)]
    assert broker.named("acknowledge", "nack", "requeue", "reject") == []
    assert [state.unacceptable for state in dispatcher.states] == [0]


@AWAITING
@pytest.mark.requirement("E-21")
def test_it_comes_again_with_its_whole_budget(kind: Kind) -> None:
    async def long() -> None:
        await asyncio.sleep(3600)

    broker = Broker()
    body = Outcomes(None)
    dispatcher = consuming_by(
        kind, kind.handler(lambda order: body(order) or (long() if body.runs <= 5 else None)), broker, max_attempts=1
    )
    for restart in range(1, 7):
        with dispatcher:
            if restart == 1:
                dispatcher.post(Order(1))
            eventually(lambda runs=restart: body.runs == runs)  # type: ignore[misc]
            if restart == 6:
                eventually(lambda: broker.named("acknowledge"))
            dispatcher.stop(grace=0)

    assert broker.bus.pending("orders.dead") == 0
    assert broker.bus.pending("orders") == 0


def test_a_handler_that_ends_within_the_grace_is_settled_and_not_disturbed(kind: Kind, gate: threading.Event) -> None:
    cancelled: list[bool] = []

    class Blocking(RequestHandler[Order]):
        def handle(self, _: Order, /) -> None:
            begun.set()
            gate.wait(LIMIT)
            cancelled.append(self.context.cancelled.is_set())

    class Awaiting(RequestHandler[Order]):
        async def handle(self, _: Order, /) -> None:
            begun.set()
            await asyncio.to_thread(gate.wait, LIMIT)
            cancelled.append(self.context.cancelled.is_set())

    begun = threading.Event()
    broker = Broker()
    with consuming_by(kind, Awaiting if kind.awaits else Blocking, broker) as dispatcher:
        dispatcher.post(Order(1))
        assert begun.wait(LIMIT)
        stopping = threading.Thread(target=dispatcher.stop)
        stopping.start()
        eventually(lambda: dispatcher.states[0].state is Activity.STOPPING)
        gate.set()
        stopping.join(LIMIT)

    assert cancelled == [False]
    assert broker.named("acknowledge") == ["acknowledge"]
    assert broker.bus.pending("orders") == 0


def test_intake_ends_first_and_what_waits_goes_back_in_its_order_and_uncounted(
    kind: Kind, gate: threading.Event
) -> None:
    begun: list[int] = []

    def wait(order: Order) -> None:
        begun.append(order.number)
        if order.number >= 20:
            gate.wait(LIMIT)

    async def wait_async(order: Order) -> None:
        await asyncio.to_thread(wait, order)

    in_hand = kind.options.get("in_flight", 1)
    broker = Broker()
    with consuming_by(kind, kind.handler(wait_async if kind.awaits else wait), broker) as dispatcher:
        dispatcher.pause("orders")
        for number in range(1, 60):
            dispatcher.post(Order(number), id=f"order-{number}")
        dispatcher.resume("orders")
        eventually(lambda: len(begun) == 19 + in_hand)
        stopping = threading.Thread(target=dispatcher.stop)
        stopping.start()
        eventually(lambda: dispatcher.states[0].state is Activity.STOPPING)
        gate.set()
        stopping.join(LIMIT)

    assert sorted(begun) == list(range(1, 20 + in_hand))
    assert len(broker.named("acknowledge")) == len(begun)
    assert left_behind(broker) == [(f"order-{number}", 0, 0) for number in range(20 + in_hand, 60)]


def test_a_blocking_handler_that_outlasts_the_grace_is_told_and_its_message_is_not_settled(
    gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    contexts: list[Any] = []

    class Handling(RequestHandler[Order]):
        def handle(self, _: Order, /) -> None:
            contexts.append(self.context)
            gate.wait(LIMIT)

    broker = Broker()
    with consuming_by(REACTOR, Handling, broker) as dispatcher:
        dispatcher.post(Order(1))
        eventually(lambda: contexts)
        dispatcher.stop(grace=SHORT)
        told = contexts[0].cancelled.is_set()
        locked, calls = broker.bus.locked("orders"), broker.named("acknowledge", "nack", "hand_back", "close")
        gate.set()
        eventually(lambda: dispatcher.states[0].state is Activity.STOPPED)

    assert told
    assert (locked, calls) == (1, [])
    assert [each.levelno for each in caplog.records if "its handler, which still runs" in each.getMessage()] == [
        logging.ERROR
    ]
    assert broker.named("acknowledge") == ["acknowledge"], "it ended after all, in this process"


def waits_behind(kind: Kind, gate: threading.Event, begun: list[int]) -> Callable[[Order], object]:
    """The body of a handler that stands still at 15, which no cancellation ends, when many are buffered behind."""

    def wait(order: Order) -> None:
        begun.append(order.number)
        if order.number == 15:
            gate.wait(LIMIT)

    async def wait_async(order: Order) -> None:
        waiting = asyncio.ensure_future(asyncio.to_thread(wait, order))
        while not waiting.done():
            with suppress(asyncio.CancelledError):
                await asyncio.shield(waiting)

    return wait_async if kind.awaits else wait


def fill_up(dispatcher: Dispatcher, broker: Broker, begun: list[int]) -> None:
    """Post many orders of one key, so that 15 stands still while others are in the buffer."""
    dispatcher.pause("orders")
    for number in range(1, 40):
        dispatcher.post(Order(number), id=f"order-{number}", key="k")
    dispatcher.resume("orders")
    eventually(lambda: 15 in begun)
    eventually(lambda: broker.bus.locked("orders") > 5)


@pytest.mark.parametrize("how", ["stop", "pause", "scale", "restart"])
def test_what_nobody_has_begun_goes_back_at_once_though_a_handler_still_runs(
    kind: Kind, how: str, gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    begun: list[int] = []
    broker = Broker()
    caplog.set_level(logging.INFO, "pump")
    handler = kind.handler(waits_behind(kind, gate, begun))
    with consuming_by(kind, handler, broker, grace=SHORT) as dispatcher:
        fill_up(dispatcher, broker, begun)
        stopping = threading.Thread(target=dispatcher.stop)
        if how == "stop":
            stopping.start()
        elif how == "restart":
            dispatcher.pause("orders")
            dispatcher.restart("orders")
        elif how == "scale":
            dispatcher.scale("orders", 0)
        else:
            dispatcher.pause("orders")
        eventually(lambda: broker.bus.locked("orders") == 1)

        assert left_behind(broker) == [(f"order-{number}", 0, 0) for number in range(16, 40)]
        assert begun == list(range(1, 16))
        eventually(lambda: "messages that no handler has begun go back" in caplog.text)
        if how == "stop":
            stopping.join(LIMIT)
            if not kind.awaits:
                assert (
                    "messages that are not settled (1 in hand) come again when this process ends, or at most"
                    in caplog.text
                )
        gate.set()


def test_in_order_what_waits_behind_a_message_in_hand_stays_behind_it(kind: Kind, gate: threading.Event) -> None:
    begun: list[int] = []
    broker = Broker()
    handler = kind.handler(waits_behind(kind, gate, begun))
    with consuming_by(kind, handler, broker, ordered=True) as dispatcher:
        fill_up(dispatcher, broker, begun)
        dispatcher.pause("orders")
        gate.set()
        eventually(lambda: broker.bus.locked("orders") == 0)

        assert left_behind(broker) == [(f"order-{number}", 0, 0) for number in range(16, 40)]
        assert len(broker.named("hand_back")) <= 2


def test_where_only_everything_can_go_back_what_waits_goes_when_the_handler_has_ended(
    kind: Kind, gate: threading.Event
) -> None:
    begun: list[int] = []
    broker = Broker(hands_back="all")
    handler = kind.handler(waits_behind(kind, gate, begun))
    with consuming_by(kind, handler, broker) as dispatcher:
        fill_up(dispatcher, broker, begun)
        broker.calls.clear()
        dispatcher.pause("orders")
        gate.set()
        eventually(lambda: broker.bus.locked("orders") == 0)

    assert broker.named("acknowledge", "hand_back") == ["acknowledge", "hand_back"]


def test_a_stop_ends_every_wait_at_once(kind: Kind) -> None:
    body = Outcomes(DontAckAction())
    broker = Broker()
    with consuming_by(kind, kind.handler(body), broker, dont_ack_delay=3600) as dispatcher:
        dispatcher.post(Order(1))
        eventually(lambda: body.runs == 1)
        began = time.monotonic()
        dispatcher.stop()
        took = time.monotonic() - began

    assert took < 1
    assert broker.bus.pending("orders") == 1


@pytest.mark.parametrize("state", ["idle", "disconnected"])
def test_a_stop_is_quick_when_nothing_is_in_hand(kind: Kind, state: str) -> None:
    broker = Broker()
    dispatcher = consuming_by(
        kind, kind.handler(Outcomes(None)), broker, receive_timeout=3600, failure_backoff=(3600, 3600)
    )
    if state == "disconnected":
        broker.break_down("receive", OSError("away"))
    with dispatcher:
        eventually(lambda: "receive" in broker.named("receive"))
        began = time.monotonic()
        dispatcher.stop()
        took = time.monotonic() - began

    assert took < 1


@AWAITING
def test_cancelling_the_callers_task_stops_the_pumps_and_hands_back(kind: Kind) -> None:
    broker = Broker()
    body = Outcomes(None)

    async def consume() -> None:
        async with consuming_by(
            kind, kind.handler(lambda order: body(order) or asyncio.sleep(3600)), broker, grace=0.05
        ):
            await asyncio.sleep(3600)

    async def main() -> None:
        task = asyncio.create_task(consume())
        await eventually_async(lambda: "orders" in broker.bus.channels())
        await broker_post(broker)
        await eventually_async(lambda: body.runs == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())

    assert body.runs == 1
    assert left_behind(broker)[0][1:] == (0, 0)


async def broker_post(broker: Broker) -> None:
    async with Dispatcher(broker, publications=[Publication(Order, topic="orders")]).publishing() as publisher:
        await publisher.post_async(Order(1))


@AWAITING
def test_a_handler_that_swallows_its_cancellation_is_judged_by_how_it_ends(kind: Kind) -> None:
    async def stubborn() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return

    broker = Broker()
    body = Outcomes(None)
    with consuming_by(kind, kind.handler(lambda order: body(order) or stubborn()), broker) as dispatcher:
        dispatcher.post(Order(1))
        eventually(lambda: body.runs == 1)
        dispatcher.stop(grace=0)

    assert broker.named("acknowledge") == ["acknowledge"]
    assert broker.bus.pending("orders") == 0


AROUND = pytest.mark.parametrize(
    "attributes",
    [(), (RejectMessageOnError(),), (DontAckOnError(), Fallback(lambda *_: None)), (CircuitBreaker(1), Retry(3))],
    ids=["bare", "rejecting", "falling back", "retried"],
)


def marked(handle: Callable[..., object], attributes: tuple[Attribute, ...]) -> Callable[..., object]:
    """The function of a handle method, anew, with these attributes."""
    function = cast("FunctionType", handle)
    fresh = FunctionType(function.__code__, function.__globals__, function.__name__, None, function.__closure__)
    fresh.__annotations__ = {"_": Order}
    for attribute in reversed(attributes):
        attribute(fresh)
    return fresh


class Told(RequestHandler[Order]):
    """A blocking handler that ends by an error when it is asked to end."""

    runs = 0

    def handle(self, _: Order, /) -> None:
        Told.runs += 1
        SystemClock().wait(self.context.cancelled, LIMIT)
        raise InterruptedError("asked to end")


class CleansUp(RequestHandler[Order]):
    """An async handler whose clean-up turns the cancellation into an error."""

    runs = 0

    async def handle(self, _: Order, /) -> None:
        CleansUp.runs += 1
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            raise RuntimeError("the clean-up failed") from None


@AROUND
def test_an_error_of_a_handler_that_the_stop_ended_spends_no_attempt(
    kind: Kind, attributes: tuple[Any, ...], caplog: pytest.LogCaptureFixture
) -> None:
    ending = CleansUp if kind.awaits else Told
    broker = Broker()
    handler = type(ending.__name__, (ending,), {"handle": marked(ending.handle, attributes)})
    dispatcher = consuming_by(kind, handler, broker, max_attempts=2, unacceptable_limit=1)
    ending.runs = 0
    for restart in range(1, 5):
        with dispatcher:
            if restart == 1:
                dispatcher.post(Order(1), id="order-1")
            eventually(lambda runs=restart: ending.runs == runs)  # type: ignore[misc]
            dispatcher.stop(grace=SHORT)
        assert left_behind(broker) == [("order-1", 0, 0)]
        assert dispatcher.states[0].unacceptable == 0

    assert broker.named("nack", "requeue", "reject", "acknowledge") == []
    assert broker.bus.pending("orders.dead") == 0
    assert "Handler ended by the stop" in caplog.text


@pytest.mark.parametrize(
    "outer",
    [(), (RejectMessageOnError(),), (Fallback(lambda *_: None),)],
    ids=["bare", "rejecting", "falling back"],
)
def test_a_stop_while_a_retry_waits_spends_no_attempt(kind: Kind, outer: tuple[Any, ...]) -> None:
    broker = Broker()
    body = Outcomes(ConnectionError("down for a minute"))
    handler = kind.handler(body, *outer, Retry(3, first=600, longest=600))
    dispatcher = consuming_by(kind, handler, broker, max_attempts=2)
    for restart in range(1, 5):
        with dispatcher:
            if restart == 1:
                dispatcher.post(Order(1), id="order-1")
            eventually(lambda runs=restart: body.runs == runs)  # type: ignore[misc]
        assert left_behind(broker) == [("order-1", 0, 0)]

    assert broker.named("nack", "requeue", "reject", "acknowledge") == []


def test_a_handler_that_settles_by_itself_and_is_ended_before_it_has_spends_no_attempt(kind: Kind) -> None:
    def told(_: object) -> None:
        begun.set()
        SystemClock().wait(current_context().cancelled, LIMIT)
        raise InterruptedError("asked to end")

    async def cleans_up(_: object) -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            raise RuntimeError("the clean-up failed") from None

    begun = threading.Event()
    broker = Broker()
    with consuming_by(kind, kind.explicit(cleans_up if kind.awaits else told), broker) as dispatcher:
        dispatcher.post(Order(1), id="order-1")
        assert begun.wait(LIMIT)
        dispatcher.stop(grace=SHORT)

    assert left_behind(broker) == [("order-1", 0, 0)]
    assert broker.named("nack", "requeue", "reject", "acknowledge") == []


def test_a_decision_of_a_handler_that_the_stop_ended_stands(kind: Kind) -> None:
    class Blocking(RequestHandler[Order]):
        def handle(self, _: Order, /) -> None:
            begun.set()
            SystemClock().wait(self.context.cancelled, LIMIT)
            raise RejectMessageAction("sold out")

    class Awaiting(RequestHandler[Order]):
        async def handle(self, _: Order, /) -> None:
            begun.set()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                raise RejectMessageAction("sold out") from None

    begun = threading.Event()
    broker = Broker()
    with consuming_by(kind, Awaiting if kind.awaits else Blocking, broker) as dispatcher:
        dispatcher.post(Order(1))
        assert begun.wait(LIMIT)
        dispatcher.stop(grace=SHORT)

    assert broker.named("reject", "hand_back") == ["reject"]


def test_an_error_within_the_grace_is_an_attempt_like_any(kind: Kind, gate: threading.Event) -> None:
    begun = threading.Event()

    def fail(_: Order) -> None:
        begun.set()
        gate.wait(LIMIT)
        raise ValueError("bad")

    async def fail_async(order: Order) -> None:
        await asyncio.to_thread(fail, order)

    broker = Broker()
    with consuming_by(kind, kind.handler(fail_async if kind.awaits else fail), broker) as dispatcher:
        dispatcher.post(Order(1))
        assert begun.wait(LIMIT)
        stopping = threading.Thread(target=dispatcher.stop)
        stopping.start()
        eventually(lambda: dispatcher.states[0].state is Activity.STOPPING)
        gate.set()
        stopping.join(LIMIT)

    assert broker.named("requeue", "hand_back") == ["requeue"]


def test_of_several_handlers_of_an_event_none_begins_after_the_grace(kind: Kind) -> None:
    runs: list[str] = []

    def first(_: Placed) -> None:
        runs.append("first")
        SystemClock().wait(current_context().cancelled, LIMIT)

    async def first_async(_: Placed) -> None:
        runs.append("first")
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)

    handlers = [
        kind.handler(first_async if kind.awaits else first, takes=Placed),
        kind.handler(lambda _: runs.append("second"), takes=Placed),
    ]
    broker = Broker()
    dispatcher = Dispatcher(
        broker,
        handlers=handlers,
        subscriptions=[Subscription(Placed, topic="orders", channel="orders", **kind.options)],
        publications=[Publication(Placed, topic="orders")],
    )
    with dispatcher:
        dispatcher.post(Placed(1), id="placed-1")
        eventually(lambda: runs)
        dispatcher.stop(grace=SHORT)

    assert runs == ["first"]
    assert left_behind(broker) == [("placed-1", 0, 0)]


@AWAITING
def test_a_lost_lease_cancels_the_handler_and_the_pump_goes_on(kind: Kind) -> None:
    ended: list[str] = []

    async def long() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("cancelled")

    broker = Broker()
    body = Outcomes(None)
    handler = kind.handler(lambda order: body(order) or (long() if body.runs == 1 else None))
    broker.break_down("extend", OSError("away"))
    with consuming_by(kind, handler, broker, lease=0.1) as dispatcher:
        dispatcher.post(Order(1))
        eventually(lambda: len(broker.named("acknowledge")) == 1)

        assert ended == ["cancelled"]
        assert body.runs == 2
        assert dispatcher.states[0].restarts == 0
        assert dispatcher.states[0].unacceptable == 0


def test_every_stop_is_the_end_of_all_threads(kind: Kind) -> None:
    before = set(threading.enumerate())
    body = Outcomes(None)
    with consuming(kind, body, performers=4) as dispatcher:
        dispatcher.post_many([Order(number) for number in range(20)])
        eventually(lambda: body.runs == 20)

    eventually(lambda: {each.name for each in set(threading.enumerate()) - before} <= {"pump-alarms"})


async def _cancels_its_task_and_waits() -> None:
    _cancel_this_task()
    await asyncio.sleep(3600)


async def _cancels_its_task_and_returns() -> None:
    _cancel_this_task()


async def _cancels_its_task_and_thinks_better_of_it() -> None:
    _cancel_this_task()
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(3600)


def _cancel_this_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


@AWAITING
@pytest.mark.parametrize(
    ("odd", "calls"),
    [
        (_cancels_its_task_and_waits, ["requeue", "acknowledge", "acknowledge"]),
        (_cancels_its_task_and_returns, ["acknowledge", "acknowledge"]),
        (_cancels_its_task_and_thinks_better_of_it, ["acknowledge", "acknowledge"]),
    ],
)
def test_a_handler_that_cancels_the_task_it_runs_in_stops_nothing(
    kind: Kind, odd: Callable[[], Awaitable[None]], calls: list[str]
) -> None:
    broker = Broker()
    body = Outcomes(None)
    handler = kind.handler(lambda order: body(order) or (odd() if body.runs == 1 else asyncio.sleep(0)))
    with consuming_by(kind, handler, broker, requeue_backoff=(0.01, 0.01)) as dispatcher:
        dispatcher.post_many([Order(1), Order(2)])
        eventually(lambda: len(broker.named("acknowledge")) == 2)

        assert sorted(broker.named("acknowledge", "requeue"), reverse=True) == sorted(calls, reverse=True)
        assert dispatcher.states[0].restarts == 0
        assert dispatcher.states[0].state is Activity.RUNNING
