-- The store as a whole, and statements that all acts use.

-- name: store_jobs
-- Jobs as they are now, in the given order; deleted ones are left out.
SELECT j.*, leasehold.clock() FROM leasehold.jobs_of($1) j;

-- name: store_look
-- Is our schema there? Called before anything of it.
SELECT pg_catalog.to_regprocedure('leasehold.about()') IS NOT NULL;

-- name: store_about
SELECT a.schema_version, a.recovery_due, a.last_job FROM leasehold.about() a;

-- name: store_clock
SELECT pg_catalog.clock_timestamp();

-- name: store_subscribe
-- Subscribe to wake-ups for these queues. True: poll once more, because one of them was not subscribed before.
SELECT leasehold.subscribe($1);
