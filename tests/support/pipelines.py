"""Runs handlers through their pipelines, in both colours, so that each attribute's tests are written once."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from pump.attribute import Attribute, Rest, Scope, Steps, attributes_of
from pump.clock import Clock, ManualClock, Signal
from pump.colour import Colour
from pump.context import Context, in_context
from pump.handling.pipeline import Pipeline
from pump.message import Header, Message
from pump.program.processor import CommandProcessor
from pump.telemetry import Telemetry

Result = TypeVar("Result")
Body = Callable[[Any], Any]


class Harness:
    """One colour. Plain functions become `def` handlers, or `async def` ones that let others run once."""

    def __init__(self, colour: Colour, clock: Clock | None = None) -> None:
        self.colour: Colour = colour
        self.clock = clock or ManualClock(automatic=True)
        self.told: list[tuple[str, dict[str, object]]] = []
        self.message = Message(Header("m-1", "orders"), b"{}")
        self.context = Context(NoProcessor(), "Handler", self.message, clock=self.clock, stopping=Signal())

    def handler(self, body: Body) -> Callable[..., Any]:
        """A handler of this colour with this body."""
        if self.colour == "blocking":

            def handle(request: object) -> object:
                return body(request)

            return handle

        async def handle_async(request: object) -> object:
            await asyncio.sleep(0)
            return body(request)

        return handle_async

    def scope(self, **options: Any) -> Scope:
        telemetry = Telemetry(lambda event, fields: self.told.append((event, dict(fields))))
        names = {"clock": self.clock, "channel": "orders", "handler": "Handler", "telemetry": telemetry}
        return Scope(**{**names, **options})

    def bound(self, handle: Callable[..., Any], **scope: Any) -> Callable[..., Any]:
        """The bare pipeline of a handler that is marked already, for tests that drive it themselves."""
        return partial(Pipeline(attributes_of(handle), self.colour, self.scope(**scope)).run, handle)

    def ready(self, handle: Callable[..., Any], **scope: Any) -> Callable[..., Any]:
        """The pipeline of a handler that is marked already; each call is a message."""
        return self._run(self.bound(handle, **scope))

    def around(self, attribute: Attribute, body: Body, **scope: Any) -> Callable[..., Any]:
        """The pipeline of one attribute around a body."""
        return self.ready(attribute(self.handler(body)), **scope)

    def _run(self, pipeline: Callable[..., Any]) -> Callable[..., Any]:
        def run(request: object = "request") -> object:
            with in_context(self.context):
                if self.colour == "blocking":
                    return pipeline(request)
                return asyncio.run(_awaited(pipeline, request))

        return run


class NoProcessor(CommandProcessor):
    """Sends nothing."""

    def __init__(self) -> None:
        """It has nothing to send with."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was not expected")


class Failing:
    """A body that fails with these errors, one in each run, and then succeeds; it counts its runs."""

    def __init__(self, *errors: BaseException) -> None:
        self._errors = list(errors)
        self.runs = 0

    def __call__(self, request: object) -> str:
        self.runs += 1
        if self._errors:
            raise self._errors.pop(0)
        return "done"


class Noting(Attribute):
    """Notes when it is passed, on the way in and on the way out."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.notes = notes

    def around(self, request: object, rest: Rest) -> Steps:
        self.notes.append(f"{self.name} in")
        try:
            return (yield from rest(request))
        finally:
            self.notes.append(f"{self.name} out")


class Shout(Attribute):
    def around(self, request: object, rest: Rest) -> Steps:
        result = yield from rest(f"{request}!")
        return f"{result}!"


class Stepwise(Attribute):
    """An attribute made of a generator function."""

    def __init__(self, steps: Callable[[Any, Rest], Steps]) -> None:
        self._steps = steps

    def around(self, request: object, rest: Rest) -> Steps:
        return self._steps(request, rest)


async def _awaited(pipeline: Callable[..., Coroutine[Any, Any, Result]], request: object) -> Result:
    return await pipeline(request)
