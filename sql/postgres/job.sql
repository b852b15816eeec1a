-- Jobs: enqueue and claim.

-- name: job_enqueue
SELECT * FROM leasehold.enqueue_many($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14,
                                     $15, $16, $17);

-- name: job_claim
SELECT * FROM leasehold.claim_many($1, $2, $3, $4, $5, $6, $7);

-- name: job_claim_one
SELECT * FROM leasehold.claim_one($1, $2, $3, $4);

-- name: job_rotten
SELECT leasehold.fail_rotten($1, $2);
