-- Recovery: which jobs are reclaimable, what a death makes of a job, and how a job is reclaimed.
--
-- The messages and the rules are those of the library (src/rules/fate.c). A job is judged from its row under
-- its lock, and the write that reclaims it compares again. Rows that other sessions have locked are skipped
-- (SKIP LOCKED) and are handled in the next round.

-- A line for the log (leasehold.log_message) that is kept until its cause can no longer be undone.
CREATE TYPE leasehold.log_line AS (
    level text, message text, job bigint, token bigint, attempt integer, queue text, worker text,
    reason text);

-- One recovery over all its batches: what it has found and done so far.
CREATE TYPE leasehold.run AS (
    trigger      text,
    always       boolean,      -- make a report even if nothing is found
    whole        boolean,      -- everything is examined
    report       bigint,       -- NULL: there is none yet
    started_at   timestamptz,
    orphaned     bigint,
    retried      bigint,
    made_pending bigint,
    failed       bigint,
    released     bigint,
    leases       bigint,
    dead_workers bigint,
    failures     bigint,
    untold       bigint,       -- failures that are known and are not reported again
    counted      bigint[],     -- of retried ... failures: what is already in the totals
    log          leasehold.log_line[]
);

CREATE FUNCTION leasehold.new_run(trigger text, always boolean, whole boolean) RETURNS leasehold.run
LANGUAGE sql IMMUTABLE
RETURN (trigger, always, whole, NULL::bigint, NULL::timestamptz, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ARRAY[0, 0, 0, 0, 0, 0, 0]::bigint[], '{}'::leasehold.log_line[])::leasehold.run;

-- A notice cannot be taken back, but what a run did in a subtransaction can be undone. So the run carries its
-- log lines: if a block fails, the run is as it was before, without the block's lines.
CREATE FUNCTION leasehold.log_later(INOUT r leasehold.run, level text, message text,
                                    job bigint DEFAULT NULL, token bigint DEFAULT NULL,
                                    attempt integer DEFAULT NULL, queue text DEFAULT NULL,
                                    worker text DEFAULT NULL, reason text DEFAULT NULL)
LANGUAGE plpgsql
AS $$
BEGIN
    r.log := r.log || (level, message, job, token, attempt, queue, worker, reason)::leasehold.log_line;
END $$;

CREATE FUNCTION leasehold.log_now(INOUT r leasehold.run) LANGUAGE plpgsql
AS $$
DECLARE
    l leasehold.log_line;
BEGIN
    FOREACH l IN ARRAY r.log LOOP
        PERFORM leasehold.log_message(l.level, l.message, l.job, l.token, l.attempt, l.queue, l.worker, l.reason);
    END LOOP;
    r.log := '{}';
END $$;

-- Options of a recovery. An automatic recovery skips queues with recovery off.
CREATE TYPE leasehold.recovery_opts AS (
    by_hand      boolean,
    threshold_ms bigint,       -- by age, live leases included; NULL: only what is reclaimable
    action       integer,      -- overrides the policy
    queue        text,
    at_once      boolean       -- no quarantine for live leases that are revoked
);

CREATE FUNCTION leasehold.automatic_recovery() RETURNS leasehold.recovery_opts LANGUAGE sql IMMUTABLE
RETURN (false, NULL, NULL, NULL, false)::leasehold.recovery_opts;

-- ---- what an automatic recovery skips ----

-- May an automatic recovery touch such a job? (A short form of policy_of().)
CREATE FUNCTION leasehold.recovery_is_on(of_queue text, of_kind text) RETURNS boolean LANGUAGE sql STABLE
RETURN coalesce((SELECT p.recovery FROM leasehold.policy p
                  WHERE p.queue IN (of_queue, '*') AND p.kind IN (coalesce(of_kind, '*'), '*')
                    AND p.recovery IS NOT NULL
                  ORDER BY p.queue = '*', p.kind = '*' LIMIT 1), true);

CREATE FUNCTION leasehold.any_recovery_off(m leasehold.meta) RETURNS boolean LANGUAGE sql STABLE
RETURN m.has_policies AND EXISTS (SELECT 1 FROM leasehold.policy WHERE NOT recovery);

-- ---- the fate of a job ----

-- "30 min", as an operator would write a lease of half an hour.
CREATE FUNCTION leasehold.lease_words(ms bigint) RETURNS text LANGUAGE sql IMMUTABLE
RETURN CASE WHEN ms % 60000 = 0 THEN (ms / 60000)::text || ' min'
            WHEN ms % 1000 = 0 THEN (ms / 1000)::text || ' s'
            ELSE ms::text || ' ms' END;

CREATE FUNCTION leasehold.silence_words(now timestamptz, last_heartbeat_at timestamptz,
                                        multiplier bigint, interval_ms bigint)
RETURNS text LANGUAGE sql IMMUTABLE
RETURN 'has been silent for ' || leasehold.duration_words(leasehold.ms(now - last_heartbeat_at))
       || ' (' || multiplier::text || ' × ' || leasehold.duration_words(interval_ms) || ')';

