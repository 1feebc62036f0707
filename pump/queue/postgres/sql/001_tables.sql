-- The tables of the queue. The state of a message for a group is computed from them, never stored. A message above
-- `claimed` is pending, unless the group has settled it ahead (`passed`). A message with a delivery is leased while its
-- lease is live, else pending. Up to `claimed` and without a delivery, it is dead if a dead letter has its place, else
-- completed.
-- `message_pump` stands for the schema, whatever its name is.

create table message_pump.schema_version (
    number integer primary key, digest text, applied_at timestamptz not null default clock_timestamp()
);

create table message_pump.queue (
    id bigint generated always as identity primary key,
    uid uuid not null unique default gen_random_uuid(),
    name text collate "C" not null unique,
    namespace text not null,
    task text not null,
    created_at timestamptz not null,
    partitions integer not null default 0,
    ordered boolean, -- null until the first consumer
    lease_time double precision not null default 300,
    retry_limit integer default 3,
    retry_delay double precision not null default 1,
    max_size bigint not null default 0,
    ttl double precision not null default 3600,
    priority integer not null default 0,
    delayed_processing double precision not null default 0,
    window_buffer double precision not null default 0,
    dead_letter_queue boolean not null default true,
    dead_letter_after_max_retries boolean not null default true,
    max_wait_time double precision not null default 0,
    retention_enabled boolean not null default false,
    retention double precision not null default 0,
    completed_retention double precision not null default 0,
    encryption boolean not null default false
);

-- There is no index on the columns that a push changes, and free space on each page: so a push rewrites one page and no
-- index.
create table message_pump.partition (
    id bigint generated always as identity primary key,
    uid uuid not null unique default gen_random_uuid(),
    queue_id bigint not null,
    name text collate "C" not null,
    created_at timestamptz not null,
    first_seq bigint not null default 1,
    last_seq bigint not null default 0,
    last_at timestamptz not null,
    swept bigint not null default 0, -- how far retention has looked after the first message that is not settled
    swept_at timestamptz, -- when it last reached the end
    unique (queue_id, name)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

create table message_pump.consumer_group (
    id bigint generated always as identity primary key,
    queue_id bigint not null,
    name text collate "C" not null,
    subscription text not null,
    subscribed_from timestamptz,
    created_at timestamptz not null,
    unique (queue_id, name)
);
create index consumer_group_name on message_pump.consumer_group (name);

create table message_pump.message (
    part_id bigint not null,
    seq bigint not null,
    at timestamptz not null,
    id uuid not null,
    trace_id uuid,
    transaction_id text collate "C" not null,
    producer text,
    sealed boolean not null,
    payload bytea not null,
    primary key (part_id, seq),
    unique (part_id, transaction_id)
);

-- Messages that are not due yet have no place in their partition.
create table message_pump.scheduled (
    id uuid primary key,
    part_id bigint not null,
    queue_id bigint not null,
    due_at timestamptz not null,
    pushed_at timestamptz not null,
    ordinal bigint generated always as identity,
    trace_id uuid,
    transaction_id text collate "C" not null,
    producer text,
    sealed boolean not null,
    payload bytea not null,
    unique (part_id, transaction_id)
);
create index scheduled_due on message_pump.scheduled (queue_id, due_at, ordinal);

-- `ready_at` is when a consumer should look at the partition next: at once, when its lease ends, when its first message
-- is due, or 'infinity' if there is nothing to hand out before a push. Consumers take partitions in the order of
-- `ready_at`.
create table message_pump.progress (
    group_id bigint not null,
    part_id bigint not null,
    claimed bigint not null, -- the highest sequence that was handed out
    floor bigint not null default 0, -- no delivery is below it
    base bigint not null, -- how many up to `claimed` were skipped, not completed
    ready_at timestamptz not null default 'infinity',
    lease_id uuid,
    lease_until timestamptz,
    lease_open integer not null default 0, -- messages of the lease that are not settled
    open_rows integer not null default 0, -- deliveries of an ordered partition
    consumed_at timestamptz
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
-- There is only one row for each group and partition, because creating either locks their queue. The index is not unique:
-- a unique index would check every version of the row at each change, and an old snapshot keeps all versions.
create index progress_place on message_pump.progress (group_id, part_id);
create index progress_ready on message_pump.progress (group_id, ready_at) where ready_at < 'infinity';
create index progress_part on message_pump.progress (part_id);
create index progress_lease on message_pump.progress (lease_id) where lease_id is not null;

-- One row for each message that was handed out and is not settled. In an ordered partition, `visible_at` is set only
-- while the message waits; in an unordered one it is always set, and is the end of the lease.
create table message_pump.delivery (
    group_id bigint not null,
    part_id bigint not null,
    seq bigint not null,
    lease_id uuid,
    visible_at timestamptz,
    deliveries integer not null default 1,
    retries integer not null default 0,
    crashes integer not null default 0,
    retry_limit integer default -1, -- given by its consumer; -1 means the queue's limit, null no limit
    error text,
    primary key (group_id, part_id, seq)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);
create index delivery_due on message_pump.delivery (group_id, visible_at, part_id, seq) where visible_at is not null;
create index delivery_lease on message_pump.delivery (lease_id) where lease_id is not null and visible_at is not null;

-- A dead letter outlives its message, queue and group; `seq` is null once it does not affect a message's state.
create table message_pump.dead (
    id uuid primary key default gen_random_uuid(),
    group_id bigint not null,
    part_id bigint not null,
    seq bigint,
    message_id uuid not null,
    transaction_id text collate "C" not null,
    trace_id uuid,
    partition_uid uuid not null,
    partition_name text collate "C" not null,
    queue_name text collate "C" not null,
    group_name text collate "C" not null,
    sealed boolean not null,
    payload bytea not null,
    producer text,
    reason text not null,
    error text not null,
    retries integer not null,
    crashes integer not null,
    deliveries integer not null,
    created_at timestamptz not null,
    moved_at timestamptz not null,
    redriven_at timestamptz,
    unique (message_id, group_name)
);
create index dead_place on message_pump.dead (part_id, seq, group_id) where seq is not null;
create index dead_moved on message_pump.dead (moved_at, id);
create index dead_queue on message_pump.dead (queue_name, moved_at, id);

-- Ranges of places, from `seq` to `last`, whose messages were removed from among others. Counts by sequence subtract
-- them. No two ranges touch, so there is at most one more range than there are messages.
create table message_pump.removed (
    part_id bigint not null,
    seq bigint not null,
    last bigint not null,
    primary key (part_id, last)
);

-- Messages that a group settled before they were handed out, by an operator's call. `seq` is null while the message is
-- scheduled; the row has no meaning once the group's claim has passed it.
create table message_pump.passed (
    message_id uuid not null,
    group_id bigint not null,
    part_id bigint not null,
    seq bigint,
    dead boolean not null,
    primary key (message_id, group_id)
);
create index passed_place on message_pump.passed (group_id, part_id, seq);

create table message_pump.trace (
    id uuid primary key default gen_random_uuid(),
    ordinal bigint generated always as identity unique,
    partition_uid uuid not null,
    transaction_id text collate "C" not null,
    group_name text,
    event text not null,
    data bytea not null,
    names text[] not null,
    at timestamptz not null
);
create index trace_message on message_pump.trace (partition_uid, transaction_id, ordinal);
create index trace_named on message_pump.trace using gin (names);
