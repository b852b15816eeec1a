-- The invariants of jobs as findings: each statement returns the rows that break one. Most
-- invariants are CHECK constraints too, but a damaged file, or a connection that has switched them
-- off, can break them.

-- name: check_running
SELECT id, 'running without a lease, worker, start or token, or a lease without running'
  FROM lh_job
 WHERE (state = 'running') <> (lease_until IS NOT NULL) OR (state = 'running') <> (worker IS NOT NULL)
    OR (state = 'running' AND (started_at IS NULL OR token <= 0)) LIMIT :n;

-- name: check_counts
SELECT id, 'attempt ' || attempt || ' is above max_attempts ' || max_attempts
  FROM lh_job WHERE max_attempts > 0 AND attempt > max_attempts LIMIT :n;

-- name: check_times
SELECT id, 'started after its last change of state'
  FROM lh_job WHERE started_at > state_changed_at LIMIT :n;

-- name: check_tokens
-- A token is a number that users compare and print: at least 0, below 2^53.
SELECT id, 'token ' || token || ' is outside 0 to 9007199254740991'
  FROM lh_job WHERE token NOT BETWEEN 0 AND 9007199254740991 LIMIT :n;

-- name: check_lease_rows
SELECT NULL, 'lease "' || scope || '/' || name || '": '
       || CASE WHEN token NOT BETWEEN 0 AND 9007199254740991
               THEN 'token ' || token || ' is outside 0 to 9007199254740991'
               WHEN owner IS NULL THEN 'it has an expiry and no owner'
               ELSE 'it has an owner and no expiry' END
  FROM lh_lease
 WHERE token NOT BETWEEN 0 AND 9007199254740991 OR (owner IS NULL) <> (expires_at IS NULL)
 LIMIT :n;

-- name: check_journal
-- In any other mode readers and writers block each other, and a crash leaves a journal behind.
SELECT NULL, 'journal mode is ' || journal_mode || ', not wal: any command that writes sets it back'
  FROM pragma_journal_mode WHERE journal_mode <> 'wal';

-- name: check_ids
SELECT max(id), 'id is above the highest ever given' FROM lh_job
HAVING max(id) > (SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'lh_job');

-- name: check_tallies
-- Counts the whole table.
SELECT NULL, 'queue "' || coalesce(q.queue, c.queue) || '" counts ' || s.name || ' as '
       || CASE s.name WHEN 'scheduled' THEN coalesce(q.scheduled, 0)
                      WHEN 'pending' THEN coalesce(q.pending, 0)
                      WHEN 'running' THEN coalesce(q.running, 0)
                      WHEN 'completed' THEN coalesce(q.completed, 0)
                      WHEN 'failed' THEN coalesce(q.failed, 0)
                      ELSE coalesce(q.cancelled, 0) END
       || ', there are ' || coalesce(c.n, 0)
  FROM (SELECT 'scheduled' AS name UNION ALL SELECT 'pending' UNION ALL SELECT 'running'
        UNION ALL SELECT 'completed' UNION ALL SELECT 'failed' UNION ALL SELECT 'cancelled') s
  JOIN lh_queue q ON q.queue <> '*'
  LEFT JOIN (SELECT queue, state, count(*) AS n FROM lh_job GROUP BY queue, state) c
    ON c.queue = q.queue AND c.state = s.name
 WHERE coalesce(c.n, 0) <> CASE s.name WHEN 'scheduled' THEN q.scheduled
                      WHEN 'pending' THEN q.pending WHEN 'running' THEN q.running
                      WHEN 'completed' THEN q.completed WHEN 'failed' THEN q.failed
                      ELSE q.cancelled END
 LIMIT :n;

-- name: check_queues
SELECT NULL, 'queue "' || queue || '" has jobs but no row to count them in'
  FROM (SELECT DISTINCT queue FROM lh_job)
 WHERE queue NOT IN (SELECT queue FROM lh_queue) LIMIT :n;

-- name: check_outputs
SELECT NULL, 'deleted jobs whose output is left: ' || count(DISTINCT job) FROM lh_output
 WHERE job NOT IN (SELECT id FROM lh_job) HAVING count(*) > 0 LIMIT :n;

-- name: check_schema
-- The tables, indexes, views and triggers that exist.
SELECT name, sql FROM sqlite_schema
 WHERE name LIKE 'lh\_%' ESCAPE '\' AND sql IS NOT NULL ORDER BY name;

-- name: check_schedules
-- Only schedules without a checksum over the whole row.
SELECT name, payload_sum, payload FROM lh_schedule WHERE row_sum IS NULL;

-- name: check_payloads
SELECT id, payload_sum, payload, name_sum, queue, kind, key FROM lh_job;

-- name: check_names
SELECT id, name_sum, queue, kind, key FROM lh_job WHERE name_sum IS NOT NULL;

-- Every row of the tables that have a row_sum, as its last column.
-- name: summed_meta
SELECT * FROM lh_meta;

-- name: summed_schedule
SELECT * FROM lh_schedule;

-- name: summed_lease
SELECT * FROM lh_lease;

-- name: summed_request
SELECT * FROM lh_request;

-- name: check_sums
-- The same as the constraint of the table, but it names the job; and rows without a checksum.
SELECT id, iif(state_sum = 0, 'row has no checksum: a program other than leasehold has written it',
               'row does not match its checksum')
  FROM lh_job WHERE state_sum IS NOT lh_job_sum() LIMIT :n;
