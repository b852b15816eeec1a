-- The acts of an operator: cancel, retry, delete, reschedule; queues, policies, scopes.
--
-- A batch locks its rows in the order of their ids before it writes them. If a job is named twice, the first
-- item acts on it, and the second item sees the result. Every act of an operator writes an event.

-- A job of a batch that the act has changed.
CREATE TYPE leasehold.changed_job AS (n integer, id bigint, was text, becomes text, token bigint,
                                  queue text, worker text, reason text);

CREATE FUNCTION leasehold.lock_jobs(jobs bigint[]) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM 1 FROM leasehold.job j WHERE j.id = ANY(jobs) ORDER BY j.id FOR UPDATE;
END $$;

-- Count the changes and write their events.
CREATE FUNCTION leasehold.record_operator_act(now timestamptz, of_type text, done leasehold.changed_job[])
RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO leasehold.event(at, type, job, queue, worker, from_state, to_state, actor, reason,
                                token)
    SELECT now, of_type, d.id, d.queue, d.worker, d.was, d.becomes, 'hand', d.reason, d.token
      FROM unnest(done) d ORDER BY d.n;
    PERFORM leasehold.count_change(d.queue, now, 'o', d.was, d.becomes, d.n)
       FROM (SELECT queue, was, becomes, count(*) AS n FROM unnest(done)
              GROUP BY queue, was, becomes) d;
END $$;

-- Why the other items of a batch were not done.
CREATE FUNCTION leasehold.refused_operator_acts(jobs bigint[], done leasehold.changed_job[], verb text)
RETURNS SETOF leasehold.outcome LANGUAGE plpgsql
AS $$
BEGIN
    RETURN QUERY
        SELECT u.n::integer, CASE WHEN j.id IS NULL THEN -5 ELSE -6 END,
               CASE WHEN j.id IS NULL THEN format('there is no job %s', u.job)
                    WHEN verb = 'deleted' THEN format('job %s is running: cancel it first', u.job)
                    WHEN verb = 'retried' AND j.state = 'completed'
                    THEN format('job %s is completed: only a forced retry runs it again (--force)', u.job)
                    ELSE format('job %s is %s and cannot be %s', u.job, j.state, verb) END
          FROM unnest(jobs) WITH ORDINALITY u(job, n)
          LEFT JOIN leasehold.job j ON j.id = ANY (jobs) AND j.id = u.job
         WHERE NOT EXISTS (SELECT 1 FROM unnest(done) d WHERE d.n = u.n)
         ORDER BY u.n;
END $$;

-- ---- cancel ----

-- The job gets a new token, so that a running holder learns of the cancel at its next heartbeat. A live lease
-- goes into quarantine: it keeps its slot until the holder has answered.
CREATE FUNCTION leasehold.cancel_many(jobs bigint[]) RETURNS SETOF leasehold.outcome
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    now  timestamptz := leasehold.clock();
    m    leasehold.meta;
    done leasehold.changed_job[];
BEGIN
    PERFORM leasehold.need_list('job', jobs);
    PERFORM leasehold.lock_jobs(jobs);
    SELECT * INTO m FROM leasehold.meta WHERE one;
    WITH old AS MATERIALIZED (
        SELECT DISTINCT ON (u.job) u.n, j.id, j.queue, j.state, j.token, j.worker, j.lease_until
          FROM unnest(jobs) WITH ORDINALITY u(job, n)
          JOIN leasehold.job j ON j.id = ANY (jobs) AND j.id = u.job
         WHERE j.state IN ('scheduled', 'pending', 'running') ORDER BY u.job, u.n
    ), cancelled AS (
        UPDATE leasehold.job j
           SET state = 'cancelled', lease_until = NULL, worker = NULL,
               token = leasehold.next_token(j.token, m.first_token), last_error = 'CANCELLED: by hand',
               finished_at = now, state_changed_at = greatest(now, j.started_at)
          FROM old o
         WHERE j.id = ANY (jobs) AND j.id = o.id AND j.token = o.token AND j.state IN ('scheduled', 'pending', 'running')
        RETURNING (o.n, o.id, o.state, 'cancelled', o.token, o.queue, o.worker, NULL)
                  ::leasehold.changed_job AS done, o.id, o.queue, o.token, o.lease_until
    ), held_back AS (
        INSERT INTO leasehold.quarantine AS w
        SELECT c.queue, c.id, c.token, greatest(c.lease_until, m.no_expiry_before) FROM cancelled c
         WHERE c.lease_until > leasehold.due(now, m.no_expiry_before)
            ON CONFLICT ON CONSTRAINT quarantine_pkey
            DO UPDATE SET token = excluded.token, until = excluded.until)
    SELECT array_agg(c.done) INTO done FROM cancelled c;
    PERFORM leasehold.record_operator_act(now, 'job.cancelled', done);
    RETURN QUERY SELECT * FROM leasehold.refused_operator_acts(jobs, done, 'cancelled');
