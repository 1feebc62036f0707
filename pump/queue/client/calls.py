"""What a client of the queue does, said once for both colours: conversations that yield what to ask and how to wait.

A conversation is a generator. It is sent what came of each Effect, the Answer to an Ask, or is thrown what went wrong,
a QueueUnavailable where there was no answer; it returns what its caller wants to know. Nothing here opens a connection.
"""

import json
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import quote, urlencode

from pump.clock import Clock, Signal
from pump.errors import LeaseLost, SetupError
from pump.queue.client import messages as words
from pump.queue.client.circuit_breaker import Circuit
from pump.queue.client.messages import DeadLetters, Item, QueueMessage, Verdict
from pump.queue.errors import BadRequest, Conflict, NotFound, QueueError, QueueFull, QueueUnavailable
from pump.queue.ids import mint_many
from pump.queue.options import QueueOptions
from pump.queue.vocabulary import DeadLetter, GroupInfo, Pushed, Settled
from pump.queue.wire.options import written as options_written
from pump.queue.wire.replies import time_text
from pump.queue.wire.requests import MOST_LISTED

TRIES: Final = 3
FIRST_PAUSE: Final = 1.0
"""Seconds before the second try; each further pause is twice as long."""
FAILURES: Final = 5
OPEN_SECONDS: Final = 60.0

Result = TypeVar("Result")

_REFUSALS: Final[Mapping[int, type[QueueError]]] = {
    HTTPStatus.NOT_FOUND: NotFound,
    HTTPStatus.CONFLICT: Conflict,
    HTTPStatus.TOO_MANY_REQUESTS: QueueFull,
}
_LOGIN: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})


@dataclass(frozen=True, slots=True)
class Ask:
    """One request."""

    method: str
    path: str
    body: bytes | None = None
    wait: float = 0.0
    """How many seconds the server may take longer than usual to answer."""


@dataclass(frozen=True, slots=True)
class Pause:
    """So many seconds to wait, unless the signal is set."""

    seconds: float
    unless: Signal | None = None


@dataclass(frozen=True, slots=True)
class Act:
    """Something of the user's to call, and to await where the client is awaiting."""

    call: Callable[[], object]


