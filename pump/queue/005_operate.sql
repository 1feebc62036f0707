-- What operators do, and what time does. The order of locks is that of pushes.

-- The last place in a partition before a moment, by halving: times rise with places.
create function message_pump.last_before(_part bigint, _moment timestamptz) returns bigint language plpgsql as $$
declare
    _low bigint;
    _high bigint;
    _row record;
begin
    select p.first_seq - 1, p.last_seq into _low, _high from message_pump.partition p where p.id = _part;
    while _low < _high loop
        select m.seq, m.at into _row from message_pump.message m
            where m.part_id = _part and m.seq > (_low + _high) / 2 order by m.seq limit 1;
        if not found or _row.seq > _high or _row.at >= _moment then
            _high := (_low + _high) / 2;
        else
            _low := _row.seq;
        end if;
    end loop;
    return _low;
end $$;

-- How many messages of a partition a group has completed, in all.
create function message_pump.completed(_group bigint, _part bigint) returns bigint language sql stable as $$
    select s.claimed - s.base
        - (select count(*) from message_pump.delivery d where d.group_id = _group and d.part_id = _part)
        - (select count(*) from message_pump.dead x
            where x.part_id = _part and x.group_id = _group and x.seq is not null and x.seq <= s.claimed)
        - (select count(*) from message_pump.removed r where r.part_id = _part and r.seq <= s.claimed)
    from message_pump.progress s where s.group_id = _group and s.part_id = _part
$$;

-- Put a group's claim elsewhere, with no delivery open and no lease; what was completed stays counted.
create function message_pump.move(_group bigint, _part bigint, _claimed bigint, _now timestamptz) returns void
language plpgsql as $$
declare
    _completed bigint := message_pump.completed(_group, _part);
begin
    delete from message_pump.delivery d where d.group_id = _group and d.part_id = _part;
    update message_pump.dead x set seq = null where x.part_id = _part and x.group_id = _group and x.seq > _claimed;
    update message_pump.progress s set
        claimed = _claimed, floor = _claimed + 1, base = 0, lease_id = null, lease_until = null, lease_open = 0,
        open_rows = 0, ready_at = _now
        where s.group_id = _group and s.part_id = _part;
    update message_pump.progress s set base = message_pump.completed(_group, _part) - _completed
        where s.group_id = _group and s.part_id = _part;
end $$;

-- The queue and the group, made where they are missing and may be; the first consumer decides the mode.
-- 'MP002': the queue has the other mode.
create function message_pump.enter(
    _queue text, _namespace text, _task text, _group text, _ordered boolean, _subscription text,
    _since double precision, _create boolean, _offset double precision
) returns table (queue_id bigint, group_id bigint, ordered boolean) language plpgsql as $$
declare
    _now timestamptz := message_pump.now_at(_offset);
begin
    if _create then
        insert into message_pump.queue (name, namespace, task, ordered, created_at)
            values (_queue, _namespace, _task, _ordered, _now) on conflict (name) do nothing;
    end if;
    select q.id, q.ordered into queue_id, ordered from message_pump.queue q where q.name = _queue;
    if not found then
        return;
    end if;
    if ordered is null then
        update message_pump.queue q set ordered = coalesce(_ordered, true)
            where q.id = queue_id and q.ordered is null;
        select q.ordered into ordered from message_pump.queue q where q.id = queue_id;
    end if;
    if _ordered <> ordered then
        raise exception 'the queue has the other mode' using errcode = 'MP002';
    end if;
    select g.id into group_id from message_pump.consumer_group g where g.queue_id = enter.queue_id and g.name = _group;
    if group_id is null and _create then
        group_id := message_pump.subscribe(queue_id, _group, _subscription, _since, _now);
    end if;
    return next;
end $$;

-- Make a group known, beginning where it says; one that exists keeps its place.
create function message_pump.subscribe(
    _queue bigint, _group text, _subscription text, _since double precision, _now timestamptz
) returns bigint language plpgsql as $$
declare
    _id bigint;
    _p record;
    _claimed bigint;
