"""Explicit settlement: a handler is given a delivery and settles it itself, from wherever and whenever it likes."""

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from pump.attribute import Attribute, Rest, Steps
from pump.context import current_context
from pump.errors import ConfigurationError, LeaseLost, RejectMessageAction, TransportError
from pump.handlers import (
    DeferMessageOnError,
    DontAckOnError,
    Fallback,
    FeatureSwitch,
    RejectMessageOnError,
    Retry,
)
from pump.handling.delivery import AsyncDelivery, Delivery
from pump.subscription import Subscription
from support.pump_fixtures import Pumping
from support.pumps import (
    CONCURRENT,
    PROACTOR,
    REACTOR,
    Bench,
    Broker,
    Kind,
    Order,
    Outcomes,
    Placed,
    consuming_by,
    numbers,
)
from support.waiting import eventually

CALLS = {"ack": "acknowledge", "nack": "nack", "defer": "requeue", "reject": "reject"}
"""What each settlement is called, of a delivery and of its channel."""


def settle(*names: str, then: BaseException | None = None) -> Callable[[Any], object]:
    """A body that settles so, one after the other, and then raises, if anything."""

    def body(delivery: Any) -> object:
        if isinstance(delivery, AsyncDelivery):
            return settle_async(delivery)
        for name in names:
            getattr(delivery, name)()
        end()
        return None

    async def settle_async(delivery: AsyncDelivery[Order]) -> None:
        for name in names:
            await getattr(delivery, name)()
        end()

    def end() -> None:
        if then is not None:
            raise then

    return body


@pytest.mark.parametrize("name", CALLS)
def test_a_handler_settles_its_message_itself(explicitly: Pumping, name: str) -> None:
    bench = explicitly(settle(name))
    bench.post_orders(1)

    bench.run(turns=1)

    assert bench.calls == [CALLS[name]]


def test_a_delivery_has_what_was_received(explicitly: Pumping, kind: Kind) -> None:
    body = Outcomes(None)
    bench = explicitly(lambda delivery: body(delivery) or delivery.ack())
    bench.post(Order(7), id="order-7", headers={"trace": "a"})

    bench.run()

    (delivery,) = body.seen
    assert isinstance(delivery, AsyncDelivery if kind.awaits else Delivery)
    assert delivery.payload == Order(7)
    assert delivery.data == b'{"number":7}'
    assert delivery.headers == {"trace": "a"}
    assert delivery.subject == "Order"
    assert delivery.settled
    assert delivery.message.id == "order-7"
    assert "order-7" in repr(delivery)


@pytest.mark.parametrize("attribute", ["payload", "message", "headers", "data"])
def test_a_delivery_never_changes(explicitly: Pumping, attribute: str) -> None:
    body = Outcomes(None)
    bench = explicitly(lambda delivery: body(delivery) or delivery.ack())
    bench.post(Order(7), headers={"trace": "a"})
    bench.run()

    with pytest.raises(AttributeError):
        setattr(body.seen[0], attribute, None)
    with pytest.raises(TypeError):
        body.seen[0].headers["trace"] = "b"


@pytest.mark.parametrize("second", CALLS)
@pytest.mark.parametrize("first", CALLS)
def test_the_first_settlement_wins(explicitly: Pumping, first: str, second: str) -> None:
    bench = explicitly(settle(first, second))
    bench.post_orders(1)

    bench.run(turns=1)

    assert bench.calls == [CALLS[first]]


@pytest.mark.requirement("E-25")
@pytest.mark.parametrize("auto_ack", [True, False])
@pytest.mark.parametrize("name", CALLS)
def test_auto_ack_does_not_matter(explicitly: Pumping, name: str, *, auto_ack: bool) -> None:
    bench = explicitly(settle(name), auto_ack=auto_ack)
    bench.post_orders(1)

    bench.run(turns=1)

    assert bench.calls == [CALLS[name]]


@pytest.mark.requirement("E-25")
@pytest.mark.parametrize("auto_ack", [True, False])
def test_nor_does_it_when_the_handler_raises_before_it_settles(explicitly: Pumping, *, auto_ack: bool) -> None:
    bench = explicitly(settle(then=RejectMessageAction("no")), auto_ack=auto_ack)
    bench.post_orders(1)

    bench.run()

    assert [letter.reason for letter in bench.dead_letters] == ["no"]


