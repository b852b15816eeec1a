-- The queue: jobs, queues, policies, named leases, workers, events, requests, rollups.
--
-- Times are milliseconds since 1970, UTC. A plain INSERT INTO lh_job(queue, payload) by any
-- client is a valid enqueue: the defaults, CHECKs and the trigger below make it one.

CREATE TABLE lh_meta (
    key     TEXT PRIMARY KEY,
    value   ANY NOT NULL,
    row_sum INTEGER                     -- checksum of the row; NULL: the library has not written it yet
) STRICT, WITHOUT ROWID;

CREATE TABLE lh_job (
    id                INTEGER PRIMARY KEY AUTOINCREMENT   -- an id is never used again
    -- A checksum over every number that decides something. Each has a factor of its own, so no single number
    -- can change without the sum. It is plain arithmetic, so that every connection keeps and checks it, and
    -- SQLite's integrity check finds a damaged row. The library's statements add what they change;
    -- tools/embed_sql.py writes that part, so a row that did not match before does not match afterwards. The
    -- constraint stands first, so that damage is reported as damage, and not as the rule that the damaged
    -- value also breaks. It uses IS, because = would accept a NULL in place of a number. Columns that are
    -- mostly NULL together are compared with NULL first, which is cheaper than summing them.
                      CONSTRAINT "row is damaged, or was changed past leasehold" CHECK (state_sum IS 0 OR state_sum IS
        3 * id + 5 * priority + 7 * attempt + 11 * coalesce(max_attempts, -1) + 13 * recoveries
        + 17 * token + 31 * created_at
        + CASE WHEN lease_until IS NULL AND held_ms IS NULL AND started_at IS NULL AND finished_at IS NULL
                    AND last_heartbeat_at IS NULL THEN -163
               ELSE 19 * coalesce(lease_until, -1) + 23 * coalesce(held_ms, -1)
                    + 37 * coalesce(started_at, -1) + 41 * coalesce(finished_at, -1)
                    + 43 * coalesce(last_heartbeat_at, -1) END
        + CASE WHEN run_at IS NULL AND expires_at IS NULL AND lease_ms IS NULL AND backoff_ms IS NULL
                    AND backoff_cap_ms IS NULL THEN -249
               ELSE 29 * coalesce(run_at, -1) + 47 * coalesce(expires_at, -1)
                    + 53 * coalesce(lease_ms, -1) + 59 * coalesce(backoff_ms, -1)
                    + 61 * coalesce(backoff_cap_ms, -1) END
        + 67 * CASE state WHEN 'pending' THEN 1 WHEN 'running' THEN 2 WHEN 'completed' THEN 3 WHEN 'scheduled' THEN 4 WHEN 'failed' THEN 5 ELSE 6 END
        + 71 * (payload_sum IS NULL) + 73 * (name_sum IS NULL)),
    queue             TEXT    NOT NULL
                      CHECK (length(queue) BETWEEN 1 AND 128 AND queue NOT GLOB '*[^A-Za-z0-9._:@-]*'),
    kind              TEXT
                      CHECK (length(kind) BETWEEN 1 AND 128 AND kind NOT GLOB '*[^A-Za-z0-9._:@-]*'),
    state             TEXT    NOT NULL DEFAULT 'pending'
                      -- not IN: SQLite builds a list of more than two again for every row
                      CHECK (state = 'pending' OR state = 'running' OR state = 'completed'
                             OR state = 'scheduled' OR state = 'failed' OR state = 'cancelled'),
    priority          INTEGER NOT NULL DEFAULT 0 CHECK (priority BETWEEN -32768 AND 32767),
    attempt           INTEGER NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    max_attempts      INTEGER,          -- NULL: taken from the policy at the first claim; -1: unlimited
    recoveries        INTEGER NOT NULL DEFAULT 0 CHECK (recoveries >= 0),
    token             INTEGER NOT NULL DEFAULT 0 CHECK (token >= 0),
    worker            TEXT,
    lease_until       INTEGER,
    held_ms           INTEGER,          -- length of the current or last lease, as claimed
    run_at            INTEGER           -- a plain INSERT gets the name of the constraint as its error
                      CONSTRAINT "run_at is before 1973: it must be in milliseconds since 1970"
                      CHECK (run_at >= 100000000000),
    created_at        INTEGER NOT NULL
                      DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER))
                      CONSTRAINT "created_at is before 1973: set the clock, and give milliseconds since 1970"
                      CHECK (created_at >= 100000000000),
    started_at        INTEGER,
    finished_at       INTEGER,
    state_changed_at  INTEGER NOT NULL
                      DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER)),
    last_heartbeat_at INTEGER,
    key               TEXT CHECK (length(key) BETWEEN 1 AND 256),
    expires_at        INTEGER
                      CONSTRAINT "expires_at is before 1973: it must be in milliseconds since 1970"
                      CHECK (expires_at >= 100000000000),
    lease_ms          INTEGER CHECK (lease_ms BETWEEN 1 AND 2592000000),  -- as the enqueue asked for
    backoff_ms        INTEGER,
    backoff_cap_ms    INTEGER,
    stage             TEXT,
    progress          INTEGER CHECK (progress BETWEEN 0 AND 100),
    last_error        TEXT,
    checkpoint        TEXT,             -- JSON; no CHECK: to SQLite 3.40 json_valid is not "innocuous"
    result            ANY CHECK (typeof(result) <> 'integer' AND typeof(result) <> 'real'),
    name_sum          INTEGER,          -- checksum of queue, kind and key, if the library wrote them
    state_sum         INTEGER NOT NULL DEFAULT 0,  -- checksum of the numbers; 0: not computed yet
    payload_sum       INTEGER,          -- checksum of the payload, if the library wrote it
    payload           ANY CHECK (typeof(payload) <> 'integer' AND typeof(payload) <> 'real'),
    CHECK ((state = 'running') = (lease_until IS NOT NULL)),
    CHECK ((state = 'running') = (worker IS NOT NULL)),
    CHECK (state <> 'running' OR (started_at IS NOT NULL AND token > 0)),
    CHECK (max_attempts = -1 OR (max_attempts > 0 AND attempt <= max_attempts)),
    CHECK (started_at <= state_changed_at)
) STRICT;

