-- Repair: what a damaged store needs beside its rows.

-- name: repair_job
-- A job whose row breaks the rules of the table is corrected as far as possible and failed, because
-- it may no longer be the job that was asked for. A job that has ended keeps its state. Its holder
-- has lost it.
WITH r AS (
    SELECT :id AS id, :queue AS queue, :kind AS kind, :state AS state, :priority AS priority,
           iif(typeof(:attempt) = 'integer' AND :attempt >= 0, :attempt, 0) AS attempt,
           iif(typeof(:max_attempts) = 'integer' AND (:max_attempts = -1 OR :max_attempts > 0),
               :max_attempts, NULL) AS max_attempts,
           :recoveries AS recoveries, :token AS token, :held_ms AS held_ms, :run_at AS run_at,
           iif(typeof(:created_at) = 'integer' AND :created_at >= 100000000000, :created_at,
               NULL) AS created_at,
           :started_at AS started_at, :finished_at AS finished_at,
           iif(typeof(:state_changed_at) = 'integer', :state_changed_at, NULL) AS state_changed_at,
           :last_heartbeat_at AS last_heartbeat_at, :key AS key, :expires_at AS expires_at,
           :lease_ms AS lease_ms, :backoff_ms AS backoff_ms, :backoff_cap_ms AS backoff_cap_ms,
           :stage AS stage, :progress AS progress, :last_error AS last_error,
           :checkpoint AS checkpoint, :result AS result, :payload_sum AS payload_sum,
           :payload AS payload, :reason AS reason, :now AS now
), s AS (
    SELECT *, coalesce(state IN ('completed', 'cancelled'), false) AS ended,
           coalesce(state_changed_at, created_at, now) AS changed
      FROM r
)
INSERT INTO lh_job(id, queue, kind, state, priority, attempt, max_attempts, recoveries, token,
                   held_ms, run_at, created_at, started_at, finished_at, state_changed_at,
                   last_heartbeat_at, key, expires_at, lease_ms, backoff_ms, backoff_cap_ms, stage,
                   progress, last_error, checkpoint, result, payload_sum, payload)
SELECT id,
       iif(typeof(queue) = 'text' AND length(queue) BETWEEN 1 AND 128
           AND queue NOT GLOB '*[^A-Za-z0-9._:@-]*', queue, 'damaged'),
       iif(typeof(kind) = 'text' AND length(kind) BETWEEN 1 AND 128
           AND kind NOT GLOB '*[^A-Za-z0-9._:@-]*', kind, NULL),
       iif(ended, state, 'failed'),
       iif(typeof(priority) = 'integer' AND priority BETWEEN -32768 AND 32767, priority, 0),
       iif(max_attempts > 0, min(attempt, max_attempts), attempt), max_attempts,
       iif(typeof(recoveries) = 'integer' AND recoveries >= 0, recoveries, 0),
       iif(typeof(token) = 'integer' AND token BETWEEN 0 AND 9007199254740990, token + 1, 0),
       iif(typeof(held_ms) = 'integer', held_ms, NULL),
       iif(typeof(run_at) = 'integer' AND run_at >= 100000000000, run_at, NULL),
       coalesce(created_at, iif(changed >= 100000000000, changed, now)),
       iif(typeof(started_at) = 'integer' AND started_at <= changed, started_at, NULL),
       coalesce(iif(typeof(finished_at) = 'integer', finished_at, NULL), now),
       changed,
       iif(typeof(last_heartbeat_at) = 'integer', last_heartbeat_at, NULL),
       iif(typeof(key) = 'text' AND length(key) BETWEEN 1 AND 256, key, NULL),
       iif(typeof(expires_at) = 'integer' AND expires_at >= 100000000000, expires_at, NULL),
       iif(typeof(lease_ms) = 'integer' AND lease_ms BETWEEN 1 AND 2592000000, lease_ms, NULL),
       iif(typeof(backoff_ms) = 'integer', backoff_ms, NULL),
       iif(typeof(backoff_cap_ms) = 'integer', backoff_cap_ms, NULL),
       iif(typeof(stage) = 'text', stage, NULL),
       iif(typeof(progress) = 'integer' AND progress BETWEEN 0 AND 100, progress, NULL),
       iif(ended, iif(typeof(last_error) = 'text', last_error, NULL), reason),
       iif(typeof(checkpoint) = 'text', checkpoint, NULL),
       iif(typeof(result) IN ('integer', 'real'), NULL, result),
       iif(typeof(payload_sum) = 'integer', payload_sum, NULL),
       iif(typeof(payload) IN ('integer', 'real'), NULL, payload)
  FROM s;

