-- The store as a whole: counters, lh_meta, requests, the clock.

-- name: txn_begin
BEGIN IMMEDIATE;

-- name: txn_commit
COMMIT;

-- name: txn_rollback
ROLLBACK;

-- name: act_begin
SAVEPOINT act;

-- name: act_undo
ROLLBACK TO act;

-- name: act_end
RELEASE act;

-- name: store_touch
-- The last statement of every writing transaction: counts it.
UPDATE lh_queue SET changes = :changes WHERE queue = '*';

-- name: store_marks
-- The first statement of every transaction: its number, and whether caches are stale.
SELECT changes, generation FROM lh_queue WHERE queue = '*';

-- name: store_generation
-- After a change of policies, pauses, epoch or anchor: every handle reloads before its next act.
UPDATE lh_queue SET generation = generation + 1 WHERE queue = '*';

-- name: skip_ids
-- Ids of jobs that may have been lost are never used again.
UPDATE sqlite_sequence SET seq = seq + :n WHERE name = 'lh_job';

-- name: meta_get
SELECT * FROM lh_meta WHERE key = :key;

-- name: meta_set
INSERT INTO lh_meta(key, value) VALUES (:key, :value)
    ON CONFLICT(key) DO UPDATE SET value = excluded.value, row_sum = lh_row_sum();

-- name: request_put
INSERT INTO lh_request(request, act, at, jobs) VALUES (:request, :act, :at, :jobs);

-- name: request_jobs
-- The jobs that a request created or claimed, in their order.
SELECT j.value ->> 0, j.value ->> 1, r.act FROM lh_request r, json_each(r.jobs) j
 WHERE r.request = :request ORDER BY j.key;

-- name: request_get
SELECT * FROM lh_request WHERE request = :request;

-- name: request_made
-- The jobs of an enqueue whose outcome was unknown. One transaction has made them, so they have the same
-- time; a job that a trigger of the user's enqueued between them has no checksum of its names.
SELECT id, state, payload_sum FROM lh_job
 WHERE id >= :first AND queue = :queue AND created_at = :created AND name_sum IS NOT NULL
 ORDER BY id LIMIT :n;

-- name: request_prune
DELETE FROM lh_request
 WHERE request IN (SELECT request FROM lh_request WHERE at < :before LIMIT :n);

-- name: clock_shift_jobs
-- The wall clock jumped: running leases, and the time that jobs have run, keep their elapsed time.
UPDATE lh_job SET lease_until = lease_until + :shift, started_at = started_at + :shift,
       state_changed_at = state_changed_at + :shift,
       last_heartbeat_at = last_heartbeat_at + :shift
 WHERE state <> 'pending' AND state <> 'completed' AND state = 'running';

-- name: job_running_ids
-- From the index alone, for the statements here that change all running jobs, if one row is
-- damaged.
SELECT id FROM lh_job WHERE state <> 'pending' AND state <> 'completed' AND state = 'running';

-- name: clock_shift_job
UPDATE lh_job SET lease_until = lease_until + :shift, started_at = started_at + :shift,
       state_changed_at = state_changed_at + :shift,
       last_heartbeat_at = last_heartbeat_at + :shift
 WHERE id = :id AND state = 'running';

-- name: clock_shift_in_quarantine
-- A job in quarantine is scheduled for its end; both shift together.
UPDATE lh_job SET run_at = run_at + :shift
 WHERE id IN (SELECT job FROM lh_quarantine) AND state = 'scheduled'
   AND run_at = (SELECT until FROM lh_quarantine WHERE job = lh_job.id AND queue = lh_job.queue);

-- name: clock_shift_quarantine
UPDATE lh_quarantine SET until = until + :shift;

-- name: clock_shift_buckets
-- A rate is per elapsed time too.
UPDATE lh_queue SET bucket_at = bucket_at + :shift WHERE bucket_at > 0;

-- name: clock_shift_leases
UPDATE lh_lease SET expires_at = expires_at + :shift WHERE expires_at IS NOT NULL;

-- name: clock_shift_workers
-- Silence is elapsed time too.
UPDATE lh_worker SET last_heartbeat_at = last_heartbeat_at + :shift, silent_at = silent_at + :shift
 WHERE silent_at IS NOT NULL;

-- name: boot_jobs_of_processes
-- After a new boot no process of the old one is alive, so their leases end now.
UPDATE lh_job SET lease_until = :now
 WHERE state <> 'pending' AND state <> 'completed' AND state = 'running' AND lease_until > :now
   AND worker IN (SELECT id FROM lh_worker WHERE pid IS NOT NULL AND boot IS NOT :boot);

-- name: boot_jobs_without_process
-- It is unknown how long the machine was down. A holder without a process on this machine gets
-- another full lease.
UPDATE lh_job SET lease_until = :now + held_ms
 WHERE state <> 'pending' AND state <> 'completed' AND state = 'running'
   AND worker NOT IN (SELECT id FROM lh_worker WHERE pid IS NOT NULL AND boot IS NOT :boot);

-- name: boot_job
-- Both, for one job.
UPDATE lh_job
   SET lease_until = iif(worker IN (SELECT id FROM lh_worker WHERE pid IS NOT NULL AND boot IS NOT :boot),
                         min(lease_until, :now), :now + held_ms)
 WHERE id = :id AND state = 'running';

-- name: boot_leases
UPDATE lh_lease SET expires_at = :now + ttl_ms WHERE expires_at IS NOT NULL;

-- name: json_check
-- json_valid() alone also returns 0 when it is out of memory; json() alone accepts JSON5 in newer
-- versions.
SELECT json(:text) IS NOT NULL AND json_valid(:text);
