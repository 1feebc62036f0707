"""In which order a transport prepares what subscriptions and publications need."""

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from pump.subscription import Publication, Subscription

Prepared: TypeAlias = Subscription | Publication

_ORDER: Final = ("create", "validate")
"""What one creates, another may validate. What is assumed needs nothing."""


def in_turn(subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> Iterator[Prepared]:
    """Everything that may be created, then everything that is validated; each subscription before the publications."""
    for missing in _ORDER:
        yield from (each for each in subscriptions if each.missing == missing)
        yield from (each for each in publications if each.missing == missing)
