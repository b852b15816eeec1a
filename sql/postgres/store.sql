-- The store as a whole, and what all acts share.

-- name: store_jobs
-- Jobs as they are now, in the order asked for; who is gone is left out.
SELECT j.*, leasehold.clock() FROM leasehold.jobs_of($1) j;

-- name: store_look
-- Is anything of ours there? Asked before anything of ours is called.
SELECT pg_catalog.to_regprocedure('leasehold.about()') IS NOT NULL;

-- name: store_about
SELECT a.schema_version, a.recovery_due, a.last_job FROM leasehold.about() a;

-- name: store_clock
SELECT pg_catalog.clock_timestamp();

-- name: store_subscribe
-- Somebody goes to sleep for these queues. True: one of them was not armed before, so look once more.
SELECT leasehold.subscribe($1);

-- name: store_has_fresh_job
SELECT leasehold.has_fresh_job($1);