@dataclass(frozen=True, slots=True)
class KeepRenewing:
    """Renew the message's lease every so many seconds, None is never, until what is sent back is called."""

    message: QueueMessage
    every: float | None


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server said."""

    status: int = 0
    body: bytes = b""


Effect: TypeAlias = Ask | Pause | Act | KeepRenewing
Steps: TypeAlias = Generator[Effect, Any, Result]


@dataclass(slots=True, eq=False)
class Transaction:
    """What is to be done together, or not at all."""

    verdicts: list[Verdict] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)

    def ack(self, message: QueueMessage) -> None:
        """The message is done."""
        self.verdicts.append(Verdict(message))

    def settle(self, verdict: Verdict) -> None:
        """Say this of a message."""
        self.verdicts.append(verdict)

    def push(self, queue: str, data: object = None, *, partition: str = "Default", delay: float = 0.0) -> None:
        """Store a message."""
        self.items.append(Item(queue=queue, data=data, partition=partition, delay=delay))

    def push_item(self, item: Item) -> None:
        """Store a message that is described whole."""
        self.items.append(item)


class Calls:
    """Every call of the API, for one server."""

    def __init__(self, clock: Clock) -> None:
        self._circuit: Final = Circuit(clock, failures=FAILURES, open_seconds=OPEN_SECONDS)

    # -- producers

    def push(self, items: Sequence[Item]) -> Steps[list[Pushed]]:
        """Store each; the same ids go out however often it has to be tried, so that none is stored twice."""
        if not items:
            return []
        ids = [item.transaction_id or minted for item, minted in zip(items, mint_many(len(items)), strict=True)]
        body = b'{"items":[%s]}' % b",".join(map(Item.written, items, ids))
        answer = yield from self._asked(Ask("POST", "/api/v1/push", body))
        found = words.rows(answer.body)
        return [words.pushed(tree, item) for tree, item in zip(found, items, strict=True)]

    # -- consumers

    def pop(
        self,
        queue: str,
        *,
        group: str,
        partition: str | None,
        limit: int,
        partitions: int,
        wait: float,
        auto_ack: bool,
        start: str | float | datetime,
    ) -> Steps[list[QueueMessage]]:
        """Lease what is ready. It is tried once: a second try would not get what the first one may have leased."""
        path = f"/api/v1/pop/queue/{_part(queue)}"
        if partition is not None:
            path += f"/partition/{_part(partition)}"
        asked: dict[str, object] = {"consumerGroup": group, "batch": limit, "partitions": partitions}
        if wait > 0:
            asked |= {"wait": "true", "timeout": round(wait * 1000)}
        if auto_ack:
            asked["autoAck"] = "true"
        asked |= _start(start)
        answer = yield from self._asked(Ask("GET", f"{path}?{urlencode(asked)}", wait=wait), tries=1)
        return words.messages(answer.body, group)

    def settle(self, verdicts: Sequence[Verdict]) -> Steps[list[Settled]]:
        """Say these, each as it is; one that is refused does not touch the others."""
        if not verdicts:
            return []
        body = {"consumerGroup": verdicts[0].message.group, "acknowledgments": [each.written() for each in verdicts]}
        answer = yield from self._asked(Ask("POST", "/api/v1/ack/batch", words.dump(body)))
        results = [words.settled(tree) for tree in words.rows(answer.body)]
        for verdict, result in zip(verdicts, results, strict=True):
            verdict.message.settled |= result.success
            verdict.message.lost |= result.message == "invalid_lease"
        return results

    def settle_one(self, verdict: Verdict) -> Steps[Settled]:
        """The same of one message: LeaseLost where it is not ours any more, which no further try would change."""
        (result,) = yield from self.settle([verdict])
        if not result.success:
            raise _refused(result)
        return result

    def renew(self, message: QueueMessage, seconds: float | None) -> Steps[float]:
        """Let the lease end no earlier than that from now; returns when that is, or raises LeaseLost."""
        path = f"/api/v1/lease/{_part(message.lease_id)}/extend"
        body = None if seconds is None else words.dump({"seconds": seconds})
        try:
            answer = yield from self._asked(Ask("POST", path, body), tries=1)
        except (NotFound, Conflict) as error:
            message.lost = True
            raise LeaseLost(f"message {message.id} of {message.queue} is not ours any more: {error}") from error
        return words.expires_at(words.members(answer.body))

    def commit(self, transaction: Transaction) -> Steps[None]:
        """All of it or nothing. What was carried out by a try whose answer got lost is not taken for a refusal."""
        if not transaction.verdicts and not transaction.items:
            return
        minted = mint_many(len(transaction.items))
        ids = [item.transaction_id or each for item, each in zip(transaction.items, minted, strict=True)]
        answer, tries = yield from self._counted(Ask("POST", "/api/v1/transaction", _operations(transaction, ids)))
        reply = words.members(answer.body)
        if reply.get("success") is not True:
            done_before = tries > 1 and (yield from self._has_stored(transaction.items, minted))
            if not done_before:
                raise _not_committed(str(reply.get("error") or "refused"))
        for verdict in transaction.verdicts:
            verdict.message.settled = True

    def _has_stored(self, items: Sequence[Item], minted: Sequence[str]) -> Steps[bool]:
        """Whether the server has a message under an id that was minted for it here, which only this can have stored."""
        for item, transaction_id in zip(items, minted, strict=True):
            if not item.transaction_id:
                asked = urlencode({"queue": item.queue, "partition": item.partition, "limit": MOST_LISTED})
                answer = yield from self._asked(Ask("GET", f"/api/v1/messages?{asked}"))
                found = words.members(answer.body).get("messages")
                listed = found if isinstance(found, list) else []
                return any(each.get("transactionId") == transaction_id for each in listed)
        return False

    # -- operators

    def configure(self, queue: str, options: QueueOptions) -> Steps[None]:
        """Replace all options of a queue, creating it where needed."""
        body = words.dump({"queue": queue, "options": options_written(options)})
        yield from self._asked(Ask("POST", "/api/v1/configure", body))

    def dead_letters(
        self, queue: str | None, group: str | None, partition: str | None, limit: int, offset: int
    ) -> Steps[DeadLetters]:
        """A page of dead letters, newest first."""
        given = {"queue": queue, "consumerGroup": group, "partition": partition, "limit": limit, "offset": offset}
        asked = urlencode({name: value for name, value in given.items() if value is not None})
        answer = yield from self._asked(Ask("GET", f"/api/v1/dlq?{asked}"))
        return words.dead_letters(answer.body)

    def reprocess(self, letter: DeadLetter) -> Steps[Pushed]:
        """Push a dead message again as `reprocess-<transaction id>`; a second time it is only a duplicate."""
        if letter.payload is None:
            raise BadRequest(f"the dead letter {letter.id} is encrypted with a key that the server does not have")
        item = Item(
            queue=letter.queue,
            payload=letter.payload,
            partition=letter.partition,
            transaction_id=f"reprocess-{letter.transaction_id}",
        )
        (result,) = yield from self.push([item])
        return result

    def redrive(self, letters: Iterable[DeadLetter]) -> Steps[int]:
        """Have the server push these again, each once for ever; says how many that were now."""
        body = words.dump({"ids": [letter.id for letter in letters]})
        answer = yield from self._asked(Ask("POST", "/api/v1/dlq/redrive", body))
        results = words.members(answer.body).get("results")
        return sum(each.get("redriven") is True for each in results) if isinstance(results, list) else 0

    def groups(self) -> Steps[list[GroupInfo]]:
        """All consumer groups of all queues."""
        answer = yield from self._asked(Ask("GET", "/api/v1/consumer-groups"))
        return [words.group(tree) for tree in words.rows(answer.body)]

    def delete_group(self, group: str, queue: str | None) -> Steps[bool]:
        """Forget a group's progress, in one queue or in all."""
        path = f"/api/v1/consumer-groups/{_part(group)}"
        if queue is not None:
            path += f"/queues/{_part(queue)}"
        answer = yield from self._asked(Ask("DELETE", path))
        return words.members(answer.body).get("deleted") is True

    def seek(self, group: str, queue: str, to: float | datetime | None, partition: str | None) -> Steps[int]:
        """Move a group to a time, or with None to the end."""
        path = f"/api/v1/consumer-groups/{_part(group)}/queues/{_part(queue)}"
        if partition is not None:
            path += f"/partitions/{_part(partition)}"
        body = {"toEnd": True} if to is None else {"timestamp": _time(to)}
        answer = yield from self._asked(Ask("POST", f"{path}/seek", words.dump(body)))
        moved = words.members(answer.body).get("partitionsUpdated")
        return moved if isinstance(moved, int) else 0

    # -- how

    def _asked(self, ask: Ask, *, tries: int = TRIES) -> Steps[Answer]:
        answer, _ = yield from self._counted(ask, tries=tries)
        return answer

    def _counted(self, ask: Ask, *, tries: int = TRIES) -> Steps[tuple[Answer, int]]:
        """The answer, and at which try it came. What the server refuses is not asked again."""
        for number in range(1, tries + 1):
            told = self._circuit.enter()
            try:
                answer = _heard((yield ask))
            except QueueUnavailable:
                told(False)  # noqa: FBT003 - it is told whether the try succeeded
                if number == tries:
                    raise
                yield Pause(FIRST_PAUSE * 2 ** (number - 1))
            except BaseException:  # whoever asked was cancelled, which says nothing of the server
                told(None)
                raise
            else:
                told(True)  # noqa: FBT003 - the same
                _must_be_fine(answer)
                return answer, number
        raise AssertionError("there is at least one try")


