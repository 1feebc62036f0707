-- Settling leased messages. Before anything is read, locks are taken: in ordered queues on progress rows, by partition
-- id; in unordered queues on deliveries, by place.

-- End the lease of an ordered partition: its unsettled messages are pending again, uncounted. Deliveries of an earlier
-- lease that were not handed out since stay as they are: their crash is counted when they are handed out again.
create function message_pump.end_lease(_group bigint, _part bigint, _now timestamptz) returns void
language plpgsql as $$
declare
    _s record;
begin
    select s.lease_id, s.floor into _s from message_pump.progress s where s.group_id = _group and s.part_id = _part;
    update message_pump.delivery d set lease_id = null
        where d.group_id = _group and d.part_id = _part and d.lease_id = _s.lease_id and d.seq >= _s.floor;
    update message_pump.progress s set
        lease_id = null, lease_until = null, lease_open = 0,
        ready_at = case when s.open_rows = 0 then _now else coalesce(
            (
                select greatest(_now, d.visible_at) from message_pump.delivery d
                where d.group_id = _group and d.part_id = _part and d.seq >= s.floor
                order by d.seq limit 1
            ), _now
        ) end
        where s.group_id = _group and s.part_id = _part;
end $$;

-- Subtract settled deliveries from the counts of an ordered partition's lease; `_tid` is the group's row there, null if
-- the caller does not know it. Returns whether that ended the lease.
create function message_pump.count_off(
    _group bigint, _part bigint, _of_lease integer, _now timestamptz, _rows integer default 1, _tid tid default null
) returns boolean language plpgsql as $$
declare
    _open integer;
begin
    if _tid is null then
        select s.ctid into _tid from message_pump.progress s where s.group_id = _group and s.part_id = _part;
    end if;
    -- While the lease lasts, no indexed column changes.
    update message_pump.progress s set open_rows = s.open_rows - _rows, lease_open = s.lease_open - _of_lease
        where s.ctid = _tid and (_of_lease = 0 or s.lease_open > _of_lease);
    if found then
        return false;
    end if;
    update message_pump.progress s set
        open_rows = s.open_rows - _rows, lease_open = 0, lease_until = null, ready_at = _now,
        lease_id = case when s.open_rows <> _rows then s.lease_id end,
        floor = case when s.open_rows = _rows then s.claimed + 1 else s.floor end
        where s.ctid = _tid
        returning s.open_rows into _open;
    if _open > 0 then
        perform message_pump.end_lease(_group, _part, _now);
    end if;
    return true;
end $$;

-- Partitions by their uids, in the order of locking; `o` is the index of a partition, `gid` the named group, if any.
create function message_pump.found(_parts uuid[], _group text)
returns table (o integer, id bigint, name text, queue text, ordered boolean, gid bigint) language sql stable as $$
    select a.o::integer, p.id, p.name, q.name, q.ordered, g.id
    from unnest(_parts) with ordinality a (u, o)
    cross join lateral (select * from message_pump.partition p where p.uid = a.u limit 1) p
    cross join lateral (select * from message_pump.queue q where q.id = p.queue_id limit 1) q
    left join lateral (
        select g.id from message_pump.consumer_group g where g.queue_id = q.id and g.name = _group limit 1
    ) g on true
    order by p.id
$$;

-- Complete messages, no two of them the same. `_which` is the index in `_parts` of each message's partition. Instead of
-- a lease id, one of `_leases` is enough; if the caller is lenient, it is enough that the message is handed out.
-- Codes: 0 acknowledged, 1 already acknowledged, 2 invalid lease, 3 not found; plus 16 if its lease ended.
create function message_pump.complete(
    _group text, _parts uuid[], _which integer[], _transactions text[], _lease_ids uuid[], _leases uuid[],
    _lenient boolean, _offset double precision
) returns table (codes integer[], queues text[], names text[]) language plpgsql as $$
declare
    _now timestamptz := message_pump.now_at(_offset);
    _ids bigint[] := array_fill(null::bigint, array[cardinality(_parts)]);
    _groups bigint[] := _ids;
    _claims bigint[] := _ids;
    _held uuid[] := array_fill(null::uuid, array[cardinality(_parts)]);
    _until timestamptz[] := array_fill(null::timestamptz, array[cardinality(_parts)]);
    _ordered boolean[] := array_fill(null::boolean, array[cardinality(_parts)]);
    _over boolean[] := array_fill(false, array[cardinality(_parts)]);
    _rows tid[] := array_fill(null::tid, array[cardinality(_parts)]);
    _mine uuid[] := array(select distinct a.l from unnest(_lease_ids || _leases) a (l) where a.l is not null);
    _tid tid;
    _p record;
    _s record;
    _c record;
    _off record;
