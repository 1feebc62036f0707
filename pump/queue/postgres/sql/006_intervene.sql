-- Operators' actions on single messages, and on all pending messages of a group. Locks are taken in the same order as
-- by pushes.

-- Let consumers look at a partition again, unless it is leased: a message that may have held back others was removed.
create function message_pump.look_again(_group bigint, _part bigint, _now timestamptz) returns void
language plpgsql as $$
begin
    update message_pump.progress s set ready_at = _now
        where s.group_id = _group and s.part_id = _part and s.ready_at > _now
            and not message_pump.lives(s.lease_until, _now);
end $$;

-- Remove one message for all groups; it stays counted for the groups that completed it.
create function message_pump.delete_message(_uid uuid, _transaction text, _offset double precision) returns boolean
language plpgsql as $$
declare
    _now timestamptz := message_pump.now_at(_offset);
    _p record;
    _s record;
    _id uuid;
    _seq bigint;
    _lease uuid;
begin
    select p.id, q.ordered into _p
        from (select * from message_pump.partition p where p.uid = _uid limit 1 for no key update) p
        cross join lateral (select q.ordered from message_pump.queue q where q.id = p.queue_id limit 1) q;
    if not found then
        return false;
    end if;
    delete from message_pump.scheduled s where s.part_id = _p.id and s.transaction_id = _transaction
        returning s.id into _id;
    if found then
        delete from message_pump.passed x where x.message_id = _id;
        return true;
    end if;
    select m.id, m.seq into _id, _seq from message_pump.message m
        where m.part_id = _p.id and m.transaction_id = _transaction;
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
                perform message_pump.count_off(_s.group_id, _p.id, ((_lease = _s.lease_id) is true)::integer, _now);
                perform message_pump.look_again(_s.group_id, _p.id, _now);
            end if;
        elsif _seq <= _s.claimed and not exists (
            select 1 from message_pump.dead x
            where x.part_id = _p.id and x.seq = _seq and x.group_id = _s.group_id
        ) or _seq > _s.claimed and exists (
            select 1 from message_pump.passed x
            where x.message_id = _id and x.group_id = _s.group_id and not x.dead
        ) then
            update message_pump.progress s set base = s.base - 1
                where s.group_id = _s.group_id and s.part_id = _p.id;
        end if;
    end loop;
    update message_pump.dead x set seq = null where x.part_id = _p.id and x.seq = _seq;
    delete from message_pump.passed x where x.message_id = _id;
    perform message_pump.vacate(_p.id, array[_seq]);
    delete from message_pump.trace t where t.partition_uid = _uid and t.transaction_id = _transaction;
    delete from message_pump.message m where m.part_id = _p.id and m.seq = _seq;
    return true;
end $$;

-- Make a dead message pending again in its old place, for every group that gave it up.
create function message_pump.retry(_uid uuid, _transaction text, _offset double precision) returns integer
language plpgsql as $$
declare
    _now timestamptz := message_pump.now_at(_offset);
    _p record;
    _m record;
    _s record;
    _done integer := 0;
begin
    select p.id, q.ordered into _p
        from (select * from message_pump.partition p where p.uid = _uid limit 1 for no key update) p
        cross join lateral (select q.ordered from message_pump.queue q where q.id = p.queue_id limit 1) q;
    select * into _m from message_pump.place_of(_p.id, _transaction);
    for _s in
        select s.group_id, s.claimed from message_pump.progress s
        where s.part_id = _p.id and _m.id is not null order by s.group_id for no key update
    loop
        if _m.seq <= _s.claimed then
            insert into message_pump.delivery (group_id, part_id, seq, visible_at, deliveries)
                select x.group_id, x.part_id, x.seq, case when _p.ordered then null else _now end, 0
                from message_pump.dead x
                where x.part_id = _p.id and x.seq = _m.seq and x.group_id = _s.group_id
                on conflict do nothing;
        else
            delete from message_pump.passed x
                where x.message_id = _m.id and x.group_id = _s.group_id and x.dead;
        end if;
        continue when not found;
        delete from message_pump.dead x where x.message_id = _m.id and x.group_id = _s.group_id;
        if _m.seq <= _s.claimed then
            update message_pump.progress s set
                floor = least(s.floor, _m.seq), open_rows = s.open_rows + _p.ordered::integer
                where s.group_id = _s.group_id and s.part_id = _p.id;
        end if;
        perform message_pump.look_again(_s.group_id, _p.id, _now);
        _done := _done + 1;
    end loop;
    return _done;
end $$;

-- The id and place of the message with a transaction id; a scheduled message has no place.
create function message_pump.place_of(_part bigint, _transaction text) returns table (id uuid, seq bigint)
language sql stable as $$
    select m.id, m.seq from message_pump.message m where m.part_id = _part and m.transaction_id = _transaction
    union all
    select s.id, null from message_pump.scheduled s where s.part_id = _part and s.transaction_id = _transaction
$$;

-- Make a message in any state a dead letter, for each group that has not settled it, or for one of these groups; returns
-- how many groups.
create function message_pump.give_up(
    _uid uuid, _transaction text, _name text, _error text, _offset double precision
) returns integer language plpgsql as $$
declare
    _now timestamptz := message_pump.now_at(_offset);
    _p record;
    _m record;
    _s record;
    _lease uuid;
    _done integer := 0;
