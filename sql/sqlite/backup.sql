-- Copies of the store, and what a restore must end in a copy before it becomes the store.

-- name: copy_bytes
SELECT page_count * page_size FROM pragma_page_count, pragma_page_size;

-- name: copy_made_at
-- When the copy was made. If another program made it, or the copy was used since, the last minute
-- in which something happened.
SELECT max(coalesce((SELECT value FROM lh_meta WHERE key = 'backup_at'), 0),
           coalesce((SELECT max(minute) * 60000 FROM lh_queue), 0),
           coalesce((SELECT value FROM lh_meta WHERE key = 'created_at'), 0));

-- name: copy_jobs
SELECT coalesce(sum(scheduled + pending + running + completed + failed + cancelled), 0)
  FROM lh_queue WHERE queue <> '*';

-- name: copy_in_quarantine
SELECT count(*) FROM lh_quarantine WHERE until > :now;

-- name: restore_running
SELECT id, token FROM lh_job
 WHERE state <> 'pending' AND state <> 'completed' AND state = 'running' LIMIT :n;

-- name: restore_live
-- In the replaced store: jobs that are held or in quarantine, and the time that their leases have
-- left.
SELECT id, token, lease_until - :now FROM lh_job
 WHERE state <> 'pending' AND state <> 'completed' AND state = 'running' AND lease_until > :now
UNION ALL
SELECT job, token, until - :now FROM lh_quarantine WHERE until > :now;

-- name: restore_quarantine
-- Such a job is scheduled for the moment when its holder's lease ends, and is free earlier if the
-- holder answers.
UPDATE lh_job
   SET state = 'scheduled', run_at = max(coalesce(run_at, 0), :until), token = :new_token,
       state_changed_at = max(:now, coalesce(started_at, 0))
 WHERE id = :id AND (state = 'pending' OR state = 'scheduled');

-- name: restore_live_exclusive
-- In the replaced store: the job that has an exclusive queue.
SELECT name, owner, job, expires_at - :now FROM lh_lease
 WHERE scope = 'processing' AND job IS NOT NULL AND expires_at IS NOT NULL AND expires_at > :now;

-- name: restore_exclusive
-- No other job gets the queue before that job is free. If the copy has another job there, its entry
-- is older.
INSERT INTO lh_lease(scope, name, owner, token, ttl_ms, acquired_at, expires_at, job)
SELECT 'processing', :queue, :owner, (:epoch << 40) + :tick, :left_ms, :now, :now + :left_ms, :job
  FROM lh_quarantine WHERE queue = :queue AND job = :job
    ON CONFLICT(scope, name) DO UPDATE
   SET owner = excluded.owner, token = max(token, :epoch << 40) + 1, ttl_ms = excluded.ttl_ms,
       acquired_at = excluded.acquired_at, job = excluded.job,
       expires_at = max(coalesce(expires_at, 0), excluded.expires_at);

-- name: restore_lease_events
INSERT INTO lh_event(at, type, lease, worker, actor, reason, token)
SELECT :now, 'lease.released', scope || '/' || name, owner, 'restore', :reason, token
  FROM lh_lease
 WHERE owner IS NOT NULL
   AND (job IS NULL OR job NOT IN (SELECT job FROM lh_quarantine WHERE until > :now));

-- name: restore_leases
-- They are freed but kept as rows, so that their tokens continue to rise.
UPDATE lh_lease SET owner = NULL, acquired_at = NULL, expires_at = NULL, ttl_ms = NULL, job = NULL
 WHERE owner IS NOT NULL
   AND (job IS NULL OR job NOT IN (SELECT job FROM lh_quarantine WHERE until > :now));

-- name: restore_worker_events
INSERT INTO lh_event(at, type, worker, actor, reason)
SELECT :now, 'worker.dead', id, 'restore', :reason FROM lh_worker WHERE silent_at IS NOT NULL;

-- name: restore_workers
-- A worker that is alive registers again with the restored store.
UPDATE lh_worker SET state = 'dead', silent_at = NULL, started = NULL, uncleaned = NULL
 WHERE state <> 'stopped';

-- name: restore_ids
-- In the replaced store: the highest ids ever given.
SELECT name, seq FROM sqlite_sequence WHERE name LIKE 'lh\_%' ESCAPE '\';

-- name: restore_id_row
INSERT INTO sqlite_sequence(name, seq)
SELECT :name, 0 WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = :name);

-- name: restore_id
-- An id is never used again.
UPDATE sqlite_sequence SET seq = max(seq, :seq) WHERE name = :name;

-- name: restore_forget
-- The file is no longer a copy.
DELETE FROM lh_meta WHERE key = 'backup_at';
