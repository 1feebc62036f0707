"""A blocking client of the queue's HTTP API; `async_client` is its twin. What they say stands in `client_calls`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import TracebackType
from typing import Final, Self, TypeVar

import httpx

from pump.clock import Clock, Signal
from pump.duration import Duration, seconds
from pump.queue.client.base import TIMEOUT, ClientBase, headers_of, kind_of, url_of
from pump.queue.client.calls import Answer, Ask, Effect, KeepRenewing, Pause, Steps, Transaction
from pump.queue.client.consuming import Consuming, Handle, HandleAll, OnError
from pump.queue.client.messages import DeadLetters, Item, QueueMessage, Verdict
from pump.queue.errors import QueueUnavailable
from pump.queue.options import QueueOptions
from pump.queue.vocabulary import DEFAULT_GROUP, DEFAULT_PARTITION, DeadLetter, GroupInfo, Pushed, Settled, Status

__all__ = ["Consumer", "DeadLetters", "Item", "QueueClient", "QueueMessage", "Transaction", "Verdict"]

Result = TypeVar("Result")


class QueueClient(ClientBase):
    """A blocking client, for any number of threads.

    What failed for want of an answer is tried three times, 1 s and 2 s later; after five failures in a row nothing is
    asked for a minute, and calls raise CircuitOpen at once. What the server refuses is raised at once: BadRequest,
    NotFound, Conflict, QueueFull, and LeaseLost where a message is not ours any more and comes again by itself.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        clock: Clock | None = None,
        timeout: Duration = TIMEOUT,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        super().__init__(url, clock=clock, timeout=timeout)
        self._http: Final = httpx.Client(headers=headers_of(token), timeout=self.timeout, transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of every connection."""
        self._http.close()

    # -- producers

    def push(
        self,
        queue: str,
        data: object = None,
        *,
        partition: str = DEFAULT_PARTITION,
        transaction_id: str = "",
        delay: Duration = 0.0,
        trace_id: str | None = None,
    ) -> Pushed:
        """Store one message, which is anything that is JSON; one that was there already is a duplicate."""
        item = Item(
            queue=queue,
            data=data,
            partition=partition,
            transaction_id=transaction_id,
            delay=seconds(delay),
            trace_id=trace_id,
        )
        (result,) = self.push_many([item])
        return result

    def push_many(self, items: Sequence[Item]) -> list[Pushed]:
        """Store several; one that its queue refuses does not hold back the others."""
        return self._run(self.calls.push(items))

    # -- consumers

    def pop(
        self,
        queue: str,
        *,
        group: str = DEFAULT_GROUP,
        partition: str | None = None,
        limit: int = 1,
        partitions: int = 1,
        wait: Duration = 0.0,
        auto_ack: bool = False,
        start: str | datetime = "all",
    ) -> list[QueueMessage]:
        """Lease what is ready, waiting so long for it. A new group begins at `start`: all, new, or a time."""
        steps = self.calls.pop(
            queue,
            group=group,
            partition=partition,
            limit=limit,
            partitions=partitions,
            wait=seconds(wait),
            auto_ack=auto_ack,
            start=start,
        )
        return self._run(steps)

    def ack(self, message: QueueMessage) -> Settled:
        """The message is done. LeaseLost where it is not ours any more."""
        return self._run(self.calls.settle_one(Verdict(message)))

    def nack(self, message: QueueMessage, error: str | None = None, *, delay: Duration | None = None) -> Settled:
        """It has failed, which counts: it comes again after the delay, or is a dead letter."""
        verdict = Verdict(message, Status.FAILED, error, None if delay is None else seconds(delay))
        return self._run(self.calls.settle_one(verdict))

    def release(self, message: QueueMessage, *, delay: Duration | None = None) -> Settled:
        """Give it back, uncounted."""
        verdict = Verdict(message, Status.RETRY, delay=None if delay is None else seconds(delay))
        return self._run(self.calls.settle_one(verdict))

    def dlq(self, message: QueueMessage, error: str | None = None, *, reason: str = "") -> Settled:
        """Make it a dead letter at once."""
        return self._run(self.calls.settle_one(Verdict(message, Status.DEAD, error, reason=reason)))

    def settle(self, verdicts: Sequence[Verdict]) -> list[Settled]:
        """Say these at one go, each as it is; what became of each stands in its place."""
        return self._run(self.calls.settle(verdicts))

    def renew(self, message: QueueMessage, lease: Duration | None = None) -> float:
        """Let its lease end no earlier than that from now, None is its queue's time; returns when that is."""
        return self._run(self.calls.renew(message, None if lease is None else seconds(lease)))

    def consume(
        self,
        queue: str,
        *,
        group: str = DEFAULT_GROUP,
        partition: str | None = None,
        limit: int = 1,
        partitions: int = 1,
        start: str | datetime = "all",
        renew_every: Duration | None = None,
        most: int | None = None,
        until_empty: bool = False,
    ) -> "Consumer":
        """A consumer that goes on through every outage until it is told to stop, or has had `most` messages.

        `limit` messages are popped at a time. `renew_every` keeps their lease for as long as a handler runs.
        """
        consuming = self.consuming(
            queue,
            group=group,
            partition=partition,
            limit=limit,
            partitions=partitions,
            start=start,
            renew_every=renew_every,
            most=most,
            until_empty=until_empty,
        )
        return Consumer(consuming, self._run)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """What is said to it is done together when the block ends; nothing of it if the block raises."""
        transaction = Transaction()
        yield transaction
        self._run(self.calls.commit(transaction))

    # -- operators

    def configure(self, queue: str, options: QueueOptions) -> None:
        """Replace all options of a queue, creating it where needed."""
        self._run(self.calls.configure(queue, options))

    def dead_letters(
        self,
        *,
        queue: str | None = None,
        group: str | None = None,
        partition: str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> DeadLetters:
        """A page of dead letters, newest first."""
        return self._run(self.calls.dead_letters(queue, group, partition, limit, offset))

    def reprocess(self, letter: DeadLetter) -> Pushed:
        """Push it again as `reprocess-<transaction id>`; a second time it is only a duplicate."""
        return self._run(self.calls.reprocess(letter))

    def redrive(self, letters: Iterable[DeadLetter]) -> int:
        """Have the server push these again, each once for ever; says how many that were now."""
        return self._run(self.calls.redrive(letters))

    def groups(self) -> list[GroupInfo]:
        """All consumer groups of all queues."""
        return self._run(self.calls.groups())

    def delete_group(self, group: str, queue: str | None = None) -> bool:
        """Forget a group's progress, in one queue or in all."""
        return self._run(self.calls.delete_group(group, queue))

    def seek(self, group: str, queue: str, to: datetime | None, *, partition: str | None = None) -> int:
        """Move a group to a time, or with None to the end; says how many partitions that were."""
        return self._run(self.calls.seek(group, queue, to, partition))

    # -- how

    def _run(self, steps: Steps[Result]) -> Result:
        try:
            effect = next(steps)
            while True:
                try:
                    came = self._carry_out(effect)
                except BaseException as error:  # whose it is says the conversation
                    effect = steps.throw(error)
                else:
                    effect = steps.send(came)
        except StopIteration as end:
            result: Result = end.value
            return result
        finally:
            steps.close()

    def _carry_out(self, effect: Effect) -> object:
        if isinstance(effect, Ask):
            return self._ask(effect)
        if isinstance(effect, Pause):
            return self.clock.wait(effect.unless or Signal(), effect.seconds)
        if isinstance(effect, KeepRenewing):
            return self._keep_renewing(effect)
        return effect.call()

    def _ask(self, ask: Ask) -> Answer:
        try:
            response = self._http.request(
                ask.method,
                url_of(ask.path, self.base),
                content=ask.body,
                headers=kind_of(ask.body),
                timeout=self.timeout + ask.wait,
            )
        except httpx.HTTPError as error:
            raise QueueUnavailable(f"no answer to {ask.method} {ask.path}: {error!r}") from error
        return Answer(response.status_code, response.content)

    def _keep_renewing(self, wish: KeepRenewing) -> Callable[[], None]:
        if wish.every is None:
            return lambda: None

        def renew() -> None:
            if wish.message.is_open:
                self.renew(wish.message)

        return self.clock.every(wish.every, renew)


class Consumer:
    """Goes on consuming until it is told to stop, through every outage of the server."""

    def __init__(self, consuming: Consuming, run: Callable[[Steps[int]], int]) -> None:
        self._consuming: Final = consuming
        self._run: Final = run

    def stop(self) -> None:
        """End after the message in hand, or after the long poll under way; from any thread."""
        self._consuming.stopping.set()

    def each(self, handle: Handle, *, on_success: Handle | None = None, on_error: OnError | None = None) -> int:
        """Handle one message after the other; returns how many.

        One whose handler returned is acknowledged, after `on_success`; one whose handler raised has failed, after
        `on_error`, and what was popped with it goes back unhandled. What the handler has settled itself is left so.
        """
        return self._run(self._consuming.each(handle, on_success, on_error))

    def batch(self, handle: HandleAll) -> int:
        """Handle a list of messages at a time: all are acknowledged, or all have failed."""
        return self._run(self._consuming.batch(handle))