-- name: repair_set_aside
-- The row is readable but is not the job that was asked for. A job that has ended keeps its state.
UPDATE lh_job
   SET state = iif(state IN ('completed', 'cancelled'), state, 'failed'), worker = NULL,
       lease_until = NULL, finished_at = coalesce(finished_at, :now), last_error = :reason,
       name_sum = NULL, state_sum = 0
 WHERE id = :id;

-- name: repair_store_row
INSERT INTO lh_queue(queue, changes) SELECT '*', :changes
 WHERE NOT EXISTS (SELECT 1 FROM lh_queue WHERE queue = '*');

-- name: repair_meta
-- Adds missing values; existing ones stay.
INSERT INTO lh_meta(key, value) VALUES (:key, :value) ON CONFLICT DO NOTHING;

-- name: meta_delete
DELETE FROM lh_meta WHERE key = :key;

-- name: repair_lease
-- The row does not match its checksum. Its holder, if it has one, gets another full lease, and no
-- other owner gets the lease before that ends.
UPDATE lh_lease
   SET token = iif(token BETWEEN 0 AND 9007199254740991, token, 0),
       expires_at = iif(owner IS NULL, NULL,
                        max(:now + iif(ttl_ms BETWEEN 1 AND 2592000000, ttl_ms, 300000),
                            iif(expires_at <= :now + 2592000000, expires_at, 0))),
       ttl_ms = iif(owner IS NULL OR ttl_ms BETWEEN 1 AND 2592000000, ttl_ms, 300000),
       row_sum = lh_row_sum()
 WHERE scope = :scope AND name = :name;

-- name: request_delete
DELETE FROM lh_request WHERE request = :request;

-- name: repair_skip_ids
UPDATE sqlite_sequence SET seq = seq + :skipped WHERE name IN ('lh_event', 'lh_report');

-- name: repair_last_id
SELECT seq FROM sqlite_sequence WHERE name = 'lh_job';

-- name: repair_touch
-- One more transaction, after which every handle reads its settings again.
UPDATE lh_queue SET changes = changes + 1, generation = generation + 1 WHERE queue = '*';

-- name: check_expiries
-- If the list of expiries was damaged: jobs that were never claimed can still expire.
INSERT INTO lh_expiry(expires_at, job)
SELECT expires_at, id FROM lh_job
 WHERE expires_at IS NOT NULL AND token = 0 AND (state = 'pending' OR state = 'scheduled')
    ON CONFLICT DO NOTHING;

-- name: check_last_job
-- The highest id of a job in any table.
SELECT max(coalesce((SELECT max(id) FROM lh_job), 0), coalesce((SELECT max(job) FROM lh_event), 0),
           coalesce((SELECT max(job) FROM lh_expiry), 0), coalesce((SELECT max(job) FROM lh_quarantine), 0),
           coalesce((SELECT max(job) FROM lh_lease), 0), coalesce((SELECT max(job) FROM lh_output), 0),
           coalesce((SELECT max(last_job) FROM lh_schedule), 0));

-- name: check_last_epoch
-- The highest epoch in any token.
SELECT max(coalesce((SELECT max(token) FROM lh_job), 0), coalesce((SELECT max(token) FROM lh_lease), 0),
           coalesce((SELECT max(token) FROM lh_event), 0),
           coalesce((SELECT max(token) FROM lh_output), 0),
           coalesce((SELECT max(token) FROM lh_quarantine), 0)) >> 40;

-- name: check_newest
-- The time of the newest change that can be seen.
SELECT max(coalesce((SELECT max(state_changed_at) FROM lh_job), 0),
           coalesce((SELECT max(last_heartbeat_at) FROM lh_job), 0),
           coalesce((SELECT max(at) FROM lh_event), 0), coalesce((SELECT max(at) FROM lh_output), 0),
           coalesce((SELECT max(last_heartbeat_at) FROM lh_worker), 0),
           coalesce((SELECT max(acquired_at) FROM lh_lease), 0));

-- Which jobs there are, and which belong in each index of theirs: against what the index knows.
-- name: check_jobs
-- The jobs that exist, and those that belong in each index, to compare with the entries of the
-- index.
SELECT id FROM lh_job NOT INDEXED ORDER BY id;

-- name: check_jobs_pending
SELECT id FROM lh_job NOT INDEXED WHERE state = 'pending' ORDER BY id;

-- name: check_jobs_timed
SELECT id FROM lh_job NOT INDEXED WHERE state <> 'pending' AND state <> 'completed' ORDER BY id;

-- name: check_jobs_key
SELECT id FROM lh_job NOT INDEXED
 WHERE key IS NOT NULL AND (state = 'pending' OR state = 'running' OR state = 'scheduled')
 ORDER BY id;
