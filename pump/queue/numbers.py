"""Message counts of partitions and groups, from the rows that either database counts in one statement."""

from collections.abc import Iterable

from pump.queue.vocabulary import PartitionNumbers, ProgressNumbers

Counted = tuple[str, int, int, int | None, int, int, int, int]
"""The queue, the partition and how many it holds; the group, or None, and its four numbers."""


def numbers_of(rows: Iterable[Counted]) -> dict[str, list[PartitionNumbers]]:
    """The counts of each queue's partitions. All rows of one partition must follow each other."""
    found: dict[str, list[PartitionNumbers]] = {}
    last = None
    progress: list[ProgressNumbers] = []
    for queue, part_id, messages, group_id, *counts in rows:
        if part_id != last:
            last, progress = part_id, []
            found.setdefault(queue, []).append(PartitionNumbers(messages, progress))
        if group_id is not None:
            progress.append(ProgressNumbers(*counts))
    return found
