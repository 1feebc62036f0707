-- Handing out messages. `claimed` grows only together with the delivery rows of the messages that it passes.

-- The queue of a group, after giving its due messages their places; or 'MP001': the caller's cache is out of date.
create function message_pump.opened(_queue bigint, _group bigint, _ordered boolean, _now timestamptz)
returns message_pump.queue language plpgsql as $$
declare
    _found message_pump.queue;
begin
    select q.* into _found
        from (select g.queue_id from message_pump.consumer_group g where g.id = _group limit 1) g
        cross join lateral (select * from message_pump.queue q where q.id = g.queue_id limit 1) q
        where q.id = _queue and q.ordered = _ordered;
    if not found then
        raise exception 'what the caller knows of the queue is out of date' using errcode = 'MP001';
    end if;
    perform message_pump.promote(_queue, _now, false);
    return _found;
end $$;

-- Raises 'MP001' if the queue's mode was changed since it was opened. While the group's row in a partition is locked,
-- the mode cannot change: a change locks all of these rows first. A message leased in the wrong mode would never come
-- again.
create function message_pump.assert_mode(_queue bigint, _ordered boolean) returns void language plpgsql as $$
begin
    perform 1 from message_pump.queue q where q.id = _queue and q.ordered = _ordered;
    if not found then
        raise exception 'what the caller knows of the queue is out of date' using errcode = 'MP001';
    end if;
end $$;

-- Whether a lease with that end is live. If the end is too far off, the clock was put back since: not live.
create function message_pump.lives(_until timestamptz, _now timestamptz) returns boolean
language sql stable as $$ select coalesce(_until > _now and _until <= _now + interval '7 days', false) $$;

-- The number of retries and crashes after which a message of this queue is a dead letter; null means never.
create function message_pump.limit_of(_queue message_pump.queue, _limit integer) returns integer
language sql immutable as $$
    select case
        when not (_queue.dead_letter_queue and _queue.dead_letter_after_max_retries) then null
        when _limit = -1 then _queue.retry_limit
        else _limit
    end
$$;

-- Make a message a dead letter and delete its delivery, if it has one; a scheduled message is named by its id.
-- `_crashes` are added to those of the delivery; `_retries` replace its retries.
create function message_pump.bury(
    _group bigint, _part bigint, _seq bigint, _reason text, _error text, _now timestamptz, _waiting uuid default null,
    _crashes integer default 0, _retries integer default null
) returns void language plpgsql as $$
declare
    _old record;
begin
    delete from message_pump.delivery d where d.group_id = _group and d.part_id = _part and d.seq = _seq
        returning d.* into _old;
    insert into message_pump.dead as x (
        group_id, part_id, seq, message_id, transaction_id, trace_id, partition_uid, partition_name, queue_name,
        group_name, sealed, payload, producer, reason, error, retries, crashes, deliveries, created_at, moved_at
    )
        select g.id, m.part_id, m.seq, m.id, m.transaction_id, m.trace_id, p.uid, p.name, q.name, g.name, m.sealed,
            m.payload, m.producer, _reason, coalesce(_error, _old.error, ''),
            coalesce(_retries, _old.retries, 0), coalesce(_old.crashes, 0) + _crashes, coalesce(_old.deliveries, 0), m.at, _now
        from (
            select m.part_id, m.seq, m.id, m.transaction_id, m.trace_id, m.sealed, m.payload, m.producer, m.at
            from message_pump.message m where m.part_id = _part and m.seq = _seq
            union all
            select s.part_id, null, s.id, s.transaction_id, s.trace_id, s.sealed, s.payload, s.producer, s.pushed_at
            from message_pump.scheduled s where s.id = _waiting
        ) m
        cross join lateral (select * from message_pump.partition p where p.id = _part limit 1) p
        cross join lateral (select * from message_pump.queue q where q.id = p.queue_id limit 1) q
        cross join lateral (select * from message_pump.consumer_group g where g.id = _group limit 1) g
        on conflict (message_id, group_name) do update set
            group_id = excluded.group_id, part_id = excluded.part_id, seq = excluded.seq, reason = excluded.reason,
            error = excluded.error, retries = excluded.retries, crashes = excluded.crashes,
            deliveries = excluded.deliveries, moved_at = excluded.moved_at, redriven_at = null;
end $$;