def test_a_deferral_and_a_rejection_take_their_arguments(explicitly: Pumping) -> None:
    bench = explicitly(lambda delivery: delivery.defer(7) if delivery.payload.number == 1 else delivery.reject("no"))
    bench.post_orders(1, 2)

    bench.run(turns=2)

    assert [call.delay for call in bench.calls if call == "requeue"] == [7]
    assert [letter.reason for letter in bench.dead_letters] == ["no"]


def test_a_deferral_on_the_last_attempt_is_a_dead_letter(explicitly: Pumping) -> None:
    bench = explicitly(settle("defer"), max_attempts=2)
    bench.post_orders(1)

    bench.run()

    assert bench.calls == ["requeue", "reject"]
    assert [letter.reason for letter in bench.dead_letters] == ["attempts exhausted"]


# -- nothing settled


@pytest.mark.requirement("E-26")
def test_with_nothing_called_the_message_comes_again_when_its_lease_is_over(explicitly: Pumping) -> None:
    body = Outcomes(None)
    bench = explicitly(body, lease=20)
    bench.post_orders(1)
    began = bench.clock.monotonic()

    bench.run(turns=2)

    assert body.runs == 2
    assert bench.calls == []
    assert 20 <= bench.clock.monotonic() - began < 21
    assert bench.broker.named("extend") == []


@pytest.mark.requirement("E-26")
def test_without_a_lease_it_is_told_of_after_a_while(explicitly: Pumping) -> None:
    bench = explicitly(Outcomes(None), capabilities={"leases": False})
    bench.post_orders(1)

    bench.run(seconds=29)
    before = list(bench.said)
    bench.run(seconds=2)

    assert not any("is not settled yet" in each for each in before)
    assert sum("is not settled yet" in each for each in bench.said) == 1


def test_an_unsettled_message_keeps_its_slot(explicitly: Pumping, kind: Kind) -> None:
    body = Outcomes(None)
    bench = explicitly(lambda delivery: delivery.ack() if delivery.payload.number <= 4 else body(delivery))
    bench.post_orders(*range(1, 21))

    bench.run(seconds=20)

    assert body.runs == kind.options.get("in_flight", 1)


# -- exceptions


@pytest.mark.requirement("E-27", "E-28")
@pytest.mark.parametrize("name", CALLS)
def test_an_exception_after_a_settlement_changes_nothing_and_is_logged(explicitly: Pumping, name: str) -> None:
    error = ValueError("afterwards")
    bench = explicitly(settle(name, then=error))
    bench.post_orders(1)

    bench.run(turns=1)

    assert bench.calls == [CALLS[name]]
    (record,) = [each for each in bench.logs if each.exc_info and each.exc_info[1] is error]
    assert record.levelname == "WARNING"
    assert "after the message was settled" in record.getMessage()
    assert "order-1" in record.getMessage()


@pytest.mark.requirement("E-27")
def test_acknowledged_and_raised_it_does_not_come_again(explicitly: Pumping) -> None:
    body = Outcomes(None)
    bench = explicitly(lambda delivery: body(delivery) or settle("ack", then=ValueError("afterwards"))(delivery))
    bench.post_orders(1)

    bench.run(seconds=120)

    assert body.runs == 1
    assert bench.pending == []


def test_an_exception_before_any_settlement_is_settled_by_the_pump(explicitly: Pumping) -> None:
    bench = explicitly(settle(then=ValueError("any")))
    bench.post_orders(1)

    bench.run()

    assert bench.calls == ["requeue", "requeue", "reject"]


def test_a_keyboard_interrupt_after_a_settlement_stops_the_pump(explicitly: Pumping) -> None:
    bench = explicitly(settle("ack", then=KeyboardInterrupt()))
    bench.post_orders(1, 2, key="k")

    bench.run(seconds=60)

    assert bench.stopped is not None
    assert bench.calls == ["acknowledge"]


# -- settling fails


