-- The acts of a holder: heartbeat, complete, fail, release. The write itself compares the token; a holder that
-- lost its lease is told which worker has the job.
--
-- A batch is one UPDATE over all of its items, in the order of their ids, so that two batches with jobs in
-- common never deadlock. The rows are looked up by primary key for the whole array (id = ANY) and hashed
-- against the items. These functions turn off other ways to scan and join, and jit, because the planner would
-- count the cost of what is turned off as work worth compiling. Items that did not match are examined one by
-- one afterwards. The functions return only the refused items.
--
-- Where a job is found by its id, the condition is `worker IS NOT NULL`, which is the same as state = 'running'
-- (job_invariants). With a condition on the state, the planner of a queue that once had no running jobs would
-- read the whole index of running jobs.

-- ---- quarantine: live leases that an operator revoked ----

CREATE FUNCTION leasehold.quarantine_put(of_queue text, of_job bigint, of_token bigint, until timestamptz)
RETURNS void LANGUAGE sql VOLATILE
BEGIN ATOMIC
    INSERT INTO leasehold.quarantine AS h VALUES (of_queue, of_job, of_token, until)
        ON CONFLICT (queue, job) DO UPDATE SET token = excluded.token, until = excluded.until;
END;

-- The holder of a revoked lease has answered: the job, its slot and its exclusive lease are free. The job may
-- have been deleted meanwhile.
CREATE FUNCTION leasehold.quarantine_answered(now timestamptz, of_job bigint, of_token bigint)
RETURNS void LANGUAGE plpgsql
AS $$
DECLARE
    held leasehold.quarantine;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM leasehold.quarantine h WHERE h.job = of_job AND h.token = of_token) THEN
        RETURN;
    END IF;
    -- Lock the job before its quarantine row, in the same order as the acts that insert one.
    PERFORM 1 FROM leasehold.job j WHERE j.id = of_job FOR UPDATE;
    DELETE FROM leasehold.quarantine h WHERE h.job = of_job AND h.token = of_token RETURNING * INTO held;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    UPDATE leasehold.job j SET run_at = now
     WHERE j.id = of_job AND j.state = 'scheduled' AND j.run_at = held.until;
    -- The quarantine may be over, and another worker may have the job and the lease.
    IF NOT EXISTS (SELECT 1 FROM leasehold.job j WHERE j.id = of_job AND j.worker IS NOT NULL) THEN
        PERFORM leasehold.exclusive_end(ARRAY[of_job], ARRAY[held.queue]);
    END IF;
    PERFORM leasehold.wake_queue(held.queue, now);
END $$;

-- ---- exclusive queues: the lease processing/QUEUE ends with its job ----

CREATE FUNCTION leasehold.exclusive_acquire(now timestamptz, m leasehold.meta, of_queue text,
                                            of_job bigint, of_worker text, until timestamptz)
RETURNS boolean LANGUAGE plpgsql
AS $$
BEGIN
    RETURN leasehold.lease_take(now, leasehold.due(now, m.no_expiry_before), m.first_token, 'processing',
                                of_queue, of_worker, until, NULL, of_job) IS NOT NULL;
END $$;

CREATE FUNCTION leasehold.exclusive_extend(now timestamptz, of_queue text, of_job bigint,
                                           until timestamptz)
RETURNS void LANGUAGE sql VOLATILE
BEGIN ATOMIC
    UPDATE leasehold.lease l SET expires_at = until, ttl_ms = leasehold.ms(until - now)
     WHERE l.scope = 'processing' AND l.name = of_queue AND l.job = of_job;
END;

CREATE FUNCTION leasehold.exclusive_end(jobs bigint[], queues text[]) RETURNS void LANGUAGE plpgsql
AS $$
DECLARE
    held record;
BEGIN
    FOR held IN SELECT l.name, l.token FROM leasehold.lease l
                 WHERE l.scope = 'processing' AND l.name = ANY(queues) AND l.job = ANY(jobs)
                 ORDER BY l.name
    LOOP
        PERFORM leasehold.lease_free('processing', held.name, held.token);
    END LOOP;
END $$;

-- Runs of these jobs have ended. If their queues have limits, wake sleepers for the free slots.
CREATE FUNCTION leasehold.release_limits(now timestamptz, jobs bigint[], queues text[])
RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM leasehold.exclusive_end(jobs, queues);
    PERFORM leasehold.wake_queue(q.queue, now) FROM unnest(queues) q(queue)
      WHERE EXISTS (SELECT 1 FROM leasehold.policy p
                     WHERE p.queue IN (q.queue, '*') AND (p.exclusive OR p.concurrency > 0));
END $$;

