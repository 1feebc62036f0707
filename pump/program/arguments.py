"""Checks of a Dispatcher's arguments before they are used: each mistake is named, with what to write instead."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Final

from pump.checks import named, refuse, wrong_list, wrong_switches
from pump.errors import ConfigurationError
from pump.subscription import Publication, Subscription
from pump.transport_kit.protocol import AwaitingTransport, BlockingTransport, Transport, transport_from

_LISTENER: Final = "takes an event's name and its fields"


def transport_of(given: object) -> Transport:
    """The transport that was given, or the one that a URL chooses."""
    if isinstance(given, str):
        return transport_from(given)
    is_transport = hasattr(given, "capabilities") and isinstance(given, BlockingTransport | AwaitingTransport)
    if isinstance(given, type) or not is_transport:
        what = f"the class {given.__name__}: make one" if isinstance(given, type) else f"{given!r}"
        raise ConfigurationError(
            f"Dispatcher: transport must be a URL, such as sqlite:///shop.db, or a transport object, not {what}"
        )
    return given  # type: ignore[return-value] # that it is one of the two was just seen


def check_lists(**lists: object) -> None:
    """Raise unless each argument is a list of the right things."""
    refuse("Dispatcher", **{name: wrong_list(given) for name, given in lists.items()})


def all_of(kind: type[Subscription] | type[Publication], given: Iterable[object]) -> None:
    """Raise unless everything given is of that kind. A request type alone is not."""
    for each in given:
        if not isinstance(each, kind):
            name = kind.__name__
            hint = f"write {name}({each.__name__})" if isinstance(each, type) else f"that is a {type(each).__name__}"
            raise ConfigurationError(f"Dispatcher: {name.lower()}s are made of {name}(…), not of {each!r}: {hint}")


def check_settings(
    name: object, factory: object, switches: object, mappers: object, listeners: Iterable[object]
) -> None:
    """Check the other arguments of a Dispatcher."""
    refuse(
        "Dispatcher",
        name="" if isinstance(name, str) else f"must be text, not {name!r}",
        factory=_wrong_function(factory, "takes a handler class and makes one") or _wrong_factory(factory),
        switches=wrong_switches(switches),
        mappers=_wrong_mappers(mappers),
        listeners=next((wrong for each in listeners if (wrong := _wrong_function(each, _LISTENER))), ""),
    )


def _wrong_function(value: object, what: str) -> str:
    return "" if value is None or callable(value) else f"must be a function that {what}, not {value!r}"


def _wrong_factory(factory: object) -> str:
    if inspect.isgeneratorfunction(factory):
        return f"is a generator: put @contextlib.contextmanager on {named(factory)}"
    if inspect.isasyncgenfunction(factory):
        return f"is an async generator: put @contextlib.asynccontextmanager on {named(factory)}"
    if inspect.iscoroutinefunction(factory):
        return f"is `async def`, and is called, not awaited: make {named(factory)} an async context manager"
    return ""


def _wrong_mappers(mappers: object) -> str:
    if mappers is None:
        return ""
    if not isinstance(mappers, Mapping):
        return f"must be a mapping of request types to mappers, not {mappers!r}"
    for request, mapper in mappers.items():
        if not isinstance(request, type):
            return f"has the key {request!r}, where a request type is expected"
        if isinstance(mapper, type):
            return f"has the class {mapper.__name__} for {request.__name__}: make one, {mapper.__name__}(…)"
        if not all(callable(getattr(mapper, each, None)) for each in ("encode", "decode")):
            return f"has {mapper!r} for {request.__name__}, which has no encode and decode"
    return ""
