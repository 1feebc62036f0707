"""The plan of a dispatcher: each subscription with every default filled in, and its handlers."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pump.attribute import checked_attributes
from pump.checks import named
from pump.errors import ConfigurationError, DontAckAction, MessageAction
from pump.handling.registry import Registration, Registry, register
from pump.request import Event
from pump.subscription import DEFAULT_DEAD_LETTER, PumpKind, Subscription
from pump.transport_kit.destinations import Destinations

_PLACEHOLDER: Final = re.compile(r"<\w+>")
"""In a dead-letter channel's name: it stands for the channel, or for the message's topic."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One subscription, complete."""

    rules: Subscription
    """With topic, channel, pump, dead-letter channel and may_block filled in."""
    handlers: tuple[Registration, ...]

    declares: frozenset[type[MessageAction]]
    """The decisions that its handlers' attributes may raise."""


def plans(
    subscriptions: Iterable[Subscription],
    registry: Registry,
    dispatcher: str,
    default_dead_letter: str = DEFAULT_DEAD_LETTER,
) -> tuple[Plan, ...]:
    """Fill in the defaults of a dispatcher's subscriptions; a ConfigurationError says where that is not possible."""
    routed = [_routed(each, dispatcher, default_dead_letter) for each in subscriptions]
    named = (name for each in routed for name in (each.dead_letter, each.invalid) if name is not None)
    dead_letters = {DEFAULT_DEAD_LETTER, default_dead_letter, *named}
    return tuple(_planned(replace(each, topic=_topic(each, dead_letters)), registry) for each in routed)


def _topic(rules: Subscription, dead_letters: Iterable[str]) -> str:
    """The topic that a subscription reads; one of dead letters must not read the topic of its request's handlers."""
    patterns = (_PLACEHOLDER.sub(".+", re.escape(name)) for name in dead_letters)
    has_dead_letters = any(re.fullmatch(pattern, rules.channel) for pattern in patterns)
    return rules.topic or (rules.channel if has_dead_letters else rules.source)


def _routed(rules: Subscription, dispatcher: str, default_dead_letter: str) -> Subscription:
    """The subscription with its channel and its dead-letter channels filled in."""
    rules = replace(rules, channel=rules.channel or _default_channel(rules, dispatcher))
    return replace(rules, dead_letter=Destinations.of(rules, default_dead_letter, checked=False).dead_letter)


def _planned(rules: Subscription, registry: Registry) -> Plan:
    outer = (*registry.attributes, *checked_attributes(f"Subscription {rules}", rules.attributes))
    handlers = tuple(each.within(outer) for each in _handlers(rules, registry))
    declares = frozenset[type[MessageAction]]().union(*(handler.declares for handler in handlers))
    explicit = any(handler.wrapper is not None and handler.wrapper.may_nack for handler in handlers)
    may_block = rules.may_block
    if may_block is None:
        may_block = explicit or DontAckAction in declares or rules.on_unhandled == "dont_ack"
    kind = _kind(rules.channel, rules, handlers)
    return Plan(replace(rules, may_block=may_block, pump=kind), handlers, declares)


def _default_channel(rules: Subscription, dispatcher: str) -> str:
    topic = rules.source
    if not isinstance(rules.request, type) or not issubclass(rules.request, Event):
        return topic
    if not dispatcher:
        raise ConfigurationError(
            f"subscribing to the event {topic} needs Dispatcher(name=…): each service has a channel of its own, "
            f"<name>.{topic}, or two services would silently share one"
        )
    return f"{dispatcher}.{topic}"


def _handlers(rules: Subscription, registry: Registry) -> tuple[Registration, ...]:
    if rules.handlers:
        own = tuple(register(handler) for handler in rules.handlers)
        for each in own if rules.request_type is not None else ():
            if each.request != rules.request:
                raise ConfigurationError(
                    f"channel {rules.channel} receives {named(rules.request)}, and its handler {each.name} takes "
                    f"{named(each.request)}: make them the same, or give the handler a Subscription of its own"
                )
        return own
    if rules.request_type is None:
        return registry.registrations
    return tuple(registry.handling(rules.request))


def _kind(channel: str, rules: Subscription, handlers: Sequence[Registration]) -> PumpKind:
    colours = {handler.colour for handler in handlers}
    if len(colours) > 1:
        names = ", ".join(f"{handler.name} ({handler.colour})" for handler in handlers)
        raise ConfigurationError(
            f"channel {channel} has handlers of both colours ({names}): one pump runs either `def` or `async def`; "
            "make them alike, or give each its own Subscription(handlers=[…])"
        )
    wanted: PumpKind = "proactor" if "awaiting" in colours else "reactor"
    if not handlers:
        return rules.pump or wanted
    if rules.pump not in {None, wanted}:
        name = handlers[0].name
        form = "async def" if wanted == "proactor" else "def"
        raise ConfigurationError(
            f"channel {channel} has pump={rules.pump!r}, but {name} is `{form}`: that is a {wanted}"
        )
    return wanted
