-- Operators' actions on queues, groups and partitions. Locks are taken in the same order as by pushes.

-- The last place in a partition before a moment; binary search, since times rise with places.
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

-- Record that places are empty now; ranges that touch become one.
create function message_pump.vacate(_part bigint, _places bigint[]) returns void language plpgsql as $$
declare
    _low bigint;
    _high bigint;
    _before bigint;
    _after record;
begin
    for _low, _high in
        select min(a.seq), max(a.seq)
        from (select a.seq, a.seq - row_number() over (order by a.seq) island from unnest(_places) a (seq)) a
        group by a.island order by 1
    loop
        delete from message_pump.removed r where r.part_id = _part and r.last = _low - 1 returning r.seq into _before;
        _low := coalesce(_before, _low);
        select r.seq, r.last into _after from message_pump.removed r
            where r.part_id = _part and r.last > _high order by r.last limit 1;
        if _after.seq = _high + 1 then
            update message_pump.removed r set seq = _low where r.part_id = _part and r.last = _after.last;
        else
            insert into message_pump.removed (part_id, seq, last) values (_part, _low, _high);
        end if;
    end loop;
end $$;

-- The number of messages of a partition that a group has completed, in total.
create function message_pump.completed(_group bigint, _part bigint) returns bigint language sql stable as $$
    select s.claimed - s.base
        + (select count(*) from message_pump.passed y
            where y.group_id = _group and y.part_id = _part and y.seq > s.claimed and not y.dead)
        - (select count(*) from message_pump.delivery d where d.group_id = _group and d.part_id = _part)
        - (select count(*) from message_pump.dead x
            where x.part_id = _part and x.group_id = _group and x.seq is not null and x.seq <= s.claimed)
        - message_pump.empty_places(_part, 0, s.claimed)
    from message_pump.progress s where s.group_id = _group and s.part_id = _part
$$;

-- Set a group's claim, and end its deliveries and lease; the count of completed messages stays the same.
create function message_pump.move(_group bigint, _part bigint, _claimed bigint, _now timestamptz) returns void
language plpgsql as $$
declare
    _completed bigint := message_pump.completed(_group, _part);
begin
    delete from message_pump.delivery d where d.group_id = _group and d.part_id = _part;
    delete from message_pump.passed x where x.group_id = _group and x.part_id = _part;
    update message_pump.dead x set seq = null where x.part_id = _part and x.group_id = _group and x.seq > _claimed;
    update message_pump.progress s set
        claimed = _claimed, floor = _claimed + 1, base = 0, lease_id = null, lease_until = null, lease_open = 0,
        open_rows = 0, ready_at = _now
        where s.group_id = _group and s.part_id = _part;
    update message_pump.progress s set base = message_pump.completed(_group, _part) - _completed
        where s.group_id = _group and s.part_id = _part;
end $$;

-- The queue and the group, created if they are missing and `_create` is set; the first consumer decides the mode.
-- 'MP002': the queue has the other mode.
create function message_pump.enter(
    _queue text, _group text, _ordered boolean, _subscription text, _since double precision, _create boolean,
    _offset double precision
) returns table (queue_id bigint, group_id bigint, ordered boolean) language plpgsql as $$
declare
    _now timestamptz := message_pump.now_at(_offset);
begin
    if _create then
        perform message_pump.make_queues(array[_queue], _now);
    end if;
    select q.id, q.ordered into queue_id, ordered from message_pump.queue q where q.name = _queue;
    if not found then
        return;
    end if;
    if ordered is null then
        update message_pump.queue q set ordered = coalesce(q.ordered, _ordered, true)
            where q.id = queue_id returning q.ordered into ordered;
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

-- Create a group with its start; one that exists keeps its progress.
create function message_pump.subscribe(
    _queue bigint, _group text, _subscription text, _since double precision, _now timestamptz
) returns bigint language plpgsql as $$
declare
    _id bigint;
begin
    -- Creating a partition waits for the queue's row, so that no pair of group and partition is missed.
    perform 1 from message_pump.queue q where q.id = _queue for no key update;
    select g.id into _id from message_pump.consumer_group g where g.queue_id = _queue and g.name = _group;
    if found then
        return _id;
    end if;
    insert into message_pump.consumer_group (queue_id, name, subscription, subscribed_from, created_at)
        values (_queue, _group, _subscription, to_timestamp(_since), _now) returning id into _id;
    -- A push or removal in progress must be finished before this, or start after it.
    perform 1 from message_pump.partition p where p.queue_id = _queue order by p.id for no key update;
    -- Ready now: the first consumer looks, and sets it to 'infinity' if there is nothing. A push may be in progress.
    insert into message_pump.progress (group_id, part_id, claimed, floor, base, ready_at)
        select _id, p.id, c.seq, c.seq + 1, c.seq - message_pump.empty_places(p.id, 0, c.seq), _now
        from message_pump.partition p
        cross join lateral (select case _subscription
            when 'new' then p.last_seq
            when 'all' then p.first_seq - 1
            else message_pump.last_before(p.id, to_timestamp(_since)) end seq offset 0
        ) c
        where p.queue_id = _queue order by p.id;
    return _id;
end $$;

-- Change a queue's mode; false if there is a live lease.
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
    _queue bigint, _group bigint, _partition text, _to double precision, _offset double precision
) returns integer language plpgsql as $$
declare
    _now timestamptz := message_pump.now_at(_offset);
    _p record;
    _moved integer := 0;
begin
    for _p in
        select p.id from message_pump.partition p
        where p.queue_id = _queue and (_partition is null or p.name = _partition) order by p.id
    loop
        perform 1 from message_pump.partition p where p.id = _p.id for no key update;
        perform 1 from message_pump.progress s where s.group_id = _group and s.part_id = _p.id for no key update;
        perform message_pump.move(_group, _p.id, case
            when _to is null then (select p.last_seq from message_pump.partition p where p.id = _p.id)
            else message_pump.last_before(_p.id, to_timestamp(_to)) end, _now);
        _moved := _moved + 1;
    end loop;
    return _moved;
end $$;

create function message_pump.forget_group(_group bigint) returns void language plpgsql as $$
begin
    perform 1 from message_pump.progress s where s.group_id = _group order by s.part_id for no key update;
    delete from message_pump.delivery d where d.group_id = _group;
    delete from message_pump.passed x where x.group_id = _group;
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
