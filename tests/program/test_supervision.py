"""Performers are supervised: one that dies is started again, one that stopped for a reason is not."""

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from pump.clock import ManualClock
from pump.errors import ConfigurationError, DontAckAction, RejectMessageAction
from pump.program.dispatcher import Dispatcher
from pump.program.performer import Activity
from pump.subscription import Publication, Subscription
from pump.verdict import Stopped
from support.pumps import CONCURRENT, PROACTOR, Broker, Kind, Order, Outcomes, Placed, consuming
from support.waiting import LIMIT, eventually

SOON = (0.005, 0.02)
"""A back-off that tests can wait for."""


class Killed(BaseException):
    """An error that no pump catches."""


@pytest.mark.requirement("P-08")
@pytest.mark.parametrize("killer", [Killed("by the client"), SystemExit(3), asyncio.CancelledError("not ours")])
def test_a_performer_that_died_begins_again_and_loses_nothing(
    kind: Kind, killer: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    body = Outcomes(None)
    broker = Broker()
    with consuming(kind, body, broker, failure_backoff=SOON) as dispatcher:
        dispatcher.post(Order(1))
        eventually(lambda: body.runs == 1)

        broker.fail("receive", killer)
        dispatcher.post(Order(2))
        eventually(lambda: body.runs == 2 and dispatcher.ready)

        (state,) = dispatcher.states
        assert state.restarts == 1
        assert type(killer).__name__ in state.error
        assert state.state is Activity.RUNNING
    assert [each.levelno for each in caplog.records if "died" in each.getMessage()] == [logging.CRITICAL]


async def _fails(error: BaseException) -> None:
    raise error


async def _gathers(error: BaseException) -> None:
    await asyncio.gather(_fails(error), asyncio.sleep(3600))


async def _groups(error: BaseException) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_fails(error))
        group.create_task(asyncio.sleep(3600))


@pytest.mark.parametrize("kind", [PROACTOR, CONCURRENT], ids=["proactor", "concurrent"])
@pytest.mark.parametrize("begin", [_gathers, _groups])
def test_a_system_exit_in_a_task_of_a_handler_is_the_handlers_error_and_the_loop_goes_on(
    kind: Kind, begin: Callable[[BaseException], Awaitable[None]]
) -> None:
    broker = Broker()

    def body(order: Order) -> object:
        return begin(SystemExit(3)) if order.number == 1 else None

    with consuming(kind, body, broker, max_attempts=1) as dispatcher:
        dispatcher.post(Order(1))
        eventually(lambda: broker.named("reject"))
        dispatcher.post(Order(2))
        eventually(lambda: broker.named("acknowledge"))

        assert dispatcher.ready
        assert dispatcher.states[0].restarts == 0
    assert broker.bus.pending("orders.dead") == 1


@pytest.mark.parametrize("kind", [PROACTOR, CONCURRENT], ids=["proactor", "concurrent"])
@pytest.mark.parametrize("begin", [_gathers, _groups])
def test_a_keyboard_interrupt_in_a_task_of_a_handler_stops_its_channel_and_no_other(
    kind: Kind, begin: Callable[[BaseException], Awaitable[None]]
) -> None:
    broker, handled = Broker(), list[Placed]()
    dispatcher = Dispatcher(
        broker,
        handlers=[
            kind.handler(lambda _: begin(KeyboardInterrupt())),
            kind.handler(handled.append, takes=Placed),
        ],
        subscriptions=[
            Subscription(Order, topic="orders", **kind.options),
            Subscription(Placed, channel="placed", **kind.options),
        ],
        publications=[Publication(Order, topic="orders"), Publication(Placed)],
    )
    with dispatcher:
        dispatcher.post(Order(1))
        eventually(lambda: dispatcher.stopped_channels == ["orders"])
        dispatcher.post(Placed(2))
        eventually(lambda: handled)

        assert dispatcher.states[0].stopped is Stopped.INTERRUPTED
        assert not dispatcher.ready
    assert broker.bus.pending("orders") == 1


