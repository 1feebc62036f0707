import asyncio
import inspect
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pump.attribute import Scope, attributes_of
from pump.clock import ManualClock, SystemClock
from pump.context import Context, current_context, find_context, in_context
from pump.errors import ConfigurationError, HandlerTimeout, PumpError
from pump.handlers import Retry, Timeout
from pump.handling.pipeline import Pipeline
from pump.message import Header, Message
from support.pipelines import Failing, Harness, NoProcessor
from support.waiting import eventually

if TYPE_CHECKING:
    from pump.colour import Colour


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def context(clock: ManualClock) -> Context:
    return Context(NoProcessor(), "Handler", Message(Header("m-1", "orders"), b""), clock=clock)


def prepared(handle: Callable[[Any], Any], clock: ManualClock) -> Callable[..., Any]:
    colour: Colour = "awaiting" if inspect.iscoroutinefunction(handle) else "blocking"
    scope = Scope(clock=clock, channel="orders", handler="Handler")
    return partial(Pipeline(attributes_of(handle), colour, scope).run, handle)


def run_async(handle: Callable[[Any], Any], clock: ManualClock) -> Any:
    async def main() -> Any:
        with in_context(context(clock)):
            return await prepared(handle, clock)("tea")

    return asyncio.run(main())


def run_sync(handle: Callable[[Any], Any], clock: ManualClock) -> Any:
    with in_context(context(clock)):
        return prepared(handle, clock)("tea")


# -- both colours


