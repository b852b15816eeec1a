-- Claim: take the best pending jobs, with new tokens, within the limits of their queues.

-- What a claim returns: the columns of leasehold.job, and what the policy says about the run.
CREATE TYPE leasehold.claimed AS (
    id bigint, token bigint, run_at timestamptz, created_at timestamptz, state_changed_at timestamptz,
    lease_until timestamptz, started_at timestamptz, finished_at timestamptz,
    last_heartbeat_at timestamptz, expires_at timestamptz, held_ms bigint, lease_ms bigint,
    backoff_ms bigint, backoff_cap_ms bigint, payload_sum bigint, nonce bigint, priority integer,
    attempt integer, max_attempts integer, recoveries integer, progress smallint, again boolean,
    plain boolean, state text, queue text, kind text, worker text, key text, stage text,
    last_error text, checkpoint text, payload text, payload_bytes bytea, result text,
    result_bytes bytea,
    timeout_ms bigint,
    max_output bigint,
    retry_ms bigint,    -- in a row without an id: a rate limit holds jobs back for this long
    schedules boolean,  -- in a row without an id: schedules are due (the library runs them)
    repeated boolean,   -- the request was made before, and this is its answer
    refusal text        -- in a row without an id: why the job that the same call should complete was refused
);

-- ---- requests ----

-- The call was made before: those of its jobs that its worker still holds.
CREATE FUNCTION leasehold.repeat_claim(of_request text, due timestamptz)
RETURNS SETOF leasehold.claimed LANGUAGE plpgsql
AS $$
DECLARE
    r leasehold.request;
BEGIN
    SELECT * INTO r FROM leasehold.request w WHERE w.request = of_request AND w.producer = 0;
    IF r.act <> 'claim' THEN
        PERFORM leasehold.refuse(-3, format('request "%s" was used by another act before: %s',
                                            left(of_request, 96), r.act));
    END IF;
    RETURN QUERY
        SELECT j.*, p.timeout_ms, p.max_output, NULL::bigint, NULL::boolean, true, NULL::text
          FROM unnest(r.jobs, r.tokens) WITH ORDINALITY w(id, token, ord)
          JOIN leasehold.job j ON j.id = ANY (r.jobs) AND j.id = w.id AND j.token = w.token
          CROSS JOIN LATERAL leasehold.policy_of(j.queue, j.kind) p
         WHERE j.lease_until > due
         ORDER BY w.ord;
END $$;

-- ---- before a claim ----

-- Reclaim jobs, promote and expire what is due. A failure is logged and undone, and does not stop the claim.
-- Returns true if jobs became pending.
CREATE FUNCTION leasehold.recover_before_claim(now timestamptz, m leasehold.meta, recovers boolean, l leasehold.scan)
RETURNS boolean LANGUAGE plpgsql
AS $$
DECLARE
    taken boolean := false;
    moved record;
BEGIN
    IF recovers THEN
        BEGIN
            taken := leasehold.recover_on_claim(now, m, l);
        EXCEPTION WHEN OTHERS THEN
            PERFORM leasehold.log_message('warn', 'automatic recovery failed: ' || SQLERRM);
        END;
    END IF;
    BEGIN
        moved := leasehold.expire_and_promote(now, l);  -- a statement of its own: OR would skip the call after a recovery
        taken := taken OR moved.promoted > 0;
    EXCEPTION WHEN OTHERS THEN
        PERFORM leasehold.log_message('warn', 'promoting due jobs failed: ' || SQLERRM);
    END;
    RETURN taken;
END $$;

-- Is anything due that would give this claim a job or a free slot? Where a queue may have a limit, a job of any
-- kind occupies a slot.
CREATE FUNCTION leasehold.is_due_for(queues text[], of_kinds text[], m leasehold.meta, l leasehold.scan,
                                     due timestamptz, now timestamptz)
RETURNS boolean LANGUAGE plpgsql STABLE
AS $$
DECLARE
    s record;
BEGIN
    FOR s IN SELECT * FROM leasehold.scan_ranges(l, greatest(due, now)) LOOP
        IF EXISTS (SELECT 1 FROM leasehold.job j
                    WHERE $[lease_ended(j, s.since, least(s.up_to, due))]
                      AND j.queue = ANY (queues)
                      AND (of_kinds IS NULL OR m.has_policies OR j.kind = ANY (of_kinds)))
           OR EXISTS (SELECT 1 FROM leasehold.job j
                       WHERE $[delay_ended(j, s.since, least(s.up_to, now))]
                         AND j.queue = ANY (queues)
                         AND (of_kinds IS NULL OR m.has_policies OR j.kind = ANY (of_kinds))) THEN
            RETURN true;
        END IF;
    END LOOP;
    RETURN leasehold.unclean(l.since, due)
           AND EXISTS (SELECT 1 FROM unnest(queues) q(queue),
                                     leasehold.stale_of_dead(due, q.queue, leasehold.any_recovery_off(m), 1));
END $$;

-- ---- claiming from one queue ----