@pytest.mark.requirement("P-08")
def test_each_death_in_a_row_is_followed_by_a_longer_wait(kind: Kind) -> None:
    clock, broker = ManualClock(), Broker()
    body = Outcomes(None)
    broker.break_down("receive", Killed())
    with consuming(kind, body, broker, clock=clock, failure_backoff=(1, 4)) as dispatcher:
        for restarts, delay in enumerate([1.0, 2.0, 4.0, 4.0], start=1):
            eventually(lambda count=restarts: dispatcher.states[0].restarts == count)  # type: ignore[misc]
            clock.wait_for_sleepers(1)
            assert dispatcher.states[0].state is Activity.RESTARTING
            assert not dispatcher.ready
            assert clock.waits[-1] == delay
            clock.advance(delay - 0.5)
            assert dispatcher.states[0].restarts == restarts
            if restarts == 4:
                broker.mend()
            clock.advance(0.6)
        eventually(lambda: dispatcher.ready)
        assert dispatcher.states[0].restarts == 4


@pytest.mark.requirement("P-08")
def test_listeners_are_told_of_a_death(kind: Kind) -> None:
    told: list[tuple[str, object]] = []
    broker = Broker()
    dispatcher = consuming(kind, Outcomes(None), broker)
    dispatcher.settings.telemetry.listen(lambda event, fields: told.append((event, fields.get("performer"))))
    with dispatcher:
        broker.fail("receive", Killed())
        eventually(lambda: told)

        assert told == [("performer_died", dispatcher.states[0].name)]


@pytest.mark.requirement("P-08")
def test_a_performer_that_dies_while_it_is_stopping_is_not_begun_again(kind: Kind) -> None:
    body = Outcomes(None)
    broker = Broker()
    with consuming(kind, body, broker) as dispatcher:
        dispatcher.post(Order(1))
        eventually(lambda: body.runs == 1)
        broker.break_down("receive", Killed())
    states = [*dispatcher.states]

    assert [state.state for state in states] == [Activity.STOPPED]


@pytest.mark.requirement("P-08", "B-10")
def test_a_limit_stop_is_not_begun_again_and_is_seen(kind: Kind) -> None:
    body = Outcomes(RejectMessageAction("no"))
    with consuming(kind, body, Broker(), unacceptable_limit=2) as dispatcher:
        for number in range(5):
            dispatcher.post(Order(number))
        eventually(lambda: dispatcher.states[0].state is Activity.STOPPED)

        (state,) = dispatcher.states
        assert state.stopped is Stopped.LIMIT_EXCEEDED
        assert state.unacceptable >= 2
        assert state.restarts == 0
        assert not dispatcher.ready
        assert dispatcher.stopped_channels == ["orders"]


@pytest.mark.requirement("B-10")
def test_the_limit_is_the_channels_and_not_each_performers(kind: Kind) -> None:
    """Messages in hand when the limit was reached are counted too; no message begins after that."""
    begun, may_end = [], threading.Event()

    def reject() -> object:
        may_end.wait(LIMIT)
        raise RejectMessageAction("no")

    def body(order: Order) -> object:
        begun.append(order.number)
        return asyncio.to_thread(reject) if kind.awaits else reject()

    in_hand = 3 * kind.options.get("in_flight", 1)
    with consuming(kind, body, Broker(), performers=3, unacceptable_limit=3) as dispatcher:
        eventually(lambda: dispatcher.ready)
        dispatcher.post_many([Order(number) for number in range(60)])
        eventually(lambda: len(begun) == in_hand)
        may_end.set()
        eventually(lambda: all(each.state is Activity.STOPPED for each in dispatcher.states))

        assert len(begun) < in_hand + 3
        assert {each.stopped for each in dispatcher.states} == {Stopped.LIMIT_EXCEEDED}
        assert dispatcher.stopped_channels == ["orders"]