-- Store when to look again at a partition that had nothing new to hand out; `_tid` is the group's row there. `ready_at`
-- becomes 'infinity' only while no push can be in progress, so that no wake-up is missed; otherwise a consumer looks
-- again soon. A message that did not fit into the reply keeps its turn, else other messages could hold it back for ever:
-- if there is such a message and `_turn` is not null, `_turn` is when to look again. Returns whether this is the case.
create function message_pump.rest(
    _tid tid, _part bigint, _delay double precision, _now timestamptz, _turn timestamptz
) returns boolean language plpgsql as $$
declare
    _group bigint;
    _claimed bigint;
    _last bigint;
    _next timestamptz;
    _keeps boolean;
begin
    select p.last_seq into _last from message_pump.partition p where p.id = _part for no key update skip locked;
    if not found then
        update message_pump.progress g set ready_at = _now + interval '5 milliseconds' where g.ctid = _tid;
        return false;
    end if;
    select g.group_id, g.claimed into _group, _claimed from message_pump.progress g where g.ctid = _tid;
    if _claimed < _last then
        select m.at + make_interval(secs => _delay) into _next
            from message_pump.message m
            where m.part_id = _part and m.seq > _claimed and (
                select 1 from message_pump.passed x
                where x.group_id = _group and x.part_id = _part and x.seq = m.seq limit 1
            ) is null
            order by m.seq limit 1;
        if _next is null then
            delete from message_pump.passed x where x.group_id = _group and x.part_id = _part and x.seq <= _last;
        end if;
    end if;
    _keeps := coalesce(_turn is not null and _next <= _now + interval '1 millisecond', false);
    -- If `_next` is null, all other messages were removed or settled ahead: there is nothing to hand out.
    update message_pump.progress g set
        ready_at = case when _next is null then 'infinity'
            when _keeps then least(_turn, _now + interval '1 millisecond')
            else greatest(_next, _now + interval '1 millisecond') end,
        claimed = case when _next is null then _last else g.claimed end
        where g.ctid = _tid;
    return _keeps;
end $$;

create type message_pump.taken as (
    part_uid text, part_name text, seq bigint, id text, transaction_id text, trace_id text, producer text,
    sealed boolean, payload bytea, at double precision, deliveries integer, retries integer, crashes integer,
    until double precision
);

-- True if a payload was sealed with one of those keys; else raises 'MP003', which rolls back the whole call, so that
-- nothing is counted.
create function message_pump.openable(_payload bytea, _keys bytea[]) returns boolean language plpgsql as $$
begin
    if substring(_payload from 2 for get_byte(_payload, 0)) = any (_keys) then
        return true;
    end if;
    raise exception 'a message is sealed with a key that is not here' using errcode = 'MP003';
end $$;

-- Redeliver one message.
create function message_pump.take_again(
    _group bigint, _part bigint, _uid text, _name text, _seq bigint, _lease uuid, _visible timestamptz,
    _limit integer, _until double precision
) returns message_pump.taken language plpgsql as $$
declare
    _row record;
    _result message_pump.taken;
begin
    update message_pump.delivery d set
        crashes = d.crashes + (d.lease_id is not null)::integer, deliveries = d.deliveries + 1, lease_id = _lease,
        visible_at = _visible, retry_limit = _limit
        where d.group_id = _group and d.part_id = _part and d.seq = _seq
        returning d.deliveries, d.retries, d.crashes into _row;
    select _uid, _name, m.seq, m.id::text, m.transaction_id, m.trace_id::text, m.producer, m.sealed, m.payload,
        date_part('epoch', m.at), _row.deliveries, _row.retries, _row.crashes, _until into _result
        from message_pump.message m where m.part_id = _part and m.seq = _seq;
    return _result;
end $$;

-- Hand out new messages of the group, after `_claimed`.
create function message_pump.take_fresh(
    _group bigint, _part bigint, _uid text, _name text, _claimed bigint, _room integer, _bytes bigint, _first boolean, _lease uuid,
    _visible timestamptz, _limit integer, _old_enough timestamptz, _until double precision
) returns setof message_pump.taken language plpgsql as $$
declare
    _passes boolean := exists (
        select 1 from message_pump.passed x where x.group_id = _group and x.part_id = _part and x.seq > _claimed limit 1
    );
begin
    return query
    with fresh as materialized (
        select * from (
            select m.*, row_number() over ordered n, sum(octet_length(m.payload)) over ordered size
            from message_pump.message m
            where m.part_id = _part and m.seq > _claimed and (not _passes or (
                select 1 from message_pump.passed x
                where x.group_id = _group and x.part_id = _part and x.seq = m.seq limit 1
            ) is null)
            window ordered as (order by m.seq rows unbounded preceding)
            order by m.seq limit _room
        ) m
        where m.at <= _old_enough and (m.size <= _bytes or (m.n = 1 and _first))
    ), handed as (
        insert into message_pump.delivery (group_id, part_id, seq, lease_id, visible_at, retry_limit)
            select _group, _part, m.seq, _lease, _visible, _limit from fresh m
    )
    select _uid, _name, m.seq, m.id::text, m.transaction_id, m.trace_id::text, m.producer, m.sealed, m.payload,
        date_part('epoch', m.at), 1, 0, 0, _until
    from fresh m order by m.seq;
