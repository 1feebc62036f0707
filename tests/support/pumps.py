"""Every kind of pump with one handler, on a bus that fails on demand, so that a test of pumps is written once."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from pump.attribute import Attribute
from pump.clock import Clock
from pump.handling.delivery import AsyncDelivery, Delivery
from pump.message import Message
from pump.program.dispatcher import Dispatcher
from pump.request import Command, Event
from pump.subscription import Publication, Subscription
from pump.testing import PumpHarness, memory_transport
from pump.transport_kit.protocol import Transport

Body = Callable[[Any], object]

AGES: Final = 1e9
"""Longer than anything, in seconds."""


@dataclass(frozen=True)
class Order(Command):
    """The request of the tests' handlers."""

    number: int = 1


@dataclass(frozen=True)
class Placed(Event):
    """A request that several handlers may handle."""

    number: int = 1


class Kind(NamedTuple):
    """A kind of pump. Bodies are plain functions; their result is awaited if it must be."""

    name: str
    awaits: bool = False
    options: Mapping[str, Any] = {}

    def handler(self, body: Body, *attributes: Attribute, takes: Any = None) -> Callable[[Any], object]:
        """A handler of orders, or of what it takes, with this body, in this pump's colour."""

        def handle(request: Any) -> object:
            return body(request)

        async def handle_async(request: Any) -> object:
            await asyncio.sleep(0)
            return await result_of(body(request))

        made = handle_async if self.awaits else handle
        made.__annotations__["request"] = Order if takes is None else takes
        return _marked(made, attributes)

    def explicit(self, body: Body) -> Callable[[Any], object]:
        """A handler of deliveries of orders, in this pump's colour."""
        return self.handler(body, takes=AsyncDelivery[Order] if self.awaits else Delivery[Order])

    def handler_class(self, body: Body, takes: type = Order) -> type:
        """A class of handlers."""
        handle = self.handler(body, takes=takes)
        return type("Handling", (), {"handle": self._method(handle)})

    def _method(self, handle: Callable[[Any], object]) -> Callable[[Any, Any], object]:
        def method(_: Any, request: Any) -> object:
            return handle(request)

        async def method_async(_: Any, request: Any) -> object:
            return await result_of(handle(request))

        made = method_async if self.awaits else method
        made.__annotations__["request"] = handle.__annotations__["request"]
        return made


REACTOR: Final = Kind("reactor")
PROACTOR: Final = Kind("proactor", awaits=True)
CONCURRENT: Final = Kind("concurrent", awaits=True, options={"in_flight": 4})
KINDS: Final = (REACTOR, PROACTOR, CONCURRENT)


async def result_of(value: object) -> object:
    """The value, awaited if it can be."""
    return await value if inspect.isawaitable(value) else value


def _marked(handle: Callable[[Any], object], attributes: Sequence[Attribute]) -> Callable[[Any], object]:
    for attribute in reversed(attributes):
        handle = attribute(handle)
    return handle


class Outcomes:
    """A body with a list of endings; the last one repeats. Exceptions are raised, other values returned."""

    def __init__(self, *outcomes: object) -> None:
        self.seen: list[Any] = []
        self._outcomes: Final = list(outcomes)

    def __call__(self, request: Any) -> object:
        self.seen.append(request)
        outcome = self._outcomes.pop(0) if len(self._outcomes) > 1 else (*self._outcomes, None)[0]
        if isinstance(outcome, BaseException):
            raise _fresh(outcome)
        return outcome

    @property
    def runs(self) -> int:
        """How often the handler was run."""
        return len(self.seen)


def _fresh(error: BaseException) -> BaseException:
    """The error without the traceback of an earlier raise."""
    return error.with_traceback(None)


