-- Recovery: what is reclaimable, the one statement that takes a job back, and the reports.

-- name: job_expired
-- :skip skips jobs that stay on purpose (recovery off), :stuck those that are known to. From the
-- index alone: a row that cannot be read must not hide the others.
SELECT id FROM lh_job
 WHERE state <> 'pending' AND state <> 'completed' AND state = 'running'
   AND lease_until <= :now AND lease_until > :stuck
 ORDER BY lease_until LIMIT :n OFFSET :skip;

-- name: due_now
-- One check before a claim. Nearly always nothing is due.
SELECT EXISTS (SELECT 1 FROM lh_job WHERE state <> 'pending' AND state <> 'completed' AND state = 'running'
                  AND lease_until <= :now AND lease_until > :stuck)
       OR EXISTS (SELECT 1 FROM lh_job WHERE state <> 'pending' AND state <> 'completed' AND state = 'scheduled'
                  AND lease_until IS NULL AND run_at <= :wall)
       OR EXISTS (SELECT 1 FROM lh_lease WHERE expires_at IS NOT NULL AND expires_at <= :now)
       OR EXISTS (SELECT 1 FROM lh_expiry WHERE expires_at <= :wall)
       OR EXISTS (SELECT 1 FROM lh_schedule WHERE next_at <= :wall)
       OR EXISTS (SELECT 1 FROM lh_worker WHERE silent_at IS NOT NULL AND silent_at <= :now)
       OR EXISTS (SELECT 1 FROM lh_worker WHERE uncleaned IS NOT NULL AND stuck = 0);

-- name: job_recover
-- Compare-and-set on state, token and expiry in the write itself, so that a heartbeat, a complete
-- or another recovery that came first is never overwritten. What the job becomes was decided from
-- the row in the same transaction.
UPDATE lh_job
   SET state = :state, run_at = coalesce(:run_at, run_at), attempt = :attempt,
       recoveries = :recoveries, token = :new_token, worker = NULL, lease_until = NULL,
       started_at = NULL, finished_at = :finished_at, state_changed_at = :now, last_error = :reason
 WHERE id = :id AND state = 'running' AND token = :token AND lease_until = :lease_until;

-- name: lease_expired
-- In an order that allows to continue behind a lease that cannot be freed.
SELECT * FROM lh_lease
 WHERE expires_at IS NOT NULL AND expires_at <= :now
   AND (expires_at, scope, name) > (:after_at, :after_scope, :after_name)
 ORDER BY expires_at, scope, name LIMIT :n;

-- name: lease_of_owner
-- What a dead worker held beside its jobs. The lease of an exclusive queue ends with its job.
SELECT * FROM lh_lease
 WHERE owner = :owner AND job IS NULL AND (scope, name) > (:after_scope, :after_name)
 ORDER BY scope, name LIMIT :n;

-- name: stale_expired
SELECT id, queue, kind FROM lh_job
 WHERE state <> 'pending' AND state <> 'completed' AND state = 'running'
   AND lease_until <= :now AND (:queue IS NULL OR queue = :queue)
 ORDER BY lease_until;

-- name: stale_of_dead
-- Jobs of dead workers whose leases have not expired.
SELECT id, queue, kind FROM lh_job
 WHERE state <> 'pending' AND state <> 'completed' AND state = 'running'
   AND lease_until > :now AND (:queue IS NULL OR queue = :queue)
   AND worker IN (SELECT id FROM lh_worker WHERE uncleaned IS NOT NULL AND stuck >= 0
                  UNION ALL
                  SELECT id FROM lh_worker
                   WHERE silent_at IS NOT NULL AND silent_at <= :now AND pid IS NOT NULL);

-- name: stale_by_age
SELECT id, queue, kind FROM lh_job
 WHERE state <> 'pending' AND state <> 'completed' AND state = 'running'
   AND started_at <= :before AND coalesce(last_heartbeat_at, 0) <= :before
   AND (:queue IS NULL OR queue = :queue);

-- name: dead_not_cleaned
SELECT EXISTS (SELECT 1 FROM lh_worker WHERE uncleaned IS NOT NULL AND stuck >= 0)
       OR EXISTS (SELECT 1 FROM lh_worker WHERE silent_at IS NOT NULL AND silent_at <= :now);