-- Of the n best jobs in a range of priorities: how many are pending again, and which one is last.
CREATE FUNCTION leasehold.best_pending(of_queue text, alone bigint, n bigint, least_priority integer,
                               most_priority integer, low bigint, OUT anew bigint, OUT last_priority integer, OUT last_id bigint)
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    SELECT count(*) FILTER (WHERE b.again), (array_agg(b.priority ORDER BY b.priority, b.id DESC))[1],
           (array_agg(b.id ORDER BY b.priority, b.id DESC))[1]
      INTO anew, last_priority, last_id
      FROM (SELECT * FROM (
                (SELECT j.priority, j.id, j.again FROM leasehold.job j
                  WHERE j.state = 'pending' AND NOT j.again AND j.queue = of_queue
                    AND j.priority >= least_priority AND j.priority <= most_priority AND j.id > low
                    AND (alone IS NULL OR j.id = alone)
                  ORDER BY j.priority DESC, j.id LIMIT n)
                UNION ALL
                (SELECT j.priority, j.id, j.again FROM leasehold.job j
                  WHERE j.state = 'pending' AND j.again AND j.queue = of_queue
                    AND j.priority >= least_priority AND j.priority <= most_priority
                    AND (alone IS NULL OR j.id = alone)
                  ORDER BY j.priority DESC, j.id LIMIT n)) u
             ORDER BY u.priority DESC, u.id LIMIT n) b;
END $$;

-- Claim up to n jobs of one queue in a range of priorities, fresh ones above an id. One statement chooses and
-- locks the rows in order, writes them and counts them. The time of the claim is the time at which the row was
-- locked, so it is never earlier than the end that another session just wrote there.
--
-- Locks last as long as the caller's transaction, so the statement locks no more than it takes. Where there are
-- fresh jobs and jobs that are pending again, it first finds the n best of both. Only if it then gets too few,
-- because other sessions lock them, does it consider all of them.
CREATE FUNCTION leasehold.claim_from_queue(
    of_queue text, of_worker text, of_kinds text[], alone bigint, n bigint, lease bigint, least_priority integer,
    most_priority integer, low bigint, first_token bigint, p leasehold.policy, rule_kinds text[],
    rules leasehold.policy[])
RETURNS SETOF leasehold.claimed LANGUAGE plpgsql
AS $$
DECLARE
    anew   bigint := 0;
    fresh  bigint := n;
    last_priority integer := -32769;  -- priority of the last of the n best; nothing yet
    last_id       bigint := 0;
    wanted bigint := n;
    got    bigint;
    ids    bigint[] := '{}';  -- chosen and locked by kind
    mixed  boolean := of_kinds IS NULL AND EXISTS (SELECT 1 FROM leasehold.job j
                               WHERE j.state = 'pending' AND j.again AND j.queue = of_queue);
BEGIN
    IF of_kinds IS NOT NULL AND alone IS NULL THEN
        ids := leasehold.lock_of_kinds(of_queue, of_kinds, n, least_priority, most_priority, low);
        fresh := 0;
        IF ids = '{}' THEN
            RETURN;
        END IF;
    ELSIF mixed THEN
        SELECT b.anew, n - b.anew, b.last_priority, b.last_id INTO anew, fresh, last_priority, last_id
          FROM leasehold.best_pending(of_queue, alone, n, least_priority, most_priority, low) b;
    END IF;
    FOR round IN 1..2 LOOP
        RETURN QUERY
        WITH picked AS MATERIALIZED (
            (SELECT w.id, w.at FROM (
                SELECT * FROM (
                    SELECT j.id, j.priority, leasehold.clock() AS at FROM leasehold.job j
                     WHERE j.state = 'pending' AND NOT j.again AND j.queue = of_queue
                       AND j.priority >= least_priority AND j.priority <= most_priority AND j.id > low
                       AND (alone IS NULL OR j.id = alone)
                       AND (j.priority > last_priority OR (j.priority = last_priority AND j.id <= last_id))
                       AND (j.expires_at IS NULL OR j.token > 0 OR j.expires_at > leasehold.clock())
                     ORDER BY j.priority DESC, j.id LIMIT fresh FOR UPDATE SKIP LOCKED) f
                UNION ALL
                SELECT * FROM (
                    SELECT j.id, j.priority, leasehold.clock() AS at FROM leasehold.job j
                     WHERE j.state = 'pending' AND j.again AND j.queue = of_queue
                       AND j.priority >= least_priority AND j.priority <= most_priority
                       AND (alone IS NULL OR j.id = alone)
                       AND (j.priority > last_priority OR (j.priority = last_priority AND j.id <= last_id))
                       AND (j.expires_at IS NULL OR j.token > 0 OR j.expires_at > leasehold.clock())
                     ORDER BY j.priority DESC, j.id LIMIT anew FOR UPDATE SKIP LOCKED) a) w
             ORDER BY w.priority DESC, w.id LIMIT wanted)
            UNION ALL
            SELECT k.id, leasehold.clock() FROM unnest(ids) k(id)),
        taken AS (
            UPDATE leasehold.job j
               SET $[claimed(j, picked.at,
                             coalesce(lease, j.lease_ms, (rules[array_position(rule_kinds, j.kind)]).lease_ms,
                                      p.lease_ms, $[lease_ms]),
                             coalesce(j.max_attempts, (rules[array_position(rule_kinds, j.kind)]).max_attempts,
                                      p.max_attempts, $[max_attempts]))]
              FROM picked WHERE j.id = ANY (ARRAY(SELECT x.id FROM picked x)) AND j.id = picked.id
            RETURNING j.*),
        counted AS (
            INSERT INTO leasehold.delta
            SELECT of_queue, max(t.started_at), 'c', 'pending', 'running', count(*),
                   coalesce(sum(greatest(leasehold.ms(t.started_at - greatest(t.created_at, t.run_at)), 0)), 0)
              FROM taken t HAVING count(*) > 0)
        SELECT t.*, coalesce((rules[array_position(rule_kinds, t.kind)]).timeout_ms, p.timeout_ms, $[timeout_ms]),
               coalesce((rules[array_position(rule_kinds, t.kind)]).max_output, p.max_output, $[max_output]),
               NULL::bigint, NULL::boolean, NULL::boolean, NULL::text
          FROM taken t ORDER BY t.priority DESC, t.id;
        GET DIAGNOSTICS got = ROW_COUNT;
        wanted := wanted - got;
        EXIT WHEN wanted = 0 OR NOT mixed;
        anew := wanted;
        fresh := wanted;
        last_priority := -32769;
    END LOOP;
