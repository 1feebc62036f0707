"""The blocking client of the queue's HTTP API. `calls` has what its methods do."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Self

import httpx

from pump.queue.client.base import ClientBase, ClientConsumerBase, blocking, consumer_of, done, no_answer
from pump.queue.client.calls import Answer, Ask, Calls, ClientEffect, KeepRenewing, Pause
from pump.queue.client.consuming import Consuming
from pump.queue.client.messages import Transaction


class ClientConsumer(ClientConsumerBase[object]):
    """Consumes a queue through every outage of the server, until it is stopped."""

    each = blocking(Consuming.each)
    batch = blocking(Consuming.batch)


class QueueClient(ClientBase[httpx.Client, httpx.BaseTransport]):
    """A blocking client, for any number of threads.

    A request without an answer is tried three times, with pauses of 1 s and 2 s. After five failures in a row, nothing
    is sent for a minute: calls raise CircuitOpen at once. A refusal by the server is raised at once: BadRequest,
    NotFound, Conflict, QueueFull, or LeaseLost if the message is no longer ours: it then comes again by itself.
    """

    def _open(self, transport: httpx.BaseTransport | None) -> httpx.Client:
        return httpx.Client(transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection."""
        self._http.close()

    push = blocking(Calls.push)
    push_many = blocking(Calls.push_many)
    pop = blocking(Calls.pop)
    ack = blocking(Calls.ack)
    nack = blocking(Calls.nack)
    release = blocking(Calls.release)
    dlq = blocking(Calls.dlq)
    settle = blocking(Calls.settle)
    renew = blocking(Calls.renew)
    consume = consumer_of(ClientConsumer, Consuming)
    configure = blocking(Calls.configure)
    dead_letters = blocking(Calls.dead_letters)
    reprocess = blocking(Calls.reprocess)
    redrive = blocking(Calls.redrive)
    groups = blocking(Calls.groups)
    delete_group = blocking(Calls.delete_group)
    seek = blocking(Calls.seek)
    _commit = blocking(Calls.commit)
    _renew_if_open = blocking(Calls.renew_if_open)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Collect steps to carry out together when the block ends; none is carried out if the block raises."""
        transaction = Transaction()
        yield transaction
        self._commit(transaction)

    def perform(self, effect: ClientEffect) -> object:
        """Perform one effect of a conversation."""
        if isinstance(effect, Ask):
            with no_answer(effect):
                response = self._http.request(**self._request(effect))
            return Answer(response.status_code, response.content)
        if isinstance(effect, Pause):
            return self.clock.wait(effect.unless, effect.seconds)
        if isinstance(effect, KeepRenewing):
            return self.clock.every(effect.every, partial(self._renew_if_open, effect.message))
        return done(effect.function())