-- Every index costs every INSERT, also for rows that are not in it. So there are few indexes, and they are
-- partial. A query uses lh_job_timed only if it repeats the index's own condition,
-- state <> 'pending' AND state <> 'completed'.
-- For a claim: best first within a queue,
CREATE INDEX lh_job_pending ON lh_job(queue, priority DESC, id) WHERE state = 'pending';
-- and by kind, so that a rare kind behind a million other jobs is found at once. Jobs without a kind are not
-- in it.
CREATE INDEX lh_job_kind ON lh_job(queue, kind, priority DESC, id)
 WHERE state = 'pending' AND kind IS NOT NULL;
-- Jobs with a time or a holder: running jobs by the end of their lease, scheduled jobs (no lease) by run_at,
-- the jobs of a worker, and failed and cancelled jobs for lists.
CREATE INDEX lh_job_timed ON lh_job(state, lease_until, run_at, worker)
 WHERE state <> 'pending' AND state <> 'completed';
CREATE UNIQUE INDEX lh_job_key ON lh_job(queue, key)
 WHERE key IS NOT NULL AND (state = 'pending' OR state = 'running' OR state = 'scheduled');

-- The quarantine: a live lease was revoked by an operator. Until its holder has answered or the deadline has
-- passed, no other worker gets the job, its slot or its exclusive lease. Nearly always empty.
CREATE TABLE lh_quarantine (
    queue TEXT    NOT NULL,
    job   INTEGER NOT NULL,
    token INTEGER NOT NULL,           -- the revoked one
    until INTEGER NOT NULL,
    PRIMARY KEY (queue, job)
) STRICT, WITHOUT ROWID;

-- Output of runs, by the token of the run: an attempt may repeat, a token does not. The beginning and the end
-- of each stream are kept, and its total size. A run without output has no row.
CREATE TABLE lh_output (
    job          INTEGER NOT NULL,
    token        INTEGER NOT NULL,
    attempt      INTEGER NOT NULL,
    at           INTEGER NOT NULL,    -- time of the last write
    result_bytes INTEGER,             -- size of the result, if only a part of it is kept
    stdout_bytes INTEGER NOT NULL DEFAULT 0,
    stdout_head  BLOB,
    stdout_tail  BLOB,
    stderr_bytes INTEGER NOT NULL DEFAULT 0,
    stderr_head  BLOB,
    stderr_tail  BLOB,
    PRIMARY KEY (job, token)
) STRICT, WITHOUT ROWID;

