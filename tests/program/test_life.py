"""A dispatcher's life: what starting, stopping and controlling it mean in each of its states, also in wrong moments."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from pump.context import current_context
from pump.errors import ConfigurationError, PublishError
from pump.program.dispatcher import Dispatcher
from pump.program.life import StopAsked
from pump.program.performer import Activity
from pump.program.performer_group import PerformerGroup
from pump.subscription import Publication, Subscription
from support.pumps import CONCURRENT, PROACTOR, REACTOR, Broker, Kind, Order, Outcomes, Placed, consuming, consuming_by
from support.waiting import LIMIT, eventually, eventually_async

ASYNC = pytest.mark.parametrize("kind", [PROACTOR, CONCURRENT], ids=["proactor", "concurrent"])
CONTROLS: dict[str, Callable[[Dispatcher], None]] = {
    "scale": lambda each: each.scale("orders", 2),
    "restart": lambda each: each.restart("orders"),
    "pause": lambda each: each.pause("orders"),
    "resume": lambda each: each.resume("orders"),
}


def threads_of_pumps() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("pump-") and each.name != "pump-alarms"]


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """A gate that handlers wait for; opened when the test ends, so that no handler is left behind."""
    gate = threading.Event()
    yield gate
    gate.set()


# -- starting and stopping


def test_start_and_stop_do_what_a_with_does(kind: Kind) -> None:
    body = Outcomes(None)
    dispatcher = consuming(kind, body)
    for runs in (1, 2):
        assert dispatcher.start() is dispatcher
        dispatcher.post(Order(runs))
        eventually(lambda runs=runs: body.runs == runs)  # type: ignore[misc]
        dispatcher.stop()

    eventually(lambda: threads_of_pumps() == [])
    with pytest.raises(ConfigurationError, match="not running"):
        dispatcher.post(Order(3))


def test_so_do_their_awaited_twins(kind: Kind) -> None:
    async def main() -> None:
        await dispatcher.start_async()
        await dispatcher.post_async(Order(1))
        await eventually_async(lambda: body.runs == 1)
        await dispatcher.stop_async()

    body = Outcomes(None)
    dispatcher = consuming(kind, body)
    asyncio.run(main())

    eventually(lambda: threads_of_pumps() == [])


@pytest.mark.parametrize("control", CONTROLS)
def test_a_stopped_dispatcher_controls_nothing_and_nothing_begins(kind: Kind, control: str) -> None:
    body = Outcomes(None)
    broker = Broker()
    dispatcher = consuming(kind, body, broker)
    with dispatcher:
        pass
    with pytest.raises(ConfigurationError, match="the dispatcher is not running"):
        CONTROLS[control](dispatcher)
    with dispatcher.publishing():
        dispatcher.post(Order(1))
        with pytest.raises(ConfigurationError, match="the dispatcher only publishes"):
            CONTROLS[control](dispatcher)

    assert body.runs == 0
    eventually(lambda: threads_of_pumps() == [])


def test_scaling_while_it_is_stopped_leaves_no_performer_behind(kind: Kind) -> None:
    for _ in range(60):
        dispatcher = consuming(kind, Outcomes(None))
        refused: list[Exception] = []

        def scale(dispatcher: Dispatcher = dispatcher, refused: list[Exception] = refused) -> None:
            for performers in (2, 3, 1, 4, 2):
                try:
                    dispatcher.scale("orders", performers)
                except ConfigurationError as error:
                    refused.append(error)

        with dispatcher:
            scaling = threading.Thread(target=scale)
            scaling.start()
        scaling.join(LIMIT)
        assert all(state.state is Activity.STOPPED for state in dispatcher.states)

    eventually(lambda: threads_of_pumps() == [])


def test_two_stops_at_once_are_one_and_both_wait_for_its_end(kind: Kind, gate: threading.Event) -> None:
    begun, ended = threading.Event(), list[bool]()

    def wait(_: Order) -> None:
        begun.set()
        gate.wait(LIMIT)

    async def wait_async(order: Order) -> None:
        await asyncio.to_thread(wait, order)

    def stop() -> None:
        dispatcher.stop()
        ended.append(gate.is_set())

    dispatcher = consuming(kind, wait_async if kind.awaits else wait)
    dispatcher.start()
    dispatcher.post(Order(1))
    assert begun.wait(LIMIT)
    stops = [threading.Thread(target=stop) for _ in range(3)]
    for each in stops:
        each.start()
    eventually(lambda: dispatcher.states[0].state is Activity.STOPPING)
    gate.set()
    for each in stops:
        each.join(LIMIT)

    assert ended == [True] * 3


def test_a_start_that_fails_half_way_leaves_nothing_that_consumes(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    start = PerformerGroup.start

    def fail(self: PerformerGroup) -> None:
        if self.plan.rules.channel == "placed":
            raise OSError("no more threads")
        start(self)

    broker, body = Broker(), Outcomes(None)
    dispatcher = Dispatcher(
        broker,
        handlers=[kind.handler(body), kind.handler(body, takes=Placed)],
        subscriptions=[
            Subscription(Order, topic="orders", **kind.options),
            Subscription(Placed, channel="placed", **kind.options),
        ],
        publications=[Publication(Order, topic="orders")],
    )
    monkeypatch.setattr(PerformerGroup, "start", fail)
    with pytest.raises(OSError, match="no more threads"):
        dispatcher.start()
    with pytest.raises(OSError, match="no more threads"):
        asyncio.run(dispatcher.start_async())
    monkeypatch.undo()
    with dispatcher.publishing():
        dispatcher.post(Order(1))

    eventually(lambda: threads_of_pumps() == [])
    assert body.runs == 0
    with dispatcher:
        eventually(lambda: body.runs == 1)


def test_a_stop_while_it_starts_ends_the_start(kind: Kind) -> None:
    preparing, go_on = threading.Event(), threading.Event()
    broker = Broker()

    def prepare(name: str) -> None:
        if name == "prepare":
            preparing.set()
            go_on.wait(LIMIT)

    def start() -> None:
        with pytest.raises(StopAsked, match="while it was starting"):
            dispatcher.start()
        stopped.append("start")

    def stop() -> None:
        dispatcher.stop()
        stopped.append("stop")

    broker.on_call = prepare
    dispatcher = consuming(kind, Outcomes(None), broker)
    stopped: list[str] = []
    threads = [threading.Thread(target=start), threading.Thread(target=stop)]
    threads[0].start()
    assert preparing.wait(LIMIT)
    threads[1].start()
    eventually(dispatcher._life.asked.is_set)
    assert stopped == []
    go_on.set()
    for each in threads:
        each.join(LIMIT)

    assert sorted(stopped) == ["start", "stop"]
    assert "open" not in broker.named("open")
    with dispatcher:
        eventually(lambda: dispatcher.ready)


def test_a_cancelled_stop_ends_the_grace_and_it_can_be_started_again() -> None:
    cancelled: list[bool] = []

    async def long(_: Order) -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def main() -> None:
        await dispatcher.start_async()
        await dispatcher.post_async(Order(1))
        await eventually_async(lambda: broker.bus.locked("orders"))
        await eventually_async(lambda: dispatcher._groups["orders"].unfinished[0]._running.channel.in_hand)  # type: ignore[union-attr]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await dispatcher.stop_async(grace=600)
        await eventually_async(lambda: cancelled)
        await eventually_async(lambda: broker.bus.pending("orders") == 1)
        await dispatcher.start_async()
        await eventually_async(lambda: dispatcher.ready)
        await dispatcher.stop_async(grace=0)

    broker = Broker()
    dispatcher = consuming_by(PROACTOR, long, broker)
    asyncio.run(main())


@ASYNC
def test_the_end_of_a_loop_whose_dispatcher_was_not_stopped_raises_nothing(kind: Kind) -> None:
    async def main() -> str:
        await dispatcher.start_async()
        await dispatcher.post_async(Order(1))
        await eventually_async(lambda: body.runs == 1)
        return "done"

    body = Outcomes(None)
    dispatcher = consuming(kind, lambda order: body(order) or asyncio.sleep(3600))

    assert asyncio.run(main()) == "done"
    dispatcher.stop(grace=0)
    assert dispatcher.states[0].state is Activity.STOPPED


# -- a request to stop


class Asking:
    """Bodies that request a stop, in each way in which a handler can."""

    def __init__(self, way: str) -> None:
        self._way = way
        self.dispatcher: Dispatcher
        self.numbers: list[int] = []

    def __call__(self, order: Order) -> object:
        self.numbers.append(order.number)
        if order.number != 1:
            return None
        began = time.monotonic()
        result = self._ask()
        assert time.monotonic() - began < LIMIT / 2
        return result

    def _ask(self) -> object:
        match self._way:
            case "dispatcher":
                self.dispatcher.request_stop()
            case "processor":
                current_context().processor.request_stop()
            case "stop":
                self.dispatcher.stop()
            case _:
                return self.dispatcher.stop_async()
        return None


WAYS = ["dispatcher", "processor", "stop"]


@pytest.mark.parametrize("way", WAYS)
def test_a_handler_may_ask_for_the_end_and_its_message_is_done(kind: Kind, way: str) -> None:
    body = Asking(way)
    broker = Broker()
    dispatcher = body.dispatcher = consuming(kind, body, broker)
    with dispatcher.publishing():
        dispatcher.post_many([Order(number) for number in range(1, 30)])
    codes: list[int] = []
    running = threading.Thread(target=lambda: codes.append(dispatcher.run()))
    running.start()
    running.join(LIMIT)

    assert codes == [0]
    assert 1 <= len(body.numbers) < 29
    assert broker.bus.pending("orders") == 29 - len(body.numbers)
    assert broker.bus.locked("orders") == 0
    eventually(lambda: threads_of_pumps() == [])


@ASYNC
def test_an_async_handler_may_await_the_stop_that_it_asks_for(kind: Kind) -> None:
    async def main() -> int:
        async with dispatcher.publishing():
            await dispatcher.post_async(Order(1))
        return await dispatcher.run_async()

    body = Asking("stop_async")
    broker = Broker()
    dispatcher = body.dispatcher = consuming(kind, body, broker)

    assert asyncio.run(main()) == 0
    assert broker.named("acknowledge") == ["acknowledge"]


def test_a_request_to_stop_in_a_with_ends_the_intake_at_once(kind: Kind) -> None:
    broker = Broker()
    with consuming(kind, Outcomes(None), broker) as dispatcher:
        eventually(lambda: dispatcher.ready)
        dispatcher.request_stop()
        eventually(lambda: dispatcher.states[0].state is Activity.STOPPED)
        dispatcher.post(Order(1))
        with pytest.raises(ConfigurationError, match="is stopping"):
            dispatcher.scale("orders", 3)

    assert broker.bus.pending("orders") == 1


def test_a_request_to_stop_before_the_start_and_after_the_end_is_nothing(kind: Kind) -> None:
    body = Outcomes(None)
    dispatcher = consuming(kind, body)
    dispatcher.request_stop()
    with dispatcher:
        dispatcher.post(Order(1))
        eventually(lambda: body.runs == 1)
    dispatcher.request_stop()

    assert not dispatcher.ready


# -- running on a loop


def test_run_async_consumes_until_it_is_asked_to_stop(kind: Kind) -> None:
    async def main() -> int:
        running = asyncio.create_task(dispatcher.run_async())
        await eventually_async(lambda: dispatcher.ready)
        await dispatcher.post_async(Order(1))
        await eventually_async(lambda: body.runs == 1)
        dispatcher.request_stop()
        return await running

    body = Outcomes(None)
    dispatcher = consuming(kind, body)

    assert asyncio.run(main()) == 0


def test_run_async_returns_1_where_a_channel_has_stopped_by_itself(kind: Kind) -> None:
    async def main() -> int:
        async with dispatcher.publishing():
            await dispatcher.post_async(Order(1))
        return await dispatcher.run_async()

    dispatcher = consuming(kind, Outcomes(KeyboardInterrupt()))

    assert asyncio.run(main()) == 1


@ASYNC
def test_a_cancelled_run_async_stops_within_the_grace(kind: Kind) -> None:
    async def main() -> None:
        running = asyncio.create_task(dispatcher.run_async())
        await eventually_async(lambda: dispatcher.ready)
        await dispatcher.post_async(Order(1))
        await eventually_async(lambda: body.runs == 1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    broker, body = Broker(), Outcomes(None)
    handler = kind.handler(lambda order: body(order) or asyncio.sleep(0.2))
    dispatcher = consuming_by(kind, handler, broker)
    asyncio.run(main())

    assert broker.named("acknowledge") == ["acknowledge"]


# -- how long a stop lasts


class Stuck:
    """A body that runs longer than every stop."""

    def __init__(self, kind: Kind, gate: threading.Event, *, posts: bool, blocks_the_loop: bool) -> None:
        self.holding = 0
        """How many runs wait for the gate now."""
        self._awaits = kind.awaits
        self._gate = gate
        self._posts = posts
        self._blocks_the_loop = blocks_the_loop

    def __call__(self, _: object) -> object:
        if self._awaits:
            return self._outlast()
        if self._posts:
            current_context().processor.post(Placed())
        self.holding += 1
        return self._gate.wait(LIMIT)

    async def _outlast(self) -> None:
        if self._posts:
            await current_context().processor.post_async(Placed())
        self.holding += 1
        if self._blocks_the_loop:
            self._gate.wait(LIMIT)
        while not self._gate.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("kind", "posts", "blocks_the_loop"),
    [
        pytest.param(REACTOR, True, False, id="reactor"),
        pytest.param(PROACTOR, False, False, id="proactor that ignores its cancellation"),
        pytest.param(PROACTOR, False, True, id="proactor that blocks its loop"),
        pytest.param(PROACTOR, True, True, id="proactor that posts and blocks its loop"),
        pytest.param(CONCURRENT, True, True, id="concurrent that posts and blocks its loop"),
    ],
)
def test_a_stop_lasts_no_longer_than_the_grace_and_two_seconds(
    kind: Kind, gate: threading.Event, caplog: pytest.LogCaptureFixture, posts: bool, blocks_the_loop: bool
) -> None:
    types = [type(f"Order{number}", (Order,), {}) for number in range(8)]
    body = Stuck(kind, gate, posts=posts, blocks_the_loop=blocks_the_loop)
    dispatcher = Dispatcher(
        Broker(),
        handlers=[kind.handler(lambda _: None, takes=Placed), *(kind.handler(body, takes=each) for each in types)],
        subscriptions=[
            Subscription(Placed, channel="placed", grace=0.2),
            *(Subscription(each, grace=0.2, **kind.options) for each in types),
        ],
        publications=[Publication(each) for each in (*types, Placed)],
    )
    dispatcher.start()
    for each in types:
        dispatcher.post(each())
    eventually(lambda: body.holding == (1 if kind.awaits and blocks_the_loop else 8))
    began = time.monotonic()
    dispatcher.stop()
    took = time.monotonic() - began
    gate.set()

    assert took < 0.2 + 2
    assert "its handler, which still runs" in caplog.text
    assert "the broker" not in caplog.text
    eventually(lambda: threads_of_pumps() == [])


@ASYNC
def test_an_idle_performer_whose_loop_another_ones_handler_blocks_is_told_so(
    kind: Kind, gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    body = Stuck(kind, gate, posts=False, blocks_the_loop=True)
    dispatcher = Dispatcher(
        Broker(),
        handlers=[kind.handler(body), kind.handler(body, takes=Placed)],
        subscriptions=[
            Subscription(Order, grace=0.05, **kind.options),
            Subscription(Placed, channel="placed", grace=0.05, **kind.options),
        ],
        publications=[Publication(Order)],
    )
    dispatcher.start()
    dispatcher.post(Order())
    eventually(lambda: body.holding)
    dispatcher.stop()
    gate.set()

    waits = [each.getMessage().partition("it waits for ")[2] for each in caplog.records]
    assert [each.partition(", which ")[0] for each in waits if each] == ["its handler", "its event loop"]
    eventually(lambda: threads_of_pumps() == [])


def test_a_stop_with_a_shorter_grace_waits_no_longer_for_what_handlers_settle_by_themselves(
    kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    broker, kept = Broker(), list[object]()
    dispatcher = consuming_by(kind, kind.explicit(kept.append), broker, grace=3600)
    dispatcher.start()
    dispatcher.post(Order(1))
    eventually(lambda: kept)
    began = time.monotonic()
    dispatcher.stop(grace=0.05)
    took = time.monotonic() - began

    assert took < 2
    assert "has not ended within the grace" not in caplog.text
    eventually(lambda: broker.bus.pending("orders") == 1)


def test_what_cannot_be_kept_at_the_end_keeps_nothing_from_being_closed(
    kind: Kind, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: PerformerGroup) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(PerformerGroup, "close", fail)
    with consuming(kind, Outcomes(None)) as dispatcher:
        eventually(lambda: dispatcher.ready)

    assert "the attempts of messages could not be stored: the disk is full" in caplog.text
    eventually(lambda: threads_of_pumps() == [])


def test_a_short_grace_is_over_when_it_is_over_whatever_another_channel_has(gate: threading.Event) -> None:
    told: list[float] = []

    def short(_: Order) -> None:
        begun.append("short")
        current_context().cancelled.add_callback(lambda: told.append(time.monotonic()))
        gate.wait(LIMIT)

    def long(_: Placed) -> None:
        begun.append("long")
        gate.wait(LIMIT)

    begun: list[str] = []
    dispatcher = Dispatcher(
        Broker(),
        handlers=[long, short],
        subscriptions=[Subscription(Placed, channel="placed", grace=60), Subscription(Order, grace=0.05)],
        publications=[Publication(Order), Publication(Placed)],
    )
    dispatcher.start()
    dispatcher.post(Order())
    dispatcher.post(Placed())
    eventually(lambda: len(begun) == 2)
    stopping = threading.Thread(target=dispatcher.stop)
    stopping.start()
    eventually(lambda: told)
    assert stopping.is_alive()
    gate.set()
    stopping.join(LIMIT)

    assert not stopping.is_alive()


@pytest.mark.parametrize("hangs", ["close", "producer"])
def test_a_broker_that_does_not_answer_is_left_and_nobody_says_that_a_handler_runs(
    kind: Kind, gate: threading.Event, caplog: pytest.LogCaptureFixture, hangs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING)
    broker, body = Broker(), Outcomes(None)
    dispatcher = consuming(kind, body, broker, grace=0.2)
    if hangs == "close":
        broker.on_call = lambda name: gate.wait(LIMIT) if name == "close" else None
    else:
        make = broker.producer

        def producer() -> Any:
            made = make()
            monkeypatch.setattr(made, "close", lambda: gate.wait(LIMIT))
            return made

        monkeypatch.setattr(broker, "producer", producer)
    dispatcher.start()
    dispatcher.post(Order(1))
    eventually(lambda: body.runs == 1 and not broker.bus.locked("orders"))
    began = time.monotonic()
    dispatcher.stop()
    took = time.monotonic() - began
    gate.set()

    assert took < 0.2 + 2
    assert "its handler" not in caplog.text
    assert ("the broker, which does not answer" in caplog.text) == (hangs == "close" and not kind.awaits)
    eventually(lambda: threads_of_pumps() == [])


# -- producers


def test_first_posts_at_once_open_one_producer_and_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, opened, closed = Broker(), list[Any](), list[Any]()
    make = broker.async_producer

    async def open_slowly() -> Any:
        made = await make()
        opened.append(made)
        close = made.close
        await asyncio.sleep(0.05)

        async def closing() -> None:
            closed.append(made)
            await close()

        monkeypatch.setattr(made, "close", closing)
        return made

    async def main() -> None:
        async with dispatcher.publishing():
            first = asyncio.create_task(dispatcher.post_async(Order(0)))
            others = [asyncio.create_task(dispatcher.post_async(Order(number))) for number in range(1, 50)]
            await asyncio.sleep(0)
            first.cancel()
            await asyncio.gather(*others)

    monkeypatch.setattr(broker, "async_producer", open_slowly)
    dispatcher = consuming(PROACTOR, Outcomes(None), broker)
    asyncio.run(main())

    assert len(opened) == 1
    assert closed == opened
    assert broker.bus.pending("orders") == 49


def test_a_producer_that_could_not_be_opened_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, tries = Broker(), list[int]()
    make = broker.async_producer

    async def open_at_second() -> Any:
        tries.append(1)
        await asyncio.sleep(0)
        if len(tries) == 1:
            raise OSError("away")
        return await make()

    async def main() -> list[str | BaseException]:
        async with dispatcher.publishing():
            failed = await asyncio.gather(*(dispatcher.post_async(Order()) for _ in range(5)), return_exceptions=True)
            await dispatcher.post_async(Order())
            return failed

    monkeypatch.setattr(broker, "async_producer", open_at_second)
    dispatcher = consuming(REACTOR, Outcomes(None), broker)
    failed = asyncio.run(main())

    assert isinstance(failed[0], PublishError)
    assert len(tries) == 2
    assert broker.bus.pending("orders") == 1 + sum(isinstance(each, str) for each in failed)


def test_a_producer_that_is_opened_while_all_are_closed_is_closed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, closed = Broker(), list[bool]()
    make = broker.async_producer

    async def open_late() -> Any:
        made = await make()
        opening.set()
        await may_open.wait()

        async def closing() -> None:
            closed.append(True)

        monkeypatch.setattr(made, "close", closing)
        return made

    async def main() -> None:
        async with dispatcher.publishing():
            posting = asyncio.create_task(dispatcher.post_async(Order()))
            await opening.wait()
        may_open.set()
        with pytest.raises(PublishError, match="the producer is closed"):
            await posting

    opening, may_open = asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(broker, "async_producer", open_late)
    dispatcher = consuming(REACTOR, Outcomes(None), broker)
    asyncio.run(main())

    assert closed == [True]
