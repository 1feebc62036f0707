"""Which handlers there are, what each takes, and which a message is for. Decided once, at registration."""

import inspect
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pump.attribute import Attribute, attributes_of, declared_decisions
from pump.colour import Colour, colour_of
from pump.delivery import AsyncDelivery, Delivery
from pump.errors import ConfigurationError, MessageAction
from pump.handler import RequestHandler


@dataclass(frozen=True, slots=True)
class Registration:
    """One handler, as found out when it was registered."""

    name: str
    request: Any
    """The type that it handles; for an explicit one, of the payload."""
    wrapper: type[Delivery[Any]] | type[AsyncDelivery[Any]] | None
    """What an explicit handler takes instead of the bare request."""
    colour: Colour
    handle: Callable[..., object]
    """What is called; for a class, its function, which wants an instance."""
    cls: type | None
    """The class of which every message gets an instance; None for a shared instance or a function."""
    attributes: tuple[Attribute, ...]
    declares: frozenset[type[MessageAction]]

    @property
    def explicit(self) -> bool:
        """Whether the handler settles its messages itself."""
        return self.wrapper is not None


def register(handler: object) -> Registration:
    """Find out what a handler takes. A ConfigurationError names the handler and what is wrong with it."""
    name, handle, cls = _named(handler)
    parameter = _only_parameter(name, handle, bound=cls is None)
    annotation = _annotation(
        name, handle, parameter, cls if cls is not None else type(getattr(handle, "__self__", None))
    )
    wrapper, request = _unwrapped(name, annotation)
    colour = colour_of(handle)
    if wrapper is not None and wrapper.colour != colour:
        twin = "AsyncDelivery" if colour == "awaiting" else "Delivery"
        kind = "async def" if colour == "awaiting" else "def"
        raise ConfigurationError(f"{name} is `{kind}` and takes {wrapper.__name__}: it has to take {twin}[…]")
    return Registration(name, request, wrapper, colour, handle, cls, attributes_of(handle), declared_decisions(handle))


def _named(handler: object) -> tuple[str, Callable[..., object], type | None]:
    if isinstance(handler, type):
        handle = getattr(handler, "handle", None)
        if not callable(handle) or handle is RequestHandler.handle:
            raise ConfigurationError(f"{handler.__qualname__} is no handler: it has no handle method")
        return handler.__qualname__, handle, handler
    if isinstance(handler, RequestHandler) or callable(getattr(handler, "handle", None)):
        return type(handler).__qualname__, handler.handle, None  # type: ignore[attr-defined]
    if not callable(handler):
        raise ConfigurationError(
            f"{handler!r} is no handler: give a class, an instance with a handle method, or a function"
        )
    function: object = handler
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__qualname__", type(handler).__qualname__), handler, None


def _only_parameter(name: str, handle: Callable[..., object], *, bound: bool) -> inspect.Parameter:
    try:
        parameters = list(inspect.signature(handle).parameters.values())
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{name} is no handler: its parameters cannot be read") from error
    if not bound:
        parameters = parameters[1:]
    wanted = [each for each in parameters if each.default is each.empty and each.kind not in _ANY_NUMBER]
    if len(wanted) != 1 or wanted[0].kind is inspect.Parameter.KEYWORD_ONLY:
        shown = ", ".join(each.name for each in wanted) or "none"
        raise ConfigurationError(f"{name} has to take exactly one parameter, the request; it takes {shown}")
    return wanted[0]


_ANY_NUMBER: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _annotation(name: str, handle: Callable[..., object], parameter: inspect.Parameter, owner: type) -> Any:  # noqa: ANN401 - a type may be any type form
    function: Any = handle
    while isinstance(function, partial):
        function = function.func
    function = getattr(function, "__func__", function)
    if not inspect.isfunction(function):
        function = type(function).__call__
    if parameter.annotation is parameter.empty:
        return _from_base(name, parameter.name, owner)
    try:
        return typing.get_type_hints(function, include_extras=True)[parameter.name]
    except Exception as error:
        found = _from_base(name, parameter.name, owner, absent=None)
        if found is not None:
            return found
        raise ConfigurationError(
            f"{name}: the type {parameter.annotation!r} of its parameter {parameter.name} cannot be resolved ({error})"
        ) from error


_RAISE: Final = object()


def _from_base(name: str, parameter: str, owner: type, absent: object = _RAISE) -> Any:  # noqa: ANN401 - a type may be any type form
    """The T of RequestHandler[T], where the method's own annotation does not say it."""
    for cls in owner.__mro__:
        for base in getattr(cls, "__orig_bases__", ()):
            if typing.get_origin(base) is RequestHandler and not isinstance(typing.get_args(base)[0], typing.TypeVar):
                argument = typing.get_args(base)[0]
                if not isinstance(argument, typing.ForwardRef | str):
                    return argument
    if absent is not _RAISE:
        return absent
    raise ConfigurationError(f"{name}: say by a type hint what its parameter {parameter} is")


def _unwrapped(
    name: str,
    annotation: Any,  # noqa: ANN401 - a type may be any type form
) -> tuple[type[Delivery[Any]] | type[AsyncDelivery[Any]] | None, Any]:
    origin = typing.get_origin(annotation) or annotation
    if isinstance(origin, type) and issubclass(origin, Delivery | AsyncDelivery):
        arguments = typing.get_args(annotation)
        if not arguments:
            raise ConfigurationError(f"{name}: say what is delivered, {origin.__name__}[YourRequest]")
        return origin, arguments[0]
    if isinstance(annotation, typing.TypeVar) or annotation in {Any, object, None, type(None), inspect.Parameter.empty}:
        raise ConfigurationError(f"{name}: {annotation!r} is no type of request")
    return None, annotation


class Registry:
    """All handlers of one dispatcher."""

    def __init__(self, handlers: Iterable[object]) -> None:
        self.registrations: Final = tuple(register(handler) for handler in handlers)

    def handling(self, request: object) -> Sequence[Registration]:
        """The handlers of one type of request."""
        return tuple(each for each in self.registrations if each.request == request)
