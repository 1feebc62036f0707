"""Dead letters: list them, push them again, make them pending again."""

import logging
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from pump.queue.ids import ids_for
from pump.queue.limits import checked_text, is_storable, uuid_or_none
from pump.queue.postgres.connection import Row
from pump.queue.postgres.push import push_messages
from pump.queue.postgres.work import PostgresWork
from pump.queue.results import push_of
from pump.queue.vocabulary import DeadLetter, Filter, Pushed

log: Final = logging.getLogger("pump.queue")


def list_dead_letters(work: PostgresWork, which: Filter) -> tuple[list[DeadLetter], int]:
    """A page of dead letters, newest first, and their total number."""
    values = asdict(which)
    with work.together():
        return [letter(work, row) for row in work.rows(PAGE, values)], work.value(COUNT, values)


def letter(work: PostgresWork, row: Row) -> DeadLetter:
    """A row as a dead letter."""
    *head, sealed, payload = row[:9]
    opened = work.opened(payload, row[3], row[2], sealed=sealed)
    return DeadLetter(*(*head, opened, *row[9:18]))


def count_dead_letters(work: PostgresWork) -> dict[str, int]:
    """The number of dead letters of each queue."""
    return dict(work.rows("select x.queue_name, count(*) from message_pump.dead x group by x.queue_name"))


def redrive_letters(work: PostgresWork, ids: Sequence[str]) -> list[Pushed | None]:
    """Push each again, once; None for one that is unknown or already redriven."""
    wanted = list(dict.fromkeys(found for found in map(uuid_or_none, ids) if found))
    with work.together():
        rows = {row[0]: row for row in work.rows(CLAIM, wanted)}
        letters = [letter(work, rows[dead_id]) for dead_id in wanted if dead_id in rows]
        items = [push_of(each, rows[each.id][18]) for each in letters]
        done = push_messages(work, items, ids_for(items))
        pushed = dict(zip((each.id for each in letters), done, strict=True))
        work.execute(REDRIVE, work.offset, [dead_id for dead_id, each in pushed.items() if not each.refused])
    return [pushed.pop(uuid_or_none(dead_id) or "", None) for dead_id in ids]


def retry_message(work: PostgresWork, partition_uid: str, transaction_id: str) -> int:
    """Make a dead message pending again in its old place for every group that gave it up; returns how many groups."""
    return intervene(work, "made pending again", RETRY, partition_uid, transaction_id)


def give_up_message(work: PostgresWork, partition_uid: str, transaction_id: str, group: str | None, error: str) -> int:
    """Make a message a dead letter for one group, or for each that has not settled it; returns how many groups."""
    if not is_storable(group or ""):
        return 0
    return intervene(work, "given up", GIVE_UP, partition_uid, transaction_id, group, checked_text(error))


def intervene(
    work: PostgresWork, what: str, statement: str, partition_uid: str, transaction_id: str, *values: object
) -> int:
    """Change the state of one message, and log it; returns for how many groups it changed."""
    if uuid_or_none(partition_uid) is None or not is_storable(transaction_id):
        return 0
    count: int = work.value(statement, partition_uid, transaction_id, *values, work.offset)
    if count:
        log.info("message %s of partition %s was %s for %d groups", transaction_id, partition_uid, what, count)
        work.changed.update(queue for (queue,) in work.rows(QUEUE_OF, partition_uid))
    return count


COLUMNS: Final = """
select x.id::text, x.message_id::text, x.transaction_id, x.partition_uid::text, x.partition_name, x.queue_name,
    x.group_name, x.sealed, x.payload, x.reason, x.error, x.retries, x.crashes, x.deliveries, x.producer,
    date_part('epoch', x.created_at), date_part('epoch', x.moved_at), date_part('epoch', x.redriven_at),
    x.trace_id::text
from message_pump.dead x
"""
WHERE: Final = """
where (%(queue)s::text is null or x.queue_name = %(queue)s::text)
    and (%(partition)s::text is null or x.partition_name = %(partition)s::text)
    and (%(group)s::text is null or x.group_name = %(group)s::text)
    and (%(since)s::float8 is null or x.moved_at >= to_timestamp(%(since)s::float8))
    and (%(until)s::float8 is null or x.moved_at <= to_timestamp(%(until)s::float8))
"""
PAGE: Final = f"{COLUMNS} {WHERE} order by x.moved_at desc, x.id limit %(limit)s::bigint offset %(offset)s::bigint"
COUNT: Final = f"select count(*) from message_pump.dead x {WHERE}"  # noqa: S608 - of constants
CLAIM: Final = (
    f"{COLUMNS} where x.id = any (%s::text[]::uuid[]) and x.redriven_at is null order by x.id for no key update"
)
REDRIVE: Final = (
    "update message_pump.dead x set redriven_at = message_pump.now_at(%s::float8) where x.id = any (%s::text[]::uuid[])"
)
RETRY: Final = "select message_pump.retry(%s::text::uuid, %s::text, %s::float8)"
GIVE_UP: Final = "select message_pump.give_up(%s::text::uuid, %s::text, %s::text, %s::text, %s::float8)"
QUEUE_OF: Final = (
    "select q.name from message_pump.partition p join message_pump.queue q on q.id = p.queue_id"
    " where p.uid = %s::text::uuid"
)
