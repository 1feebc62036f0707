"""The calls of a client of the queue, written once for both colours: conversations that yield requests and pauses.

The blocking and the awaiting client have the same methods, which run these conversations. Nothing here opens a
connection: the client answers each Ask, or raises QueueUnavailable if there was no answer.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Final, TypeAlias, TypeVar
from urllib.parse import quote, urlencode

from pump.clock import Clock, Signal
from pump.conversation import Conversation, Effect
from pump.duration import Duration, seconds
from pump.errors import LeaseLost, SetupError
from pump.queue.client import messages
from pump.queue.client.circuit import CircuitOpen, ServerCircuit
from pump.queue.client.messages import DeadLetters, Item, Outcome, QueueMessage, Transaction
from pump.queue.errors import BadRequest, Conflict, NotFound, QueueError, QueueFull, QueueUnavailable
from pump.queue.ids import mint_many
from pump.queue.options import QueueOptions
from pump.queue.vocabulary import DEFAULT_GROUP, DEFAULT_PARTITION, DeadLetter, GroupInfo, Pushed, Settled, Status
from pump.queue.wire.json_body import Reader, encode
from pump.queue.wire.queries import MOST_LISTED
from pump.queue.wire.replies import carried, copied
from pump.queue.wire.requests import (
    AckBatchRequest,
    AckOperation,
    AckRequest,
    PushItem,
    PushOperation,
    PushRequest,
    TransactionRequest,
    options_written,
)
from pump.queue.wire.times import time_text

TRIES: Final = 3
FIRST_PAUSE: Final = 1.0
"""Seconds before the second try; each further pause is twice as long."""

Result = TypeVar("Result")

_ERRORS: Final[Mapping[int, type[QueueError]]] = {
    HTTPStatus.NOT_FOUND: NotFound,
    HTTPStatus.CONFLICT: Conflict,
    HTTPStatus.TOO_MANY_REQUESTS: QueueFull,
}
_LOGIN: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})


@dataclass(frozen=True, slots=True)
class Answer:
    """The reply to one request."""

    status: int = 0
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Ask(Effect[Answer]):
    """Send one request."""

    method: str
    path: str
    body: bytes | None = None
    wait: float = 0.0
    """The server may take this many seconds longer than usual to answer."""


@dataclass(frozen=True, slots=True)
class Pause(Effect[None]):
    """Wait for some seconds, or until the signal is set."""

    seconds: float
    unless: Signal


@dataclass(frozen=True, slots=True)
class CallHandler(Effect[object]):
    """Call a function of the user; the awaiting client awaits what it returns."""

    function: Callable[[], object]


@dataclass(frozen=True, slots=True)
class KeepRenewing(Effect[Callable[[], None]]):
    """Renew the message's lease at intervals of `every` seconds, until the returned function is called."""

    message: QueueMessage
    every: float


ClientEffect: TypeAlias = Ask | Pause | CallHandler | KeepRenewing
Steps: TypeAlias = Conversation[ClientEffect, Result]


