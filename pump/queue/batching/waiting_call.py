"""Small calls that wait to be carried out together: which go into one batch, and who gets which results."""

from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from pump.errors import TransportError

LARGE: Final = 100
"""A call of so many items goes alone: it gains nothing from others, and would delay the small ones."""
MOST: Final = 1000
"""Items in one batch."""
HEAVIEST: Final = 4_000_000
"""Weight of one batch."""


class ResultFuture(Protocol):
    """What a caller waits for: the part of `asyncio.Future` that is needed here."""

    def cancelled(self) -> bool:
        """Whether the caller does not wait any more."""

    def done(self) -> bool:
        """Whether there is a result, or it was cancelled."""

    def set_result(self, result: Any, /) -> None:  # noqa: ANN401 - answers of any kind
        """Give the caller the answers to its items."""

    def set_exception(self, exception: Exception, /) -> None:
        """Raise the error in the caller."""


AnyFuture = TypeVar("AnyFuture", bound=ResultFuture)


class WaitingCall(NamedTuple, Generic[AnyFuture]):
    """What one caller wants to have done."""

    items: Sequence[Any]
    weight: int
    """Of all items together."""
    future: AnyFuture


def next_batch(waiting: deque[WaitingCall[AnyFuture]]) -> list[WaitingCall[AnyFuture]]:
    """Remove and return the calls that go together next, at least one if there is any; cancelled ones are dropped."""
    batch: list[WaitingCall[AnyFuture]] = []
    count = weight = 0
    while waiting:
        count += len(waiting[0].items)
        weight += waiting[0].weight
        if batch and (count > MOST or weight > HEAVIEST):
            break
        call = waiting.popleft()
        if not call.future.cancelled():
            batch.append(call)
    return batch


def share_answers(batch: Sequence[WaitingCall[AnyFuture]], answers: Sequence[object]) -> None:
    """Give each call the answers to its own items."""
    start = 0
    for call in batch:
        if not call.future.done():
            call.future.set_result(answers[start : start + len(call.items)])
        start += len(call.items)


def share_error(batch: Sequence[WaitingCall[AnyFuture]], error: Exception) -> Sequence[WaitingCall[AnyFuture]]:
    """Raise the error in the callers it concerns; returns the calls that should be tried one by one.

    An outage concerns everybody. Any other error says that some item is wrong, nobody knows whose.
    """
    if len(batch) > 1 and not isinstance(error, TransportError):
        return batch
    for call in batch:
        if not call.future.done():
            call.future.set_exception(error)
    return ()
