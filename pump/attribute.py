"""Attributes of handlers: the base class, what an attribute is given, and how it is attached to a handler."""

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from inspect import Parameter, signature
from types import FunctionType
from typing import TYPE_CHECKING, Final, Protocol, Self, TypeAlias, TypeVar

from pump.checks import refuse, wrong_errors
from pump.clock import Clock, SystemClock
from pump.colour import Colour
from pump.context import Context, find_context
from pump.duration import Duration
from pump.error_log import in_a_line
from pump.errors import ConfigurationError, MessageAction, contains
from pump.telemetry import Telemetry, log

Handle = TypeVar("Handle", bound=Callable[..., object])
Errors: TypeAlias = type[Exception] | tuple[type[Exception], ...]
SwitchProvider: TypeAlias = Callable[[str], bool | None] | Mapping[str, bool]
"""Says whether the switch of this name is on; None, or no entry, means that the switch is not set."""

_MARK: Final = "__pump_attributes__"


class Wait:
    """What a pipeline yields while it waits. `yield from` passes it on; an attribute never makes one."""


Steps: TypeAlias = Generator[Wait, None, object]
"""What a call of `around` returns: a generator that returns the handler's result."""


class Rest(Protocol):
    """The inner part of a pipeline, passed to the attribute around it. Nothing runs until `yield from`."""

    clock: Clock
    colour: Colour
    scope: "Scope"

    def __call__(self, request: object, /) -> Steps:
        """`yield from rest(request)` runs the rest and returns its result. It may be run again."""

    def skip(self, result: object = None, /) -> object:
        """`return rest.skip(result)` answers without the handler; an attribute that calls neither is an error.

        The message is then done, also where the handler would settle it by a Delivery. With `auto_ack=False` it is left
        unsettled, as any other message.
        """

    def sleep(self, duration: Duration, /) -> Generator[Wait, None, bool]:
        """`yield from rest.sleep(1)` waits. True if the wait ended early: the pump stops, or the handler should end."""

    def call(self, function: Callable[..., object], /, *arguments: object) -> Steps:
        """`yield from rest.call(function, …)` calls it; its result is awaited where the handler is async."""

    def instance(self) -> object | None:
        """The object whose method handles this request; None where a plain function does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The dispatcher, the channel and the handler of one pipeline. Each pipeline has state of its own."""

    clock: Clock = field(default_factory=SystemClock)
    switches: SwitchProvider | None = None
    dispatcher: str = ""
    channel: str = ""
    handler: str = ""
    telemetry: Telemetry = field(default_factory=Telemetry)
    owner: object | None = None
    """The handler's class, or the shared instance; None for a plain function."""
    request: type | None = None
    """The type of request that the handler takes; None if it is not a class."""

    def log(self, level: int, text: str, *, error: BaseException | None = None, context: Context | None = None) -> None:
        """Log a line with message, channel and handler; `context` is by default the current one."""
        if not log.isEnabledFor(level):
            return
        context = context or find_context()
        message_id = context.message.id if context is not None and context.has_message else ""
        where = {"message_id": message_id, "channel": self.channel, "handler": self.handler}
        line = "%s (message %s, channel %s, handler %s)"
        info = None
        if error is not None and level < logging.WARNING:
            text = f"{text}: {in_a_line(error)}"
        elif error is not None:
            repeat, info = self.telemetry.errors.told(error, level)
            text = f"{text}{repeat}"
        log.log(level, line, text, *(name or "-" for name in where.values()), exc_info=info, extra=where)


class Attribute:
    """Inherit from it, write `around`, and put `@Yours()` on a function or handle method, `def` or `async def`."""

    declares: frozenset[type[MessageAction]] = frozenset()
    """The decisions that the attribute may raise; `check` compares them with what the transport can do."""

    if not TYPE_CHECKING:  # for a type checker, the parameters are those of __init__ alone

        def __new__(cls, *arguments: object, **options: object) -> Self:
            """Refuse a handler in place of options: the decorator was written without parentheses."""
            if len(arguments) == 1 and not options and isinstance(arguments[0], FunctionType):
                if not _takes_function(cls):
                    raise ConfigurationError(without_parentheses(cls, arguments[0].__qualname__))
            elif (arguments or options) and cls.__init__ is object.__init__:
                raise TypeError(f"{cls.__name__}() takes no arguments")
            return object.__new__(cls)

    def acts_on(self) -> Errors:
        """The errors of the rest that it acts on. `check` warns if an attribute beneath it lets none of them pass."""
        return ()

    def around(self, request: object, rest: Rest) -> Steps:
        """Act around the handling of a request: `result = yield from rest(request)`, then return the result."""
        raise NotImplementedError(f"{type(self).__name__} has no around method")

    def prepare(self, scope: Scope) -> "Attribute":
        """Return the attribute to use in one pipeline; called once for each pipeline. Keep state in what it returns."""
        return self

    def __call__(self, handle: Handle) -> Handle:
        """Attach this attribute to a function, and return the same function. A direct call of it runs no attribute."""
        if not isinstance(handle, FunctionType):
            raise ConfigurationError(
                f"@{type(self).__name__}() goes directly on a function or a handle method, not on {handle!r}"
            )
        setattr(handle, _MARK, (self, *attributes_of(handle)))
        return handle

    def __repr__(self) -> str:
        given = ((name, value) for name, value in vars(self).items() if name != "declares" and not name.startswith("_"))
        return f"{type(self).__name__}({', '.join(f'{name}={shown(value)}' for name, value in given)})"