-- What a death makes of a job, and the reason, which begins with a machine-readable prefix. `what` describes a
-- dead worker; `threshold_ms` means a recovery by age; with neither, the lease expired.
CREATE FUNCTION leasehold.fate(
    now timestamptz, worker text, held_ms bigint, seen timestamptz, attempt integer,
    max_attempts integer, recoveries integer, max_recoveries integer, by_action integer,
    what text, threshold_ms bigint, unstarted boolean,
    OUT state text, OUT action text, OUT poison boolean, OUT next_attempt integer,
    OUT next_recoveries integer, OUT shown_attempt integer, OUT reason text)
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    spent  boolean := max_attempts <> -1 AND attempt >= max_attempts;
    prefix text := 'RECLAIMED_TTL';
    cause  text;
    who    text := 'last seen ' || leasehold.duration_words(leasehold.ms(now - seen)) || ' ago';
BEGIN
    state := 'pending';
    poison := false;
    next_attempt := attempt;
    next_recoveries := recoveries;
    shown_attempt := attempt;
    IF unstarted THEN  -- the worker had not begun the job, so the job counts as released
        action := 'released';
        next_attempt := greatest(attempt - 1, 0);
    ELSIF max_recoveries <> -1 AND recoveries >= max_recoveries THEN
        poison := true;  -- checked first: this job kills workers, whatever the action
        state := 'failed';
    ELSIF by_action = 3 OR (by_action = 1 AND spent) THEN
        state := 'failed';
    ELSE
        next_recoveries := recoveries + 1;
        IF by_action = 2 THEN
            action := 'pending';
            next_attempt := greatest(attempt - 1, 0);
        ELSE
            action := 'retry';
            shown_attempt := attempt + 1;
        END IF;
    END IF;
    IF state = 'failed' THEN
        action := 'failed';
    END IF;

    IF threshold_ms IS NOT NULL THEN
        prefix := 'RECLAIMED_MANUAL';
        cause := 'taken back by hand, silent for at least ' || leasehold.duration_words(threshold_ms);
    ELSIF what IS NOT NULL THEN
        prefix := 'RECLAIMED_DEAD';
        cause := 'worker ' || worker || ' ' || what;
    ELSE
        cause := 'Exceeded TTL (' || leasehold.lease_words(held_ms) || ')';
    END IF;
    IF prefix <> 'RECLAIMED_DEAD' THEN  -- otherwise the cause has chosen the prefix
        who := 'worker ' || worker || ' ' || who;
    END IF;
    IF poison THEN
        reason := pg_catalog.format('POISON: %s workers died under this job (max %s), %s: %s, %s',
                                    recoveries + 1, max_recoveries, prefix, cause, who);
    ELSIF unstarted THEN
        reason := pg_catalog.format('%s: %s before it started the job, %s', prefix, cause, who);
    ELSIF state = 'failed' AND spent THEN
        reason := pg_catalog.format('%s: Max attempts reached (%s), %s, %s', prefix, max_attempts,
                                    cause, who);
    ELSE
        reason := pg_catalog.format('%s: %s%s attempt %s/%s, %s', prefix, cause,
            CASE prefix WHEN 'RECLAIMED_DEAD' THEN ',' ELSE ' at' END, attempt,
            CASE max_attempts WHEN -1 THEN 'unlimited' ELSE max_attempts::text END, who);
    END IF;
END $$;

-- A reclaimable job, what happens to it, and what the report says about it.
CREATE TYPE leasehold.reclaimable AS (
    n               integer,
    job             bigint,
    token           bigint,
    lease_until     timestamptz,
    queue           text,
    kind            text,
    worker          text,
    attempt         integer,
    max_attempts    integer,
    state           text,
    run_at          timestamptz,
    next_attempt    integer,
    next_recoveries integer,
    action          text,
    shown_attempt   integer,
    poison          boolean,
    hold_until      timestamptz,  -- end of the quarantine of a revoked live lease; NULL: none
    reason          text
);

-- Which of these jobs are reclaimable, from their rows as they are now. `unmarked`: also jobs of workers that
-- were silent for too long and are not marked dead yet.
CREATE FUNCTION leasehold.reclaimable_jobs(ids bigint[], now timestamptz, m leasehold.meta,
                                   o leasehold.recovery_opts, unmarked boolean)
RETURNS SETOF leasehold.reclaimable LANGUAGE plpgsql
AS $$
DECLARE
    due timestamptz := leasehold.due(now, m.no_expiry_before);
