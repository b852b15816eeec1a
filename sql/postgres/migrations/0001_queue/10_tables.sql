-- The tables: jobs, queues, policies, named leases, workers, events, requests, rollups.
--
-- The columns are the same as in SQLite; times are timestamptz. A plain INSERT INTO leasehold.job(queue,
-- payload) by any client is a valid enqueue: the defaults, the CHECKs and the trigger (30_enqueue.sql) fill in
-- the rest. Names are compared byte by byte (COLLATE "C"), which is cheap.

-- Only the server's own objects are found, and objects that are named with their schema. The user who migrates
-- may have more rights than a user who can create functions and operators in a schema of that user's
-- search_path.
SET LOCAL search_path = pg_catalog, pg_temp;

-- The schema may exist already, but it must not contain anything that is not ours.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_depend d
                WHERE d.refclassid = 'pg_namespace'::regclass
                  AND d.refobjid = (SELECT n.oid FROM pg_namespace n WHERE n.nspname = 'leasehold')) THEN
        RAISE EXCEPTION USING ERRCODE = 'LH006',
            MESSAGE = 'schema leasehold is there, is not ours and not empty: rename or drop it';
    END IF;
END $$;
CREATE SCHEMA IF NOT EXISTS leasehold;

-- One row that nearly every act reads: what an act must know before it decides anything.
CREATE TABLE leasehold.meta (
    one              boolean PRIMARY KEY DEFAULT true CHECK (one),
    schema_version   integer     NOT NULL,
    uuid             uuid        NOT NULL DEFAULT gen_random_uuid(),
    epoch            bigint      NOT NULL DEFAULT 0 CHECK (epoch BETWEEN 0 AND 8191),
    -- Tokens of this epoch are above this number: epoch << 40, plus a random number below 1 << 39. Two stores
    -- that were restored from the same copy get the same epoch, but different tokens.
    first_token      bigint      NOT NULL DEFAULT 0,
    -- The server for which the epoch is valid. If the server is another one (promoted, restored, upgraded) or
    -- has crashed (leasehold.crash_marker), the epoch rises before the next token is made.
    system_id        bigint      NOT NULL,
    timeline         text        NOT NULL,
    job_oid          oid         NOT NULL,   -- oid of the table of jobs; it is another one after a restore from a dump
    -- Nothing expires before this moment. It is set when the clock jumped or another server took over.
    no_expiry_before timestamptz NOT NULL DEFAULT '-infinity',
    -- A recovery runs in batches until then. Claims need not start one of their own.
    recovering_until timestamptz NOT NULL DEFAULT '-infinity',
    recovery_due     boolean     NOT NULL DEFAULT false,
    has_policies     boolean     NOT NULL DEFAULT false,  -- false: the built-in values hold everywhere
    has_paused       boolean     NOT NULL DEFAULT false,
    generation       bigint      NOT NULL DEFAULT 0,      -- counts changes of policies and pauses
    sleepers_until   timestamptz NOT NULL DEFAULT '-infinity',  -- until then an enqueue looks for sleepers (33_subscribe.sql)
    jumped_ms        bigint      NOT NULL DEFAULT 0,      -- sum of all jumps of the server's clock
    degraded         text        NOT NULL DEFAULT ''      -- set when an earlier recovery could not recover everything
) WITH (fillfactor = 50);

-- One row. A crash of the server empties this table, as it does with every unlogged table; so do a promotion
-- and the restore of a base backup. Commits that did not wait for the disk (synchronous_commit = off) may then
-- be lost, and with them tokens that were handed out. A row that comes from a dump does not name the
-- transaction that wrote it.
CREATE UNLOGGED TABLE leasehold.crash_marker (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    xid xid NOT NULL              -- transaction that wrote the row: equal to its xmin
);

-- Counters since the store was created (recovery:retried, ...). The value of a key is the sum of its rows. Rows
-- are appended and folded by maintenance, so that a recovery in an open transaction does not block another one.
CREATE TABLE leasehold.total (
    key   text COLLATE "C" NOT NULL,
    value bigint NOT NULL
);

