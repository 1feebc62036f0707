"""A dispatcher with all its settings, and what it is doing: as data for machines, and as text for people."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from pump.attribute import shown
from pump.duration import seconds
from pump.handling.registry import Registration
from pump.program.dispatcher import Dispatcher
from pump.program.performer import PerformerState
from pump.program.plan import Plan
from pump.subscription import Publication
from pump.wire_name import wire_type

_HIDDEN: Final = "…"
_IN_URL: Final = re.compile(r"(?<=://)[^/\s'\"]*@")
_SECRET_OPTION: Final = re.compile(
    r"(\w*(?:passw(?:or)?d|passphrase|secret|token|credential|authorization|api_?key|private_?key)\w*['\"]?\s*[=:]\s*)"
    r"('[^']*'|\"[^\"]*\"|[^,)}\s]+)",
    re.IGNORECASE,
)


def describe(dispatcher: Dispatcher) -> dict[str, Any]:
    """A dispatcher's settings with every default filled in, as data that JSON can hold.

    While it runs, and after that, `performers` has the state of each one. Credentials are never part of it.
    """
    described: dict[str, Any] = {
        "name": dispatcher.name,
        "transport": type(dispatcher.transport).__name__,
        "capabilities": asdict(dispatcher.transport.capabilities),
        "channels": [_channel(plan) for plan in dispatcher.plans],
        "publications": [_publication(publication) for publication in dispatcher.publications],
    }
    if dispatcher.states:
        described["ready"] = dispatcher.ready
        described["performers"] = [_performer(state) for state in dispatcher.states]
    return described


def _channel(plan: Plan) -> dict[str, Any]:
    rules = plan.rules
    return {
        "channel": rules.channel,
        "topic": rules.topic,
        "requests": sorted({_type_name(handler.request) for handler in plan.handlers}),
        "handlers": [_handler(handler) for handler in plan.handlers],
        "pump": rules.pump,
        "performers": rules.performers,
        "in_flight": rules.in_flight,
        "ordered": rules.ordered,
        "max_attempts": rules.max_attempts,
        "on_unhandled": rules.on_unhandled,
        "dead_letter": rules.dead_letter,
        "invalid": rules.invalid or rules.dead_letter,
        "lease": None if rules.lease is None else seconds(rules.lease),
        "may_block": rules.may_block,
    }


def _handler(registration: Registration) -> dict[str, Any]:
    return {
        "name": registration.name,
        "request": _type_name(registration.request),
        "settles": "handler" if registration.explicit else "pump",
        "attributes": [without_credentials(repr(attribute)) for attribute in registration.attributes],
    }


def _publication(publication: Publication) -> dict[str, Any]:
    key = publication.key
    return {
        "request": wire_type(publication.request),
        "topic": publication.destination,
        "key": shown(key) if callable(key) else key,
    }


def _performer(state: PerformerState) -> dict[str, Any]:
    stopped = None if state.stopped is None else state.stopped.value
    error = without_credentials(state.error)
    return {**asdict(state), "state": state.state.value, "stopped": stopped, "error": error}


def _type_name(request: object) -> str:
    return wire_type(request) if isinstance(request, type) else str(request)


def without_credentials(text: str) -> str:
    """The text without user and password in URLs, and without the values of options named like secrets."""
    return _SECRET_OPTION.sub(rf"\1{_HIDDEN}", _IN_URL.sub(f"{_HIDDEN}@", text))


# -- as text

_COLUMNS: Final[Mapping[str, Callable[[Mapping[str, Any]], object]]] = {
    "CHANNEL": lambda channel: channel["channel"],
    "TOPIC": lambda channel: channel["topic"],
    "REQUESTS": lambda channel: ", ".join(channel["requests"]) or "-",
    "PUMP": lambda channel: channel["pump"],
    "PERFORMERS": lambda channel: channel["performers"],
    "IN FLIGHT": lambda channel: channel["in_flight"],
    "ATTEMPTS": lambda channel: channel["max_attempts"] or "no limit",
    "UNHANDLED": lambda channel: channel["on_unhandled"],
    "DEAD LETTERS": lambda channel: channel["dead_letter"] or "nowhere",
    "INVALID": lambda channel: channel["invalid"] or "nowhere",
    "LEASE": lambda channel: "default" if channel["lease"] is None else f"{channel['lease']:g} s",
    "MAY BLOCK": lambda channel: _shown(channel["may_block"]),
}


def as_text(described: Mapping[str, Any]) -> str:
    """The result of `describe` as tables for a terminal."""
    capabilities: Mapping[str, object] = described["capabilities"]
    published = ([each["request"], each["topic"], each["key"] or "-"] for each in described["publications"])
    parts = [
        f"Dispatcher {described['name'] or '(no name)'} on {capabilities['system']}",
        _columns(
            [list(_COLUMNS), *([cell(channel) for cell in _COLUMNS.values()] for channel in described["channels"])]
        ),
        "\n".join(["HANDLERS, each with its attributes, outermost first", *_handlers(described["channels"])]),
        _columns([["POSTED", "TO TOPIC", "KEY"], *published]),
        _columns([["CAPABILITY", ""], *([name, _shown(value)] for name, value in capabilities.items())]),
    ]
    if "performers" in described:
        parts.insert(2, _columns(_performed(described["performers"])))
    return "\n\n".join(parts)


def _handlers(channels: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for channel in channels:
        for handler in channel["handlers"]:
            explicit = ", which settles its messages itself" if handler["settles"] == "handler" else ""
            yield f"{channel['channel']}: {handler['request']} → {handler['name']}{explicit}"
            yield from (f"    {attribute}" for attribute in handler["attributes"])


def _performed(performers: Sequence[Mapping[str, Any]]) -> Sequence[Sequence[object]]:
    names = ("name", "state", "stopped", "restarts", "unacceptable", "error")
    head = ["PERFORMER", *(name.upper() for name in names[1:])]
    return [head, *([each[name] if each[name] not in {None, ""} else "-" for name in names] for each in performers)]


def _shown(value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else value


def _columns(rows: Sequence[Sequence[object]]) -> str:
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)) for row in texts)
    return "\n".join(line.rstrip() for line in lines)