-- Jobs with an expiry, ordered by it. A table beside lh_job, because few jobs have one.
CREATE TABLE lh_expiry (
    expires_at INTEGER NOT NULL,
    job        INTEGER NOT NULL,
    PRIMARY KEY (expires_at, job)
) STRICT, WITHOUT ROWID;

-- One row per queue: its settings, the bucket of its rate, the counts by state, and the current minute. All
-- rows are on few pages, so that the counts of a transaction cost one page. The row '*' is the whole store:
-- changes counts our transactions, generation tells caches to reload.
CREATE TABLE lh_queue (
    queue       TEXT PRIMARY KEY,
    paused      INTEGER NOT NULL DEFAULT 0,
    bucket      INTEGER NOT NULL DEFAULT 0,   -- thousandths of a claim
    bucket_at   INTEGER NOT NULL DEFAULT 0,
    scheduled   INTEGER NOT NULL DEFAULT 0,
    pending     INTEGER NOT NULL DEFAULT 0,
    running     INTEGER NOT NULL DEFAULT 0,
    completed   INTEGER NOT NULL DEFAULT 0,
    failed      INTEGER NOT NULL DEFAULT 0,
    cancelled   INTEGER NOT NULL DEFAULT 0,
    minute      INTEGER NOT NULL DEFAULT 0,
    m_enqueued  INTEGER NOT NULL DEFAULT 0,
    m_claimed   INTEGER NOT NULL DEFAULT 0,
    m_completed INTEGER NOT NULL DEFAULT 0,
    m_failed    INTEGER NOT NULL DEFAULT 0,
    m_recovered INTEGER NOT NULL DEFAULT 0,
    m_ended     INTEGER NOT NULL DEFAULT 0,
    m_wait_ms   INTEGER NOT NULL DEFAULT 0,
    m_run_ms    INTEGER NOT NULL DEFAULT 0,
    changes     INTEGER NOT NULL DEFAULT 0,
    generation  INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

CREATE TABLE lh_rollup (
    minute    INTEGER NOT NULL,
    queue     TEXT    NOT NULL,
    enqueued  INTEGER NOT NULL,
    claimed   INTEGER NOT NULL,
    completed INTEGER NOT NULL,
    failed    INTEGER NOT NULL,
    recovered INTEGER NOT NULL,
    ended     INTEGER NOT NULL,
    wait_ms   INTEGER NOT NULL,
    run_ms    INTEGER NOT NULL,
    PRIMARY KEY (minute, queue)
) STRICT, WITHOUT ROWID;

-- '*' means any queue or any kind. A NULL is taken from the next wider row.
CREATE TABLE lh_policy (
    queue               TEXT NOT NULL,
    kind                TEXT NOT NULL,
    lease_ms            INTEGER CHECK (lease_ms BETWEEN 1 AND 2592000000),
    max_attempts        INTEGER CHECK (max_attempts = -1 OR max_attempts BETWEEN 1 AND 1000000),
    max_recoveries      INTEGER CHECK (max_recoveries BETWEEN -1 AND 1000000),
    action              INTEGER CHECK (action BETWEEN 1 AND 3),      -- retry, pending, fail
    recovery            INTEGER CHECK (recovery IN (0, 1)),
    recovery_backoff_ms INTEGER,
    backoff_ms          INTEGER,
    backoff_cap_ms      INTEGER,
    timeout_ms          INTEGER,
    exclusive           INTEGER CHECK (exclusive IN (0, 1)),
    audit               INTEGER CHECK (audit BETWEEN 1 AND 2),       -- exceptional, full
    retention_ms        INTEGER,
    retention_failed_ms INTEGER,
    max_payload         INTEGER CHECK (max_payload BETWEEN 1 AND 67108864),
    rate_n              INTEGER,
    rate_per_ms         INTEGER,
    concurrency         INTEGER,
    max_output          INTEGER CHECK (max_output BETWEEN 0 AND 16777216),
    retention_output_ms INTEGER,
    row_sum INTEGER,                    -- checksum of the row; NULL: the library has not written it yet
    PRIMARY KEY (queue, kind)
) STRICT, WITHOUT ROWID;

CREATE TABLE lh_scope (
    scope  TEXT PRIMARY KEY,
    ttl_ms INTEGER NOT NULL CHECK (ttl_ms BETWEEN 1 AND 2592000000)
) STRICT, WITHOUT ROWID;

-- Schedules. Every instant up to done_until is done: enqueued, skipped or missed. The transaction that moves
-- done_until forward enqueues the jobs. next_at is when the schedule must be checked next.
CREATE TABLE lh_schedule (
    name           TEXT PRIMARY KEY
                   CHECK (length(name) BETWEEN 1 AND 128 AND name NOT GLOB '*[^A-Za-z0-9._:@-]*'),
    queue          TEXT    NOT NULL
                   CHECK (length(queue) BETWEEN 1 AND 128 AND queue NOT GLOB '*[^A-Za-z0-9._:@-]*'),
    cron           TEXT    NOT NULL,
    tz             TEXT    NOT NULL,
    catch_up       INTEGER NOT NULL CHECK (catch_up BETWEEN 0 AND 2),  -- once, none, all
    done_until     INTEGER NOT NULL CHECK (done_until >= 100000000000),
    next_at        INTEGER NOT NULL CHECK (next_at >= 100000000000),
    last_at        INTEGER,           -- the last instant that was enqueued, and its job
    last_job       INTEGER,
    created_at     INTEGER NOT NULL,
    error          TEXT,              -- why it enqueues nothing now
    kind           TEXT
                   CHECK (length(kind) BETWEEN 1 AND 128 AND kind NOT GLOB '*[^A-Za-z0-9._:@-]*'),
    priority       INTEGER NOT NULL CHECK (priority BETWEEN -32768 AND 32767),
    key            TEXT CHECK (length(key) BETWEEN 1 AND 256),
    max_attempts   INTEGER CHECK (max_attempts = -1 OR max_attempts BETWEEN 1 AND 1000000),
    lease_ms       INTEGER CHECK (lease_ms BETWEEN 1 AND 2592000000),
    expires_ms     INTEGER,
    backoff_ms     INTEGER,
    backoff_cap_ms INTEGER,
    payload_sum    INTEGER NOT NULL,
    payload        ANY CHECK (typeof(payload) <> 'integer' AND typeof(payload) <> 'real'),
    row_sum        INTEGER              -- checksum of the row; NULL: the library has not written it yet
) STRICT, WITHOUT ROWID;
CREATE INDEX lh_schedule_next ON lh_schedule(next_at);

-- A lease is held if owner is set. A row without a holder exists only to keep its state.
CREATE TABLE lh_lease (
    scope             TEXT NOT NULL,
    name              TEXT NOT NULL,
    owner             TEXT,
    token             INTEGER NOT NULL CHECK (token >= 0),
    ttl_ms            INTEGER,
    acquired_at       INTEGER,
    expires_at        INTEGER,
    value             TEXT,             -- JSON
    rows              INTEGER,
    last_completed_at INTEGER,
    job               INTEGER,          -- the exclusive lease of a queue: it ends with this job
    row_sum INTEGER,                    -- checksum of the row; NULL: the library has not written it yet
    PRIMARY KEY (scope, name),
    CHECK ((owner IS NULL) = (expires_at IS NULL))
) STRICT, WITHOUT ROWID;
CREATE INDEX lh_lease_expires ON lh_lease(expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE lh_worker (
    id                TEXT PRIMARY KEY,
    label             TEXT NOT NULL,
    host              TEXT,
    machine           TEXT,
    boot              TEXT,
    pid_ns            INTEGER,
    time_ns           INTEGER,          -- time namespace: it shifts the start times of processes
    pid               INTEGER,          -- NULL: no process on this machine, only time decides
    process_start     INTEGER,
    queues            TEXT,
    version           TEXT,
    state             TEXT NOT NULL DEFAULT 'alive'
                      CHECK (state = 'alive' OR state = 'late' OR state = 'dead' OR state = 'stopped'),
    interval_ms       INTEGER NOT NULL CHECK (interval_ms > 0),
    multiplier        INTEGER NOT NULL CHECK (multiplier > 0),
    registered_at     INTEGER NOT NULL,
    last_heartbeat_at INTEGER NOT NULL,
    stopped_at        INTEGER,
    silent_at         INTEGER,          -- when its silence makes it dead; NULL: it is dead or has stopped
    started           TEXT,             -- JSON [[job, token], …]; NULL: the worker does not report it
    sessions          TEXT,             -- JSON [[pid, start], …]: sessions of its jobs; NULL: never any
    degraded          TEXT,             -- why it is degraded; NULL: it is not
    uncleaned         TEXT,             -- dead: the reason, until everything it held is freed
    stuck             INTEGER NOT NULL DEFAULT 0  -- what it still holds stays on purpose (recovery off)
) STRICT, WITHOUT ROWID;
-- Few workers are silent for too long, or dead and not cleaned up: each is one probe of an index.
CREATE INDEX lh_worker_silent ON lh_worker(silent_at) WHERE silent_at IS NOT NULL;
CREATE INDEX lh_worker_uncleaned ON lh_worker(stuck, uncleaned) WHERE uncleaned IS NOT NULL;

CREATE TABLE lh_event (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    at         INTEGER NOT NULL,
    type       TEXT NOT NULL,
    job        INTEGER,
    queue      TEXT,
    worker     TEXT,
    lease      TEXT,
    from_state TEXT,
    to_state   TEXT,
    actor      TEXT NOT NULL,
    reason     TEXT,
    token      INTEGER,
    data       TEXT,
    attempt    INTEGER,
    max_attempts INTEGER,
    action     TEXT,                    -- of a recovery: what became of the job
    report     INTEGER                  -- of a recovery: its report
) STRICT;
CREATE INDEX lh_event_job ON lh_event(job) WHERE job IS NOT NULL;
CREATE INDEX lh_event_report ON lh_event(report) WHERE report IS NOT NULL;
-- Which failed steps of a recovery are recorded already. Nearly always empty.
CREATE INDEX lh_event_failed ON lh_event(lease, worker, token)
 WHERE type = 'recovery.failed' AND job IS NULL;

-- One row per call with a request id; jobs is a JSON array of [id, token].
CREATE TABLE lh_request (
    request TEXT PRIMARY KEY,
    act     TEXT NOT NULL,
    at      INTEGER NOT NULL,
    jobs    TEXT NOT NULL,
    row_sum INTEGER                     -- checksum of the row; NULL: the library has not written it yet
) STRICT, WITHOUT ROWID;

CREATE INDEX lh_request_at ON lh_request(at);

-- The rest of a plain INSERT. The library sets payload_sum and does this work once per transaction, so the
-- WHEN skips its rows. But SQLite compiles the whole body of a trigger into every INSERT, even if WHEN is
-- false. So the body is an INSTEAD OF trigger of this view, and the trigger of the table only inserts into
-- the view.
CREATE VIEW lh_inserted AS
SELECT id, queue, kind, key, state, token, attempt, recoveries, run_at, state_changed_at,
       expires_at, payload
  FROM lh_job WHERE 0;

CREATE TRIGGER lh_job_insert AFTER INSERT ON lh_job WHEN new.payload_sum IS NULL
BEGIN
    INSERT INTO lh_inserted
    VALUES (new.id, new.queue, new.kind, new.key, new.state, new.token, new.attempt,
            new.recoveries, new.run_at, new.state_changed_at, new.expires_at, new.payload);
END;

CREATE TRIGGER lh_inserted_insert INSTEAD OF INSERT ON lh_inserted
BEGIN
    SELECT CASE
        WHEN new.id NOT BETWEEN 1 AND 4503599627370495
        THEN RAISE(ABORT, 'leave the id of a job to the table')
        WHEN new.state <> 'pending' AND (new.state <> 'scheduled' OR new.run_at IS NULL)
        THEN RAISE(ABORT, 'a new job is pending, or scheduled with a run_at')
        WHEN new.token <> 0 OR new.attempt <> 0 OR new.recoveries <> 0
        THEN RAISE(ABORT, 'a new job has no token, attempts or recoveries')
        WHEN instr(new.queue, char(0)) OR instr(new.kind, char(0)) OR instr(new.key, char(0))
        THEN RAISE(ABORT, 'queue, kind and key may not have a zero byte')
        WHEN length(CAST(new.payload AS BLOB))
             > coalesce((SELECT max_payload FROM lh_policy
                          WHERE max_payload IS NOT NULL AND queue IN (new.queue, '*') AND kind IN (new.kind, '*')
                          ORDER BY queue = '*', kind = '*' LIMIT 1), $[max_payload])
        THEN RAISE(ABORT, 'payload is too large: see max_payload of its queue') END;
    -- The age of the oldest job and the retention count from these: a time of the user's own would falsify them.
    UPDATE lh_job
       SET created_at = CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER),
           state_changed_at = CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER)
     WHERE id = new.id
       AND (created_at <> CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER)
            OR state_changed_at <> CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER));
    UPDATE lh_job SET state = 'scheduled'
     WHERE id = new.id AND state = 'pending'
       AND run_at > CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER);
    UPDATE lh_job SET state_sum =
        3 * id + 5 * priority + 7 * attempt + 11 * coalesce(max_attempts, -1) + 13 * recoveries
        + 17 * token + 19 * coalesce(lease_until, -1) + 23 * coalesce(held_ms, -1)
        + 29 * coalesce(run_at, -1) + 31 * created_at + 37 * coalesce(started_at, -1)
        + 41 * coalesce(finished_at, -1) + 43 * coalesce(last_heartbeat_at, -1)
        + 47 * coalesce(expires_at, -1) + 53 * coalesce(lease_ms, -1)
        + 59 * coalesce(backoff_ms, -1) + 61 * coalesce(backoff_cap_ms, -1)
        + 67 * CASE state WHEN 'pending' THEN 1 WHEN 'running' THEN 2 WHEN 'completed' THEN 3 WHEN 'scheduled' THEN 4 WHEN 'failed' THEN 5 ELSE 6 END
        + 71 * (payload_sum IS NULL) + 73 * (name_sum IS NULL)
     WHERE id = new.id;
    INSERT INTO lh_rollup
    SELECT minute, queue, m_enqueued, m_claimed, m_completed, m_failed, m_recovered, m_ended,
           m_wait_ms, m_run_ms
      FROM lh_queue
     WHERE queue = new.queue AND minute < CAST((julianday('now') - 2440587.5) * 1440.0 AS INTEGER)
       AND minute > 0
        ON CONFLICT DO UPDATE
       SET enqueued = enqueued + excluded.enqueued, claimed = claimed + excluded.claimed,
           completed = completed + excluded.completed, failed = failed + excluded.failed,
           recovered = recovered + excluded.recovered, ended = ended + excluded.ended,
           wait_ms = wait_ms + excluded.wait_ms, run_ms = run_ms + excluded.run_ms;
    INSERT INTO lh_queue(queue, minute, m_enqueued, scheduled, pending, running, completed, failed,
                         cancelled)
    SELECT new.queue, CAST((julianday('now') - 2440587.5) * 1440.0 AS INTEGER), 1,
           state = 'scheduled', state = 'pending', state = 'running', state = 'completed',
           state = 'failed', state = 'cancelled'
      FROM lh_job WHERE id = new.id
        ON CONFLICT DO UPDATE
       SET m_enqueued = iif(excluded.minute > minute, 1, m_enqueued + 1),
           m_claimed = iif(excluded.minute > minute, 0, m_claimed),
           m_completed = iif(excluded.minute > minute, 0, m_completed),
           m_failed = iif(excluded.minute > minute, 0, m_failed),
           m_recovered = iif(excluded.minute > minute, 0, m_recovered),
           m_ended = iif(excluded.minute > minute, 0, m_ended),
           m_wait_ms = iif(excluded.minute > minute, 0, m_wait_ms),
           m_run_ms = iif(excluded.minute > minute, 0, m_run_ms),
           minute = max(minute, excluded.minute),
           scheduled = scheduled + excluded.scheduled, pending = pending + excluded.pending,
           running = running + excluded.running, completed = completed + excluded.completed,
           failed = failed + excluded.failed, cancelled = cancelled + excluded.cancelled;
    INSERT INTO lh_expiry SELECT new.expires_at, new.id WHERE new.expires_at IS NOT NULL;
    INSERT INTO lh_event(at, type, job, queue, to_state, actor)
    SELECT j.state_changed_at, 'job.enqueued', new.id, new.queue, j.state, 'sql'
      FROM lh_job j
     WHERE j.id = new.id
       AND (SELECT audit FROM lh_policy
             WHERE audit IS NOT NULL AND queue IN (new.queue, '*') AND kind IN (new.kind, '*')
             ORDER BY queue = '*', kind = '*' LIMIT 1) = 2;