CREATE TABLE leasehold.job (
    id                bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- an id is never used again
    token             bigint      NOT NULL DEFAULT 0,
    run_at            timestamptz,
    created_at        timestamptz NOT NULL DEFAULT date_trunc('milliseconds', clock_timestamp()),
    state_changed_at  timestamptz NOT NULL DEFAULT date_trunc('milliseconds', clock_timestamp()),
    lease_until       timestamptz,
    started_at        timestamptz,
    finished_at       timestamptz,
    last_heartbeat_at timestamptz,
    expires_at        timestamptz,
    held_ms           bigint,           -- length of the current or last lease, as the claim set it
    lease_ms          bigint,           -- lease that the producer asked for
    backoff_ms        bigint,
    backoff_cap_ms    bigint,
    payload_sum       bigint,           -- checksum; set when the library wrote the payload
    nonce             bigint,           -- nonce of the call that enqueued it; set when the answer may get lost
    priority          integer     NOT NULL DEFAULT 0,
    attempt           integer     NOT NULL DEFAULT 0,
    max_attempts      integer,          -- NULL: taken from the policy at the first claim; -1: unlimited
    recoveries        integer     NOT NULL DEFAULT 0,
    progress          smallint,
    again             boolean     NOT NULL DEFAULT false,  -- pending again, after it was claimed before
    plain             boolean     NOT NULL DEFAULT true,   -- written by a plain INSERT: the trigger counts it
    state             text COLLATE "C" NOT NULL DEFAULT 'pending',
    queue             text COLLATE "C" NOT NULL,
    kind              text COLLATE "C",
    worker            text COLLATE "C",
    key               text COLLATE "C",
    stage             text,
    last_error        text,
    checkpoint        text,             -- JSON
    payload           text,
    payload_bytes     bytea,            -- used instead of payload if it is not text
    result            text,
    result_bytes      bytea,
    -- There is only one CHECK, and a short one. PostgreSQL parses every CHECK again in every statement that
    -- writes to the table; eighteen of them cost a third of an enqueue. The functions check single values, and
    -- for a plain INSERT its trigger does (30_enqueue.sql).
    CONSTRAINT job_invariants CHECK (
        state IN ('scheduled', 'pending', 'running', 'completed', 'failed', 'cancelled')
        AND (state = 'running') = (lease_until IS NOT NULL)
        AND (state = 'running') = (worker IS NOT NULL)
        AND (state <> 'running' OR (started_at IS NOT NULL AND token > 0))
        AND attempt >= 0 AND recoveries >= 0
        AND coalesce(max_attempts = -1 OR attempt <= max_attempts, true)
        AND coalesce(started_at <= state_changed_at, true))
) WITH (
    -- A claim and a completion each write a new version of the row. Free room keeps the new version on the same
    -- page. Dead versions and their index entries make a queue slow, so vacuum runs early and without pauses.
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0.2,
    autovacuum_analyze_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0
);

-- For claims: the best job of a queue comes first. Jobs that are pending again have old ids and an index of
-- their own. So a claim can search fresh jobs above the ids that are known to be gone (leasehold.claim_floor),
-- even when a long transaction keeps dead index entries for hours.
CREATE INDEX job_fresh ON leasehold.job(queue, priority DESC, id) WHERE state = 'pending' AND NOT again;
CREATE INDEX job_again ON leasehold.job(queue, priority DESC, id) WHERE state = 'pending' AND again;
-- The same by kind, for workers that take only some kinds: the index finds a rare kind behind a million other
-- jobs at once. Jobs without a kind have no entry. Queue and kind are one expression, so that no other index
-- has the order of these queries and the planner always takes this one.
CREATE INDEX job_kind ON leasehold.job((queue || '/' || kind), again, priority DESC, id)
 WHERE state = 'pending' AND kind IS NOT NULL;
-- Running leases by their end; also what a worker or a queue has running.
CREATE INDEX job_running ON leasehold.job(lease_until, queue, worker) WHERE state = 'running';
CREATE INDEX job_scheduled ON leasehold.job(run_at, queue) WHERE state = 'scheduled';
CREATE INDEX job_ended ON leasehold.job(state, id) WHERE state = 'failed' OR state = 'cancelled';
CREATE UNIQUE INDEX job_key ON leasehold.job(queue, key)
 WHERE key IS NOT NULL AND (state = 'pending' OR state = 'running' OR state = 'scheduled');
-- An expiry no longer matters once the job was claimed (token > 0).
CREATE INDEX job_expiry ON leasehold.job(expires_at)
 WHERE expires_at IS NOT NULL AND token = 0 AND (state = 'pending' OR state = 'scheduled');

-- Quarantine: live leases that an operator revoked. Until the holder has answered or the deadline has passed,
-- the job, its slot and its exclusive lease stay reserved. The table is nearly always empty.
CREATE TABLE leasehold.quarantine (
    queue text COLLATE "C" NOT NULL,
    job   bigint      NOT NULL,
    token bigint      NOT NULL,           -- token of the revoked lease
    until timestamptz NOT NULL,
    PRIMARY KEY (queue, job)
);

