"""Small calls that wait to be merged: which calls go into one batch, and which results each call gets."""

from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from pump.errors import TransportError

LARGE: Final = 100
"""A call with this many items runs alone: merging would not make it faster, and it would delay small calls."""
MOST: Final = 1000
"""The most items in one batch."""
HEAVIEST: Final = 4_000_000
"""The largest weight of one batch."""


class ResultFuture(Protocol):
    """The future that a caller waits for: the part of `asyncio.Future` that is needed here."""

    def cancelled(self) -> bool:
        """Whether the caller no longer waits."""

    def done(self) -> bool:
        """Whether there is a result, or it was cancelled."""

    def set_result(self, result: Any, /) -> None:  # noqa: ANN401 - answers of any kind
        """Give the caller the results of its items."""

    def set_exception(self, exception: Exception, /) -> None:
        """Raise the error in the caller."""


AnyFuture = TypeVar("AnyFuture", bound=ResultFuture)


class WaitingCall(NamedTuple, Generic[AnyFuture]):
    """The items of one call that waits to be carried out."""

    items: Sequence[Any]
    weight: int
    """The weight of all items together."""
    future: AnyFuture


def next_batch(waiting: deque[WaitingCall[AnyFuture]]) -> list[WaitingCall[AnyFuture]]:
    """Remove and return the calls of the next batch, at least one if there is any; cancelled calls are dropped."""
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
    """Give each call the results of its own items."""
    start = 0
    for call in batch:
        if not call.future.done():
            call.future.set_result(answers[start : start + len(call.items)])
        start += len(call.items)


def share_error(batch: Sequence[WaitingCall[AnyFuture]], error: Exception) -> Sequence[WaitingCall[AnyFuture]]:
    """Raise the error in the callers that it concerns; returns the calls to try again one by one.

    An outage concerns all callers. Any other error means that some item is wrong, but not whose item it is.
    """
    if len(batch) > 1 and not isinstance(error, TransportError):
        return batch
    for call in batch:
        if not call.future.done():
            call.future.set_exception(error)
    return ()