class Broker:
    """A memory transport that notes every call of its consumers, and fails where it is told to."""

    def __init__(self, clock: Clock | None = None, **capabilities: Any) -> None:
        inner: Any = memory_transport(clock)
        self._inner = inner
        self.bus = inner.bus
        self.capabilities = replace(memory_transport().capabilities, **capabilities)
        self.calls: Final[list[tuple[str, tuple[Any, ...]]]] = []
        """The consumers' calls, in order, with their arguments; failed ones too."""
        self.leases = self.capabilities.leases
        self.renews_on_the_loop = False
        """Whether awaiting consumers can renew leases only on their loop."""
        self.on_call: Callable[[str], object] = str
        """Called with the name of each call, before the call is made."""
        self._faults: Final[dict[str, list[BaseException]]] = {}
        self._always: Final[dict[str, BaseException]] = {}
        self._cursed: Final[dict[tuple[str, str], BaseException]] = {}

    @classmethod
    def from_url(cls, url: str) -> "Broker":
        raise NotImplementedError(url)

    def fail(self, call: str, *errors: BaseException) -> None:
        """Let the next calls of this name fail, one error for each. "open" is the opening of a consumer."""
        self._faults.setdefault(call, []).extend(errors)

    def break_down(self, call: str, error: BaseException) -> None:
        """Let every call of this name fail, until `mend`."""
        self._always[call] = error

    def fail_for(self, name: str, id: str, error: BaseException) -> None:  # noqa: A002 - as the message has it
        """Fail each call of this name that is for this message."""
        self._cursed[name, id] = error

    def mend(self) -> None:
        """Fail no more."""
        self._faults.clear()
        self._cursed.clear()
        self._always.clear()

    def named(self, *names: str) -> list[str]:
        """The calls of these names, in order."""
        return [name for name, _ in self.calls if name in names]

    def called(self, name: str, *arguments: Any) -> None:
        self.calls.append((name, arguments))
        self.on_call(name)
        faults = self._faults.get(name)
        about = arguments[0].id if arguments and isinstance(arguments[0], Message) else ""
        error = faults.pop(0) if faults else self._cursed.get((name, about)) or self._always.get(name)
        if error is not None:
            raise _fresh(error)

    def prepare(self, subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> None:
        self.called("prepare")
        self._inner.prepare(subscriptions, publications)

    async def async_prepare(self, subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> None:
        self.prepare(subscriptions, publications)

    def consumer(self, subscription: Subscription) -> Any:
        self.called("open")
        return _Consumer(self, self._inner.consumer(self._as_leased(subscription)))

    async def async_consumer(self, subscription: Subscription) -> Any:
        self.called("open")
        return _Consumer(self, await self._inner.async_consumer(self._as_leased(subscription)))

    def _as_leased(self, subscription: Subscription) -> Subscription:
        return subscription if self.leases else replace(subscription, lease=AGES)

    def producer(self) -> Any:
        return self._inner.producer()

    async def async_producer(self) -> Any:
        return await self._inner.async_producer()


def consuming(
    kind: Kind, body: Body, broker: Broker | None = None, *, clock: Clock | None = None, **options: Any
) -> Dispatcher:
    """A real dispatcher of this kind, with this body for the handler of what is posted to `orders`."""
    return consuming_by(kind, kind.handler(body), broker, clock=clock, **options)


def consuming_by(
    kind: Kind, handler: object, broker: Broker | None = None, *, clock: Clock | None = None, **options: Any
) -> Dispatcher:
    """The same with a handler of its own."""
    return Dispatcher(
        broker or Broker(),
        handlers=[handler],
        subscriptions=[Subscription(Order, topic="orders", **{**kind.options, **options})],
        publications=[Publication(Order, topic="orders")],
        clock=clock,
    )


class _Consumer:
    """A consumer of either colour; its calls pass through the Broker."""

    def __init__(self, broker: Broker, consumer: Any) -> None:
        self._broker = broker
        self._consumer = consumer

    def __getattr__(self, name: str) -> Any:
        if name.endswith("_from_thread") and self._broker.renews_on_the_loop:
            raise AttributeError(name)
        value = getattr(self._consumer, name)
        if not callable(value):
            return value

        def call(*arguments: Any) -> Any:
            self._broker.called(name.removesuffix("_from_thread"), *arguments)
            return value(*arguments)

        return call

    def close(self) -> Any:
        """Close it even if the call is made to fail."""
        closing = self._consumer.close()
        if inspect.isawaitable(closing):
            return self._closed(closing)
        self._broker.called("close")
        return None

    async def _closed(self, closing: Awaitable[None]) -> None:
        await closing
        self._broker.called("close")

    def receive(self, limit: int, timeout: float) -> Any:
        self._broker.called("receive", limit, timeout)
        result = self._consumer.receive(limit, timeout)
        return self._awaited(result) if inspect.isawaitable(result) else self._delivered(result)

    async def _awaited(self, result: Any) -> Sequence[Message]:
        return self._delivered(await result)

    def _delivered(self, messages: Sequence[Message]) -> Sequence[Message]:
        if not self._broker.leases:
            for message in messages:
                message.lease_expires = None
        return messages


class Bench(PumpHarness):
    """A harness whose broker records its calls and can fail. `leases=False` is a broker without leases."""

    def __init__(self, *handlers: object, capabilities: Mapping[str, Any] | None = None, **options: Any) -> None:
        self._capabilities = {} if capabilities is None else capabilities
        super().__init__(*handlers, **options)

    def _transport(self) -> Transport:
        self.broker = Broker(self.clock, **self._capabilities)
        return self.broker

    def post_orders(self, *numbers: int, key: str | None = None) -> None:
        """Post orders of these numbers; those of a key are handled one after another by every pump."""
        for number in numbers:
            self.post(Order(number), id=f"order-{number}", key=key)

    @property
    def said(self) -> list[str]:
        """What was logged."""
        return [record.getMessage() for record in self.logs]


def numbers(requests: Iterable[Any]) -> list[int]:
    """The numbers of orders."""
    return [request.number for request in requests]


def shown(bench: Bench) -> list[str]:
    """The calls of a bench, each with its delay or reason."""
    details = [(each.delay if each == "requeue" else each.rejection and each.rejection.reason) for each in bench.calls]
    return [
        f"{call} {detail:g}" if isinstance(detail, float) else f"{call} {detail or ''}".strip()
        for call, detail in zip(bench.calls, details, strict=True)
    ]
