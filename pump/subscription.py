"""What is consumed and how, and where requests are posted to. Checked when made, so that a mistake is seen at once."""

import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, cast, get_origin

from pump.checks import named, wrong_duration, wrong_list, wrong_number, wrong_text
from pump.duration import Duration, seconds
from pump.errors import ConfigurationError
from pump.message import Message
from pump.request import Request
from pump.wire_name import wire_type

PumpKind: TypeAlias = Literal["reactor", "proactor"]
Missing: TypeAlias = Literal["create", "validate", "assume"]
OnUndecodable: TypeAlias = Literal["dlq", "nak", "term"]
OnUnhandled: TypeAlias = Literal["retry", "dont_ack", "reject", "acknowledge", "nak"]

DEFAULT_DEAD_LETTER: Final = "<channel>.dead"
"""The transport's default; a dispatcher replaces it by the name for this channel."""

_CHOICES: Final[dict[str, tuple[object, ...]]] = {
    "pump": (None, "reactor", "proactor"),
    "missing": ("create", "validate", "assume"),
    "on_unhandled": ("retry", "dont_ack", "reject", "acknowledge", "nak"),
}
_FIELDS: Final = ("__dataclass_fields__", "__struct_fields__", "model_fields")
"""Where dataclasses, msgspec structs and pydantic models say what fields they have."""
_DURATIONS: Final = ("receive_timeout", "empty_delay", "dont_ack_delay", "unacceptable_window", "grace")
_NONE: Final = {"dead_letter": "None to drop what is rejected", "invalid": "None for the dead letters"}


@dataclass(frozen=True, kw_only=True)
class _Options:
    """The options of a Subscription. docs/options.md prints the text beneath each."""

    topic: str = ""
    """Where the messages are posted to; by default the request's name on the wire, for dead letters the channel."""
    channel: str = ""
    """The consumer's own queue, durable or group; by default the topic, for an Event `<dispatcher>.<topic>`."""
    handlers: Sequence[Any] = ()
    """The handlers of this subscription alone; by default those of the dispatcher that take its request."""
    attributes: Sequence[Any] = ()
    """The attributes around each of its handlers, above the handler's own."""
    pump: PumpKind | None = None
    """Which pump runs the handlers; by default a Reactor for `def` handlers, a Proactor for `async def` handlers."""
    performers: int = 1
    """How many pumps share the channel in this process."""
    in_flight: int = 1
    """How many messages one Proactor handles at a time, in order within a key."""
    ordered: bool = False
    """Whether the whole channel is kept in order: all others then wait for a message that comes again later."""
    may_block: bool | None = None
    """Whether handlers raise DontAckAction; by default as their attributes and `on_unhandled` say."""
    buffer_size: int = 10
    """How many messages a pump may have received and not settled."""
    receive_timeout: Duration = 0.3
    """How long one receive waits for a message."""
    empty_delay: Duration = 0.5
    """How long the pump waits after an empty receive, where the transport's own receive does not wait."""
    failure_backoff: tuple[Duration, Duration] = (1.0, 30.0)
    """The first and the longest wait before a broken channel, or a pump that died, is tried again."""
    max_attempts: int | None = 3
    """How often the handler runs on a message that keeps failing, before it becomes a dead letter; None: no limit."""
    requeue_backoff: tuple[Duration, Duration] = (1.0, 300.0)
    """The first and the longest delay before a failed message comes again; the delay doubles with each attempt."""
    on_unhandled: OnUnhandled = "retry"
    """What becomes of a message on any exception that is not a decision: see `docs/settlement.md`."""
    unacceptable_limit: int = 0
    """All pumps of the channel in this process stop after this many unacceptable messages; 0 or less: never."""
    unacceptable_window: Duration = 0.0
    """The count of unacceptable messages starts again after this time; 0: never."""
    dont_ack_delay: Duration = 1.0
    """How long the pump waits after a DontAck, before it handles the next message."""
    dont_ack_longest_delay: Duration | None = None
    """If given, that wait doubles with each DontAck of one message, up to this."""
    dont_ack_limit: int | None = None
    """If given, a message becomes a dead letter at the DontAck after this many."""
    dead_letter: str | None = DEFAULT_DEAD_LETTER
    """Where rejected messages go. None means nowhere: they are gone, with an ERROR in the log."""
    invalid: str | None = None
    """Where invalid messages go; by default to the dead letters."""
    missing: Missing = "create"
    """What to do where a topic or channel is missing: create it, refuse to start, or assume that it is there."""
    auto_ack: bool = True
    """Whether the pump settles messages; if not, it leaves every message unsettled."""
    lease: Duration | None = None
    """How long a delivery's lease lasts without renewal, if the transport has leases; by default as it says."""
    renew_lease: bool = True
    """Whether the lease of a received message is renewed until its handler has returned."""
    grace: Duration = 10.0
    """How long a stop waits for the handlers that are running."""


@dataclass(frozen=True)
class Subscription(_Options):
    """What is consumed from one channel, and by which rules."""

    request: type | Callable[[Message], type]
    """The type of request, or a function that says which type a message is."""

    def __post_init__(self) -> None:
        _check(self)

    @property
    def on_undecodable(self) -> OnUndecodable:
        """What becomes of a message that cannot be mapped: a dead letter, another delivery first, or nothing."""
        return "dlq"

    @property
    def refusal(self) -> Callable[[Message], str] | None:
        """A function that says why a message may not be handled here, or ""; None where every message may."""
        return None

    @property
    def request_type(self) -> type | None:
        """The one type of request, `list[int]` too; None where a function says which type a message is."""
        is_type = isinstance(self.request, type) or get_origin(self.request) is not None
        return cast("type", self.request) if is_type else None

    @property
    def source(self) -> str:
        """The topic, given or by default: `Publication.destination` of the same type."""
        return self.topic or wire_type(self.request_type or type)

    @property
    def reads(self) -> str | None:
        """The topic, or pattern of topics, whose messages it receives; None where only the broker knows."""
        return self.source

    def __str__(self) -> str:
        return self.channel or self.source