def test_a_settlement_that_fails_raises_and_may_be_tried_again(explicitly: Pumping) -> None:
    failures: list[BaseException] = []

    def body(delivery: Any) -> object:
        if isinstance(delivery, AsyncDelivery):
            return body_async(delivery)
        body_blocking(delivery)
        return None

    async def body_async(delivery: AsyncDelivery[Order]) -> None:
        try:
            await delivery.ack()
        except TransportError as error:
            failures.append(error)
            assert not delivery.settled

    def body_blocking(delivery: Delivery[Order]) -> None:
        try:
            delivery.ack()
        except TransportError as error:
            failures.append(error)
            assert not delivery.settled

    bench = explicitly(body, capabilities={"leases": False})
    bench.broker.fail("acknowledge", TransportError("cut"))
    bench.post_orders(1)

    bench.run(seconds=60)

    assert [str(each) for each in failures] == ["cut"]
    assert numbers(bench.acknowledged) == [1]


def test_a_delivery_of_a_lapsed_lease_cannot_be_settled(explicitly: Pumping) -> None:
    kept: list[Any] = []
    bench = explicitly(kept.append, lease=10)
    bench.post_orders(1)
    bench.step()
    bench.advance(11)

    with pytest.raises(LeaseLost):
        finish(bench, kept[0].ack())

    assert bench.broker.named("acknowledge") == []


def finish(bench: Bench, call: Any) -> None:
    if inspect.isawaitable(call):
        bench.await_(as_coroutine(call))


def test_a_delivery_can_be_kept_by_extending_it(explicitly: Pumping) -> None:
    kept: list[Any] = []

    bench = explicitly(kept.append, lease=10)
    bench.post_orders(1)
    bench.step()
    for _ in range(5):
        bench.advance(8)
        finish(bench, kept[0].extend())
    finish(bench, kept[0].ack())

    assert bench.calls == ["acknowledge"]
    assert numbers(bench.acknowledged) == [1]


# -- later, and from elsewhere


@pytest.mark.requirement("E-37")
def test_it_may_be_settled_after_the_handler_has_returned(explicitly: Pumping) -> None:
    kept: list[Any] = []
    bench = explicitly(kept.append)
    bench.post_orders(1)
    bench.step()

    finish(bench, kept[0].ack())
    bench.run()

    assert bench.calls == ["acknowledge"]
    assert len(kept) == 1


async def as_coroutine(call: Any) -> None:
    await call


@pytest.mark.requirement("E-37")
@pytest.mark.parametrize("kind", [PROACTOR, CONCURRENT], ids=["proactor", "concurrent"])
def test_a_task_of_the_handler_may_settle_later(benches: ExitStack, kind: Kind) -> None:
    tasks: set[asyncio.Task[None]] = set()

    async def later(delivery: AsyncDelivery[Order]) -> None:
        await asyncio.sleep(0.5)
        await delivery.ack()

    async def handle(delivery: AsyncDelivery[Order]) -> None:
        tasks.add(asyncio.create_task(later(delivery)))

    bench = benches.enter_context(Bench(handle, **kind.options))
    bench.post_orders(1, 2, 3)

    bench.run()

    assert sorted(numbers(bench.acknowledged)) == [1, 2, 3]
    assert len(tasks) == 3


@pytest.mark.requirement("E-37", "E-38")
def test_a_thread_without_any_context_may_settle(kind: Kind) -> None:
    def in_a_thread(delivery: Any) -> object:
        thread = threading.Thread(target=lambda: contextvars.Context().run(settled, delivery))
        thread.start()
        threads.append(thread)
        return None

    def settled(delivery: Any) -> None:
        call = delivery.ack()
        if inspect.isawaitable(call):
            asyncio.run(as_coroutine(call))

    threads: list[threading.Thread] = []
    broker = Broker()
    with consuming_by(kind, kind.explicit(in_a_thread), broker) as dispatcher:
        for number in range(5):
            dispatcher.post(Order(number))
        eventually(lambda: len(broker.named("acknowledge")) == 5)
    for thread in threads:
        thread.join()

    assert broker.named("acknowledge", "nack", "requeue", "reject") == ["acknowledge"] * 5