END $$;

-- ---- the claim ----

-- Claim up to n jobs of these queues, in the given order, the best first. The planner settings keep the plans
-- of claim_from_queue() independent of what the table looked like when the session first claimed.
CREATE FUNCTION leasehold.claim_many(of_worker text, queues text[], of_kinds text[], want bigint,
                                     lease bigint, of_request text, recovers boolean)
RETURNS SETOF leasehold.claimed
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = off SET enable_mergejoin = off
AS $$
DECLARE
    began  timestamptz := leasehold.stopwatch();
    now    timestamptz := leasehold.clock();
    m      leasehold.meta;
    p      leasehold.policy;
    due    timestamptz;
    scan  leasehold.scan;
    since  timestamptz;
    expired boolean;
    moves  boolean;
    ticks  boolean;
    waited boolean;
    q      text;
    got    bigint;
    total  bigint := 0;
    allowed bigint;
    bucket bigint;
    bucket_at timestamptz;
    alone  bigint;
    one    leasehold.claimed;
    taken  bigint[] := '{}';
    held   bigint[] := '{}';
    waits  bigint;
    busy   text[] := '{}';  -- queues with limits that another session has locked: skipped ...
    soon   constant bigint := 50;  -- ... and tried again after this many ms
    -- kinds that have policies of their own
    rule_kinds  text[];
    rules       leasehold.policy[];
    -- ranges of the index, best first: priorities from-to, fresh ids above low
    tops   integer[];
    ends   integer[];
    lows   bigint[];
    floors bigint[];
    before bigint;
    tried  timestamptz;
    passed bigint;
    behind bigint;     -- number of ids below the known floor that may be read again
    i      integer;
    looks  boolean;
    f      leasehold.claim_floor;
    round  integer := 0;
    freed  boolean := false;  -- this claim has freed jobs
    met    boolean;           -- other sessions were freeing jobs