BEGIN
    RETURN QUERY
    WITH held AS MATERIALIZED (
        SELECT i.n::integer AS n, j.id, j.token, j.lease_until, j.queue, j.kind, j.worker, j.held_ms,
               greatest(j.started_at, j.last_heartbeat_at) AS seen, j.attempt,
               coalesce(j.max_attempts, -1) AS max_attempts, j.recoveries, w.started,
               CASE WHEN o.threshold_ms IS NOT NULL THEN NULL
                    WHEN w.uncleaned IS NOT NULL THEN w.uncleaned
                    WHEN unmarked AND w.pid IS NOT NULL AND w.silent_at <= due
                    THEN leasehold.silence_words(now, w.last_heartbeat_at, w.multiplier, w.interval_ms)
                END AS what
          FROM unnest(ids) WITH ORDINALITY i(id, n)
          JOIN leasehold.job j ON j.id = ANY (ids) AND j.id = i.id
          LEFT JOIN leasehold.worker w ON w.id = j.worker
         WHERE j.worker IS NOT NULL AND (o.queue IS NULL OR j.queue = o.queue)
    ), rule AS MATERIALIZED (
        SELECT p.* FROM (SELECT DISTINCT h.queue, h.kind FROM held h) k,
               leasehold.policy_of(k.queue, k.kind) p
    ), begun AS MATERIALIZED (
        SELECT (s ->> 0)::bigint AS job, (s ->> 1)::bigint AS token
          FROM (SELECT DISTINCT h.worker, h.started FROM held h WHERE h.started IS NOT NULL) b,
               json_array_elements(b.started::json) s
    ), lost AS (
        SELECT h.*, p.recovery_backoff_ms, p.max_recoveries, coalesce(o.action, p.action) AS by_action,
               h.started IS NOT NULL AND NOT EXISTS (
                   SELECT 1 FROM begun b WHERE b.job = h.id AND b.token = h.token) AS unstarted,
               CASE WHEN o.threshold_ms IS NOT NULL AND h.lease_until > now AND NOT o.at_once
                    THEN greatest(h.lease_until, m.no_expiry_before) END AS hold_until
          FROM held h JOIN rule p ON p.queue = h.queue AND p.kind = coalesce(h.kind, '*')
         WHERE (o.by_hand OR p.recovery)
           AND CASE WHEN o.threshold_ms IS NULL THEN h.what IS NOT NULL OR h.lease_until <= due
                    ELSE now - h.seen >= leasehold.span(o.threshold_ms) END
    )
    SELECT l.n, l.id, l.token, l.lease_until, l.queue, l.kind, l.worker, l.attempt, l.max_attempts,
           CASE WHEN f.state = 'pending' AND t.run_at IS NOT NULL THEN 'scheduled' ELSE f.state END,
           CASE WHEN f.state = 'pending' THEN t.run_at END,
           f.next_attempt, f.next_recoveries, f.action, f.shown_attempt, f.poison, l.hold_until,
           f.reason
      FROM lost l,
           leasehold.fate(now, l.worker, l.held_ms, l.seen, l.attempt, l.max_attempts, l.recoveries,
                          l.max_recoveries, l.by_action, l.what, o.threshold_ms, l.unstarted) f,
           LATERAL (SELECT greatest(l.hold_until,
                        CASE WHEN l.recovery_backoff_ms > 0 AND NOT l.unstarted
                             THEN now + leasehold.span(l.recovery_backoff_ms) END)) t(run_at)
     ORDER BY l.n;
END $$;

-- ---- reclaiming ----

-- Until a transaction that frees jobs has committed, other sessions cannot claim them: the rows are locked, and
-- look unchanged. So that transaction takes a shared lock on one row before it locks the jobs. A claim that
-- found nothing although something was due waits for that row (await_freeing), then tries again. A transaction
-- that has nothing to free gives the row back (LH000 ends the block that locked it); otherwise two such claims
-- would wait for each other.
CREATE FUNCTION leasehold.lock_for_freeing() RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM FROM leasehold.maintenance_task d WHERE d.name = 'freeing' FOR SHARE;
END $$;

-- Returns true if other transactions were freeing jobs and have ended since. The wait is bounded, because such
-- a transaction may stay open. A claim that has freed jobs itself waits only briefly, because another session
-- may be waiting for it.
CREATE FUNCTION leasehold.await_freeing(has_taken boolean) RETURNS boolean LANGUAGE plpgsql
AS $$
DECLARE
    before text := pg_catalog.current_setting('lock_timeout');
    waited boolean := false;
BEGIN
    -- In a block that is always rolled back, so that the lock on the row ends with it.
    BEGIN
        PERFORM FROM leasehold.maintenance_task d WHERE d.name = 'freeing' FOR NO KEY UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            PERFORM pg_catalog.set_config('lock_timeout', CASE WHEN has_taken THEN '100ms' ELSE '2s' END, true);
            PERFORM FROM leasehold.maintenance_task d WHERE d.name = 'freeing' FOR NO KEY UPDATE;
            waited := true;
        END IF;
        RAISE EXCEPTION USING ERRCODE = 'LH000';
    EXCEPTION WHEN SQLSTATE 'LH000' OR lock_not_available OR deadlock_detected THEN
        NULL;
    END;
    PERFORM pg_catalog.set_config('lock_timeout', before, true);
    RETURN waited;
END $$;

-- After the write: count, free what belonged to the jobs, write events and log lines.
CREATE FUNCTION leasehold.record_reclaimed(INOUT r leasehold.run, now timestamptz, m leasehold.meta,
                                     taken leasehold.reclaimable[])
LANGUAGE plpgsql
AS $$
DECLARE
    t record;
