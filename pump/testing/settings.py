"""The settings of a harness: made from the handlers given to it, or from a Dispatcher."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypedDict

from pump.attribute import SwitchProvider
from pump.duration import Duration
from pump.errors import ConfigurationError
from pump.handling.dispatch import DispatchSettings
from pump.handling.registry import Registry
from pump.program.dispatcher import Dispatcher
from pump.program.plan import Plan, plans
from pump.subscription import Missing, OnUnhandled, Publication, PumpKind, Subscription
from pump.wire_name import wire_type


class SubscriptionOptions(TypedDict, total=False):
    """Options of a Subscription."""

    topic: str
    channel: str
    attributes: Sequence[Any]
    pump: PumpKind | None
    performers: int
    in_flight: int
    ordered: bool
    may_block: bool | None
    buffer_size: int
    receive_timeout: Duration
    empty_delay: Duration
    failure_backoff: tuple[Duration, Duration]
    max_attempts: int | None
    requeue_backoff: tuple[Duration, Duration]
    on_unhandled: OnUnhandled
    unacceptable_limit: int
    unacceptable_window: Duration
    dont_ack_delay: Duration
    dont_ack_longest_delay: Duration | None
    dont_ack_limit: int | None
    dead_letter: str | None
    invalid: str | None
    missing: Missing
    auto_ack: bool
    lease: Duration | None
    renew_lease: bool
    grace: Duration


class Switchboard:
    """Feature switches that a test sets; all others are as in the program."""

    def __init__(self, given: SwitchProvider | None = None) -> None:
        self._given: Final = given.get if isinstance(given, Mapping) else given
        self._set: Final[dict[str, bool]] = {}

    def set(self, name: str, on: bool) -> None:  # noqa: FBT001 - `set("orders.place", False)` reads as it should
        """Turn a switch on or off, from the next message on."""
        self._set[name] = on

    def clear(self, name: str) -> None:
        """Undo the test's setting of a switch."""
        self._set.pop(name, None)

    def __call__(self, name: str) -> bool | None:
        """Whether the switch is on; None if it is not set."""
        if name in self._set:
            return self._set[name]
        return None if self._given is None else self._given(name)


def program_of(
    handlers: Sequence[object],
    subscriptions: Iterable[Subscription],
    publications: Iterable[Publication | type],
    options: Mapping[str, Any],
    settings: DispatchSettings,
) -> tuple[Registry, Sequence[Plan], Sequence[Publication], DispatchSettings]:
    """The parts of a Dispatcher, from these handlers or from one given Dispatcher, with every default filled in."""
    dispatcher = handlers[0] if handlers and isinstance(handlers[0], Dispatcher) else None
    if dispatcher is None:
        registry = Registry(handlers)
    else:
        registry = dispatcher.registry
        subscriptions, publications = dispatcher.subscriptions, (*dispatcher.publications, *publications)
        settings = _merged(dispatcher.settings, settings)
    planned = plans(_subscriptions(registry, subscriptions, options), registry, settings.name)
    return registry, planned, _publications(planned, publications), settings


def _merged(theirs: DispatchSettings, ours: DispatchSettings) -> DispatchSettings:
    ours.telemetry.listen(lambda event, fields: theirs.telemetry.tell(event, **fields))
    return replace(
        ours,
        name=theirs.name or ours.name,
        factory=ours.factory or theirs.factory,
        mappers={**theirs.mappers, **ours.mappers},
    )


def _subscriptions(
    registry: Registry, given: Iterable[Subscription], options: Mapping[str, Any]
) -> Sequence[Subscription]:
    make: Callable[..., Subscription] = Subscription
    change: Callable[..., Subscription] = replace
    subscriptions = [change(each, **options) for each in given]
    if subscriptions:
        return subscriptions
    requests = dict.fromkeys(each.request for each in registry.registrations)
    if not requests:
        raise ConfigurationError("a PumpHarness takes handlers, or a Dispatcher with subscriptions")
    return [make(_asked_for(request), **{"topic": wire_type(request), **options}) for request in requests]


def _asked_for(request: object) -> object:
    return request if isinstance(request, type) else lambda _message: request


def _publications(plans: Sequence[Plan], given: Iterable[Publication | type]) -> Sequence[Publication]:
    """The given publications, and one more for each subscribed type that has none."""
    publications = [each if isinstance(each, Publication) else Publication(each) for each in given]
    known = {each.request for each in publications}
    for each in plans:
        for request in dict.fromkeys(handler.request for handler in each.handlers):
            if isinstance(request, type) and request not in known:
                known.add(request)
                publications.append(Publication(request, topic=each.rules.topic))
    return publications
