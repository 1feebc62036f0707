"""What attributes cost above the bare handler, and what a context costs. Bounds are in bare calls of that colour."""

import asyncio
import timeit
from collections.abc import Awaitable, Callable, Iterator

from bench.table import Row
from pump.attribute import Attribute, Rest, Scope, Steps
from pump.context import Context, enter_context, leave_context
from pump.handling.pipeline import Pipeline
from support.pipelines import NoProcessor

COUNT = 20_000
ROUNDS = 25

MOST = {"blocking": 30.0, "awaiting": 12.0}
"""How many bare calls three attributes may cost."""


class Passing(Attribute):
    """Does nothing but call the rest."""

    def around(self, request: object, rest: Rest) -> Steps:
        result = yield from rest(request)
        return result


def handle(request: object) -> object:
    return request


async def handle_async(request: object) -> object:
    return request


def blocking(call: Callable[[], object]) -> float:
    """Nanoseconds a call, in the best of several rounds: whatever else runs can only add time."""
    return min(timeit.repeat(call, number=COUNT, repeat=ROUNDS)) / COUNT * 1e9


def awaiting(call: Callable[[], Awaitable[object]]) -> float:
    """The same for a coroutine function."""

    async def measure() -> float:
        times = []
        for _ in range(ROUNDS):
            began = timeit.default_timer()
            for _ in range(COUNT):
                await call()
            times.append(timeit.default_timer() - began)
        return min(times) / COUNT * 1e9

    return asyncio.run(measure())


def dispatch() -> None:
    """Make and enter a context as a dispatch does."""
    leave_context(enter_context(Context(NO_PROCESSOR, "Handler")))


NO_PROCESSOR = NoProcessor()


def rows() -> Iterator[Row]:
    """The costs of none to five attributes in both colours, and of a context."""
    bare = {"blocking": blocking(lambda: handle("tea")), "awaiting": awaiting(lambda: handle_async("tea"))}
    for colour, cost in bare.items():
        yield Row(f"{colour}: bare handler", cost, "ns")
    for count in (0, 1, 3, 5):
        sync = Pipeline([Passing()] * count, "blocking", Scope())
        with_async = Pipeline([Passing()] * count, "awaiting", Scope())
        costs = {
            "blocking": blocking(lambda sync=sync: sync.run(handle, "tea")),  # type: ignore[misc]
            "awaiting": awaiting(lambda pipeline=with_async: pipeline.run(handle_async, "tea")),  # type: ignore[misc]
        }
        for colour, cost in costs.items():
            added = cost - bare[colour]
            yield Row(f"{colour}: {count} attributes add", added, "ns")
            if count == 3:
                yield Row(
                    f"{colour}: {count} attributes add", added / bare[colour], "bare calls", MOST[colour], "at most"
                )
    yield Row("a context, made and entered", blocking(dispatch), "ns")
    yield Row("a context, made", blocking(lambda: Context(NO_PROCESSOR, "Handler")), "ns")
