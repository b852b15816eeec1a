-- Claim `batch` jobs, then finish them, in two transactions. The rows come as arrays: pgbench keeps
-- but one row of an answer.
WITH picked AS (SELECT w.id FROM leasehold.job w
                 WHERE w.state = 'pending' AND NOT w.again AND w.queue = 'bench'
                 ORDER BY w.priority DESC, w.id LIMIT :batch FOR UPDATE SKIP LOCKED),
     taken AS (UPDATE leasehold.job j
                  SET state = 'running', token = j.token + 1, attempt = j.attempt + 1, again = true,
                      worker = 'bench', held_ms = 300000, lease_until = now() + interval '5 min',
                      started_at = now(), state_changed_at = now()
                 FROM picked WHERE j.id = picked.id
               RETURNING j.*)
SELECT coalesce(array_agg(id), '{}') AS ids, array_agg(token) AS tokens,
       array_agg(attempt) AS attempts, array_agg(payload) AS bodies FROM taken
\gset
UPDATE leasehold.job
   SET state = 'completed', lease_until = NULL, worker = NULL, finished_at = now(),
       state_changed_at = now()
 WHERE id = ANY (:ids::bigint[]) AND token = 1 AND state = 'running';