begin
    queues := array_fill(null::text, array[cardinality(_parts)]);
    names := queues;
    for _p in select * from message_pump.found(_parts, _group) loop
        _ids[_p.o] := _p.id;
        _groups[_p.o] := _p.gid;
        _ordered[_p.o] := _p.ordered;
        queues[_p.o] := _p.queue;
        names[_p.o] := _p.name;
        continue when _p.gid is null;
        if _p.ordered then
            -- First by its lease: an old snapshot keeps every version of a row, and only few versions have this lease.
            select s.tid into _tid from (
                select s.ctid tid, s.group_id, s.part_id from message_pump.progress s where s.lease_id = any (_mine)
                offset 0
            ) s where s.group_id = _p.gid and s.part_id = _p.id;
            select s.ctid tid, s.claimed, s.lease_id, s.lease_until into _s from message_pump.progress s
                where s.ctid = _tid for no key update;
            if not found then
                select s.ctid tid, s.claimed, s.lease_id, s.lease_until into _s from message_pump.progress s
                    where s.group_id = _p.gid and s.part_id = _p.id for no key update;
            end if;
        else
            select null::tid tid, s.claimed, null::uuid lease_id, null::timestamptz lease_until into _s from message_pump.progress s
                where s.group_id = _p.gid and s.part_id = _p.id;
            perform 1
                from (
                    select m.seq from unnest(_which, _transactions) a (w, t)
                    cross join lateral (
                        select m.seq from message_pump.message m
                        where m.part_id = _p.id and m.transaction_id = a.t limit 1
                    ) m
                    where a.w = _p.o order by m.seq
                ) m
                cross join lateral (
                    select 1 from message_pump.delivery d
                    where d.group_id = _p.gid and d.part_id = _p.id and d.seq = m.seq limit 1 for update
                ) d;
        end if;
        _rows[_p.o] := _s.tid;
        _claims[_p.o] := _s.claimed;
        _held[_p.o] := _s.lease_id;
        _until[_p.o] := _s.lease_until;
    end loop;
    with item as materialized (
        select a.o::integer o, a.w, m.seq, d.tid, d.lease_id = _held[a.w] of_lease,
            case
                when m.seq is null then coalesce((
                    select 2 from message_pump.scheduled s -- nobody has it leased
                    where s.part_id = _ids[a.w] and s.transaction_id = a.t limit 1
                ), 3)
                when d.tid is null then case
                    when m.seq <= _claims[a.w] and x.dead is null then 1 else 2 end
                when d.lease_id is null then 2
                when a.l is null and _lenient then 0
                when coalesce(a.l = d.lease_id, d.lease_id = any (_leases), false) and (
                    case when _ordered[a.w] then d.lease_id = _held[a.w] and message_pump.lives(_until[a.w], _now)
                        else message_pump.lives(d.visible_at, _now) end
                ) then 0
                else 2
            end code
        from unnest(_which, _transactions, _lease_ids) with ordinality a (w, t, l, o)
        left join lateral (
            select m.seq from message_pump.message m
            where m.part_id = _ids[a.w] and m.transaction_id = a.t limit 1
        ) m on true
        left join lateral (
            select d.ctid tid, d.lease_id, d.visible_at from message_pump.delivery d
            where d.group_id = _groups[a.w] and d.part_id = _ids[a.w] and d.seq = m.seq limit 1
        ) d on true
        left join lateral (
            select true dead from message_pump.dead x
            where d.tid is null and x.part_id = _ids[a.w] and x.seq = m.seq and x.group_id = _groups[a.w] limit 1
        ) x on true
    )
    select array_agg(i.code order by i.o) codes, array_agg(i.tid) filter (where i.code = 0) tids,
        array_agg(i.w) filter (where i.code = 0) done,
        array_agg(coalesce(i.of_lease, false)) filter (where i.code = 0) of_lease
        into _c from item i;
    codes := coalesce(_c.codes, '{}');
    if _c.tids is not null then
        delete from message_pump.delivery d where d.ctid = any (_c.tids);
        for _off in
            select a.w, count(*)::integer n, (count(*) filter (where a.f))::integer f
            from unnest(_c.done, _c.of_lease) a (w, f) group by a.w
        loop
            if _ordered[_off.w] then
                _over[_off.w] := message_pump.count_off(
                    _groups[_off.w], _ids[_off.w], _off.f, _now, _off.n, _rows[_off.w]
                );
            end if;
        end loop;
        if true = any (_over) then
            codes := array(
                select a.c + case when a.c = 0 and _over[a.w] then 16 else 0 end
                from unnest(codes, _which) with ordinality a (c, w, o) order by a.o
            );
        end if;
    end if;
    return next;
