-- The queue: jobs, queues, policies, named leases, workers, events, requests, rollups.
--
-- The same columns as in SQLite, times as timestamptz. A plain INSERT INTO leasehold.job(queue,
-- payload) by any client is a valid enqueue: the defaults, CHECKs and the trigger (30_enqueue.sql)
-- make it one. Names are compared byte by byte (COLLATE "C"): that is what they are, and cheap.

-- Nothing is found but what the server has, and what is named with its schema: whoever migrates may do more
-- than those who can make functions and operators in some schema of his path.
SET LOCAL search_path = pg_catalog, pg_temp;

-- It may have been made for us; but what is in it must be ours.
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

-- One row, read by nearly every act: what must be known before anything is judged.
CREATE TABLE leasehold.meta (
    one              boolean PRIMARY KEY DEFAULT true CHECK (one),
    schema_version   integer     NOT NULL,
    uuid             uuid        NOT NULL DEFAULT gen_random_uuid(),
    epoch            bigint      NOT NULL DEFAULT 0 CHECK (epoch BETWEEN 0 AND 8191),
    -- Tokens of this epoch are above this: epoch << 40, and a random number below 1 << 39. One copy that is
    -- restored twice gets the same epoch twice, and not the same tokens.
    first_token      bigint      NOT NULL DEFAULT 0,
    -- The server that the epoch was valid for: when it is another one (promoted, restored, upgraded), or has
    -- crashed (leasehold.crash_marker), the epoch rises before the next token is made.
    system_id        bigint      NOT NULL,
    timeline         text        NOT NULL,
    job_oid          oid         NOT NULL,   -- of the table of jobs: restored from a dump it is another
    -- Nothing is expired before this moment: the clock jumped, or another server took over.
    no_expiry_before timestamptz NOT NULL DEFAULT '-infinity',
    -- A recovery goes on from batch to batch until then: claims need not begin one of their own.
    recovering_until timestamptz NOT NULL DEFAULT '-infinity',
    recovery_due     boolean     NOT NULL DEFAULT false,
    has_policies     boolean     NOT NULL DEFAULT false,  -- else the built-in values hold everywhere
    has_paused       boolean     NOT NULL DEFAULT false,
    generation       bigint      NOT NULL DEFAULT 0,      -- of policies and pauses
    sleepers_until   timestamptz NOT NULL DEFAULT '-infinity',  -- claimers may sleep asleep (33_subscribe.sql)
    jumped_ms        bigint      NOT NULL DEFAULT 0,      -- by which the server's clock was set, in all
    degraded         text        NOT NULL DEFAULT ''      -- an earlier run could not recover everything
) WITH (fillfactor = 50);

-- One row, that a crash of the server empties, as it does with every unlogged table, and so do promotion and the
-- restore of a base backup. Commits that did not wait for the disk (synchronous_commit = off) may be lost then,
-- and with them tokens that were handed out. A row that came out of a dump was not written by the transaction
-- it names.
CREATE UNLOGGED TABLE leasehold.crash_marker (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    xid xid NOT NULL              -- that wrote it: the row's own xmin
);

-- Counted since the store was made (recovery:retried …): the sum over a key. Appended, like deltas, and
-- folded by upkeep: a recovery in somebody's open transaction keeps nobody else from recovering.
CREATE TABLE leasehold.total (
    key   text COLLATE "C" NOT NULL,
    value bigint NOT NULL
);

