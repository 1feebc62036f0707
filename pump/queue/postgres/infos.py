"""Queues, partitions and groups as operators see them; counted from the rows at one moment."""

from itertools import groupby
from operator import itemgetter
from typing import Final

from pump.queue.numbers import numbers_of
from pump.queue.postgres.work import PostgresWork
from pump.queue.vocabulary import GroupInfo, PartitionInfo, PartitionNumbers, ProgressInfo, QueueInfo


def list_queues(work: PostgresWork, name: str | None = None, *, whole: bool = False) -> list[QueueInfo]:
    """All queues, with partitions and groups only if `whole`; or the named queue with its partitions and groups."""
    if name is None and not whole:
        return [QueueInfo(*row) for row in work.rows(QUEUES, name)]
    found = work.rows(GROUPS, work.offset, name, None)
    groups = {queue: list(rows) for queue, rows in groupby(found, itemgetter(0))}
    partitions = partition_infos(work, name)
    return [
        QueueInfo(
            *(
                *row,
                partitions.get(row[1], []),
                [GroupInfo(each[1], row[1], *each[2:]) for each in groups.get(row[1], ())],
            )
        )
        for row in work.rows(QUEUES, name)
    ]


def list_groups(work: PostgresWork, name: str | None = None) -> list[GroupInfo]:
    """All groups of all queues, or those of that name."""
    return [GroupInfo(row[1], row[0], *row[2:]) for row in work.rows(GROUPS, work.offset, None, name)]


def count_messages(work: PostgresWork, queue: str | None) -> dict[str, list[PartitionNumbers]]:
    """Count the messages of each partition, in all or by group and state, for every queue or one."""
    return numbers_of(work.rows(NUMBERS, {"clock": work.offset, "queue": queue}))


NUMBERS: Final = """
with part as materialized (
    select p.id, p.last_seq, q.name, coalesce(q.ordered, true) ordered, message_pump.now_at(%(clock)s::float8) now
    from message_pump.partition p join message_pump.queue q on q.id = p.queue_id
    where q.name = coalesce(%(queue)s::text, q.name)
),
progress as materialized (
    select s.*, part.last_seq, part.ordered, part.now, part.name from message_pump.progress s
    join part on part.id = s.part_id
),
placed as (
    select m.part_id, count(*) n from message_pump.message m
    where %(queue)s::text is null or m.part_id in (select part.id from part) group by 1
),
waiting as (select w.part_id, count(*) n from message_pump.scheduled w group by 1),
gaps as (
    select s.group_id, s.part_id,
        sum(r.last - greatest(r.seq - 1, s.claimed)) filter (where r.last > s.claimed) beyond,
        sum(least(r.last, s.claimed) - r.seq + 1) filter (where r.seq <= s.claimed) before
    from message_pump.removed r join progress s on s.part_id = r.part_id group by 1, 2
),
ahead as (
    select x.group_id, x.part_id, count(*) filter (where x.seq > s.claimed) placed,
        count(*) filter (where x.seq > s.claimed and not x.dead) done,
        count(*) filter (where x.seq is null) waiting, count(*) filter (where x.seq is null and x.dead) dead
    from message_pump.passed x join progress s on s.group_id = x.group_id and s.part_id = x.part_id group by 1, 2
),
given as (
    select d.group_id, d.part_id, count(*) n, count(*) filter (where d.lease_id is not null and case when s.ordered
        then d.lease_id = s.lease_id and message_pump.lives(s.lease_until, s.now)
        else message_pump.lives(d.visible_at, s.now) end) leased
    from message_pump.delivery d join progress s on s.group_id = d.group_id and s.part_id = d.part_id group by 1, 2
),
buried as (
    select x.group_id, x.part_id, count(*) n, count(*) filter (where x.seq <= s.claimed) before
    from message_pump.dead x join progress s on s.group_id = x.group_id and s.part_id = x.part_id
    where x.seq is not null group by 1, 2
)
select part.name, part.id, coalesce(placed.n, 0) + coalesce(waiting.n, 0), s.group_id,
    (s.last_seq - s.claimed - coalesce(gaps.beyond, 0) - coalesce(ahead.placed, 0) + coalesce(given.n, 0)
        - coalesce(given.leased, 0) + coalesce(waiting.n, 0) - coalesce(ahead.waiting, 0))::bigint,
    coalesce(given.leased, 0),
    (s.claimed - s.base + coalesce(ahead.done, 0) - coalesce(given.n, 0) - coalesce(buried.before, 0)
        - coalesce(gaps.before, 0))::bigint,
    coalesce(ahead.dead, 0) + coalesce(buried.n, 0)
from part
left join placed on placed.part_id = part.id
left join waiting on waiting.part_id = part.id
left join progress s on s.part_id = part.id
left join gaps on gaps.group_id = s.group_id and gaps.part_id = s.part_id
left join ahead on ahead.group_id = s.group_id and ahead.part_id = s.part_id
left join given on given.group_id = s.group_id and given.part_id = s.part_id
left join buried on buried.group_id = s.group_id and buried.part_id = s.part_id
order by part.id, s.group_id
"""


