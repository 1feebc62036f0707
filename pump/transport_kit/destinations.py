"""Where a subscription's messages come from and where rejected ones go: one rule fills in all the names."""

from dataclasses import dataclass
from typing import Final, Self

from pump.dead_letter import RejectionKind
from pump.errors import ConfigurationError
from pump.subscription import DEFAULT_DEAD_LETTER, Subscription

CHANNEL: Final = "<channel>"
"""Stands for the channel's name in the name of a dead-letter destination."""
SUBJECT: Final = "<subject>"
"""Stands for the rejected message's topic in the name of a dead-letter destination."""


@dataclass(frozen=True, slots=True)
class Destinations:
    """The names that one subscription uses on the broker."""

    topic: str
    channel: str
    dead_letter: str | None
    """For rejected messages; None if they go nowhere."""
    invalid: str | None
    """For invalid messages; by default the same as for rejected ones."""

    @classmethod
    def of(
        cls, subscription: Subscription, default_dead_letter: str = DEFAULT_DEAD_LETTER, *, checked: bool = True
    ) -> Self:
        """Fill in the defaults; ConfigurationError if the subscription would receive its own dead letters.

        The topic is the request's name on the wire, the channel is the topic, dead letters go where
        `default_dead_letter` says, and invalid messages go with the dead letters. `checked=False` is for a transport
        whose topics and channels have other kinds of names than its dead letters; it checks by itself.
        """
        topic = subscription.source
        channel = subscription.channel or topic
        dead_letter = subscription.dead_letter
        if dead_letter == DEFAULT_DEAD_LETTER:
            dead_letter = default_dead_letter.replace(CHANNEL, channel)
        invalid = dead_letter if subscription.invalid is None else subscription.invalid
        found = cls(topic, channel, dead_letter, invalid)
        if checked and {topic, channel} & {dead_letter, invalid}:
            raise ConfigurationError(f"Subscription {subscription} would receive its own dead letters")
        return found

    @property
    def dead_letters(self) -> tuple[str, ...]:
        """All destinations of rejected messages, each once."""
        return tuple(dict.fromkeys(name for name in (self.dead_letter, self.invalid) if name is not None))

    def for_rejected(self, kind: RejectionKind, subject: str = "") -> str | None:
        """Where a rejected message goes, with `subject` filled in if it is given; None if nowhere."""
        name = self.invalid if kind == "unacceptable" else self.dead_letter
        return name.replace(SUBJECT, subject) if name and subject else name