end $$;

-- Settle messages one after the other: 'failed', 'retry', 'dlq', or 'completed' if a call settles a message twice.
-- Leases end after the last one. Codes besides those above: 4 failed and comes again, 5 failed and is a dead letter, 6
-- released.
create function message_pump.settle(
    _group text, _parts uuid[], _which integer[], _transactions text[], _lease_ids uuid[], _statuses text[],
    _delays double precision[], _errors text[], _reasons text[], _retries integer[], _leases uuid[],
    _lenient boolean, _offset double precision
) returns table (codes integer[], queues text[], names text[]) language plpgsql as $$
declare
    _now timestamptz := message_pump.now_at(_offset);
    _i integer;
    _p record;
    _s record;
    _m record;
    _d record;
    _q message_pump.queue;
    _ids bigint[] := array_fill(null::bigint, array[cardinality(_parts)]);
    _groups bigint[] := _ids;
    _ended boolean[] := array_fill(false, array[cardinality(_parts)]);
    _w integer;
    _code integer;
    _limit integer;
    _count integer;
    _until timestamptz;
begin
    codes := array_fill(3, array[cardinality(_which)]);
    queues := array_fill(null::text, array[cardinality(_parts)]);
    names := queues;
    for _p in select * from message_pump.found(_parts, _group) loop
        _ids[_p.o] := _p.id;
        _groups[_p.o] := _p.gid;
        queues[_p.o] := _p.queue;
        names[_p.o] := _p.name;
        if _p.ordered and _p.gid is not null then
            perform 1 from message_pump.progress s where s.group_id = _p.gid and s.part_id = _p.id for no key update;
        end if;
    end loop;
    for _i in 1 .. cardinality(_which) loop
        _w := _which[_i];
        continue when _ids[_w] is null;
        select * into _m from message_pump.place_of(_ids[_w], _transactions[_i]);
        continue when _m.id is null;
        codes[_i] := 2;
        continue when _m.seq is null or _groups[_w] is null;
        select q.* into _q from message_pump.queue q where q.name = queues[_w];
        select s.lease_id, s.lease_until, s.claimed into _s from message_pump.progress s
            where s.group_id = _groups[_w] and s.part_id = _ids[_w];
        select d.* into _d from message_pump.delivery d
            where d.group_id = _groups[_w] and d.part_id = _ids[_w] and d.seq = _m.seq for update;
        if not found then
            if _statuses[_i] = 'completed' and _m.seq <= _s.claimed and not exists (
                select 1 from message_pump.dead x
                where x.part_id = _ids[_w] and x.seq = _m.seq and x.group_id = _groups[_w]
            ) then
                codes[_i] := 1;
            end if;
            continue;
        end if;
        continue when _d.lease_id is null;
        _until := case when _q.ordered then
            case when _s.lease_id = _d.lease_id then _s.lease_until end else _d.visible_at end;
        continue when not (
            (_lease_ids[_i] is null and _lenient)
            or (coalesce(_lease_ids[_i] = _d.lease_id, _d.lease_id = any (_leases), false)
                and message_pump.lives(_until, _now))
        );
        _limit := message_pump.limit_of(_q, _d.retry_limit);
        _count := coalesce(_retries[_i], _d.retries + 1);
        _code := case
            when _statuses[_i] = 'completed' then 0
            when _statuses[_i] = 'retry' then 6
            when _statuses[_i] = 'dlq' then 5
            when _count + _d.crashes > _limit then 5
            else 4 end;
        if _code in (0, 5) then
            if _code = 0 then
                delete from message_pump.delivery d
                    where d.group_id = _groups[_w] and d.part_id = _ids[_w] and d.seq = _m.seq;
            else
                perform message_pump.bury(
                    _groups[_w], _ids[_w], _m.seq,
                    coalesce(
                        nullif(_reasons[_i], ''), case when _statuses[_i] = 'dlq' then 'dlq' else 'max_retries' end
                    ),
                    _errors[_i], _now, _retries => case when _statuses[_i] = 'failed' then _count end
                );
            end if;
            if _q.ordered and message_pump.count_off(
                _groups[_w], _ids[_w], (not _ended[_w] and coalesce(_s.lease_id = _d.lease_id, false))::integer, _now
            ) then
                _code := _code + 16;
            end if;
        else
            update message_pump.delivery d set
                lease_id = null, error = coalesce(_errors[_i], d.error),
                retries = case when _code = 4 then _count else d.retries end,
                visible_at = _now + make_interval(secs => coalesce(
                    _delays[_i], case when _code = 4 then _q.retry_delay else 0 end
                ))
                where d.group_id = _groups[_w] and d.part_id = _ids[_w] and d.seq = _m.seq;
            if _q.ordered and (_s.lease_id = _d.lease_id) is true then
                _ended[_w] := true;
            end if;
        end if;
        codes[_i] := _code;
    end loop;
    for _w in 1 .. cardinality(_parts) loop
        if _ended[_w] then
            perform message_pump.end_lease(_groups[_w], _ids[_w], _now);
        end if;
    end loop;
    for _i in 1 .. cardinality(_which) loop
        if codes[_i] in (0, 4, 5, 6) and _ended[_which[_i]] then
            codes[_i] := codes[_i] + 16;
        end if;
    end loop;
    return next;