-- The output of a run, under the token of the run: an attempt number may repeat, a token does not. Of each
-- stream the table keeps the beginning, the end and the total size. A run without output has no row. There is
-- no foreign key, because its check would lock the row of the job; a trigger deletes the rows (43_output.sql).
CREATE TABLE leasehold.output (
    job          bigint      NOT NULL,
    token        bigint      NOT NULL,
    attempt      integer     NOT NULL,
    at           timestamptz NOT NULL,     -- time of the last write
    result_bytes bigint,                   -- size of the result, if only a part of it is kept
    stdout_bytes bigint      NOT NULL DEFAULT 0,
    stdout_head  bytea,
    stdout_tail  bytea,
    stderr_bytes bigint      NOT NULL DEFAULT 0,
    stderr_head  bytea,
    stderr_tail  bytea,
    PRIMARY KEY (job, token)
);

-- Per queue: whether it is paused, the bucket of its rate, and its counts up to the last fold.
CREATE TABLE leasehold.queue (
    queue       text COLLATE "C" PRIMARY KEY,
    paused      boolean     NOT NULL DEFAULT false,
    bucket      bigint      NOT NULL DEFAULT 0,   -- in thousandths of a claim
    bucket_at   timestamptz,
    scheduled   bigint      NOT NULL DEFAULT 0,
    pending     bigint      NOT NULL DEFAULT 0,
    running     bigint      NOT NULL DEFAULT 0,
    completed   bigint      NOT NULL DEFAULT 0,
    failed      bigint      NOT NULL DEFAULT 0,
    cancelled   bigint      NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- What every act adds to the counts. Acts append rows, so they do not wait for each other; maintenance folds
-- the rows into leasehold.queue and leasehold.rollup. act: e enqueued, c claimed, d completed, f failed, r
-- recovered, o other, n nonce of a call whose answer was lost (30_enqueue.sql). ms: time waited (c) or time run
-- (d, f).
CREATE TABLE leasehold.delta (
    queue     text COLLATE "C" NOT NULL,
    at        timestamptz NOT NULL,
    act       "char"      NOT NULL,
    was       text COLLATE "C",
    becomes   text COLLATE "C",
    n         bigint      NOT NULL,
    ms        bigint      NOT NULL DEFAULT 0,
    nonce     bigint                      -- nonce of an enqueue whose answer may get lost; it makes the enqueue happen once
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0);
CREATE UNIQUE INDEX delta_nonce ON leasehold.delta(nonce) WHERE nonce IS NOT NULL;

-- One row per transaction that changed something without counting a job. With the deltas it gives the number of
-- transactions (by xmin), at a lower price than a sequence. Maintenance folds these rows, too.
CREATE TABLE leasehold.change ()
  WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0);

CREATE TABLE leasehold.rollup (
    minute    timestamptz NOT NULL,
    queue     text COLLATE "C" NOT NULL,
    enqueued  bigint NOT NULL DEFAULT 0,
    claimed   bigint NOT NULL DEFAULT 0,
    completed bigint NOT NULL DEFAULT 0,
    failed    bigint NOT NULL DEFAULT 0,
    recovered bigint NOT NULL DEFAULT 0,
    ended     bigint NOT NULL DEFAULT 0,
    wait_ms   bigint NOT NULL DEFAULT 0,
    run_ms    bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (minute, queue)
) WITH (fillfactor = 80);

-- The claim floor: where the fresh jobs of a queue and priority begin (job_fresh, 31_claim_floor.sql). Each
-- scan of a queue writes new rows with a higher number, and the highest visible number counts. So a scan never
-- waits for another transaction.
CREATE TABLE leasehold.claim_floor (
    queue     text COLLATE "C" NOT NULL,
    look      bigint      NOT NULL,       -- number of the scan that wrote the row
    priority  integer     NOT NULL,
    low       bigint      NOT NULL,       -- all fresh jobs up to this id were gone at the last scan
    floor     bigint      NOT NULL,       -- the same, with two seconds of allowance for commits
    next_look timestamptz NOT NULL,       -- time at which a claim scans the whole queue again
    late      bigint      NOT NULL,       -- leasehold.scan_bound.late at that scan; when it changes, a claim scans again ...
    rest_until timestamptz NOT NULL,      -- ... but not before this time
    PRIMARY KEY (queue, look, priority)
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50);
CREATE SEQUENCE leasehold.claim_floor_number;