BEGIN
    PERFORM leasehold.need_name('worker', of_worker), leasehold.need_names('queue', queues);
    IF of_kinds IS NOT NULL THEN
        PERFORM leasehold.need_names('kind', of_kinds);
    END IF;
    PERFORM leasehold.need_given('number of jobs', want IS NOT NULL), leasehold.need_range('number of jobs', want, 1, 1000),
            leasehold.need_ms('lease', lease, 1, 2592000000), leasehold.need_request(of_request);
    SELECT * INTO m FROM leasehold.meta;
    IF m.timeline <> left(pg_walfile_name(pg_current_wal_lsn()), 8)
       OR m.job_oid <> 'leasehold.job'::regclass OR NOT leasehold.has_not_crashed() THEN
        m := leasehold.new_server(now);
    END IF;
    due := leasehold.due(now, m.no_expiry_before);

    IF of_request IS NOT NULL THEN
        INSERT INTO leasehold.request VALUES (of_request, 'claim', now, '{}', '{}') ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            RETURN QUERY SELECT * FROM leasehold.repeat_claim(of_request, due);
            IF NOT FOUND THEN
                RETURN QUERY SELECT (jsonb_populate_record(NULL::leasehold.claimed, '{"repeated": true}')).*;
            END IF;
            RETURN;
        END IF;
    END IF;

    -- One check for everything unusual; nearly always there is nothing.
    scan := leasehold.read_scan_bound(m.generation, now, true);
    IF NOT scan.fresh AND scan.littered THEN
        scan := leasehold.scan_backlog(m, scan, due, now);
    END IF;
    since := scan.since;
    SELECT EXISTS (SELECT 1 FROM leasehold.job w WHERE $[lease_ended(w, since, due)])
        OR EXISTS (SELECT 1 FROM leasehold.lease w WHERE $[named_lease_ended(w, since, due)])
        OR EXISTS (SELECT 1 FROM leasehold.worker w WHERE $[silence_too_long(w, since, due)])
        OR EXISTS (SELECT 1 FROM leasehold.worker w WHERE w.uncleaned IS NOT NULL AND NOT w.stuck),
           EXISTS (SELECT 1 FROM leasehold.job w WHERE $[delay_ended(w, since, now)])
        OR EXISTS (SELECT 1 FROM leasehold.job w
                    WHERE $[expiry_passed(w, since, now)]),
           EXISTS (SELECT 1 FROM leasehold.schedule w WHERE w.next_at <= now),
           EXISTS (SELECT 1 FROM leasehold.worker w
                    WHERE w.id = of_worker AND w.pid IS NOT NULL AND w.state <> 'stopped'
                      AND (w.silent_at IS NULL OR w.last_heartbeat_at < now - w.interval_ms * interval '0.5 milliseconds'))
      INTO expired, moves, ticks, waited;
    IF scan.left_at <> '{}' THEN
        SELECT expired OR w.frees <> '{}', moves OR w.moves_in <> '{}' INTO expired, moves
          FROM leasehold.leftover_due(m, scan.left_at, due, now) w;
    END IF;
    IF waited THEN
        -- A claim counts as a heartbeat of the worker, which may have waited long with no job to heartbeat for.
        -- The claim also revives a worker that was marked dead.
        UPDATE leasehold.worker w
           SET last_heartbeat_at = leasehold.clock(), state = 'alive',
               silent_at = leasehold.clock() + w.interval_ms * w.multiplier * interval '1 millisecond',
               uncleaned = NULL, stuck = false
         WHERE w.id = of_worker AND w.pid IS NOT NULL AND w.state <> 'stopped';
    END IF;
    IF expired OR moves THEN
        freed := leasehold.recover_before_claim(now, m, expired AND recovers AND m.recovering_until <= now, scan);
    END IF;
    IF NOT scan.fresh THEN
        PERFORM leasehold.save_scan_bound(m, scan,
            CASE WHEN expired OR moves THEN leasehold.first_due(m, since, due, now) END, began, due, now);
    END IF;

    IF m.has_policies THEN
        busy := leasehold.lock_limits(queues);
    END IF;
    LOOP  -- again, if nothing was found and other sessions may have freed something
        FOREACH q IN ARRAY queues LOOP
            EXIT WHEN total >= want;
            IF m.has_paused THEN
                CONTINUE WHEN EXISTS (SELECT 1 FROM leasehold.queue w WHERE w.queue = q AND w.paused);
            END IF;
            IF q = ANY (busy) THEN
                waits := least(waits, soon);
                CONTINUE;
            END IF;
            allowed := want - total;
            bucket := NULL;
            alone := NULL;
            IF m.has_policies THEN
                p := leasehold.policy_of(q, NULL);
                SELECT array_agg(k.kind), array_agg(leasehold.policy_of(q, k.kind)) INTO rule_kinds, rules
                  FROM (SELECT DISTINCT w.kind FROM leasehold.policy w
                         WHERE w.queue IN (q, '*') AND w.kind <> '*') k;
                SELECT w.allowed, w.bucket, w.now INTO allowed, bucket, bucket_at
                  FROM leasehold.allowed_now(q, want - total, p) w;
                IF allowed = 0 THEN
                    IF bucket < 1000 THEN
                        waits := least(waits, (1000 - bucket) * p.rate_per_ms / (p.rate_n * 1000) + 1);
                    END IF;
                    CONTINUE;
                END IF;
                IF p.exclusive THEN
                    alone := leasehold.first_pending(q, of_kinds);
                    CONTINUE WHEN alone IS NULL OR NOT leasehold.exclusive_acquire(
                        now, m, q, alone, of_worker,
                        now + coalesce(lease, (SELECT w.lease_ms FROM leasehold.job w WHERE w.id = alone), p.lease_ms)
                              * interval '1 millisecond');
                END IF;
            ELSE
                p := NULL;
            END IF;

            -- Start at the claim floor, if it is known, and after a scan if one is due.
            before := total;
            tried := leasehold.stopwatch();
            IF scan.littered AND alone IS NULL AND leasehold.begin_first_scan(q) THEN
                PERFORM leasehold.find_claim_floor(q, NULL, now, scan);
            END IF;
            passed := leasehold.fresh_entries_read();
            FOR pass IN 1..2 LOOP
                looks := false;
                behind := 0;
                tops := '{32767}'; ends := '{-32768}'; lows := '{0}'; floors := '{0}';
                EXIT WHEN alone IS NOT NULL;
                FOR f IN SELECT * FROM leasehold.claim_floor w WHERE w.queue = q AND w.look = leasehold.last_floor_number(q)
                          ORDER BY w.priority DESC LOOP
                    looks := looks OR leasehold.floor_check_due(f, scan.late, now);
                    behind := greatest(behind, scan.floor - f.floor);
                    ends[cardinality(ends)] := f.priority + 1;
                    tops := tops || f.priority || (f.priority - 1);
                    ends := ends || f.priority || -32768;
                    lows := lows || f.low || 0::bigint;
                    floors := floors || f.floor || 0::bigint;
                END LOOP;
                EXIT WHEN pass = 2 OR NOT (looks AND leasehold.may_check_floor(q, scan.late, now));
                IF current_setting('transaction_isolation') <> 'read committed' THEN
                    tops := '{32767}'; ends := '{-32768}'; lows := '{0}';
                    EXIT;
                END IF;
                PERFORM leasehold.find_claim_floor(q, of_worker, now, scan);
            END LOOP;

            FOR k IN 1..2 * cardinality(tops) LOOP
                EXIT WHEN allowed <= 0;
                i := (k - 1) % cardinality(tops) + 1;
                IF k > cardinality(tops) THEN  -- nothing above the floor: did a job commit late?
                    EXIT WHEN total > before;
                    CONTINUE WHEN floors[i] >= lows[i];
                    lows[i] := floors[i];
                END IF;
                CONTINUE WHEN tops[i] < ends[i];
                -- Outside the known priorities there is nearly always nothing.
                CONTINUE WHEN lows[i] = 0 AND cardinality(tops) > 1
                    AND NOT EXISTS (SELECT 1 FROM leasehold.job w
                                     WHERE w.state = 'pending' AND NOT w.again AND w.queue = q
                                       AND w.priority >= ends[i] AND w.priority <= tops[i])
                    AND NOT EXISTS (SELECT 1 FROM leasehold.job w
                                     WHERE w.state = 'pending' AND w.again AND w.queue = q
                                       AND w.priority >= ends[i] AND w.priority <= tops[i]);
                IF m.has_policies OR of_request IS NOT NULL THEN
                    got := 0;
                    FOR one IN SELECT * FROM leasehold.claim_from_queue(
                        q, of_worker, of_kinds, alone, allowed, lease, ends[i], tops[i], lows[i], m.first_token, p, rule_kinds, rules)
                    LOOP
                        RETURN NEXT one;
                        got := got + 1;
                        taken := taken || one.id;
                        held := held || one.token;
                    END LOOP;
                ELSE
                    RETURN QUERY SELECT * FROM leasehold.claim_from_queue(
                        q, of_worker, of_kinds, alone, allowed, lease, ends[i], tops[i], lows[i], m.first_token, p, rule_kinds, rules);
                    GET DIAGNOSTICS got = ROW_COUNT;
                END IF;
                allowed := allowed - got;
                total := total + got;
                IF m.has_policies AND got > 0 THEN
                    PERFORM leasehold.after_policy_claim(q, of_worker, p, alone, taken[total - got + 1:],
                                                          bucket - got * 1000, bucket_at);
                    bucket := bucket - got * 1000;
                END IF;
            END LOOP;
            IF alone IS NOT NULL AND NOT EXISTS (SELECT 1 FROM leasehold.job w WHERE w.id = alone AND w.worker IS NOT NULL) THEN
                PERFORM leasehold.exclusive_end(ARRAY[alone], ARRAY[q]);
            END IF;
            IF of_kinds IS NULL AND alone IS NULL THEN
                IF cardinality(tops) > 1 THEN
                    IF random() * 500 < total - before OR behind > 1000 THEN
                        PERFORM leasehold.raise_claim_floor(q, scan.floor);
                    END IF;
                ELSIF random() * 500 < total - before THEN
                    PERFORM leasehold.find_claim_floor(q, of_worker, now, scan);
                ELSIF total = before AND (leasehold.stopwatch() > tried + interval '50 milliseconds'
                                          OR leasehold.fresh_entries_read() > passed + 1000) THEN
                    PERFORM leasehold.find_claim_floor(q, NULL, now, scan);
                END IF;
            END IF;
        END LOOP;
        round := round + 1;
        EXIT WHEN total > 0 OR NOT (expired OR moves) OR round > 4;
        IF round = 1 AND expired AND recovers AND m.recovering_until > now THEN
            freed := leasehold.recover_before_claim(now, m, true, scan) OR freed;  -- recovery was postponed
            CONTINUE WHEN freed;
        END IF;
        -- What was due at the start, and is not ours, may be free by now, so there is one more round in any
        -- case. If a transaction is freeing a job of these queues, wait for it: until it commits, the job still
        -- looks due.
        EXIT WHEN round > 1 AND NOT met;
        met := false;
        IF leasehold.is_due_for(queues, of_kinds, m, scan, due, now) THEN
            met := leasehold.await_freeing(freed);
        END IF;
        IF met THEN  -- or is due again: the other transaction may have been rolled back
            freed := leasehold.recover_before_claim(now, m, expired AND recovers, scan) OR freed;
        END IF;
    END LOOP;

    IF total > 0 AND EXISTS (SELECT 1 FROM leasehold.job w
                              WHERE $[lease_ended(w, now, now + interval '1 second')] AND w.worker = of_worker) THEN
        PERFORM leasehold.wake_maintenance(now);
    END IF;
    IF of_request IS NOT NULL AND total > 0 THEN
        UPDATE leasehold.request r SET jobs = taken, tokens = held WHERE r.request = of_request AND r.producer = 0;
    ELSIF of_request IS NOT NULL THEN
        DELETE FROM leasehold.request r WHERE r.request = of_request AND r.producer = 0;
    END IF;
    IF ticks OR waits IS NOT NULL THEN
        RETURN QUERY SELECT (jsonb_populate_record(NULL::leasehold.claimed,
            jsonb_build_object('retry_ms', waits, 'schedules', ticks))).*;
    END IF;
