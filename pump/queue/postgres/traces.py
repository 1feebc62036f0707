"""Notes about messages."""

from typing import Final

from pump.queue.limits import is_storable, uuid_or_none
from pump.queue.postgres.connection import Row
from pump.queue.postgres.work import PostgresWork
from pump.queue.vocabulary import Trace
from pump.queue.work import opened_data, sealed_data


def insert_trace(work: PostgresWork, trace: Trace) -> str:
    """Store a note; returns its id."""
    names = sorted(set(trace.names))
    sealed = bool(work.value(IS_SEALED, trace.partition_id))
    data = sealed_data(work, trace) if sealed else trace.data
    trace_id: str = work.value(
        ADD, trace.partition_id, trace.transaction_id, trace.group, trace.event, data, names, work.offset, sealed
    )
    return trace_id


def list_traces(
    work: PostgresWork,
    partition_uid: str | None,
    transaction_id: str | None,
    name: str | None,
    *,
    limit: int,
    offset: int,
) -> list[Trace]:
    """Notes about one message, or under one name, oldest first."""
    storable = is_storable(transaction_id or "") and is_storable(name or "")
    if not storable or (partition_uid is not None and uuid_or_none(partition_uid) is None):
        return []
    rows = work.rows(
        TRACES,
        {"uid": partition_uid, "transaction": transaction_id, "name": name, "limit": limit, "skip": offset},
    )
    return [_trace(work, row) for row in rows]


def _trace(work: PostgresWork, row: Row) -> Trace:
    trace_id, uid, transaction, group, event, data, at, names, sealed = row
    data = opened_data(work, data, uid, transaction, sealed=sealed)
    return Trace(
        transaction_id=transaction, partition_id=uid, data=data, group=group, event=event, names=tuple(names),
        id=trace_id, created_at=at,
    )  # fmt: skip


def list_trace_names(work: PostgresWork) -> list[str]:
    """All names that notes were stored under."""
    return [name for (name,) in work.rows(NAMES)]


IS_SEALED: Final = """
select q.encryption from message_pump.partition p join message_pump.queue q on q.id = p.queue_id
where p.uid = %s::text::uuid
"""
ADD: Final = """
insert into message_pump.trace (partition_uid, transaction_id, group_name, event, data, names, at, sealed)
values (
    %s::text::uuid, %s::text, %s::text, %s::text, %s::bytea, %s::text[], message_pump.now_at(%s::float8), %s::boolean
)
returning id::text
"""
TRACES: Final = """
select t.id::text, t.partition_uid::text, t.transaction_id, t.group_name, t.event, t.data, date_part('epoch', t.at),
    t.names, t.sealed
from message_pump.trace t
where (%(uid)s::text is null or t.partition_uid = %(uid)s::text::uuid)
    and (%(transaction)s::text is null or t.transaction_id = %(transaction)s::text)
    and (%(name)s::text is null or t.names @> array[%(name)s::text])
order by t.ordinal limit %(limit)s::bigint offset %(skip)s::bigint
"""
NAMES: Final = 'select distinct n.name collate "C" from message_pump.trace t, unnest(t.names) n (name) order by 1'
