"""How far a group is in a partition, and when something is ready for it there."""

from typing import NamedTuple

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
    moments = [moment for moment in (next_redelivery(work, queue, group_id, part_id),) if moment is not None]
    if not (queue.ordered and moments):
        row = work.execute(NEXT, (group_id, part_id, claimed)).fetchone()
        delay = queue.options.delayed_processing
        moments += [row[1] + delay if delay else work.now] if row else []
    return max(work.now, min(moments)) if moments else None


def next_redelivery(work: SqliteWork, queue: Queue, group_id: int, part_id: int) -> float | None:
    """When the next message is due that was delivered before; in order, the first one holds back all others."""
    if queue.ordered:
        row = work.execute(
            "SELECT coalesce(visible_at, 0) FROM delivery WHERE group_id = ? AND part_id = ? ORDER BY seq LIMIT 1",
            (group_id, part_id),
        ).fetchone()
        return row and float(row[0])
    row = work.execute(
        "SELECT min(visible_at) FROM delivery INDEXED BY delivery_by_visible"
        " WHERE group_id = ? AND part_id = ? AND visible_at IS NOT NULL",
        (group_id, part_id),
    ).fetchone()
    moment: float | None = row[0]
    return moment


def release(work: SqliteWork, queue: Queue, progress: Progress) -> None:
    """End the lease of an ordered partition: its messages that are not settled are pending again, uncounted."""
    work.execute(
        "UPDATE delivery SET lease_id = NULL WHERE group_id = ? AND part_id = ? AND lease_id = ?",
        (progress.group_id, progress.part_id, progress.lease_id),
    )
    work.execute(
        "UPDATE progress SET lease_id = NULL, lease_until = NULL WHERE group_id = ? AND part_id = ?",
        (progress.group_id, progress.part_id),
    )
    update_ready(work, queue, progress)


def update_ready(work: SqliteWork, queue: Queue, progress: Progress) -> None:
    """Compute again when something is ready in a partition that nobody has leased, and notify the listeners."""
    ready_at = next_ready(work, queue, progress.group_id, progress.part_id, progress.claimed)
    set_ready(work, progress, ready_at)
    if ready_at is not None:
        work.changed.add(queue.name)


def set_ready(work: SqliteWork, progress: Progress, ready_at: float | None) -> None:
    """Store when to look at the partition next."""
    if ready_at != progress.ready_at:
        work.execute(
            "UPDATE progress SET ready_at = ? WHERE group_id = ? AND part_id = ?",
            (ready_at, progress.group_id, progress.part_id),
        )


def after_removal(work: SqliteWork, queue: Queue, progress: Progress) -> None:
    """One of the messages that were handed out is gone: the lease that it was the last of ends."""
    if not is_leased(work, queue, progress):
        update_ready(work, queue, progress)
    elif not has_open(work, progress):
        release(work, queue, progress)


def is_leased(work: SqliteWork, queue: Queue, progress: Progress) -> bool:
    """Whether a consumer has the whole partition."""
    return queue.ordered and progress.lease_id is not None and work.lease_lives(progress.lease_until)


def has_open(work: SqliteWork, progress: Progress) -> bool:
    """Whether a lease has messages that are not settled."""
    return work.exists(
        "SELECT 1 FROM delivery WHERE group_id = ? AND part_id = ? AND lease_id = ? LIMIT 1",
        progress.group_id,
        progress.part_id,
        progress.lease_id,
    )