@pytest.mark.requirement("B-10")
def test_the_count_outlives_a_pump_that_died(kind: Kind) -> None:
    body, broker = Outcomes(RejectMessageAction("no")), Broker()
    with consuming(kind, body, broker, unacceptable_limit=2, failure_backoff=SOON) as dispatcher:
        dispatcher.post(Order(1))
        eventually(lambda: body.runs == 1)
        broker.fail("receive", Killed())
        eventually(lambda: dispatcher.states[0].restarts == 1)

        dispatcher.post(Order(2))
        eventually(lambda: dispatcher.stopped_channels)

        assert dispatcher.states[0].unacceptable == 2


@pytest.mark.requirement("B-10")
def test_a_stop_at_the_limit_waits_for_no_receive(kind: Kind) -> None:
    body = Outcomes(RejectMessageAction("no"))
    with consuming(kind, body, Broker(), performers=3, unacceptable_limit=1, receive_timeout=3600) as dispatcher:
        eventually(lambda: dispatcher.ready)
        dispatcher.post(Order(1))

        eventually(lambda: dispatcher.stopped_channels)


@pytest.mark.requirement("P-08")
def test_a_configuration_stop_is_not_begun_again_and_is_seen(kind: Kind) -> None:
    def factory(_: type) -> object:
        raise ConfigurationError("there is no database")

    dispatcher = Dispatcher(
        "memory://",
        handlers=[kind.handler_class(Outcomes(None))],
        subscriptions=[Subscription(Order, **kind.options)],
        publications=[Publication(Order)],
        factory=factory,
    )
    with dispatcher:
        dispatcher.post(Order())
        eventually(lambda: dispatcher.states[0].state is Activity.STOPPED)

        assert dispatcher.states[0].stopped is Stopped.CONFIGURATION_ERROR
        assert dispatcher.stopped_channels == ["Order"]


@pytest.mark.requirement("P-08")
def test_a_restart_by_hand_replaces_what_had_stopped_by_itself(kind: Kind) -> None:
    body = Outcomes(RejectMessageAction("no"), None)
    with consuming(kind, body, Broker(), unacceptable_limit=1) as dispatcher:
        dispatcher.post(Order(1))
        eventually(lambda: dispatcher.stopped_channels)

        dispatcher.restart("orders")
        dispatcher.post(Order(2))
        eventually(lambda: body.runs == 2)

        assert dispatcher.ready
        assert dispatcher.stopped_channels == []


@pytest.mark.requirement("P-08")
def test_what_a_dying_pump_has_in_hand_goes_back_uncounted(caplog: pytest.LogCaptureFixture) -> None:
    begun: list[int] = []

    def body(order: Order) -> object:
        if order.number < 4:
            return None
        begun.append(order.number)
        return asyncio.sleep(3600)

    broker = Broker()
    with consuming(CONCURRENT, body, broker, failure_backoff=(3600, 3600), receive_timeout=0.01) as dispatcher:
        for number in range(8):
            dispatcher.post(Order(number), id=str(number))
        eventually(lambda: len(begun) == 4)
        broker.fail("receive", Killed())
        eventually(lambda: dispatcher.states[0].restarts == 1)
        eventually(lambda: broker.bus.locked("orders") == 0)

        returned = [(each.id, each.attempts, each.unexplained) for each in broker.bus.messages("orders")]
    assert returned == [(str(number), 0, 0) for number in range(4, 8)]
    assert not any("Settling message failed" in each.getMessage() for each in caplog.records)


@pytest.mark.requirement("P-08")
def test_of_several_performers_one_that_died_leaves_the_others_alone(kind: Kind) -> None:
    body = Outcomes(None)
    broker = Broker()
    with consuming(kind, body, broker, performers=3) as dispatcher:
        broker.fail("receive", Killed())
        eventually(lambda: sum(state.restarts for state in dispatcher.states) == 1)

        assert sorted(state.restarts for state in dispatcher.states) == [0, 0, 1]
        assert len({state.name for state in dispatcher.states}) == 3


