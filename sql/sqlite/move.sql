-- Moving everything into another store, or out of one. copies/move.c makes the statements that read
-- and write the rows, from the list of tables in rules/tables.c.

-- name: move_running
-- A store is closed only when no job runs: how many run, and until when.
SELECT count(*), max(lease_until) FROM lh_job
 WHERE state <> 'pending' AND state <> 'completed' AND state = 'running';

-- name: move_roll
-- Add the current minutes to the history, so that all counts are in one place.
INSERT INTO lh_rollup
SELECT minute, queue, m_enqueued, m_claimed, m_completed, m_failed, m_recovered, m_ended,
       m_wait_ms, m_run_ms
  FROM lh_queue WHERE queue <> '*' AND minute > 0
    ON CONFLICT DO UPDATE
   SET enqueued = enqueued + excluded.enqueued, claimed = claimed + excluded.claimed,
       completed = completed + excluded.completed, failed = failed + excluded.failed,
       recovered = recovered + excluded.recovered, ended = ended + excluded.ended,
       wait_ms = wait_ms + excluded.wait_ms, run_ms = run_ms + excluded.run_ms;

-- name: move_rolled
UPDATE lh_queue
   SET minute = 0, m_enqueued = 0, m_claimed = 0, m_completed = 0, m_failed = 0, m_recovered = 0,
       m_ended = 0, m_wait_ms = 0, m_run_ms = 0
 WHERE queue <> '*';

-- name: move_shut
-- The library refuses our own acts. This refuses an enqueue by plain SQL.
CREATE TRIGGER IF NOT EXISTS lh_closed BEFORE INSERT ON lh_job
BEGIN
    SELECT RAISE(ABORT, 'the store is being moved, or was: nothing can be enqueued in it');
END;

-- name: move_open
DROP TRIGGER IF EXISTS lh_closed;

-- name: move_forget
DELETE FROM lh_meta WHERE key IN ('move_part', 'move_id', 'move_other', 'move_url');

-- name: move_empty
-- The store was never used: no job ever had an id, and nothing was configured.
SELECT NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'lh_job' AND seq > 0)
   AND NOT EXISTS (SELECT 1 FROM lh_policy)
   AND NOT EXISTS (SELECT 1 FROM lh_scope) AND NOT EXISTS (SELECT 1 FROM lh_schedule)
   AND NOT EXISTS (SELECT 1 FROM lh_lease) AND NOT EXISTS (SELECT 1 FROM lh_request);

-- name: move_last_id
SELECT seq FROM sqlite_sequence WHERE name = :name;
