-- Recovery: the state of a run, which jobs are reclaimable, and what a death makes of a job.
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
    $[recovery_counters()],
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
