"""Small calls that wait to be carried out together: which go into one batch, and who gets which results."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

from pump.errors import TransportError

LARGE: Final = 100
"""A call of so many items goes alone: it gains nothing from others, and would delay the small ones."""
MOST: Final = 1000
"""Items in one batch."""
HEAVIEST: Final = 4_000_000
"""Weight of one batch."""


class WaitingCall(Protocol):
    """What one caller wants to have done."""

    @property
    def items(self) -> Sequence[Any]:
        """What it is about."""

    @property
    def weight(self) -> int:
        """Of all items together."""

    @property
    def is_cancelled(self) -> Callable[[], bool]:
        """Whether its caller does not wait any more."""

    def done(self, answers: Sequence[Any]) -> None:
        """Give the caller the answers to its items."""

    def failed(self, error: Exception) -> None:
        """Raise the error in the caller."""


AnyCall = TypeVar("AnyCall", bound=WaitingCall)


def next_batch(waiting: deque[AnyCall]) -> list[AnyCall]:
    """Remove and return the calls that go together next, at least one if there is any; cancelled ones are dropped."""
    batch: list[AnyCall] = []
    count = weight = 0
    while waiting:
        count += len(waiting[0].items)
        weight += waiting[0].weight
        if batch and (count > MOST or weight > HEAVIEST):
            break
        call = waiting.popleft()
        if not call.is_cancelled():
            batch.append(call)
    return batch


def share_answers(batch: Sequence[WaitingCall], answers: Sequence[object]) -> None:
    """Give each call the answers to its own items."""
    start = 0
    for call in batch:
        call.done(answers[start : start + len(call.items)])
        start += len(call.items)


def share_error(batch: Sequence[AnyCall], error: Exception) -> Sequence[AnyCall]:
    """Raise the error in the callers it concerns; returns the calls that should be tried one by one.

    An outage concerns everybody. Any other error says that some item is wrong, nobody knows whose.
    """
    if len(batch) > 1 and not isinstance(error, TransportError):
        return batch
    for call in batch:
        call.failed(error)
    return ()