END $$;

-- Has anything fallen due that a claim handles?
CREATE FUNCTION leasehold.something_due(now timestamptz, of_queue text) RETURNS boolean LANGUAGE plpgsql
AS $$
DECLARE
    scan leasehold.scan := leasehold.read_scan_bound((SELECT m.generation FROM leasehold.meta m WHERE m.one), now);
    since timestamptz := scan.since;
BEGIN
    PERFORM setval('leasehold.due_check', leasehold.unix_ms(now));
    RETURN NOT scan.fresh OR scan.left_at <> '{}'
        OR EXISTS (SELECT 1 FROM leasehold.claim_floor w
                    WHERE w.queue = of_queue AND w.look = leasehold.last_floor_number(of_queue)
                      AND w.late <> scan.late AND w.rest_until <= now)
        OR EXISTS (SELECT 1 FROM leasehold.job w WHERE $[lease_ended(w, since, now)])
        OR EXISTS (SELECT 1 FROM leasehold.lease w WHERE $[named_lease_ended(w, since, now)])
        OR EXISTS (SELECT 1 FROM leasehold.worker w WHERE $[silence_too_long(w, since, now)])
        OR EXISTS (SELECT 1 FROM leasehold.worker w WHERE w.uncleaned IS NOT NULL AND NOT w.stuck)
        OR EXISTS (SELECT 1 FROM leasehold.job w WHERE $[delay_ended(w, since, now)])
        OR EXISTS (SELECT 1 FROM leasehold.job w
                    WHERE $[expiry_passed(w, since, now)])
        OR EXISTS (SELECT 1 FROM leasehold.schedule w WHERE w.next_at <= now);
END $$;

