"""Operators' actions on queues, groups and messages. Each action is logged."""

import logging
from dataclasses import astuple, fields
from typing import Final

from pump.queue.errors import BadRequest, Conflict, NotFound
from pump.queue.limits import is_storable, uuid_or_none
from pump.queue.options import QueueOptions
from pump.queue.postgres.work import PostgresWork, start_values
from pump.queue.work import NO_KEY

IDLE_SECONDS: Final = 60.0
AT_ONCE: Final = 1000
"""The most messages of a partition in one transaction, so that nobody waits long for the partition."""

log: Final = logging.getLogger("pump.queue")


def configure_queue(
    work: PostgresWork, name: str, options: QueueOptions, namespace: str | None, task: str | None
) -> None:
    """Replace all options of a queue, creating it where needed."""
    if options.encryption and work.sealing is None:
        raise BadRequest(NO_KEY)
    with work.together():
        work.rows(MAKE_QUEUE, name, work.offset)
        row = work.row("select id, ordered from message_pump.queue where name = %s::text for no key update", name)
        if row is None:
            raise Conflict(f"queue {name!r} was deleted meanwhile")
        if row[1] not in {None, options.ordered}:
            if not work.value(SET_MODE, row[0], options.ordered, work.offset):
                raise Conflict(f"queue {name!r} has open leases: its mode cannot be changed now")
            log.info("queue %s is now %s", name, "ordered" if options.ordered else "not ordered")
        work.execute(SET_OPTIONS, *astuple(options), namespace, task, row[0])
        work.execute(LOOK_AGAIN, work.offset, row[0])
    work.changed.add(name)


def options_of(work: PostgresWork, name: str) -> QueueOptions | None:
    """The options of a queue."""
    row = work.row(OPTIONS, name)
    return None if row is None else QueueOptions(**dict(zip(FIELDS, row, strict=True)))


def subscribe_group(work: PostgresWork, name: str, group: str, start: float | str) -> None:
    """Create the group; one that exists keeps its progress."""
    with work.together():
        work.rows(MAKE_QUEUE, name, work.offset)
        work.rows(SUBSCRIBE, group, *start_values(start), work.offset, name)
    work.changed.add(name)


def remove_queue(work: PostgresWork, name: str) -> bool:
    """Remove a queue and everything in it except its dead letters."""
    if not work.rows(DELETE_QUEUE, work.offset, name):
        return False
    log.info("queue %s was deleted with all it held", name)
    return True


def remove_group(work: PostgresWork, name: str, queue: str | None) -> bool:
    """Delete a group's progress, in one queue or in all."""
    found = work.rows(DELETE_GROUP, name, queue)
    for (deleted_from,) in found:
        log.info("group %s of queue %s was deleted", name, deleted_from)
    return bool(found)


def clear_queue(work: PostgresWork, name: str, partition: str | None) -> int:
    """Remove every message of a queue or of one partition."""
    required(work, name, None, partition)
    count: int = sum(gone for (gone,) in work.rows(CLEAR, work.offset, name, partition))
    if count:
        log.info("queue %s, partition %s: %d messages were removed", name, partition or "any", count)
    return count


def seek_group(work: PostgresWork, group: str, name: str, moment: float | None, partition: str | None) -> int:
    """Move a group to the first message at or after a time, or to the end; its leases end."""
    count: int = work.value(SEEK, *required(work, name, group, partition), partition, moment, work.offset)
    log.info("group %s of queue %s was moved to %s", group, name, "the end" if moment is None else moment)
    work.changed.add(name)
    return count


def purge(work: PostgresWork, name: str, group: str) -> int:
    """Complete for a group every message that nobody has leased, each batch in its own transaction."""
    queue_id, group_id = required(work, name, group, None)
    count = 0
    after = (BEGINNING, 0)
    while found := work.row(PURGE_SCHEDULED, queue_id, group_id, *after, AT_ONCE):
        count += found[0]
        after = found[1:]
    for (part_id,) in work.rows(PARTITIONS, name):
        again = True
        while again:
            done, again = work.rows(PURGE, group_id, part_id, AT_ONCE, work.offset)[0]
            count += done
    if count:
        log.info("group %s of queue %s: %d messages were purged", group, name, count)
    return count


def required(work: PostgresWork, name: str, group: str | None, partition: str | None) -> tuple[int, int]:
    """The ids of a queue and a group; NotFound if one that was named does not exist."""
    row = work.row(REQUIRED, group, partition, name)
    if row is None:
        raise NotFound(f"there is no queue {name!r}")
    if partition is not None and row[2] is None:
        raise NotFound(f"queue {name!r} has no partition {partition!r}")
    if group is not None and row[1] is None:
        raise NotFound(f"queue {name!r} has no group {group!r}")
    return row[0], row[1]


def remove_message(work: PostgresWork, partition_uid: str, transaction_id: str) -> bool:
    """Remove a message for all groups."""
    if uuid_or_none(partition_uid) is None or not is_storable(transaction_id):
        return False
    gone: bool = work.value(DELETE_MESSAGE, partition_uid, transaction_id, work.offset)
    if gone:
        log.info("message %s of partition %s was deleted", transaction_id, partition_uid)
    return gone