BEGIN
    r := leasehold.run_begin(r, now);
    SELECT r.failed + count(*) FILTER (WHERE f.state = 'failed'),
           r.retried + count(*) FILTER (WHERE f.action = 'retry'),
           r.made_pending + count(*) FILTER (WHERE f.action = 'pending'),
           r.released + count(*) FILTER (WHERE f.action = 'released')
      INTO r.failed, r.retried, r.made_pending, r.released
      FROM unnest(taken) f;
    FOR t IN SELECT f.queue, f.state, count(*) AS n FROM unnest(taken) f
              GROUP BY f.queue, f.state ORDER BY f.queue, f.state LOOP
        PERFORM leasehold.count_change(t.queue, now, 'r', 'running', t.state, t.n);
    END LOOP;
    IF m.has_policies THEN
        -- The lease of an exclusive queue ends with its job, and is reported like every freed lease.
        FOR t IN SELECT l.scope, l.name, l.owner, l.token, f.job, f.reason
                   FROM unnest(taken) f
                   JOIN leasehold.lease l ON l.scope = 'processing' AND l.name = f.queue AND l.job = f.job
                  WHERE f.hold_until IS NULL ORDER BY f.n LOOP
            r := leasehold.record_freed(r, now, t.scope, t.name, t.owner, t.token,
                CASE WHEN t.reason LIKE '%RECLAIMED_TTL:%' THEN 'RECLAIMED_TTL: lease had expired'
                     WHEN t.reason LIKE '%RECLAIMED_DEAD:%'
                     THEN 'RECLAIMED_DEAD: job ' || t.job || ' was taken back'
                     ELSE 'RECLAIMED_MANUAL: job ' || t.job || ' was taken back' END);
        END LOOP;
        PERFORM leasehold.release_limits(
                    now, coalesce(array_agg(f.job) FILTER (WHERE f.hold_until IS NULL), '{}'),
                    array_agg(DISTINCT f.queue))
           FROM unnest(taken) f;
    END IF;
    PERFORM leasehold.quarantine_put(f.queue, f.job, f.token, f.hold_until)
       FROM unnest(taken) f WHERE f.hold_until IS NOT NULL;
    r.log := r.log || ARRAY(
        SELECT ('warn', 'job ' || f.job || ' recovered: ' || f.reason, f.job, f.token, f.attempt, f.queue,
                f.worker, f.reason)::leasehold.log_line
          FROM unnest(taken) f ORDER BY f.n);
    INSERT INTO leasehold.event(at, type, job, queue, worker, from_state, to_state, actor, reason,
                                token, attempt, max_attempts, action, report)
    SELECT now, CASE WHEN f.poison THEN 'job.poisoned' ELSE 'job.recovered' END, f.job, f.queue,
           f.worker, 'running', f.state, 'system/recovery', f.reason, f.token, f.shown_attempt,
           f.max_attempts, f.action, r.report
      FROM unnest(taken) f ORDER BY f.n;
END $$;

-- The write itself compares state, token and expiry, so it never overwrites a heartbeat, a completion or
-- another recovery that came first. LH000: there was nothing to reclaim.
CREATE FUNCTION leasehold.reclaim_together(INOUT r leasehold.run, now timestamptz, m leasehold.meta,
                                        ids bigint[], o leasehold.recovery_opts)
LANGUAGE plpgsql
AS $$
DECLARE
    mine  bigint[];
    lost  leasehold.reclaimable[];
    taken bigint[];
BEGIN
    PERFORM leasehold.lock_for_freeing();
    mine := ARRAY(SELECT j.id FROM leasehold.job j WHERE j.id = ANY (ids) AND j.worker IS NOT NULL
                   ORDER BY j.id FOR UPDATE SKIP LOCKED);
    now := leasehold.clock();  -- read again: the rows may have been locked for some time
    lost := ARRAY(SELECT f FROM leasehold.reclaimable_jobs(mine, now, m, o, false) f);
    IF pg_catalog.cardinality(lost) = 0 THEN
        RAISE EXCEPTION USING ERRCODE = 'LH000';
    END IF;
    r.orphaned := r.orphaned + pg_catalog.cardinality(lost);
    WITH written AS (
        UPDATE leasehold.job j
           SET state = f.state, run_at = coalesce(f.run_at, j.run_at), attempt = f.next_attempt,
               recoveries = f.next_recoveries, token = leasehold.next_token(j.token, m.first_token),
               worker = NULL, lease_until = NULL, started_at = NULL,
               finished_at = CASE f.state WHEN 'failed' THEN now END, state_changed_at = now,
               last_error = f.reason, again = true
          FROM unnest(lost) f
         WHERE j.id = ANY (mine) AND j.id = f.job AND j.worker IS NOT NULL AND j.token = f.token
           AND j.lease_until = f.lease_until
        RETURNING j.id)
    SELECT array_agg(w.id) INTO taken FROM written w;
    IF pg_catalog.cardinality(taken) < pg_catalog.cardinality(lost) THEN
        lost := ARRAY(SELECT f FROM unnest(lost) f WHERE f.job = ANY (taken));
    END IF;
    IF taken IS NOT NULL THEN
        r := leasehold.record_reclaimed(r, now, m, lost);
    END IF;
END $$;

-- The database refused a step, and the rest continues. `what` says which step failed; `why` is the error of the
-- database. An automatic recovery reports a known failure only once: its event shows that it is known. For leases
-- and workers the store must be degraded, too: otherwise a recovery has succeeded since.
CREATE FUNCTION leasehold.record_failure(INOUT r leasehold.run, now timestamptz, what text, why text,
                                       by_hand boolean, of_job bigint, of_lease text, of_worker text,
                                       of_token bigint)
LANGUAGE plpgsql
AS $$
DECLARE
    j     record;
    known boolean;