-- How far back claims need not search for what has expired: see 26_scan_bound.sql. Rows are appended, and the
-- last visible row counts. So a row belongs to the transaction that wrote it, nobody waits for it, and reading
-- it costs the same however many dead rows a long transaction keeps.
CREATE TABLE leasehold.scan_bound (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    generation bigint      NOT NULL,      -- leasehold.meta.generation; rows of another generation are void
    at         timestamptz NOT NULL,
    bound      timestamptz NOT NULL,      -- nothing that expired by then is left, except in transactions listed in `open`
    given      bigint      NOT NULL,      -- highest job id given out by then ...
    given_before bigint    NOT NULL,      -- ... and by the row before
    floor      bigint      NOT NULL,      -- no job with an id up to this can still appear, except from a transaction in `open`
    xid        xid8        NOT NULL,      -- transaction that wrote the row; older ones were in progress before it
    open       xid8[]      NOT NULL,      -- transactions that wrote to the store and were in progress at the row before
    late       bigint      NOT NULL,      -- id of the row that last found one of them ended: jobs may have appeared
    looked     bigint      NOT NULL,      -- value of `late` at the last complete scan
    rest_until timestamptz NOT NULL,      -- the last complete scan was expensive: none before this time ...
    whole_at   timestamptz NOT NULL,      -- ... and one after this time in any case
    -- Where there are many dead entries, complete scans are made in pieces (leasehold.scan_backlog):
    births     timestamptz[] NOT NULL DEFAULT '{}',  -- for each of `open`: what it wrote expires after this time
    left_at    timestamptz[] NOT NULL DEFAULT '{}',  -- times up to `bound` at which something due was left
    owed_from  timestamptz NOT NULL DEFAULT '-infinity',  -- what expired after this time and up to owed_to is still to be ...
    owed_to    timestamptz NOT NULL DEFAULT '-infinity',  -- ... searched; the end moves down piece by piece
    net_to     timestamptz NOT NULL DEFAULT '-infinity'   -- end of the slow pass over everything
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50);

-- The sleepers of each queue, so that an enqueue notifies only if a sleeper waits. A claimer that goes to sleep sets `asleep`; the
-- enqueue that wakes it clears it. The rows are hints: a crash loses them, and the next waiting claimer writes
-- them again.
CREATE UNLOGGED TABLE leasehold.sleeper (
    queue       text COLLATE "C" PRIMARY KEY,  -- queue, or QUEUE/KIND; '!' for processes that wait for maintenance
    asleep       boolean     NOT NULL,
    until       timestamptz NOT NULL,          -- after this time the row is ignored: its sleeper may have died
    notified_at timestamptz,
    late        bigint                         -- last job for which a late wake-up was sent (wake_missed)
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50);

-- '*' means any queue or any kind. NULL: the value comes from a wider row.
CREATE TABLE leasehold.policy (
    queue               text COLLATE "C" NOT NULL,
    kind                text COLLATE "C" NOT NULL,
    lease_ms            bigint   CHECK (lease_ms BETWEEN 1 AND 2592000000),
    max_attempts        integer  CHECK (max_attempts = -1 OR max_attempts BETWEEN 1 AND 1000000),
    max_recoveries      integer  CHECK (max_recoveries BETWEEN -1 AND 1000000),
    action              smallint CHECK (action BETWEEN 1 AND 3),      -- retry, pending, fail
    recovery            boolean,
    recovery_backoff_ms bigint   CHECK (recovery_backoff_ms BETWEEN 0 AND 315360000000),
    backoff_ms          bigint   CHECK (backoff_ms BETWEEN 0 AND 315360000000),
    backoff_cap_ms      bigint   CHECK (backoff_cap_ms BETWEEN 0 AND 315360000000),
    timeout_ms          bigint   CHECK (timeout_ms BETWEEN 0 AND 315360000000),
    exclusive           boolean,
    audit               smallint CHECK (audit BETWEEN 1 AND 2),       -- exceptional, full
    retention_ms        bigint   CHECK (retention_ms BETWEEN 0 AND 315360000000),
    retention_failed_ms bigint   CHECK (retention_failed_ms BETWEEN 0 AND 315360000000),
    max_payload         bigint   CHECK (max_payload BETWEEN 1 AND 67108864),
    rate_n              bigint   CHECK (rate_n >= 0),
    rate_per_ms         bigint   CHECK (rate_per_ms >= 0),
    concurrency         bigint   CHECK (concurrency >= 0),
    max_output          bigint   CHECK (max_output BETWEEN 0 AND 16777216),
    retention_output_ms bigint   CHECK (retention_output_ms BETWEEN 0 AND 315360000000),
    PRIMARY KEY (queue, kind)
);