def maintain_queues(work: PostgresWork, rest: float) -> float:
    """Do the work that is due; returns the seconds until there is more. `rest` is for the function `clean`."""
    for queue_id, name in work.rows(DUE_QUEUES, work.offset):
        if work.value(PROMOTE, queue_id, work.offset):
            work.changed.add(name)
    seen = [work.value(TEND, part_id, AT_ONCE, rest, work.offset) for (part_id,) in work.rows(TENDED)]
    work.rows("select message_pump.end_impossible_leases(%s::float8)", work.offset)
    if any(number >= AT_ONCE for number in seen):
        return 0.0
    due: float | None = work.value(NEXT_DUE, work.offset)
    return IDLE_SECONDS if due is None else max(0.0, min(IDLE_SECONDS, due))


FIELDS: Final = [field.name for field in fields(QueueOptions)]
MAKE_QUEUE: Final = "select message_pump.make_queues(array[%s::text], message_pump.now_at(%s::float8))"
SET_OPTIONS: Final = (
    f"update message_pump.queue set {', '.join(f'{name} = %s' for name in FIELDS)},"  # noqa: S608 - of constants
    " namespace = coalesce(%s::text, namespace), task = coalesce(%s::text, task) where id = %s"
)
OPTIONS: Final = f"select {', '.join(FIELDS)} from message_pump.queue where name = %s::text".replace(  # noqa: S608 - of constants
    "ordered", "coalesce(ordered, true)", 1
)
SET_MODE: Final = "select message_pump.set_mode(%s::bigint, %s::boolean, message_pump.now_at(%s::float8))"
LOOK_AGAIN: Final = (
    "update message_pump.progress s set ready_at = message_pump.now_at(%s::float8)"
    " where s.lease_id is null and s.ready_at < 'infinity'"
    " and s.group_id in (select g.id from message_pump.consumer_group g where g.queue_id = %s::bigint)"
)
SUBSCRIBE: Final = (
    "select message_pump.subscribe(q.id, %s::text, %s::text, %s::float8, message_pump.now_at(%s::float8))"
    " from message_pump.queue q where q.name = %s::text"
)
DELETE_QUEUE: Final = (
    "select message_pump.delete_queue(q.id, message_pump.now_at(%s::float8)) from message_pump.queue q"
    " where q.name = %s::text"
)
DELETE_GROUP: Final = (
    "select x.name from (select g.id, q.name from message_pump.consumer_group g"
    " join message_pump.queue q on q.id = g.queue_id where g.name = %s::text and q.name = coalesce(%s::text, q.name)"
    " order by g.id offset 0) x cross join lateral (select message_pump.forget_group(x.id)) y"
)
CLEAR: Final = (
    "select message_pump.empty(x.id, message_pump.now_at(%s::float8)) from (select p.id from message_pump.queue q"
    " join message_pump.partition p on p.queue_id = q.id where q.name = %s::text"
    " and p.name = coalesce(%s::text, p.name) order by p.id offset 0) x"
)
SEEK: Final = "select message_pump.seek(%s::bigint, %s::bigint, %s::text, %s::float8, %s::float8)"
BEGINNING: Final = "-infinity"
PURGE_SCHEDULED: Final = (
    "select x.done, x.due::text, x.place from message_pump.purge_scheduled("
    "%s::bigint, %s::bigint, %s::text::timestamptz, %s::bigint, %s::integer) x"
)
PURGE: Final = "select x.done, x.again from message_pump.purge(%s::bigint, %s::bigint, %s::integer, %s::float8) x"
PARTITIONS: Final = (
    "select p.id from message_pump.queue q join message_pump.partition p on p.queue_id = q.id"
    " where q.name = %s::text order by p.id"
)
REQUIRED: Final = (
    "select q.id, g.id, p.id from message_pump.queue q"
    " left join message_pump.consumer_group g on g.queue_id = q.id and g.name = %s::text"
    " left join message_pump.partition p on p.queue_id = q.id and p.name = %s::text where q.name = %s::text"
)
DELETE_MESSAGE: Final = "select message_pump.delete_message(%s::text::uuid, %s::text, %s::float8)"
DUE_QUEUES: Final = (
    "select q.id, q.name from message_pump.queue q cross join lateral (select 1 from message_pump.scheduled s"
    " where s.queue_id = q.id and s.due_at <= message_pump.now_at(%s::float8) limit 1) s order by q.id"
)
PROMOTE: Final = "select message_pump.promote(%s::bigint, message_pump.now_at(%s::float8), true)"
TENDED: Final = (
    "select p.id from message_pump.queue q join message_pump.partition p on p.queue_id = q.id where q.max_wait_time > 0"
    " or (q.retention_enabled and (q.retention > 0 or q.completed_retention > 0)) order by p.id"
)
TEND: Final = "select message_pump.tend(%s::bigint, %s::integer, %s::float8, %s::float8)"
NEXT_DUE: Final = (
    "select date_part('epoch', min(s.due_at) - message_pump.now_at(%s::float8)) from message_pump.scheduled s"
)