END;

-- INSERT OR REPLACE would delete the job that has the same key or id, even a running one, and no DELETE trigger
-- would run: for REPLACE SQLite runs those only if the connection asks for it. A trigger cannot see the
-- conflict clause of its statement, but its own statements inherit it. lh_refused accepts no row. With IGNORE
-- its refusal is ignored; with REPLACE it is an error, because REPLACE treats a failed CHECK like ABORT. So OR
-- IGNORE and ON CONFLICT DO NOTHING work on every connection, and REPLACE is refused. The body belongs to a
-- view, as above.
CREATE TABLE lh_refused (
    job INTEGER,
    CONSTRAINT "key or id of the job is taken: use INSERT ... ON CONFLICT DO NOTHING"
    CHECK (job IS NULL)
) STRICT;

CREATE VIEW lh_inserting AS SELECT id, queue, key FROM lh_job WHERE 0;

CREATE TRIGGER lh_job_replace BEFORE INSERT ON lh_job
WHEN new.key IS NOT NULL OR (new.id > 0 AND new.payload_sum IS NULL)
BEGIN
    INSERT OR IGNORE INTO lh_inserting VALUES (new.id, new.queue, new.key);
END;

CREATE TRIGGER lh_inserting_insert INSTEAD OF INSERT ON lh_inserting
BEGIN
    INSERT OR IGNORE INTO lh_refused(job)
    SELECT id FROM lh_job
     WHERE queue = new.queue AND key = new.key
       AND (state = 'pending' OR state = 'running' OR state = 'scheduled')
    UNION ALL
    SELECT id FROM lh_job WHERE id = new.id;