END $$;

-- ---- retry ----

-- Retry a job that is locked. NULL: another live job in the queue has its key.
CREATE FUNCTION leasehold.retry_one(now timestamptz, m leasehold.meta, j leasehold.job, n integer,
                                    at_once boolean)
RETURNS leasehold.changed_job LANGUAGE plpgsql
AS $$
DECLARE
    held_until timestamptz;
    becomes    text;
BEGIN
    IF at_once THEN
        DELETE FROM leasehold.quarantine h WHERE h.queue = j.queue AND h.job = j.id;
        PERFORM leasehold.exclusive_end(ARRAY[j.id], ARRAY[j.queue]);
    ELSE
        SELECT h.until INTO held_until FROM leasehold.quarantine h
         WHERE h.queue = j.queue AND h.job = j.id AND h.until > now;
    END IF;
    becomes := CASE WHEN held_until IS NULL THEN 'pending' ELSE 'scheduled' END;
    UPDATE leasehold.job w
       SET state = becomes, run_at = held_until, attempt = 0, recoveries = 0, started_at = NULL,
           finished_at = NULL, result = NULL, result_bytes = NULL, expires_at = NULL, again = true,
           token = leasehold.next_token(w.token, m.first_token), state_changed_at = now
     WHERE w.id = j.id AND w.state IN ('failed', 'cancelled', 'completed');
    RETURN (n, j.id, j.state, becomes, j.token, j.queue, NULL, NULL)::leasehold.changed_job;
EXCEPTION WHEN unique_violation THEN
    RETURN NULL;
END $$;

CREATE FUNCTION leasehold.retry_many(jobs bigint[], force boolean, at_once boolean)
RETURNS SETOF leasehold.outcome
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    now   timestamptz := leasehold.clock();
    m     leasehold.meta;
    j     leasehold.job;
    done  leasehold.changed_job[];
    again leasehold.changed_job;
    kept  leasehold.outcome[];
BEGIN
    PERFORM leasehold.need_list('job', jobs);
    PERFORM leasehold.lock_jobs(jobs);
    SELECT * INTO m FROM leasehold.meta WHERE one;
    FOR i IN 1..cardinality(jobs) LOOP
        SELECT * INTO j FROM leasehold.job w
         WHERE w.id = jobs[i]
           AND (w.state IN ('failed', 'cancelled') OR (force AND w.state = 'completed'));
        CONTINUE WHEN NOT FOUND;
        again := leasehold.retry_one(now, m, j, i, at_once);
        IF again.n IS NOT NULL THEN
            done := done || again;
        ELSE
            kept := kept || (i, -6, format('job %s cannot be retried: another job with its key '
                                           'lives in the queue', j.id))::leasehold.outcome;
        END IF;
    END LOOP;
    PERFORM leasehold.record_operator_act(now, 'job.retried', done);
    RETURN QUERY SELECT r.n, coalesce(k.status, r.status), coalesce(k.message, r.message)
                   FROM leasehold.refused_operator_acts(jobs, done, 'retried') r
                   LEFT JOIN unnest(kept) k ON k.n = r.n ORDER BY r.n;
END $$;

-- ---- delete ----

CREATE FUNCTION leasehold.delete_many(jobs bigint[]) RETURNS SETOF leasehold.outcome
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    done leasehold.changed_job[];
BEGIN
    PERFORM leasehold.need_list('job', jobs);
    PERFORM leasehold.lock_jobs(jobs);
    WITH deleted AS (
        DELETE FROM leasehold.job j WHERE j.id = ANY(jobs) AND j.state <> 'running'
        RETURNING j.id, j.state, j.token, j.queue)
    SELECT array_agg((array_position(jobs, d.id), d.id, d.state, NULL, d.token, d.queue, NULL, NULL)
                     ::leasehold.changed_job)
      INTO done FROM deleted d;
    PERFORM leasehold.record_operator_act(leasehold.clock(), 'job.deleted', done);
    RETURN QUERY SELECT * FROM leasehold.refused_operator_acts(jobs, done, 'deleted');
