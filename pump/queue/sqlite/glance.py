"""A look at whether there is anything to hand out, which writes nothing: most looks find nothing."""

from pump.queue.sqlite.pop import HELD, NO_PARTITION, NOTHING, WINDOW, due_in
from pump.queue.sqlite.progress import is_held, progress_of
from pump.queue.sqlite.work import Group, Partition, Queue, Work
from pump.queue.vocabulary import Taken, Want


def glance(work: Work, want: Want) -> Taken | None:
    """The empty answer to a Want; None where `pop` has to see for itself."""
    queue = work.queue(want.queue)
    if queue is None or queue.mode is None or want.ordered not in {None, queue.mode}:
        return None
    group = work.group(queue.id, want.group)
    if group is None or has_due(work, queue):
        return None
    if want.partition is None:
        return None if has_ready(work, group) else Taken(why_empty=NOTHING, due_in=due_in(work, queue, group))
    partition = work.partition(queue.id, want.partition)
    if partition is None:
        return Taken(why_empty=NO_PARTITION, due_in=due_in(work, queue, group))
    return glance_at(work, queue, group, partition)


def glance_at(work: Work, queue: Queue, group: Group, partition: Partition) -> Taken | None:
    """The empty answer of one partition."""
    progress = progress_of(work, group.id, partition.id)
    if progress.ready_at is not None and progress.ready_at <= work.now:
        return None
    window = queue.options.window_buffer
    why = NOTHING
    if is_held(work, queue, progress):
        why = HELD
    elif window and partition.last_at + window > work.now:
        why = WINDOW
    return Taken(why_empty=why, due_in=due_in(work, queue, group))


def has_due(work: Work, queue: Queue) -> bool:
    """Whether a scheduled message of the queue waits for its place."""
    found = work.execute(
        "SELECT 1 FROM scheduled WHERE queue_id = ? AND due_at <= ? LIMIT 1", (queue.id, work.now)
    ).fetchone()
    return found is not None


def has_ready(work: Work, group: Group) -> bool:
    """Whether some partition is worth looking into."""
    found = work.execute(
        "SELECT 1 FROM progress WHERE group_id = ? AND ready_at <= ? LIMIT 1", (group.id, work.now)
    ).fetchone()
    return found is not None