BEGIN
    SELECT v.attempt, v.max_attempts, v.queue INTO j FROM leasehold.job v WHERE v.id = of_job;
    known := CASE WHEN of_job IS NULL
                  THEN (SELECT m.degraded <> '' FROM leasehold.meta m WHERE m.one)
                       AND EXISTS (SELECT 1 FROM leasehold.event e
                                    WHERE e.type = 'recovery.failed' AND e.job IS NULL
                                      AND e.lease IS NOT DISTINCT FROM of_lease
                                      AND e.worker IS NOT DISTINCT FROM of_worker
                                      AND e.token IS NOT DISTINCT FROM of_token
                                      AND pg_catalog.starts_with(e.reason, what))
                  ELSE EXISTS (SELECT 1 FROM leasehold.event e
                                WHERE e.job = of_job AND e.type = 'recovery.failed'
                                  AND e.token = of_token) END;
    IF known AND NOT by_hand THEN
        r.untold := r.untold + 1;
        RETURN;
    END IF;
    r := leasehold.run_begin(r, now);
    BEGIN
        PERFORM leasehold.event_put(now, 'recovery.failed', of_job, j.queue, of_worker, of_lease, NULL, NULL,
            'system/recovery', CASE WHEN of_job IS NULL THEN what || ': ' || why ELSE why END, of_token,
            NULL, j.attempt, j.max_attempts, NULL, r.report);
    EXCEPTION WHEN integrity_constraint_violation OR raise_exception OR data_exception THEN
        PERFORM leasehold.refuse(-1, pg_catalog.format('recovery could not record that %s: %s', what,
                                                       SQLERRM));
    END;
    r.failures := r.failures + 1;
    r := leasehold.log_later(r, 'error', what || ': ' || why, of_job, of_token, j.attempt, j.queue, of_worker,
                             why);
END $$;

-- Reclaim those of these jobs that are reclaimable: all at once, or, if the database refuses one of them, each
-- separately. (A row is locked and written in the same subtransaction: in two, it would cost a multixact.)
CREATE FUNCTION leasehold.reclaim(INOUT r leasehold.run, now timestamptz, m leasehold.meta,
                                    ids bigint[], o leasehold.recovery_opts)
LANGUAGE plpgsql
AS $$
DECLARE
    one  bigint;
    why  text;
    held record;
BEGIN
    IF coalesce(pg_catalog.cardinality(ids), 0) = 0 THEN
        RETURN;
    END IF;
    BEGIN
        r := leasehold.reclaim_together(r, now, m, ids, o);
        RETURN;
    EXCEPTION
        WHEN SQLSTATE 'LH000' THEN
            RETURN;
        WHEN integrity_constraint_violation OR raise_exception OR data_exception THEN
            NULL;
    END;
    FOREACH one IN ARRAY ids LOOP
        BEGIN
            r := leasehold.reclaim_together(r, now, m, ARRAY[one], o);
        EXCEPTION
            WHEN SQLSTATE 'LH000' THEN
                NULL;
            WHEN integrity_constraint_violation OR raise_exception OR data_exception THEN
                why := SQLERRM;
                SELECT j.worker, j.token INTO held FROM leasehold.job j WHERE j.id = one;
                r.orphaned := r.orphaned + 1;
                r := leasehold.record_failure(r, now, 'job ' || one || ' cannot be recovered', why, o.by_hand,
                                            one, NULL, held.worker, held.token);
        END;
    END LOOP;
END $$;

-- ---- named leases ----

CREATE FUNCTION leasehold.record_freed(INOUT r leasehold.run, now timestamptz, of_scope text,
                                     of_name text, of_owner text, of_token bigint, reason text)
LANGUAGE plpgsql
AS $$
BEGIN
    r := leasehold.run_begin(r, now);
    r.leases := r.leases + 1;
    PERFORM leasehold.lease_free(of_scope, of_name, of_token);
    PERFORM leasehold.event_put(now, 'lease.recovered', NULL, NULL, of_owner, of_scope || '/' || of_name,
                                NULL, NULL, 'system/recovery', reason, of_token, NULL, NULL, NULL, NULL,
                                r.report);
    r := leasehold.log_later(r, 'info', pg_catalog.format('lease %s/%s of %s was freed: %s', of_scope,
                                                          of_name, of_owner, reason),
                             NULL, of_token, NULL, NULL, of_owner, reason);
END $$;

-- Free these leases, whose rows are locked: all at once, or, if the database refuses one of them, each
-- separately. (The result is assigned at the end of the block, because a variable keeps its value when a block
-- fails.)
CREATE FUNCTION leasehold.free_leases(INOUT r leasehold.run, now timestamptz, leases leasehold.lease[],
                                      reason text, by_hand boolean)
LANGUAGE plpgsql
AS $$
DECLARE
    l         leasehold.lease;
    all_freed leasehold.run := r;
BEGIN
    BEGIN
        FOREACH l IN ARRAY leases LOOP
            all_freed := leasehold.record_freed(all_freed, now, l.scope, l.name, l.owner, l.token, reason);
        END LOOP;
        r := all_freed;
        RETURN;
    EXCEPTION WHEN integrity_constraint_violation OR raise_exception OR data_exception THEN
        NULL;
    END;
    FOREACH l IN ARRAY leases LOOP
        BEGIN
            r := leasehold.record_freed(r, now, l.scope, l.name, l.owner, l.token, reason);
        EXCEPTION WHEN integrity_constraint_violation OR raise_exception OR data_exception THEN
            r := leasehold.record_failure(
                r, now, pg_catalog.format('lease %s/%s cannot be freed', l.scope, l.name), SQLERRM, by_hand,
                NULL, l.scope || '/' || l.name, l.owner, l.token);
        END;
    END LOOP;
END $$;

-- Free expired leases of a time range in batches, up to 500. A lease that is refused stays and would be found
-- again, so the loop continues behind the last lease it found.
CREATE FUNCTION leasehold.recover_leases(INOUT r leasehold.run, now timestamptz, since timestamptz,
                                         due timestamptz, by_hand boolean)
