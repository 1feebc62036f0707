"""The checks before anything starts. Each problem names what is wrong and what to change."""

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, zip_longest
from typing import Literal

from pump.attribute import idle
from pump.capabilities import Capabilities
from pump.checks import named
from pump.duration import seconds
from pump.errors import ConfigurationError, DeferMessageAction, DontAckAction, RejectMessageAction
from pump.handling.registry import Registration
from pump.program.plan import Plan
from pump.request import Event
from pump.subscription import DEFAULT_DEAD_LETTER, Publication
from pump.wire_name import wire_type


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong (an error: nothing starts) or surprising (a warning)."""

    level: Literal["error", "warning"]
    text: str

    def __str__(self) -> str:
        return f"{self.level}: {self.text}"


def problems(
    plans: Sequence[Plan],
    publications: Sequence[Publication],
    capabilities: Capabilities,
    *,
    has_factory: bool,
    handlers: Sequence[Registration] = (),
) -> list[Problem]:
    """Every problem of a dispatcher's settings, without connecting to anything."""
    found = [Problem("error", text) for text in (*_duplicates(plans, publications), *_twice_handled(plans))]
    found += (Problem("warning", text) for text in _never_filled(plans, capabilities))
    found += (Problem("warning", text) for text in _unread(plans, publications, capabilities))
    for plan in plans:
        found += (Problem("error", text) for text in _handler_errors(plan, has_factory=has_factory))
        found += (Problem("error", text) for text in _transport_errors(plan, capabilities))
        found += (Problem("warning", text) for text in _capability_warnings(plan, capabilities))
        found += (Problem("warning", text) for text in _attribute_warnings(plan))
    found += (Problem("warning", text) for text in _idle(plans, handlers))
    return found


def raise_errors(found: Sequence[Problem]) -> None:
    """Raise a ConfigurationError with all errors among these problems, if there are any."""
    errors = [problem.text for problem in found if problem.level == "error"]
    if errors:
        raise ConfigurationError("; ".join(errors))


def _duplicates(plans: Sequence[Plan], publications: Sequence[Publication]) -> Iterator[str]:
    requests = {handler.request for plan in plans for handler in plan.handlers if isinstance(handler.request, type)}
    requests |= {publication.request for publication in publications}
    names: dict[str, set[type]] = {}
    for request in requests:
        names.setdefault(wire_type(request), set()).add(request)
    for name, types in names.items():
        if len(types) > 1:
            shown = " and ".join(sorted(f"{each.__module__}.{each.__qualname__}" for each in types))
            yield f"{shown} both travel as {name!r}: give one of them another wire_type"
    channels = Counter(plan.rules.channel for plan in plans)
    for channel, count in channels.items():
        if count > 1:
            yield f"{count} subscriptions share the channel {channel}: each message reaches only one of them"
    posted = Counter(publication.request for publication in publications)
    for request, count in posted.items():
        if count > 1:
            yield f"{request.__name__} has {count} Publications: a request type is posted to one topic"


def _twice_handled(plans: Sequence[Plan]) -> Iterator[str]:
    """Commands that several channels read: each message reaches every channel, so each channel handles it."""
    for first, second in combinations(plans, 2):
        both = [each.request for each in first.handlers if each.request in {other.request for other in second.handlers}]
        once = [each for each in both if not (isinstance(each, type) and issubclass(each, Event))]
        ours, theirs = first.rules, second.rules
        chosen = ours.handlers and theirs.handlers
        if ours.channel == theirs.channel or not once or chosen:
            continue
        if ours.reads and theirs.reads and _overlap(ours.reads, theirs.reads):
            yield (
                f"each {named(once[0])} reaches both the channel {ours.channel} and the channel {theirs.channel}, and "
                f"would be handled twice: give each Subscription its own handlers=[…] if that is meant, or another "
                f"topic="
            )


def _never_filled(plans: Sequence[Plan], capabilities: Capabilities) -> Iterator[str]:
    """Channels with the default name of dead letters, on a transport whose dead letters go elsewhere."""
    if capabilities.default_dead_letter == DEFAULT_DEAD_LETTER:
        return
    filled = {name for plan in plans for name in (plan.rules.dead_letter, plan.rules.invalid)}
    for rules in (plan.rules for plan in plans):
        channel = rules.channel.removesuffix(DEFAULT_DEAD_LETTER.removeprefix("<channel>"))
        if rules.topic == rules.channel != channel and rules.channel not in filled:
            yield (
                f"channel {rules.channel} is named as one of dead letters, and on {capabilities.system} they go to "
                f"{capabilities.default_dead_letter!r}: write Subscription(…, channel={channel!r}, "
                f"dead_letter={rules.channel!r}) where they come from, or give this one a topic="
            )


def _idle(plans: Sequence[Plan], handlers: Sequence[Registration]) -> Iterator[str]:
    """Handlers without a subscription, in a program that consumes: a subscription was probably forgotten."""
    taken = {request for plan in plans for request in (plan.rules.request, *(each.request for each in plan.handlers))}
    for each in handlers if plans else ():
        if each.request not in taken:
            yield (
                f"{each.name} takes {named(each.request)}, and no Subscription does: only send and publish run it. "
                f"Add Subscription({named(each.request)})"
            )