-- Claim one job, or up to `want`, of one queue without policies: the common case. One statement checks that nothing is unusual,
-- one takes the job, one counts it (claim_few() takes and counts many); every additional statement or setting costs measurably. claim_many()
-- handles everything else. Of all claims within ten milliseconds one checks what is due, and so does one claim
-- in fifty.
--
-- A worker that has finished a job completes it with the same call (done_job), as complete_one() does. If that
-- is refused, a first row without an id says why.
CREATE FUNCTION leasehold.claim_one(of_worker text, of_queue text, lease bigint, recovers boolean,
                                    done_job bigint DEFAULT NULL, done_token bigint DEFAULT NULL,
                                    done_result text DEFAULT NULL, want bigint DEFAULT 1)
RETURNS SETOF leasehold.claimed
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    now     timestamptz := leasehold.clock();
    first_token bigint;
    unusual boolean;
    top     integer;
    low     bigint;
    looked  timestamptz;
    left_queue text;      -- of the completed job: its queue
    begun   timestamptz;  -- ... and when it ran
    ended   timestamptz;
    one     leasehold.claimed;
    got     bigint := 0;
BEGIN
    IF (leasehold.is_name(of_worker) AND leasehold.is_name(of_queue) AND want BETWEEN 1 AND 1000
        AND (lease IS NULL OR lease BETWEEN 1 AND 2592000000)) IS NOT TRUE THEN
        PERFORM leasehold.need_name('worker', of_worker), leasehold.need_name('queue', of_queue),
                leasehold.need_ms('lease', lease, 1, 2592000000),
                leasehold.need_given('number of jobs', want IS NOT NULL),
                leasehold.need_range('number of jobs', want, 1, 1000);
    END IF;
    IF done_job IS NOT NULL THEN
        $[complete_job(j, done_job, done_token, done_result)]
        RETURNING j.queue, j.started_at, j.finished_at INTO left_queue, begun, ended;
        IF left_queue IS NULL THEN
            SELECT o.status || ' ' || o.message INTO one.refusal
              FROM leasehold.complete_many(ARRAY[done_job], ARRAY[done_token], ARRAY[done_result], '{}') o;
            IF one.refusal IS NOT NULL THEN
                RETURN NEXT one;
            END IF;
        END IF;
        now := leasehold.clock();  -- the update may have waited for another session
    END IF;
    SELECT m.first_token, f.priority, f.low,
           m.has_policies OR m.has_paused OR now < m.no_expiry_before
           OR NOT starts_with(pg_walfile_name(pg_current_wal_lsn()), m.timeline)
           OR m.job_oid <> 'leasehold.job'::regclass
           OR NOT leasehold.has_not_crashed()
           OR CASE WHEN f.next_look IS NULL THEN leasehold.has_many_dead_rows() ELSE f.next_look <= now END
           OR EXISTS (SELECT 1 FROM leasehold.worker w
                       WHERE w.id = of_worker AND w.pid IS NOT NULL AND w.state <> 'stopped'
                         AND (w.silent_at IS NULL OR w.last_heartbeat_at < now - w.interval_ms * interval '0.5 milliseconds'))
           OR EXISTS (SELECT 1 FROM leasehold.job w WHERE w.state = 'pending' AND w.again AND w.queue = of_queue)
           OR EXISTS (SELECT 1 FROM leasehold.job w
                       WHERE w.state = 'pending' AND NOT w.again AND w.queue = of_queue AND w.priority > f.priority),
           leasehold.due_checked_at()
      INTO first_token, top, low, unusual, looked
      FROM leasehold.meta m
      LEFT JOIN LATERAL (SELECT w.priority, w.low, w.next_look FROM leasehold.claim_floor w WHERE w.queue = of_queue
                          ORDER BY w.look DESC, w.priority DESC LIMIT 1) f ON true
     WHERE m.one;
    IF looked > now OR looked < now - interval '10 milliseconds' OR random() < 0.02 THEN
        unusual := unusual OR leasehold.something_due(now, of_queue);
    END IF;
    IF NOT unusual AND want > 1 THEN
        RETURN QUERY SELECT * FROM leasehold.claim_few(of_worker, of_queue, lease, now, first_token, top, low, want);
        GET DIAGNOSTICS got = ROW_COUNT;
        -- More of them may be below the priority of the claim floor.
        IF got = want OR (got > 0 AND NOT EXISTS (SELECT 1 FROM leasehold.job w
                                                   WHERE w.state = 'pending' AND NOT w.again AND w.queue = of_queue
                                                     AND w.priority < top)) THEN
            IF left_queue IS NOT NULL THEN
                INSERT INTO leasehold.delta
                VALUES (left_queue, ended, 'd', 'running', 'completed', 1, leasehold.ms(ended - begun));
            END IF;
            IF coalesce(lease, 0) BETWEEN 1 AND 1000 OR random() * 200 < got THEN
                PERFORM leasehold.after_single_claim(of_queue, of_worker, now, coalesce(lease, 300000), low);
            END IF;
            RETURN;
        END IF;
    ELSIF NOT unusual THEN
        UPDATE leasehold.job j
           SET $[claimed(j, greatest(now, j.state_changed_at), coalesce(lease, j.lease_ms, $[lease_ms]),
                         coalesce(j.max_attempts, $[max_attempts]))]
         WHERE j.id = (SELECT w.id FROM leasehold.job w
                        WHERE w.state = 'pending' AND NOT w.again AND w.queue = of_queue
                          AND w.priority >= coalesce(top, -32768)
                          AND w.priority <= coalesce(top, 32767)
                          AND w.id > coalesce(low, 0)
                          AND (w.expires_at IS NULL OR w.token > 0 OR w.expires_at > now)
                        ORDER BY w.priority DESC, w.id LIMIT 1 FOR UPDATE SKIP LOCKED)
        RETURNING j.*, $[timeout_ms], $[max_output] INTO one;
        IF one.id IS NOT NULL THEN
            RETURN NEXT one;
            IF left_queue IS NULL THEN
                INSERT INTO leasehold.delta
                VALUES (of_queue, one.started_at, 'c', 'pending', 'running', 1,
                        greatest(leasehold.ms(one.started_at - greatest(one.created_at, one.run_at)), 0));
            ELSE
                INSERT INTO leasehold.delta
                VALUES (left_queue, ended, 'd', 'running', 'completed', 1, leasehold.ms(ended - begun)),
                       (of_queue, one.started_at, 'c', 'pending', 'running', 1,
                        greatest(leasehold.ms(one.started_at - greatest(one.created_at, one.run_at)), 0));
            END IF;
            IF one.held_ms <= 1000 OR one.id % 200 = 0 THEN
                PERFORM leasehold.after_single_claim(of_queue, of_worker, now, one.held_ms, low);
            END IF;
            RETURN;
        END IF;
    END IF;
    IF left_queue IS NOT NULL THEN
        INSERT INTO leasehold.delta VALUES (left_queue, ended, 'd', 'running', 'completed', 1, leasehold.ms(ended - begun));
    END IF;
    RETURN QUERY SELECT * FROM leasehold.claim_many(of_worker, ARRAY[of_queue], NULL, want - got, lease, NULL, recovers);