END;

-- The columns that identify a job never change: the counts and the uniqueness of its key depend on them, and
-- UPDATE OR REPLACE would delete another job. The payload's checksum also fixes what the job does. The
-- library's acts change none of these columns, so the trigger costs them nothing.
CREATE TRIGGER lh_job_identity BEFORE UPDATE OF id, queue, key ON lh_job
BEGIN
    SELECT RAISE(ABORT, 'id, queue and key of a job never change: cancel it and enqueue another');
END;

CREATE TRIGGER lh_job_content BEFORE UPDATE OF kind, payload ON lh_job
WHEN old.payload_sum IS NOT NULL
BEGIN
    SELECT RAISE(ABORT, 'kind and payload of a job do not change: cancel it and enqueue another');
END;

-- A running job has a holder and cannot be deleted. Every other job can. This trigger subtracts it from the
-- counts, also when the library deletes it.
CREATE TRIGGER lh_job_delete BEFORE DELETE ON lh_job
BEGIN
    SELECT RAISE(ABORT, 'job is running: cancel it first') WHERE old.state = 'running';
    UPDATE lh_queue
       SET scheduled = scheduled - (old.state = 'scheduled'),
           pending = pending - (old.state = 'pending'),
           completed = completed - (old.state = 'completed'),
           failed = failed - (old.state = 'failed'),
           cancelled = cancelled - (old.state = 'cancelled')
     WHERE queue = old.queue;
    DELETE FROM lh_expiry WHERE expires_at = old.expires_at AND job = old.id;
    -- The output of its runs is deleted with it.
    DELETE FROM lh_output WHERE job = old.id;