begin
    -- A partition that is made meanwhile waits for the queue's row, so that no pair of both is missed.
    perform 1 from message_pump.queue q where q.id = _queue for no key update;
    select g.id into _id from message_pump.consumer_group g where g.queue_id = _queue and g.name = _group;
    if found then
        return _id;
    end if;
    insert into message_pump.consumer_group (queue_id, name, subscription, subscribed_from, created_at)
        values (_queue, _group, _subscription, to_timestamp(_since), _now) returning id into _id;
    if _subscription = 'new' then -- what is being pushed just now is to be on one side or the other
        perform 1 from message_pump.partition p where p.queue_id = _queue order by p.id for no key update;
    end if;
    for _p in
        select p.id, p.first_seq, p.last_seq from message_pump.partition p where p.queue_id = _queue order by p.id
    loop
        _claimed := case _subscription
            when 'new' then _p.last_seq
            when 'all' then _p.first_seq - 1
            else message_pump.last_before(_p.id, to_timestamp(_since)) end;
        -- Looked at by the first consumer, which parks it if there is nothing: a push may be under way.
        insert into message_pump.progress (group_id, part_id, claimed, floor, base, ready_at)
            values (_id, _p.id, _claimed, _claimed + 1, _claimed - (
                select count(*) from message_pump.removed r where r.part_id = _p.id and r.seq <= _claimed
            ), _now);
    end loop;
    return _id;
end $$;

-- Change a queue's mode; false where somebody has a lease.
create function message_pump.set_mode(_queue bigint, _ordered boolean, _now timestamptz) returns boolean
language plpgsql as $$
declare
    _s record;
begin
    for _s in
        select s.group_id, s.part_id, s.claimed, s.lease_until
        from message_pump.consumer_group g
        cross join lateral (
            select * from message_pump.progress s where s.group_id = g.id order by s.part_id for no key update
        ) s
        where g.queue_id = _queue
    loop
        if message_pump.lives(_s.lease_until, _now) or exists (
            select 1 from message_pump.delivery d
            where d.group_id = _s.group_id and d.part_id = _s.part_id and d.lease_id is not null
                and message_pump.lives(d.visible_at, _now)
        ) then
            return false;
        end if;
        if _ordered then
            update message_pump.delivery d set visible_at = null
                where d.group_id = _s.group_id and d.part_id = _s.part_id and d.lease_id is not null;
        else
            update message_pump.delivery d set visible_at = coalesce(d.visible_at, _now)
                where d.group_id = _s.group_id and d.part_id = _s.part_id;
        end if;
        update message_pump.progress s set
            lease_id = null, lease_until = null, lease_open = 0, ready_at = _now, floor = 0,
            open_rows = case when _ordered then (
                select count(*) from message_pump.delivery d where d.group_id = _s.group_id and d.part_id = _s.part_id
            ) else 0 end
            where s.group_id = _s.group_id and s.part_id = _s.part_id;
    end loop;
    update message_pump.queue q set ordered = _ordered where q.id = _queue;
    return true;
end $$;

-- Move a group in a queue, or in one partition of it, to the first message at or after a moment; null is the end.
create function message_pump.seek(
    _queue text, _group text, _partition text, _to double precision, _offset double precision
) returns integer language plpgsql as $$
declare
    _now timestamptz := message_pump.now_at(_offset);
    _p record;
    _moved integer := 0;
begin
    for _p in
        select p.id, g.id gid
        from message_pump.queue q
        cross join lateral (
            select g.id from message_pump.consumer_group g where g.queue_id = q.id and g.name = _group limit 1
        ) g
        cross join lateral (
            select p.id from message_pump.partition p
            where p.queue_id = q.id and (_partition is null or p.name = _partition)
        ) p
        where q.name = _queue
        order by p.id
    loop
        perform 1 from message_pump.partition p where p.id = _p.id for no key update;
        perform 1 from message_pump.progress s where s.group_id = _p.gid and s.part_id = _p.id for no key update;
        perform message_pump.move(_p.gid, _p.id, case
            when _to is null then (select p.last_seq from message_pump.partition p where p.id = _p.id)
            else message_pump.last_before(_p.id, to_timestamp(_to)) end, _now);
        _moved := _moved + 1;
    end loop;
    update message_pump.consumer_group g set epoch = g.epoch + 1
        where g.name = _group and g.queue_id = (select q.id from message_pump.queue q where q.name = _queue);
    return _moved;
end $$;

create function message_pump.forget_group(_group bigint) returns void language plpgsql as $$
begin
    perform 1 from message_pump.progress s where s.group_id = _group order by s.part_id for no key update;
    delete from message_pump.delivery d where d.group_id = _group;
    delete from message_pump.progress s where s.group_id = _group;
    update message_pump.dead x set seq = null
        where x.seq is not null and x.group_id = _group and x.part_id in (
            select p.id from message_pump.consumer_group g
            join message_pump.partition p on p.queue_id = g.queue_id where g.id = _group
        );
    delete from message_pump.consumer_group g where g.id = _group;
end $$;

