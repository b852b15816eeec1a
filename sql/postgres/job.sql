-- Jobs: enqueue and claim.

-- name: job_enqueue
SELECT * FROM leasehold.enqueue_many($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14,
                                     $15, $16, $17);

-- name: job_enqueue_one
SELECT leasehold.enqueue_one($1, $2, $3, $4);

-- name: job_enqueue_there
-- Runs on the user's own connection, where nobody has checked the schema version yet. With a newer schema it
-- returns nothing and enqueues nothing (the CASE makes the call wait for the check). It works with any
-- search_path.
SELECT e.id, e.state, e.duplicate
  FROM leasehold.about() a,
       leasehold.enqueue_many(CASE WHEN a.schema_version OPERATOR(pg_catalog.<=) $18 THEN $1 END,
                              $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17) e
 WHERE a.schema_version OPERATOR(pg_catalog.<=) $18;

-- name: job_claim
SELECT * FROM leasehold.claim_many($1, $2, $3, $4, $5, $6, $7);

-- name: job_claim_one
SELECT * FROM leasehold.claim_one($1, $2, $3, $4, $5, $6, $7, $8);

-- name: job_corrupt
SELECT leasehold.fail_corrupt($1, $2);