END $$;

-- Only the owner of the tables can delete rows without these functions. Even the owner cannot delete a running
-- job, because it has a holder. The condition is in the trigger, so pruning does not call the function.
CREATE FUNCTION leasehold.deleting() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM leasehold.refuse(-6, format('job %s is running: cancel it first', OLD.id));
    RETURN OLD;
END $$;

CREATE TRIGGER job_deleting BEFORE DELETE ON leasehold.job
   FOR EACH ROW WHEN (OLD.state = 'running') EXECUTE FUNCTION leasehold.deleting();

-- ---- reschedule ----

CREATE FUNCTION leasehold.reschedule_many(jobs bigint[], at timestamptz, delay_ms bigint)
RETURNS SETOF leasehold.outcome
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    now    timestamptz := leasehold.clock();
    wanted timestamptz;
    done   leasehold.changed_job[];
BEGIN
    PERFORM leasehold.need_list('job', jobs), leasehold.need_time('time to run at', at),
            leasehold.need_ms('delay', delay_ms, 0, 315360000000);
    wanted := coalesce(at, now + leasehold.span(coalesce(delay_ms, 0)));
    PERFORM leasehold.lock_jobs(jobs);
    WITH old AS MATERIALIZED (
        SELECT array_position(jobs, j.id) AS n, j.id, j.queue, j.state, j.token,
               greatest(wanted, h.until) AS run_at
          FROM leasehold.job j
          LEFT JOIN leasehold.quarantine h ON h.queue = j.queue AND h.job = j.id AND h.until > now
         WHERE j.id = ANY(jobs) AND j.state IN ('scheduled', 'pending')
    ), moved AS (
        UPDATE leasehold.job j
           SET state = CASE WHEN o.run_at > now THEN 'scheduled' ELSE 'pending' END,
               run_at = o.run_at, again = true, state_changed_at = greatest(now, j.started_at)
          FROM old o
         WHERE j.id = ANY (jobs) AND j.id = o.id AND j.state IN ('scheduled', 'pending')
        RETURNING (o.n, j.id, o.state, j.state, o.token, j.queue, NULL,
                   'to run at ' || leasehold.time_words(o.run_at))::leasehold.changed_job AS done)
    SELECT array_agg(w.done) INTO done FROM moved w;
    PERFORM leasehold.record_operator_act(now, 'job.rescheduled', done);
    PERFORM leasehold.wake_if_due_soon(wanted, now);
    -- A job that is named twice is rescheduled twice.
    RETURN QUERY SELECT * FROM leasehold.refused_operator_acts(jobs, done, 'rescheduled') r
                  WHERE NOT EXISTS (SELECT 1 FROM unnest(done) d WHERE d.id = jobs[r.n]);
END $$;

-- ---- queues ----

-- Policies or pauses have changed: leasehold.meta, which every act reads first, says so. A session that changes
-- them locks the row first, so that the row is always right.
CREATE FUNCTION leasehold.lock_settings() RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM 1 FROM leasehold.meta WHERE one FOR UPDATE;
END $$;

CREATE FUNCTION leasehold.settings_changed() RETURNS void LANGUAGE sql VOLATILE
BEGIN ATOMIC
    UPDATE leasehold.meta
       SET generation = generation + 1,
           has_policies = EXISTS (SELECT 1 FROM leasehold.policy),
           has_paused = EXISTS (SELECT 1 FROM leasehold.queue q WHERE q.paused);
END;

