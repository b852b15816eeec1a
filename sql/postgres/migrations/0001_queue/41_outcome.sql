-- The end of a run: complete, fail, release; see 40_holder.sql.

-- ---- complete ----

-- In a queue with policies: release the limits that the runs occupied, and write the events of a full audit.
-- `workers` had the jobs of the batch; `done` has the numbers of the items that are done.
CREATE FUNCTION leasehold.completed_under_policies(now timestamptz, jobs bigint[], tokens bigint[],
                                                   workers text[], done integer[])
RETURNS void LANGUAGE plpgsql
AS $$
DECLARE
    ended  bigint[] := ARRAY(SELECT jobs[i] FROM unnest(done) i);
    queues text[] := ARRAY(SELECT DISTINCT j.queue FROM leasehold.job j WHERE j.id = ANY(ended));
BEGIN
    PERFORM leasehold.release_limits(now, ended, queues);
    INSERT INTO leasehold.event(at, type, job, queue, worker, from_state, to_state, actor, token)
    SELECT now, 'job.completed', j.id, j.queue, workers[i], 'running', 'completed', workers[i],
           tokens[i]
      FROM unnest(done) i JOIN leasehold.job j ON j.id = jobs[i] AND j.id = ANY (ended)
      JOIN (SELECT p.queue, p.kind FROM leasehold.policies_of(ended) p WHERE p.audit = 2) full_audit
           ON full_audit.queue = j.queue AND full_audit.kind = coalesce(j.kind, '*')
     ORDER BY i;
END $$;

-- The token is compared, not the clock: a slow worker may complete its job as long as no other worker has
-- claimed it. Results of more than `most` bytes are left out. Returns the numbers of the items that are done.
CREATE FUNCTION leasehold.complete_held(now timestamptz, m leasehold.meta, jobs bigint[],
                                        tokens bigint[], results text[], results_bytes bytea[],
                                        most_bytes bigint)
RETURNS integer[] LANGUAGE plpgsql
AS $$
DECLARE
    workers text[];
    done    integer[];
BEGIN
    IF m.has_policies THEN
        -- Only the holder can end a run under its token, so this value cannot change before the update.
        workers := ARRAY(SELECT o.worker FROM unnest(jobs) WITH ORDINALITY u(job, n)
                           LEFT JOIN leasehold.job o ON o.id = u.job AND o.id = ANY (jobs)
                          ORDER BY u.n);
    END IF;
    WITH done AS (
        UPDATE leasehold.job j
           SET $[completed(j, a.result)], result_bytes = a.bytes
          FROM (SELECT DISTINCT ON (u.job, u.token) *
                  FROM unnest(jobs, tokens, results, results_bytes)
                       WITH ORDINALITY u(job, token, result, bytes, n)
                 WHERE coalesce(octet_length(u.result), octet_length(u.bytes), 0) <= most_bytes
                 ORDER BY u.job, u.token, u.n) a
         WHERE j.id = ANY (jobs) AND j.id = a.job AND j.token = a.token AND j.worker IS NOT NULL
        RETURNING a.n, j.queue, leasehold.ms(now - j.started_at) AS ran
    ), counted AS (
        INSERT INTO leasehold.delta(queue, at, act, was, becomes, n, ms)
        SELECT d.queue, now, 'd', 'running', 'completed', count(*), sum(d.ran)
          FROM done d GROUP BY d.queue)
    SELECT array_agg(d.n) INTO done FROM done d;
    IF m.has_policies AND done IS NOT NULL THEN
        PERFORM leasehold.completed_under_policies(now, jobs, tokens, workers, done);
    END IF;
    RETURN done;
END $$;

-- An item that is not done yet: the job was already completed, or is not held, or its own policy must decide
-- about the size of its result.
CREATE FUNCTION leasehold.complete_leftover(now timestamptz, m leasehold.meta, of_job bigint,
                                        of_token bigint, of_result text, of_bytes bytea,
                                        OUT status integer, OUT message text) LANGUAGE plpgsql
