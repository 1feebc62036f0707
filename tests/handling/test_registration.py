"""What a handler takes and how it settles is found out once, when it is registered; what cannot be is refused there."""

from __future__ import annotations

import functools
import types
import typing
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pytest

from pump.errors import ConfigurationError, RejectMessageAction
from pump.handlers import DontAckOnError, Retry
from pump.handling.delivery import AsyncDelivery, Delivery
from pump.handling.registry import RequestHandler, register
from pump.program.dispatcher import Dispatcher
from pump.subscription import Subscription
from pump.testing import PumpHarness
from support.pumps import Bench, Kind, Order, Outcomes, numbers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterator
    from contextlib import ExitStack
    from decimal import Decimal

    from support.pump_fixtures import Pumping

T = TypeVar("T")


def plain(order: Order) -> None:
    """Its annotations are strings: see the top of this file."""


async def plain_async(order: Order) -> None: ...
def explicit(delivery: Delivery[Order]) -> None: ...
async def explicit_async(delivery: AsyncDelivery[Order]) -> None: ...
def of_a_list(delivery: Delivery[list[int]]) -> None: ...
def of_a_bare_list(request: list[int]) -> None: ...
def of_a_string(order: "Order") -> None: ...  # noqa: UP037 - a string within a string
def with_defaults(order: Order, dry_run: bool = False, *args: object, **options: object) -> None: ...  # noqa: FBT002


class Handler(RequestHandler[Order]):
    def handle(self, order: Order, /) -> None: ...


class AsyncHandler(RequestHandler[Order]):
    async def handle(self, order: Order, /) -> None: ...


class ExplicitHandler(RequestHandler[Delivery[Order]]):
    def handle(self, delivery: Delivery[Order], /) -> None: ...


class Unannotated(RequestHandler[Order]):
    def handle(self, order, /):  # type: ignore[no-untyped-def]  # noqa: ANN001,ANN201
        ...


class ExplicitUnannotated(RequestHandler[Delivery[Order]]):
    def handle(self, delivery, /):  # type: ignore[no-untyped-def]  # noqa: ANN001,ANN201
        ...


class Inherited(Handler):
    """Handles as its base does."""


class NoBase:
    def handle(self, order: Order) -> None: ...


class OfOneThing(RequestHandler[T], Generic[T]):
    def handle(self, request: T, /) -> None: ...


class OfOrders(OfOneThing[Order]):
    """Its method is annotated with a type variable."""


class OfDeliveries(OfOneThing[Delivery[T]], Generic[T]):
    """Leaves open what is delivered."""


class OfDeliveredOrders(OfDeliveries[Order]):
    """Fixes it, two steps later."""


class Callable_:  # noqa: N801 - a class of callables
    def __call__(self, order: Order) -> None: ...

    def method(self, order: Order) -> None: ...

    @staticmethod
    def static(order: Order) -> None: ...

    @classmethod
    def of_class(cls, order: Order) -> None: ...


def with_two(first: str, order: Order) -> None: ...


PLAIN: dict[str, object] = {
    "a function": plain,
    "a string in a string": of_a_string,
    "a class": Handler,
    "an instance": Handler(),
    "a class without annotations": Unannotated,
    "an inherited method": Inherited,
    "a class of its own": NoBase,
    "an instance of its own": NoBase(),
    "a callable object": Callable_(),
    "a bound method": Callable_().method,
    "a static method": Callable_.static,
    "a class method": Callable_.of_class,
    "a partial": functools.partial(with_two, "first"),
    "a partial of a partial": functools.partial(functools.partial(with_two), "first"),
    "defaults": with_defaults,
}


@pytest.mark.requirement("E-30")
@pytest.mark.parametrize("name", PLAIN)
def test_what_a_handler_takes_is_found(name: str) -> None:
    registration = register(PLAIN[name])

    assert registration.request is Order
    assert not registration.explicit
    assert registration.colour == "blocking"


@pytest.mark.requirement("E-30")
@pytest.mark.parametrize(
    ("handler", "wrapper", "request_", "colour"),
    [
        (explicit, Delivery, Order, "blocking"),
        (explicit_async, AsyncDelivery, Order, "awaiting"),
        (of_a_list, Delivery, list[int], "blocking"),
        (ExplicitHandler, Delivery, Order, "blocking"),
        (ExplicitUnannotated, Delivery, Order, "blocking"),
        (of_a_bare_list, None, list[int], "blocking"),
        (plain_async, None, Order, "awaiting"),
        (AsyncHandler, None, Order, "awaiting"),
    ],
)
def test_the_parameters_type_says_who_settles(handler: object, wrapper: object, request_: object, colour: str) -> None:
    registration = register(handler)

    assert (registration.wrapper, registration.request, registration.colour) == (wrapper, request_, colour)


@pytest.mark.requirement("E-30")
def test_the_type_of_a_generic_base_is_found() -> None:
    delivered = register(OfDeliveredOrders)

    assert register(OfOrders).request is Order
    assert register(OfOrders()).request is Order
    assert (delivered.request, delivered.wrapper) == (Order, Delivery)


