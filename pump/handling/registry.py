"""The handlers of a program: what each one takes is determined once, when it is registered."""

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Generic, TypeVar

from pump.attribute import Attribute, attributes_of, declared_decisions, without_parentheses
from pump.checks import named
from pump.colour import Colour, colour_of, has_yield
from pump.context import Context, current_context
from pump.errors import ConfigurationError, MessageAction
from pump.handling.delivery import AsyncDelivery, Delivery

T = TypeVar("T", contravariant=True)


class RequestHandler(Generic[T]):
    """Handles one type of request: by `def handle` in a blocking pump, `async def handle` in an awaiting one."""

    __slots__ = ()

    def handle(self, request: T, /) -> object:
        """Handle a request: return when it is done, raise a MessageAction to decide otherwise, or fail."""
        raise NotImplementedError(f"{type(self).__name__} has no handle method for {type(request).__name__}")

    @property
    def context(self) -> Context:
        """The context of this thread or task; a PumpError where no handler runs."""
        return current_context()


@dataclass(frozen=True, slots=True)
class Registration:
    """One handler, with all that is known of it."""

    name: str
    request: Any
    """The type of request; for an explicit handler, of the payload."""
    wrapper: type[Delivery[Any]] | type[AsyncDelivery[Any]] | None
    """The Delivery class that an explicit handler takes instead of the request itself."""
    colour: Colour
    handle: Callable[..., object]
    """The function to call; for a class, it takes an instance first."""
    cls: type | None
    """The class of which each message gets a new instance; None for a shared instance or a function."""
    attributes: tuple[Attribute, ...]
    declares: frozenset[type[MessageAction]]

    def within(self, outer: tuple[Attribute, ...]) -> "Registration":
        """The same handler, with these attributes around its own."""
        attributes = (*outer, *attributes_of(self.handle))
        declares = frozenset[type[MessageAction]]().union(*(each.declares for each in attributes))
        return replace(self, attributes=attributes, declares=declares)

    def is_same(self, other: "Registration") -> bool:
        """Whether it is the same handler, whatever attributes are around it."""
        return (self.handle, self.cls, self.request) == (other.handle, other.cls, other.request)

    @property
    def explicit(self) -> bool:
        """Whether the handler settles its messages itself."""
        return self.wrapper is not None


def register(handler: object) -> Registration:
    """Determine what a handler takes; a ConfigurationError names the handler and what is wrong with it."""
    name, handle, cls = _named(handler)
    if isinstance(handle, Attribute):
        raise ConfigurationError(without_parentheses(type(handle), "the handler" if handle is handler else name))
    if has_yield(handle):
        raise ConfigurationError(f"{name} has a `yield`: a call of it runs nothing. Do the work without one")
    parameter = _only_parameter(name, handle, bound=cls is None)
    annotation = _annotation(
        name, handle, parameter, cls if cls is not None else type(getattr(handle, "__self__", None))
    )
    wrapper, request = _unwrapped(name, annotation)
    colour = colour_of(handle)
    if wrapper is not None and wrapper.colour != colour:
        kind = "async def" if colour == "awaiting" else "def"
        raise ConfigurationError(f"{name} is `{kind}` and takes {wrapper.__name__}: it has to take {wrapper.twin}[…]")
    return Registration(name, request, wrapper, colour, handle, cls, attributes_of(handle), declared_decisions(handle))


def _named(handler: object) -> tuple[str, Callable[..., object], type | None]:
    if isinstance(handler, type):
        handle = getattr(handler, "handle", None)
        if not callable(handle) or handle is RequestHandler.handle:
            raise ConfigurationError(f"{handler.__qualname__} is not a handler: it has no handle method")
        kind = type(inspect.getattr_static(handler, "handle"))
        if kind in {staticmethod, classmethod}:
            raise ConfigurationError(
                f"{handler.__qualname__}.handle is a {kind.__name__}: each message has an instance of its own; write "
                "def handle(self, request)"
            )
        return handler.__qualname__, handle, handler
    if isinstance(handler, RequestHandler) or callable(getattr(handler, "handle", None)):
        return type(handler).__qualname__, handler.handle, None  # type: ignore[attr-defined]
    if not callable(handler):
        raise ConfigurationError(
            f"{handler!r} is not a handler: give a class, an instance with a handle method, or a function"
        )
    function: object = handler
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__qualname__", type(handler).__qualname__), handler, None


