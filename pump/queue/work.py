"""One call of an engine while it runs: its operations, and the state that they share."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol

from pump.errors import ConfigurationError, PumpError
from pump.queue.errors import BadRequest
from pump.queue.options import QueueOptions
from pump.queue.sealing import MissingKeys, Sealing
from pump.queue.vocabulary import (
    Committed,
    DeadLetter,
    Extended,
    Filter,
    GroupInfo,
    PartitionNumbers,
    PopRequest,
    PopResult,
    Push,
    Pushed,
    QueueInfo,
    Result,
    Settled,
    Settlement,
    Step,
    Stored,
    Trace,
)

NO_KEY: Final = "the queue is encrypted, and there is no key"
DUPLICATE: Final = "duplicate transactionId"


class Work:
    """A unit of work on one database: the state that its operations share on either database."""

    def __init__(self, sealing: Sealing | None, missing: MissingKeys, *, lenient: bool) -> None:
        self.sealing: Final = sealing
        self._missing: Final = missing
        self.lenient: Final = lenient
        self.changed: Final[set[str]] = set()
        """Queues where something may have become ready; their listeners are called after the commit."""

    def opened(self, payload: bytes, partition_id: str, transaction_id: str, *, sealed: bool) -> bytes | None:
        """The payload as it was pushed; None if it is encrypted with a key that is missing here."""
        if not sealed:
            return payload
        found = None if self.sealing is None else self.sealing.open(payload, partition_id, transaction_id)
        if found is None:
            self._missing.add(payload)
        return found


class Operations(Protocol):
    """The operations of a unit of work. Each is a function in the engine's folder; `Engine` documents what it does."""

    def together(self) -> AbstractContextManager[object]:
        """Run several statements as one transaction."""

    def ping(self) -> object:
        """Ask the database for an answer."""

    def probe(self) -> object:
        """Write something that changes nothing."""

    def push(self, items: Sequence[Push], ids: Sequence[str], /) -> list[Pushed]:
        """`ids` come from `ids_for(items)`."""

    def settle(
        self, settlements: Sequence[Settlement], leases: frozenset[str] = ..., /, *, benign: bool = ...
    ) -> list[Settled]:
        """`benign` says whether completing a completed message counts as a success."""

    def pop(self, request: PopRequest, /) -> PopResult: ...
    def extend(self, lease_id: str, seconds: float | None, /) -> Extended: ...
    def configure(self, queue: str, options: QueueOptions, namespace: str | None, task: str | None, /) -> None: ...
    def options(self, queue: str, /) -> QueueOptions | None: ...
    def subscribe(self, queue: str, group: str, start: float | str, /) -> None: ...
    def queues(self, name: str | None = ..., /, *, whole: bool = ...) -> list[QueueInfo]: ...
    def numbers(self, queue: str | None, /) -> dict[str, list[PartitionNumbers]]: ...
    def delete_queue(self, queue: str, /) -> bool: ...
    def clear(self, queue: str, partition: str | None, /) -> int: ...
    def groups(self, name: str | None = ..., /) -> list[GroupInfo]: ...
    def delete_group(self, group: str, queue: str | None, /) -> bool: ...
    def seek(self, group: str, queue: str, to: float | None, partition: str | None, /) -> int: ...
    def stored(self, which: Filter, /) -> list[Stored]: ...
    def message(self, partition_id: str, transaction_id: str, /) -> Stored | None: ...
    def delete_message(self, partition_id: str, transaction_id: str, /) -> bool: ...
    def dead_letters(self, which: Filter, /) -> tuple[list[DeadLetter], int]: ...
    def dead_letter_counts(self) -> dict[str, int]: ...
    def redrive(self, dead_letter_ids: Sequence[str], /) -> list[Pushed | None]: ...
    def retry(self, partition_id: str, transaction_id: str, /) -> int: ...
    def give_up(self, partition_id: str, transaction_id: str, group: str | None, error: str, /) -> int: ...
    def key_check(self, key_id: str, /) -> bytes | None: ...
    def add_key_check(self, key_id: str, value: bytes, /) -> None:
        """Store the check value of a key, unless one is stored."""

    def add_trace(self, trace: Trace, /) -> str: ...
    def traces(
        self, partition_id: str | None, transaction_id: str | None, name: str | None, /, *, limit: int, offset: int
    ) -> list[Trace]: ...
    def trace_names(self) -> list[str]: ...
    def maintain(self, rest: float, /) -> float: ...


# -- keys


def sealed_data(work: Work, trace: Trace) -> bytes:
    """The data of a note about a message of an encrypted queue, sealed; BadRequest without a key."""
    if work.sealing is None:
        raise BadRequest(NO_KEY)
    return work.sealing.seal(trace.data, trace.partition_id, trace.transaction_id)


def opened_data(work: Work, data: bytes, partition_id: str, transaction_id: str, *, sealed: bool) -> bytes:
    """The data of a note; JSON's null if its key is missing here."""
    found = work.opened(data, partition_id, transaction_id, sealed=sealed)
    return b"null" if found is None else found


def check_keys(work: Operations, keys: Sealing) -> None:
    """Refuse a key if data was sealed with another key of the same id; store check values of new keys."""
    for key_id in [each.decode() for each in keys.key_ids]:
        if work.key_check(key_id) is None:
            work.add_key_check(key_id, keys.check_value(key_id))
        if not keys.proves(key_id, work.key_check(key_id) or b""):
            raise ConfigurationError(
                f"the key {key_id!r} is not the one with which the messages in the database were sealed: correct it"
            )


# -- several steps as one transaction


class StepRefused(PumpError):  # noqa: N818 - it says what happened
    """A step of a transaction was refused: everything before it is rolled back."""

    def __init__(self, index: int, why: str) -> None:
        super().__init__(f"operation {index}: {why}")


def transact(work: Operations, steps: Sequence[Step], leases: frozenset[str], ids: Sequence[str]) -> Committed:
    """Settle, then push; results in the order of the steps. Raises StepRefused if a step is refused.

    Outside a transaction, completing a message a second time counts as a success. Inside a transaction it is refused:
    the caller has carried out the same transaction before, and a second time would push twice.
    """
    settlements = [(index, step) for index, step in enumerate(steps) if isinstance(step, Settlement)]
    pushes = [(index, step) for index, step in enumerate(steps) if isinstance(step, Push)]
    results: dict[int, Result] = {}
    with work.together():
        settled = work.settle([step for _, step in settlements], leases, benign=False)
        for (index, _), each in zip(settlements, settled, strict=True):
            results[index] = accepted(index, each)
        pushed = work.push([step for _, step in pushes], ids)
        for (index, _), stored in zip(pushes, pushed, strict=True):
            results[index] = accepted(index, stored)
    return Committed(success=True, results=[results[index] for index in range(len(steps))])


def accepted(index: int, result: Result) -> Result:
    """The result; StepRefused if the step was not carried out."""
    if isinstance(result, Pushed):
        if result.duplicate or result.refused:
            raise StepRefused(index, result.refused or DUPLICATE)
    elif not result.success:
        raise StepRefused(index, result.error or result.message)
    return result


def pushes_of(steps: Sequence[Step]) -> list[Push]:
    """The pushes among the steps."""
    return [step for step in steps if isinstance(step, Push)]