def test_a_handler_that_is_quick_enough_is_left_alone(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()

    assert harness.around(Timeout(5), Failing(), clock=clock)() == "done"
    clock.advance(60)

    assert not harness.context.cancelled.is_set()
    assert caplog.records == []


def test_its_own_errors_pass(harness: Harness) -> None:
    with pytest.raises(ValueError, match="own"):
        harness.around(Timeout(5), Failing(ValueError("own")), clock=ManualClock())()


@pytest.mark.parametrize("duration", [0, -1])
def test_a_duration_that_makes_no_sense_shows_at_start(duration: float) -> None:
    with pytest.raises(ConfigurationError, match="longer than 0"):
        Timeout(duration)


def test_it_works_outside_of_any_dispatch(harness: Harness) -> None:
    handle = Timeout(5)(harness.handler(lambda _: find_context()))
    run = harness.bound(handle, clock=ManualClock())

    async def main() -> object:
        return await run("tea")

    assert (asyncio.run(main()) if harness.colour == "awaiting" else run("tea")) is None


def test_on_the_real_clock(caplog: pytest.LogCaptureFixture) -> None:
    clock = SystemClock()

    @Timeout(0.02)
    async def handle_async(request: object) -> None:
        await asyncio.Event().wait()

    @Timeout(0.02)
    def handle(request: object) -> bool:
        return clock.wait(current_context().cancelled, 5)

    async def main() -> None:
        await Pipeline(attributes_of(handle_async), "awaiting", Scope(clock=clock)).run(handle_async, "tea")

    with pytest.raises(HandlerTimeout):
        asyncio.run(main())
    with in_context(Context(NoProcessor(), "Handler", clock=clock)):
        assert Pipeline(attributes_of(handle), "blocking", Scope(clock=clock)).run(handle, "tea") is True
    eventually(lambda: "takes longer than 0.02 s" in caplog.text)  # it is told after the handler has been


# -- awaiting


def test_an_async_handler_is_cancelled_and_the_time_out_raised(clock: ManualClock) -> None:
    seen: list[bool] = []

    @Timeout(5)
    async def handle(request: object) -> None:
        clock.advance(5)
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(current_context().cancelled.is_set())

    with pytest.raises(HandlerTimeout, match="longer than 5 s") as raised:
        run_async(handle, clock)

    assert isinstance(raised.value, TimeoutError)
    assert isinstance(raised.value.__cause__, asyncio.CancelledError)
    assert seen == [True]


def test_after_a_time_out_the_task_is_not_cancelled_any_more(clock: ManualClock) -> None:
    @Timeout(5)
    async def handle(request: object) -> None:
        clock.advance(5)
        await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        with in_context(context(clock)) as current:
            with pytest.raises(HandlerTimeout):
                await prepared(handle, clock)("tea")
            assert task.cancelling() == 0
            await asyncio.sleep(0)
            assert not current.cancelled.is_set()

    asyncio.run(main())


def test_a_time_out_can_be_retried(clock: ManualClock) -> None:
    runs: list[object] = []

    @Retry(2, first=0, longest=0)
    @Timeout(5)
    async def handle(request: object) -> str:
        runs.append(request)
        if len(runs) == 1:
            clock.advance(5)
            await asyncio.Event().wait()
        return "done"

    assert run_async(handle, clock) == "done"
    assert len(runs) == 2


@pytest.mark.requirement("B-15")
@pytest.mark.parametrize("also_late", [False, True])
def test_an_outer_cancellation_stays_a_cancellation(clock: ManualClock, *, also_late: bool) -> None:
    @Timeout(5)
    async def handle(request: object) -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.ensure_future(prepared(handle, clock)("tea"))
        await asyncio.sleep(0)
        if also_late:
            clock.advance(5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelling() >= 1

    asyncio.run(main())


def test_the_inner_of_two_time_outs_does_not_end_the_outer(clock: ManualClock) -> None:
    @Timeout(60)
    @Timeout(5)
    async def handle(request: object) -> None:
        clock.advance(5)
        await asyncio.Event().wait()

    with pytest.raises(HandlerTimeout, match="longer than 5 s"):
        run_async(handle, clock)


def test_the_outer_of_two_time_outs_passes_the_inner(clock: ManualClock) -> None:
    @Timeout(5)
    @Timeout(60)
    async def handle(request: object) -> None:
        clock.advance(5)
        await asyncio.Event().wait()

    with pytest.raises(HandlerTimeout, match="longer than 5 s"):
        run_async(handle, clock)


def test_a_handler_that_survives_its_cancellation_has_its_own_outcome(clock: ManualClock) -> None:
    @Timeout(5)
    async def handle(request: object) -> str:
        clock.advance(5)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "saved"
        return "never"

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        assert await prepared(handle, clock)("tea") == "saved"
        assert task.cancelling() == 0

    asyncio.run(main())


def test_a_handler_that_fails_when_cancelled_has_its_own_error(clock: ManualClock) -> None:
    @Timeout(5)
    async def handle(request: object) -> None:
        clock.advance(5)
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("while cleaning up")

    with pytest.raises(ValueError, match="while cleaning up"):
        run_async(handle, clock)


def test_an_alarm_that_rings_as_the_handler_returns_cancels_nothing(clock: ManualClock) -> None:
    @Timeout(5)
    async def handle(request: object) -> str:
        clock.advance(5)
        return "done"

    async def main() -> None:
        assert await prepared(handle, clock)("tea") == "done"
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(main())


def test_an_alarm_that_rings_after_the_loop_is_closed_is_nothing(clock: ManualClock) -> None:
    kept: list[Any] = []

    class Keeping(ManualClock):
        def alarm(self, delay: float, ring: Callable[[], None]) -> Callable[[], None]:
            kept.append(ring)
            return super().alarm(delay, ring)

    @Timeout(5)
    async def handle(request: object) -> str:
        return "done"

    assert run_async(handle, Keeping()) == "done"
    kept[0]()


def test_without_a_task_there_is_nothing_to_cancel(clock: ManualClock) -> None:
    @Timeout(5)
    async def handle(request: object) -> None:
        """Is never reached."""

    errors: list[BaseException] = []

    def drive() -> None:
        try:
            prepared(handle, clock)("tea").send(None)
        except PumpError as error:
            errors.append(error)

    async def main() -> None:
        asyncio.get_running_loop().call_soon(drive)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(main())

    assert "needs an asyncio task" in str(errors[0])


# -- blocking


def test_a_blocking_handler_goes_on_and_is_told(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[bool] = []

    @Timeout(5)
    def handle(request: object) -> str:
        seen.append(current_context().cancelled.is_set())
        clock.advance(5)
        seen.append(current_context().cancelled.is_set())
        return "done"

    assert run_sync(handle, clock) == "done"
    assert seen == [False, True]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "takes longer than 5 s" in caplog.text
    assert "(message m-1, channel orders, handler Handler)" in caplog.text


def test_a_blocking_handlers_own_error_stands(clock: ManualClock) -> None:
    @Timeout(5)
    def handle(request: object) -> None:
        clock.advance(5)
        raise ValueError("own")

    with pytest.raises(ValueError, match="own"):
        run_sync(handle, clock)


def test_the_next_attempt_of_a_blocking_handler_has_its_whole_time(clock: ManualClock) -> None:
    seen: list[bool] = []

    @Retry(2, first=0, longest=0)
    @Timeout(5)
    def handle(request: object) -> None:
        seen.append(current_context().cancelled.is_set())
        clock.advance(6 - 2 * len(seen))
        seen.append(current_context().cancelled.is_set())
        if len(seen) == 2:
            raise ValueError

    run_sync(handle, clock)

    assert seen == [False, False, False, False]


def test_a_stop_of_the_pump_reaches_a_handler_within_its_time_out(clock: ManualClock) -> None:
    @Timeout(5)
    def handle(request: object) -> bool:
        threading.Thread(target=current.cancel).start()
        return clock.wait(current_context().cancelled, None)

    current = context(clock)
    with in_context(current):
        assert prepared(handle, clock)("tea") is True
