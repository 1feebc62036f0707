"""Handing out messages."""

from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from typing import Final

import psycopg

from pump.queue.ids import mint
from pump.queue.limits import MOST_POPPED
from pump.queue.postgres.connection import Row
from pump.queue.postgres.errors import NO_KEY_HERE
from pump.queue.postgres.settle import settle_messages
from pump.queue.postgres.work import GroupKey, PostgresWork
from pump.queue.sealing import PASS_SECONDS
from pump.queue.vocabulary import Leased, PopRequest, PopResult, Settlement, Status

MOST_LOOKS: Final = 100
"""The most tries of one call to find a message that can be opened."""


def pop_messages(work: PostgresWork, request: PopRequest) -> PopResult:
    """Lease the messages that are ready; with `auto_ack`, complete them in the same transaction."""
    group = work.group(request)
    try:
        return pop_by(lease, work, request, group)
    except psycopg.Error as error:  # rolled back, as one message needs a key that is missing here
        if error.sqlstate != NO_KEY_HERE:
            raise
    return pop_by(lease_what_opens, work, request, group)


def pop_by(
    take: Callable[[PostgresWork, PopRequest, GroupKey], PopResult],
    work: PostgresWork,
    request: PopRequest,
    group: GroupKey,
) -> PopResult:
    """Lease messages with `take`; with `auto_ack`, complete them in the same transaction."""
    if not request.auto_ack:
        return take(work, request, group)
    with work.together():
        result = take(work, request, group)
        completed = [
            Settlement(message.transaction_id, message.partition_id, result.lease_id, group=request.group)
            for message in result.messages
        ]
        settle_messages(work, completed)
    messages = [message._replace(lease_id="") for message in result.messages]
    return PopResult(messages, "", 0.0, result.partitions, result.why_empty, result.due_in)


def lease(work: PostgresWork, request: PopRequest, group: GroupKey) -> PopResult:
    """Lease the messages that are ready, under a new lease."""
    lease_id = mint()
    keys = work.sealing.key_ids if work.sealing else []
    rows = work.rows(POP_ORDERED if group.ordered else POP_UNORDERED, *asked(work, request, group, lease_id), keys)
    if not rows:
        empty = work.row(WHY_EMPTY, group.queue_id, group.group_id, request.partition, work.offset)
        return PopResult(why_empty=empty[0], due_in=empty[1]) if empty else PopResult()
    read = [leased(work, request.queue, lease_id, row) for row in rows]
    messages = [message for message in read if message is not None]
    if len(messages) < len(rows):  # the key that has this id here is not the one that sealed it
        with work.together():
            give_back(work, request, lease_id, rows)
        return lease_what_opens(work, request, group)
    return PopResult(messages, lease_id, rows[0][13], len({row[0] for row in rows}))


def asked(work: PostgresWork, request: PopRequest, group: GroupKey, lease_id: str) -> tuple[object, ...]:
    """The values for a statement that leases."""
    return (
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
    )


# -- when a message cannot be opened here but perhaps on another server


def lease_what_opens(work: PostgresWork, request: PopRequest, group: GroupKey) -> PopResult:
    """Lease messages that can be opened, in one transaction; leave the others to other servers for a while, uncounted.

    In an ordered queue, a message that cannot be opened holds back the later ones of its partition.
    """
    with work.together():
        for _ in range(MOST_LOOKS):
            found = open_some(work, request, group)
            if found is not None:
                return found
    return PopResult(why_empty="no_available_partition", due_in=PASS_SECONDS)