-- Remove every message of a partition; every group is then at its end.
create function message_pump.empty(_part bigint, _now timestamptz) returns bigint language plpgsql as $$
declare
    _gone bigint;
    _more bigint;
    _last bigint;
    _s record;
begin
    select p.last_seq into _last from message_pump.partition p where p.id = _part for no key update;
    for _s in
        select s.group_id from message_pump.progress s where s.part_id = _part order by s.group_id for no key update
    loop
        perform message_pump.move(_s.group_id, _part, _last, _now);
    end loop;
    delete from message_pump.trace_name n using message_pump.trace t
        where n.trace_ordinal = t.ordinal
            and t.partition_uid = (select p.uid from message_pump.partition p where p.id = _part);
    delete from message_pump.trace t
        where t.partition_uid = (select p.uid from message_pump.partition p where p.id = _part);
    delete from message_pump.message m where m.part_id = _part;
    get diagnostics _gone = row_count;
    delete from message_pump.scheduled s where s.part_id = _part;
    get diagnostics _more = row_count;
    update message_pump.partition p set first_seq = _last + 1 where p.id = _part;
    return _gone + _more;
end $$;

create function message_pump.delete_queue(_queue bigint, _now timestamptz) returns void language plpgsql as $$
declare
    _id bigint;
begin
    perform 1 from message_pump.queue q where q.id = _queue for update;
    for _id in select p.id from message_pump.partition p where p.queue_id = _queue order by p.id loop
        perform message_pump.empty(_id, _now);
        delete from message_pump.removed r where r.part_id = _id;
        update message_pump.dead x set seq = null where x.part_id = _id and x.seq is not null;
    end loop;
    for _id in select g.id from message_pump.consumer_group g where g.queue_id = _queue order by g.id loop
        perform message_pump.forget_group(_id);
    end loop;
    delete from message_pump.partition p where p.queue_id = _queue;
    delete from message_pump.queue q where q.id = _queue;
end $$;

-- Remove one message for all groups; what it was completed for stays counted.
create function message_pump.delete_message(_uid uuid, _transaction text, _offset double precision) returns boolean
language plpgsql as $$
declare
    _now timestamptz := message_pump.now_at(_offset);
    _p record;
    _s record;
    _seq bigint;
    _lease uuid;
begin
    select p.id, q.ordered into _p
        from (select * from message_pump.partition p where p.uid = _uid limit 1 for no key update) p
        cross join lateral (select q.ordered from message_pump.queue q where q.id = p.queue_id limit 1) q;
    if not found then
        return false;
    end if;
    delete from message_pump.scheduled s where s.part_id = _p.id and s.transaction_id = _transaction;
    if found then
        return true;
    end if;
    select m.seq into _seq from message_pump.message m where m.part_id = _p.id and m.transaction_id = _transaction;
    if not found then
        return false;
    end if;
    for _s in
        select s.group_id, s.claimed, s.lease_id from message_pump.progress s
        where s.part_id = _p.id order by s.group_id for no key update
    loop
        delete from message_pump.delivery d where d.group_id = _s.group_id and d.part_id = _p.id and d.seq = _seq
            returning d.lease_id into _lease;
        if found then
            if _p.ordered then
                perform message_pump.count_off(
                    _s.group_id, _p.id, null, 1, coalesce(_lease = _s.lease_id, false)::integer, _now
                );
            end if;
        elsif _seq <= _s.claimed and not exists (
            select 1 from message_pump.dead x
            where x.part_id = _p.id and x.seq = _seq and x.group_id = _s.group_id
        ) then
            update message_pump.progress s set base = s.base - 1
                where s.group_id = _s.group_id and s.part_id = _p.id;
        end if;
    end loop;
    update message_pump.dead x set seq = null where x.part_id = _p.id and x.seq = _seq;
    insert into message_pump.removed (part_id, seq) values (_p.id, _seq);
    perform message_pump.forget_traces(_uid, array[_transaction]);
    delete from message_pump.message m where m.part_id = _p.id and m.seq = _seq;
    return true;
end $$;

create function message_pump.forget_traces(_uid uuid, _transactions text[]) returns void language plpgsql as $$
begin
    if not exists (select 1 from message_pump.trace t where t.partition_uid = _uid limit 1) then
        return;
    end if;
    with gone as (
        delete from message_pump.trace t where t.partition_uid = _uid and t.transaction_id = any (_transactions)
        returning t.ordinal
    )
    delete from message_pump.trace_name n where n.trace_ordinal in (select ordinal from gone);
end $$;

