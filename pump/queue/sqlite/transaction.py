"""Several steps as one: all are carried out, or none."""

from collections.abc import Sequence
from typing import Final

from pump.errors import PumpError
from pump.queue.sqlite.push import push
from pump.queue.sqlite.settle import settle
from pump.queue.sqlite.work import Work
from pump.queue.vocabulary import Committed, Push, Pushed, Result, Settled, Settlement, Step

DUPLICATE: Final = "duplicate transactionId"


class Undone(PumpError):  # noqa: N818 - it says what happened
    """A step was refused: everything before it is undone."""

    def __init__(self, index: int, why: str) -> None:
        super().__init__(f"operation {index}: {why}")


def transact(work: Work, steps: Sequence[Step], leases: frozenset[str]) -> Committed:
    """Settle, then push; answers in the order of the steps. Raises Undone where one is refused.

    Outside a transaction a message that was completed before is settled well enough. Inside, it tells of a caller that
    carried out the same transaction before: another time would push twice.
    """
    settlements = [(index, step) for index, step in enumerate(steps) if isinstance(step, Settlement)]
    pushes = [(index, step) for index, step in enumerate(steps) if isinstance(step, Push)]
    results: dict[int, Result] = {}
    for (index, _), settled in zip(settlements, settle_all(work, settlements, leases), strict=True):
        results[index] = settled
        refuse(index, settled)
    for (index, _), pushed in zip(pushes, push(work, [step for _, step in pushes]), strict=True):
        results[index] = pushed
        refuse(index, pushed)
    return Committed(success=True, results=[results[index] for index in range(len(steps))])


def settle_all(work: Work, settlements: Sequence[tuple[int, Settlement]], leases: frozenset[str]) -> list[Settled]:
    """What becomes of the settlements, where nothing is benign."""
    return settle(work, [step for _, step in settlements], leases, benign=False)


def refuse(index: int, result: Result) -> None:
    """Undo all, where a step was not carried out."""
    if isinstance(result, Pushed):
        if result.duplicate or result.refused:
            raise Undone(index, result.refused or DUPLICATE)
    elif not result.success:
        raise Undone(index, result.error or result.message)