AS $$
DECLARE
    j    leasehold.job;
    size bigint := coalesce(octet_length(of_result), octet_length(of_bytes), 0);
    most bigint;
BEGIN
    -- Without a lock: the rows of the batch are already locked, in order.
    SELECT * INTO j FROM leasehold.job w WHERE w.id = of_job AND w.token = of_token;
    status := 0;
    IF j.state = 'completed' AND j.result IS NOT DISTINCT FROM of_result
       AND j.result_bytes IS NOT DISTINCT FROM of_bytes THEN
        RETURN;
    ELSIF j.state = 'running' THEN
        most := (leasehold.policy_of(j.queue, j.kind)).max_payload;
        IF size > most THEN
            status := -4;
            message := format('result of %s bytes is too large: queue "%s" takes at most %s bytes',
                              size, j.queue, most);
            RETURN;
        ELSIF leasehold.complete_held(now, m, ARRAY[of_job], ARRAY[of_token], ARRAY[of_result],
                                      ARRAY[of_bytes], most) IS NOT NULL THEN
            RETURN;
        END IF;
    END IF;
    SELECT * INTO status, message FROM leasehold.not_held(now, of_job, of_token, true);
END $$;

CREATE FUNCTION leasehold.complete_many(jobs bigint[], tokens bigint[], results text[],
                                        results_bytes bytea[])
RETURNS SETOF leasehold.outcome LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = off
SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    now   timestamptz := leasehold.clock();
    most  bigint := $[max_payload];
    m     leasehold.meta;
    done  integer[];
    why   record;
BEGIN
    PERFORM leasehold.need_refs(jobs, tokens, array_dims(results), array_dims(results_bytes));
    IF results_bytes <> '{}' THEN
        PERFORM leasehold.need_one_form('result', r IS NOT NULL AND b IS NOT NULL) FROM unnest(results, results_bytes) u(r, b);
    END IF;
    SELECT * INTO m FROM leasehold.meta WHERE one;
    IF m.has_policies THEN
        -- A result that is small enough for every policy needs no further check.
        SELECT least(most, min(p.max_payload)) INTO most FROM leasehold.policy p;
    END IF;
    done := leasehold.complete_held(now, m, jobs, tokens, results, results_bytes, most);
    IF cardinality(done) = cardinality(jobs) THEN
        RETURN;
    END IF;
    FOR i IN 1..cardinality(jobs) LOOP
        IF NOT coalesce(i = ANY(done), false) THEN
            SELECT * INTO why FROM leasehold.complete_leftover(now, m, jobs[i], tokens[i], results[i],
                                                           results_bytes[i]);
            IF why.status < 0 THEN
                RETURN NEXT (i, why.status, why.message)::leasehold.outcome;
            END IF;
        END IF;
    END LOOP;
END $$;

