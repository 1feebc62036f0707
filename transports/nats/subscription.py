"""A subscription with the options of NATS alone: a subject or an existing consumer, and tenants."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, get_args

from pump.errors import ConfigurationError
from pump.message import Message
from pump.subscription import OnUndecodable, OnUnhandled, Subscription
from pump.transports.nats.headers import find

TENANT: Final = "tenant_id"
TENANT_REFUSED: Final = "tenant_validation_failed"


@dataclass(frozen=True, kw_only=True)
class NatsSubscription(Subscription):
    """Consumes a `subject`, or an existing `consumer` of a `stream`; never both.

    After an unhandled error the message comes again at once, and after `max_attempts` runs it is a dead letter.
    """

    subject: str = ""
    """A durable consumer with the name of the channel consumes it; by default the channel has the subject's name."""
    stream: str = ""
    consumer: str = ""
    """The name of a consumer that exists when the pump starts."""
    on_unhandled: OnUnhandled = "nak"
    on_undecodable: OnUndecodable = "dlq"
    """What becomes of a message that cannot be decoded: "dlq" makes it a dead letter; "nak" has it delivered again
    until its attempts are used up; "term" ends it without a dead letter, with an ERROR in the log."""
    tenants: Collection[str] | None = None
    """Only messages with one of these values in the header `tenant_id` are handled. None: all messages are."""

    def __post_init__(self) -> None:
        bound = bool(self.stream and self.consumer)
        if bound == bool(self.subject) or bool(self.stream) != bool(self.consumer):
            raise ConfigurationError(
                "a NatsSubscription takes either subject=…, or stream=… and consumer=… together; it was given "
                f"subject={self.subject!r}, stream={self.stream!r}, consumer={self.consumer!r}"
            )
        place = self.stream if bound else self.subject
        if self.topic not in {"", place}:
            raise ConfigurationError(
                f"a NatsSubscription must not be given a topic: its topic is {place!r}, not {self.topic!r}"
            )
        if self.on_undecodable not in get_args(OnUndecodable):
            choices = ", ".join(map(repr, get_args(OnUndecodable)))
            raise ConfigurationError(f"on_undecodable must be one of {choices}, not {self.on_undecodable!r}")
        if isinstance(self.tenants, str):
            raise ConfigurationError(f"tenants must be a collection of names, not one name: {{{self.tenants!r}}}")
        object.__setattr__(self, "topic", place)
        if bound and not self.channel:
            object.__setattr__(self, "channel", self.consumer)
        if self.tenants is not None:
            object.__setattr__(self, "tenants", frozenset(self.tenants))
        super().__post_init__()

    @property
    def reads(self) -> str | None:
        """As in Subscription; None if it is bound to an existing consumer, whose filter is set on the server."""
        return None if self.stream else super().reads

    @property
    def refusal(self) -> Callable[[Message], str] | None:
        """A function that says why a message is refused: its tenant is not allowed, or it has none."""
        tenants = self.tenants
        if tenants is None:
            return None

        def refusal(message: Message) -> str:
            return "" if find(message.header.headers, TENANT) in tenants else TENANT_REFUSED

        return refusal