-- Make a dead message pending again in its place, for every group that gave it up.
create function message_pump.retry(_uid uuid, _transaction text, _offset double precision) returns integer
language plpgsql as $$
declare
    _now timestamptz := message_pump.now_at(_offset);
    _part bigint;
    _seq bigint;
    _group bigint;
    _ordered boolean;
    _done integer := 0;
begin
    select p.id, m.seq, q.ordered into _part, _seq, _ordered
        from (select * from message_pump.partition p where p.uid = _uid limit 1) p
        cross join lateral (
            select m.seq from message_pump.message m
            where m.part_id = p.id and m.transaction_id = _transaction limit 1
        ) m
        cross join lateral (select q.ordered from message_pump.queue q where q.id = p.queue_id limit 1) q;
    for _group in
        select x.group_id from message_pump.dead x where x.part_id = _part and x.seq = _seq order by x.group_id
    loop
        perform 1 from message_pump.progress s where s.group_id = _group and s.part_id = _part for no key update;
        insert into message_pump.delivery (group_id, part_id, seq, visible_at, deliveries)
            select x.group_id, x.part_id, x.seq, case when _ordered then null else _now end, 0
            from message_pump.dead x where x.part_id = _part and x.seq = _seq and x.group_id = _group
            on conflict do nothing;
        if found then
            delete from message_pump.dead x where x.part_id = _part and x.seq = _seq and x.group_id = _group;
            update message_pump.progress s set
                floor = least(s.floor, _seq),
                open_rows = s.open_rows + _ordered::integer,
                ready_at = case when message_pump.lives(s.lease_until, _now) then s.ready_at else _now end
                where s.group_id = _group and s.part_id = _part;
            _done := _done + 1;
        end if;
    end loop;
    return _done;
end $$;

-- Make dead letters of what a group has had waiting since before a moment, up to a place, unless the partition (or, in
-- an unordered one, the message) is leased; says how many.
create function message_pump.bury_old(
    _group bigint, _part bigint, _high bigint, _ordered boolean, _reason text, _error text, _now timestamptz
) returns integer language plpgsql as $$
declare
    _s record;
    _seq bigint;
    _buried integer := 0;
begin
    select s.claimed, s.lease_until, s.floor into _s from message_pump.progress s
        where s.group_id = _group and s.part_id = _part for no key update;
    if _ordered and message_pump.lives(_s.lease_until, _now) then
        return 0;
    end if;
    for _seq in
        select d.seq from message_pump.delivery d
        where d.group_id = _group and d.part_id = _part and d.seq <= _high
            and (_ordered or d.lease_id is null or not message_pump.lives(d.visible_at, _now))
        order by d.seq for update skip locked
    loop
        perform message_pump.bury(_group, _part, _seq, _reason, _error, _now);
        _buried := _buried + 1;
    end loop;
    if _ordered and _buried > 0 then
        update message_pump.progress s set open_rows = s.open_rows - _buried, lease_id = null, lease_until = null,
            lease_open = 0, ready_at = _now
            where s.group_id = _group and s.part_id = _part;
    end if;
    if _high > _s.claimed then
        for _seq in
            select m.seq from message_pump.message m
            where m.part_id = _part and m.seq > _s.claimed and m.seq <= _high order by m.seq
        loop
            perform message_pump.bury(_group, _part, _seq, _reason, _error, _now);
            _buried := _buried + 1;
        end loop;
        update message_pump.progress s set claimed = _high where s.group_id = _group and s.part_id = _part;
    end if;
    return _buried;
end $$;

-- Remove the messages of a partition up to a place that no group has still to settle; says how many.
create function message_pump.sweep(_part bigint, _high bigint) returns bigint language plpgsql as $$
declare
    _limit bigint;
    _uid uuid;
    _gone text[];
begin
    select least(_high, min(coalesce(d.seq - 1, s.claimed))) into _limit
        from message_pump.progress s
        left join lateral (
            select d.seq from message_pump.delivery d where d.group_id = s.group_id and d.part_id = _part
            order by d.seq limit 1
        ) d on true
        where s.part_id = _part;
    with gone as (
        delete from message_pump.message m where m.part_id = _part and m.seq <= _limit returning m.transaction_id
    )
    select array_agg(gone.transaction_id) into _gone from gone;
    if _limit is null then
        return 0;
    end if;
    update message_pump.partition p set first_seq = greatest(p.first_seq, _limit + 1) where p.id = _part
        returning p.uid into _uid;
    if _gone is not null then
        perform message_pump.forget_traces(_uid, _gone);
    end if;
    return coalesce(cardinality(_gone), 0);