def test_states_are_plain_and_complete(kind: Kind) -> None:
    with consuming(kind, Outcomes(None), Broker()) as dispatcher:
        eventually(lambda: dispatcher.ready)
        (state,) = dispatcher.states
        assert (state.channel, state.state, state.stopped, state.restarts, state.unacceptable, state.error) == (
            "orders",
            Activity.RUNNING,
            None,
            0,
            0,
            "",
        )
    (state,) = dispatcher.states
    assert (state.state, state.stopped) == (Activity.STOPPED, Stopped.REQUESTED)


# -- control


class Flow:
    """A body that counts its runs, and a thread that posts until it is ended."""

    def __init__(self) -> None:
        self.handled: Counter[int] = Counter()
        self.posted = 0
        self._ended = threading.Event()

    def __call__(self, order: Order) -> None:
        self.handled[order.number] += 1

    def post_to(self, dispatcher: Dispatcher) -> threading.Thread:
        def post() -> None:
            while not self._ended.is_set():
                dispatcher.post(Order(self.posted))
                self.posted += 1

        thread = threading.Thread(target=post)
        thread.start()
        return thread

    def end(self) -> None:
        self._ended.set()


def pause_and_resume(dispatcher: Dispatcher) -> None:
    dispatcher.pause("orders")
    dispatcher.resume("orders")


def scale_up_and_down(dispatcher: Dispatcher) -> None:
    dispatcher.scale("orders", 3)
    dispatcher.scale("orders", 1)


def scale_to_none_and_back(dispatcher: Dispatcher) -> None:
    dispatcher.scale("orders", 0)
    dispatcher.scale("orders", 1)


def restart(dispatcher: Dispatcher) -> None:
    dispatcher.restart("orders")


@pytest.mark.parametrize("control", [pause_and_resume, scale_up_and_down, scale_to_none_and_back, restart])
def test_control_while_messages_flow_loses_nothing_and_repeats_nothing(
    kind: Kind, control: Callable[[Dispatcher], None]
) -> None:
    flow, broker = Flow(), Broker()
    with consuming(kind, flow, broker) as dispatcher:
        posting = flow.post_to(dispatcher)
        try:
            for _ in range(8):
                control(dispatcher)
                seen = sum(flow.handled.values())
                eventually(lambda least=seen + 20: sum(flow.handled.values()) > least)  # type: ignore[misc]
        finally:
            flow.end()
            posting.join()
        eventually(lambda: len(flow.handled) == flow.posted)
    assert set(flow.handled.values()) == {1}
    assert broker.bus.pending("orders") + broker.bus.locked("orders") == 0


def stays(condition: Callable[[], object], seconds: float = 0.1) -> bool:
    """Whether the condition holds for this long."""
    deadline = time.monotonic() + seconds
    while condition():
        if time.monotonic() > deadline:
            return True
        time.sleep(0.002)
    return False


@pytest.mark.parametrize("control", [scale_to_none_and_back, restart])
def test_in_order_the_next_performer_begins_when_the_last_one_has_nothing_in_hand(
    kind: Kind, control: Callable[[Dispatcher], None]
) -> None:
    events: list[str] = []
    may_end = threading.Event()

    def wait(number: int) -> object:
        may_end.wait(LIMIT)
        events.append(f"end {number}")
        return None

    def body(order: Order) -> object:
        events.append(f"begin {order.number}")
        return asyncio.to_thread(wait, order.number) if kind.awaits else wait(order.number)

    broker = Broker()
    with consuming(kind, body, broker, ordered=True) as dispatcher:
        dispatcher.post_many([Order(number) for number in range(1, 5)])
        eventually(lambda: events)
        control(dispatcher)
        control(dispatcher)

        assert stays(lambda: events == ["begin 1"])
        assert dispatcher.states[0].state is Activity.STARTING
        may_end.set()
        eventually(lambda: len(events) == 8)
        eventually(lambda: dispatcher.ready)

    assert events == [f"{what} {number}" for number in range(1, 5) for what in ("begin", "end")]
    assert len(broker.named("open")) == 2