@pytest.mark.requirement("E-38")
def test_fifty_at_once_settle_it_once(kind: Kind) -> None:
    def in_many_threads(delivery: Any) -> object:
        if isinstance(delivery, AsyncDelivery):
            return at_once(delivery)
        with ThreadPoolExecutor(50) as pool:
            list(pool.map(lambda each: getattr(delivery, each)(), ["ack", "nack"] * 25))
        return None

    async def at_once(delivery: AsyncDelivery[Order]) -> None:
        await asyncio.gather(*(getattr(delivery, each)() for each in ["ack", "nack"] * 25))

    broker = Broker()
    with consuming_by(kind, kind.explicit(in_many_threads), broker) as dispatcher:
        dispatcher.post(Order())
        eventually(lambda: broker.named("acknowledge", "nack"))

    assert len(broker.named("acknowledge", "nack")) == 1


@pytest.mark.requirement("E-37")
def test_a_stop_waits_for_what_is_settled_later(kind: Kind) -> None:
    kept: list[Any] = []
    broker = Broker()
    dispatcher = consuming_by(kind, kind.explicit(kept.append), broker, grace=30)
    with dispatcher:
        dispatcher.post(Order())
        eventually(lambda: kept)
        stopping = threading.Thread(target=dispatcher.stop)
        stopping.start()
        assert stopping.is_alive()
        call = kept[0].ack()
        if inspect.isawaitable(call):
            asyncio.run(as_coroutine(call))
        stopping.join()

    assert broker.named("acknowledge") == ["acknowledge"]
    assert broker.bus.pending("orders") == 0


# -- both kinds, and wrong ones


@pytest.mark.requirement("E-32")
def test_handlers_of_both_kinds_run_in_one_program(kind: Kind, benches: ExitStack) -> None:
    plain, seen = Outcomes(None), Outcomes(None)
    bench = benches.enter_context(
        Bench(
            subscriptions=[
                Subscription(Order, topic="Order", channel="a", handlers=[kind.handler(plain)], **kind.options),
                Subscription(
                    Order,
                    topic="Order",
                    channel="b",
                    handlers=[kind.explicit(lambda delivery: seen(delivery) or delivery.ack())],
                    **kind.options,
                ),
            ]
        )
    )
    bench.post_orders(1)

    bench.run()

    assert plain.seen == [Order(1)]
    assert seen.seen[0].payload == Order(1)
    assert bench.calls == ["acknowledge"] * 2


def test_a_blocking_delivery_cannot_be_settled_on_a_running_loop(benches: ExitStack) -> None:
    kept: list[Delivery[Order]] = []
    bench = benches.enter_context(Bench(REACTOR.explicit(kept.append)))
    bench.post_orders(1)
    bench.step()

    async def wrongly() -> None:
        kept[0].ack()

    with pytest.raises(ConfigurationError, match="AsyncDelivery"):
        asyncio.run(wrongly())

    assert not kept[0].settled


def test_a_negative_delay_is_refused_and_settles_nothing(explicitly: Pumping) -> None:
    kept: list[Any] = []
    bench = explicitly(kept.append)
    bench.post_orders(1)
    bench.step()

    with pytest.raises(ValueError, match="negative"):
        finish(bench, kept[0].defer(-1))

    assert not kept[0].settled


def test_it_is_an_explicit_handler_that_a_harness_does_not_call(explicitly: Pumping) -> None:
    bench = explicitly(settle("ack"))

    with pytest.raises(ConfigurationError, match="post it"):
        bench.handle(Order())


# -- with attributes


@pytest.fixture
def attributed(kind: Kind, benches: ExitStack) -> Pumping:
    """Makes a bench whose handler settles by itself, and has these attributes."""

    def make(body: Callable[[Any], object], *attributes: Attribute, **options: Any) -> Bench:
        takes = AsyncDelivery[Order] if kind.awaits else Delivery[Order]
        return benches.enter_context(Bench(kind.handler(body, *attributes, takes=takes), **{**kind.options, **options}))

    return make


@pytest.mark.parametrize("auto_ack", [True, False])
@pytest.mark.requirement("B-13")
def test_a_feature_that_is_off_consumes_what_its_handler_would_settle(attributed: Pumping, *, auto_ack: bool) -> None:
    body = Outcomes(None)
    bench = attributed(
        body, FeatureSwitch("tea"), switches={"tea": False}, auto_ack=auto_ack, capabilities={"leases": False}
    )
    bench.post_orders(1, 2)

    bench.run()

    assert body.runs == 0
    assert numbers(bench.acknowledged) == [1, 2]