def partition_infos(work: PostgresWork, queue: str | None) -> dict[str, list[PartitionInfo]]:
    """All partitions of one queue or of every queue, with the progress of every group."""
    named = (queue,) if queue is not None else ()
    progress: dict[str, list[ProgressInfo]] = {}
    for uid, *rest in work.rows(PROGRESS if named else ALL_PROGRESS, work.offset, *named):
        progress.setdefault(uid, []).append(ProgressInfo(*rest))
    partitions: dict[str, list[PartitionInfo]] = {}
    for name, *row in work.rows(PARTITIONS if named else ALL_PARTITIONS, *named):
        partitions.setdefault(name, []).append(PartitionInfo(*(*row, progress.get(row[0], []))))
    return partitions


QUEUES: Final = """
select q.uid::text, q.name, q.namespace, q.task, q.ordered, date_part('epoch', q.created_at)
from message_pump.queue q where q.name = coalesce(%s::text, q.name) order by q.name
"""

OPEN: Final = """
cross join lateral (
    select count(*) n, min(d.seq) first,
        count(*) filter (where d.lease_id is not null and case when q.ordered
            then d.lease_id = s.lease_id and message_pump.lives(s.lease_until, t.now)
            else message_pump.lives(d.visible_at, t.now) end) leased
    from message_pump.delivery d where d.group_id = s.group_id and d.part_id = s.part_id
) d
cross join lateral (
    select message_pump.empty_places(s.part_id, s.claimed, p.last_seq)
        + message_pump.passed_beyond(s.group_id, s.part_id, s.claimed) n
) gap
left join lateral (
    select m.at from message_pump.message m
    where m.part_id = s.part_id and m.seq >= coalesce(d.first, s.claimed + 1) and (m.seq <= s.claimed or (
        select 1 from message_pump.passed y
        where y.group_id = s.group_id and y.part_id = s.part_id and y.seq = m.seq limit 1
    ) is null)
    order by m.seq limit 1
) oldest on true
"""

GROUPS: Final = f"""
select q.name, g.name, count(s.part_id)::integer, (count(*) filter (where x.lag > 0))::integer,
    coalesce(sum(x.lag), 0)::bigint, greatest(coalesce(max(x.seconds), 0), 0), g.subscription,
    date_part('epoch', g.subscribed_from), date_part('epoch', g.created_at)
from (select message_pump.now_at(%s::float8) now) t
cross join message_pump.queue q
cross join lateral (select * from message_pump.consumer_group g where g.queue_id = q.id) g
left join lateral (select * from message_pump.progress s where s.group_id = g.id) s on true
left join lateral (
    select p.last_seq - s.claimed - gap.n + d.n lag, date_part('epoch', t.now - oldest.at) seconds
    from message_pump.partition p {OPEN} where p.id = s.part_id
) x on true
where q.name = coalesce(%s::text, q.name) and g.name = coalesce(%s::text, g.name)
group by q.id, g.id, q.name, g.name, g.subscription, g.subscribed_from, g.created_at order by q.name, g.name
"""  # noqa: S608 - of constants

PARTITIONS: Final = """
select q.name, p.uid::text, p.name, (m.n + s.n)::bigint, p.last_seq, date_part('epoch', p.created_at)
from message_pump.queue q
cross join lateral (select * from message_pump.partition p where p.queue_id = q.id) p
cross join lateral (select count(*) n from message_pump.message m where m.part_id = p.id) m
cross join lateral (select count(*) n from message_pump.scheduled s where s.part_id = p.id) s
where q.name = %s::text order by p.id
"""
ALL_PARTITIONS: Final = PARTITIONS.replace("q.name = %s::text", "true")

PROGRESS: Final = f"""
select p.uid::text, g.name, coalesce(d.first - 1, s.claimed),
    (p.last_seq - s.claimed - gap.n + d.n - d.leased + waiting.n - passed.n)::bigint, d.leased,
    message_pump.completed(s.group_id, s.part_id),
    (select count(*) from message_pump.dead x where x.part_id = p.id and x.group_id = g.id and x.seq is not null)
        + passed.dead,
    greatest(coalesce(date_part('epoch', t.now - oldest.at), 0), 0),
    case when message_pump.lives(s.lease_until, t.now) then s.lease_id::text end,
    case when message_pump.lives(s.lease_until, t.now) then date_part('epoch', s.lease_until) end,
    date_part('epoch', s.consumed_at)
from (select message_pump.now_at(%s::float8) now) t
cross join message_pump.queue q
cross join lateral (select * from message_pump.partition p where p.queue_id = q.id) p
cross join lateral (select * from message_pump.progress s where s.part_id = p.id) s
cross join lateral (select * from message_pump.consumer_group g where g.id = s.group_id) g
cross join lateral (select count(*) n from message_pump.scheduled w where w.part_id = p.id) waiting
cross join lateral (
    select count(*) n, count(*) filter (where y.dead) dead from message_pump.passed y
    where y.group_id = s.group_id and y.part_id = s.part_id and y.seq is null
) passed
{OPEN}
where q.name = %s::text order by p.id, g.id
"""  # noqa: S608 - of constants
ALL_PROGRESS: Final = PROGRESS.replace("q.name = %s::text", "true")