-- ---- acts without the lease ----

-- Why an act with this token is refused. `ends`: the act would have ended the run, so it also counts as the
-- answer of the holder of a revoked lease.
CREATE FUNCTION leasehold.not_held(now timestamptz, of_job bigint, of_token bigint, ends boolean,
                                   OUT status integer, OUT message text) LANGUAGE plpgsql
AS $$
DECLARE
    j leasehold.job;
BEGIN
    IF ends THEN
        PERFORM leasehold.quarantine_answered(now, of_job, of_token);
    END IF;
    SELECT * INTO j FROM leasehold.job w WHERE w.id = of_job;
    status := -8;
    IF NOT FOUND THEN
        status := -5;
        message := format('there is no job %s', of_job);
    ELSIF of_token > j.token THEN
        message := format('job %s never had token %s: its token is %s', of_job, of_token, j.token);
    ELSIF j.state = 'cancelled' THEN
        status := -9;
        message := format('job %s was cancelled', of_job);
    ELSIF j.state = 'running' AND j.token = of_token THEN
        message := format('the lease of job %s has expired', of_job);
    ELSIF j.state = 'running' THEN
        message := format('lease of job %s is lost: token %s was followed by %s, claimed by '
                          'worker "%s"', of_job, of_token, j.token, j.worker);
    ELSIF j.token = of_token THEN
        message := format('lease of job %s has ended: the job is %s', of_job, j.state);
    ELSE
        message := format('lease of job %s is lost: its token is %s now, not %s; the job is %s',
                          of_job, j.token, of_token, j.state);
    END IF;
END $$;

-- Was the job already released, or failed with this error, under this token? Then the call is a repeat.
CREATE FUNCTION leasehold.is_repeated_end(of_job bigint, of_token bigint, error text) RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    RETURN EXISTS (
        SELECT 1 FROM leasehold.job j
         WHERE j.id = of_job AND j.token = of_token
           AND CASE WHEN error IS NULL
                    THEN j.state IN ('pending', 'scheduled') AND j.started_at IS NULL
                    ELSE j.state IN ('pending', 'scheduled', 'failed') AND j.started_at IS NOT NULL
                         AND j.last_error = error END);
END $$;

-- The policies of these jobs.
CREATE FUNCTION leasehold.policies_of(jobs bigint[]) RETURNS SETOF leasehold.policy LANGUAGE plpgsql
AS $$
DECLARE
    pair record;
BEGIN
    FOR pair IN SELECT DISTINCT j.queue, j.kind FROM leasehold.job j WHERE j.id = ANY(jobs) LOOP
        RETURN QUERY SELECT * FROM leasehold.policy_of(pair.queue, pair.kind);
    END LOOP;
END $$;

-- ---- heartbeat ----

-- Returns the refused items; NULL: none. All arrays except the first two may be empty.
CREATE FUNCTION leasehold.heartbeat_jobs(now timestamptz, m leasehold.meta, jobs bigint[],
                                    tokens bigint[], leases_ms bigint[], percents bigint[],
                                    stages text[], checkpoints text[])
RETURNS leasehold.outcome[] LANGUAGE plpgsql
AS $$
DECLARE
    due     timestamptz := leasehold.due(now, m.no_expiry_before);
    free    bigint[];
    done    integer[];
    changed boolean;
