"""Handing out messages."""

from collections.abc import Sequence
from typing import Final

import psycopg

from pump.queue.errors import Conflict
from pump.queue.ids import mint
from pump.queue.limits import MOST_POPPED
from pump.queue.postgres.errors import NO_KEY_HERE
from pump.queue.postgres.session import Row
from pump.queue.postgres.settle import settle
from pump.queue.postgres.work import Entry, Work
from pump.queue.vocabulary import Leased, Settlement, Status, Taken, Want


async def pop(work: Work, want: Want) -> Taken:
    """Lease what is ready."""
    entry = await work.entry(want)
    if not want.auto_ack:
        return await take(work, want, entry)
    async with work.together():
        taken = await take(work, want, entry)
        await settle(work, settlements(want, taken, Status.COMPLETED))
    messages = [message._replace(lease_id="") for message in taken.messages]
    return Taken(messages, "", 0.0, taken.partitions, taken.why_empty, taken.due_in)


def settlements(want: Want, taken: Taken, status: Status) -> list[Settlement]:
    """The same said of all that was taken."""
    return [
        Settlement(message.transaction_id, message.partition_id, taken.lease_id, status, want.group)
        for message in taken.messages
    ]


async def take(work: Work, want: Want, entry: Entry) -> Taken:
    """What there is, under a new lease."""
    lease_id = mint()
    rows = await popped(
        work,
        want,
        POP_ORDERED if entry.ordered else POP_UNORDERED,
        entry.queue_id,
        entry.group_id,
        want.partition,
        min(want.limit, MOST_POPPED),
        want.partitions,
        lease_id,
        want.lease_time,
        want.retry_limit,
        want.largest_reply,
        work.offset,
        work.sealing.key_ids if work.sealing else [],
    )
    if not rows:
        return await empty(work, want, entry)
    messages = [leased(work, want.queue, lease_id, row) for row in rows]
    taken = Taken(readable(messages), lease_id, rows[0][13], len({row[0] for row in rows}))
    if len(taken.messages) < len(rows):
        await give_back(work, want, lease_id, rows)
    return taken


async def popped(work: Work, want: Want, statement: str, *values: object) -> list[Row]:
    """What the database hands out; nothing of it, where a key is missing."""
    try:
        return await work.rows(statement, *values)
    except psycopg.Error as error:
        if error.sqlstate == NO_KEY_HERE:
            raise no_key(want) from None
        raise


def no_key(want: Want) -> Conflict:
    """What is raised where a message cannot be read here."""
    return Conflict(f"a message of queue {want.queue!r} is encrypted with a key that is not here")


def leased(work: Work, queue: str, lease_id: str, row: Row) -> Leased | None:
    """One message; None where its payload cannot be read here."""
    uid, name, seq, message_id, transaction, trace, producer, sealed, payload, at, deliveries, retries, crashes, _ = row
    if sealed:
        payload = work.opened(payload, uid, transaction, sealed=True)
        if payload is None:
            return None
    return Leased(
        message_id, transaction, uid, name, queue, payload, at, seq, deliveries, retries, crashes, lease_id, trace,
        producer,
    )  # fmt: skip


def readable(messages: Sequence[Leased | None]) -> list[Leased]:
    """Those that can be read."""
    return [message for message in messages if message is not None]


async def give_back(work: Work, want: Want, lease_id: str, rows: Sequence[Row]) -> None:
    """The same where the key of that id is another one, which the database cannot know."""
    async with work.together():
        await settle(work, [Settlement(row[4], row[0], lease_id, Status.RETRY, want.group) for row in rows])
        await work.act(UNCOUNT, [row[0] for row in rows], [row[2] for row in rows], want.group)
    raise no_key(want)


async def empty(work: Work, want: Want, entry: Entry) -> Taken:
    """The answer where there was nothing."""
    row = await work.row(WHY_EMPTY, entry.queue_id, entry.group_id, want.partition, work.offset)
    return Taken(why_empty=row[0], due_in=row[1]) if row else Taken()


SIGNATURE: Final = (
    "(%s::bigint, %s::bigint, %s::text, %s::integer, %s::integer, %s::text::uuid, %s::float8, %s::integer, %s::bigint,"
    " %s::float8)"
)
READABLE: Final = " x where not x.sealed or message_pump.openable(x.payload, %s::bytea[])"
POP_ORDERED: Final = f"select * from message_pump.pop_ordered{SIGNATURE}{READABLE}"  # noqa: S608 - of constants
POP_UNORDERED: Final = f"select * from message_pump.pop_unordered{SIGNATURE}{READABLE}"  # noqa: S608 - of constants
UNCOUNT: Final = """
update message_pump.delivery d set deliveries = d.deliveries - 1
from unnest(%s::text[]::uuid[], %s::bigint[]) a (u, seq), message_pump.partition p, message_pump.consumer_group g
where p.uid = a.u and g.queue_id = p.queue_id and g.name = %s::text
    and d.group_id = g.id and d.part_id = p.id and d.seq = a.seq
"""
WHY_EMPTY: Final = "select * from message_pump.why_empty(%s::bigint, %s::bigint, %s::text, %s::float8)"