def open_some(work: PostgresWork, request: PopRequest, group: GroupKey) -> PopResult | None:
    """Try once; None if nothing that was found can be opened, and there may be more."""
    lease_id = mint()
    statement = POP_ANY_ORDERED if group.ordered else POP_ANY_UNORDERED
    rows = work.rows(statement, *asked(work, request, group, lease_id))
    if not rows:
        return PopResult(why_empty="no_available_partition", due_in=PASS_SECONDS)
    read = [leased(work, request.queue, lease_id, row) for row in rows]
    if all(message is not None for message in read):
        return PopResult([each for each in read if each is not None], lease_id, rows[0][13], len({r[0] for r in rows}))
    if group.ordered:
        return open_in_order(work, request, group, list(zip(rows, read, strict=True)), lease_id)
    others = [row for row, message in zip(rows, read, strict=True) if message is None]
    give_back(work, request, lease_id, others, first=True)
    messages = [message for message in read if message is not None]
    partitions = len({each.partition_id for each in messages})
    return PopResult(messages, lease_id, rows[0][13], partitions) if messages else None


def open_in_order(
    work: PostgresWork, request: PopRequest, group: GroupKey, found: list[tuple[Row, Leased | None]], lease_id: str
) -> PopResult | None:
    """Give all back, then lease again, from one partition, the messages before the first that cannot be opened."""
    chosen: tuple[str, int] | None = None
    for _, of_partition in groupby(found, lambda each: each[0][0]):
        rows = list(of_partition)
        before = next((index for index, (_, message) in enumerate(rows) if message is None), len(rows))
        give_back(work, request, lease_id, [row for row, _ in rows], first=not before)
        if before and chosen is None:
            chosen = rows[0][0][1], before
    if chosen is None:
        return None
    only = replace(request, partition=chosen[0], limit=chosen[1], partitions=1)
    lease_id = mint()
    again = work.rows(POP_ANY_ORDERED, *asked(work, only, group, lease_id))
    read = [leased(work, request.queue, lease_id, row) for row in again]
    return PopResult([each for each in read if each is not None], lease_id, again[0][13], 1) if again else None


def leased(work: PostgresWork, queue: str, lease_id: str, row: Row) -> Leased | None:
    """A row as a leased message; None if its payload cannot be read here."""
    uid, name, seq, message_id, transaction, trace, producer, sealed, payload, at, deliveries, retries, crashes, _ = row
    if sealed:
        payload = work.opened(payload, uid, transaction, sealed=True)
        if payload is None:
            return None
    return Leased(
        message_id, transaction, uid, name, queue, payload, at, seq, deliveries, retries, crashes, lease_id, trace,
        producer,
    )  # fmt: skip


def give_back(work: PostgresWork, request: PopRequest, lease_id: str, rows: list[Row], *, first: bool = False) -> None:
    """Give messages back, uncounted; with `first`, they are due only after PASS_SECONDS."""
    delay = PASS_SECONDS if first else 0.0
    settle_messages(
        work, [Settlement(row[4], row[0], lease_id, Status.RETRY, request.group, delay=delay) for row in rows]
    )
    work.execute(UNCOUNT, [row[0] for row in rows], [row[2] for row in rows], request.group)


POP_ANY_ORDERED: Final = (
    "select * from message_pump.pop_ordered(%s::bigint, %s::bigint, %s::text, %s::integer, %s::integer, %s::text::uuid,"
    " %s::float8, %s::integer, %s::bigint, %s::float8) x"
)
POP_ANY_UNORDERED: Final = POP_ANY_ORDERED.replace("pop_ordered", "pop_unordered")
OPENABLE: Final = " where not x.sealed or message_pump.openable(x.payload, %s::bytea[])"
POP_ORDERED: Final = POP_ANY_ORDERED + OPENABLE
POP_UNORDERED: Final = POP_ANY_UNORDERED + OPENABLE
UNCOUNT: Final = """
update message_pump.delivery d set deliveries = d.deliveries - 1
from unnest(%s::text[]::uuid[], %s::bigint[]) a (u, seq), message_pump.partition p, message_pump.consumer_group g
where p.uid = a.u and g.queue_id = p.queue_id and g.name = %s::text
    and d.group_id = g.id and d.part_id = p.id and d.seq = a.seq
"""
WHY_EMPTY: Final = "select * from message_pump.why_empty(%s::bigint, %s::bigint, %s::text, %s::float8)"