LANGUAGE plpgsql
AS $$
DECLARE
    batch  constant integer := 500;
    enough bigint := r.leases + batch;
    found  leasehold.lease[];
    last   leasehold.lease;
BEGIN
    now := leasehold.clock();
    last.expires_at := since;
    last.scope := '';
    last.name := '';
    LOOP
        found := ARRAY(
            SELECT v FROM leasehold.lease v
             WHERE $[named_lease_ended(v, since, due)]
               AND (v.expires_at, v.scope, v.name) > (last.expires_at, last.scope, last.name)
             ORDER BY v.expires_at, v.scope, v.name LIMIT batch FOR UPDATE SKIP LOCKED);
        r := leasehold.free_leases(r, now, found, 'RECLAIMED_TTL: lease had expired', by_hand);
        EXIT WHEN cardinality(found) < batch OR r.leases >= enough;
        last := found[batch];
    END LOOP;
END $$;

-- ---- workers ----

-- Mark a worker dead. The write compares the heartbeat that the verdict is based on: a worker that sent one
-- since is alive. If its death was proven, the write also compares the sessions that were searched, because the
-- worker may have started more before it died. The leases of a worker without a process of ours end by time;
-- what other workers held is freed.
CREATE FUNCTION leasehold.mark_dead(INOUT r leasehold.run, now timestamptz, due timestamptz,
                                    of_worker text, beat timestamptz, what text, of_sessions text,
                                    proven boolean, OUT process boolean)
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE leasehold.worker w
       SET state = 'dead', silent_at = NULL, uncleaned = CASE WHEN w.pid IS NOT NULL THEN what END
     WHERE w.id = of_worker AND w.silent_at IS NOT NULL AND w.last_heartbeat_at = beat
       AND (w.silent_at <= due OR (proven AND w.sessions IS NOT DISTINCT FROM of_sessions))
    RETURNING w.pid IS NOT NULL INTO process;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    now := leasehold.clock();
    r := leasehold.run_begin(r, now);
    r.dead_workers := r.dead_workers + 1;
    r := leasehold.log_later(r, 'warn', 'worker ' || of_worker || ' is dead: it ' || what, NULL, NULL, NULL,
                             NULL, of_worker, what);
    PERFORM leasehold.event_put(now, 'worker.dead', NULL, NULL, of_worker, NULL, NULL, NULL,
        'system/recovery', what, NULL,
        pg_catalog.format('{"last_heartbeat":%s}', floor(1000 * extract(epoch FROM beat))::bigint),
        NULL, NULL, NULL, r.report);
END $$;

CREATE FUNCTION leasehold.declare_dead(INOUT r leasehold.run, now timestamptz, due timestamptz, of_worker text,
                               beat timestamptz, what text, of_sessions text, proven boolean,
                               by_hand boolean)
LANGUAGE plpgsql
AS $$
DECLARE
    d record;
BEGIN
    BEGIN
        d := leasehold.mark_dead(r, now, due, of_worker, beat, what, of_sessions, proven);
        r := d.r;
    EXCEPTION WHEN integrity_constraint_violation OR raise_exception OR data_exception THEN
        r := leasehold.record_failure(r, now, 'worker ' || of_worker || ' cannot be marked dead', SQLERRM,
                                    by_hand, NULL, NULL, of_worker, NULL);
        RETURN;
    END;
    IF d.process THEN
        r := leasehold.free_leases(r, leasehold.clock(), ARRAY(
            SELECT v FROM leasehold.lease v WHERE v.owner = of_worker AND v.job IS NULL
             ORDER BY v.scope, v.name FOR UPDATE),
            'RECLAIMED_DEAD: worker ' || of_worker || ' ' || what, by_hand);
    END IF;
END $$;

CREATE FUNCTION leasehold.mark_late(INOUT r leasehold.run, now timestamptz, of_worker text, beat timestamptz,
                                    by_hand boolean)
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE leasehold.worker w SET state = 'late'
     WHERE w.id = of_worker AND w.state = 'alive' AND w.last_heartbeat_at = beat;
    IF FOUND THEN
        PERFORM leasehold.event_put(now, 'worker.late', NULL, NULL, of_worker, NULL, NULL, NULL,
                                    'system/recovery', NULL, NULL);
        r := leasehold.log_later(r, 'info', 'worker ' || of_worker || ' is late: it has missed a beat', NULL,
                                 NULL, NULL, NULL, of_worker);
    END IF;
EXCEPTION WHEN integrity_constraint_violation OR raise_exception OR data_exception THEN
    r := leasehold.record_failure(r, now, 'worker ' || of_worker || ' cannot be marked late', SQLERRM, by_hand,
                                NULL, NULL, of_worker, NULL);
END $$;

-- Mark workers dead that were silent for too long, in a time range. A worker that is just sending a heartbeat
-- is skipped.
CREATE FUNCTION leasehold.declare_silent_dead(INOUT r leasehold.run, now timestamptz, since timestamptz,
                                      due timestamptz, by_hand boolean)
LANGUAGE plpgsql
AS $$
DECLARE
    w record;
BEGIN
    FOR w IN SELECT v.id, v.last_heartbeat_at, v.multiplier, v.interval_ms, v.sessions
               FROM leasehold.worker v
              WHERE $[silence_too_long(v, since, due)]
              ORDER BY v.id LIMIT 500 FOR UPDATE SKIP LOCKED LOOP
        r := leasehold.declare_dead(r, now, due, w.id, w.last_heartbeat_at,
                            leasehold.silence_words(now, w.last_heartbeat_at, w.multiplier, w.interval_ms),
                            w.sessions, false, by_hand);
    END LOOP;
