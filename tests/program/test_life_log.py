"""The log of a program: what starts, when it is ready, each message, what a stop waits for, and totals."""

import asyncio
import logging
import re

import pytest

from pump.program.dispatcher import Dispatcher
from pump.subscription import Publication, Subscription
from support.pumps import CONCURRENT, KINDS, REACTOR, Kind, Order, Outcomes
from support.waiting import eventually, eventually_async

each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def program(kind: Kind, body: Outcomes, **options: object) -> Dispatcher:
    return Dispatcher(
        "memory://",
        handlers=[kind.handler(body)],
        subscriptions=[Subscription(Order, **{"topic": "orders", **kind.options, **options})],
        publications=[Publication(Order, topic="orders")],
    )


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


@each_kind
@pytest.mark.parametrize("awaited", [False, True])
def test_the_log_says_what_starts_that_it_is_ready_and_the_totals(
    kind: Kind, caplog: pytest.LogCaptureFixture, *, awaited: bool
) -> None:
    caplog.set_level(logging.INFO)
    body = Outcomes(None, ValueError("sold out"), None)
    dispatcher = program(kind, body, performers=2, on_unhandled="reject")

    async def run() -> None:
        async with dispatcher:
            await dispatcher.post_async(Order(1))
            await dispatcher.post_async(Order(2))
            await eventually_async(lambda: body.runs == 2)

    if awaited:
        asyncio.run(run())
    else:
        with dispatcher:
            dispatcher.post_many([Order(1), Order(2)])
            eventually(lambda: body.runs == 2)

    starting, ready, stopping, stopped = lines(caplog, logging.INFO)
    in_flight = ", 4 in flight" if kind is CONCURRENT else ""
    assert starting == f"starting: orders (2 performers{in_flight}) on memory"
    assert ready == "ready"
    assert stopping.startswith("stopping, ")
    assert re.fullmatch(r"stopped after \d+\.\d s: 1 acknowledged, 1 given up", stopped)


@each_kind
def test_a_stop_says_what_is_still_in_hand(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    begun: list[Order] = []

    def body(order: Order) -> object:
        begun.append(order)
        return asyncio.sleep(60) if kind.awaits else None

    dispatcher = Dispatcher(
        "memory://",
        handlers=[kind.handler(body)],
        subscriptions=[Subscription(Order, topic="orders", grace=0.05, **kind.options)],
        publications=[Publication(Order, topic="orders")],
    )
    with dispatcher:
        dispatcher.post(Order(1))
        eventually(lambda: begun != [])

    stopping = next(line for line in lines(caplog, logging.INFO) if line.startswith("stopping"))
    if kind.awaits:
        assert stopping == "stopping, in hand: 1 of orders; they have 0.05 s"


def test_a_program_without_a_message_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    with program(REACTOR, Outcomes(None)):
        pass

    stopping, stopped = lines(caplog, logging.INFO)[-2:]
    assert stopping == "stopping, nothing is in hand"
    assert stopped.endswith("s: no message came")


def test_one_that_only_publishes_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    with program(REACTOR, Outcomes(None)).publishing() as publishing:
        publishing.post(Order(1))

    assert [record.getMessage() for record in caplog.records if record.name == "pump"] == []


@each_kind
def test_with_details_each_message_has_a_line_with_handler_verdict_and_duration(
    kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "pump")
    body = Outcomes(None, ValueError("sold out"), None)
    with program(kind, body, on_unhandled="reject") as dispatcher:
        first, second = dispatcher.post_many([Order(1), Order(2)])
        eventually(lambda: len(lines(caplog, logging.DEBUG)) == 2)

    told = sorted(lines(caplog, logging.DEBUG))
    name = re.escape(dispatcher.plans[0].handlers[0].name)
    where = rf"channel orders, handler {name}\)"
    assert re.fullmatch(rf"Message acknowledged after \d+\.\d ms \(message {first}, {where}", told[0])
    assert re.fullmatch(rf"Message given up after \d+\.\d ms \(message {second}, {where}", told[1])


@each_kind
def test_without_details_no_message_has_a_line(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pump")
    body = Outcomes(None)
    with program(kind, body) as dispatcher:
        dispatcher.post(Order(1))
        eventually(lambda: body.runs == 1)

    assert lines(caplog, logging.DEBUG) == []
    assert not any("Message" in line for line in lines(caplog, logging.INFO))


@each_kind
def test_an_error_has_one_traceback_however_often_it_comes(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pump")
    body = Outcomes(ValueError("sold out"))
    with program(kind, body, max_attempts=3, requeue_backoff=(0.01, 0.01)) as dispatcher:
        dispatcher.post(Order(1))
        eventually(lambda: any("attempts exhausted" in line for line in lines(caplog, logging.WARNING)))

    tracebacks = [record.exc_info for record in caplog.records if record.exc_info is not None]
    first, second, third = lines(caplog, logging.ERROR)
    assert len(tracebacks) == 1
    assert first.startswith("Handler failed (message ")
    for repeat in (second, third, lines(caplog, logging.WARNING)[-1]):
        assert ": ValueError: sold out (pumps.py, line " in repeat
        assert "), as before (message " in repeat