def test_a_feature_that_is_off_and_leaves_its_messages_leaves_these_too(attributed: Pumping) -> None:
    bench = attributed(settle("ack"), FeatureSwitch("tea", dont_ack=True), switches={"tea": False})
    bench.post_orders(1)
    bench.run()
    left = list(bench.calls)

    bench.switches.set("tea", on=True)
    bench.run()

    assert (left, list(bench.calls)) == (["nack"], ["nack", "acknowledge"])


def test_a_fallback_that_returns_has_consumed_the_message(attributed: Pumping, kind: Kind) -> None:
    given: list[Any] = []
    bench = attributed(Outcomes(ValueError("no tea")), Fallback(kind.handler(given.append)))
    bench.post_orders(1, 2)

    bench.run()

    assert [each.payload.number for each in given] == [1, 2]
    assert numbers(bench.acknowledged) == [1, 2]


@pytest.mark.parametrize("name", CALLS)
def test_a_fallback_may_settle_it_otherwise(attributed: Pumping, kind: Kind, name: str) -> None:
    bench = attributed(Outcomes(ValueError("no tea")), Fallback(kind.handler(settle(name))))
    bench.post_orders(1)

    bench.run(turns=1)

    assert list(bench.calls) == [CALLS[name]]


def test_what_was_skipped_and_then_run_after_all_is_the_handlers(attributed: Pumping) -> None:
    class Twice(Attribute):
        def around(self, request: object, rest: Rest) -> Steps:
            rest.skip()
            return (yield from rest(request))

    bench = attributed(Outcomes(None), Twice())
    bench.post_orders(1)

    bench.run(turns=1)

    assert bench.acknowledged == []


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "attribute",
    [Retry(attempts=3), Fallback(len), DontAckOnError(), RejectMessageOnError(), DeferMessageOnError(1)],
    ids=repr,
)
def test_a_handler_that_failed_after_it_had_settled_is_not_run_again(
    attributed: Pumping, attribute: Attribute, name: str
) -> None:
    settling = settle(name, then=ValueError("too late"))
    runs: list[object] = []

    def body(delivery: object) -> object:
        runs.append(delivery)
        return settling(delivery)

    bench = attributed(body, attribute)
    bench.post_orders(1)

    bench.run(turns=1)

    assert len(runs) == 1
    assert list(bench.calls) == [CALLS[name]]
    assert sum("failed after the message was settled" in text for text in bench.said) == 1


def test_a_handler_that_failed_to_settle_is_run_again(attributed: Pumping) -> None:
    bench = attributed(settle("ack"), Retry(attempts=3), capabilities={"leases": False})
    bench.broker.fail("acknowledge", TransportError("gone"))
    bench.post_orders(1)

    bench.run()

    assert len(bench.broker.named("acknowledge")) >= 2
    assert bench.pending == []


def test_what_is_settled_while_a_retry_waits_is_not_run_again(kind: Kind, benches: ExitStack) -> None:
    runs: list[object] = []

    def body(delivery: Any) -> None:
        runs.append(delivery)
        raise ValueError("no tea")

    class Settling(Retry):
        def wait_after(self, attempt: int) -> float:
            current_context().message.claim()  # as another thread would, while it waits
            return super().wait_after(attempt)

    takes = AsyncDelivery[Order] if kind.awaits else Delivery[Order]
    bench = benches.enter_context(Bench(kind.handler(body, Settling(3), takes=takes), **kind.options))
    bench.post_orders(1)

    bench.run(turns=1)

    assert len(runs) == 1


def test_what_a_handler_sends_after_it_has_settled_is_retried_as_ever(kind: Kind, benches: ExitStack) -> None:
    sent = Outcomes(ValueError("once"), None)

    def body(delivery: Any) -> object:
        if isinstance(delivery, AsyncDelivery):
            return body_async(delivery)
        delivery.ack()
        return current_context().processor.send(Placed())

    async def body_async(delivery: AsyncDelivery[Order]) -> object:
        await delivery.ack()
        return await current_context().processor.send_async(Placed())

    inner = kind.handler(sent, Retry(attempts=3), takes=Placed)
    bench = benches.enter_context(
        Bench(kind.explicit(body), inner, subscriptions=[Subscription(Order, topic="Order")], **kind.options)
    )
    bench.post_orders(1)

    bench.run()

    assert sent.runs == 2
    assert list(bench.calls) == ["acknowledge"]