def _heard(answer: Answer) -> Answer:
    if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise QueueUnavailable(f"the server cannot answer just now ({answer.status}): {_error(answer)}")
    return answer


def _must_be_fine(answer: Answer) -> None:
    if answer.status < HTTPStatus.BAD_REQUEST:
        return
    if answer.status in _LOGIN:
        raise SetupError(f"the server lets us not do that: {_error(answer)}")
    raise _REFUSALS.get(answer.status, BadRequest)(_error(answer))


def _error(answer: Answer) -> str:
    try:
        return str(json.loads(answer.body)["error"])
    except (ValueError, KeyError, TypeError):
        return HTTPStatus(answer.status).phrase if answer.status in set(HTTPStatus) else str(answer.status)


def _refused(result: Settled) -> Exception:
    text = f"message {result.transaction_id}: {result.error or result.message}"
    return NotFound(text) if result.message == "not_found" else LeaseLost(text)


def _not_committed(error: str) -> Exception:
    text = f"nothing was done: {error}"
    return LeaseLost(text) if "lease" in error.lower() else Conflict(text)


def _operations(transaction: Transaction, ids: Sequence[str]) -> bytes:
    operations = [words.dump({"type": "ack", **verdict.written()}) for verdict in transaction.verdicts]
    if transaction.items:
        items = b",".join(map(Item.written, transaction.items, ids))
        operations.append(b'{"type":"push","items":[%s]}' % items)
    leases = sorted({verdict.message.lease_id for verdict in transaction.verdicts})
    return b'{"operations":[%s],"requiredLeases":%s}' % (b",".join(operations), words.dump(leases))


def _start(start: str | float | datetime) -> Mapping[str, object]:
    if isinstance(start, str):
        return {} if start == "all" else {"subscriptionMode": start}
    return {"subscriptionFrom": _time(start)}


def _time(time: float | datetime) -> str | None:
    return time_text(time.timestamp() if isinstance(time, datetime) else time)


def _part(name: str) -> str:
    return quote(name, safe="")