end $$;

-- Pop from the partitions that have waited longest, or from one. Each partition is leased as a whole.
create function message_pump.pop_ordered(
    _queue bigint, _group bigint, _partition text, _room integer, _parts integer, _lease uuid,
    _lease_time double precision, _limit integer, _bytes bigint, _offset double precision
) returns setof message_pump.taken language plpgsql as $$
declare
    _now timestamptz := message_pump.now_at(_offset);
    _q message_pump.queue := message_pump.opened(_queue, _group, true, _now);
    _until timestamptz := _now + make_interval(secs => least(coalesce(_lease_time, _q.lease_time), 604800));
    _ends double precision := date_part('epoch', _until);
    _spent integer := message_pump.limit_of(_q, _limit);
    _round integer := _parts;
    _leased integer := 0;
    _left bigint := _bytes;
    _candidates tid[];
    _tid tid;
    _part bigint;
    _p record;
    _d record;
    _taken message_pump.taken;
    _n integer;
    _fresh integer;
    _open integer;
    _floor bigint;
    _high bigint;
    _blocked timestamptz;
begin
    loop
        if _partition is not null then
            _candidates := array(
                select s.tid
                from (
                    select p.id from message_pump.partition p
                    where p.queue_id = _queue and p.name = _partition limit 1
                ) p
                cross join lateral (
                    select s.ctid tid from message_pump.progress s
                    where s.group_id = _group and s.part_id = p.id and not message_pump.lives(s.lease_until, _now)
                    limit 1 for no key update skip locked
                ) s
            );
        else
            _candidates := array(
                select s.ctid from message_pump.progress s where s.group_id = _group and s.ready_at <= _now
                order by s.ready_at limit _round for no key update skip locked
            );
        end if;
        if cardinality(_candidates) > 0 then
            perform message_pump.assert_mode(_queue, true);
        end if;
        foreach _tid in array _candidates loop
            exit when _room < 1 or _leased >= _parts or _left < 0;
            select s.part_id, s.claimed, s.floor, s.open_rows, s.lease_id, s.ready_at, p.last_at, p.uid::text uid,
                p.name into _p
                from message_pump.progress s
                cross join lateral (select * from message_pump.partition p where p.id = s.part_id limit 1) p
                where s.ctid = _tid;
            _part := _p.part_id;
            _n := 0;
            _fresh := 0;
            _open := _p.open_rows;
            _floor := null;
            _blocked := null;
            if _q.window_buffer > 0 and _p.last_at + make_interval(secs => _q.window_buffer) > _now then
                update message_pump.progress s set ready_at = _p.last_at + make_interval(secs => _q.window_buffer)
                    where s.ctid = _tid;
                continue;
            end if;
            if _open > 0 then
                for _d in
                    select d.seq, d.lease_id is not null crashed, d.retries + d.crashes + 1 spent, d.visible_at,
                        m.size
                    from message_pump.delivery d
                    cross join lateral (
                        select octet_length(m.payload) size from message_pump.message m
                        where m.part_id = _part and m.seq = d.seq limit 1
                    ) m
                    where d.group_id = _group and d.part_id = _part and d.seq >= _p.floor
                    order by d.seq
                loop
                    if _d.crashed and _d.spent > _spent then
                        perform message_pump.bury(
                            _group, _part, _d.seq, 'max_retries', 'the lease expired too often', _now, _crashes => 1
                        );
                        _open := _open - 1;
                        continue;
                    end if;
                    _floor := coalesce(_floor, _d.seq);
                    if _d.visible_at > _now then
                        _blocked := _d.visible_at;
                        exit;
                    end if;
                    if _n >= _room or (_d.size > _left and (_n > 0 or _leased > 0)) then
                        _blocked := _now;
                        _left := case when _n >= _room then _left else -1 end;
                        exit;
                    end if;
                    _taken := message_pump.take_again(
                        _group, _part, _p.uid, _p.name, _d.seq, _lease, null, _limit, _ends
                    );
                    return next _taken;
                    _n := _n + 1;
                    _left := _left - _d.size;
                end loop;
            end if;
            if _blocked is null and _n < _room then
                return query select * from message_pump.take_fresh(
                    _group, _part, _p.uid, _p.name, _p.claimed, _room - _n, _left, _n = 0 and _leased = 0, _lease, null, _limit,
                    case when _q.delayed_processing > 0
                        then _now - make_interval(secs => _q.delayed_processing) else 'infinity' end,
                    _ends
                );
                get diagnostics _fresh = row_count;
            end if;
            if _n + _fresh > 0 then
                update message_pump.progress s set
                    lease_id = _lease, lease_until = _until, ready_at = _until, lease_open = _n + _fresh,
                    open_rows = _open + _fresh, consumed_at = _now, floor = coalesce(_floor, s.claimed + 1),
                    claimed = case when _fresh = 0 then s.claimed else (
                        select d.seq from message_pump.delivery d
                        where d.group_id = _group and d.part_id = _part order by d.seq desc limit 1
                    ) end
                    where s.ctid = _tid
                    returning s.claimed into _high;
                _leased := _leased + 1;
                _room := _room - _n - _fresh;
                if _parts > 1 and _fresh > 0 then
                    _left := _left - (
                        select sum(octet_length(m.payload)) from message_pump.message m
                        where m.part_id = _part and m.seq > _p.claimed and m.seq <= _high
                    );
                end if;
            else
                if _blocked is not null or _p.lease_id is not null or _open <> _p.open_rows then
                    update message_pump.progress s set
                        lease_id = null, lease_until = null, lease_open = 0, open_rows = _open,
                        floor = coalesce(_floor, s.claimed + 1),
                        ready_at = coalesce(_blocked, s.ready_at)
                        where s.ctid = _tid
                        returning s.ctid into _tid;
                end if;
                if _blocked is null and message_pump.rest(
                    _tid, _part, _q.delayed_processing, _now, case when _leased > 0 then _p.ready_at end
                ) then
                    _left := -1;
                end if;
            end if;
        end loop;
        exit when _partition is not null or _room < 1 or _leased >= _parts or _left < 0
            or cardinality(_candidates) = 0;
        _round := least(_round * 4, 256);
    end loop;