END;

INSERT INTO lh_queue(queue) VALUES ('*');

-- Views for people and dashboards. Durations are in seconds.

-- Running jobs and the time until recovery may take each back.
CREATE VIEW lh_stale_monitor AS
SELECT id AS job_id, queue, kind, worker, attempt, started_at, last_heartbeat_at, lease_until,
       age_ms / 1000.0 AS age_s, term_ms / 1000.0 AS lease_s, 1.0 * age_ms / term_ms AS ratio,
       CASE WHEN age_ms >= term_ms THEN 'STALE' WHEN age_ms >= 0.8 * term_ms THEN 'WARNING'
            ELSE 'OK' END AS health
  FROM (SELECT *, CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER)
                  - max(started_at, coalesce(last_heartbeat_at, 0)) AS age_ms,
               -- of the current lease: a heartbeat may have asked for another than the claim did
               lease_until - max(started_at, coalesce(last_heartbeat_at, 0)) AS term_ms
          FROM lh_job
         WHERE state <> 'pending' AND state <> 'completed' AND state = 'running');

-- Jobs that run beyond twice their lease although no policy switches recovery off. A claim or a recovery should
-- have taken them back, so this view must be empty where either runs.
CREATE VIEW lh_stale_validation AS
SELECT m.* FROM lh_stale_monitor m
 WHERE m.ratio >= 2
   AND coalesce((SELECT p.recovery FROM lh_policy p
                  WHERE p.queue IN (m.queue, '*') AND p.kind IN (coalesce(m.kind, '*'), '*')
                    AND p.recovery IS NOT NULL
                  ORDER BY p.queue = '*', p.kind = '*' LIMIT 1), 1) = 1;

