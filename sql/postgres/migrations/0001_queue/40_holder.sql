-- The acts of a holder: heartbeat, complete, fail, release. Each is guarded by the token, in the
-- write; whoever was overtaken is told by whom.
--
-- A batch is one UPDATE over all of its items, written in the order of their ids, so that two
-- batches with jobs in common never wait for each other. That order is the one of the primary key,
-- which is looked up for the whole array (id = ANY) and hashed against the items: other ways to look
-- and to join are turned off for these functions (and with them jit, which takes the price of what is
-- turned off for work worth compiling). What did not match is looked at one by one afterwards. The
-- functions answer with the refused items only.
--
-- Of a job that is named by its id we ask whether `worker IS NOT NULL`, which is the same as
-- state = 'running' (job_invariants). Asked for the state, the planner of a queue that was once seen
-- with nothing running prefers to read all of the index of running jobs, for ever after.

-- ---- holds: a live lease that was revoked by hand ----

CREATE FUNCTION leasehold.quarantine_put(of_queue text, of_job bigint, of_token bigint, until timestamptz)
RETURNS void LANGUAGE sql VOLATILE
BEGIN ATOMIC
    INSERT INTO leasehold.quarantine AS h VALUES (of_queue, of_job, of_token, until)
        ON CONFLICT (queue, job) DO UPDATE SET token = excluded.token, until = excluded.until;
END;

-- The holder of a revoked lease has answered: job, slot and exclusive lease are free. The job may
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
    -- The job before its hold: so do those who make one.
    PERFORM 1 FROM leasehold.job j WHERE j.id = of_job FOR UPDATE;
    DELETE FROM leasehold.quarantine h WHERE h.job = of_job AND h.token = of_token RETURNING * INTO held;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    UPDATE leasehold.job j SET run_at = now
     WHERE j.id = of_job AND j.state = 'scheduled' AND j.run_at = held.until;
    -- Its time may be over, and the job another's, who has the lease now.
    IF NOT EXISTS (SELECT 1 FROM leasehold.job j WHERE j.id = of_job AND j.worker IS NOT NULL) THEN
        PERFORM leasehold.exclusive_end(ARRAY[of_job], ARRAY[held.queue]);
    END IF;
    PERFORM leasehold.wake_queue(held.queue, now);
END $$;

-- ---- exclusive queues: the lease processing/QUEUE, which ends with its job ----

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

-- Runs of these jobs have ended, in queues that may have limits: what they kept from others is
-- free.
CREATE FUNCTION leasehold.release_limits(now timestamptz, jobs bigint[], queues text[])
RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM leasehold.exclusive_end(jobs, queues);
    PERFORM leasehold.wake_queue(q.queue, now) FROM unnest(queues) q(queue)
      WHERE EXISTS (SELECT 1 FROM leasehold.policy p
                     WHERE p.queue IN (q.queue, '*') AND (p.exclusive OR p.concurrency > 0));
END $$;

-- ---- who does not hold the job ----

-- Why an act under this token is refused. `ends`: it would have ended the run, so the holder of a
-- revoked lease has answered with it.
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

-- Given back, or failed with this error, before under this token: a repeat, and done.
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

-- The policies that hold for these jobs.
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

-- Those that were refused; NULL: none. Any array but the first two may be empty.
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
        -- Somebody's open transaction at one of several must not cost the others their leases.
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
        -- The first word since another server took over: its lease is not over yet.
        RETURN leasehold.heartbeat_jobs(now, leasehold.new_server(now), jobs, tokens, leases_ms, percents,
                                   stages, checkpoints);
    END IF;
    RETURN leasehold.heartbeats_refused(now, jobs, tokens, checkpoints, done, free);
END $$;

-- Of those that are not done. A job that is named twice was beaten for by both. `free` were not in the hands
-- of others (NULL: none was).
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
                refused := refused || (i, -11, format('store is busy: job %s is in the hands of another transaction',
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
