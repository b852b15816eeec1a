-- The acts of a holder.

-- name: job_heartbeat
SELECT * FROM leasehold.heartbeat_many($1, $2, $3, $4, $5, $6);

-- name: job_complete
SELECT * FROM leasehold.complete_many($1, $2, $3, $4);

-- name: job_complete_one
SELECT leasehold.complete_one($1, $2, $3);

-- name: job_fail
SELECT * FROM leasehold.fail_many($1, $2, $3, $4, $5);

-- name: job_release
SELECT * FROM leasehold.release_many($1, $2, $3);

-- name: job_release_worker_all
SELECT leasehold.release_worker_all($1, $2, $3);

-- name: job_release_worker
SELECT * FROM leasehold.release_worker_many($1, $2, $3, $4);