class Calls:
    """Every call of the API of one server."""

    def __init__(self, clock: Clock) -> None:
        self._circuit: Final = ServerCircuit(clock)

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
    ) -> Steps[Pushed]:
        """Store one message, which is any value that can be JSON; a message that is stored already is a duplicate."""
        item = Item(
            queue=queue,
            data=data,
            partition=partition,
            transaction_id=transaction_id,
            delay=seconds(delay),
            trace_id=trace_id,
        )
        (result,) = yield from self.push_many([item])
        return result

    def push_many(self, items: Sequence[Item]) -> Steps[list[Pushed]]:
        """Store several messages; if the queue refuses one, the others are still stored."""
        if not items:
            return []
        body = PushRequest(_push_items(items, mint_many(len(items))))
        replies = yield from self._ask(messages.PUSHED, "POST", "/api/v1/push", body)
        return [messages.pushed(reply, item) for reply, item in zip(replies, items, strict=True)]

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
    ) -> Steps[list[QueueMessage]]:
        """Lease ready messages, or wait up to `wait` for one. A new group begins at `start`: "all", "new" or a time.

        It is tried only once: a second try would not get the messages that the first one may have leased.
        """
        path = _path({"pop/queue": queue, "partition": partition})
        query: dict[str, object] = {"consumerGroup": group, "batch": limit, "partitions": partitions}
        if seconds(wait) > 0:
            query |= {"wait": "true", "timeout": round(seconds(wait) * 1000)}
        if auto_ack:
            query["autoAck"] = "true"
        if isinstance(start, datetime):
            query["subscriptionFrom"] = time_text(start.timestamp())
        elif start != "all":
            query["subscriptionMode"] = start
        answer, _ = yield from self._send(Ask("GET", f"{path}?{urlencode(query)}", wait=seconds(wait)), tries=1)
        return messages.messages(answer.body, group)

    def ack(self, message: QueueMessage) -> Steps[Settled]:
        """Acknowledge the message: it is done. Raises LeaseLost if the message is no longer ours."""
        return self._settle_one(Outcome(message))

    def nack(self, message: QueueMessage, error: str | None = None, *, delay: Duration | None = None) -> Steps[Settled]:
        """Report a failure, which is counted: the message comes again after the delay, or becomes a dead letter."""
        return self._settle_one(Outcome(message, Status.FAILED, error, delay))

    def release(self, message: QueueMessage, *, delay: Duration | None = None) -> Steps[Settled]:
        """Give the message back; no attempt is counted."""
        return self._settle_one(Outcome(message, Status.RETRY, delay=delay))

    def dlq(self, message: QueueMessage, error: str | None = None, *, reason: str = "") -> Steps[Settled]:
        """Make the message a dead letter at once."""
        return self._settle_one(Outcome(message, Status.DEAD, error, reason=reason))

    def settle(self, outcomes: Sequence[Outcome]) -> Steps[list[Settled]]:
        """Settle several messages in one request; a refused one does not affect the others. Results are in order."""
        if not outcomes:
            return []
        request = AckBatchRequest([each.request(AckRequest) for each in outcomes], outcomes[0].message.group)
        replies = yield from self._ask(messages.SETTLED, "POST", "/api/v1/ack/batch", request)
        results = [copied(Settled, each) for each in replies]
        for outcome, result in zip(outcomes, results, strict=True):
            outcome.message.settled |= result.success
            outcome.message.lost |= result.message == "invalid_lease"
        return results

    def _settle_one(self, outcome: Outcome) -> Steps[Settled]:
        (result,) = yield from self.settle([outcome])
        if result.success:
            return result
        text = f"message {result.transaction_id}: {result.error or result.message}"
        raise NotFound(text) if result.message == "not_found" else LeaseLost(text)

    def renew(self, message: QueueMessage, lease: Duration | None = None) -> Steps[float]:
        """Extend the lease to end no earlier than that from now, None means its queue's time; returns when it ends.

        Raises LeaseLost if it has ended already.
        """
        path = f"{_path({'lease': message.lease_id})}/extend"
        body = None if lease is None else {"seconds": seconds(lease)}
        try:
            reply = yield from self._ask(messages.EXTENDED, "POST", path, body, tries=1)
        except (NotFound, Conflict) as error:
            message.lost = True
            raise LeaseLost(
                f"message {message.id} of {message.queue} no longer belongs to this consumer: {error}"
            ) from error
        return reply.expires_at or 0.0

    def renew_if_open(self, message: QueueMessage) -> Steps[None]:
        """Renew the lease, unless the message is settled or lost."""
        if message.is_open:
            yield from self.renew(message)

    def commit(self, transaction: Transaction) -> Steps[None]:
        """Carry out all steps or none. It succeeds if an earlier try was carried out and only its reply was lost."""
        outcomes, items = transaction.outcomes, transaction.items
        if not outcomes and not items:
            return
        minted = mint_many(len(items))
        acks = [each.request(AckOperation) for each in outcomes]
        pushes = [PushOperation(_push_items(items, minted))] if items else []
        leases = sorted({each.message.lease_id for each in outcomes})
        request = TransactionRequest([*acks, *pushes], leases)
        answer, tries = yield from self._send(Ask("POST", "/api/v1/transaction", encode(request)))
        reply = messages.read(answer.body, messages.MEMBERS)
        if reply.get("success") is not True:
            done_before = tries > 1 and (yield from self._has_stored(items, minted))
            if not done_before:
                error = str(reply.get("error") or "refused")
                text = f"nothing was done: {error}"
                raise LeaseLost(text) if "lease" in error.lower() else Conflict(text)
        for outcome in outcomes:
            outcome.message.settled = True

    def _has_stored(self, items: Sequence[Item], minted: Sequence[str]) -> Steps[bool]:
        """Whether the server has a message with an id made here: then an earlier try has stored it."""
        for item, transaction_id in zip(items, minted, strict=True):
            if not item.transaction_id:
                query = urlencode({"queue": item.queue, "partition": item.partition, "limit": MOST_LISTED})
                reply = yield from self._ask(messages.MEMBERS, "GET", f"/api/v1/messages?{query}")
                return any(each.get("transactionId") == transaction_id for each in reply.get("messages") or ())
        return False

    # -- operators

    def configure(self, queue: str, options: QueueOptions) -> Steps[None]:
        """Replace all options of a queue, creating it where needed."""
        body = {"queue": queue, "options": options_written(options)}
        yield from self._send(Ask("POST", "/api/v1/configure", encode(body)))

    def dead_letters(
        self,
        *,
        queue: str | None = None,
        group: str | None = None,
        partition: str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> Steps[DeadLetters]:
        """A page of dead letters, newest first."""
        given = {"queue": queue, "consumerGroup": group, "partition": partition, "limit": limit, "offset": offset}
        query = urlencode({name: value for name, value in given.items() if value is not None})
        reply = yield from self._ask(messages.DEAD_LETTERS, "GET", f"/api/v1/dlq?{query}")
        letters = [copied(DeadLetter, each, payload=carried(each)) for each in reply.messages]
        return DeadLetters(letters, reply.total)

    def reprocess(self, letter: DeadLetter) -> Steps[Pushed]:
        """Push a dead letter again as `reprocess-<transaction id>`; a second push of it is a duplicate."""
        if letter.payload is None:
            raise BadRequest(f"the dead letter {letter.id} is encrypted with a key that the server does not have")
        item = Item(
            queue=letter.queue,
            payload=letter.payload,
            partition=letter.partition,
            transaction_id=f"reprocess-{letter.transaction_id}",
        )
        (result,) = yield from self.push_many([item])
        return result

    def redrive(self, letters: Iterable[DeadLetter]) -> Steps[int]:
        """Let the server push dead letters again, each only once; returns how many it has pushed now."""
        body = {"ids": [letter.id for letter in letters]}
        reply = yield from self._ask(messages.MEMBERS, "POST", "/api/v1/dlq/redrive", body)
        return sum(each.get("redriven") is True for each in reply.get("results") or ())

    def groups(self) -> Steps[list[GroupInfo]]:
        """All consumer groups of all queues."""
        replies = yield from self._ask(messages.GROUPS, "GET", "/api/v1/consumer-groups")
        return [copied(GroupInfo, each) for each in replies]

    def delete_group(self, group: str, queue: str | None = None) -> Steps[bool]:
        """Delete a group's progress, in one queue or in all."""
        path = _path({"consumer-groups": group, "queues": queue})
        reply = yield from self._ask(messages.MEMBERS, "DELETE", path)
        return reply.get("deleted") is True

    def seek(self, group: str, queue: str, to: datetime | None, *, partition: str | None = None) -> Steps[int]:
        """Move a group to a time, or with None to the end; returns the number of partitions."""
        path = _path({"consumer-groups": group, "queues": queue, "partitions": partition})
        body = {"toEnd": True} if to is None else {"timestamp": time_text(to.timestamp())}
        reply = yield from self._ask(messages.MEMBERS, "POST", f"{path}/seek", body)
        moved: int = reply.get("partitionsUpdated") or 0
        return moved

    # -- requests and further tries

    def _ask(
        self, reader: Reader[Result], method: str, path: str, body: object = None, *, tries: int = TRIES
    ) -> Steps[Result]:
        answer, _ = yield from self._send(Ask(method, path, None if body is None else encode(body)), tries=tries)
        return messages.read(answer.body, reader)

    def _send(self, ask: Ask, *, tries: int = TRIES) -> Steps[tuple[Answer, int]]:
        """The answer, and the number of the try that got it. A request that the server refuses is not tried again."""
        number = 0
        while True:
            number += 1
            try:
                with self._circuit.one_try():
                    answer = yield from ask
                    if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                        raise QueueUnavailable(f"the server cannot answer now ({answer.status}): {_error(answer)}")  # noqa: TRY301 - it counts as no answer
            except QueueUnavailable as error:
                if number == tries or isinstance(error, CircuitOpen):
                    raise
                yield from Pause(FIRST_PAUSE * 2 ** (number - 1), Signal())
            else:
                _raise_refusal(answer)
                return answer, number


def _raise_refusal(answer: Answer) -> None:
    if answer.status in _LOGIN:
        raise SetupError(f"the server does not allow this: {_error(answer)}")
    if answer.status >= HTTPStatus.BAD_REQUEST:
        raise _ERRORS.get(answer.status, BadRequest)(_error(answer))


def _error(answer: Answer) -> str:
    try:
        return str(messages.read(answer.body, messages.MEMBERS)["error"])
    except (QueueUnavailable, KeyError):
        return HTTPStatus(answer.status).phrase if answer.status in set(HTTPStatus) else str(answer.status)


def _push_items(items: Sequence[Item], minted: Sequence[str]) -> list[PushItem]:
    return [item.request(item.transaction_id or new) for item, new in zip(items, minted, strict=True)]


def _path(names: Mapping[str, str | None]) -> str:
    """The path with these names, each one after its kind."""
    given = {kind: quote(name, safe="") for kind, name in names.items() if name is not None}
    return "".join(["/api/v1", *(f"/{kind}/{name}" for kind, name in given.items())])