CREATE TABLE leasehold.job (
    id                bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- never used again
    token             bigint      NOT NULL DEFAULT 0,
    run_at            timestamptz,
    created_at        timestamptz NOT NULL DEFAULT date_trunc('milliseconds', clock_timestamp()),
    state_changed_at  timestamptz NOT NULL DEFAULT date_trunc('milliseconds', clock_timestamp()),
    lease_until       timestamptz,
    started_at        timestamptz,
    finished_at       timestamptz,
    last_heartbeat_at timestamptz,
    expires_at        timestamptz,
    held_ms           bigint,           -- length of the present or last lease, as claimed
    lease_ms          bigint,           -- wished for at enqueue
    backoff_ms        bigint,
    backoff_cap_ms    bigint,
    payload_sum       bigint,           -- checksum, where the library wrote the payload
    nonce             bigint,           -- of the call that made it, where its outcome may get lost
    priority          integer     NOT NULL DEFAULT 0,
    attempt           integer     NOT NULL DEFAULT 0,
    max_attempts      integer,          -- NULL: taken from the policy at the first claim; -1: unlimited
    recoveries        integer     NOT NULL DEFAULT 0,
    progress          smallint,
    again             boolean     NOT NULL DEFAULT false,  -- pending anew, with an old id
    plain             boolean     NOT NULL DEFAULT true,   -- by a plain INSERT: the trigger counts it
    state             text COLLATE "C" NOT NULL DEFAULT 'pending',
    queue             text COLLATE "C" NOT NULL,
    kind              text COLLATE "C",
    worker            text COLLATE "C",
    key               text COLLATE "C",
    stage             text,
    last_error        text,
    checkpoint        text,             -- JSON
    payload           text,
    payload_bytes     bytea,            -- instead of payload, where it is not text
    result            text,
    result_bytes      bytea,
    -- One, and short: PostgreSQL reads and parses every CHECK anew in every statement that writes to the
    -- table (a third of the cost of an enqueue, when there were eighteen). What single values may be
    -- is checked by the functions, and for a plain INSERT by its trigger (30_enqueue.sql).
    CONSTRAINT job_invariants CHECK (
        state IN ('scheduled', 'pending', 'running', 'completed', 'failed', 'cancelled')
        AND (state = 'running') = (lease_until IS NOT NULL)
        AND (state = 'running') = (worker IS NOT NULL)
        AND (state <> 'running' OR (started_at IS NOT NULL AND token > 0))
        AND attempt >= 0 AND recoveries >= 0
        AND coalesce(max_attempts = -1 OR attempt <= max_attempts, true)
        AND coalesce(started_at <= state_changed_at, true))
) WITH (
    -- A claim and an end each write a new version of the row; with some room left they stay on its
    -- page. Dead versions and their index entries are what makes a queue slow: vacuum early, and
    -- without pauses.
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0.2,
    autovacuum_analyze_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0
);

-- Claim: best first within a queue. Jobs that became pending anew have old ids and stand in an index
-- of their own, so that fresh ones can be sought above the ids that are known to be gone
-- (leasehold.claim_floor): a held xmin keeps dead entries in the index for hours.
CREATE INDEX job_fresh ON leasehold.job(queue, priority DESC, id) WHERE state = 'pending' AND NOT again;
CREATE INDEX job_again ON leasehold.job(queue, priority DESC, id) WHERE state = 'pending' AND again;
-- The same by kind, for workers that take only some: a rare kind behind a million jobs of others is found at once.
-- Jobs without a kind do not pay for it. (One expression for both, so that no other index gives the order of these
-- queries: whatever the server believes about the table, it takes this one.)
CREATE INDEX job_kind ON leasehold.job((queue || '/' || kind), again, priority DESC, id)
 WHERE state = 'pending' AND kind IS NOT NULL;
-- Running leases by their end, and what a worker or a queue has running.
CREATE INDEX job_running ON leasehold.job(lease_until, queue, worker) WHERE state = 'running';
CREATE INDEX job_scheduled ON leasehold.job(run_at, queue) WHERE state = 'scheduled';
CREATE INDEX job_ended ON leasehold.job(state, id) WHERE state = 'failed' OR state = 'cancelled';
CREATE UNIQUE INDEX job_key ON leasehold.job(queue, key)
 WHERE key IS NOT NULL AND (state = 'pending' OR state = 'running' OR state = 'scheduled');
