-- The acts of an operator; queues, policies, scopes.

-- name: job_cancel
SELECT * FROM leasehold.cancel_many($1);

-- name: job_retry
SELECT * FROM leasehold.retry_many($1, $2, $3);

-- name: job_delete
SELECT * FROM leasehold.delete_many($1);

-- name: job_reschedule
SELECT * FROM leasehold.reschedule_many($1, $2, $3);

-- name: queue_switch
SELECT leasehold.queue_switch($1, $2);

-- name: queue_purge
SELECT purged, more FROM leasehold.purge_batch($1);

-- name: queue_delete
SELECT leasehold.queue_delete($1);

-- name: policy_set
SELECT leasehold.policy_set($1, $2, $3, $4, $5, $6, $7::integer::boolean, $8, $9, $10, $11,
                            $12::integer::boolean, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22);

-- name: scope_set
SELECT leasehold.scope_put($1, $2);
