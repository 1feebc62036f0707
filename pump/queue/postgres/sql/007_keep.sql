-- Work that becomes due with time: ending the longest waits, removing old messages. Locks are taken in the same order
-- as by pushes.

-- Make dead letters of a group's pending messages up to a place, unless the partition (or, in an unordered one, the
-- message) is leased. Looks at no more than `_most` redeliveries and `_most` new messages; returns the larger count.
create function message_pump.bury_old(
    _group bigint, _part bigint, _high bigint, _most integer, _ordered boolean, _reason text, _error text,
    _now timestamptz
) returns integer language plpgsql as $$
declare
    _s record;
    _seq bigint;
    _end bigint;
    _lease uuid;
    _fresh integer := 0;
    _buried integer := 0;
    _of_lease integer := 0;
begin
    if not exists (
        select 1 from message_pump.progress s where s.group_id = _group and s.part_id = _part and s.claimed < _high
    ) and not exists (
        select 1 from message_pump.delivery d
        where d.group_id = _group and d.part_id = _part and d.seq <= _high limit 1
    ) then
        return 0;
    end if;
    select s.claimed, s.lease_id, s.lease_until into _s from message_pump.progress s
        where s.group_id = _group and s.part_id = _part for no key update;
    if _ordered and message_pump.lives(_s.lease_until, _now) then
        return 0;
    end if;
    for _seq, _lease in
        select d.seq, d.lease_id from message_pump.delivery d
        where d.group_id = _group and d.part_id = _part and d.seq <= _high
            and (_ordered or d.lease_id is null or not message_pump.lives(d.visible_at, _now))
        order by d.seq limit _most for update skip locked
    loop
        perform message_pump.bury(_group, _part, _seq, _reason, _error, _now);
        _buried := _buried + 1;
        _of_lease := _of_lease + coalesce(_lease = _s.lease_id, false)::integer;
    end loop;
    if _ordered and _buried > 0 then
        update message_pump.progress s set
            open_rows = s.open_rows - _buried, ready_at = _now, lease_open = greatest(s.lease_open - _of_lease, 0),
            lease_id = case when s.lease_open > _of_lease then s.lease_id end,
            lease_until = case when s.lease_open > _of_lease then s.lease_until end
            where s.group_id = _group and s.part_id = _part;
    end if;
    if _high > _s.claimed then
        select count(*), max(m.seq) into _fresh, _end from (
            select m.seq from message_pump.message m
            where m.part_id = _part and m.seq > _s.claimed and m.seq <= _high order by m.seq limit _most
        ) m;
        if _fresh < _most then
            _end := _high;
        end if;
        for _seq in
            select m.seq from message_pump.message m
            where m.part_id = _part and m.seq > _s.claimed and m.seq <= _end and (
                select 1 from message_pump.passed x
                where x.group_id = _group and x.part_id = _part and x.seq = m.seq limit 1
            ) is null
            order by m.seq
        loop
            perform message_pump.bury(_group, _part, _seq, _reason, _error, _now);
        end loop;
        update message_pump.progress s set claimed = _end where s.group_id = _group and s.part_id = _part;
        delete from message_pump.passed x where x.group_id = _group and x.part_id = _part and x.seq <= _end;
    end if;
    return greatest(_buried, _fresh);
end $$;

-- Look at the next `_most` messages after a place, up to one that every group has claimed. Remove those of which no group
-- has a delivery, as all have settled them. Returns how many it saw, the last one of them, and how many it removed.
create function message_pump.sweep(
    _part bigint, _after bigint, _high bigint, _most integer, out seen integer, out last bigint, out gone integer
) language plpgsql as $$
declare
    _groups bigint[] := array(select s.group_id from message_pump.progress s where s.part_id = _part);
    _places bigint[];
    _transactions text[];
begin
    gone := 0;
    select count(*), max(m.seq) into seen, last from (
        select m.seq from message_pump.message m where m.part_id = _part and m.seq > _after and m.seq <= _high
        order by m.seq limit _most
    ) m;
    if seen = 0 then
        return;
    end if;
    with gone as (
        delete from message_pump.message m where m.part_id = _part and m.seq > _after and m.seq <= last and (
            select 1 from message_pump.delivery d
            where d.group_id = any (_groups) and d.part_id = _part and d.seq = m.seq limit 1
        ) is null
        returning m.seq, m.transaction_id
    )
    select array_agg(g.seq), array_agg(g.transaction_id) into _places, _transactions from gone g;
    if _places is not null then
        gone := cardinality(_places);
        perform message_pump.vacate(_part, _places);
        delete from message_pump.trace t where t.transaction_id = any (_transactions)
            and t.partition_uid = (select p.uid from message_pump.partition p where p.id = _part);
    end if;
end $$;

-- Remove from a partition messages that all groups have settled, up to a place. First it removes settled messages from
-- the beginning up to the first unsettled one. Then it looks at those after it: this second look continues where the last
-- call stopped, and rests for a minute once it has reached the end. So each call looks at no more than twice `_most`
-- messages, and messages that stay are looked at once a minute. Returns how many it saw; `_most` means that there may be
-- more.
create function message_pump.clean(_part bigint, _high bigint, _most integer, _now timestamptz) returns integer
language plpgsql as $$
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
        _p.swept > 0 or _p.swept_at is null or _p.swept_at not between _now - interval '1 minute' and _now
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
-- how many it looked at; `_most` means that there may be more.
create function message_pump.tend(_part bigint, _most integer, _offset double precision) returns integer
language plpgsql as $$
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
            _part, message_pump.last_before(_part, _now - make_interval(secs => _age)), _most, _now
        ));
    end if;
    return _dealt;
end $$;

-- Expire leases that were taken before the clock was put back.
create function message_pump.end_impossible_leases(_offset double precision) returns void language plpgsql as $$
declare
    _now timestamptz := message_pump.now_at(_offset);
begin
    update message_pump.progress s set ready_at = _now
        where s.lease_id is not null and s.lease_until > _now + interval '7 days';
    update message_pump.delivery d set visible_at = _now
        where d.lease_id is not null and d.visible_at > _now + interval '7 days';
end $$;

-- Every statement in these functions should look up rows by an index. Without statistics, or with misleading ones, the
-- planner may choose another plan, so these settings forbid that. Functions that are called only by other functions do
-- not get them, as changing settings at each call would cost time for each message.
do $do$
declare
    _function regprocedure;
begin
    for _function in
        select p.oid from pg_proc p join pg_language l on l.oid = p.prolang
        where p.pronamespace = 'message_pump'::regnamespace and l.lanname = 'plpgsql' and p.proname <> all (array[
            'wake', 'opened', 'assert_mode', 'bury', 'rest', 'openable', 'take_again', 'take_fresh', 'end_lease',
            'count_off', 'move', 'last_before', 'bury_old', 'sweep', 'clean', 'vacate', 'look_again'
        ])
    loop
        execute format(
            'alter function %s set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off '
            'set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan', _function
        );
    end loop;
end $do$;
