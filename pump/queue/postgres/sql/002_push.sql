-- Queues, partitions and pushes. Locks are taken in this order: queues, partitions, progress, each by
-- id. A partition's lock is held until the commit, so its sequence is the order in which pushes committed.

create function message_pump.now_at(_offset double precision) returns timestamptz
language sql as $$ select clock_timestamp() + make_interval(secs => _offset) $$;

-- Create the queues that are missing; the namespace and the task of each are the parts of its name.
create function message_pump.make_queues(_names text[], _now timestamptz) returns void language sql as $$
    insert into message_pump.queue (name, namespace, task, created_at)
        select distinct a.q, split_part(a.q, '.', 1), substr(a.q, strpos(a.q || '.', '.') + 1), _now
        from unnest(_names) a (q)
        where not exists (select 1 from message_pump.queue q where q.name = a.q)
        order by a.q
        on conflict (name) do nothing;
$$;

-- The ids of the named partitions; missing partitions are created, unless their queue has too many already.
create function message_pump.places(
    _queues text[], _partitions text[], _most integer, _offset double precision
) returns table (part_id bigint, part_uid text, of_queue bigint, sealed boolean) language plpgsql as $$
declare
    _now timestamptz := message_pump.now_at(_offset);
    _found integer;
begin
    perform message_pump.make_queues(_queues, _now);
    if exists (
        select 1 from unnest(_queues, _partitions) a (q, p)
        cross join lateral (select q.id from message_pump.queue q where q.name = a.q limit 1) q
        where not exists (select 1 from message_pump.partition p where p.queue_id = q.id and p.name = a.p)
    ) then
        -- Creating a group waits for the queue's row, so that no pair of group and partition is missed.
        perform 1 from message_pump.queue q where q.name = any (_queues) order by q.id for no key update;
        with made as (
            insert into message_pump.partition (queue_id, name, created_at, last_at)
                select distinct q.id, a.p, _now, _now
                from unnest(_queues, _partitions) a (q, p)
                cross join lateral (
                    select q.id from message_pump.queue q where q.name = a.q and q.partitions < _most limit 1
                ) q
                order by q.id, a.p
                on conflict (queue_id, name) do nothing
                returning id, partition.queue_id
        ), counted as (
            update message_pump.queue q set partitions = q.partitions + x.n
                from (select made.queue_id, count(*) n from made group by made.queue_id) x where q.id = x.queue_id
        )
        insert into message_pump.progress (group_id, part_id, claimed, base)
            select g.id, made.id, 0, 0
            from made cross join lateral (
                select g.id from message_pump.consumer_group g where g.queue_id = made.queue_id
            ) g;
    end if;
    return query
        select p.id, coalesce(p.uid::text, ''), q.id, q.encryption
        from unnest(_queues, _partitions) with ordinality a (q, p, o)
        cross join lateral (select * from message_pump.queue q where q.name = a.q limit 1) q
        left join lateral (
            select * from message_pump.partition p where p.queue_id = q.id and p.name = a.p limit 1
        ) p on true
        order by a.o;
    get diagnostics _found = row_count;
    if _found < cardinality(_queues) or exists (
        select 1 from unnest(_queues, _partitions) a (q, p)
        cross join lateral (
            select q.id from message_pump.queue q where q.name = a.q and q.partitions < _most limit 1
        ) q
        where not exists (select 1 from message_pump.partition p where p.queue_id = q.id and p.name = a.p)
    ) then
        raise exception 'a queue was deleted meanwhile' using errcode = 'MP001';
    end if;
end $$;

-- The number of empty places of a partition, after one sequence and up to another.
create function message_pump.empty_places(_part bigint, _after bigint, _last bigint) returns bigint
language sql stable as $$
    select coalesce(sum(least(r.last, _last) - greatest(r.seq - 1, _after)), 0)::bigint
    from message_pump.removed r where r.part_id = _part and r.last > _after and r.seq <= _last
$$;

-- The number of messages after its claim that a group has settled ahead.
create function message_pump.passed_beyond(_group bigint, _part bigint, _claimed bigint) returns bigint
language sql stable as $$
    select count(*) from message_pump.passed x where x.group_id = _group and x.part_id = _part and x.seq > _claimed
$$;