BEGIN
    IF cardinality(jobs) = 1 AND NOT m.has_policies AND checkpoints[1] IS NULL THEN
        UPDATE leasehold.job j
           SET lease_until = now + leasehold.span(coalesce(leases_ms[1], j.held_ms)),
               last_heartbeat_at = now, progress = coalesce(percents[1], j.progress),
               stage = coalesce(stages[1], j.stage)
         WHERE j.id = jobs[1] AND j.token = tokens[1] AND j.lease_until > due;
        IF FOUND THEN
            changed := leasehold.changed();
            RETURN NULL;
        END IF;
    ELSE
        -- One job that an open transaction has locked must not cost the others their leases.
        free := CASE WHEN cardinality(jobs) = 1 THEN jobs
                     ELSE ARRAY(SELECT w.id FROM leasehold.job w WHERE w.id = ANY (jobs) ORDER BY w.id
                                   FOR NO KEY UPDATE SKIP LOCKED) END;
        WITH beat AS (
            UPDATE leasehold.job j
               SET lease_until = now + leasehold.span(coalesce(a.lease_ms, j.held_ms)),
                   last_heartbeat_at = now, progress = coalesce(a.percent, j.progress),
                   stage = coalesce(a.stage, j.stage),
                   checkpoint = coalesce(a.checkpoint, j.checkpoint)
              FROM (SELECT DISTINCT ON (u.job, u.token) *
                      FROM unnest(jobs, tokens, leases_ms, percents, stages, checkpoints)
                           WITH ORDINALITY u(job, token, lease_ms, percent, stage, checkpoint, n)
                     WHERE u.checkpoint IS NULL OR leasehold.is_json(u.checkpoint)
                     ORDER BY u.job, u.token, u.n DESC) a
             WHERE j.id = ANY (free) AND j.id = a.job AND j.token = a.token AND j.lease_until > due
            RETURNING a.n, j.id, j.queue, j.lease_until
        ), followed AS (
            UPDATE leasehold.lease l
               SET expires_at = b.lease_until, ttl_ms = leasehold.ms(b.lease_until - now)
              FROM beat b
             WHERE m.has_policies AND l.scope = 'processing' AND l.name = b.queue AND l.job = b.id)
        SELECT array_agg(b.n) INTO done FROM beat b;
        changed := done IS NOT NULL AND leasehold.changed();
        IF cardinality(done) = cardinality(jobs) THEN
            RETURN NULL;
        END IF;
    END IF;
    IF m.timeline <> left(pg_walfile_name(pg_current_wal_lsn()), 8) THEN
        -- This is the first call after another server took over: its lease has not ended.
        RETURN leasehold.heartbeat_jobs(now, leasehold.new_server(now), jobs, tokens, leases_ms, percents,
                                   stages, checkpoints);
    END IF;
    RETURN leasehold.heartbeats_refused(now, jobs, tokens, checkpoints, done, free);
END $$;

-- The items that were not done. If a job is named twice, one heartbeat did both. `free`: jobs that no other
-- session had locked (NULL: all).
CREATE FUNCTION leasehold.heartbeats_refused(now timestamptz, jobs bigint[], tokens bigint[],
                                        checkpoints text[], done integer[], free bigint[])
RETURNS leasehold.outcome[] LANGUAGE plpgsql
AS $$
DECLARE
    refused leasehold.outcome[];
    why     record;
BEGIN
    FOR i IN 1..cardinality(jobs) LOOP
        IF i = ANY(done) THEN
            CONTINUE;
        END IF;
        IF NOT leasehold.is_json(checkpoints[i]) THEN
            refused := refused || (i, -3, 'checkpoint is not JSON: ' || left(checkpoints[i], 80))
                                  ::leasehold.outcome;
        ELSIF NOT EXISTS (SELECT 1 FROM unnest(done) d
                           WHERE jobs[d] = jobs[i] AND tokens[d] = tokens[i]) THEN
            IF jobs[i] <> ALL (free)
               AND EXISTS (SELECT 1 FROM leasehold.job j WHERE j.id = jobs[i] AND j.token = tokens[i]
                              AND j.worker IS NOT NULL) THEN
                refused := refused || (i, -11, format('store is busy: job %s is locked by another transaction',
                                                      jobs[i]))::leasehold.outcome;
                CONTINUE;
            END IF;
            SELECT * INTO why FROM leasehold.not_held(now, jobs[i], tokens[i], false);
            refused := refused || (i, why.status, why.message)::leasehold.outcome;
        END IF;
    END LOOP;
    RETURN refused;
END $$;

CREATE FUNCTION leasehold.need_heartbeats(jobs bigint[], tokens bigint[], leases_ms bigint[], percents bigint[],
                                     stages text[], checkpoints text[]) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM leasehold.need_refs(jobs, tokens, array_dims(leases_ms), array_dims(percents), array_dims(stages),
                                array_dims(checkpoints));
    PERFORM leasehold.need_all_ms('lease', leases_ms, 1, 2592000000);
    PERFORM leasehold.need_ranges('progress', percents, 0, 100);
    PERFORM leasehold.need_texts('stage', stages, 256);
    PERFORM leasehold.need_texts('checkpoint', checkpoints, 65536);
END $$;

CREATE FUNCTION leasehold.heartbeat_many(jobs bigint[], tokens bigint[], leases_ms bigint[],
                                         percents bigint[], stages text[], checkpoints text[])
RETURNS SETOF leasehold.outcome LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = off
SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    m       leasehold.meta;
    refused leasehold.outcome[];
BEGIN
    PERFORM leasehold.need_heartbeats(jobs, tokens, leases_ms, percents, stages, checkpoints);
    SELECT * INTO m FROM leasehold.meta WHERE one;
    refused := leasehold.heartbeat_jobs(leasehold.clock(), m, jobs, tokens, leases_ms, percents, stages,
                                   checkpoints);
    IF refused IS NOT NULL THEN
        RETURN QUERY SELECT * FROM unnest(refused);
    END IF;
END $$;