def test_the_attributes_of_each_form_are_found() -> None:
    @Retry()
    @DontAckOnError()
    def handle(order: Order) -> None: ...

    names = [type(each).__name__ for each in register(functools.partial(handle)).attributes]

    assert names == ["Retry", "DontAckOnError"]


# -- refused


def none() -> None: ...
def two(first: Order, second: Order) -> None: ...
def keyword_only(*, order: Order) -> None: ...
def unannotated(order) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001
def anything(order: Any) -> None: ...
def an_object(order: object) -> None: ...
def nothing(order: None) -> None: ...
def unknown(order: Unknown) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def only_for_types(amount: Decimal) -> None: ...
def a_variable(request: T) -> T: ...  # type: ignore[empty-body]
def of_anything(delivery: Delivery[Any]) -> None: ...
def of_a_variable(delivery: Delivery[T]) -> T: ...  # type: ignore[empty-body]
def bare_delivery(delivery: Delivery) -> None: ...  # type: ignore[type-arg]
async def wrong_colour(delivery: Delivery[Order]) -> None: ...
def wrong_colour_too(delivery: AsyncDelivery[Order]) -> None: ...
def delivery_and_request(delivery: Delivery[Order], order: Order) -> None: ...


def generator(order: Order) -> Iterator[Order]:
    yield order


async def async_generator(order: Order) -> AsyncIterator[Order]:
    yield order


def generator_of_a_delivery(delivery: Delivery[Order]) -> Iterator[Order]:
    yield delivery.payload


@types.coroutine
def old_coroutine(order: Order) -> Generator[None, None, Order]:
    yield
    return order


class YieldingMethod(RequestHandler[Order]):
    def handle(self, order: Order) -> Iterator[Order]:
        yield order


class YieldingObject:
    async def __call__(self, order: Order) -> AsyncIterator[Order]:
        yield order


class NoHandle(RequestHandler[Order]):
    pass


class TwoParameters(RequestHandler[Order]):
    def handle(self, order: Order, other: int) -> None: ...  # type: ignore[override]


REFUSED: dict[str, tuple[object, str]] = {
    "no parameter": (none, "none has to take exactly one parameter.*it takes none"),
    "two parameters": (two, "two has to take exactly one parameter.*it takes first, second"),
    "a keyword": (keyword_only, "keyword_only has to take exactly one parameter"),
    "no annotation": (unannotated, "unannotated: its parameter .* needs a type hint"),
    "any": (anything, "anything: .*is not a type of request"),
    "object": (an_object, "an_object: .*is not a type of request"),
    "none": (nothing, "nothing: .*is not a type of request"),
    "an unknown name": (unknown, "unknown: the type 'Unknown'.*cannot be resolved"),
    "a name for types alone": (only_for_types, "only_for_types: the type 'Decimal'.*cannot be resolved"),
    "a type variable": (a_variable, "a_variable: .*is not a type of request"),
    "a bare delivery": (bare_delivery, r"bare_delivery: name the type of the request, Delivery\[YourRequest\]"),
    "a blocking delivery": (wrong_colour, r"wrong_colour is `async def`.*AsyncDelivery\[…\]"),
    "an async delivery": (wrong_colour_too, r"wrong_colour_too is `def`.*has to take Delivery\[…\]"),
    "both kinds at once": (delivery_and_request, "delivery_and_request has to take exactly one parameter"),
    "a generator": (generator, "generator has a `yield`: a call of it runs nothing"),
    "an async generator": (async_generator, "async_generator has a `yield`"),
    "a generator that would settle": (generator_of_a_delivery, "generator_of_a_delivery has a `yield`"),
    "a generator marked as a coroutine": (old_coroutine, "old_coroutine has a `yield`"),
    "a partial of a generator": (functools.partial(generator), "generator has a `yield`"),
    "a class whose handle yields": (YieldingMethod, "YieldingMethod has a `yield`"),
    "an instance whose handle yields": (YieldingMethod(), "YieldingMethod has a `yield`"),
    "an object that yields when called": (YieldingObject(), "YieldingObject has a `yield`"),
    "a class without handle": (NoHandle, "NoHandle is not a handler: it has no handle method"),
    "a method of two": (TwoParameters, "TwoParameters has to take exactly one parameter"),
    "a number": (42, "42 is not a handler"),
    "a type": (int, "int is not a handler: it has no handle method"),
    "a generic": (OfOneThing, "OfOneThing: ~T is not a type of request"),
    "a delivery of anything": (of_anything, "of_anything: .*is not a type of request"),
    "a delivery of a variable": (of_a_variable, "of_a_variable: ~T is not a type of request"),
}


@pytest.mark.requirement("E-31", "E-32")
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_handler_is_refused_by_name_and_reason(name: str) -> None:
    handler, text = REFUSED[name]

    with pytest.raises(ConfigurationError, match=text):
        register(handler)


@pytest.mark.requirement("E-31")
def test_it_is_refused_before_anything_is_opened() -> None:
    with pytest.raises(ConfigurationError, match="two has to take"):
        Dispatcher("memory://", handlers=[two])
    with pytest.raises(ConfigurationError, match="two has to take"):
        Dispatcher("memory://", subscriptions=[Subscription(Order, handlers=[two])])