def _unread(plans: Sequence[Plan], publications: Sequence[Publication], capabilities: Capabilities) -> Iterator[str]:
    for publication in publications:
        topic, name = publication.destination, publication.request.__name__
        if any(plan.rules.reads is None or _overlap(plan.rules.reads, topic) for plan in plans):
            continue
        handled = [plan.rules for plan in plans if any(each.request == publication.request for each in plan.handlers)]
        if handled:
            where = ", ".join(f"{rules.topic!r}" for rules in handled)
            yield (
                f"{name} is posted to the topic {topic!r}, and what handles it here reads {where}: give the "
                "Publication and the Subscription the same topic=, unless others read that topic"
            )
        elif plans and not capabilities.between_processes:
            yield f"{name} is posted to the topic {topic!r}, and no subscription here reads it: add one, or nobody will"


def _overlap(ours: str, theirs: str) -> bool:
    """Whether one message may match both topics: `*` stands for one word, `>` for all words that follow."""
    words = zip_longest(ours.split("."), theirs.split("."))
    for one, other in words:
        if ">" in {one, other}:
            return True
        if one != other and (None in {one, other} or "*" not in {one, other}):
            return False
    return True


def _handler_errors(plan: Plan, *, has_factory: bool) -> Iterator[str]:
    rules, handlers = plan.rules, plan.handlers
    if not handlers:
        name = rules.request.__name__ if isinstance(rules.request, type) else "its types"
        yield f"channel {rules.channel} has no handler of {name}: add one to Dispatcher(handlers=[…])"
    by_request = Counter(handler.request for handler in handlers)
    for request, count in by_request.items():
        several = [handler for handler in handlers if handler.request == request]
        if count > 1 and not (isinstance(request, type) and issubclass(request, Event)):
            names = ", ".join(handler.name for handler in several)
            yield f"{named(request)} has {count} handlers ({names}): only an Event may have more than one"
        if count > 1 and any(handler.explicit for handler in several):
            yield (
                f"{named(request)} on channel {rules.channel} has several handlers, and one settles by itself: "
                "give each its own Subscription(handlers=[…], channel=…)"
            )
    if rules.in_flight > 1 and rules.pump == "reactor":
        yield (
            f"channel {rules.channel} has in_flight={rules.in_flight} and blocking handlers: a Reactor handles "
            f"one message at a time. Make the handlers async, or use performers={rules.in_flight}"
        )
    for handler in handlers:
        missing = [] if has_factory or handler.cls is None else _required(handler.cls)
        if missing:
            yield (
                f"{handler.name} wants {', '.join(missing)} when it is made, and there is no Dispatcher(factory=…): "
                "give one, or register an instance"
            )


def _required(cls: type) -> list[str]:
    make: Callable[..., object] = cls
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):
        return []
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each.name for each in parameters if each.default is each.empty and each.kind not in optional]


def _transport_errors(plan: Plan, capabilities: Capabilities) -> Iterator[str]:
    rules = plan.rules
    for handler in plan.handlers:
        wrapper = handler.wrapper
        if wrapper is not None and wrapper.system not in {"", capabilities.system}:
            plain = next(base.__name__ for base in wrapper.__mro__ if base.__module__ == "pump.handling.delivery")
            yield (
                f"{handler.name} takes {wrapper.__name__}, which is for {wrapper.system}, and channel "
                f"{rules.channel} is on {capabilities.system}: take {plain} instead"
            )
    if rules.ordered and rules.performers > 1 and not capabilities.shards_by_key:
        yield (
            f"channel {rules.channel} is ordered and has {rules.performers} performers, which would overtake one "
            f"another on {capabilities.system}: use performers=1, or in_flight with keys"
        )
    for name in ("dead_letter", "invalid"):
        target = getattr(rules, name)
        if target is not None and target in {rules.channel, rules.topic}:
            yield f"channel {rules.channel} has itself as {name}: its rejected messages would come back for ever"


def _attribute_warnings(plan: Plan) -> Iterator[str]:
    for handler in plan.handlers:
        for above, beneath in idle(handler.attributes):
            name = type(above).__name__
            yield (
                f"{handler.name}: @{name} stands above @{type(beneath).__name__}, which makes a decision of all errors "
                f"that it acts on: it never acts. Put @{name} beneath"
            )


def _capability_warnings(plan: Plan, capabilities: Capabilities) -> Iterator[str]:
    rules, declares = plan.rules, plan.declares
    blocking = DontAckAction in declares or rules.on_unhandled == "dont_ack"
    if blocking and capabilities.nack == "holds":
        yield (
            f"channel {rules.channel}: on {capabilities.system} a message that is not acknowledged stays with this "
            "consumer; others do not get it meanwhile"
        )
    if blocking and rules.performers > 1 and rules.ordered:
        yield f"channel {rules.channel}: DontAck blocks one performer; the others go on past the message"
    if DeferMessageAction in declares and capabilities.requeue == "hold":
        yield (
            f"channel {rules.channel}: {capabilities.system} cannot deliver a message later: a deferred one is held "
            "here, and comes at once after a restart"
        )
    if RejectMessageAction in declares and rules.dead_letter is None:
        yield f"channel {rules.channel}: handlers reject messages, and dead_letter=None: they are gone, with an ERROR"
    longest = capabilities.longest_delay
    if longest is not None and seconds(rules.requeue_backoff[1]) > longest:
        yield f"channel {rules.channel}: {capabilities.system} delays by at most {longest:g} s"