-- name: next_due
-- Is something due now, and when is the next thing due? Leases end by store time, scheduled jobs by
-- the wall clock. What is due and stays (recovery off) must not hide what comes later.
SELECT EXISTS (SELECT 1 FROM lh_job WHERE state <> 'pending' AND state <> 'completed' AND state = 'running'
                  AND lease_until <= :now)
       OR EXISTS (SELECT 1 FROM lh_job WHERE state <> 'pending' AND state <> 'completed' AND state = 'scheduled'
                  AND lease_until IS NULL AND run_at <= :wall)
       OR EXISTS (SELECT 1 FROM lh_lease WHERE expires_at IS NOT NULL AND expires_at <= :now)
       OR EXISTS (SELECT 1 FROM lh_worker WHERE silent_at IS NOT NULL AND silent_at <= :now)
       OR EXISTS (SELECT 1 FROM lh_expiry WHERE expires_at <= :wall)
       OR EXISTS (SELECT 1 FROM lh_schedule WHERE next_at <= :wall)
       OR EXISTS (SELECT 1 FROM lh_worker WHERE uncleaned IS NOT NULL AND stuck = 0),
       (SELECT min(lease_until) FROM lh_job WHERE state <> 'pending' AND state <> 'completed' AND state = 'running'
                  AND lease_until > :now),
       (SELECT min(run_at) FROM lh_job WHERE state <> 'pending' AND state <> 'completed' AND state = 'scheduled'
                  AND lease_until IS NULL AND run_at > :wall),
       (SELECT min(expires_at) FROM lh_lease WHERE expires_at IS NOT NULL AND expires_at > :now),
       (SELECT min(silent_at) FROM lh_worker WHERE silent_at IS NOT NULL AND silent_at > :now),
       (SELECT min(expires_at) FROM lh_expiry WHERE expires_at > :wall),
       (SELECT min(next_at) FROM lh_schedule WHERE next_at > :wall);

-- name: poll_pending
-- The ORDER BY keeps the planner on the index, whatever statistics exist.
SELECT 1 FROM lh_job WHERE state = 'pending' AND queue = :queue ORDER BY priority DESC, id LIMIT 1;

-- name: poll_kind
SELECT 1 FROM lh_job WHERE state = 'pending' AND queue = :queue AND kind = :kind
 ORDER BY priority DESC, id LIMIT 1;

-- name: failure_recorded
-- Was it recorded before that this job cannot be taken from this holder?
SELECT 1 FROM lh_event WHERE job = :job AND type = 'recovery.failed' AND token = :token LIMIT 1;

-- name: failure_recorded_of_other
-- The same for a step that concerns a lease or a worker. What the database said is not compared: a trigger
-- may say something else each time.
SELECT 1 FROM lh_event
 WHERE type = 'recovery.failed' AND job IS NULL AND lease IS :lease AND worker IS :worker
   AND token IS :token AND substr(reason, 1, length(:what)) = :what LIMIT 1;

-- name: report_begin
INSERT INTO lh_report(started_by, started_at) VALUES (:trigger, :now);

-- name: report_count
-- With every batch, so that an interrupted run shows how far it got.
UPDATE lh_report
   SET orphaned = :orphaned, reclaimed = :reclaimed, locks_cleaned = :locks_cleaned,
       dead_workers = :dead_workers, failures = :failures
 WHERE id = :id;

-- name: report_end
UPDATE lh_report
   SET completed_at = :now, duration_ms = :now - started_at, integrity = :integrity,
       wal_frames = :wal_frames
 WHERE id = :id;

-- name: report_get
SELECT * FROM lh_report WHERE id = :id;

-- name: report_last
SELECT * FROM lh_report ORDER BY id DESC LIMIT :n;

-- name: report_events
-- The events of a report in their order, with the job's kind while the job exists.
SELECT e.type, e.job, e.queue, e.worker, e.reason, e.attempt, e.max_attempts, e.action,
       e.data ->> '$.last_heartbeat', j.kind
  FROM lh_event e LEFT JOIN lh_job j ON j.id = e.job
 WHERE e.report = :report ORDER BY e.id;

-- name: report_prune
DELETE FROM lh_report
 WHERE id IN (SELECT id FROM lh_report ORDER BY id LIMIT :n) AND started_at < :before;