END $$;

-- A dead worker that holds nothing any more, or only what stays on purpose (recovery off), need not be examined
-- by claims again.
CREATE FUNCTION leasehold.clean_worker(INOUT r leasehold.run, now timestamptz, of_worker text, holds boolean)
LANGUAGE plpgsql
AS $$
DECLARE
    changed boolean;
BEGIN
    IF holds THEN
        UPDATE leasehold.worker v SET stuck = true WHERE v.id = of_worker AND NOT v.stuck;
        IF FOUND THEN
            changed := leasehold.changed();
        END IF;
        RETURN;
    END IF;
    UPDATE leasehold.worker v  -- if it comes back after all, it still reports what it starts
       SET uncleaned = NULL, stuck = false, started = CASE WHEN v.started IS NOT NULL THEN '[]' END
     WHERE v.id = of_worker;
    PERFORM leasehold.event_put(now, 'worker.cleaned', NULL, NULL, of_worker, NULL, NULL, NULL,
        'system/recovery', NULL, NULL, NULL, NULL, NULL, NULL, r.report);
    r := leasehold.log_later(r, 'info', 'worker ' || of_worker || ' was cleaned up after: all it held is free',
                             NULL, NULL, NULL, NULL, of_worker);
EXCEPTION WHEN integrity_constraint_violation OR raise_exception OR data_exception THEN
    r := leasehold.record_failure(r, now, 'worker ' || of_worker || ' cannot be marked as cleaned up after', SQLERRM,
                                false, NULL, NULL, of_worker, NULL);
END $$;

-- At most 64; the next run does the rest.
CREATE FUNCTION leasehold.clean_workers(INOUT r leasehold.run, now timestamptz) LANGUAGE plpgsql
AS $$
DECLARE
    names text[];
    w     record;
BEGIN
    SELECT array_agg(d.id) INTO names
      FROM (SELECT v.id FROM leasehold.worker v WHERE v.uncleaned IS NOT NULL
             ORDER BY v.stuck LIMIT 64 FOR UPDATE SKIP LOCKED) d;
    IF names IS NULL THEN
        RETURN;
    END IF;
    FOR w IN
        SELECT d.id, h.worker IS NOT NULL AS holds
          FROM unnest(names) d(id)
          LEFT JOIN (SELECT k.worker, bool_or(leasehold.recovery_is_on(k.queue, k.kind)) AS free_it
                       FROM (SELECT DISTINCT j.worker, j.queue, j.kind FROM leasehold.job j
                              WHERE j.state = 'running' AND j.worker = ANY (names)) k
                      GROUP BY k.worker) h ON h.worker = d.id
         WHERE NOT coalesce(h.free_it, false)
    LOOP
        r := leasehold.clean_worker(r, now, w.id, w.holds);
    END LOOP;
END $$;

-- ---- what is reclaimable right now ----

-- Is a worker dead, and not everything that it held freed?
CREATE FUNCTION leasehold.unclean(since timestamptz, due timestamptz) RETURNS boolean LANGUAGE sql STABLE
RETURN EXISTS (SELECT 1 FROM leasehold.worker WHERE uncleaned IS NOT NULL)
       OR EXISTS (SELECT 1 FROM leasehold.worker WHERE silent_at IS NOT NULL AND silent_at > since AND silent_at <= due);

-- Jobs of dead workers whose leases still run.
CREATE FUNCTION leasehold.stale_of_dead(due timestamptz, of_queue text, some_stay boolean, most bigint)
RETURNS SETOF bigint LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT j.id FROM leasehold.job j
     WHERE j.state = 'running' AND j.lease_until > due AND (of_queue IS NULL OR j.queue = of_queue)
       AND j.worker IN (SELECT w.id FROM leasehold.worker w WHERE w.uncleaned IS NOT NULL
                        UNION ALL
                        SELECT w.id FROM leasehold.worker w
                         WHERE w.silent_at IS NOT NULL AND w.silent_at <= due AND w.pid IS NOT NULL)
       AND (NOT some_stay OR leasehold.recovery_is_on(j.queue, j.kind))
     ORDER BY j.lease_until, j.id LIMIT most;
END;

-- The ids of all reclaimable jobs. `dead`: workers known to be dead whose rows do not say so yet. `most` NULL:
-- all.
CREATE FUNCTION leasehold.stale(now timestamptz, m leasehold.meta, o leasehold.recovery_opts,
                                dead text[], most bigint, l leasehold.scan)
RETURNS SETOF bigint LANGUAGE plpgsql STABLE
AS $$
DECLARE
    due  timestamptz := leasehold.due(now, m.no_expiry_before);
    stay boolean := NOT o.by_hand AND leasehold.any_recovery_off(m);
