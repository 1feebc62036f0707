-- Settled messages behind one that is not settled go as soon as others: how long the second look rests is given by its
-- caller. Processes of the version before rest for a minute, as they did.

-- Remove from a partition messages that all groups have settled, up to a place. First it removes settled messages from
-- the beginning up to the first unsettled one. Then it looks at those after it. This second look continues where the
-- last call stopped; once it has reached the end, it rests for `_rest` seconds, or longer if it had many messages to look
-- at. So each call looks at no more than twice `_most` messages, and those that stay cost little. Returns how many it
-- saw; `_most` means that there may be more.
create function message_pump.clean(
    _part bigint, _high bigint, _most integer, _rest double precision, _now timestamptz
) returns integer language plpgsql as $$
declare
    _p record;
    _claimed bigint;
    _settled bigint;
    _first bigint;
    _front record;
    _beyond record;
    _seen integer;
    _emptied bigint;
begin
    select p.first_seq, p.swept, p.swept_at into _p from message_pump.partition p where p.id = _part for no key update;
    select min(s.claimed), min(coalesce(d.seq - 1, s.claimed)) into _claimed, _settled
        from message_pump.progress s
        left join lateral (
            select d.seq from message_pump.delivery d where d.group_id = s.group_id and d.part_id = _part
            order by d.seq limit 1
        ) d on true
        where s.part_id = _part;
    if _claimed is null then
        return 0;
    end if;
    select * into _front from message_pump.sweep(_part, _p.first_seq - 1, least(_high, _settled), _most);
    _seen := _front.seen;
    _emptied := _front.gone;
    if _seen < _most and least(_high, _claimed) > _settled and (
        _p.swept > 0 or _p.swept_at is null or _p.swept_at > _now
        or _p.swept_at <= _now - make_interval(secs => greatest(_rest, (least(_high, _claimed) - _settled) / 20000.0))
    ) then
        select * into _beyond
            from message_pump.sweep(_part, greatest(_p.swept, _settled), least(_high, _claimed), _most);
        _seen := _beyond.seen;
        _emptied := _emptied + _beyond.gone;
        update message_pump.partition p set
            swept = case when _seen < _most then 0 else _beyond.last end,
            swept_at = case when _seen < _most then _now else p.swept_at end
            where p.id = _part;
    end if;
    -- Empty places before the first message are deleted once all groups have passed them.
    select r.last + 1 into _first
        from (
            select r.seq, r.last from message_pump.removed r
            where r.part_id = _part and r.last >= _p.first_seq order by r.last limit 1
        ) r
        where r.seq <= _p.first_seq and r.last <= _claimed;
    if found then
        update message_pump.partition p set first_seq = _first where p.id = _part;
    end if;
    with gone as (
        delete from message_pump.removed r where r.part_id = _part and r.last < coalesce(_first, _p.first_seq)
            and r.last <= _claimed
        returning r.last - r.seq + 1 n
    )
    select _emptied - coalesce(sum(g.n), 0) into _emptied from gone g;
    -- Keep the count of completed messages correct: see `completed`.
    if _emptied <> 0 then
        -- Locked by a separate statement, so that the next statement sees changes that others made to the rows meanwhile.
        perform 1 from message_pump.progress s where s.part_id = _part order by s.group_id for no key update;
        update message_pump.progress s set base = s.base - _emptied where s.part_id = _part;
    end if;
    return _seen;
end $$;

-- Apply the maximum waiting time and retention to one partition, to at most `_most` of its messages at a time. Returns
-- how many it looked at; `_most` means that there may be more. `_rest` is for `clean`.
create function message_pump.tend(
    _part bigint, _most integer, _rest double precision, _offset double precision
) returns integer language plpgsql as $$
declare
    _now timestamptz := message_pump.now_at(_offset);
    _q message_pump.queue;
    _age double precision;
    _old record;
    _dealt integer := 0;
begin
    select q.* into _q
        from (select p.queue_id from message_pump.partition p where p.id = _part limit 1) p
        cross join lateral (select * from message_pump.queue q where q.id = p.queue_id limit 1) q;
    if not found then
        return 0;
    end if;
    -- Dead letters need a group, so a message that nobody consumes becomes one of the default group.
    if (_q.max_wait_time > 0 or (_q.retention_enabled and _q.retention > 0))
        and not exists (select 1 from message_pump.consumer_group g where g.queue_id = _q.id) then
        perform message_pump.subscribe(_q.id, '__QUEUE_MODE__', 'all', null, _now);
    end if;
    _age := case when _q.retention_enabled then least(nullif(_q.retention, 0), nullif(_q.completed_retention, 0)) end;
    if _age is not null then
        -- Otherwise a group created meanwhile could start at messages that are being removed.
        perform 1 from message_pump.partition p where p.id = _part for no key update;
    end if;
    for _old in
        select s.group_id, a.seconds, a.reason, a.error
        from (values
            (1, _q.max_wait_time, 'max_wait_time', 'nobody settled it in time'),
            (2, _q.retention * _q.retention_enabled::integer, 'retention',
                'it was kept as long as the queue keeps messages')
        ) a (n, seconds, reason, error)
        cross join lateral (select s.group_id from message_pump.progress s where s.part_id = _part) s
        where a.seconds > 0 order by a.n, s.group_id
    loop
        _dealt := greatest(_dealt, message_pump.bury_old(
            _old.group_id, _part, message_pump.last_before(_part, _now - make_interval(secs => _old.seconds)), _most,
            coalesce(_q.ordered, true), _old.reason, _old.error, _now
        ));
    end loop;
    if _age is not null then
        _dealt := greatest(_dealt, message_pump.clean(
            _part, message_pump.last_before(_part, _now - make_interval(secs => _age)), _most, _rest, _now
        ));
    end if;
    return _dealt;
end $$;

create or replace function message_pump.clean(_part bigint, _high bigint, _most integer, _now timestamptz)
returns integer language sql as $$
    select message_pump.clean(_part, _high, _most, 60, _now)
$$;

create or replace function message_pump.tend(_part bigint, _most integer, _offset double precision) returns integer
language sql as $$
    select message_pump.tend(_part, _most, 60, _offset)
$$;

-- As for the functions before: see the end of 007.
alter function message_pump.tend(bigint, integer, double precision, double precision)
    set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_bitmapscan = off
    set jit = off set plan_cache_mode = force_generic_plan;