-- Every recovery of a job, as long as events are kept.
CREATE VIEW lh_recovery_history AS
SELECT job AS job_id, at, action, attempt, worker AS previous_worker, reason
  FROM lh_event WHERE action IS NOT NULL AND job IS NOT NULL;

-- The current state of each job, from its columns.
CREATE VIEW lh_job_state AS
SELECT id AS job_id,
       CASE WHEN state = 'running' THEN iif(lease_until
                     <= CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER),
                     'EXPIRED', 'RUNNING')
            WHEN state = 'pending' OR (state = 'scheduled' AND run_at
                     <= CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER))
            THEN 'AVAILABLE'
            ELSE upper(state) END AS derived_state
  FROM lh_job;

-- The output of each run of a job, as text.
CREATE VIEW lh_job_output AS
SELECT job AS job_id, attempt, token, at, stdout_bytes,
       CAST(coalesce(stdout_head, x'') AS TEXT)
       || iif(stdout_bytes > coalesce(length(stdout_head), 0) + coalesce(length(stdout_tail), 0),
              char(10) || '[... '
              || (stdout_bytes - coalesce(length(stdout_head), 0) - coalesce(length(stdout_tail), 0))
              || ' bytes cut ...]' || char(10), '')
       || CAST(coalesce(stdout_tail, x'') AS TEXT) AS stdout,
       stderr_bytes,
       CAST(coalesce(stderr_head, x'') AS TEXT)
       || iif(stderr_bytes > coalesce(length(stderr_head), 0) + coalesce(length(stderr_tail), 0),
              char(10) || '[... '
              || (stderr_bytes - coalesce(length(stderr_head), 0) - coalesce(length(stderr_tail), 0))
              || ' bytes cut ...]' || char(10), '')
       || CAST(coalesce(stderr_tail, x'') AS TEXT) AS stderr,
       result_bytes
  FROM lh_output;