end $$;

-- Pop redeliveries that are due, from any partition, then new messages. Each message has a lease of its own.
create function message_pump.pop_unordered(
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
                where s.group_id = _group and s.part_id = _only for no key update;
        else
            select s.ctid, s.part_id, s.claimed, s.ready_at into _tid, _part, _claimed, _ready
                from message_pump.progress s
                where s.group_id = _group and s.ready_at <= _now and not s.part_id = any (_tried)
                    and (cardinality(_seen) < _parts or s.part_id = any (_seen))
                order by s.ready_at limit 1 for no key update skip locked;
            if _part is null and cardinality(_seen) = 0 then
                -- Another consumer is taking from this partition now, and leaves the rest for others.
                select s.ctid, s.part_id, s.claimed, s.ready_at into _tid, _part, _claimed, _ready
                    from message_pump.progress s
                    where s.group_id = _group and s.ready_at <= _now + interval '1 second'
                        and not s.part_id = any (_tried)
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

-- Why there was nothing, and the seconds until a delay or a lease ends and something is ready.
create function message_pump.why_empty(_queue bigint, _group bigint, _partition text, _offset double precision)
returns table (why text, due_in double precision) language plpgsql as $$
declare
    _now timestamptz := message_pump.now_at(_offset);
    _due timestamptz;
begin
    why := 'no_available_partition';
    if _partition is not null then
        select case
            when q.ordered and message_pump.lives(s.lease_until, _now) then 'lease_held'
            when q.window_buffer > 0 and p.last_at + make_interval(secs => q.window_buffer) > _now then 'window_buffer'
            else why end
            into why
            from (select * from message_pump.queue q where q.id = _queue limit 1) q
            cross join lateral (
                select * from message_pump.partition p where p.queue_id = q.id and p.name = _partition limit 1
            ) p
            cross join lateral (
                select * from message_pump.progress s where s.group_id = _group and s.part_id = p.id limit 1
            ) s;
        if not found then
            why := 'partition_not_found';
        end if;
    end if;
    _due := least(
        (select s.ready_at from message_pump.progress s where s.group_id = _group and s.ready_at < 'infinity'
            order by s.ready_at limit 1),
        (select d.visible_at from message_pump.delivery d
            where d.group_id = _group and d.visible_at is not null
                and exists (select 1 from message_pump.queue q where q.id = _queue and not q.ordered)
            order by d.visible_at limit 1),
        (select s.due_at from message_pump.scheduled s where s.queue_id = _queue order by s.due_at limit 1)
    );
    due_in := case when _due is not null then greatest(date_part('epoch', _due - _now), 0.001) end;
    return next;
end $$;