CREATE TABLE leasehold.scope (
    scope  text COLLATE "C" PRIMARY KEY,
    ttl_ms bigint NOT NULL CHECK (ttl_ms BETWEEN 1 AND 2592000000)
);

-- Schedules. All runs up to done_until were enqueued, skipped or missed; the transaction that raises done_until
-- enqueues them. next_at is the time at which the schedule must be looked at again.
CREATE TABLE leasehold.schedule (
    name           text COLLATE "C" PRIMARY KEY CHECK (name ~ '^[A-Za-z0-9._:@-]{1,128}$'),
    queue          text COLLATE "C" NOT NULL CHECK (queue ~ '^[A-Za-z0-9._:@-]{1,128}$'),
    cron           text        NOT NULL,
    tz             text        NOT NULL,
    catch_up       smallint    NOT NULL CHECK (catch_up BETWEEN 0 AND 2),  -- once, none, all
    done_until     timestamptz NOT NULL,
    next_at        timestamptz NOT NULL,
    last_at        timestamptz,           -- last run that was enqueued, and its job
    last_job       bigint,
    created_at     timestamptz NOT NULL,
    error          text,                  -- why it currently enqueues nothing
    kind           text COLLATE "C" CHECK (kind ~ '^[A-Za-z0-9._:@-]{1,128}$'),
    priority       integer     NOT NULL CHECK (priority BETWEEN -32768 AND 32767),
    key            text COLLATE "C" CHECK (octet_length(key) BETWEEN 1 AND 256),
    max_attempts   integer CHECK (max_attempts = -1 OR max_attempts BETWEEN 1 AND 1000000),
    lease_ms       bigint CHECK (lease_ms BETWEEN 1 AND 2592000000),
    expires_ms     bigint,
    backoff_ms     bigint,
    backoff_cap_ms bigint,
    payload_sum    bigint      NOT NULL,
    payload        text,
    payload_bytes  bytea,
    CHECK (payload IS NULL OR payload_bytes IS NULL)
);
CREATE INDEX schedule_next ON leasehold.schedule(next_at);

-- A lease is held if and only if owner is set. A row without an owner stays only if it carries state.
CREATE TABLE leasehold.lease (
    scope             text COLLATE "C" NOT NULL,
    name              text COLLATE "C" NOT NULL,
    owner             text,
    token             bigint NOT NULL,
    ttl_ms            bigint,
    acquired_at       timestamptz,
    expires_at        timestamptz,
    value             text,               -- JSON
    rows              bigint,
    last_completed_at timestamptz,
    job               bigint,             -- job of an exclusive queue's lease; the lease ends with it
    PRIMARY KEY (scope, name),
    CHECK ((owner IS NULL) = (expires_at IS NULL))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 200);
