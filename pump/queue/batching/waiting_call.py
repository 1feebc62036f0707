"""Small calls that wait to be carried out together: which go into one batch, and who gets which results."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Generic, TypeVar

from pump.errors import TransportError

Item = TypeVar("Item")
Answer = TypeVar("Answer")

LARGE: Final = 100
"""A call of so many items goes alone: it gains nothing from others, and would delay the small ones."""
MOST: Final = 1000
"""Items in one batch."""
HEAVIEST: Final = 4_000_000
"""Weight of one batch."""


class WaitingCall(ABC, Generic[Item, Answer]):
    """What one caller wants to have done."""

    def __init__(self, items: Sequence[Item], weight: int) -> None:
        self.items: Final = items
        self.weight: Final = weight

    @property
    def is_cancelled(self) -> bool:
        """Whether its caller does not wait any more."""
        return False

    @abstractmethod
    def done(self, answers: Sequence[Answer]) -> None:
        """Give the caller the results of its items."""

    @abstractmethod
    def failed(self, error: Exception) -> None:
        """Raise the error in the caller."""


AnyCall = TypeVar("AnyCall", bound=WaitingCall[Any, Any])


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
        if not call.is_cancelled:
            batch.append(call)
    return batch


def items_of(batch: Sequence[WaitingCall[Item, Answer]]) -> list[Item]:
    """The items of all calls, in order."""
    return [item for call in batch for item in call.items]


def share_answers(batch: Sequence[WaitingCall[Item, Answer]], answers: Sequence[Answer]) -> None:
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