-- The number of messages of a queue that its slowest group has not settled; without a group, all messages of the queue.
create function message_pump.size_of(_queue bigint) returns bigint language sql as $$
    select coalesce(
        (
            select max(x.n) from message_pump.consumer_group g cross join lateral (
                select sum(
                    p.last_seq - s.claimed - message_pump.empty_places(p.id, s.claimed, p.last_seq)
                    - message_pump.passed_beyond(g.id, p.id, s.claimed) + d.n
                ) n
                from message_pump.partition p
                cross join lateral (
                    select s.claimed from message_pump.progress s
                    where s.group_id = g.id and s.part_id = p.id limit 1
                ) s
                cross join lateral (
                    select count(*) n from message_pump.delivery d where d.group_id = g.id and d.part_id = p.id
                ) d
                where p.queue_id = _queue
            ) x where g.queue_id = _queue
        ),
        (
            select sum(p.last_seq - p.first_seq + 1 - message_pump.empty_places(p.id, p.first_seq - 1, p.last_seq))
            from message_pump.partition p where p.queue_id = _queue
        ),
        0
    )::bigint + (select count(*) from message_pump.scheduled s where s.queue_id = _queue);
$$;

-- Make these partitions ready for the groups that had nothing there; returns whether there was such a group.
create function message_pump.wake(_parts bigint[], _now timestamptz) returns boolean language plpgsql as $$
begin
    update message_pump.progress g set ready_at = _now where g.ctid = any (array(
        select s.ctid from message_pump.progress s
        where s.part_id = any (_parts) and s.ready_at = 'infinity'
        order by s.part_id, s.group_id for no key update
    ));
    return found;
end $$;

-- Give the first thousand due messages of a queue their places.
-- A pop does not wait for a push in progress, whose caller may keep its transaction open: it looks again soon.
create function message_pump.promote(_queue bigint, _now timestamptz, _waits boolean) returns boolean
language plpgsql as $$
declare
    _parts bigint[];
begin
    if not exists (
        select 1 from message_pump.scheduled s where s.queue_id = _queue and s.due_at <= _now limit 1
    ) then
        return false;
    end if;
    _parts := array(
        select x.part_id from (
            select s.part_id from message_pump.scheduled s where s.queue_id = _queue and s.due_at <= _now
            order by s.due_at, s.ordinal limit 1000
        ) x
        group by x.part_id order by x.part_id
    );
    if _waits then
        perform 1 from message_pump.partition p where p.id = any (_parts) order by p.id for no key update;
    else
        _parts := array(
            select p.id from message_pump.partition p where p.id = any (_parts) order by p.id
            for no key update skip locked
        );
    end if;
    with due as (
        delete from message_pump.scheduled s where s.ctid = any (array(
            select s.ctid from message_pump.scheduled s where s.queue_id = _queue and s.due_at <= _now
            order by s.due_at, s.ordinal limit 1000
        )) and s.part_id = any (_parts)
        returning s.*
    ), numbered as (
        select due.*, row_number() over (partition by due.part_id order by due.due_at, due.ordinal) n from due
    ), placed as (
        insert into message_pump.message (part_id, seq, at, id, trace_id, transaction_id, producer, sealed, payload)
            select n.part_id, p.last_seq + n.n, greatest(p.last_at, n.due_at),
                n.id, n.trace_id, n.transaction_id, n.producer, n.sealed, n.payload
            from numbered n cross join lateral (
                select * from message_pump.partition p where p.id = n.part_id limit 1
            ) p
            returning id, seq
    ), passed as ( -- if a group has settled them ahead
        update message_pump.passed s set seq = x.seq
            from (
                select s.tid, n.seq from placed n cross join lateral (
                    select s.ctid tid from message_pump.passed s where s.message_id = n.id offset 0
                ) s
            ) x
            where s.ctid = x.tid
            returning s.message_id, s.group_id, s.seq, s.dead
    ), buried as (
        update message_pump.dead x set seq = y.seq
            from (
                select x.tid, s.seq from passed s cross join lateral (
                    select x.ctid tid from message_pump.dead x
                    where x.message_id = s.message_id and x.group_id = s.group_id offset 0
                ) x
                where s.dead
            ) y
            where x.ctid = y.tid
    )
    update message_pump.partition p
        set last_seq = p.last_seq + x.n, last_at = greatest(p.last_at, x.at)
        from (select n.part_id, count(*) n, max(n.due_at) at from numbered n group by n.part_id) x
        cross join lateral (select p.ctid tid from message_pump.partition p where p.id = x.part_id limit 1) t
        where p.ctid = t.tid;
    return message_pump.wake(_parts, _now);
end $$;

-- Store messages, no two of which have the same partition and transaction id; `_parts` in rising order, `_queues` their
-- queues. Returns only rows for what is unusual: 'duplicate' (with the id of the stored message), 'full', 'scheduled',
-- and 'woken' at ordinal 0. A partition's row is looked up only once: every push adds a version of it, and while an old
-- snapshot keeps all versions, each lookup reads every one of them.
create function message_pump.push(
    _queues bigint[], _parts bigint[], _sealed boolean[], _which integer[], _ids uuid[], _transactions text[],
    _payloads bytea[], _traces uuid[], _producers text[], _not_before double precision[], _delays double precision[],
    _offset double precision
) returns table (ordinal integer, outcome text, id text) language plpgsql as $$
declare
    _now timestamptz := message_pump.now_at(_offset);
    _p record;
    _queue record;
    _limited bigint[] := '{}';
    _full integer[] := '{}';
    _placed integer;
