-- The output of runs.

-- name: output_put
SELECT * FROM leasehold.output_many($1, $2, $3, $4, $5, $6, $7, $8, $9);

-- name: output_list
SELECT token, attempt, at, result_bytes, stdout_bytes, stdout_head, stdout_tail, stderr_bytes, stderr_head,
       stderr_tail
  FROM leasehold.output
 WHERE job = $1 AND ($2 = 0 OR attempt = $2) AND at >= coalesce($3, '-infinity')
 ORDER BY token;