end $$;

-- Extend a lease to end no earlier than this many seconds from now; null means its queue's lease time. Returns no row if
-- there is no such lease, null if it has expired.
create function message_pump.extend(_lease uuid, _seconds double precision, _offset double precision)
returns setof double precision language plpgsql as $$
declare
    _now timestamptz := message_pump.now_at(_offset);
    _group bigint;
    _ordered boolean;
    _until timestamptz;
begin
    select s.group_id into _group from message_pump.progress s where s.lease_id = _lease limit 1;
    if not found then
        select d.group_id into _group from message_pump.delivery d
            where d.lease_id = _lease and d.visible_at is not null limit 1;
    end if;
    select q.ordered, _now + make_interval(secs => least(coalesce(_seconds, q.lease_time), 604800))
        into _ordered, _until
        from (select g.queue_id from message_pump.consumer_group g where g.id = _group limit 1) g
        cross join lateral (select * from message_pump.queue q where q.id = g.queue_id limit 1) q;
    if not found then
        return;
    end if;
    if _ordered then
        -- Locked by a separate statement, so that the next statement sees changes that others made to the rows meanwhile.
        perform 1 from message_pump.progress s where s.lease_id = _lease order by s.part_id for no key update;
        update message_pump.progress s set
            lease_until = greatest(s.lease_until, _until), ready_at = greatest(s.lease_until, _until)
            where s.lease_id = _lease and message_pump.lives(s.lease_until, _now);
        select max(s.lease_until) into _until from message_pump.progress s
            where s.lease_id = _lease and message_pump.lives(s.lease_until, _now);
    else
        perform 1 from message_pump.delivery d where d.lease_id = _lease and d.visible_at is not null
            order by d.part_id, d.seq for update;
        update message_pump.delivery d set visible_at = greatest(d.visible_at, _until)
            where d.lease_id = _lease and d.visible_at is not null and message_pump.lives(d.visible_at, _now);
        select max(d.visible_at) into _until from message_pump.delivery d
            where d.lease_id = _lease and d.visible_at is not null and message_pump.lives(d.visible_at, _now);
    end if;
    return next date_part('epoch', _until);
end $$;