begin
    for _queue in select a.id from unnest(_queues) a (id) loop
        perform message_pump.promote(_queue.id, _now, true);
    end loop;
    select array_agg(x.tid) tids, array_agg(x.id) ids, array_agg(x.queue_id) queues, array_agg(x.last_seq) seqs,
        array_agg(x.last_at) ats into _p
        from (
            select p.ctid tid, p.id, p.queue_id, p.last_seq, p.last_at from message_pump.partition p
            where p.id = any (_parts) order by p.id for no key update
        ) x;
    _now := message_pump.now_at(_offset);
    for _queue in
        select x.queue_id, x.sealed, q.encryption, q.max_size
        from (select distinct a.q queue_id, a.s sealed from unnest(_p.queues, _sealed) a (q, s)) x
        left join lateral (select * from message_pump.queue q where q.id = x.queue_id limit 1) q on true
        order by x.queue_id
    loop
        if _p.ids <> _parts or _queue.sealed is distinct from _queue.encryption then
            raise exception 'what the caller knows of the queue is out of date' using errcode = 'MP001';
        end if;
        if _queue.max_size > 0 then
            -- Otherwise two pushes into different partitions could both take the last place of the queue.
            perform 1 from message_pump.queue q where q.id = _queue.queue_id for no key update;
            _limited := _limited || _queue.queue_id;
        end if;
    end loop;
    if _p.ids is null then
        raise exception 'what the caller knows of the queue is out of date' using errcode = 'MP001';
    end if;
    if cardinality(_limited) > 0 then
        _full := array(
            select x.o from (
                select a.o, _p.queues[a.w] queue_id, row_number() over (partition by _p.queues[a.w] order by a.o) n
                from unnest(_which, _transactions) with ordinality a (w, t, o)
                where _p.queues[a.w] = any (_limited)
                and not exists (
                    select 1 from message_pump.message m where m.part_id = _parts[a.w] and m.transaction_id = a.t
                )
                and not exists (
                    select 1 from message_pump.scheduled s where s.part_id = _parts[a.w] and s.transaction_id = a.t
                )
            ) x
            cross join lateral (select q.max_size from message_pump.queue q where q.id = x.queue_id limit 1) q
            where x.n > q.max_size - message_pump.size_of(x.queue_id)
        );
    end if;
    return query
    with item as materialized (
        select a.o::integer o, a.w, _sealed[a.w] sealed, a.id, a.t, a.d, a.trace, a.producer,
            greatest(to_timestamp(a.nb), _now + make_interval(secs => a.delay)) due,
            coalesce(m.id, s.id) old, a.o = any (_full) refused
        from unnest(_which, _ids, _transactions, _payloads, _traces, _producers, _not_before, _delays)
            with ordinality a (w, id, t, d, trace, producer, nb, delay, o)
        left join lateral (
            select m.id from message_pump.message m where m.part_id = _parts[a.w] and m.transaction_id = a.t limit 1
        ) m on true
        left join lateral (
            select s.id from message_pump.scheduled s where s.part_id = _parts[a.w] and s.transaction_id = a.t limit 1
        ) s on true
    ), numbered as (
        select item.*, row_number() over (partition by item.w order by item.o) n
        from item where item.old is null and not item.refused and (item.due <= _now) is not false
    ), placed as (
        insert into message_pump.message (part_id, seq, at, id, trace_id, transaction_id, producer, sealed, payload)
            select _parts[n.w], _p.seqs[n.w] + n.n, greatest(_p.ats[n.w], _now), n.id, n.trace, n.t, n.producer,
                n.sealed, n.d
            from numbered n
    ), later as (
        insert into message_pump.scheduled
            (id, part_id, queue_id, due_at, pushed_at, trace_id, transaction_id, producer, sealed, payload)
            select i.id, _parts[i.w], _p.queues[i.w], i.due, _now, i.trace, i.t, i.producer, i.sealed, i.d
            from item i where i.old is null and not i.refused and i.due > _now
            order by i.o
    ), counted as (
        update message_pump.partition p
            set last_seq = p.last_seq + x.n, last_at = greatest(p.last_at, _now)
            from (select _p.tids[n.w] tid, count(*) n from numbered n group by n.w) x where p.ctid = x.tid
    )
    select i.o, case when i.old is not null then 'duplicate' when i.refused then 'full' else 'scheduled' end,
        i.old::text
        from item i where i.old is not null or i.refused or i.due > _now;
    get diagnostics _placed = row_count;
    if _placed < cardinality(_which) and message_pump.wake(_parts, _now) then
        return query select 0, 'woken', null::text;
    end if;
end $$;
