-- Privileges. PUBLIC has none.
--
--   leasehold_owner    owns everything here; the acts run as it (SECURITY DEFINER). It has no other
--                      rights: the user who migrates is often a superuser, and no act should run as one
--   leasehold_worker   calls the acts, inserts jobs, reads
--   leasehold_reader   reads
--   leasehold_producer enqueues, and reads the results of its own jobs
--
-- None of them can log in: GRANT leasehold_worker TO app. Roles belong to the server, not to the database, so
-- other databases may have created them. If the migrating user may not create or use them (some managed
-- services), that user owns everything, a NOTICE says so, and leasehold.admit('app', 'worker') gives an
-- existing role its rights.

-- Give a role what a worker, a reader or a producer needs. The owner of the schema may call it. A function that
-- is in no list is called only by other functions of ours.
CREATE FUNCTION leasehold.admit(who name, what text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- Views call the functions of the first line as the role that reads them.
    reads constant text[] := ARRAY['clock', 'closed_words', 'due', 'ms', 'falls_due', 'shape', 'span', 'stream_text',
        'about', 'jobs_of', 'lease_get', 'leases', 'queues', 'recovery_report', 'recovery_stats',
        'stale_jobs', 'stale_rest', 'result'];
    acts constant text[] := ARRAY[
        'enqueue', 'claim', 'heartbeat', 'complete', 'fail', 'release', 'release_worker', 'cancel',
        'retry', 'delete', 'reschedule', 'queue_set', 'queue_pause', 'queue_resume', 'queue_purge',
        'queue_delete', 'scope_set', 'schedule_remove', 'lease_acquire', 'lease_extend', 'lease_release',
        'lease_complete', 'worker_heartbeat', 'worker_stop', 'recover', 'maintain', 'prune',
        -- The library calls these.
        'enqueue_many', 'enqueue_one', 'claim_many', 'claim_one', 'heartbeat_many', 'complete_many', 'complete_one', 'fail_many',
        'fail_corrupt', 'release_many', 'release_worker_all', 'release_worker_many', 'cancel_many',
        'retry_many', 'delete_many', 'reschedule_many', 'policy_set', 'scope_put', 'queue_switch',
        'purge_batch', 'schedule_before', 'schedule_put', 'schedule_put_off', 'schedule_run', 'schedules_due',
        'lease_act', 'worker_register', 'worker_heartbeat_put', 'worker_leave', 'worker_started',
        'worker_sessions', 'worker_degraded', 'recover_batch', 'recount', 'maintain_round', 'prune_round', 'poll',
        'retry_waits', 'output_many', 'resign_leader', 'subscribe', 'clock_jumped'];
    produces constant text[] := ARRAY['about', 'enqueue', 'enqueue_many', 'enqueue_one', 'result'];
    one regprocedure;
BEGIN
    IF what IS NULL OR what NOT IN ('worker', 'reader', 'producer') THEN
        RAISE EXCEPTION USING ERRCODE = 'LH003', MESSAGE =
            format('access is "%s": worker, reader or producer is allowed', coalesce(what, ''));
    END IF;
    EXECUTE format('GRANT USAGE ON SCHEMA leasehold TO %I', who);
    IF what <> 'producer' THEN
        EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA leasehold TO %I', who);
        EXECUTE format('GRANT SELECT ON ALL SEQUENCES IN SCHEMA leasehold TO %I', who);
    END IF;
    IF what <> 'reader' THEN
        -- A plain INSERT is an enqueue. Columns that the trigger does not check may not be set.
        EXECUTE format('GRANT INSERT (queue, kind, payload, payload_bytes, priority, key, run_at, '
                       'expires_at, max_attempts, lease_ms, backoff_ms, backoff_cap_ms) '
                       'ON leasehold.job TO %I', who);
    END IF;
    FOR one IN
        SELECT p.oid FROM pg_proc p
         WHERE p.pronamespace = 'leasehold'::regnamespace
           AND CASE what WHEN 'producer' THEN p.proname = ANY (produces)
                         ELSE p.proname = ANY (reads) OR (what = 'worker' AND p.proname = ANY (acts)) END
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', one, who);
    END LOOP;
END $$;

REVOKE ALL ON SCHEMA leasehold FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA leasehold FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA leasehold FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA leasehold FROM PUBLIC;

-- Create the roles if possible. Two databases may be migrated at once.
DO $$
DECLARE
    role text;
BEGIN
    FOREACH role IN ARRAY ARRAY['leasehold_owner', 'leasehold_worker', 'leasehold_reader', 'leasehold_producer'] LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = role) THEN
            BEGIN
                EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', role);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL;  -- another session has created it
            END;
        END IF;
    END LOOP;
    PERFORM leasehold.admit('leasehold_worker', 'worker');
    PERFORM leasehold.admit('leasehold_reader', 'reader');
    PERFORM leasehold.admit('leasehold_producer', 'producer');
EXCEPTION WHEN insufficient_privilege THEN
    RAISE NOTICE 'roles leasehold_worker, leasehold_reader and leasehold_producer cannot be made by role "%": let '
        'others in by leasehold.admit(role, ''worker''), ''reader'' or ''producer''', current_user;
END $$;

-- Give everything to the owner, the schema first: the owner of an object must be able to create it.
DO $$
DECLARE
    thing record;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'leasehold_owner') THEN
        RETURN;
    END IF;
    IF NOT pg_catalog.pg_has_role(current_user, 'leasehold_owner', 'USAGE') THEN
        EXECUTE pg_catalog.format('GRANT leasehold_owner TO %I', current_user);
    END IF;
    ALTER SCHEMA leasehold OWNER TO leasehold_owner;
    FOR thing IN
        SELECT CASE c.relkind WHEN 'v' THEN 'VIEW' WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END AS kind,
               c.oid::regclass::text AS name
          FROM pg_catalog.pg_class c
         WHERE c.relnamespace = 'leasehold'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'S')
           -- The sequence of an identity column changes its owner with its table.
           AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d
                            WHERE d.objid = c.oid AND d.deptype = 'i' AND c.relkind = 'S')
        UNION ALL
        SELECT 'TYPE', t.oid::regtype::text
          FROM pg_catalog.pg_type t JOIN pg_catalog.pg_class c ON c.oid = t.typrelid
         WHERE t.typnamespace = 'leasehold'::regnamespace AND c.relkind = 'c'
        UNION ALL
        SELECT 'FUNCTION', p.oid::regprocedure::text
          FROM pg_catalog.pg_proc p WHERE p.pronamespace = 'leasehold'::regnamespace
    LOOP
        EXECUTE pg_catalog.format('ALTER %s %s OWNER TO leasehold_owner', thing.kind, thing.name);
    END LOOP;
EXCEPTION WHEN insufficient_privilege THEN
    RAISE NOTICE 'role leasehold_owner cannot be used by role "%", which owns the schema leasehold '
        'instead', current_user;
END $$;