END $$;

-- Up to `want` fresh jobs of one queue at a priority (NULL: any), with ids above `low`; for claim_one(). The
-- statement chooses, locks, writes and counts them.
CREATE FUNCTION leasehold.claim_few(of_worker text, of_queue text, lease bigint, now timestamptz, first_token bigint,
                                    top integer, low bigint, want bigint)
RETURNS SETOF leasehold.claimed LANGUAGE plpgsql
AS $$
BEGIN
    RETURN QUERY
    WITH taken AS (
        UPDATE leasehold.job j
           SET state = 'running', token = greatest(j.token, first_token) + 1, attempt = j.attempt + 1,
               max_attempts = CASE WHEN j.max_attempts = -1 THEN -1
                                   ELSE greatest(coalesce(j.max_attempts, 3), j.attempt + 1) END,
               worker = of_worker, held_ms = coalesce(lease, j.lease_ms, 300000),
               lease_until = greatest(now, j.state_changed_at)
                             + coalesce(lease, j.lease_ms, 300000) * interval '1 millisecond',
               started_at = greatest(now, j.state_changed_at), state_changed_at = greatest(now, j.state_changed_at),
               finished_at = NULL, stage = NULL, progress = NULL, again = true
         WHERE j.id = ANY (ARRAY(SELECT w.id FROM leasehold.job w
                                  WHERE w.state = 'pending' AND NOT w.again AND w.queue = of_queue
                                    AND w.priority >= coalesce(top, -32768)
                                    AND w.priority <= coalesce(top, 32767)
                                    AND w.id > coalesce(low, 0)
                                    AND (w.expires_at IS NULL OR w.token > 0 OR w.expires_at > now)
                                  ORDER BY w.priority DESC, w.id LIMIT want FOR UPDATE SKIP LOCKED))
        RETURNING j.*),
    counted AS (
        INSERT INTO leasehold.delta
        SELECT of_queue, max(t.started_at), 'c', 'pending', 'running', count(*),
               sum(greatest(leasehold.ms(t.started_at - greatest(t.created_at, t.run_at)), 0))
          FROM taken t HAVING count(*) > 0)
    SELECT t.*, 0::bigint, 65536::bigint, NULL::bigint, NULL::boolean, NULL::boolean, NULL::text
      FROM taken t ORDER BY t.priority DESC, t.id;
END $$;

-- Once in a while after a claim: raise the claim floor; wake maintenance for a short lease.
CREATE FUNCTION leasehold.after_single_claim(of_queue text, of_worker text, now timestamptz, held_ms bigint, low bigint)
RETURNS void LANGUAGE plpgsql
AS $$
DECLARE
    scan leasehold.scan := leasehold.read_scan_bound((SELECT m.generation FROM leasehold.meta m WHERE m.one), now);
BEGIN
    IF held_ms <= 1000 THEN
        PERFORM leasehold.wake_maintenance(now);
    END IF;
    IF low IS NULL THEN
        PERFORM leasehold.find_claim_floor(of_queue, of_worker, now, scan);
    ELSE
        PERFORM leasehold.raise_claim_floor(of_queue, scan.floor);
    END IF;
END $$;

-- After a claim in a queue with policies: extend the exclusive lease to the end of the job's lease, store the
-- bucket, write the events of a full audit.
CREATE FUNCTION leasehold.after_policy_claim(of_queue text, of_worker text, p leasehold.policy,
                                              alone bigint, taken bigint[], left_over bigint,
                                              counted_at timestamptz)
RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    IF alone IS NOT NULL THEN
        PERFORM leasehold.exclusive_extend(w.started_at, of_queue, alone, w.lease_until)
           FROM leasehold.job w WHERE w.id = alone AND w.worker IS NOT NULL;
    END IF;
    IF left_over IS NOT NULL THEN
        UPDATE leasehold.queue w SET bucket = left_over, bucket_at = counted_at WHERE w.queue = of_queue;
    END IF;
    IF EXISTS (SELECT 1 FROM leasehold.policy w WHERE w.queue IN (of_queue, '*') AND w.audit = 2) THEN
        PERFORM leasehold.event_put(w.started_at, 'job.claimed', w.id, w.queue, of_worker, NULL, 'pending',
                                    'running', of_worker, NULL, w.token)
           FROM unnest(taken) WITH ORDINALITY t(id, ord) JOIN leasehold.job w ON w.id = ANY (taken) AND w.id = t.id
          WHERE w.queue = of_queue AND (leasehold.policy_of(w.queue, w.kind)).audit = 2
          ORDER BY t.ord;
    END IF;
END $$;

-- The payload does not match its checksum: the library found out and returns the job as failed. It never runs
-- and is kept for inspection; the attempt does not count.
CREATE FUNCTION leasehold.fail_corrupt(of_job bigint, of_token bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off
AS $$
DECLARE
    now    timestamptz := leasehold.clock();
    reason constant text := 'CORRUPT: payload does not match its checksum';
    j      leasehold.job;
BEGIN
    UPDATE leasehold.job w
       SET state = 'failed', lease_until = NULL, worker = NULL, started_at = NULL, attempt = w.attempt - 1,
           last_error = reason, finished_at = now, state_changed_at = now
     WHERE w.id = of_job AND w.token = of_token AND w.worker IS NOT NULL
    RETURNING * INTO j;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    INSERT INTO leasehold.delta VALUES (j.queue, now, 'f', 'running', 'failed', 1, 0);
    IF (SELECT has_policies FROM leasehold.meta) THEN
        PERFORM leasehold.release_limits(now, ARRAY[of_job], ARRAY[j.queue]);
    END IF;
    PERFORM leasehold.event_put(now, 'job.failed', j.id, j.queue, NULL, NULL, 'pending', 'failed',
                                'system/claim', reason, j.token);
    PERFORM leasehold.log_message('error', 'job ' || j.id || ' was failed: payload does not match its checksum',
                           j.id, j.token, j.attempt, j.queue, NULL, reason);
END $$;

-- ---- by SQL ----

-- Was this queue never used or configured? Counts that are not folded are read only while their table is small:
-- there may be millions, and no index helps, because every act would pay for it. If there are many, the answer
-- is no.
CREATE FUNCTION leasehold.is_never_used(of_queue text) RETURNS boolean LANGUAGE plpgsql STABLE
AS $$
DECLARE
    small constant bigint := 1048576;  -- bytes, about ten thousand rows
BEGIN
    IF EXISTS (SELECT 1 FROM leasehold.queue q WHERE q.queue = of_queue)
       OR EXISTS (SELECT 1 FROM leasehold.policy p WHERE p.queue = of_queue)
       OR EXISTS (SELECT 1 FROM leasehold.schedule s WHERE s.queue = of_queue) THEN
        RETURN false;
    END IF;
    IF pg_relation_size('leasehold.delta') > small THEN
        RETURN false;
    END IF;
    RETURN NOT EXISTS (SELECT 1 FROM leasehold.delta d WHERE d.queue = of_queue);
END $$;

-- SELECT id, token, payload FROM leasehold.claim('me', 'mail');
CREATE FUNCTION leasehold.claim(worker text, queues text[], n integer DEFAULT 1, lease interval DEFAULT NULL,
                                kinds text[] DEFAULT NULL, request text DEFAULT NULL)
RETURNS SETOF leasehold.job
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM leasehold.need_name('worker', worker);
    IF queues IS NULL OR cardinality(queues) = 0 THEN
        PERFORM leasehold.refuse(-3, 'queue is missing');
    END IF;
    PERFORM leasehold.need_name('queue', w) FROM unnest(queues) w;
    PERFORM leasehold.need_name('kind', w) FROM unnest(kinds) w;
    PERFORM leasehold.need_given('number of jobs', n IS NOT NULL), leasehold.need_range('number of jobs', n, 1, 1000);
    PERFORM leasehold.need_duration('lease', lease, 1, 2592000000);
    RETURN QUERY
        SELECT c.id, c.token, c.run_at, c.created_at, c.state_changed_at, c.lease_until, c.started_at, c.finished_at,
               c.last_heartbeat_at, c.expires_at, c.held_ms, c.lease_ms, c.backoff_ms, c.backoff_cap_ms,
               c.payload_sum, c.nonce, c.priority, c.attempt, c.max_attempts, c.recoveries, c.progress, c.again,
               c.plain, c.state, c.queue, c.kind, c.worker, c.key, c.stage, c.last_error, c.checkpoint, c.payload,
               c.payload_bytes, c.result, c.result_bytes
          FROM leasehold.claim_many(worker, queues, kinds, n, leasehold.ms(lease), request, true) c
         WHERE c.id IS NOT NULL;
    IF NOT FOUND THEN
        PERFORM leasehold.log_message('warn', format('queue "%s" has never been used', w.queue), queue => w.queue)
           FROM unnest(queues) w(queue) WHERE leasehold.is_never_used(w.queue);
    END IF;
END $$;

CREATE FUNCTION leasehold.claim(worker text, queue text, n integer DEFAULT 1, lease interval DEFAULT NULL,
                                kinds text[] DEFAULT NULL, request text DEFAULT NULL)
RETURNS SETOF leasehold.job
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC SELECT * FROM leasehold.claim(worker, ARRAY[queue], n, lease, kinds, request); END;
