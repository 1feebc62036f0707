"""What a handler returns may show that its work was not done: such a message is not acknowledged."""

import asyncio
import concurrent.futures
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import ExitStack
from functools import wraps
from typing import Any

import pytest

from pump.errors import RejectMessageAction
from pump.handlers import Timeout
from pump.handling.pipeline import PipelineError
from support.pump_fixtures import Pumping
from support.pumps import KINDS, Bench, Kind, Order


async def coroutine() -> None:
    """Is awaited by nobody."""


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


class Eventually:
    """Can be awaited, and is no coroutine."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from asyncio.sleep(0).__await__()


async def answers(result: object) -> object:
    await asyncio.sleep(0)
    return result


def answering(kind: Kind, make: Callable[[], object]) -> Callable[[Any], object]:
    """A handler that returns what is made, and that is not awaited for it."""

    def handle(_: Order) -> object:
        return make()

    async def handle_async(_: Order) -> object:
        return await answers(make())

    return handle_async if kind.awaits else handle


UNDONE: dict[str, tuple[Callable[[], object], str]] = {
    "a coroutine": (coroutine, "returned a coroutine, which nobody waits for"),
    "an awaitable": (Eventually, "returned a Eventually, which nobody waits for"),
    "a future": (concurrent.futures.Future, "returned a Future, which nobody waits for"),
    "a generator": (generator, "returned a generator, which nobody iterates over"),
    "an async generator": (async_generator, "returned a async_generator, which nobody iterates over"),
    "a map": (lambda: map(print, [1]), "returned a map, which nobody iterates over"),
    "a decision": (lambda: RejectMessageAction("sold out"), "returned RejectMessageAction instead of raising it"),
    "an error": (lambda: ValueError("no tea"), "returned ValueError instead of raising it"),
}


@pytest.mark.parametrize("attributes", [(), (Timeout(60),)], ids=["bare", "with an attribute"])
@pytest.mark.parametrize("name", UNDONE)
def test_it_is_an_unhandled_error_that_says_what_was_returned(
    kind: Kind, benches: ExitStack, name: str, attributes: tuple[Any, ...]
) -> None:
    make, text = UNDONE[name]
    handler = answering(kind, make)
    for attribute in attributes:
        handler = attribute(handler)
    bench = benches.enter_context(Bench(handler, max_attempts=2, **kind.options))
    bench.post_orders(1)

    bench.run()

    assert bench.acknowledged == []
    assert list(bench.calls) == ["requeue", "reject"]
    (dead,) = bench.dead_letters
    assert isinstance(dead.error, PipelineError)
    assert text in str(dead.error)
    first, *others = [record for record in bench.logs if record.levelname == "ERROR"]
    assert text in str(first.exc_info and first.exc_info[1])
    assert others != []
    assert all(text in record.getMessage() for record in others)


@pytest.mark.parametrize("name", UNDONE)
def test_a_harness_raises_it_too(kind: Kind, benches: ExitStack, name: str) -> None:
    make, text = UNDONE[name]
    bench = benches.enter_context(Bench(answering(kind, make), **kind.options))

    with pytest.raises(PipelineError, match=text):
        bench.handle(Order())


@pytest.mark.parametrize("name", UNDONE)
def test_so_does_sending_in_the_process(benches: ExitStack, name: str) -> None:
    make, text = UNDONE[name]
    blocking, awaiting = (benches.enter_context(Bench(answering(kind, make))) for kind in KINDS[:2])

    with pytest.raises(PipelineError, match=text):
        blocking.processor.send(Order())
    with pytest.raises(PipelineError, match=text):
        asyncio.run(awaiting.processor.send_async(Order()))


def test_a_returned_error_is_the_cause(pumping: Pumping) -> None:
    returned = RejectMessageAction("sold out")
    bench = pumping(lambda _: returned)

    with pytest.raises(PipelineError) as raised:
        bench.handle(Order())

    assert raised.value.__cause__ is returned


def test_a_decorator_that_hides_an_async_handler_is_seen_when_it_runs(benches: ExitStack) -> None:
    runs: list[Order] = []

    async def handle(order: Order) -> None:
        runs.append(order)

    @wraps(handle)
    def traced(order: Order) -> Awaitable[None]:
        return handle(order)

    bench = benches.enter_context(Bench(traced, max_attempts=1))
    bench.post_orders(1)

    bench.run()

    assert (runs, bench.acknowledged, len(bench.dead_letters)) == ([], [], 1)


@pytest.mark.parametrize("result", [0, "done", [1], iter([1]), object(), {"a": 1}, int, ValueError])
def test_any_other_result_is_of_no_consequence(pumping: Pumping, result: object) -> None:
    bench = pumping(lambda _: result)
    bench.post_orders(1)

    bench.run()

    assert len(bench.acknowledged) == 1
    assert bench.handle(Order()) is result