-- Complete one job with a text result or none. Returns NULL, or "STATUS MESSAGE" if it is refused. One
-- statement does it if nothing is unusual. (claim_one() does the same for a job that the same call completes.)
CREATE FUNCTION leasehold.complete_one(of_job bigint, of_token bigint, of_result text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    now timestamptz := leasehold.clock();
BEGIN
    WITH done AS (
        $[complete_job(j, of_job, of_token, of_result)]
        RETURNING j.queue, j.started_at)
    INSERT INTO leasehold.delta(queue, at, act, was, becomes, n, ms)
    SELECT d.queue, now, 'd', 'running', 'completed', 1, leasehold.ms(now - d.started_at) FROM done d;
    IF FOUND THEN
        RETURN NULL;
    END IF;
    RETURN (SELECT o.status || ' ' || o.message
              FROM leasehold.complete_many(ARRAY[of_job], ARRAY[of_token], ARRAY[of_result], '{}') o);
END $$;

-- After runs of these queues have ended without completing: wake sleepers of the queues in `woken`, which have
-- pending jobs now, wake maintenance if a job falls due `soon`, and release the limits that the runs occupied.
CREATE FUNCTION leasehold.runs_ended(now timestamptz, m leasehold.meta, ended bigint[], queues text[],
                                     woken text[], soon boolean) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM leasehold.wake_queue(q.queue, now) FROM unnest(woken) q(queue);
    IF soon THEN
        PERFORM leasehold.wake_maintenance(now);
    END IF;
    IF m.has_policies AND queues IS NOT NULL THEN
        PERFORM leasehold.release_limits(now, ended, queues);
    END IF;
END $$;

-- ---- fail ----

-- Returns the numbers of the items that are done. retry_in_ms: 0 or NULL by the backoff, -1 at once.
CREATE FUNCTION leasehold.fail_held(now timestamptz, m leasehold.meta, jobs bigint[],
                                    tokens bigint[], errors text[], retry_in_ms bigint[],
                                    permanent boolean[])
RETURNS integer[] LANGUAGE plpgsql
AS $$
DECLARE
    done   integer[];
    ended  bigint[];
    queues text[];
    woken  text[];
    soon   boolean;
BEGIN
    WITH held AS (
        SELECT DISTINCT ON (u.job, u.token) u.n, u.job, u.token, u.error, o.worker,
               coalesce(u.permanent, false)
               OR (o.max_attempts <> -1 AND o.attempt >= o.max_attempts) AS last,
               CASE WHEN u.retry_in_ms = -1 THEN 0
                    WHEN u.retry_in_ms > 0 THEN u.retry_in_ms
                    ELSE leasehold.backoff(coalesce(nullif(o.backoff_ms, 0), p.backoff_ms, $[backoff_ms]),
                                           coalesce(nullif(o.backoff_cap_ms, 0), p.backoff_cap_ms,
                                                    $[backoff_cap_ms]), o.attempt) END AS delay_ms
          FROM unnest(jobs, tokens, errors, retry_in_ms, permanent)
               WITH ORDINALITY u(job, token, error, retry_in_ms, permanent, n)
          JOIN leasehold.job o ON o.id = ANY (jobs) AND o.id = u.job AND o.token = u.token
                               AND o.worker IS NOT NULL
          LEFT JOIN leasehold.policies_of(CASE WHEN m.has_policies THEN jobs END) p
               ON p.queue = o.queue AND p.kind = coalesce(o.kind, '*')
         ORDER BY u.job, u.token, u.n
    ), done AS (
        UPDATE leasehold.job j
           SET state = CASE WHEN h.last THEN 'failed' WHEN h.delay_ms > 0 THEN 'scheduled'
                            ELSE 'pending' END,
               run_at = CASE WHEN NOT h.last AND h.delay_ms > 0
                             THEN now + leasehold.span(h.delay_ms) END,
               finished_at = CASE WHEN h.last THEN now END,
               lease_until = NULL, worker = NULL, last_error = h.error, again = true,
               state_changed_at = greatest(now, j.started_at)
          FROM held h
         WHERE j.id = ANY (jobs) AND j.id = h.job AND j.token = h.token AND j.worker IS NOT NULL
        RETURNING h.n, j.id, j.queue, j.state, j.run_at, h.token, h.worker, h.error,
                  leasehold.ms(now - j.started_at) AS ran
    ), counted AS (
        INSERT INTO leasehold.delta(queue, at, act, was, becomes, n, ms)
        SELECT d.queue, now, 'f', 'running', d.state, count(*), sum(d.ran)
          FROM done d GROUP BY d.queue, d.state
    ), told AS (
        INSERT INTO leasehold.event(at, type, job, queue, worker, from_state, to_state, actor,
                                    reason, token)
        SELECT now, 'job.failed', d.id, d.queue, d.worker, 'running', d.state, d.worker, d.error,
               d.token
          FROM done d ORDER BY d.n)
    SELECT array_agg(d.n), array_agg(d.id), array_agg(DISTINCT d.queue),
           array_agg(DISTINCT d.queue) FILTER (WHERE d.state = 'pending'),
           bool_or(d.run_at <= now + interval '1 second')
      INTO done, ended, queues, woken, soon FROM done d;
    PERFORM leasehold.runs_ended(now, m, ended, queues, woken, soon);
    RETURN done;
END $$;

CREATE FUNCTION leasehold.fail_many(jobs bigint[], tokens bigint[], errors text[],
                                    retry_in_ms bigint[], permanent boolean[])
RETURNS SETOF leasehold.outcome LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = off
SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    now  timestamptz := leasehold.clock();
    m    leasehold.meta;
    done integer[];
BEGIN
    PERFORM leasehold.need_list('error', errors), leasehold.need_given('error', cardinality(errors) > 0),
            leasehold.need_refs(jobs, tokens, array_dims(errors), array_dims(retry_in_ms), array_dims(permanent));
    PERFORM leasehold.need_all_ms('retry delay', array_remove(retry_in_ms, -1), 0, 315360000000);
    PERFORM leasehold.need_texts('error', errors, 65536);
    SELECT * INTO m FROM leasehold.meta WHERE one;
    done := leasehold.fail_held(now, m, jobs, tokens, errors, retry_in_ms, permanent);
    IF cardinality(done) IS DISTINCT FROM cardinality(jobs) THEN
        RETURN QUERY SELECT * FROM leasehold.refused_ends(now, jobs, tokens, errors, done);
    END IF;
END $$;

-- The items of a batch that are not done and are no repeats, and why.
CREATE FUNCTION leasehold.refused_ends(now timestamptz, jobs bigint[], tokens bigint[],
                                       errors text[], done integer[])
RETURNS SETOF leasehold.outcome LANGUAGE plpgsql
AS $$
DECLARE
    why record;
BEGIN
    FOR i IN 1..cardinality(jobs) LOOP
        IF NOT coalesce(i = ANY(done), false)
           AND NOT leasehold.is_repeated_end(jobs[i], tokens[i], errors[i]) THEN
            SELECT * INTO why FROM leasehold.not_held(now, jobs[i], tokens[i], true);
            RETURN NEXT (i, why.status, why.message)::leasehold.outcome;
        END IF;
    END LOOP;
END $$;

-- ---- release ----

-- Return jobs to their queues. A release is no failure: the attempt is refunded. `actor` NULL: the holder
-- releases. Otherwise an operator does: the token rises, and a live lease goes into quarantine until the holder
-- has answered or its deadline has passed (not with at_once). delay_ms -2: the delay of the backoff. Returns
-- the numbers of the items that are done.
CREATE FUNCTION leasehold.release_jobs(now timestamptz, m leasehold.meta, jobs bigint[],
                                   tokens bigint[], delay_ms bigint, at_once boolean, actor text)
RETURNS integer[] LANGUAGE plpgsql
AS $$
DECLARE
    due    timestamptz := leasehold.due(now, m.no_expiry_before);
    done   integer[];
    ended  bigint[];
    queues text[];
    woken  text[];
    soon   boolean;
BEGIN
    WITH held AS (
        SELECT DISTINCT ON (u.job, u.token) u.n, u.job, u.token, o.worker,
               CASE WHEN actor IS NOT NULL AND NOT at_once AND o.lease_until > due
                    THEN greatest(o.lease_until, m.no_expiry_before) END AS hold_until,
               CASE WHEN delay_ms > 0 THEN now + leasehold.span(delay_ms)
                    WHEN delay_ms = -2 THEN now + leasehold.span(nullif(leasehold.backoff(
                         coalesce(nullif(o.backoff_ms, 0), p.backoff_ms, $[backoff_ms]),
                         coalesce(nullif(o.backoff_cap_ms, 0), p.backoff_cap_ms, $[backoff_cap_ms]),
                         o.attempt), 0)) END AS delayed_to
          FROM unnest(jobs, tokens) WITH ORDINALITY u(job, token, n)
          JOIN leasehold.job o ON o.id = ANY (jobs) AND o.id = u.job AND o.token = u.token
                               AND o.worker IS NOT NULL
          LEFT JOIN leasehold.policies_of(
                        CASE WHEN m.has_policies AND delay_ms = -2 THEN jobs END) p
               ON p.queue = o.queue AND p.kind = coalesce(o.kind, '*')
         ORDER BY u.job, u.token, u.n
    ), done AS (
        UPDATE leasehold.job j
           SET state = CASE WHEN greatest(h.hold_until, h.delayed_to) IS NULL THEN 'pending'
                            ELSE 'scheduled' END,
               run_at = greatest(h.hold_until, h.delayed_to), attempt = j.attempt - 1,
               token = CASE WHEN actor IS NULL THEN j.token
                            ELSE leasehold.next_token(j.token, m.first_token) END,
               lease_until = NULL, worker = NULL, started_at = NULL, again = true,
               state_changed_at = now
          FROM held h
         WHERE j.id = ANY (jobs) AND j.id = h.job AND j.token = h.token AND j.worker IS NOT NULL
        RETURNING h.n, j.id, j.queue, j.state, j.run_at, h.token, h.worker, h.hold_until
    ), held_back AS (
        INSERT INTO leasehold.quarantine AS w SELECT d.queue, d.id, d.token, d.hold_until FROM done d
         WHERE d.hold_until IS NOT NULL
            ON CONFLICT ON CONSTRAINT quarantine_pkey
            DO UPDATE SET token = excluded.token, until = excluded.until
    ), counted AS (
        INSERT INTO leasehold.delta(queue, at, act, was, becomes, n)
        SELECT d.queue, now, 'o', 'running', d.state, count(*) FROM done d GROUP BY d.queue, d.state
    ), told AS (
        INSERT INTO leasehold.event(at, type, job, queue, worker, from_state, to_state, actor,
                                    token)
        SELECT now, 'job.released', d.id, d.queue, d.worker, 'running', d.state,
               coalesce(release_jobs.actor, d.worker), d.token
          FROM done d ORDER BY d.n)
    SELECT array_agg(d.n), array_agg(d.id) FILTER (WHERE d.hold_until IS NULL),
           array_agg(DISTINCT d.queue),
           array_agg(DISTINCT d.queue) FILTER (WHERE d.state = 'pending'),
           bool_or(d.run_at <= now + interval '1 second')
      INTO done, ended, queues, woken, soon FROM done d;
    PERFORM leasehold.runs_ended(now, m, ended, queues, woken, soon);
    RETURN done;
END $$;

CREATE FUNCTION leasehold.release_many(jobs bigint[], tokens bigint[], delay_ms bigint)
RETURNS SETOF leasehold.outcome LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = off
SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    now  timestamptz := leasehold.clock();
    m    leasehold.meta;
    done integer[];
BEGIN
    PERFORM leasehold.need_refs(jobs, tokens), leasehold.need_ms('delay', nullif(nullif(delay_ms, -2), -1), 0, 315360000000);
    SELECT * INTO m FROM leasehold.meta WHERE one;
    done := leasehold.release_jobs(now, m, jobs, tokens, delay_ms, false, NULL);
    IF cardinality(done) IS DISTINCT FROM cardinality(jobs) THEN
        RETURN QUERY SELECT * FROM leasehold.refused_ends(now, jobs, tokens, '{}', done);
    END IF;
END $$;

-- Released by an operator: those of these jobs that run, whichever worker holds them. Returns how many.
CREATE FUNCTION leasehold.release_by_operator(now timestamptz, m leasehold.meta, jobs bigint[],
                                          delay_ms bigint, at_once boolean, actor text)
RETURNS bigint LANGUAGE plpgsql
AS $$
DECLARE
    running bigint[];
    tokens  bigint[];
BEGIN
    SELECT array_agg(w.id), array_agg(w.token) INTO running, tokens
      FROM (SELECT j.id, j.token FROM leasehold.job j
             WHERE j.id = ANY(jobs) AND j.worker IS NOT NULL ORDER BY j.id FOR UPDATE) w;
    RETURN coalesce(cardinality(leasehold.release_jobs(now, m, running, tokens, delay_ms, at_once,
                                                   actor)), 0);
END $$;

-- All jobs that a worker holds.
CREATE FUNCTION leasehold.release_held_by(now timestamptz, m leasehold.meta, of_worker text,
                                          delay_ms bigint, at_once boolean, actor text)
RETURNS bigint LANGUAGE plpgsql
AS $$
DECLARE
    held   bigint[] := ARRAY(SELECT j.id FROM leasehold.job j
                              WHERE j.state = 'running' AND j.worker = of_worker);
    tokens bigint[];
BEGIN
    SELECT array_agg(w.id), array_agg(w.token) INTO held, tokens
      FROM (SELECT j.id, j.token FROM leasehold.job j
             WHERE j.id = ANY (held) AND j.worker = of_worker ORDER BY j.id FOR UPDATE) w;
    RETURN coalesce(cardinality(leasehold.release_jobs(now, m, held, tokens, delay_ms, at_once,
                                                   actor)), 0);
END $$;

-- After a restore from a dump. The workers of these jobs did not die, so the jobs are released, with a
-- quarantine as long as a holder may still be working. A named lease gets a new token and ends when it expires.
CREATE FUNCTION leasehold.end_all_leases(now timestamptz, m leasehold.meta) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE leasehold.lease l
       SET token = greatest(l.token + 1, m.first_token + nextval('leasehold.lease_token'))
     WHERE l.owner IS NOT NULL AND l.job IS NULL;
    PERFORM leasehold.release_by_operator(now, m,
        ARRAY(SELECT j.id FROM leasehold.job j WHERE j.state = 'running'), 0, false, 'restore');
END $$;

CREATE FUNCTION leasehold.release_worker_all(of_worker text, delay_ms bigint, at_once boolean)
RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = off
SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    m leasehold.meta;
BEGIN
    PERFORM leasehold.need_name('worker', of_worker), leasehold.need_given('at_once', at_once IS NOT NULL),
            leasehold.need_ms('delay', nullif(nullif(delay_ms, -2), -1), 0, 315360000000);
    SELECT * INTO m FROM leasehold.meta WHERE one;
    RETURN leasehold.release_held_by(leasehold.clock(), m, of_worker, delay_ms, at_once, 'hand');
END $$;

-- These jobs, if this worker holds them.
CREATE FUNCTION leasehold.release_worker_many(of_worker text, jobs bigint[], delay_ms bigint,
                                              at_once boolean)
RETURNS SETOF leasehold.outcome LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = off
SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    now    timestamptz := leasehold.clock();
    m      leasehold.meta;
    held   bigint[];
    tokens bigint[];
BEGIN
    PERFORM leasehold.need_name('worker', of_worker), leasehold.need_list('job', jobs),
            leasehold.need_given('at_once', at_once IS NOT NULL), leasehold.need_ms('delay', nullif(nullif(delay_ms, -2), -1), 0, 315360000000);
    SELECT * INTO m FROM leasehold.meta WHERE one;
    SELECT array_agg(w.id), array_agg(w.token) INTO held, tokens
      FROM (SELECT j.id, j.token FROM leasehold.job j
             WHERE j.id = ANY(jobs) AND j.worker = of_worker
             ORDER BY j.id FOR UPDATE) w;
    PERFORM leasehold.release_jobs(now, m, held, tokens, delay_ms, at_once, 'hand');
    -- If a job is named twice, only its first item counts.
    RETURN QUERY
        SELECT u.n::integer, CASE WHEN j.id IS NULL THEN -5 ELSE -8 END,
               CASE WHEN j.id IS NULL THEN format('there is no job %s', u.job)
                    ELSE format('job %s is not held by worker "%s"', u.job, of_worker) END
          FROM unnest(jobs) WITH ORDINALITY u(job, n)
          LEFT JOIN leasehold.job j ON j.id = ANY (jobs) AND j.id = u.job
         WHERE NOT coalesce(u.job = ANY(held), false) OR array_position(jobs, u.job) < u.n
         ORDER BY u.n;
END $$;
