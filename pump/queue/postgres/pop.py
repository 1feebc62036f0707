"""Handing out messages."""

from typing import Final

import psycopg

from pump.queue.errors import Conflict
from pump.queue.ids import mint
from pump.queue.limits import MOST_POPPED
from pump.queue.postgres.connection import Row
from pump.queue.postgres.errors import NO_KEY_HERE
from pump.queue.postgres.settle import settle_messages
from pump.queue.postgres.work import GroupKey, PostgresWork
from pump.queue.vocabulary import Leased, PopRequest, PopResult, Settlement, Status


def pop_messages(work: PostgresWork, request: PopRequest) -> PopResult:
    """Lease what is ready; with `auto_ack`, complete it in the same transaction."""
    group = work.group(request)
    if not request.auto_ack:
        return lease(work, request, group)
    with work.together():
        result = lease(work, request, group)
        completed = [
            Settlement(message.transaction_id, message.partition_id, result.lease_id, group=request.group)
            for message in result.messages
        ]
        settle_messages(work, completed)
    messages = [message._replace(lease_id="") for message in result.messages]
    return PopResult(messages, "", 0.0, result.partitions, result.why_empty, result.due_in)


def lease(work: PostgresWork, request: PopRequest, group: GroupKey) -> PopResult:
    """What there is, under a new lease."""
    lease_id = mint()
    try:
        rows = work.rows(
            POP_ORDERED if group.ordered else POP_UNORDERED,
            group.queue_id,
            group.group_id,
            request.partition,
            min(request.limit, MOST_POPPED),
            request.partitions,
            lease_id,
            request.lease_time,
            request.retry_limit,
            request.largest_reply,
            work.offset,
            work.sealing.key_ids if work.sealing else [],
        )
    except psycopg.Error as error:  # nothing was handed out if one message needs a key that is not here
        if error.sqlstate == NO_KEY_HERE:
            raise no_key(request) from None
        raise
    if not rows:
        empty = work.row(WHY_EMPTY, group.queue_id, group.group_id, request.partition, work.offset)
        return PopResult(why_empty=empty[0], due_in=empty[1]) if empty else PopResult()
    read = [leased(work, request.queue, lease_id, row) for row in rows]
    messages = [message for message in read if message is not None]
    if len(messages) < len(rows):
        give_back(work, request, lease_id, rows)
    return PopResult(messages, lease_id, rows[0][13], len({row[0] for row in rows}))


def leased(work: PostgresWork, queue: str, lease_id: str, row: Row) -> Leased | None:
    """One message; None if its payload cannot be read here."""
    uid, name, seq, message_id, transaction, trace, producer, sealed, payload, at, deliveries, retries, crashes, _ = row
    if sealed:
        payload = work.opened(payload, uid, transaction, sealed=True)
        if payload is None:
            return None
    return Leased(
        message_id, transaction, uid, name, queue, payload, at, seq, deliveries, retries, crashes, lease_id, trace,
        producer,
    )  # fmt: skip


def give_back(work: PostgresWork, request: PopRequest, lease_id: str, rows: list[Row]) -> None:
    """Give all back, uncounted: the key of that id is a different one here, which the database cannot know."""
    with work.together():
        settle_messages(work, [Settlement(row[4], row[0], lease_id, Status.RETRY, request.group) for row in rows])
        work.execute(UNCOUNT, [row[0] for row in rows], [row[2] for row in rows], request.group)
    raise no_key(request)


def no_key(request: PopRequest) -> Conflict:
    """The error for a message that cannot be read here."""
    return Conflict(f"a message of queue {request.queue!r} is encrypted with a key that is not here")


POP_ORDERED: Final = (
    "select * from message_pump.pop_ordered(%s::bigint, %s::bigint, %s::text, %s::integer, %s::integer, %s::text::uuid,"
    " %s::float8, %s::integer, %s::bigint, %s::float8) x where not x.sealed or message_pump.openable(x.payload,"
    " %s::bytea[])"
)
POP_UNORDERED: Final = POP_ORDERED.replace("pop_ordered", "pop_unordered")
UNCOUNT: Final = """
update message_pump.delivery d set deliveries = d.deliveries - 1
from unnest(%s::text[]::uuid[], %s::bigint[]) a (u, seq), message_pump.partition p, message_pump.consumer_group g
where p.uid = a.u and g.queue_id = p.queue_id and g.name = %s::text
    and d.group_id = g.id and d.part_id = p.id and d.seq = a.seq
"""
WHY_EMPTY: Final = "select * from message_pump.why_empty(%s::bigint, %s::bigint, %s::text, %s::float8)"