CREATE INDEX lease_expires ON leasehold.lease(expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX lease_owner ON leasehold.lease(owner) WHERE owner IS NOT NULL;
-- Where the tokens of a new named lease begin: above every token that the name ever had.
CREATE SEQUENCE leasehold.lease_token;

CREATE TABLE leasehold.worker (
    id                text COLLATE "C" PRIMARY KEY,
    label             text NOT NULL,
    host              text,
    machine           text,
    boot              text,
    pid_ns            bigint,
    time_ns           bigint,             -- time namespace; it shifts start times of processes
    pid               bigint,             -- NULL: no process of ours; only time decides
    process_start     bigint,
    queues            text,
    version           text,
    state             text COLLATE "C" NOT NULL DEFAULT 'alive'
                      CHECK (state IN ('alive', 'late', 'dead', 'stopped')),
    interval_ms       bigint NOT NULL CHECK (interval_ms > 0),
    multiplier        bigint NOT NULL CHECK (multiplier > 0),
    registered_at     timestamptz NOT NULL,
    last_heartbeat_at timestamptz NOT NULL,
    stopped_at        timestamptz,
    silent_at         timestamptz,        -- time at which its silence makes it dead; NULL: it is dead or has stopped
    started           text,               -- JSON [[job, token], ...]; NULL: the worker does not report it
    sessions          text,               -- JSON [[pid, start], ...] of the processes whose sessions run its jobs; NULL: none ever
    degraded          text,               -- why everything it does fails; NULL: it works
    uncleaned         text,               -- set when it was found dead, until all it held is freed: what the report says of it
    stuck             boolean NOT NULL DEFAULT false  -- what it still holds stays on purpose
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 200);
CREATE INDEX worker_silent ON leasehold.worker(silent_at) WHERE silent_at IS NOT NULL;
CREATE INDEX worker_uncleaned ON leasehold.worker(stuck) WHERE uncleaned IS NOT NULL;

-- Partitioned by day, so that pruning drops a table. Events of a day without a partition go into the default
-- one.
CREATE TABLE leasehold.event (
    id           bigint GENERATED ALWAYS AS IDENTITY,
    at           timestamptz NOT NULL,
    type         text COLLATE "C" NOT NULL,
    job          bigint,
    queue        text COLLATE "C",
    worker       text COLLATE "C",
    lease        text,
    from_state   text COLLATE "C",
    to_state     text COLLATE "C",
    actor        text NOT NULL,
    reason       text,
    token        bigint,
    data         text,
    attempt      integer,
    max_attempts integer,
    action       text COLLATE "C",        -- of a recovery: what happened to the job
    report       bigint,                  -- of a recovery: the id of its report
    PRIMARY KEY (id, at)
) PARTITION BY RANGE (at);
CREATE INDEX event_job ON leasehold.event(job) WHERE job IS NOT NULL;
CREATE INDEX event_report ON leasehold.event(report) WHERE report IS NOT NULL;
-- Which failed steps of a recovery are recorded already. Nearly always empty.
CREATE INDEX event_failed ON leasehold.event(lease, worker) WHERE type = 'recovery.failed' AND job IS NULL;
CREATE TABLE leasehold.event_default PARTITION OF leasehold.event DEFAULT;

-- A role that enqueues and may not read the jobs. A role is identified by its oid: it keeps its jobs when it is
-- renamed, and a later role with the same name does not get them. An oid means nothing on another server, so
-- the row names the server for which it is valid. In a database that was dumped and restored, the name decides.
CREATE TABLE leasehold.producer (
    id        integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    role      oid,                  -- NULL: the role was dropped
    system_id bigint NOT NULL,
    name      text   NOT NULL,      -- name at the last check (leasehold.update_producers)
    UNIQUE (system_id, role)
);

-- Which producer enqueued a job. A producer may read the results of its own jobs (30_enqueue.sql). A trigger
-- with a condition would cost every enqueue 5 µs; the check in the functions costs 1 µs.
CREATE TABLE leasehold.produced (
    job      bigint PRIMARY KEY,
    producer integer NOT NULL
);

-- One row per call with a request id: the jobs that it enqueued or claimed, in order. Each producer has request
-- ids of its own, so that no producer sees or gets the jobs of another. All other roles share theirs (producer
-- 0).
CREATE TABLE leasehold.request (
    request  text COLLATE "C" NOT NULL,
    act      text NOT NULL,
    at       timestamptz NOT NULL,
    jobs     bigint[] NOT NULL,     -- NULL for a job of another role that had the key
    tokens   bigint[] NOT NULL,
    producer integer NOT NULL DEFAULT 0,
    PRIMARY KEY (request, producer)
);
CREATE INDEX request_at ON leasehold.request(at);

-- One row per recovery that found something or was asked for. Each finding is an event that names the report.
CREATE TABLE leasehold.report (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    started_by    text NOT NULL,
    started_at    timestamptz NOT NULL,
    completed_at  timestamptz,            -- NULL: in progress, or interrupted
    duration_ms   bigint NOT NULL DEFAULT 0,
    integrity     text NOT NULL DEFAULT 'skipped'
                  CHECK (integrity IN ('skipped', 'passed', 'repaired', 'failed')),
    wal_frames    bigint NOT NULL DEFAULT -1,
    orphaned      bigint NOT NULL DEFAULT 0,
    reclaimed     bigint NOT NULL DEFAULT 0,
    locks_cleaned bigint NOT NULL DEFAULT 0,
    dead_workers  bigint NOT NULL DEFAULT 0,
    failures      bigint NOT NULL DEFAULT 0
);

INSERT INTO leasehold.meta(schema_version, system_id, timeline, job_oid)
SELECT 1, (SELECT system_identifier FROM pg_control_system()),
       left(pg_walfile_name(pg_current_wal_lsn()), 8), 'leasehold.job'::regclass;
INSERT INTO leasehold.crash_marker(xid) VALUES ('0');
UPDATE leasehold.crash_marker SET xid = xmin;
