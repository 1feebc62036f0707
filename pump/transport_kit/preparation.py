"""In which order a transport prepares what subscriptions and publications need."""

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from pump.subscription import Publication, Subscription

Prepared: TypeAlias = Subscription | Publication

_ORDER: Final = ("create", "validate")
"""First create, then validate: one may validate what another creates. What is assumed needs no step."""


def in_turn(subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> Iterator[Prepared]:
    """All that create, then all that validate; in both parts the subscriptions before the publications."""
    for missing in _ORDER:
        yield from (each for each in subscriptions if each.missing == missing)
        yield from (each for each in publications if each.missing == missing)