-- Claimed once (token > 0), an expiry has nothing more to say.
CREATE INDEX job_expiry ON leasehold.job(expires_at)
 WHERE expires_at IS NOT NULL AND token = 0 AND (state = 'pending' OR state = 'scheduled');

-- A live lease revoked by hand: until its holder has answered or the deadline has passed, the job,
-- its slot and its exclusive lease stay back from others. Nearly always empty.
CREATE TABLE leasehold.quarantine (
    queue text COLLATE "C" NOT NULL,
    job   bigint      NOT NULL,
    token bigint      NOT NULL,           -- the revoked one
    until timestamptz NOT NULL,
    PRIMARY KEY (queue, job)
);

-- What a run wrote, under the token it ran with: the attempt may repeat, the token does not. Of each stream
-- the beginning and the end are kept, and how much was written in all. A run that wrote nothing has no row.
-- No foreign key: its check would lock the row of the job. A trigger deletes (43_output.sql).
CREATE TABLE leasehold.output (
    job          bigint      NOT NULL,
    token        bigint      NOT NULL,
    attempt      integer     NOT NULL,
    at           timestamptz NOT NULL,     -- when it was last written to
    result_bytes bigint,                   -- size of the result, where not all of it is kept
    stdout_bytes bigint      NOT NULL DEFAULT 0,
    stdout_head  bytea,
    stdout_tail  bytea,
    stderr_bytes bigint      NOT NULL DEFAULT 0,
    stderr_head  bytea,
    stderr_tail  bytea,
    PRIMARY KEY (job, token)
);

