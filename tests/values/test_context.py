import asyncio
import threading

import pytest

from pump.clock import ManualClock, Signal
from pump.context import Context, current_context, either, find_context, in_context
from pump.errors import PumpError
from pump.handling.registry import RequestHandler
from pump.message import Header, Message
from support.pipelines import NoProcessor


def test_a_handler_without_a_handle_method_says_so() -> None:
    class Empty(RequestHandler[str]):
        pass

    with pytest.raises(NotImplementedError, match="Empty has no handle method for str"):
        Empty().handle("tea")


def test_a_shared_handler_reaches_the_context_of_its_own_dispatch() -> None:
    class Handler(RequestHandler[str]):
        async def handle(self, request: str) -> str:
            await asyncio.sleep(0)
            return f"{self.context.handler} has {request}"

    handler = Handler()

    async def dispatch(name: str) -> str:
        with in_context(Context(NoProcessor(), name)):
            return await handler.handle(name)

    async def main() -> list[str]:
        return await asyncio.gather(*(dispatch(name) for name in "abc"))

    assert asyncio.run(main()) == ["a has a", "b has b", "c has c"]


def test_outside_of_a_dispatch_there_is_no_context() -> None:
    assert find_context() is None
    with pytest.raises(PumpError, match="no context here"):
        current_context()
    with pytest.raises(PumpError, match="no context here"):
        _ = RequestHandler[str]().context


def test_a_context_tells_of_its_message() -> None:
    message = Message(Header("m-1", "orders", headers={"tenant": "a"}), b"")
    context = Context(NoProcessor(), "Handler", message)

    assert context.has_message
    assert context.message is message
    assert context.headers == {"tenant": "a"}
    assert context.bag is context.bag
    assert repr(context).startswith("<Context of Handler: <Message m-1")


def test_a_request_sent_in_the_process_has_a_context_without_a_message() -> None:
    context = Context(NoProcessor(), "Handler")

    assert not context.has_message
    assert context.headers == {}
    assert context.remaining_lease() is None
    assert repr(context) == "<Context of Handler: no message>"
    with pytest.raises(PumpError, match="without a message"):
        _ = context.message


def test_the_remaining_lease_is_told_in_seconds() -> None:
    clock = ManualClock()
    message = Message(Header("m-1"), b"", lease_expires=clock.monotonic() + 30)
    context = Context(NoProcessor(), "Handler", message, clock=clock)

    assert context.remaining_lease() == 30
    clock.advance(10)
    assert context.remaining_lease() == 20
    assert context.remaining_lease(ManualClock(clock.monotonic() + 15)) == 5
    clock.advance(60)
    assert context.remaining_lease() == 0
    message.lease_expires = clock.monotonic() + 10
    message.lost = True
    assert context.remaining_lease() == 0
    message.lease_expires = None
    assert context.remaining_lease() is None


def test_a_nested_context_shares_message_and_cancellation_but_not_the_bag() -> None:
    outer = Context(NoProcessor(), "Outer", Message(Header("m-1"), b""))
    inner = outer.nested("Inner")
    inner.bag["seen"] = True

    inner.cancel()

    assert inner.message is outer.message
    assert outer.bag == {}
    assert outer.cancelled.is_set()
    assert inner.cancelled.is_set()


def test_a_narrowed_cancellation_concerns_only_its_part() -> None:
    context = Context(NoProcessor(), "Handler")

    with context.narrowed() as signal:
        assert context.cancelled is signal
        signal.set()
    assert not context.cancelled.is_set()

    with context.narrowed() as first, context.narrowed() as second:
        context.cancel()
        assert first.is_set()
        assert second.is_set()
    assert context.cancelled.is_set()


def test_a_cancellation_may_come_from_another_thread_before_the_handler_looks() -> None:
    for context in [Context(NoProcessor(), "Handler") for _ in range(200)]:
        threads = [
            threading.Thread(target=context.cancel),
            threading.Thread(target=getattr, args=(context, "cancelled")),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert context.cancelled.is_set()


def test_two_that_ask_for_the_cancellation_at_once_get_the_same_one(monkeypatch: pytest.MonkeyPatch) -> None:
    context, others = Context(NoProcessor(), "Handler"), Signal()

    class OvertakenHere:
        def __enter__(self) -> None:
            context._cancelled = others

        def __exit__(self, *_: object) -> None:
            """Nothing."""

    monkeypatch.setattr("pump.context._making", OvertakenHere())

    assert context.cancelled is others


def test_either_signal_wakes_and_neither_is_held_on_to() -> None:
    first, second = Signal(), Signal()

    with either(first, None, second) as signal:
        assert not signal.is_set()
        second.set()
        assert signal.is_set()
    with either(first) as signal:
        pass
    first.set()

    assert not signal.is_set()