BEGIN
    IF o.threshold_ms IS NOT NULL THEN
        RETURN QUERY SELECT j.id FROM leasehold.job j
                      WHERE j.state = 'running' AND (o.queue IS NULL OR j.queue = o.queue)
                        AND now - greatest(j.started_at, j.last_heartbeat_at)
                            >= leasehold.span(o.threshold_ms)
                      ORDER BY j.lease_until, j.id LIMIT most;
        RETURN;
    END IF;
    RETURN QUERY
    (SELECT j.id FROM leasehold.job j
      WHERE $[lease_ended(j, l.since, due)]
        AND (o.queue IS NULL OR j.queue = o.queue) AND (NOT stay OR leasehold.recovery_is_on(j.queue, j.kind))
      ORDER BY j.lease_until, j.id LIMIT most)
    UNION ALL
    (SELECT j.id FROM leasehold.job j
      WHERE j.state = 'running' AND j.lease_until = ANY (l.left_at) AND j.lease_until <= least(due, l.since)
        AND (o.queue IS NULL OR j.queue = o.queue) AND (NOT stay OR leasehold.recovery_is_on(j.queue, j.kind))
      LIMIT most)
    UNION ALL
    SELECT d FROM leasehold.stale_of_dead(due, o.queue, stay, most) d WHERE leasehold.unclean(l.since, due)
    UNION ALL
    SELECT j.id FROM leasehold.job j
     WHERE dead <> '{}' AND j.state = 'running' AND j.worker = ANY (dead) AND j.lease_until > due
       AND (o.queue IS NULL OR j.queue = o.queue)
       AND NOT EXISTS (SELECT 1 FROM leasehold.worker w
                        WHERE w.id = j.worker AND (w.uncleaned IS NOT NULL OR w.silent_at <= due))
       AND (NOT stay OR leasehold.recovery_is_on(j.queue, j.kind))
    LIMIT most;
END $$;

-- Leases that a recovery would free: expired ones, those of dead workers, and the leases of exclusive queues
-- whose jobs it would reclaim. `dead`: workers known to be dead whose rows do not say so yet.
CREATE FUNCTION leasehold.stale_leases(now timestamptz, since timestamptz, due timestamptz,
                                       o leasehold.recovery_opts, dead text[])
RETURNS bigint LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT (SELECT count(*) FROM leasehold.lease l
             WHERE $[named_lease_ended(l, since, due)])
         + (SELECT count(*)
              FROM (SELECT w.id, false AS unmarked FROM leasehold.worker w
                     WHERE w.uncleaned IS NOT NULL
                    UNION
                    SELECT w.id, true FROM leasehold.worker w
                     WHERE $[silence_too_long(w, since, due)]
                       AND w.pid IS NOT NULL
                    UNION
                    SELECT d.id, true FROM unnest(dead) d(id)) w
              JOIN leasehold.lease l ON l.owner = w.id
             WHERE l.expires_at > due
               AND CASE WHEN l.job IS NULL THEN w.unmarked
                        ELSE o.threshold_ms IS NULL AND (o.queue IS NULL OR l.name = o.queue) END)
         + (SELECT count(*) FROM leasehold.lease l JOIN leasehold.job j ON j.id = l.job
             WHERE o.threshold_ms IS NOT NULL AND o.at_once AND l.expires_at > due AND l.job IS NOT NULL
               AND (o.queue IS NULL OR l.name = o.queue) AND j.state = 'running'
               AND now - greatest(j.started_at, j.last_heartbeat_at) >= leasehold.span(o.threshold_ms));
END;

-- ---- on a claim that found something due ----

-- Jobs whose leases expired in a time range, 500 at most.
CREATE FUNCTION leasehold.expired_jobs(m leasehold.meta, since timestamptz, due timestamptz) RETURNS bigint[]
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF leasehold.any_recovery_off(m) THEN
        RETURN ARRAY(SELECT e.id
                       FROM (SELECT j.id, leasehold.recovery_is_on(j.queue, j.kind) AS free_it FROM leasehold.job j
                              WHERE $[lease_ended(j, since, due)]
                              ORDER BY j.lease_until LIMIT leasehold.most_skipped()) e
                      WHERE e.free_it LIMIT 500);
    END IF;
    RETURN ARRAY(SELECT j.id FROM leasehold.job j
                  WHERE $[lease_ended(j, since, due)]
                  ORDER BY j.lease_until LIMIT 500);
END $$;

-- Returns true if it has freed jobs.
CREATE FUNCTION leasehold.recover_on_claim(now timestamptz, m leasehold.meta, l leasehold.scan) RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    r   leasehold.run := leasehold.new_run('claim', false, false);
    due timestamptz := leasehold.due(now, m.no_expiry_before);
    s   record;
    ids bigint[] := '{}';
BEGIN
    FOR s IN SELECT * FROM leasehold.scan_ranges(l, due) LOOP
        r := leasehold.declare_silent_dead(r, now, s.since, s.up_to, false);
    END LOOP;
    IF leasehold.unclean(l.since, due) THEN
        r := leasehold.reclaim(r, now, m,
            ARRAY(SELECT leasehold.stale_of_dead(due, NULL, leasehold.any_recovery_off(m), 500)),
            leasehold.automatic_recovery());
        r := leasehold.clean_workers(r, now);
    END IF;
    FOR s IN SELECT * FROM leasehold.scan_ranges(l, due) LOOP
        r := leasehold.recover_leases(r, now, s.since, s.up_to, false);
        ids := ids || leasehold.expired_jobs(m, s.since, s.up_to);
    END LOOP;
    r := leasehold.reclaim(r, now, m, ids, leasehold.automatic_recovery());
    IF r.report IS NOT NULL THEN
        r := leasehold.end_report(r, leasehold.clock(), 'skipped', -1);
    END IF;
    PERFORM leasehold.log_now(r);
    RETURN leasehold.reclaimed(r) > 0;
END $$;
