"""Stored messages as operators see them, each with its state for every group."""

from dataclasses import asdict, replace
from typing import Any, Final

from pump.queue.limits import is_storable, uuid_or_none
from pump.queue.postgres.work import PostgresWork
from pump.queue.vocabulary import DEFAULT_GROUP, Filter, State, Stored


def list_stored(work: PostgresWork, which: Filter) -> list[Stored]:
    """Messages, newest first, without their payloads."""
    state = None if which.state is None else which.state.value
    values = {**asdict(which), "state": state, "most": which.limit + which.offset, "clock": work.offset}
    return [stored_of(work, *row) for row in work.rows(LIST, values)]


def find_message(work: PostgresWork, partition_uid: str, transaction_id: str) -> Stored | None:
    """One message, with its payload."""
    if uuid_or_none(partition_uid) is None or not is_storable(transaction_id):
        return None
    row = work.row(ONE, {"clock": work.offset, "uid": partition_uid, "transaction": transaction_id, "group": None})
    return None if row is None else stored_of(work, *row)


def stored_of(work: PostgresWork, sealed: Any, *columns: Any) -> Stored:  # noqa: ANN401 - a row
    """A row as a stored message."""
    found: Any = Stored(*columns)
    payload = found.payload and work.opened(found.payload, found.partition_id, found.transaction_id, sealed=sealed)
    states = {name: State(state) for name, state in found.states} or {DEFAULT_GROUP: State.PENDING}
    stored: Stored = replace(found, payload=payload, states=states)
    return stored


STATES: Final = """
left join lateral (
    select array_agg(array[x.name, x.state] order by x.name) states, max(x.retries) retries, max(x.error) error,
        max(x.until) until
    from (
        select g.name, d.retries, coalesce(d.error, x.error) error,
            case when d.lives then d.until end until,
            case
                when m.seq is null or m.seq > s.claimed then case
                    when y.dead is null then 'pending'
                    when y.dead then 'dead_letter'
                    else 'completed' end
                when d.lives then 'processing'
                when d.seq is not null then 'pending'
                when x.seq is not null then 'dead_letter'
                else 'completed' end state
        from message_pump.consumer_group g
        cross join lateral (
            select * from message_pump.progress s where s.group_id = g.id and s.part_id = p.id limit 1
        ) s
        left join lateral (
            select d.seq, d.retries, d.error, case when q.ordered then s.lease_until else d.visible_at end until,
                coalesce(case when q.ordered
                    then d.lease_id = s.lease_id and message_pump.lives(s.lease_until, t.now)
                    else d.lease_id is not null and message_pump.lives(d.visible_at, t.now) end, false) lives
            from message_pump.delivery d where d.group_id = g.id and d.part_id = p.id and d.seq = m.seq limit 1
        ) d on true
        left join lateral (
            select x.seq, x.retries, x.error from message_pump.dead x
            where x.part_id = p.id and x.seq = m.seq and x.group_id = g.id limit 1
        ) x on true
        left join lateral (
            select y.dead from message_pump.passed y where y.message_id = m.id and y.group_id = g.id limit 1
        ) y on true
        where g.queue_id = q.id and g.name = coalesce(%(group)s::text, g.name)
    ) x
) known on true
"""
COLUMNS: Final = """
m.sealed, m.id::text, m.transaction_id, p.uid::text, p.name, q.name, m.payload, date_part('epoch', m.at), m.seq,
m.trace_id::text, m.producer, coalesce(known.states, '{}'), coalesce(known.retries, 0), known.error,
date_part('epoch', known.until)
"""

LIST: Final = f"""
select {COLUMNS}
from (select message_pump.now_at(%(clock)s::float8) now) t
cross join message_pump.queue q
cross join lateral (
    select * from message_pump.partition p
    where p.queue_id = q.id and p.name = coalesce(%(partition)s::text, p.name)
) p
cross join lateral (
    select * from (
        select m.id, m.transaction_id, m.at, m.seq, m.trace_id, m.producer, false sealed, null::bytea payload
        from message_pump.message m where m.part_id = p.id
        union all
        select w.id, w.transaction_id, w.pushed_at, null, w.trace_id, w.producer, false, null
        from message_pump.scheduled w where w.part_id = p.id
    ) m
    where m.at >= coalesce(to_timestamp(%(since)s::float8), '-infinity')
        and m.at <= coalesce(to_timestamp(%(until)s::float8), 'infinity')
    order by m.seq desc nulls first
    limit case when %(state)s::text is null then %(most)s::bigint end
) m
{STATES}
where q.name = coalesce(%(queue)s::text, q.name) and (
    %(state)s::text is null or exists (
        select 1 from generate_subscripts(known.states, 1) i where known.states[i][2] = %(state)s::text
    ) or (known.states is null and %(state)s::text = 'pending')
)
order by m.at desc, m.seq desc nulls first, p.id
limit %(limit)s::bigint offset %(offset)s::bigint
"""  # noqa: S608 - of constants

ONE: Final = f"""
select {COLUMNS}
from (select message_pump.now_at(%(clock)s::float8) now) t
cross join lateral (select * from message_pump.partition p where p.uid = %(uid)s::text::uuid limit 1) p
cross join lateral (select * from message_pump.queue q where q.id = p.queue_id limit 1) q
cross join lateral (
    select m.id, m.transaction_id, m.at, m.seq, m.trace_id, m.producer, m.sealed, m.payload
    from message_pump.message m where m.part_id = p.id and m.transaction_id = %(transaction)s::text
    union all
    select w.id, w.transaction_id, w.pushed_at, null, w.trace_id, w.producer, w.sealed, w.payload
    from message_pump.scheduled w where w.part_id = p.id and w.transaction_id = %(transaction)s::text
) m
{STATES}
"""  # noqa: S608 - of constants