-- Returns whether anything changed.
CREATE FUNCTION leasehold.queue_switch(of_queue text, to_paused boolean) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    now timestamptz := leasehold.clock();
BEGIN
    PERFORM leasehold.need_name('queue', of_queue), leasehold.need_given('to_paused', to_paused IS NOT NULL);
    -- Claims may have locked the row of the queue. Other sessions need not wait for the settings meanwhile.
    PERFORM 1 FROM leasehold.queue q WHERE q.queue = of_queue FOR UPDATE;
    PERFORM leasehold.lock_settings();
    IF to_paused THEN
        INSERT INTO leasehold.queue AS q (queue, paused) VALUES (of_queue, true)
            ON CONFLICT (queue) DO UPDATE SET paused = true WHERE NOT q.paused;
    ELSE
        UPDATE leasehold.queue q SET paused = false WHERE q.queue = of_queue AND q.paused;
    END IF;
    IF NOT FOUND THEN
        RETURN false;  -- nothing changed: no event
    END IF;
    PERFORM leasehold.settings_changed();
    PERFORM leasehold.event_put(
        now, CASE WHEN to_paused THEN 'queue.paused' ELSE 'queue.resumed' END, NULL, of_queue, NULL,
        NULL, NULL, NULL, 'hand', NULL, NULL);
    IF NOT to_paused THEN
        PERFORM leasehold.wake_queue(of_queue, now);
    END IF;
    RETURN true;
END $$;

