-- Output of runs.

-- name: output_of
-- The policy and the attempt of a run, and whether it may write: under the token that the job has
-- now, or to a row that it has started before. Also whether that row exists.
SELECT j.queue, j.kind, coalesce(o.attempt, j.attempt), j.token = :token OR o.job IS NOT NULL,
       o.job IS NOT NULL
  FROM lh_job j LEFT JOIN lh_output o ON o.job = j.id AND o.token = :token
 WHERE j.id = :job;

-- name: output_put
-- Output that arrives late does not overwrite newer output.
INSERT INTO lh_output(job, token, attempt, at, result_bytes, stdout_bytes, stdout_head, stdout_tail,
                      stderr_bytes, stderr_head, stderr_tail)
VALUES (:job, :token, :attempt, :now, :result_bytes, :stdout_bytes, :stdout_head, :stdout_tail,
        :stderr_bytes, :stderr_head, :stderr_tail)
    ON CONFLICT DO UPDATE
   SET at = excluded.at, result_bytes = coalesce(excluded.result_bytes, result_bytes),
       stdout_bytes = excluded.stdout_bytes, stdout_head = excluded.stdout_head,
       stdout_tail = excluded.stdout_tail, stderr_bytes = excluded.stderr_bytes,
       stderr_head = excluded.stderr_head, stderr_tail = excluded.stderr_tail
 WHERE excluded.stdout_bytes >= stdout_bytes AND excluded.stderr_bytes >= stderr_bytes;

-- name: output_trim
-- Only the newest runs of a job are kept.
DELETE FROM lh_output
 WHERE job = :job
   AND token <= (SELECT token FROM lh_output WHERE job = :job ORDER BY token DESC LIMIT 1 OFFSET :runs);

-- name: output_list
SELECT token, attempt, at, result_bytes, stdout_bytes, stdout_head, stdout_tail, stderr_bytes, stderr_head,
       stderr_tail
  FROM lh_output
 WHERE job = :job AND (:attempt = 0 OR attempt = :attempt) AND at >= :since
 ORDER BY token;

-- name: output_result
SELECT result_bytes FROM lh_output WHERE job = :job AND token = :token;

-- name: output_aged
-- This scan over ids starts where job_aged ends: at jobs that are too young to be pruned, if they
-- have output.
SELECT j.id, j.queue, j.kind, j.state, j.finished_at, j.created_at
  FROM lh_output o CROSS JOIN lh_job j ON j.id = o.job
 WHERE o.job > :after GROUP BY o.job ORDER BY o.job LIMIT :n;

-- name: output_prune
DELETE FROM lh_output WHERE job = :job;