-- Switches and the rate's bucket of a queue, and its counts as far as the deltas are folded in.
CREATE TABLE leasehold.queue (
    queue       text COLLATE "C" PRIMARY KEY,
    paused      boolean     NOT NULL DEFAULT false,
    bucket      bigint      NOT NULL DEFAULT 0,   -- thousandths of a claim
    bucket_at   timestamptz,
    scheduled   bigint      NOT NULL DEFAULT 0,
    pending     bigint      NOT NULL DEFAULT 0,
    running     bigint      NOT NULL DEFAULT 0,
    completed   bigint      NOT NULL DEFAULT 0,
    failed      bigint      NOT NULL DEFAULT 0,
    cancelled   bigint      NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- What every act adds to the counts, appended so that no row is fought over, and folded into
-- leasehold.queue and leasehold.rollup by upkeep. act: e enqueued, c claimed, d done, f failed,
-- r recovered, o other, n the nonce of a lost call (30_enqueue.sql); ms: waited (c) or run (d, f).
CREATE TABLE leasehold.delta (
    queue     text COLLATE "C" NOT NULL,
    at        timestamptz NOT NULL,
    act       "char"      NOT NULL,
    was       text COLLATE "C",
    becomes   text COLLATE "C",
    n         bigint      NOT NULL,
    ms        bigint      NOT NULL DEFAULT 0,
    nonce     bigint                      -- of an enqueue whose answer may get lost: it is made once
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0);
CREATE UNIQUE INDEX delta_nonce ON leasehold.delta(nonce) WHERE nonce IS NOT NULL;

-- A row in a transaction that changed something without counting a job. Both together tell how many
-- transactions there were (by xmin), at less than the price of a sequence; upkeep folds them, too.
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

-- Where the fresh jobs of a queue and priority begin; see job_fresh and 31_claim_floor.sql. Each look at a queue writes
-- new rows under a higher number, and the highest number that is visible counts. So a look never waits for
-- another transaction.
CREATE TABLE leasehold.claim_floor (
    queue     text COLLATE "C" NOT NULL,
    look      bigint      NOT NULL,       -- number of the look that wrote the row
    priority  integer     NOT NULL,
    low       bigint      NOT NULL,       -- gone up to here, when it was last looked at
    floor     bigint      NOT NULL,       -- the same, but for what takes longer than two seconds to commit
    next_look timestamptz NOT NULL,       -- when a claim looks at all of the queue again
    late      bigint      NOT NULL,       -- leasehold.scan_bound.late at that look: when it changes, a claim looks again …
    rest_until timestamptz NOT NULL,      -- … but not before this
    PRIMARY KEY (queue, look, priority)
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50);
CREATE SEQUENCE leasehold.claim_floor_number;

-- How far back claims need not look for what has ended by time: see 26_scan_bound.sql. Rows are appended; the
-- last one that is visible holds. So the note is part of the transaction that made it, nobody waits for it,
-- and it is read at the same price however many dead rows a held xmin keeps.
CREATE TABLE leasehold.scan_bound (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    generation bigint      NOT NULL,      -- of leasehold.meta: what was noted under another one is void
    at         timestamptz NOT NULL,
    bound      timestamptz NOT NULL,      -- nothing that ended by then is left, unless a transaction of `open` has it
    given      bigint      NOT NULL,      -- the highest id of a job that was given out by then …
    given_before bigint    NOT NULL,      -- … and by the note before
    floor      bigint      NOT NULL,      -- no job with an id up to this is still to come, but by a transaction of `open`
    xid        xid8        NOT NULL,      -- of the transaction that noted it: older ones were in progress before
    open       xid8[]      NOT NULL,      -- writers of the store that were in progress when the note before was made
    late       bigint      NOT NULL,      -- the note that last found one of them ended: jobs may have come to light
    looked     bigint      NOT NULL,      -- `late` at the last look from the beginning
    rest_until timestamptz NOT NULL,      -- that look was expensive: none before this …
    whole_at   timestamptz NOT NULL,      -- … and one after this, whatever is known
    -- Where dead entries are many, looks from the beginning are made in pieces (leasehold.scan_backlog):
    births     timestamptz[] NOT NULL DEFAULT '{}',  -- of each of `open`: what it wrote ends after this
    left_at    timestamptz[] NOT NULL DEFAULT '{}',  -- moments up to `bound` at which something due was left
    owed_from  timestamptz NOT NULL DEFAULT '-infinity',  -- what ended after this, up to the next, is still to be
    owed_to    timestamptz NOT NULL DEFAULT '-infinity',  -- looked for; the end comes down piece by piece
    net_to     timestamptz NOT NULL DEFAULT '-infinity'   -- and what ended up to this, whatever is known
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50);

-- Who waits for a queue, so that nobody is notified in vain. Armed by a claimer that goes to sleep,
-- disarmed by the enqueue that wakes it. A hint: lost in a crash, made again by the next to wait.
CREATE UNLOGGED TABLE leasehold.sleeper (
    queue       text COLLATE "C" PRIMARY KEY,  -- or QUEUE/KIND; '!': whoever waits for what falls due
    asleep       boolean     NOT NULL,
    until       timestamptz NOT NULL,          -- a sleeper that died arms nothing for ever
    notified_at timestamptz,
    late        bigint                         -- up to this job it was rung for afterwards (ring_late)
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50);

-- '*' is any queue, any kind; NULL falls through.
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

-- Periodic work. All instants up to done_until are settled: enqueued, skipped or missed; whoever moves
-- it on enqueues them. next_at is when somebody must look again.
CREATE TABLE leasehold.schedule (
    name           text COLLATE "C" PRIMARY KEY CHECK (name ~ '^[A-Za-z0-9._:@-]{1,128}$'),
    queue          text COLLATE "C" NOT NULL CHECK (queue ~ '^[A-Za-z0-9._:@-]{1,128}$'),
    cron           text        NOT NULL,
    tz             text        NOT NULL,
    catch_up       smallint    NOT NULL CHECK (catch_up BETWEEN 0 AND 2),  -- once, none, all
    done_until     timestamptz NOT NULL,
    next_at        timestamptz NOT NULL,
    last_at        timestamptz,           -- the last instant that was enqueued, and its job
    last_job       bigint,
    created_at     timestamptz NOT NULL,
    error          text,                  -- why it enqueues nothing now
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

-- Held ⇔ owner is set. A row without a holder lives on only where it carries state.
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
    job               bigint,             -- the exclusive lease of a queue: it ends with this job
    PRIMARY KEY (scope, name),
    CHECK ((owner IS NULL) = (expires_at IS NULL))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 200);
CREATE INDEX lease_expires ON leasehold.lease(expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX lease_owner ON leasehold.lease(owner) WHERE owner IS NOT NULL;
-- Where the tokens of named leases that are made anew begin: above every token the name ever had.
CREATE SEQUENCE leasehold.lease_token;

CREATE TABLE leasehold.worker (
    id                text COLLATE "C" PRIMARY KEY,
    label             text NOT NULL,
    host              text,
    machine           text,
    boot              text,
    pid_ns            bigint,
    time_ns           bigint,             -- start times of processes are shifted in it
    pid               bigint,             -- NULL: no process of ours, only time decides
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
    silent_at         timestamptz,        -- when its silence makes it dead; NULL: it is, or has stopped
    started           text,               -- JSON [[job, token], …]; NULL: it does not tell
    sessions          text,               -- JSON [[pid, start], …]: whose jobs run there; NULL: none ever
    degraded          text,               -- why it fails at everything; NULL: it does not
    uncleaned         text,               -- found dead: what is said of it until all it held is freed
    stuck             boolean NOT NULL DEFAULT false  -- what it still holds stays on purpose
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 200);
CREATE INDEX worker_silent ON leasehold.worker(silent_at) WHERE silent_at IS NOT NULL;
CREATE INDEX worker_uncleaned ON leasehold.worker(stuck) WHERE uncleaned IS NOT NULL;

-- Partitioned by day, so that pruning is DROP; what no partition was made for in time is in the
-- default one.
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
    action       text COLLATE "C",        -- of a recovery: what became of the job
    report       bigint,                  -- of a recovery: its report
    PRIMARY KEY (id, at)
) PARTITION BY RANGE (at);
CREATE INDEX event_job ON leasehold.event(job) WHERE job IS NOT NULL;
CREATE INDEX event_report ON leasehold.event(report) WHERE report IS NOT NULL;
CREATE TABLE leasehold.event_default PARTITION OF leasehold.event DEFAULT;

-- A role that enqueues and may not read the jobs. A role is known by its oid: it keeps its jobs when it is renamed,
-- and another role that later gets its name does not have them. An oid means nothing on another server, so the row
-- says on which server it is valid. In a database that came there by dump and restore, the name decides.
CREATE TABLE leasehold.producer (
    id        integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    role      oid,                  -- NULL: the role was dropped
    system_id bigint NOT NULL,
    name      text   NOT NULL,      -- as it was when it was last looked at (leasehold.update_producers)
    UNIQUE (system_id, role)
);

-- Which producer has enqueued a job: it may ask for the result of its own (30_enqueue.sql). A trigger with a condition
-- would cost every enqueue 5 µs, a question in the functions costs 1.
CREATE TABLE leasehold.produced (
    job      bigint PRIMARY KEY,
    producer integer NOT NULL
);

-- One row a call that named itself; what it made or took, in its order. Each producer has names of its own, so that
-- none learns of, or gets, the jobs of others. All other roles share theirs (producer 0).
CREATE TABLE leasehold.request (
    request  text COLLATE "C" NOT NULL,
    act      text NOT NULL,
    at       timestamptz NOT NULL,
    jobs     bigint[] NOT NULL,     -- NULL in it: a job of another role, which had the key
    tokens   bigint[] NOT NULL,
    producer integer NOT NULL DEFAULT 0,
    PRIMARY KEY (request, producer)
);
CREATE INDEX request_at ON leasehold.request(at);

-- One row a recovery that found something, or was asked for. Each thing it found is an event that
-- names the report.
CREATE TABLE leasehold.report (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    started_by    text NOT NULL,
    started_at    timestamptz NOT NULL,
    completed_at  timestamptz,            -- NULL: under way, or cut off
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