@dataclass(frozen=True, kw_only=True)
class _PublicationOptions:
    """The options of a Publication. docs/options.md prints the text beneath each."""

    topic: str = ""
    """Where requests of this type are posted to; by default the type's name on the wire."""
    key: str | Callable[[Any], str | None] | None = None
    """The field, or the function of a request, that gives the key within which order is kept."""
    missing: Missing = "create"
    """What to do where the topic is missing: create it, refuse to start, or assume that it is there."""


@dataclass(frozen=True)
class Publication(_PublicationOptions):
    """Where one type of request is posted to."""

    request: type
    """The type of request."""

    def __post_init__(self) -> None:
        if not isinstance(self.request, type):
            raise ConfigurationError(f"Publication takes a request type, not {self.request!r}")
        _choose(self, "missing")
        wrong = self.topic != "" and wrong_text(self.topic)
        if wrong:
            raise ConfigurationError(f"Publication of {self.request.__name__}: topic {wrong}")
        _check_key(self.request, self.key)

    @property
    def destination(self) -> str:
        """The topic, given or by default."""
        return self.topic or wire_type(self.request)


def _check_key(request: type, key: object) -> None:
    if key is None or (callable(key) and not isinstance(key, type)):
        return
    if not isinstance(key, str):
        raise ConfigurationError(f"Publication of {request.__name__}: key is a field's name or a function, not {key!r}")
    fields = [name for kind in _FIELDS for name in getattr(request, kind, ())]
    if fields and key not in fields and not hasattr(request, key):
        close = difflib.get_close_matches(key, fields, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(map(repr, fields))}"
        raise ConfigurationError(f"Publication of {request.__name__}: key={key!r} is no field of it; {hint}")


def _check(subscription: Subscription) -> None:
    request = subscription.request
    if not callable(request):
        raise ConfigurationError(f"Subscription takes a request type or a function, not {request!r}")
    if isinstance(request, type) and not issubclass(request, Request) and callable(getattr(request, "handle", None)):
        raise ConfigurationError(
            f"Subscription({request.__name__}): that is a handler. Give the type of request that it takes, and the "
            f"handler to Dispatcher(handlers=[{request.__name__}])"
        )
    if subscription.request_type is None and not subscription.topic:
        raise ConfigurationError("a Subscription with a function instead of a type needs a topic=")
    for name in _CHOICES:
        _choose(subscription, name)
    for name, wrong in _wrongs(subscription):
        if wrong:
            raise ConfigurationError(f"Subscription of {named(request)}: {name} {wrong}")
    if subscription.in_flight > 1 and subscription.pump == "reactor":
        raise ConfigurationError(
            f"Subscription {subscription}: in_flight={subscription.in_flight} needs async handlers (a Proactor); "
            f"a Reactor handles one message at a time: use performers={subscription.in_flight}"
        )


def _wrongs(subscription: Subscription) -> Iterator[tuple[str, str]]:
    """What is wrong with single options: the name of each, and what to say of it."""
    given = vars(subscription).get
    for name in ("handlers", "attributes"):
        yield name, wrong_list(given(name))
    for name in ("topic", "channel"):
        yield name, "" if given(name) == "" else wrong_text(given(name))
    for name in ("dead_letter", "invalid"):
        wrong = "" if given(name) is None else wrong_text(given(name))
        yield name, wrong and f"must be a channel's name, or {_NONE[name]}, not {given(name)!r}"
    for name in ("ordered", "auto_ack", "renew_lease"):
        yield name, "" if isinstance(given(name), bool) else f"must be True or False, not {given(name)!r}"
    for name in ("performers", "in_flight", "buffer_size"):
        yield name, wrong_number(given(name), 1)
    yield "unacceptable_limit", wrong_number(given("unacceptable_limit"))
    for name in ("max_attempts", "dont_ack_limit"):
        wrong = "" if given(name) is None else wrong_number(given(name), 1)
        yield name, wrong.replace(", not", ", or None for no limit, not")
    for name in _DURATIONS:
        yield name, wrong_duration(given(name))
    for name in ("lease", "dont_ack_longest_delay"):
        yield name, "" if given(name) is None else wrong_duration(given(name), zero=False)
    for name in ("failure_backoff", "requeue_backoff"):
        yield name, _wrong_pair(given(name))


def _wrong_pair(value: object) -> str:
    is_pair = isinstance(value, Sequence) and len(value) == len(("first", "longest"))
    if not isinstance(value, Sequence) or not is_pair or any(map(wrong_duration, value)):
        return f"must be (first, longest), two numbers of seconds or timedeltas, not {value!r}"
    first, longest = map(seconds, value)
    return "" if first <= longest else f"must be (first, longest), not {(first, longest)}"


def _choose(options: object, name: str) -> None:
    value = getattr(options, name)
    if value not in _CHOICES[name]:
        choices = ", ".join(repr(choice) for choice in _CHOICES[name])
        raise ConfigurationError(f"{type(options).__name__}: {name} must be one of {choices}, not {value!r}")
