"""The progress of a group in a partition, and when something is ready for the group there."""

from typing import Final, NamedTuple

from pump.queue.sqlite.gaps import NEXT
from pump.queue.sqlite.work import Queue, SqliteWork


class Progress(NamedTuple):
    """A group's row for a partition."""

    group_id: int
    part_id: int
    claimed: int
    ready_at: float | None
    lease_id: str | None
    lease_until: float | None

    @property
    def key(self) -> tuple[int, int]:
        """The ids of the group and the partition."""
        return self.group_id, self.part_id


def progress_of(work: SqliteWork, group_id: int, part_id: int) -> Progress:
    """The row, which exists for every group and partition of a queue."""
    return Progress(
        *work.execute(
            "SELECT group_id, part_id, claimed, ready_at, lease_id, lease_until FROM progress"
            " WHERE group_id = ? AND part_id = ?",
            (group_id, part_id),
        ).fetchone()
    )


def next_ready(work: SqliteWork, queue: Queue, group_id: int, part_id: int, claimed: int) -> float | None:
    """When something is ready in a partition that nobody has leased; None for never."""
    row = work.execute(FIRST_IN_ORDER if queue.ordered else FIRST_DUE, (group_id, part_id)).fetchone()
    moments: list[float] = [row[0]] if row else []
    if not (queue.ordered and moments):  # in order, the first delivered message holds back all others
        row = work.execute(NEXT, (group_id, part_id, claimed)).fetchone()
        delay = queue.options.delayed_processing
        moments += [row[1] + delay if delay else work.now] if row else []
    return max(work.now, min(moments)) if moments else None


FIRST_IN_ORDER: Final = (
    "SELECT coalesce(visible_at, 0) FROM delivery WHERE group_id = ? AND part_id = ? ORDER BY seq LIMIT 1"
)
FIRST_DUE: Final = (
    "SELECT visible_at FROM delivery INDEXED BY delivery_by_visible"
    " WHERE group_id = ? AND part_id = ? AND visible_at IS NOT NULL ORDER BY visible_at LIMIT 1"
)


def release(work: SqliteWork, queue: Queue, progress: Progress) -> None:
    """End the lease of an ordered partition: its unsettled messages are pending again; no attempt is counted."""
    work.execute(
        "UPDATE delivery SET lease_id = NULL WHERE group_id = ? AND part_id = ? AND lease_id = ?",
        (*progress.key, progress.lease_id),
    )
    work.execute(
        "UPDATE progress SET lease_id = NULL, lease_until = NULL WHERE group_id = ? AND part_id = ?", progress.key
    )
    update_ready(work, queue, progress)


def update_ready(work: SqliteWork, queue: Queue, progress: Progress) -> None:
    """Compute again when something is ready in a partition that nobody has leased, and notify the listeners."""
    ready_at = next_ready(work, queue, *progress.key, progress.claimed)
    set_ready(work, progress, ready_at)
    if ready_at is not None:
        work.changed.add(queue.name)


def set_ready(work: SqliteWork, progress: Progress, ready_at: float | None) -> None:
    """Store when to look at the partition next."""
    if ready_at != progress.ready_at:
        work.execute("UPDATE progress SET ready_at = ? WHERE group_id = ? AND part_id = ?", (ready_at, *progress.key))


def after_removal(work: SqliteWork, queue: Queue, progress: Progress) -> None:
    """Called after a message that was handed out is removed: if it was the last one of its lease, the lease ends.

    For an expired lease or none, only the time when something is ready is computed again.
    """
    if queue.ordered and progress.lease_id is not None and not has_open(work, progress):
        release(work, queue, progress)
    elif not is_leased(work, queue, progress):
        update_ready(work, queue, progress)


def is_leased(work: SqliteWork, queue: Queue, progress: Progress) -> bool:
    """Whether a consumer has a live lease of the whole partition."""
    return queue.ordered and progress.lease_id is not None and work.lease_lives(progress.lease_until)


def has_open(work: SqliteWork, progress: Progress) -> bool:
    """Whether the partition's lease has messages that are not settled."""
    statement = "SELECT 1 FROM delivery WHERE group_id = ? AND part_id = ? AND lease_id = ? LIMIT 1"
    return work.exists(statement, *progress.key, progress.lease_id)


PENDING: Final = "(lease_id IS NULL OR CASE WHEN ?3 THEN lease_id <> ?4 ELSE visible_at <= ?5 END)"
"""The condition that no live lease covers a delivery; the statement's first values are those of `pending_in`."""


def pending_in(work: SqliteWork, queue: Queue, progress: Progress) -> tuple[int, int, bool, str | None, float]:
    """The values for PENDING: group, partition, mode, the lease of the partition, time."""
    lease_id = progress.lease_id if is_leased(work, queue, progress) else ""
    return *progress.key, queue.ordered, lease_id, work.now
