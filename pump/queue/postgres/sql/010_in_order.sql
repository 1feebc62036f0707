-- A consumer waits for another one only in the order in which all rows are locked: partitions by their ids, and a group's
-- row in a partition before its deliveries. Two consumers that had looked into different partitions could wait for each
-- other, or for an operator who deletes their group.

-- Pop redeliveries that are due, from any partition, then new messages. Each message has a lease of its own.
create or replace function message_pump.pop_unordered(
    _queue bigint, _group bigint, _partition text, _room integer, _parts integer, _lease uuid,
    _lease_time double precision, _limit integer, _bytes bigint, _offset double precision
) returns setof message_pump.taken language plpgsql as $$
declare
    _now timestamptz := message_pump.now_at(_offset);
    _q message_pump.queue := message_pump.opened(_queue, _group, false, _now);
    _until timestamptz := _now + make_interval(secs => least(coalesce(_lease_time, _q.lease_time), 604800));
    _ends double precision := date_part('epoch', _until);
    _spent integer := message_pump.limit_of(_q, _limit);
    _calm timestamptz := case when _q.window_buffer > 0
        then _now - make_interval(secs => _q.window_buffer) else 'infinity' end;
    _only bigint;
    _seen bigint[] := '{}';
    _tried bigint[] := '{}';
    _left bigint := _bytes;
    _taken message_pump.taken;
    _tid tid;
    _part bigint;
    _claimed bigint;
    _d record;
    _p record;
    _any boolean;
    _holds boolean := false;
    _fresh integer;
    _high bigint;
    _ready timestamptz;
begin
    select null::bigint id, '' uid, '' as name, null::timestamptz last_at into _p;
    if _partition is not null then
        select p.id into _only from message_pump.partition p where p.queue_id = _queue and p.name = _partition;
        if not found then
            return;
        end if;
    end if;
    loop
        _any := false;
        for _d in
            select d.part_id, d.seq, d.lease_id is not null crashed, d.retries + d.crashes + 1 spent, m.size
            from (
                select d.* from message_pump.delivery d
                where d.group_id = _group and d.visible_at <= _now and (_only is null or d.part_id = _only)
                    and (_q.window_buffer = 0 or exists (
                        select 1 from message_pump.partition p where p.id = d.part_id and p.last_at <= _calm
                    ))
                    and (cardinality(_seen) < _parts or d.part_id = any (_seen))
                order by d.visible_at, d.part_id, d.seq limit _room for no key update skip locked
            ) d
            cross join lateral (
                select octet_length(m.payload) size from message_pump.message m
                where m.part_id = d.part_id and m.seq = d.seq limit 1
            ) m
        loop
            _holds := true;
            if _d.crashed and _d.spent > _spent then
                perform message_pump.bury(
                    _group, _d.part_id, _d.seq, 'max_retries', 'the lease expired too often', _now, _crashes => 1
                );
                _any := true;
                continue;
            end if;
            if _d.size > _left and cardinality(_seen) > 0 then
                _left := -1;
                exit;
            end if;
            if not _d.part_id = any (_seen) then
                continue when cardinality(_seen) >= _parts;
                _seen := _seen || _d.part_id;
            end if;
            if _p.id is distinct from _d.part_id then
                select p.id, p.uid::text uid, p.name, p.last_at into _p
                    from message_pump.partition p where p.id = _d.part_id;
            end if;
            _taken := message_pump.take_again(
                _group, _d.part_id, _p.uid, _p.name, _d.seq, _lease, _until, _limit, _ends
            );
            return next _taken;
            _room := _room - 1;
            _left := _left - _d.size;
            _any := true;
        end loop;
        exit when not _any or _room < 1 or _left < 0;
    end loop;
    loop
        exit when _room < 1 or _left < 0;
        _part := null;
        if _only is not null then
            exit when _only = any (_tried);
            select s.ctid, s.part_id, s.claimed, s.ready_at into _tid, _part, _claimed, _ready
                from message_pump.progress s
                where s.group_id = _group and s.part_id = _only for no key update skip locked;
            if _part is null and not _holds then
                select s.ctid, s.part_id, s.claimed, s.ready_at into _tid, _part, _claimed, _ready
                    from message_pump.progress s
                    where s.group_id = _group and s.part_id = _only for no key update;
            end if;
        else
            select s.ctid, s.part_id, s.claimed, s.ready_at into _tid, _part, _claimed, _ready
                from message_pump.progress s
                where s.group_id = _group and s.ready_at <= _now and not s.part_id = any (_tried)
                    and (cardinality(_seen) < _parts or s.part_id = any (_seen))
                order by s.ready_at limit 1 for no key update skip locked;
            if _part is null and cardinality(_seen) = 0 and not _holds then
                -- Another consumer is taking from this partition now, and leaves the rest for others.
                select s.ctid, s.part_id, s.claimed, s.ready_at into _tid, _part, _claimed, _ready
                    from message_pump.progress s
                    where s.group_id = _group and s.ready_at <= _now + interval '1 second'
                        and s.part_id > all (_tried)
                    order by s.ready_at limit 1 for no key update;
            end if;
        end if;
        exit when _part is null;
        perform message_pump.assert_mode(_queue, false);
        _tried := _tried || _part;
        select p.id, p.uid::text uid, p.name, p.last_at into _p from message_pump.partition p where p.id = _part;
        if _p.last_at > _calm then
            update message_pump.progress s set ready_at = _p.last_at + make_interval(secs => _q.window_buffer)
                where s.ctid = _tid;
            continue;
        end if;
        return query select * from message_pump.take_fresh(
            _group, _part, _p.uid, _p.name, _claimed, _room, _left, cardinality(_seen) = 0, _lease, _until, _limit,
            case when _q.delayed_processing > 0
                then _now - make_interval(secs => _q.delayed_processing) else 'infinity' end,
            _ends
        );
        get diagnostics _fresh = row_count;
        if _fresh > 0 then
            select max(d.seq), _left - sum(m.size) into _high, _left
                from (
                    select d.seq from message_pump.delivery d
                    where d.group_id = _group and d.part_id = _part and d.seq > _claimed order by d.seq limit _fresh
                ) d
                cross join lateral (
                    select octet_length(m.payload) size from message_pump.message m
                    where m.part_id = _part and m.seq = d.seq limit 1
                ) m;
            update message_pump.progress s set claimed = _high, ready_at = _now, consumed_at = _now
                where s.ctid = _tid
                returning s.ctid into _tid;
            if not _part = any (_seen) then
                _seen := _seen || _part;
            end if;
        end if;
        if _fresh < _room then
            perform message_pump.rest(
                _tid, _part, _q.delayed_processing, _now, case when _fresh = 0 and cardinality(_seen) > 0 then _ready end
            );
        end if;
        _room := _room - _fresh;
    end loop;
end $$;

-- As for the functions before: see the end of 007.
alter function message_pump.pop_unordered(
    bigint, bigint, text, integer, integer, uuid, double precision, integer, bigint, double precision
)
    set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_bitmapscan = off
    set jit = off set plan_cache_mode = force_generic_plan;