def without_parentheses(attribute: type[Attribute], handler: str = "the handler") -> str:
    """The error text for an attribute that was put on a handler without parentheses."""
    return f"@{attribute.__name__} stands on {handler} without parentheses: write @{_call_of(attribute)}"


def checked_attributes(whose: str, given: Iterable[object]) -> tuple["Attribute", ...]:
    """The attributes of a dispatcher or a subscription; a ConfigurationError if something else is among them."""
    attributes = tuple(given)
    for each in attributes:
        if isinstance(each, type) and issubclass(each, Attribute):
            raise ConfigurationError(f"{whose}: attributes has the class {each.__name__}: write {_call_of(each)}")
        if not isinstance(each, Attribute):
            raise ConfigurationError(f"{whose}: attributes is a list of attributes, such as Retry(3), not of {each!r}")
    return attributes  # type: ignore[return-value] # each one was checked


def _call_of(attribute: type[Attribute]) -> str:
    optional = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    needed = [each.name for each in _options(attribute) if each.default is each.empty and each.kind not in optional]
    return f"{attribute.__name__}({', '.join(needed)})"


def _options(attribute: type[Attribute]) -> list[Parameter]:
    return list(signature(attribute.__init__).parameters.values())[1:]


def _takes_function(attribute: type[Attribute]) -> bool:
    """Whether its first option may be a function: missing parentheses are then found when the handler is registered."""
    first = next((each for each in _options(attribute) if each.kind is not Parameter.KEYWORD_ONLY), None)
    if first is None or attribute.__init__ is object.__init__:
        return False
    return first.annotation is Parameter.empty or "Callable" in str(first.annotation)


class OnError(Attribute):
    """Turns errors into a decision, raised `from` the error. Decisions and cancellation pass unchanged.

    It acts on errors of the types in `only`, and not on those of the types in `but`. A group is one of `only` if all
    its errors are, and one of `but` if any of them is.
    """

    def __init__(self, *, only: Errors = Exception, but: Errors = ()) -> None:
        refuse(type(self).__name__, only=wrong_errors(only), but=wrong_errors(but))
        self.only = only
        self.but = but

    def acts_on(self) -> Errors:
        """The errors that it turns into a decision."""
        return self.only

    def leaves(self, kinds: Errors) -> bool:
        """Whether an error of one of these types may pass; any other reaches the attribute above as a decision."""
        return any(
            not any(issubclass(each, only) for only in _types(self.only))
            or any(issubclass(each, but) or issubclass(but, each) for but in _types(self.but))
            for each in _types(kinds)
        )

    def decide(self, error: Exception) -> MessageAction:
        """The decision that an error becomes."""
        raise NotImplementedError

    def around(self, request: object, rest: Rest) -> Steps:
        """Run the rest; if it fails, raise the decision."""
        try:
            return (yield from rest(request))
        except Exception as error:
            if is_decision(error) or not consists_of(error, self.only) or contains(error, self.but):
                raise
            raise self.decide(error) from error


def _types(kinds: Errors) -> tuple[type[Exception], ...]:
    return kinds if isinstance(kinds, tuple) else (kinds,)


def idle(attributes: Sequence[Attribute]) -> Iterator[tuple[Attribute, OnError]]:
    """Each attribute that can never act, outermost first, with the one beneath it that decides all its errors."""
    for place, above in enumerate(attributes):
        kinds = above.acts_on()
        beneath = (each for each in attributes[place + 1 :] if isinstance(each, OnError) and not each.leaves(kinds))
        found = next(beneath, None) if kinds else None
        if found is not None:
            yield above, found


def shown(value: object) -> str:
    """A value as people write it: classes and functions by their names."""
    if isinstance(value, tuple):
        return f"({', '.join(map(shown, value))})"
    name = getattr(value, "__qualname__", None)
    return repr(value) if name is None else str(name)


def attributes_of(handle: Callable[..., object]) -> tuple[Attribute, ...]:
    """The attributes of a function, a method, a partial, or an object with `__call__`, outermost first."""
    while isinstance(handle, partial):
        handle = handle.func
    marks: tuple[Attribute, ...] | None = getattr(handle, _MARK, None)
    return getattr(type(handle).__call__, _MARK, ()) if marks is None else marks


def declared_decisions(handle: Callable[..., object]) -> frozenset[type[MessageAction]]:
    """The decisions that a handler's attributes may raise."""
    return frozenset().union(*(attribute.declares for attribute in attributes_of(handle)))


def consists_of(error: BaseException, kinds: Errors) -> bool:
    """Whether an error is of one of these types, or a group that has only such errors."""
    left = [error]
    while left:
        each = left.pop()
        if isinstance(each, kinds):
            continue
        if not isinstance(each, BaseExceptionGroup):
            return False
        left.extend(each.exceptions)
    return True


def is_decision(error: BaseException) -> bool:
    """Whether it is already decided what becomes of the message: no attribute may change a decision.

    It is also decided if the pump's stop ended the handler: the message goes back. And it is decided if the handler
    settled its message itself before it failed.
    """
    context = find_context()
    if context is not None and context.has_message and (context.message.ended or context.settled):
        return True
    return contains(error, MessageAction)