begin
    select p.id, p.queue_id, q.ordered into _p
        from (select * from message_pump.partition p where p.uid = _uid limit 1) p
        cross join lateral (select q.ordered from message_pump.queue q where q.id = p.queue_id limit 1) q;
    if not found then
        return 0;
    end if;
    if _name is null and not exists (
        select 1 from message_pump.consumer_group g where g.queue_id = _p.queue_id
    ) and exists (select 1 from message_pump.place_of(_p.id, _transaction)) then
        perform message_pump.subscribe(_p.queue_id, '__QUEUE_MODE__', 'all', null, _now);
    end if;
    perform 1 from message_pump.partition p where p.id = _p.id for no key update;
    select * into _m from message_pump.place_of(_p.id, _transaction);
    for _s in
        select s.group_id, s.claimed, s.lease_id
        from message_pump.progress s
        cross join lateral (select g.name from message_pump.consumer_group g where g.id = s.group_id limit 1) g
        where s.part_id = _p.id and g.name = coalesce(_name, g.name) and _m.id is not null
        order by s.group_id for no key update of s
    loop
        if _m.seq <= _s.claimed then
            select d.lease_id into _lease from message_pump.delivery d
                where d.group_id = _s.group_id and d.part_id = _p.id and d.seq = _m.seq for update;
        else
            insert into message_pump.passed (message_id, group_id, part_id, seq, dead)
                values (_m.id, _s.group_id, _p.id, _m.seq, true) on conflict do nothing;
        end if;
        continue when not found;
        perform message_pump.bury(_s.group_id, _p.id, _m.seq, 'operator', nullif(_error, ''), _now, _m.id);
        if _p.ordered and _m.seq <= _s.claimed then
            perform message_pump.count_off(_s.group_id, _p.id, ((_lease = _s.lease_id) is true)::integer, _now);
        end if;
        perform message_pump.look_again(_s.group_id, _p.id, _now);
        _done := _done + 1;
    end loop;
    return _done;
end $$;

-- Complete a group's pending messages in a partition: all new messages, and a bounded number of redeliveries; `again`
-- says whether there may be more redeliveries. Leased messages stay leased.
create function message_pump.purge(_group bigint, _part bigint, _most integer, _offset double precision)
returns table (done bigint, again boolean) language plpgsql as $$
declare
    _now timestamptz := message_pump.now_at(_offset);
    _ordered boolean;
    _last bigint;
    _s record;
    _held uuid;
begin
    select p.last_seq, coalesce(q.ordered, true) into _last, _ordered
        from (select * from message_pump.partition p where p.id = _part for no key update) p
        cross join lateral (select q.ordered from message_pump.queue q where q.id = p.queue_id limit 1) q;
    select s.claimed, s.lease_id, s.lease_until into _s from message_pump.progress s
        where s.group_id = _group and s.part_id = _part for no key update;
    if not found then
        return query select 0::bigint, false;
        return;
    end if;
    done := _last - _s.claimed - message_pump.empty_places(_part, _s.claimed, _last)
        - message_pump.passed_beyond(_group, _part, _s.claimed);
    delete from message_pump.passed x where x.group_id = _group and x.part_id = _part and x.seq <= _last;
    _held := case when _ordered and message_pump.lives(_s.lease_until, _now) then _s.lease_id end;
    with gone as (
        delete from message_pump.delivery d where d.ctid = any (array(
            select d.ctid from message_pump.delivery d
            where d.group_id = _group and d.part_id = _part and (
                d.lease_id is null
                or case when _ordered then d.lease_id is distinct from _held
                    else not message_pump.lives(d.visible_at, _now) end
            )
            order by d.seq limit _most for update skip locked
        ))
        returning 1
    ), counted as (
        select count(*)::integer n from gone
    )
    update message_pump.progress s set
        claimed = _last, consumed_at = _now,
        open_rows = case when _ordered then s.open_rows - c.n else 0 end,
        lease_id = _held, lease_until = case when _held is not null then s.lease_until end,
        lease_open = case when _held is not null then s.lease_open else 0 end,
        ready_at = case when _held is not null then s.ready_at else _now end
        from counted c where s.group_id = _group and s.part_id = _part
        returning done + c.n, c.n >= _most into done, again;
    return next;
end $$;

-- The same for scheduled messages, the next `_most` after one; returns how many, and the last one.
create function message_pump.purge_scheduled(
    _queue bigint, _group bigint, _after timestamptz, _ordinal bigint, _most integer
) returns table (done bigint, due timestamptz, place bigint) language plpgsql as $$
declare
    _ids uuid[];
    _parts bigint[];
    _ordinals bigint[];
begin
    select array_agg(x.id), array_agg(x.part_id), array_agg(x.ordinal), max(x.due_at)
        into _ids, _parts, _ordinals, due from (
        select s.id, s.part_id, s.ordinal, s.due_at from message_pump.scheduled s
        where s.queue_id = _queue and (s.due_at, s.ordinal) > (_after, _ordinal)
        order by s.due_at, s.ordinal limit _most
    ) x;
    if _ids is null then
        return;
    end if;
    place := _ordinals[cardinality(_ordinals)];
    -- Giving them their places waits for this lock, or this waits for it.
    perform 1 from message_pump.partition p where p.id = any (_parts) order by p.id for no key update;
    insert into message_pump.passed (message_id, group_id, part_id, seq, dead)
        select s.id, _group, s.part_id, null, false
        from unnest(_ids) a (id)
        cross join lateral (
            select s.id, s.part_id from message_pump.scheduled s where s.id = a.id limit 1
        ) s
        on conflict do nothing;
    get diagnostics done = row_count;
    return next;
end $$;