-- name: total_add
-- Totals since the store was created.
INSERT INTO lh_meta(key, value) VALUES (:key, :n) ON CONFLICT(key) DO UPDATE SET value = value + excluded.value;

-- name: totals
SELECT key, value FROM lh_meta WHERE key >= 'recovery:' AND key < 'recovery;';

-- name: recount_outputs
-- Their jobs were lost with a part of the file.
DELETE FROM lh_output WHERE job NOT IN (SELECT id FROM lh_job);

-- name: recount_no_ids
-- An id is never used again: the highest id ever given is at least the highest id that exists.
INSERT INTO sqlite_sequence(name, seq)
SELECT 'lh_job', 0 WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'lh_job');

-- name: recount_ids
UPDATE sqlite_sequence SET seq = max(seq, coalesce((SELECT max(id) FROM lh_job), 0))
 WHERE name = 'lh_job';

-- name: recount_queues
INSERT INTO lh_queue(queue)
SELECT DISTINCT queue FROM lh_job
 WHERE typeof(queue) = 'text' AND queue NOT IN (SELECT queue FROM lh_queue);

-- name: recount_counts
-- Counts the whole table. Only after a check has found a wrong count.
UPDATE lh_queue
   SET scheduled = coalesce(c.scheduled, 0), pending = coalesce(c.pending, 0),
       running = coalesce(c.running, 0), completed = coalesce(c.completed, 0),
       failed = coalesce(c.failed, 0), cancelled = coalesce(c.cancelled, 0)
  FROM lh_queue q
  LEFT JOIN (SELECT queue, sum(state = 'scheduled') AS scheduled, sum(state = 'pending') AS pending,
                    sum(state = 'running') AS running, sum(state = 'completed') AS completed,
                    sum(state = 'failed') AS failed, sum(state = 'cancelled') AS cancelled
               FROM lh_job GROUP BY queue) c ON c.queue = q.queue
 WHERE lh_queue.queue = q.queue AND q.queue <> '*';

-- name: stale_of_worker
-- What a worker holds that was found dead, before its row says so.
SELECT id, queue, kind FROM lh_job
 WHERE state <> 'pending' AND state <> 'completed' AND state = 'running' AND worker = :worker
   AND lease_until > :now AND (:queue IS NULL OR queue = :queue)
   AND NOT EXISTS (SELECT 1 FROM lh_worker
                    WHERE id = :worker AND (uncleaned IS NOT NULL OR silent_at <= :now));

-- name: lease_count_stale
-- The leases that a recovery would free: expired leases, leases of dead workers, and the locks of
-- exclusive queues whose jobs it would recover (only one queue if that is asked for). :by_age: a
-- live lease does not count because its worker is dead. :before: it counts by its age, if nothing
-- stays in quarantine.
SELECT (SELECT count(*) FROM lh_lease WHERE expires_at IS NOT NULL AND expires_at <= :now)
       + (SELECT count(*) FROM lh_worker w JOIN lh_lease l ON l.owner = w.id
           WHERE w.silent_at IS NOT NULL AND w.silent_at <= :now AND w.pid IS NOT NULL
             AND l.expires_at > :now
             AND (l.job IS NULL OR (NOT :by_age AND l.name = coalesce(:queue, l.name))))
       + (SELECT count(*) FROM lh_worker w JOIN lh_lease l ON l.owner = w.id
           WHERE w.uncleaned IS NOT NULL AND l.expires_at > :now AND l.job IS NOT NULL
             AND NOT :by_age AND l.name = coalesce(:queue, l.name))
       + (SELECT count(*) FROM lh_lease l JOIN lh_job j ON j.id = l.job
           WHERE :before IS NOT NULL AND l.job IS NOT NULL AND l.expires_at > :now
             AND l.name = coalesce(:queue, l.name) AND j.state = 'running'
             AND j.started_at <= :before AND coalesce(j.last_heartbeat_at, 0) <= :before);

-- name: lease_count_of_owner
-- The leases of a worker that was just found dead, before its row says so.
SELECT count(*) FROM lh_lease
 WHERE owner = :owner AND expires_at > :now
   AND (job IS NULL OR (NOT :by_age AND name = coalesce(:queue, name)))
   AND NOT EXISTS (SELECT 1 FROM lh_worker WHERE id = :owner AND silent_at <= :now);