CREATE VIEW lh_worker_health AS
SELECT id AS worker, label, host, pid,
       CASE WHEN state = 'dead' OR state = 'stopped' THEN state
            WHEN silent_ms >= multiplier * interval_ms THEN 'dead'
            WHEN silent_ms > interval_ms THEN 'late' ELSE 'alive' END AS state,
       last_heartbeat_at, silent_ms / 1000.0 AS silent_s, interval_ms / 1000.0 AS interval_s,
       multiplier * interval_ms / 1000.0 AS limit_s,
       (SELECT count(*) FROM lh_job
         WHERE state <> 'pending' AND state <> 'completed' AND state = 'running'
           AND worker = w.id) AS running,
       degraded
  FROM (SELECT *, max(CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER)
                      - last_heartbeat_at, 0) AS silent_ms FROM lh_worker) w;

-- One row per recovery that found something or was asked for. Each thing that it found is an event with the
-- number of the report. (The table comes after the views: if a view came last, SQLite's integrity check would
-- check only one table and leave out the list of free pages.)
CREATE TABLE lh_report (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    started_by    TEXT NOT NULL,
    started_at    INTEGER NOT NULL,
    completed_at  INTEGER,              -- NULL: in progress, or interrupted
    duration_ms   INTEGER NOT NULL DEFAULT 0,
    integrity     TEXT NOT NULL DEFAULT 'skipped'
                  CHECK (integrity IN ('skipped', 'passed', 'repaired', 'failed')),
    wal_frames    INTEGER NOT NULL DEFAULT -1,
    orphaned      INTEGER NOT NULL DEFAULT 0,
    reclaimed     INTEGER NOT NULL DEFAULT 0,
    locks_cleaned INTEGER NOT NULL DEFAULT 0,
    dead_workers  INTEGER NOT NULL DEFAULT 0,
    failures      INTEGER NOT NULL DEFAULT 0
) STRICT;