def test_a_request_that_no_mapper_can_map_is_refused_by_name() -> None:
    class Opaque:
        def __init__(self, *, secret: object) -> None: ...

    def handle(request: Opaque) -> None: ...

    handle.__annotations__["request"] = Opaque

    with (
        pytest.raises(ConfigurationError, match="Opaque"),
        Dispatcher("memory://", handlers=[handle], subscriptions=[Subscription(Opaque)]),
    ):
        pytest.fail("it started")


# -- once


@pytest.mark.requirement("E-18")
@pytest.mark.parametrize("is_explicit", [False, True])
def test_the_hints_are_looked_at_once_and_never_for_a_message(
    monkeypatch: pytest.MonkeyPatch, kind: Kind, benches: ExitStack, *, is_explicit: bool
) -> None:
    body = Outcomes(None)
    handler = kind.explicit(lambda each: body(each) or each.ack()) if is_explicit else kind.handler(body)
    asked: list[object] = []
    original = typing.get_type_hints

    def spy(thing: Any, *arguments: Any, **options: Any) -> dict[str, Any]:
        asked.append(thing)
        return original(thing, *arguments, **options)

    monkeypatch.setattr(typing, "get_type_hints", spy)
    bench = benches.enter_context(Bench(handler, **kind.options))
    at_registration = asked.count(handler)
    bench.post_orders(*range(20))
    bench.run()

    assert body.runs == 20
    assert at_registration == 1
    assert asked.count(handler) == 1


@pytest.mark.requirement("E-18")
def test_a_plain_handler_is_settled_by_the_pump_and_an_explicit_one_is_not(
    pumping: Pumping, explicitly: Pumping
) -> None:
    implicit, own = pumping(Outcomes(None)), explicitly(Outcomes(None))
    for bench in (implicit, own):
        bench.post_orders(1)
        bench.step()

    assert implicit.calls == ["acknowledge"]
    assert own.calls == []


# -- run


FORMS: dict[str, Callable[[list[Order]], object]] = {}


def form(make: Callable[[list[Order]], object]) -> Callable[[list[Order]], object]:
    FORMS[make.__name__] = make
    return make


@form
def bound_method(seen: list[Order]) -> object:
    class Shop:
        def place(self, order: Order) -> None:
            seen.append(order)

    return Shop().place


@form
def partial_function(seen: list[Order]) -> object:
    def place(where: list[Order], order: Order) -> None:
        where.append(order)

    return functools.partial(place, seen)


@form
def shared_instance(seen: list[Order]) -> object:
    class Shop(RequestHandler[Order]):
        def handle(self, order: Order, /) -> None:
            seen.append(order)

    return Shop()


@form
def class_of_its_own_instances(seen: list[Order]) -> object:
    made: list[object] = []

    class Shop(RequestHandler[Order]):
        def __init__(self) -> None:
            made.append(self)

        def handle(self, order: Order, /) -> None:
            assert made[-1] is self
            assert len(made) == len(seen) + 1
            seen.append(order)

    return Shop


@form
def callable_object(seen: list[Order]) -> object:
    class Shop:
        def __call__(self, order: Order) -> None:
            seen.append(order)

    return Shop()


@form
def with_attributes(seen: list[Order]) -> object:
    class Shop(RequestHandler[Order]):
        @Retry(3)
        def handle(self, order: Order, /) -> None:
            seen.append(order)

    return Shop


@pytest.mark.requirement("E-30")
@pytest.mark.parametrize("name", FORMS)
def test_each_form_of_handler_runs(name: str, benches: ExitStack) -> None:
    seen: list[Order] = []
    bench = benches.enter_context(Bench(FORMS[name](seen)))
    bench.post_orders(1, 2, 3)

    bench.run()

    assert numbers(seen) == numbers(bench.acknowledged) == [1, 2, 3]


@pytest.mark.requirement("E-30")
def test_a_handler_of_a_list_runs(benches: ExitStack) -> None:
    seen: list[list[int]] = []

    def handle(delivery: Delivery[list[int]]) -> None:
        if sum(delivery.payload) > 10:
            raise RejectMessageAction("too much")
        seen.append(delivery.payload)
        delivery.ack()

    bench = benches.enter_context(Bench(handle))
    bench.post_raw("[1, 2, 3]")
    bench.post_raw("[1, 2, 30]")
    bench.post_raw('["x"]')

    bench.run()

    assert seen == [[1, 2, 3]]
    assert [each.request for each in bench.dead_letters] == [[1, 2, 30]]
    assert len(bench.invalid) == 1


def test_a_list_is_subscribed_to_as_any_other_type(benches: ExitStack) -> None:
    seen: list[list[int]] = []

    def collect(numbers: list[int]) -> None:
        seen.append(numbers)

    harness = benches.enter_context(PumpHarness(collect, subscriptions=[Subscription(list[int], topic="numbers")]))
    harness.post_raw(b"[1,2]", type="list[int]")
    harness.post_raw(b'["one"]', type="list[int]")

    harness.run()

    assert seen == [[1, 2]]
    assert len(harness.invalid) == 1
