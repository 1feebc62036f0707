"""The awaiting client of the queue's HTTP API. `calls` has what its methods do."""

import inspect
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Self

import httpx

from pump.queue.client.base import ClientBase, ClientConsumerBase, awaiting, consumer_of, done, no_answer
from pump.queue.client.calls import Answer, Ask, Calls, ClientEffect, KeepRenewing, Pause
from pump.queue.client.consuming import Consuming
from pump.queue.client.messages import Transaction


class AsyncClientConsumer(ClientConsumerBase[Awaitable[object]]):
    """Consumes as ClientConsumer does; every function that it is given may be `async def`.

    If it is cancelled, it settles nothing: its messages come again when their lease ends.
    """

    each = awaiting(Consuming.each)
    batch = awaiting(Consuming.batch)


class AsyncQueueClient(ClientBase[httpx.AsyncClient, httpx.AsyncBaseTransport]):
    """As QueueClient, but awaiting; for one loop."""

    def _open(self, transport: httpx.AsyncBaseTransport | None) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection."""
        await self._http.aclose()

    push = awaiting(Calls.push)
    push_many = awaiting(Calls.push_many)
    pop = awaiting(Calls.pop)
    ack = awaiting(Calls.ack)
    nack = awaiting(Calls.nack)
    release = awaiting(Calls.release)
    dlq = awaiting(Calls.dlq)
    settle = awaiting(Calls.settle)
    renew = awaiting(Calls.renew)
    consume = consumer_of(AsyncClientConsumer, Consuming)
    configure = awaiting(Calls.configure)
    dead_letters = awaiting(Calls.dead_letters)
    reprocess = awaiting(Calls.reprocess)
    redrive = awaiting(Calls.redrive)
    groups = awaiting(Calls.groups)
    delete_group = awaiting(Calls.delete_group)
    seek = awaiting(Calls.seek)
    _commit = awaiting(Calls.commit)
    _renew_if_open = awaiting(Calls.renew_if_open)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Collect steps to carry out together when the block ends; none is carried out if the block raises."""
        transaction = Transaction()
        yield transaction
        await self._commit(transaction)

    async def perform(self, effect: ClientEffect) -> object:
        """Perform one effect of a conversation."""
        if isinstance(effect, Ask):
            with no_answer(effect):
                response = await self._http.request(**self._request(effect))
            return Answer(response.status_code, response.content)
        if isinstance(effect, Pause):
            return await self.clock.wait_async(effect.unless, effect.seconds)
        if isinstance(effect, KeepRenewing):
            return self.clock.every_async(effect.every, partial(self._renew_if_open, effect.message))
        return await _awaited(effect.function())


async def _awaited(result: object) -> object:
    return done(await result if inspect.isawaitable(result) else result)