def _only_parameter(name: str, handle: Callable[..., object], *, bound: bool) -> inspect.Parameter:
    try:
        parameters = list(inspect.signature(handle).parameters.values())
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{name} is not a handler: its parameters cannot be read") from error
    if not bound:
        if len(parameters) == 1 and parameters[0].name != "self":
            raise ConfigurationError(f"{name}.handle lacks self: write def handle(self, {parameters[0].name})")
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
    declared = _argument(owner, {})
    if parameter.annotation is parameter.empty:
        if declared is None:
            raise ConfigurationError(f"{name}: its parameter {parameter.name} needs a type hint")
        return declared
    try:
        annotation = typing.get_type_hints(function, include_extras=True)[parameter.name]
    except Exception as error:
        if declared is not None:
            return declared
        raise ConfigurationError(
            f"{name}: the type {parameter.annotation!r} of its parameter {parameter.name} cannot be resolved ({error})"
        ) from error
    if declared is None:
        return annotation
    if not _agrees(annotation, declared):
        raise ConfigurationError(
            f"{name} is a RequestHandler[{named(declared)}], and its parameter {parameter.name} is "
            f"{named(annotation)}: make them the same"
        )
    return declared


def _agrees(annotation: Any, declared: Any) -> bool:  # noqa: ANN401 - a type may be any type form
    """Whether a parameter accepts the T of RequestHandler[T]: it is the same type, or a base of it."""
    if annotation == declared or isinstance(annotation, TypeVar) or annotation in {Any, object}:
        return True
    wide, narrow = (typing.get_origin(each) or each for each in (annotation, declared))
    if not isinstance(wide, type) or not isinstance(narrow, type):
        return False
    return issubclass(narrow, wide) and (wide is annotation or typing.get_args(annotation) == typing.get_args(declared))


def _argument(owner: type, known: Mapping[Any, Any]) -> Any:  # noqa: ANN401 - a type may be any type form
    """The T of RequestHandler[T] that a class or its bases give; None if they give none."""
    for base in vars(owner).get("__orig_bases__", owner.__bases__):
        origin = typing.get_origin(base) or base
        arguments = [_filled(each, known) for each in typing.get_args(base)]
        if origin is RequestHandler:
            open_ = not arguments or isinstance(arguments[0], TypeVar | typing.ForwardRef | str)
            return None if open_ else arguments[0]
        parameters = getattr(origin, "__parameters__", ())
        found = _argument(origin, dict(zip(parameters, arguments, strict=False))) if isinstance(origin, type) else None
        if found is not None:
            return found
    return None


def _filled(form: Any, known: Mapping[Any, Any]) -> Any:  # noqa: ANN401 - a type may be any type form
    if isinstance(form, TypeVar):
        return known.get(form, form)
    variables = () if isinstance(form, type) else getattr(form, "__parameters__", ())
    return form[tuple(known.get(each, each) for each in variables)] if variables else form


def _unwrapped(
    name: str,
    annotation: Any,  # noqa: ANN401 - a type may be any type form
) -> tuple[type[Delivery[Any]] | type[AsyncDelivery[Any]] | None, Any]:
    wrapper, origin = None, typing.get_origin(annotation) or annotation
    if isinstance(origin, type) and issubclass(origin, Delivery | AsyncDelivery):
        arguments = typing.get_args(annotation)
        if not arguments:
            raise ConfigurationError(f"{name}: name the type of the request, {origin.__name__}[YourRequest]")
        wrapper, annotation = origin, arguments[0]
    if isinstance(annotation, TypeVar) or annotation in {Any, object, None, type(None), inspect.Parameter.empty}:
        raise ConfigurationError(f"{name}: {annotation!r} is not a type of request")
    return wrapper, annotation


class Registry:
    """All handlers of one dispatcher, each within the attributes that the dispatcher has for all of them."""

    def __init__(self, handlers: Iterable[object], attributes: tuple[Attribute, ...] = ()) -> None:
        self.attributes: Final = attributes
        self.registrations: tuple[Registration, ...] = tuple(register(each).within(attributes) for each in handlers)

    def joined_by(self, others: Iterable[Registration]) -> "Registry":
        """These handlers and others, each once."""
        joined = Registry(())
        for each in (*self.registrations, *others):
            if not any(each.is_same(known) for known in joined.registrations):
                joined.registrations += (each,)
        return joined

    def handling(self, request: object) -> Sequence[Registration]:
        """The handlers of one type of request."""
        return tuple(each for each in self.registrations if each.request == request)
