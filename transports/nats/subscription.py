"""A subscription with what only NATS has: a subject or a bound consumer, tenants, a choice for poisoned messages."""

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
    """What is consumed: of a `subject`, or by the `consumer` that somebody else made of a `stream`; never both.

    An unhandled error asks for the message again at once, and counts: after `max_attempts` runs it is a dead letter.
    """

    subject: str = ""
    """The channel, by default of the same name, becomes a durable consumer of it."""
    stream: str = ""
    consumer: str = ""
    """It has to be there when the pump starts."""
    on_unhandled: OnUnhandled = "nak"
    on_undecodable: OnUndecodable = "dlq"
    """What becomes of a message that cannot be mapped: "dlq" is a dead letter, "nak" asks for it again until its
    attempts are spent, "term" ends it without a trace but in the log."""
    tenants: Collection[str] | None = None
    """Whose messages may be handled, as the header `tenant_id` says; None is everybody's."""

    def __post_init__(self) -> None:
        bound = bool(self.stream and self.consumer)
        if bound == bool(self.subject) or bool(self.stream) != bool(self.consumer):
            raise ConfigurationError(
                "a NatsSubscription takes either subject=…, or stream=… and consumer=… together; it was given "
                f"subject={self.subject!r}, stream={self.stream!r}, consumer={self.consumer!r}"
            )
        place = self.stream if bound else self.subject
        if self.topic not in {"", place}:
            raise ConfigurationError(f"a NatsSubscription needs no topic: it has {place!r}, not {self.topic!r}")
        if self.on_undecodable not in get_args(OnUndecodable):
            choices = ", ".join(map(repr, get_args(OnUndecodable)))
            raise ConfigurationError(f"on_undecodable must be one of {choices}, not {self.on_undecodable!r}")
        if isinstance(self.tenants, str):
            raise ConfigurationError(f"tenants is a collection of names, not one: {{{self.tenants!r}}}")
        object.__setattr__(self, "topic", place)
        if bound and not self.channel:
            object.__setattr__(self, "channel", self.consumer)
        if self.tenants is not None:
            object.__setattr__(self, "tenants", frozenset(self.tenants))
        super().__post_init__()

    @property
    def refusal(self) -> Callable[[Message], str] | None:
        """Refuses the messages of tenants that are not among those allowed, and of none."""
        tenants = self.tenants
        if tenants is None:
            return None

        def refusal(message: Message) -> str:
            return "" if find(message.header.headers, TENANT) in tenants else TENANT_REFUSED

        return refusal
