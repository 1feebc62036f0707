"""Merges small calls of many threads: the calls that arrive while one batch runs form the next batch.

It has no thread of its own: one of the waiting threads, the leader, carries out the batch for all.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from pump.queue.batching.waiting_call import LARGE, WaitingCall, next_batch, share_answers, share_error
from pump.queue.errors import QueueUnavailable

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class ThreadFuture(Generic[Answer]):
    """The result for one thread."""

    def __init__(self) -> None:
        self.answers: Sequence[Answer] | None = None
        self.error: Exception | None = None
        self.leads = False
        """Whether this call's thread has to carry out the next batch."""
        self.woken: Final = threading.Lock()
        """Locked until the thread becomes the leader or has a result."""
        self.woken.acquire()

    def cancelled(self) -> bool:
        """Always False: a thread cannot stop waiting."""
        return False

    def done(self) -> bool:
        """Whether there is a result."""
        return self.answers is not None or self.error is not None

    def set_result(self, answers: Sequence[Answer]) -> None:
        """Store the results; the leader wakes the thread."""
        self.answers = answers

    def set_exception(self, error: Exception) -> None:
        """Store the error; the leader wakes the thread."""
        self.error = error

    def result(self) -> Sequence[Answer]:
        """The results, once they are there."""
        if self.error is not None:
            raise self.error
        assert self.answers is not None  # noqa: S101 - its leader stores one of the two
        return self.answers


class ThreadBatcher(Generic[Item, Answer]):
    """Runs one batch at a time, made of the calls that arrived since the last batch began. For use from any thread."""

    def __init__(
        self, run: Callable[[Sequence[Item]], Sequence[Answer]], weigh: Callable[[Item], int] = lambda _: 0
    ) -> None:
        self._run: Final = run
        self._weigh: Final = weigh
        self._lock: Final = threading.Lock()
        self._waiting: Final[deque[WaitingCall[ThreadFuture[Answer]]]] = deque()
        self._busy = False

    def do(self, items: Sequence[Item]) -> Sequence[Answer]:
        """Carry out these items in a batch; returns their results in order."""
        if len(items) >= LARGE:
            return self._run(items)
        future = ThreadFuture[Answer]()
        call = WaitingCall(items, sum(map(self._weigh, items)), future)
        try:
            with self._lock:
                self._waiting.append(call)
                if not self._busy:
                    self._busy = future.leads = True
            if not future.leads:
                future.woken.acquire()
            if not future.done():
                self._lead()
        except BaseException:  # such as KeyboardInterrupt: the others go on without this thread
            self._abandon(call)
            raise
        return future.result()

    def _lead(self) -> None:
        """Carry out the calls that have arrived; then the first call that arrived meanwhile becomes the leader."""
        with self._lock:
            batch = next_batch(self._waiting)
        try:
            self._carry_out(batch)
        finally:
            for _, _, future in batch:
                if not future.done():
                    future.error = QueueUnavailable("the call was interrupted: nobody knows whether it was carried out")
                future.leads = False
                future.woken.release()
            with self._lock:
                self._hand_over()

    def _hand_over(self) -> None:
        self._busy = bool(self._waiting)
        if self._waiting:
            self._waiting[0].future.leads = True
            self._waiting[0].future.woken.release()

    def _abandon(self, call: WaitingCall[ThreadFuture[Answer]]) -> None:
        with self._lock:
            if call in self._waiting:
                self._waiting.remove(call)
            if call.future.leads:
                self._hand_over()

    def _carry_out(self, batch: Sequence[WaitingCall[ThreadFuture[Answer]]]) -> None:
        try:
            share_answers(batch, self._run([item for call in batch for item in call.items]))
        except Exception as error:
            for call in share_error(batch, error):
                self._carry_out([call])