-- Delete one batch of waiting jobs; `more`: there are others.
CREATE FUNCTION leasehold.purge_batch(of_queue text, OUT purged bigint, OUT more boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    most      constant integer := 500;
    now       timestamptz := leasehold.clock();
    pending   bigint[];
    scheduled bigint[];
    gone      record;
BEGIN
    PERFORM leasehold.need_name('queue', of_queue);
    pending := ARRAY(
        (SELECT j.id FROM leasehold.job j
          WHERE j.queue = of_queue AND j.state = 'pending' AND j.again LIMIT most)
        UNION ALL
        (SELECT j.id FROM leasehold.job j
          WHERE j.queue = of_queue AND j.state = 'pending' AND NOT j.again LIMIT most)
        LIMIT most);
    scheduled := ARRAY(SELECT j.id FROM leasehold.job j
                        WHERE j.queue = of_queue AND j.state = 'scheduled' LIMIT most);
    PERFORM leasehold.lock_jobs(pending || scheduled);
    purged := 0;
    FOR gone IN
        WITH deleted AS (
            DELETE FROM leasehold.job j
             WHERE j.id = ANY(pending || scheduled) AND j.state IN ('pending', 'scheduled')
            RETURNING j.state)
        SELECT d.state, count(*) AS n FROM deleted d GROUP BY d.state
    LOOP
        purged := purged + gone.n;
        PERFORM leasehold.count_change(of_queue, now, 'o', gone.state, NULL, gone.n);
    END LOOP;
    more := cardinality(pending) = most OR cardinality(scheduled) = most;
    IF purged > 0 THEN
        PERFORM leasehold.event_put(now, 'job.deleted', NULL, of_queue, NULL, NULL, NULL, NULL,
                                    'hand', NULL, NULL, format('{"purged":%s}', purged));
    END IF;
END $$;

-- ---- policies ----

-- Set the values that are not NULL, and unset the columns named in `unset`. '*' means any queue or any kind. A
-- row without values is deleted.
CREATE FUNCTION leasehold.policy_put(new leasehold.policy, unset text[]) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    now timestamptz := leasehold.clock();
    p   leasehold.policy;
BEGIN
    PERFORM leasehold.lock_settings();
    SELECT * INTO p FROM leasehold.policy w WHERE w.queue = new.queue AND w.kind = new.kind;
    p := jsonb_populate_record(
        p, (SELECT coalesce(jsonb_object_agg(name, CASE WHEN name = ANY(unset) THEN 'null'
                                                        ELSE value END), '{}')
              FROM jsonb_each(to_jsonb(new)) AS given(name, value)
             WHERE value <> 'null' OR name = ANY(unset)));
    DELETE FROM leasehold.policy w WHERE w.queue = new.queue AND w.kind = new.kind;
    IF jsonb_strip_nulls(to_jsonb(p)) - 'queue' - 'kind' <> '{}' THEN
        INSERT INTO leasehold.policy SELECT p.*;
    END IF;
    PERFORM leasehold.settings_changed();
    PERFORM leasehold.event_put(now, 'policy.changed', NULL, NULL, NULL, NULL, NULL, NULL, 'hand',
                                NULL, NULL,
                                format('{"queue":"%s","kind":"%s"}', new.queue, new.kind));
    IF new.queue <> '*' THEN
        INSERT INTO leasehold.queue(queue) SELECT new.queue  -- the queue is listed
         WHERE NOT EXISTS (SELECT 1 FROM leasehold.queue q WHERE q.queue = new.queue)
            ON CONFLICT DO NOTHING;
        PERFORM leasehold.wake_queue(new.queue, now);  -- a limit may be higher now
    END IF;
END $$;

CREATE FUNCTION leasehold.policy_set(
    of_queue text, of_kind text, lease_ms bigint, max_attempts bigint, max_recoveries bigint,
    action bigint, recovery boolean, recovery_backoff_ms bigint, backoff_ms bigint,
    backoff_cap_ms bigint, timeout_ms bigint, exclusive boolean, audit bigint, retention_ms bigint,
    retention_failed_ms bigint, max_payload bigint, rate_n bigint, rate_per_ms bigint,
    concurrency bigint, max_output bigint, retention_output_ms bigint, unset text[])
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    longest constant bigint := 315360000000;
BEGIN
    PERFORM leasehold.need_name('queue', nullif(of_queue, '*')) WHERE of_queue IS DISTINCT FROM '*';
    PERFORM leasehold.need_name('kind', nullif(of_kind, '*')) WHERE of_kind IS DISTINCT FROM '*';
    PERFORM leasehold.need_ms('lease', lease_ms, 1, 2592000000),
            leasehold.need_range('max attempts', nullif(max_attempts, -1), 1, 1000000),
            leasehold.need_range('max recoveries', nullif(max_recoveries, -1), 0, 1000000),
            leasehold.need_range('action', action, 1, 3),
            leasehold.need_ms('recovery backoff', recovery_backoff_ms, 0, longest),
            leasehold.need_ms('backoff', backoff_ms, 0, longest),
            leasehold.need_ms('backoff cap', backoff_cap_ms, 0, longest),
            leasehold.need_ms('timeout', timeout_ms, 0, longest),
            leasehold.need_range('audit', audit, 1, 2),
            leasehold.need_ms('retention', retention_ms, 0, longest),
            leasehold.need_ms('retention of failed jobs', retention_failed_ms, 0, longest),
            leasehold.need_range('max payload', max_payload, 1, 67108864),
            leasehold.need_range('rate', rate_n, 0, 1000000000),
            leasehold.need_ms('rate''s period', rate_per_ms, 0, 2592000000),
            leasehold.need_range('concurrency', concurrency, 0, 1000000),
            leasehold.need_range('max output', max_output, 0, 16777216),
            leasehold.need_ms('retention of output', retention_output_ms, 0, longest);
    PERFORM leasehold.refuse(-3, format('setting "%s" to unset is not known', left(coalesce(u, ''), 140)))
       FROM unnest(unset) u
      WHERE coalesce(u, '') IN ('', 'queue', 'kind')
         OR NOT to_jsonb(leasehold.policy_of('*', NULL)) ? u;
    PERFORM leasehold.policy_put((of_queue, of_kind, lease_ms, max_attempts, max_recoveries, action,
        recovery, recovery_backoff_ms, backoff_ms, backoff_cap_ms, timeout_ms, exclusive, audit,
        retention_ms, retention_failed_ms, max_payload, rate_n, rate_per_ms, concurrency, max_output,
        retention_output_ms)::leasehold.policy, unset);
END $$;

-- ---- scopes of named leases ----

-- ttl_ms 0 or NULL: the scope uses the general default again. Without a change, no event is written.
CREATE FUNCTION leasehold.scope_put(of_scope text, of_ttl_ms bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM leasehold.need_name('scope', of_scope), leasehold.need_ms('ttl', of_ttl_ms, 0, 2592000000);
    IF coalesce(of_ttl_ms, 0) = 0 THEN
        DELETE FROM leasehold.scope s WHERE s.scope = of_scope;
    ELSE
        INSERT INTO leasehold.scope AS s VALUES (of_scope, of_ttl_ms)
            ON CONFLICT (scope) DO UPDATE SET ttl_ms = excluded.ttl_ms
                WHERE s.ttl_ms <> excluded.ttl_ms;
    END IF;
    IF FOUND THEN
        PERFORM leasehold.changed();
    END IF;
END $$;

-- ---- by SQL ----

CREATE FUNCTION leasehold.cancel(job bigint) RETURNS leasehold.job
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    refused leasehold.outcome;
BEGIN
    PERFORM leasehold.need_job(job);
    SELECT * INTO refused FROM leasehold.cancel_many(ARRAY[job]);
    RETURN leasehold.job_after(refused, job);
END $$;

-- A completed job is retried only with force. at_once: without waiting for the holder of a revoked lease.
CREATE FUNCTION leasehold.retry(job bigint, force boolean DEFAULT false,
                                at_once boolean DEFAULT false)
RETURNS leasehold.job LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    refused leasehold.outcome;
BEGIN
    PERFORM leasehold.need_job(job);
    SELECT * INTO refused FROM leasehold.retry_many(ARRAY[job], coalesce(force, false),
                                                    coalesce(at_once, false));
    RETURN leasehold.job_after(refused, job);
END $$;

-- Returns the id of the deleted job.
CREATE FUNCTION leasehold.delete(job bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    refused leasehold.outcome;
BEGIN
    PERFORM leasehold.need_job(job);
    SELECT * INTO refused FROM leasehold.delete_many(ARRAY[job]);
    IF refused.status < 0 THEN
        PERFORM leasehold.refuse(refused.status, refused.message);
    END IF;
    RETURN job;
END $$;

-- Without delay and time: now.
CREATE FUNCTION leasehold.reschedule(job bigint, delay interval DEFAULT NULL,
                                     run_at timestamptz DEFAULT NULL)
RETURNS leasehold.job LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    refused leasehold.outcome;
BEGIN
    PERFORM leasehold.need_job(job), leasehold.need_duration('delay', delay, 0, 315360000000);
    IF delay IS NOT NULL AND run_at IS NOT NULL THEN
        PERFORM leasehold.refuse(-3, 'a job has a delay or a time to run at, not both');
    END IF;
    PERFORM leasehold.need_time('time to run at', run_at);
    SELECT * INTO refused FROM leasehold.reschedule_many(
        ARRAY[job], date_trunc('milliseconds', run_at), leasehold.ms(delay));
    RETURN leasehold.job_after(refused, job);
END $$;

-- Returns false if it was paused already.
CREATE FUNCTION leasehold.queue_pause(queue text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM leasehold.need_name('queue', queue);
    RETURN leasehold.queue_switch(queue, true);
END $$;

CREATE FUNCTION leasehold.queue_resume(queue text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM leasehold.need_name('queue', queue);
    RETURN leasehold.queue_switch(queue, false);
END $$;

-- Delete all waiting jobs. Returns how many.
CREATE FUNCTION leasehold.queue_purge(queue text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    total bigint := 0;
    batch record;
BEGIN
    PERFORM leasehold.need_name('queue', queue);
    LOOP
        SELECT * INTO batch FROM leasehold.purge_batch(queue);
        total := total + batch.purged;
        EXIT WHEN NOT batch.more;
    END LOOP;
    RETURN total;
END $$;

-- Remove an empty queue: its row, its counts per minute, its pause and the policies that name it. One statement
-- deletes the deltas of the queue and adds them up. An enqueue that commits later keeps its delta, and the next
-- fold creates the queue again. The jobs are counted by the deltas, because no index finds the completed jobs
-- of a queue.
CREATE FUNCTION leasehold.queue_delete(queue text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    states constant text[] := ARRAY['scheduled', 'pending', 'running', 'completed', 'failed', 'cancelled'];
    now    timestamptz := leasehold.clock();
    known  boolean;
    found  text;
BEGIN
    PERFORM leasehold.need_name('queue', queue);
    -- Recounts (leasehold.recount) and folds write the same counts: wait for them to end, and keep new ones
    -- out.
    LOCK TABLE leasehold.queue IN ROW EXCLUSIVE MODE;
    PERFORM 1 FROM leasehold.maintenance_task d WHERE d.name = 'fold' FOR UPDATE;
    PERFORM 1 FROM leasehold.queue q WHERE q.queue = queue_delete.queue FOR UPDATE;
    PERFORM leasehold.lock_settings();
    WITH gone AS (
        DELETE FROM leasehold.delta d WHERE d.queue = queue_delete.queue AND d.act <> 'n'
        RETURNING d.was, d.becomes, d.n, d.xmin AS by),
    entry AS (
        DELETE FROM leasehold.queue q WHERE q.queue = queue_delete.queue RETURNING q.*),
    policies AS (
        DELETE FROM leasehold.policy p WHERE p.queue = queue_delete.queue RETURNING p.kind),
    transactions AS (  -- counted as a fold counts them
        UPDATE leasehold.maintenance_task u SET position = u.position + (SELECT count(DISTINCT g.by::text) FROM gone g)
         WHERE u.name = 'fold'),
    jobs AS (
        SELECT s.state, sum(s.n) AS n
          FROM (SELECT v.state, v.n FROM entry e, LATERAL (VALUES
                       ('scheduled', e.scheduled), ('pending', e.pending), ('running', e.running),
                       ('completed', e.completed), ('failed', e.failed), ('cancelled', e.cancelled)) v(state, n)
                UNION ALL SELECT g.becomes, g.n FROM gone g
                UNION ALL SELECT g.was, -g.n FROM gone g) s
         WHERE s.state IS NOT NULL GROUP BY s.state HAVING sum(s.n) <> 0)
    SELECT EXISTS (SELECT 1 FROM entry) OR EXISTS (SELECT 1 FROM gone) OR EXISTS (SELECT 1 FROM policies),
           (SELECT string_agg(format('%s %s', j.n, j.state), ', ' ORDER BY array_position(states, j.state))
              FROM jobs j)
      INTO known, found;
    IF NOT known THEN
        PERFORM leasehold.refuse(-5, format('there is no queue "%s"', queue));
    END IF;
    found := coalesce(found, (SELECT count(*) || ' in quarantine' FROM leasehold.quarantine h
                               WHERE h.queue = queue_delete.queue AND h.until > now HAVING count(*) > 0));
    IF found IS NOT NULL THEN
        PERFORM leasehold.refuse(-6, format('queue "%s" is not empty: %s', queue, found));
    END IF;
    found := (SELECT min(s.name) FROM leasehold.schedule s WHERE s.queue = queue_delete.queue);
    IF found IS NOT NULL THEN
        PERFORM leasehold.refuse(-6, format('schedule "%s" enqueues into queue "%s": remove it first', found, queue));
    END IF;
    DELETE FROM leasehold.rollup r WHERE r.queue = queue_delete.queue;
    DELETE FROM leasehold.claim_floor w WHERE w.queue = queue_delete.queue;
    DELETE FROM leasehold.quarantine h WHERE h.queue = queue_delete.queue;
    PERFORM leasehold.settings_changed();
    PERFORM leasehold.event_put(now, 'queue.deleted', NULL, queue, NULL, NULL, NULL, NULL, 'hand', NULL, NULL);
END $$;

-- NULL leaves a setting unchanged; `unset` names settings that fall through again. NULL for queue or kind means
-- any. max_attempts and max_recoveries -1: unlimited. Returns the values that then hold for that queue and
-- kind.
--
-- SELECT leasehold.queue_set('mail', lease => '10 min', rate => 20, rate_per => '1 min');
CREATE FUNCTION leasehold.queue_set(
    queue text, kind text DEFAULT NULL, lease interval DEFAULT NULL,
    max_attempts bigint DEFAULT NULL, max_recoveries bigint DEFAULT NULL, action text DEFAULT NULL,
    recovery boolean DEFAULT NULL, recovery_backoff interval DEFAULT NULL,
    backoff interval DEFAULT NULL, backoff_cap interval DEFAULT NULL, timeout interval DEFAULT NULL,
    exclusive boolean DEFAULT NULL, audit text DEFAULT NULL, retention interval DEFAULT NULL,
    retention_failed interval DEFAULT NULL, max_payload bigint DEFAULT NULL,
    rate bigint DEFAULT NULL, rate_per interval DEFAULT NULL, concurrency bigint DEFAULT NULL,
    max_output bigint DEFAULT NULL, retention_output interval DEFAULT NULL,
    unset text[] DEFAULT '{}')
RETURNS leasehold.policy LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    names   constant text[] := ARRAY['lease', 'max_attempts', 'max_recoveries', 'action',
        'recovery', 'recovery_backoff', 'backoff', 'backoff_cap', 'timeout', 'exclusive', 'audit',
        'retention', 'retention_failed', 'max_payload', 'rate', 'concurrency',
        'max_output', 'retention_output'];
    columns constant text[] := ARRAY['lease_ms', 'max_attempts', 'max_recoveries', 'action',
        'recovery', 'recovery_backoff_ms', 'backoff_ms', 'backoff_cap_ms', 'timeout_ms',
        'exclusive', 'audit', 'retention_ms', 'retention_failed_ms', 'max_payload', 'rate_n',
        'concurrency', 'max_output', 'retention_output_ms'];
    actions constant text[] := ARRAY['retry', 'pending', 'fail'];
    audits  constant text[] := ARRAY['exceptional', 'full'];
    longest constant bigint := 315360000000;
    taken   text[];
    p       leasehold.policy;
    unknown text;
BEGIN
    IF queue IS NOT NULL THEN
        PERFORM leasehold.need_name('queue', queue);
    END IF;
    IF kind IS NOT NULL THEN
        PERFORM leasehold.need_name('kind', kind);
    END IF;
    IF (rate IS NOT NULL OR concurrency IS NOT NULL) AND (queue IS NULL OR kind IS NOT NULL) THEN
        PERFORM leasehold.refuse(-3, 'rate and concurrency hold for a queue as a whole: name a '
                                     'queue, no kind');
    ELSIF exclusive IS NOT NULL AND kind IS NOT NULL THEN
        PERFORM leasehold.refuse(-3, 'exclusive holds for a queue as a whole: name no kind');
    END IF;
    PERFORM leasehold.need_duration('lease', lease, 1, 2592000000),
            leasehold.need_duration('recovery backoff', recovery_backoff, 0, longest),
            leasehold.need_duration('backoff', backoff, 0, longest),
            leasehold.need_duration('backoff cap', backoff_cap, 0, longest),
            leasehold.need_duration('timeout', timeout, 0, longest),
            leasehold.need_duration('retention', retention, 0, longest),
            leasehold.need_duration('retention of failed jobs', retention_failed, 0, longest),
            leasehold.need_range('max attempts', nullif(max_attempts, -1), 1, 1000000),
            leasehold.need_range('max recoveries', nullif(max_recoveries, -1), 0, 1000000),
            leasehold.need_duration('retention of output', retention_output, 0, longest),
            leasehold.need_range('max payload', max_payload, 1, 67108864),
            leasehold.need_range('max output', max_output, 0, 16777216),
            leasehold.need_range('rate', rate, 0, 1000000000),
            leasehold.need_range('concurrency', concurrency, 0, 1000000);
    IF (rate > 0) <> (rate_per IS NOT NULL) OR (rate IS NULL AND rate_per IS NOT NULL) THEN
        PERFORM leasehold.refuse(-3, 'rate and rate_per must be set together');
    END IF;
    PERFORM leasehold.need_duration('rate''s period', rate_per, 1, 2592000000);
    IF action <> ALL(actions) THEN
        PERFORM leasehold.refuse(-3, format('action "%s" is not known: retry, pending or fail is '
                                            'allowed', left(action, 140)));
    ELSIF audit <> ALL(audits) THEN
        PERFORM leasehold.refuse(-3, format('audit "%s" is not known: exceptional or full is '
                                            'allowed', left(audit, 140)));
    END IF;
    SELECT u INTO unknown FROM unnest(unset) u WHERE u IS NULL OR u <> ALL(names) LIMIT 1;
    IF FOUND THEN
        PERFORM leasehold.refuse(-3, format('setting "%s" to unset is not known: %s are allowed',
                                            left(unknown, 140), array_to_string(names, ', ')));
    END IF;
    taken := ARRAY(SELECT columns[array_position(names, u)] FROM unnest(unset) u)
             || CASE WHEN 'rate' = ANY(unset) THEN ARRAY['rate_per_ms'] END;
    p := (coalesce(queue, '*'), coalesce(kind, '*'), leasehold.ms(lease), max_attempts,
          max_recoveries, array_position(actions, action), recovery, leasehold.ms(recovery_backoff),
          leasehold.ms(backoff), leasehold.ms(backoff_cap), leasehold.ms(timeout), exclusive,
          array_position(audits, audit), leasehold.ms(retention), leasehold.ms(retention_failed),
          max_payload, rate, CASE WHEN rate = 0 THEN 0 ELSE leasehold.ms(rate_per) END,
          concurrency, max_output, leasehold.ms(retention_output));
    IF taken <> '{}' OR jsonb_strip_nulls(to_jsonb(p)) - 'queue' - 'kind' <> '{}' THEN
        PERFORM leasehold.policy_put(p, taken);
    END IF;
    RETURN leasehold.policy_of(p.queue, p.kind);
END $$;

CREATE FUNCTION leasehold.scope_set(scope text, ttl interval) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM leasehold.need_name('scope', scope), leasehold.need_duration('ttl', ttl, 0, 2592000000);
    PERFORM leasehold.scope_put(scope, leasehold.ms(ttl));
END $$;