end $$;

-- Apply the maximum waiting time and retention to one partition, at most `_most` messages of it at a time. Answers
-- how many it dealt with; as many as `_most` means that there may be more.
create function message_pump.tend(_part bigint, _most integer, _offset double precision) returns integer
language plpgsql as $$
declare
    _now timestamptz := message_pump.now_at(_offset);
    _q message_pump.queue;
    _group bigint;
    _first bigint;
    _high bigint;
    _oldest bigint;
    _dealt bigint := 0;
begin
    select q.* into _q
        from (select p.queue_id from message_pump.partition p where p.id = _part limit 1) p
        cross join lateral (select * from message_pump.queue q where q.id = p.queue_id limit 1) q;
    if not found then
        return 0;
    end if;
    -- What nobody takes is somebody's dead letter.
    if (_q.max_wait_time > 0 or (_q.retention_enabled and _q.retention > 0))
        and not exists (select 1 from message_pump.consumer_group g where g.queue_id = _q.id) then
        perform message_pump.subscribe(_q.id, '__QUEUE_MODE__', 'all', null, _now);
    end if;
    if _q.max_wait_time > 0 then
        _high := message_pump.last_before(_part, _now - make_interval(secs => _q.max_wait_time));
        for _group in
            select s.group_id from message_pump.progress s where s.part_id = _part order by s.group_id
        loop
            select coalesce(least(s.claimed + 1, d.seq), s.claimed + 1) into _oldest
                from message_pump.progress s
                left join lateral (
                    select d.seq from message_pump.delivery d where d.group_id = _group and d.part_id = _part
                    order by d.seq limit 1
                ) d on true
                where s.group_id = _group and s.part_id = _part;
            if _oldest <= _high then
                _dealt := _dealt + message_pump.bury_old(
                    _group, _part, least(_high, _oldest + _most - 1), coalesce(_q.ordered, true), 'max_wait_time',
                    'nobody settled it in time', _now
                );
            end if;
        end loop;
    end if;
    if _q.retention_enabled and (_q.retention > 0 or _q.completed_retention > 0) then
        -- So that no group is made in the midst of it that would begin with what goes.
        select p.first_seq into _first from message_pump.partition p where p.id = _part for no key update;
        if _q.retention > 0 then
            _high := least(
                message_pump.last_before(_part, _now - make_interval(secs => _q.retention)), _first + _most - 1
            );
            if _high >= _first then
                for _group in
                    select s.group_id from message_pump.progress s where s.part_id = _part order by s.group_id
                loop
                    perform message_pump.bury_old(
                        _group, _part, _high, coalesce(_q.ordered, true), 'retention',
                        'it was kept as long as the queue keeps messages', _now
                    );
                end loop;
                _dealt := _dealt + message_pump.sweep(_part, _high);
            end if;
        end if;
        if _q.completed_retention > 0 then
            select p.first_seq into _first from message_pump.partition p where p.id = _part;
            _high := least(
                message_pump.last_before(_part, _now - make_interval(secs => _q.completed_retention)),
                _first + _most - 1
            );
            if _high >= _first then
                _dealt := _dealt + message_pump.sweep(_part, _high);
            end if;
        end if;
    end if;
    return _dealt;
end $$;

-- Let a lease that was taken before the clock was put back end now.
create function message_pump.end_impossible_leases(_offset double precision) returns void language plpgsql as $$
declare
    _now timestamptz := message_pump.now_at(_offset);
begin
    update message_pump.progress s set ready_at = _now
        where s.lease_id is not null and s.lease_until > _now + interval '7 days';
    update message_pump.delivery d set visible_at = _now
        where d.lease_id is not null and d.visible_at > _now + interval '7 days';
end $$;

-- Every statement inside these functions is a probe of an index. The planner does not know that before there are
-- statistics, and forgets it when they mislead it, so it is not asked. What only other functions call is spared the
-- changing of settings, which a call for each message would feel.
do $do$
declare
    _function regprocedure;
begin
    for _function in
        select p.oid from pg_proc p join pg_language l on l.oid = p.prolang
        where p.pronamespace = 'message_pump'::regnamespace and l.lanname = 'plpgsql' and p.proname <> all (array[
            'wake', 'opened', 'bury', 'rest', 'take_again', 'take_fresh', 'end_lease', 'count_off', 'move',
            'last_before', 'forget_traces', 'bury_old', 'sweep'
        ])
    loop
        execute format(
            'alter function %s set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off '
            'set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan', _function
        );
    end loop;
end $do$;
