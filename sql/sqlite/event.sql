-- Events: append-only, in the transaction of the change.

-- name: event_insert
INSERT INTO lh_event(at, type, job, queue, worker, lease, from_state, to_state, actor, reason,
                     token, data, attempt, max_attempts, action, report)
VALUES (:at, :type, :job, :queue, :worker, :lease, :from_state, :to_state, :actor, :reason,
        :token, :data, :attempt, :max_attempts, :action, :report);

-- name: event_list
-- Types, queues and times have no index: events are written far more often than they are searched
-- for.
SELECT * FROM lh_event
 WHERE id > :after AND at >= :since AND (:queue IS NULL OR queue = :queue)
   AND (:type IS NULL OR type = :type OR substr(type, 1, length(:type) + 1) = :type || '.')
 ORDER BY id LIMIT :n;

-- name: event_list_job
SELECT * FROM lh_event
 WHERE job = :job AND id > :after AND at >= :since AND (:queue IS NULL OR queue = :queue)
   AND (:type IS NULL OR type = :type OR substr(type, 1, length(:type) + 1) = :type || '.')
 ORDER BY id LIMIT :n;

-- name: event_last
SELECT * FROM (
    SELECT * FROM lh_event
     WHERE id > :after AND at >= :since AND (:queue IS NULL OR queue = :queue)
       AND (:type IS NULL OR type = :type OR substr(type, 1, length(:type) + 1) = :type || '.')
     ORDER BY id DESC LIMIT :n)
 ORDER BY id;

-- name: event_last_job
SELECT * FROM (
    SELECT * FROM lh_event
     WHERE job = :job AND id > :after AND at >= :since AND (:queue IS NULL OR queue = :queue)
       AND (:type IS NULL OR type = :type OR substr(type, 1, length(:type) + 1) = :type || '.')
     ORDER BY id DESC LIMIT :n)
 ORDER BY id;

-- name: event_prune
-- By age. Times rise with ids, so the scan ends at the first batch that is young enough. An event
-- with a time in the future does not stop it.
DELETE FROM lh_event
 WHERE id IN (SELECT id FROM lh_event ORDER BY id LIMIT :n) AND (at < :before OR at > :ahead);
