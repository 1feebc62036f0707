"""Several steps as one: all are carried out, or none. Also within a transaction of the caller's own."""

from collections.abc import Sequence
from typing import Final

from pump.errors import PumpError
from pump.queue.postgres.push import push
from pump.queue.postgres.settle import settle
from pump.queue.postgres.work import Work
from pump.queue.vocabulary import Committed, Push, Pushed, Result, Settlement, Step

DUPLICATE: Final = "duplicate transactionId"


class Undone(PumpError):  # noqa: N818 - it says what happened
    """A step was refused: everything before it is undone."""

    def __init__(self, index: int, why: str) -> None:
        super().__init__(f"operation {index}: {why}")


async def transact(work: Work, steps: Sequence[Step], leases: frozenset[str], ids: Sequence[str]) -> Committed:
    """Settle, then push; answers in the order of the steps. Raises Undone where one is refused.

    Outside a transaction a message that was completed before is settled well enough. Inside, it tells of a caller that
    carried out the same transaction before: another time would push twice.
    """
    results: list[Result | None] = [None] * len(steps)
    settlements = [(index, step) for index, step in enumerate(steps) if isinstance(step, Settlement)]
    pushes = [(index, step) for index, step in enumerate(steps) if isinstance(step, Push)]
    async with work.together():
        settled = await settle(work, [step for _, step in settlements], leases, benign=False)
        for (index, _), said in zip(settlements, settled, strict=True):
            results[index] = accepted(index, said)
        pushed = await push(work, [step for _, step in pushes], ids)
        for (index, _), stored in zip(pushes, pushed, strict=True):
            results[index] = accepted(index, stored)
    return Committed(success=True, results=[result for result in results if result is not None])


def accepted(index: int, result: Result) -> Result:
    """The result; undoes all, where a step was not carried out."""
    if isinstance(result, Pushed):
        if result.duplicate or result.refused:
            raise Undone(index, result.refused or DUPLICATE)
    elif not result.success:
        raise Undone(index, result.error or result.message)
    return result
