"""An awaiting client of the queue's HTTP API; `client` is its twin. What they say stands in `client_calls`."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
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

__all__ = ["AsyncConsumer", "AsyncQueueClient", "DeadLetters", "Item", "QueueMessage", "Transaction", "Verdict"]

Result = TypeVar("Result")


class AsyncQueueClient(ClientBase):
    """QueueClient, awaiting, on one loop."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        clock: Clock | None = None,
        timeout: Duration = TIMEOUT,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(url, clock=clock, timeout=timeout)
        self._http: Final = httpx.AsyncClient(headers=headers_of(token), timeout=self.timeout, transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """As QueueClient's."""
        await self._http.aclose()

    # -- producers

    async def push(
        self,
        queue: str,
        data: object = None,
        *,
        partition: str = DEFAULT_PARTITION,
        transaction_id: str = "",
        delay: Duration = 0.0,
        trace_id: str | None = None,
    ) -> Pushed:
        """As QueueClient's."""
        item = Item(
            queue=queue,
            data=data,
            partition=partition,
            transaction_id=transaction_id,
            delay=seconds(delay),
            trace_id=trace_id,
        )
        (result,) = await self.push_many([item])
        return result

    async def push_many(self, items: Sequence[Item]) -> list[Pushed]:
        """As QueueClient's."""
        return await self._run(self.calls.push(items))

    # -- consumers

    async def pop(
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
        """As QueueClient's."""
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
        return await self._run(steps)

    async def ack(self, message: QueueMessage) -> Settled:
        """As QueueClient's."""
        return await self._run(self.calls.settle_one(Verdict(message)))

    async def nack(self, message: QueueMessage, error: str | None = None, *, delay: Duration | None = None) -> Settled:
        """As QueueClient's."""
        verdict = Verdict(message, Status.FAILED, error, None if delay is None else seconds(delay))
        return await self._run(self.calls.settle_one(verdict))

    async def release(self, message: QueueMessage, *, delay: Duration | None = None) -> Settled:
        """As QueueClient's."""
        verdict = Verdict(message, Status.RETRY, delay=None if delay is None else seconds(delay))
        return await self._run(self.calls.settle_one(verdict))

    async def dlq(self, message: QueueMessage, error: str | None = None, *, reason: str = "") -> Settled:
        """As QueueClient's."""
        return await self._run(self.calls.settle_one(Verdict(message, Status.DEAD, error, reason=reason)))

    async def settle(self, verdicts: Sequence[Verdict]) -> list[Settled]:
        """As QueueClient's."""
        return await self._run(self.calls.settle(verdicts))

    async def renew(self, message: QueueMessage, lease: Duration | None = None) -> float:
        """As QueueClient's."""
        return await self._run(self.calls.renew(message, None if lease is None else seconds(lease)))

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
    ) -> "AsyncConsumer":
        """As QueueClient's."""
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
        return AsyncConsumer(consuming, self._run)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """As QueueClient's."""
        transaction = Transaction()
        yield transaction
        await self._run(self.calls.commit(transaction))

    # -- operators

    async def configure(self, queue: str, options: QueueOptions) -> None:
        """As QueueClient's."""
        await self._run(self.calls.configure(queue, options))

    async def dead_letters(
        self,
        *,
        queue: str | None = None,
        group: str | None = None,
        partition: str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> DeadLetters:
        """As QueueClient's."""
        return await self._run(self.calls.dead_letters(queue, group, partition, limit, offset))

    async def reprocess(self, letter: DeadLetter) -> Pushed:
        """As QueueClient's."""
        return await self._run(self.calls.reprocess(letter))

    async def redrive(self, letters: Iterable[DeadLetter]) -> int:
        """As QueueClient's."""
        return await self._run(self.calls.redrive(letters))

    async def groups(self) -> list[GroupInfo]:
        """As QueueClient's."""
        return await self._run(self.calls.groups())

    async def delete_group(self, group: str, queue: str | None = None) -> bool:
        """As QueueClient's."""
        return await self._run(self.calls.delete_group(group, queue))

    async def seek(self, group: str, queue: str, to: datetime | None, *, partition: str | None = None) -> int:
        """As QueueClient's."""
        return await self._run(self.calls.seek(group, queue, to, partition))

    # -- how

    async def _run(self, steps: Steps[Result]) -> Result:
        try:
            effect = next(steps)
            while True:
                try:
                    came = await self._carry_out(effect)
                except BaseException as error:  # whose it is says the conversation
                    effect = steps.throw(error)
                else:
                    effect = steps.send(came)
        except StopIteration as end:
            result: Result = end.value
            return result
        finally:
            steps.close()

    async def _carry_out(self, effect: Effect) -> object:
        if isinstance(effect, Ask):
            return await self._ask(effect)
        if isinstance(effect, Pause):
            return await self.clock.wait_async(effect.unless or Signal(), effect.seconds)
        if isinstance(effect, KeepRenewing):
            return self._keep_renewing(effect)
        return await _came(effect.call())

    async def _ask(self, ask: Ask) -> Answer:
        try:
            response = await self._http.request(
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

        async def renew() -> None:
            if wish.message.is_open:
                await self.renew(wish.message)

        return self.clock.every_async(wish.every, renew)


class AsyncConsumer:
    """Consumer, awaiting. Cancelled, it leaves what it has in hand, which comes again when its lease ends."""

    def __init__(self, consuming: Consuming, run: Callable[[Steps[int]], Awaitable[int]]) -> None:
        self._consuming: Final = consuming
        self._run: Final = run

    def stop(self) -> None:
        """As Consumer's."""
        self._consuming.stopping.set()

    async def each(self, handle: Handle, *, on_success: Handle | None = None, on_error: OnError | None = None) -> int:
        """As Consumer's; each of the three may be `async def`."""
        return await self._run(self._consuming.each(handle, on_success, on_error))

    async def batch(self, handle: HandleAll) -> int:
        """As Consumer's; what handles may be `async def`."""
        return await self._run(self._consuming.batch(handle))


async def _came(result: object) -> object:
    return await result if inspect.isawaitable(result) else result
