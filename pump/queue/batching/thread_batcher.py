"""Small calls of many threads as few large ones: whoever comes while one is under way goes along with the next."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from pump.errors import TransportError
from pump.queue.batching.task_batcher import HEAVIEST, LARGE, MOST
from pump.queue.errors import QueueUnavailable

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class _Parcel(Generic[Item, Answer]):
    """What one thread wants to have done, and what came of it."""

    def __init__(self, items: Sequence[Item], weight: int) -> None:
        self.items: Final = items
        self.weight: Final = weight
        self.answers: Sequence[Answer] | None = None
        self.error: Exception | None = None
        self.leads = False
        """Whether it is for its thread to carry out what has gathered."""
        self.turn: Final = threading.Lock()
        """Held until it leads, or until it is over."""
        self.turn.acquire()

    @property
    def is_over(self) -> bool:
        return self.answers is not None or self.error is not None

    def result(self) -> Sequence[Answer]:
        if self.error is not None:
            raise self.error
        assert self.answers is not None  # noqa: S101 - whoever carries it out says what came of it
        return self.answers


class Gathering(Generic[Item, Answer]):
    """One call at a time, carried out by one of those who wait for it. From any thread.

    Everybody gets the answers to his own items, in their order. An outage is everybody's; where a call says that what
    was asked is wrong, everybody's items are tried by themselves.
    """

    def __init__(
        self, run: Callable[[Sequence[Item]], Sequence[Answer]], weigh: Callable[[Item], int] = lambda _: 0
    ) -> None:
        self._run: Final = run
        self._weigh: Final = weigh
        self._lock: Final = threading.Lock()
        self._waiting: Final[deque[_Parcel[Item, Answer]]] = deque()
        self._busy = False

    def do(self, items: Sequence[Item]) -> Sequence[Answer]:
        """Have these done, with others or alone."""
        if len(items) >= LARGE:
            return self._run(items)
        parcel = _Parcel[Item, Answer](items, sum(map(self._weigh, items)))
        try:
            if not self._leads(parcel):
                parcel.turn.acquire()
            if not parcel.is_over:
                self._lead()
        except BaseException:  # such as an interrupt from the keyboard: the others go on without this thread
            self._desert(parcel)
            raise
        return parcel.result()

    def _leads(self, parcel: _Parcel[Item, Answer]) -> bool:
        """Whether nothing is under way, so that the parcel need not wait for company."""
        with self._lock:
            self._waiting.append(parcel)
            if not self._busy:
                self._busy = parcel.leads = True
        return parcel.leads

    def _lead(self) -> None:
        """Carry out what has gathered; whoever came first meanwhile leads next."""
        batch = self._gathered()
        try:
            self._carry_out(batch)
        finally:
            for parcel in batch:
                if not parcel.is_over:
                    parcel.error = QueueUnavailable("the call was broken off: nobody knows what came of it")
                parcel.leads = False
                parcel.turn.release()
            with self._lock:
                self._hand_over()

    def _hand_over(self) -> None:
        self._busy = bool(self._waiting)
        if self._waiting:
            self._waiting[0].leads = True
            self._waiting[0].turn.release()

    def _desert(self, parcel: _Parcel[Item, Answer]) -> None:
        with self._lock:
            if parcel in self._waiting:
                self._waiting.remove(parcel)
            if parcel.leads:
                self._hand_over()

    def _gathered(self) -> Sequence[_Parcel[Item, Answer]]:
        with self._lock:
            batch = [self._waiting.popleft()]
            number, weight = len(batch[0].items), batch[0].weight
            while self._waiting:
                number += len(self._waiting[0].items)
                weight += self._waiting[0].weight
                if number > MOST or weight > HEAVIEST:
                    break
                batch.append(self._waiting.popleft())
        return batch

    def _carry_out(self, batch: Sequence[_Parcel[Item, Answer]]) -> None:
        try:
            answers = self._run([item for parcel in batch for item in parcel.items])
        except Exception as error:
            self._recover(batch, error)
            return
        start = 0
        for parcel in batch:
            parcel.answers = answers[start : start + len(parcel.items)]
            start += len(parcel.items)

    def _recover(self, batch: Sequence[_Parcel[Item, Answer]], error: Exception) -> None:
        for parcel in batch:
            if len(batch) == 1 or isinstance(error, TransportError):
                parcel.error = error
            else:
                self._carry_out([parcel])