def test_a_performer_that_waits_for_its_turn_can_be_stopped(kind: Kind) -> None:
    may_end = threading.Event()
    begun: list[int] = []

    def body(order: Order) -> object:
        begun.append(order.number)
        return asyncio.to_thread(may_end.wait, LIMIT) if kind.awaits else may_end.wait(LIMIT)

    with consuming(kind, body, Broker(), ordered=True) as dispatcher:
        dispatcher.post_many([Order(1), Order(2)])
        eventually(lambda: begun)
        dispatcher.restart("orders")
        stopping = threading.Thread(target=dispatcher.stop)
        stopping.start()
        eventually(lambda: dispatcher.states[0].state is Activity.STOPPED)
        may_end.set()
        stopping.join(LIMIT)

    assert begun == [1]


def test_a_paused_channel_begins_nothing_and_gives_back_what_waits(kind: Kind) -> None:
    flow, broker = Flow(), Broker()
    with consuming(kind, flow, broker) as dispatcher:
        dispatcher.post(Order(0))
        eventually(lambda: flow.handled)
        dispatcher.pause("orders")
        dispatcher.post_many([Order(number) for number in range(1, 6)])
        eventually(lambda: broker.bus.pending("orders") == 5)

        assert dispatcher.states[0].state is Activity.PAUSED
        assert dispatcher.ready
        assert list(flow.handled) == [0]
        dispatcher.resume("orders")
        eventually(lambda: len(flow.handled) == 6)


def test_a_performer_added_while_paused_is_paused(kind: Kind) -> None:
    flow = Flow()
    with consuming(kind, flow, Broker()) as dispatcher:
        dispatcher.pause("orders")
        dispatcher.scale("orders", 3)
        dispatcher.post(Order(1))
        eventually(lambda: [state.state for state in dispatcher.states] == [Activity.PAUSED] * 3)

        assert not flow.handled
        dispatcher.resume("orders")
        eventually(lambda: flow.handled)


def test_scaling_changes_how_many_there_are(kind: Kind) -> None:
    with consuming(kind, Outcomes(None), Broker()) as dispatcher:
        counts = []
        for performers in (3, 1, 0, 2):
            dispatcher.scale("orders", performers)
            counts.append(len(dispatcher.states))
        eventually(lambda: dispatcher.ready)

    assert counts == [3, 1, 0, 2]


def test_an_ordered_channel_is_not_scaled(kind: Kind) -> None:
    with (
        consuming(kind, Outcomes(None), Broker(), ordered=True) as dispatcher,
        pytest.raises(ConfigurationError, match="ordered: it can have only one performer"),
    ):
        dispatcher.scale("orders", 2)


def test_performers_cannot_be_fewer_than_none(kind: Kind) -> None:
    with consuming(kind, Outcomes(None), Broker()) as dispatcher, pytest.raises(ConfigurationError, match="-1"):
        dispatcher.scale("orders", -1)


def test_an_unknown_channel_is_named_with_those_there_are(kind: Kind) -> None:
    dispatcher = consuming(kind, Outcomes(None), Broker())
    with dispatcher, pytest.raises(ConfigurationError, match="no channel 'order'; there is orders"):
        dispatcher.pause("order")


def test_a_dispatcher_that_does_not_run_controls_nothing(kind: Kind) -> None:
    with pytest.raises(ConfigurationError, match="not running"):
        consuming(kind, Outcomes(None), Broker()).pause("orders")


def test_a_pause_waits_for_nobody(kind: Kind) -> None:
    """Also in the second in which a message that was left unsettled is not looked at."""
    body = Outcomes(DontAckAction())
    with consuming(kind, body, Broker(), dont_ack_delay=600) as dispatcher:
        dispatcher.post(Order())
        eventually(lambda: body.runs == 1)

        dispatcher.pause("orders")
        dispatcher.resume("orders")

        assert body.runs == 1
