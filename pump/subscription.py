"""What is consumed and how, and where requests are posted to. Checked when made, so that a mistake shows at once."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, cast, get_origin

from pump.duration import Duration, seconds
from pump.errors import ConfigurationError
from pump.message import Message

PumpKind: TypeAlias = Literal["reactor", "proactor"]
Missing: TypeAlias = Literal["create", "validate", "assume"]
OnUndecodable: TypeAlias = Literal["dlq", "nak", "term"]
OnUnhandled: TypeAlias = Literal["retry", "dont_ack", "reject", "acknowledge", "nak"]

DEFAULT_DEAD_LETTER: Final = "<channel>.dead"
"""Stands for the channel that the transport makes by default; replaced when a dispatcher takes the subscription."""

_CHOICES: Final[dict[str, tuple[object, ...]]] = {
    "pump": (None, "reactor", "proactor"),
    "missing": ("create", "validate", "assume"),
    "on_unhandled": ("retry", "dont_ack", "reject", "acknowledge", "nak"),
}
_AT_LEAST: Final[dict[str, float]] = {
    "performers": 1,
    "buffer_size": 1,
    "in_flight": 1,
    "receive_timeout": 0,
    "empty_delay": 0,
    "dont_ack_delay": 0,
    "unacceptable_window": 0,
    "grace": 0,
}


@dataclass(frozen=True, kw_only=True)
class _Options:
    topic: str = ""
    """Where it is posted to. By default the request's type name."""
    channel: str = ""
    """The consumer's own queue, durable or group. By default the topic; for an Event `<dispatcher>.<topic>`."""
    handlers: Sequence[Any] = ()
    """Handlers for this subscription alone, instead of the dispatcher's."""
    pump: PumpKind | None = None
    """By default what the handlers' colour asks for."""
    performers: int = 1
    in_flight: int = 1
    """How many messages one Proactor handles at a time, in order within a key."""
    ordered: bool = False
    may_block: bool | None = None
    """Whether handlers raise DontAckAction; by default read off their attributes and `on_unhandled`."""
    buffer_size: int = 10
    receive_timeout: Duration = 0.3
    empty_delay: Duration = 0.5
    """Waited after an empty receive where the transport's own receive does not wait."""
    failure_backoff: tuple[Duration, Duration] = (1.0, 30.0)
    """The first and the longest wait before a broken channel is tried again."""
    max_attempts: int | None = 3
    """How many times the handler runs on a message that keeps failing; None is without limit."""
    requeue_backoff: tuple[Duration, Duration] = (1.0, 300.0)
    on_unhandled: OnUnhandled = "retry"
    unacceptable_limit: int = 0
    """How many unacceptable messages stop the pump; 0 or less is never."""
    unacceptable_window: Duration = 0.0
    """After how long the count of unacceptable messages starts anew; 0 is never."""
    dont_ack_delay: Duration = 1.0
    dont_ack_longest_delay: Duration | None = None
    """When given, the delay doubles with each DontAck of one message, up to this."""
    dont_ack_limit: int | None = None
    """When given, a message that was left so many times becomes a dead letter."""
    dead_letter: str | None = DEFAULT_DEAD_LETTER
    """Where rejected messages go; None, written out, is nowhere."""
    invalid: str | None = None
    """Where invalid messages go; by default with the dead letters."""
    missing: Missing = "create"
    """What to do about a channel that is not there."""
    auto_ack: bool = True
    lease: Duration | None = None
    """How long a delivery is ours without being extended, where the transport has leases; None is its default."""
    renew_lease: bool = True
    grace: Duration = 10.0
    """How long a stop waits for the handlers that are running."""


@dataclass(frozen=True)
class Subscription(_Options):
    """What is consumed from one channel, and by which rules."""

    request: type | Callable[[Message], type]
    """The type of request, or a function that tells it from the message."""

    def __post_init__(self) -> None:
        _check(self)

    @property
    def on_undecodable(self) -> OnUndecodable:
        """What becomes of a message that cannot be mapped: a dead letter, another delivery first, or nothing."""
        return "dlq"

    @property
    def refusal(self) -> Callable[[Message], str] | None:
        """Tells why a message may not be handled here, or "" where it may; None where every message may."""
        return None

    @property
    def request_type(self) -> type | None:
        """The one type of request, `list[int]` too; None when a function tells it from the message."""
        is_type = isinstance(self.request, type) or get_origin(self.request) is not None
        return cast("type", self.request) if is_type else None

    def __str__(self) -> str:
        return self.channel or self.topic or getattr(self.request, "__name__", "subscription")


@dataclass(frozen=True, kw_only=True)
class _PublicationOptions:
    topic: str = ""
    """By default the request's type name."""
    key: str | Callable[[Any], str | None] | None = None
    """The name of a field, or a function, that gives the key within which order is kept."""
    missing: Missing = "create"


@dataclass(frozen=True)
class Publication(_PublicationOptions):
    """Where one type of request is posted to."""

    request: type

    def __post_init__(self) -> None:
        if not isinstance(self.request, type):
            raise ConfigurationError(f"Publication takes a request type, not {self.request!r}")
        _choose(self, "missing")

    @property
    def destination(self) -> str:
        """The topic, given or by default."""
        return self.topic or self.request.__name__


def _check(subscription: Subscription) -> None:
    if not callable(subscription.request):
        raise ConfigurationError(f"Subscription takes a request type or a function, not {subscription.request!r}")
    if subscription.request_type is None and not subscription.topic:
        raise ConfigurationError("a Subscription whose type is told by a function needs a topic=")
    for name in _CHOICES:
        _choose(subscription, name)
    for text in _wrong_numbers(subscription):
        raise ConfigurationError(f"Subscription {subscription}: {text}")
    if subscription.in_flight > 1 and subscription.pump == "reactor":
        raise ConfigurationError(
            f"Subscription {subscription}: in_flight={subscription.in_flight} needs async handlers (a Proactor); "
            f"a Reactor handles one message at a time: use performers={subscription.in_flight}"
        )


def _wrong_numbers(subscription: Subscription) -> Iterator[str]:
    for name, least in _AT_LEAST.items():
        value = getattr(subscription, name)
        if seconds(value) < least:
            yield f"{name} must be at least {least:g}, not {value}"
    for name in ("failure_backoff", "requeue_backoff"):
        first, longest = (seconds(each) for each in getattr(subscription, name))
        if not 0 <= first <= longest:
            yield f"{name} is (first, longest), not {(first, longest)}"
    for name in ("max_attempts", "dont_ack_limit"):
        value = getattr(subscription, name)
        if value is not None and value < 1:
            yield f"{name} must be at least 1, or None for no limit, not {value}"
    if subscription.lease is not None and seconds(subscription.lease) <= 0:
        yield f"lease must be longer than 0 s, not {subscription.lease}"


def _choose(options: object, name: str) -> None:
    value = getattr(options, name)
    if value not in _CHOICES[name]:
        choices = ", ".join(repr(choice) for choice in _CHOICES[name])
        raise ConfigurationError(f"{type(options).__name__}: {name} must be one of {choices}, not {value!r}")
