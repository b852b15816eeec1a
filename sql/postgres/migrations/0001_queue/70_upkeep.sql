-- Upkeep: what falls due by time alone, counts folded, days of events made, what is old pruned,
-- periodic work, and whether there is anything to do at all.

-- Periodic work that one does for all: who does it, until when, and where it has got to (fold: how many
-- transactions are folded). Not among the
-- named leases, which are the users': its end is no death, and nobody need be told of it.
CREATE TABLE leasehold.duty (
    name     text COLLATE "C" PRIMARY KEY,
    owner    text,
    until    timestamptz NOT NULL DEFAULT '-infinity',
    position bigint      NOT NULL DEFAULT 0
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50);
INSERT INTO leasehold.duty(name) VALUES ('recover'), ('fold'), ('prune');

-- ---- promotion and expiry ----

-- Cancel what was not claimed by its expiry.
CREATE FUNCTION leasehold.expire_overdue(now timestamptz, since timestamptz, most bigint) RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    epoch bigint := (SELECT m.epoch FROM leasehold.meta m);
    of    record;
    n     bigint := 0;
BEGIN
    FOR of IN
        WITH overdue AS MATERIALIZED (
            SELECT j.id, j.state, j.token FROM leasehold.job j
             WHERE j.expires_at IS NOT NULL AND j.expires_at > since AND j.expires_at <= now
               AND j.token = 0 AND (j.state = 'pending' OR j.state = 'scheduled')
             ORDER BY j.expires_at LIMIT most FOR UPDATE SKIP LOCKED),
        gone AS (
            UPDATE leasehold.job j
               SET state = 'cancelled', token = leasehold.next_token(j.token, epoch),
                   last_error = 'EXPIRED: not claimed by ' || leasehold.time_words(j.expires_at),
                   finished_at = now, state_changed_at = greatest(now, j.started_at)
              FROM overdue o WHERE j.id = ANY (ARRAY(SELECT p.id FROM overdue p)) AND j.id = o.id
            RETURNING j.id, j.queue, j.last_error, o.state AS was, o.token AS held),
        told AS (
            INSERT INTO leasehold.event(at, type, job, queue, from_state, to_state, actor, reason, token)
            SELECT now, 'job.cancelled', g.id, g.queue, g.was, 'cancelled', 'system/expiry',
                   g.last_error, nullif(g.held, 0)
              FROM gone g ORDER BY g.id)
        SELECT g.queue, g.was, count(*) AS n FROM gone g GROUP BY g.queue, g.was
    LOOP
        PERFORM leasehold.tally(of.queue, now, 'o', of.was, 'cancelled', of.n);
        n := n + of.n;
    END LOOP;
    RETURN n;
END $$;

-- What is due becomes pending, unless the lease that was revoked of it has not ended.
CREATE FUNCTION leasehold.promote_due(now timestamptz, since timestamptz, most bigint) RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    of record;
    n  bigint := 0;
BEGIN
    FOR of IN
        WITH due AS MATERIALIZED (
            SELECT j.id FROM leasehold.job j
             WHERE j.state = 'scheduled' AND j.run_at > since AND j.run_at <= now
               AND coalesce((SELECT h.until FROM leasehold.hold h
                              WHERE h.queue = j.queue AND h.job = j.id), '-infinity') <= now
             ORDER BY j.run_at LIMIT most FOR UPDATE OF j SKIP LOCKED),
        moved AS (
            UPDATE leasehold.job j
               SET state = 'pending', again = true, state_changed_at = greatest(now, j.started_at)
              FROM due d WHERE j.id = ANY (ARRAY(SELECT p.id FROM due p)) AND j.id = d.id
            RETURNING j.queue)
        SELECT m.queue, count(*) AS n FROM moved m GROUP BY m.queue
    LOOP
        PERFORM leasehold.tally(of.queue, now, 'o', 'scheduled', 'pending', of.n);
        n := n + of.n;
    END LOOP;
    RETURN n;
END $$;

-- Both, as a claim does them before it looks, which need not look back further than others have;
-- `more`: a full batch was found.
CREATE FUNCTION leasehold.move_in(now timestamptz, since timestamptz, OUT expired bigint,
                                  OUT promoted bigint, OUT more boolean) LANGUAGE plpgsql
AS $$
DECLARE
    most constant bigint := 500;
BEGIN
    expired := leasehold.expire_overdue(now, since, most);
    promoted := leasehold.promote_due(now, since, most);
    more := expired = most OR promoted = most;
END $$;

-- ---- counts ----

-- Fold what the acts have appended into the counts and the minutes, one at a time; what others hold of
-- the queues is left for later. So nobody waits here, and nobody is in a deadlock.
CREATE FUNCTION leasehold.fold_totals() RETURNS void LANGUAGE sql VOLATILE
AS $$
    WITH gone AS (DELETE FROM leasehold.total RETURNING *)
    INSERT INTO leasehold.total SELECT g.key, sum(g.value) FROM gone g GROUP BY g.key
$$;

CREATE FUNCTION leasehold.fold(most bigint) RETURNS bigint LANGUAGE plpgsql
AS $$
DECLARE
    batch  tid[];
    names  text[] := '{}';
    ours   text[] := '{}';
    folded bigint;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM leasehold.delta) AND NOT EXISTS (SELECT 1 FROM leasehold.change) THEN
        RETURN 0;
    END IF;
    PERFORM 1 FROM leasehold.duty d WHERE d.name = 'fold' FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    IF EXISTS (SELECT 1 FROM leasehold.total OFFSET 100) THEN
        PERFORM leasehold.fold_totals();
    END IF;
    WHILE cardinality(ours) = 0 LOOP  -- what comes first may all be of queues that others hold
        batch := ARRAY(SELECT d.ctid FROM leasehold.delta d WHERE d.queue <> ALL (names) LIMIT most);
        EXIT WHEN cardinality(batch) = 0;
        names := names || ARRAY(SELECT DISTINCT d.queue FROM leasehold.delta d
                                 WHERE d.ctid = ANY (batch) ORDER BY 1);
        INSERT INTO leasehold.queue(queue)
        SELECT n.queue FROM unnest(names) n(queue)
         WHERE NOT EXISTS (SELECT 1 FROM leasehold.queue q WHERE q.queue = n.queue)
            ON CONFLICT DO NOTHING;
        ours := ARRAY(SELECT q.queue FROM leasehold.queue q WHERE q.queue = ANY (names)
                       ORDER BY q.queue FOR UPDATE SKIP LOCKED);
    END LOOP;
    WITH gone AS (
        DELETE FROM leasehold.delta d WHERE d.ctid = ANY (batch) AND d.queue = ANY (ours)
        RETURNING d.*, d.xmin AS by),
    changed AS (
        DELETE FROM leasehold.change c RETURNING c.xmin AS by),
    transactions AS (
        UPDATE leasehold.duty u
           SET position = u.position
               + (SELECT count(DISTINCT t.by::text)
                    FROM (SELECT g.by FROM gone g UNION ALL SELECT c.by FROM changed c) t)
         WHERE u.name = 'fold'),
    rolled AS (
        INSERT INTO leasehold.rollup AS r (minute, queue, enqueued, claimed, completed, failed,
                                           recovered, ended, wait_ms, run_ms)
        SELECT date_trunc('minute', g.at, 'UTC'), g.queue,
               coalesce(sum(g.n) FILTER (WHERE g.act = 'e'), 0),
               coalesce(sum(g.n) FILTER (WHERE g.act = 'c'), 0),
               coalesce(sum(g.n) FILTER (WHERE g.act = 'd'), 0),
               coalesce(sum(g.n) FILTER (WHERE g.act = 'f' OR (g.act = 'r' AND g.becomes = 'failed')), 0),
               coalesce(sum(g.n) FILTER (WHERE g.act = 'r'), 0),
               coalesce(sum(g.n) FILTER (WHERE g.was = 'running' AND g.act IN ('d', 'f')), 0),
               coalesce(sum(g.ms) FILTER (WHERE g.act = 'c'), 0),
               coalesce(sum(g.ms) FILTER (WHERE g.was = 'running' AND g.act IN ('d', 'f')), 0)
          FROM gone g WHERE g.act <> 'o' GROUP BY 1, 2
            ON CONFLICT (minute, queue) DO UPDATE
           SET enqueued = r.enqueued + excluded.enqueued, claimed = r.claimed + excluded.claimed,
               completed = r.completed + excluded.completed, failed = r.failed + excluded.failed,
               recovered = r.recovered + excluded.recovered, ended = r.ended + excluded.ended,
               wait_ms = r.wait_ms + excluded.wait_ms, run_ms = r.run_ms + excluded.run_ms),
    counted AS (
        UPDATE leasehold.queue q
           SET scheduled = q.scheduled + s.scheduled, pending = q.pending + s.pending,
               running = q.running + s.running, completed = q.completed + s.completed,
               failed = q.failed + s.failed, cancelled = q.cancelled + s.cancelled
          FROM (SELECT m.queue, coalesce(sum(m.n) FILTER (WHERE m.state = 'scheduled'), 0) AS scheduled,
                       coalesce(sum(m.n) FILTER (WHERE m.state = 'pending'), 0) AS pending,
                       coalesce(sum(m.n) FILTER (WHERE m.state = 'running'), 0) AS running,
                       coalesce(sum(m.n) FILTER (WHERE m.state = 'completed'), 0) AS completed,
                       coalesce(sum(m.n) FILTER (WHERE m.state = 'failed'), 0) AS failed,
                       coalesce(sum(m.n) FILTER (WHERE m.state = 'cancelled'), 0) AS cancelled
                  FROM (SELECT g.queue, g.becomes AS state, g.n FROM gone g
                        UNION ALL
                        SELECT g.queue, g.was, -g.n FROM gone g) m
                 GROUP BY m.queue) s
         WHERE q.queue = s.queue)
    SELECT count(*) INTO folded FROM gone;
    RETURN folded;
END $$;

-- ---- events by day ----

-- What no partition was made for in time goes into the default one.
CREATE INDEX event_default_at ON leasehold.event_default(at);

-- Nobody is kept waiting for a new day, neither who writes events nor who makes it: what cannot be done
-- at once, or not by this user, is left to the next round, and the events of that day are in the
-- default partition meanwhile. A day that has some there stays there.
CREATE FUNCTION leasehold.make_event_day(name text, first timestamptz) RETURNS void LANGUAGE plpgsql
AS $$
DECLARE
    last   constant timestamptz := first + interval '24 hours';
    before constant text := current_setting('lock_timeout');
BEGIN
    PERFORM set_config('lock_timeout', '100ms', true);
    IF NOT EXISTS (SELECT 1 FROM leasehold.event_default e WHERE e.at >= first AND e.at < last) THEN
        -- Made by itself and attached, which locks less than CREATE … PARTITION OF.
        EXECUTE format('CREATE TABLE leasehold.%I (LIKE leasehold.event INCLUDING DEFAULTS '
                       'INCLUDING CONSTRAINTS)', name);
        EXECUTE format('ALTER TABLE leasehold.event ATTACH PARTITION leasehold.%I '
                       'FOR VALUES FROM (%L) TO (%L)', name, leasehold.time_words(first),
                       leasehold.time_words(last));
    END IF;
    PERFORM set_config('lock_timeout', before, true);
EXCEPTION WHEN OTHERS THEN
    NULL;
END $$;

-- Today and the two days after it, each from midnight UTC.
CREATE FUNCTION leasehold.make_event_days(now timestamptz) RETURNS void LANGUAGE plpgsql
AS $$
DECLARE
    first timestamptz := date_trunc('day', now, 'UTC');
    name  text;
BEGIN
    FOR i IN 1..3 LOOP
        name := 'event_' || to_char(first AT TIME ZONE 'UTC', 'YYYYMMDD');
        IF to_regclass('leasehold.' || name) IS NULL THEN
            PERFORM leasehold.make_event_day(name, first);
        END IF;
        first := first + interval '24 hours';
    END LOOP;
END $$;

DO $$ BEGIN PERFORM leasehold.make_event_days(leasehold.clock()); END $$;

-- ---- one round ----

-- One round of what falls due, but for recovery (leasehold.recover) and pruning. `schedules`: periodic
-- work is due, which only the library can enqueue; `more`: come again at once.
CREATE FUNCTION leasehold.upkeep(OUT expired bigint, OUT promoted bigint, OUT folded bigint,
                                 OUT schedules boolean, OUT more boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off
AS $$
DECLARE
    most constant bigint := 20000;
    now  timestamptz := leasehold.clock();
    m    leasehold.meta;
BEGIN
    SELECT * INTO m FROM leasehold.meta;
    IF m.system_id <> (SELECT c.system_identifier FROM pg_control_system() c)
       OR m.timeline <> left(pg_walfile_name(pg_current_wal_lsn()), 8)
       OR m.job_oid <> 'leasehold.job'::regclass THEN
        m := leasehold.new_server(now);
    END IF;
    SELECT * INTO expired, promoted, more FROM leasehold.move_in(now, '-infinity');
    DELETE FROM leasehold.hold h
     WHERE (h.queue, h.job) IN (SELECT o.queue, o.job FROM leasehold.hold o WHERE o.until <= now
                                   FOR UPDATE SKIP LOCKED);
    IF FOUND THEN
        PERFORM leasehold.changed();
    END IF;
    folded := leasehold.fold(most);
    more := more OR folded = most;
    PERFORM leasehold.make_event_days(now);
    -- A clock that was set back by more than a day was wrong before: nobody wants to wait until then.
    -- Within a day no instant comes twice.
    UPDATE leasehold.schedule s SET done_until = now, next_at = now
     WHERE s.done_until > now + interval '24 hours';
    schedules := EXISTS (SELECT 1 FROM leasehold.schedule s WHERE s.next_at <= now);
END $$;

-- ---- pruning ----

-- One batch of a walk over the ids, from `after` on: ids are ordered by age, so the walk ends at the
-- first job that was created too late to have ended before any cutoff, and no index is needed.
CREATE FUNCTION leasehold.prune_jobs(now timestamptz, older_ms bigint, INOUT after bigint,
                                     OUT pruned bigint, OUT more boolean) LANGUAGE plpgsql
AS $$
DECLARE
    most constant bigint := 500;
    youngest timestamptz := now - leasehold.span(coalesce(older_ms, (
        SELECT least(1209600000, min(p.retention_ms), min(p.retention_failed_ms))
          FROM leasehold.policy p)));
    walked bigint;
    last   bigint;
    ids    bigint[];
    of     record;
BEGIN
    WITH next AS MATERIALIZED (
        SELECT j.id, j.queue, j.kind, j.state, j.finished_at, j.created_at
          FROM leasehold.job j WHERE j.id > after ORDER BY j.id LIMIT most),
    -- (A time that lies ahead of us says nothing about those after it.)
    old AS MATERIALIZED (
        SELECT n.* FROM next n
         WHERE n.id < coalesce((SELECT min(y.id) FROM next y
                                 WHERE y.created_at > youngest AND y.created_at <= now),
                               9223372036854775807)),
    kept AS MATERIALIZED (
        SELECT k.queue, k.kind, leasehold.policy_of(k.queue, k.kind) AS p
          FROM (SELECT DISTINCT o.queue, o.kind FROM old o) k)
    SELECT count(*), max(o.id),
           array_agg(o.id ORDER BY o.id) FILTER (
               WHERE o.state IN ('completed', 'failed', 'cancelled')
                 AND coalesce(o.finished_at, '-infinity') <= now - leasehold.span(coalesce(older_ms,
                         CASE o.state WHEN 'failed' THEN (k.p).retention_failed_ms
                                      ELSE (k.p).retention_ms END)))
      INTO walked, last, ids
      FROM old o JOIN kept k ON k.queue = o.queue AND k.kind IS NOT DISTINCT FROM o.kind;
    after := coalesce(last, after);
    more := walked = most;
    pruned := 0;
    IF ids IS NULL THEN
        RETURN;
    END IF;
    FOR of IN
        WITH ended AS MATERIALIZED (
            SELECT j.id FROM leasehold.job j
             WHERE j.id = ANY (ids) AND j.state IN ('completed', 'failed', 'cancelled')
             ORDER BY j.id FOR UPDATE SKIP LOCKED),
        gone AS (
            DELETE FROM leasehold.job j WHERE j.id = ANY (ARRAY(SELECT e.id FROM ended e))
            RETURNING j.queue, j.state)
        SELECT g.queue, g.state, count(*) AS n FROM gone g GROUP BY g.queue, g.state
    LOOP
        PERFORM leasehold.tally(of.queue, now, 'o', of.state, NULL, of.n);
        pruned := pruned + of.n;
    END LOOP;
END $$;

-- A day of which every event is old goes as a whole; as with making one, nobody is kept waiting for it.
CREATE FUNCTION leasehold.drop_event_day(name text) RETURNS void LANGUAGE plpgsql
AS $$
DECLARE
    before text := current_setting('lock_timeout');
BEGIN
    PERFORM set_config('lock_timeout', '100ms', true);
    EXECUTE format('DROP TABLE leasehold.%I', name);
    PERFORM set_config('lock_timeout', before, true);
EXCEPTION WHEN OTHERS THEN
    NULL;
END $$;

-- Events from before a moment: whole days, and row by row what is in the default partition. `exact`:
-- also of the day in which the moment lies. What a wrong clock dated far ahead goes too.
CREATE FUNCTION leasehold.prune_events(now timestamptz, before timestamptz, exact boolean, most bigint)
RETURNS bigint LANGUAGE plpgsql
AS $$
DECLARE
    last constant text := 'event_' || to_char(before AT TIME ZONE 'UTC', 'YYYYMMDD');
    name text;
    more bigint;
    n    bigint;
BEGIN
    FOR name IN
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
         WHERE i.inhparent = 'leasehold.event'::regclass AND c.relname ~ '^event_[0-9]{8}$'
           AND c.relname::text COLLATE "C" < last COLLATE "C"
         ORDER BY 1
    LOOP
        PERFORM leasehold.drop_event_day(name);
    END LOOP;
    DELETE FROM leasehold.event_default e
     WHERE e.ctid = ANY (ARRAY(SELECT d.ctid FROM leasehold.event_default d
                                WHERE d.at < before OR d.at > now + interval '24 hours'
                                LIMIT most));
    GET DIAGNOSTICS n = ROW_COUNT;
    IF exact AND to_regclass('leasehold.' || last) IS NOT NULL THEN
        EXECUTE format('DELETE FROM leasehold.%1$I e WHERE e.at < $1 AND e.id IN '
                       '(SELECT d.id FROM leasehold.%1$I d ORDER BY d.id LIMIT $2)', last)
          USING before, most;
        GET DIAGNOSTICS more = ROW_COUNT;
        n := greatest(n, more);
    END IF;
    RETURN n;
END $$;

-- What else is old: requests, minutes, workers, reports. The most that was pruned of one of them.
CREATE FUNCTION leasehold.prune_rest(before timestamptz, most bigint) RETURNS bigint LANGUAGE plpgsql
AS $$
DECLARE
    n    bigint;
    full_one bigint;
BEGIN
    DELETE FROM leasehold.request r
     WHERE r.request IN (SELECT o.request FROM leasehold.request o WHERE o.at < before
                          ORDER BY o.at LIMIT most FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS full_one = ROW_COUNT;
    DELETE FROM leasehold.rollup r
     WHERE (r.minute, r.queue) IN (SELECT o.minute, o.queue FROM leasehold.rollup o
                                    WHERE o.minute < date_trunc('minute', before, 'UTC')
                                    ORDER BY o.minute, o.queue LIMIT most FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS n = ROW_COUNT;
    full_one := greatest(full_one, n);
    -- A row goes only after its jobs.
    DELETE FROM leasehold.worker w
     WHERE w.id IN (SELECT o.id FROM leasehold.worker o
                     WHERE (o.state = 'stopped' AND o.stopped_at < before)
                        OR (o.state = 'dead' AND o.uncleaned IS NULL AND o.last_heartbeat_at < before)
                       FOR UPDATE SKIP LOCKED)
       AND NOT EXISTS (SELECT 1 FROM leasehold.job j WHERE j.state = 'running' AND j.worker = w.id);
    DELETE FROM leasehold.report r
     WHERE r.started_at < before
       AND r.id IN (SELECT o.id FROM leasehold.report o ORDER BY o.id LIMIT most FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS n = ROW_COUNT;
    RETURN greatest(full_one, n);
END $$;

-- One bounded round. `after`: where the caller's own walk over the jobs has got to; NULL: the store's,
-- which goes on where it ended, by one at a time and not more often than is of use.
CREATE FUNCTION leasehold.prune_round(older_ms bigint, INOUT after bigint, OUT pruned bigint,
                                      OUT more boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off
AS $$
DECLARE
    most constant bigint := 500;
    now    timestamptz := leasehold.clock();
    before timestamptz := now - leasehold.span(coalesce(older_ms, 2592000000));
    shared boolean := after IS NULL;
    n_events bigint;
    n_rest   bigint;
BEGIN
    IF shared THEN
        SELECT d.position INTO after FROM leasehold.duty d
         WHERE d.name = 'prune' AND (d.until <= now OR d.until > now + interval '30 seconds')
           FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            pruned := 0;
            more := false;
            RETURN;
        END IF;
    END IF;
    SELECT j.after, j.pruned, j.more INTO after, pruned, more
      FROM leasehold.prune_jobs(now, older_ms, after) j;
    IF shared THEN
        UPDATE leasehold.duty d
           SET position = CASE WHEN prune_round.more THEN prune_round.after ELSE 0 END,
               until = CASE WHEN prune_round.more THEN now ELSE now + interval '30 seconds' END
         WHERE d.name = 'prune';
    END IF;
    n_rest := leasehold.prune_rest(before, most);
    -- The last: dropping a day keeps everybody from the events until the end of the transaction.
    n_events := leasehold.prune_events(now, before, older_ms IS NOT NULL, most);
    more := more OR n_events = most OR n_rest = most;
    IF n_events > 0 OR n_rest > 0 THEN
        PERFORM leasehold.changed();
    END IF;
END $$;

-- Delete jobs that have ended and are past their retention (or `older_than`), with events, requests and
-- whatever else is that old. Ten thousand jobs at most in one call: as many are returned, come again.
CREATE FUNCTION leasehold.prune(older_than interval DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off
AS $$
DECLARE
    most constant bigint := 10000;
    now    timestamptz := leasehold.clock();
    older  bigint := leasehold.ms(older_than);
    before timestamptz := now - leasehold.span(coalesce(older, 2592000000));
    r record;
    n bigint := 0;
    place bigint := 0;
BEGIN
    PERFORM leasehold.need_duration('age', older_than, 1, 315360000000);
    LOOP
        SELECT * INTO r FROM leasehold.prune_jobs(now, older, place);
        n := n + r.pruned;
        place := r.after;
        EXIT WHEN NOT r.more OR n >= most;
    END LOOP;
    PERFORM leasehold.prune_rest(before, most);
    PERFORM leasehold.prune_events(now, before, older IS NOT NULL, most);
    PERFORM leasehold.changed();
    RETURN n;
END $$;

-- ---- is there anything to do? ----

-- One of all who wait for something to fall due does it for all. Is it held by somebody who was heard of
-- within three seconds? (A time that lies further ahead is from before the clock was set back.)
CREATE FUNCTION leasehold.duty_held(until timestamptz, now timestamptz) RETURNS boolean
LANGUAGE sql IMMUTABLE RETURN until > now AND until <= now + interval '3 seconds';

-- Whoever finds the duty free has it. It is renewed while it is asked for, and nothing is left lying.
CREATE FUNCTION leasehold.on_duty(who text, now timestamptz, late boolean) RETURNS boolean LANGUAGE plpgsql
AS $$
DECLARE
    d leasehold.duty;
BEGIN
    SELECT * INTO d FROM leasehold.duty w WHERE w.name = 'recover';
    IF d.owner = who AND (late OR leasehold.duty_held(d.until, now + interval '1.5 seconds')) THEN
        RETURN true;
    ELSIF d.owner <> who AND leasehold.duty_held(d.until, now) THEN
        RETURN false;
    END IF;
    UPDATE leasehold.duty w SET owner = who, until = now + interval '3 seconds'
     WHERE w.name = (SELECT s.name FROM leasehold.duty s
                      WHERE s.name = 'recover' AND s.until = d.until FOR UPDATE SKIP LOCKED);
    RETURN FOUND;
END $$;

-- What falls due by time alone: is something due at these moments, and when is the next thing? What is
-- held back until no_expiry_before is not due before.
CREATE FUNCTION leasehold.next_due(now timestamptz, due timestamptz, stuck timestamptz,
                                   no_expiry_before timestamptz, OUT something boolean,
                                   OUT next_at timestamptz) LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
AS $$
DECLARE
    ends timestamptz;
BEGIN
    something := EXISTS (SELECT 1 FROM leasehold.job j
                          WHERE j.state = 'running' AND j.lease_until <= due
                            AND j.lease_until > stuck)
          OR EXISTS (SELECT 1 FROM leasehold.job j
                      WHERE j.state = 'scheduled' AND j.run_at > stuck AND j.run_at <= now)
          OR EXISTS (SELECT 1 FROM leasehold.lease l WHERE l.expires_at IS NOT NULL AND l.expires_at <= due)
          OR EXISTS (SELECT 1 FROM leasehold.worker w WHERE w.silent_at IS NOT NULL AND w.silent_at <= due)
          OR EXISTS (SELECT 1 FROM leasehold.job j
                      WHERE j.expires_at IS NOT NULL AND j.expires_at > stuck AND j.expires_at <= now
                        AND j.token = 0 AND (j.state = 'pending' OR j.state = 'scheduled'))
          OR EXISTS (SELECT 1 FROM leasehold.schedule s WHERE s.next_at <= now)
          OR EXISTS (SELECT 1 FROM leasehold.worker w WHERE w.uncleaned IS NOT NULL AND NOT w.stuck);
    -- What is due and stays so (recovery off) does not hide what comes after it.
    ends := least((SELECT j.lease_until FROM leasehold.job j
                    WHERE j.state = 'running' AND j.lease_until > due ORDER BY j.lease_until LIMIT 1),
                  (SELECT l.expires_at FROM leasehold.lease l
                    WHERE l.expires_at IS NOT NULL AND l.expires_at > due ORDER BY l.expires_at LIMIT 1),
                  (SELECT w.silent_at FROM leasehold.worker w
                    WHERE w.silent_at IS NOT NULL AND w.silent_at > due ORDER BY w.silent_at LIMIT 1));
    IF ends < no_expiry_before THEN
        ends := no_expiry_before;
    END IF;
    next_at := least(ends,
                     (SELECT j.run_at FROM leasehold.job j
                       WHERE j.state = 'scheduled' AND j.run_at > now ORDER BY j.run_at LIMIT 1),
                     (SELECT j.expires_at FROM leasehold.job j
                       WHERE j.expires_at IS NOT NULL AND j.expires_at > now AND j.token = 0
                         AND (j.state = 'pending' OR j.state = 'scheduled')
                       ORDER BY j.expires_at LIMIT 1),
                     (SELECT s.next_at FROM leasehold.schedule s
                       WHERE s.next_at > now ORDER BY s.next_at LIMIT 1));
END $$;

-- Who was about to commit while sleepers armed has rung for nobody: whoever is on duty does it, where a new
-- job waits, and those who could have it. Where these may have to wait (a limit) it would be in vain, again
-- and again; so it would for what has waited for long: perhaps it is of a kind that none of them takes.
CREATE FUNCTION leasehold.ring_late(now timestamptz) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM leasehold.ring(i.queue, now) FROM leasehold.idle i
     WHERE i.armed AND i.until > now
       AND NOT EXISTS (SELECT 1 FROM leasehold.queue w WHERE w.queue = i.queue AND w.paused)
       AND NOT EXISTS (SELECT 1 FROM leasehold.policy p
                        WHERE p.queue IN (i.queue, '*')
                          AND (p.exclusive OR p.concurrency > 0 OR p.rate_n > 0))
       AND (SELECT j.state_changed_at > now - interval '1 minute' FROM leasehold.job j
             WHERE j.state = 'pending' AND NOT j.again AND j.queue = i.queue
             ORDER BY j.priority, j.id DESC LIMIT 1);
END $$;

-- Would a claim from these queues find something to do; or (none given) is anything due at all?
-- next_ms: until the next thing falls due; NULL: nothing in sight. With `keeper`, whoever in the process that
-- asks does for all what is due; or would, for while another is on duty nobody else need look, but every
-- spare_ms: of many one does every half a second.
CREATE FUNCTION leasehold.peek(queues text[], keeper text, OUT something boolean, OUT next_ms bigint,
                               OUT on_duty boolean, OUT spare_ms bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    now    timestamptz := leasehold.clock();
    keeps  boolean := keeper IS NOT NULL AND cardinality(queues) = 0;
    spared boolean := keeper IS NOT NULL
                      AND EXISTS (SELECT 1 FROM leasehold.duty d
                                   WHERE d.name = 'recover' AND leasehold.duty_held(d.until, now)
                                     AND (d.owner <> keeper OR NOT keeps));
    due    timestamptz;
    swept  timestamptz := '-infinity';
    late   boolean;
    m      leasehold.meta;
    name   text;
    next   record;
BEGIN
    something := false;
    on_duty := false;
    spare_ms := 0;
    IF NOT spared THEN
        SELECT * INTO m FROM leasehold.meta;
        IF keeper IS NOT NULL OR cardinality(queues) > 0 THEN
            swept := leasehold.swept_at(coalesce(pg_sequence_last_value('leasehold.sweeping'), 0),
                                        m.generation, now);
        END IF;
        due := leasehold.due(now, m.no_expiry_before);
        SELECT * INTO next FROM leasehold.next_due(now, due, CASE WHEN keeps THEN '-infinity' ELSE swept END,
                                                   m.no_expiry_before);
        something := next.something;
        next_ms := CASE WHEN isfinite(next.next_at)
                        THEN ceil(1000 * extract(epoch FROM next.next_at - now)) END;
    END IF;
    IF keeps AND NOT spared THEN
        late := something AND (SELECT l.something FROM leasehold.next_due(
            now - interval '2 seconds', due - interval '2 seconds', swept, m.no_expiry_before) l);
        on_duty := leasehold.on_duty(keeper, now, late);
    END IF;
    IF on_duty THEN
        PERFORM leasehold.ring_late(now);
        -- Counts that nobody folds get dear to read.
        something := something OR EXISTS (SELECT 1 FROM leasehold.delta OFFSET 5000)
                     OR EXISTS (SELECT 1 FROM leasehold.change OFFSET 5000);
    ELSIF keeps THEN
        spare_ms := 2000 + (SELECT 600 * count(*) FROM (SELECT 1 FROM leasehold.worker w
                                                         WHERE w.silent_at IS NOT NULL LIMIT 30) few);
    END IF;
    FOREACH name IN ARRAY queues LOOP
        EXIT WHEN something;
        PERFORM 1 FROM leasehold.job j WHERE j.state = 'pending' AND j.again AND j.queue = name LIMIT 1;
        something := FOUND;
        EXIT WHEN something;
        PERFORM 1 FROM leasehold.job j
          WHERE j.state = 'pending' AND NOT j.again AND j.queue = name
          ORDER BY j.priority DESC, j.id LIMIT 1;
        something := FOUND;
    END LOOP;
END $$;

-- ---- schedules: when they are due only the library can tell ----

-- What must be known before one is set: the time, and how far its instants are settled.
CREATE FUNCTION leasehold.schedule_before(of_name text, OUT now timestamptz, OUT cron text,
                                          OUT tz text, OUT done_until timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    now := leasehold.clock();
    SELECT s.cron, s.tz, s.done_until INTO cron, tz, done_until
      FROM leasehold.schedule s WHERE s.name = of_name FOR UPDATE;
END $$;

-- Every event of a schedule names it, for people and for programs. `more` continues the object.
CREATE FUNCTION leasehold.schedule_event(now timestamptz, type text, of_name text, of_queue text,
                                         actor text, what text, more text, job bigint DEFAULT NULL,
                                         to_state text DEFAULT NULL) RETURNS void LANGUAGE sql
AS $$
    SELECT leasehold.event_put(now, type, job, of_queue, NULL, NULL, NULL, to_state, actor,
                               'schedule ' || of_name || CASE what WHEN '' THEN '' ELSE ': ' || what END,
                               NULL, '{"schedule":"' || of_name || '"' || more || '}')
$$;

-- Who sleeps until the next thing falls due looks once a second by himself.
CREATE FUNCTION leasehold.schedule_soon(at timestamptz, now timestamptz) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    IF at <= now + interval '1 second' THEN
        PERFORM leasehold.ring('!', now);
    END IF;
END $$;

CREATE FUNCTION leasehold.schedule_put(
    of_name text, of_queue text, of_cron text, of_tz text, of_catch_up bigint,
    of_done_until timestamptz, of_next_at timestamptz, of_kind text, of_priority bigint, of_key text,
    of_max_attempts bigint, of_lease_ms bigint, of_expires_ms bigint, of_backoff_ms bigint,
    of_backoff_cap_ms bigint, of_payload_sum bigint, of_payload text, of_payload_bytes bytea)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    now  timestamptz := leasehold.clock();
    size bigint := coalesce(octet_length(of_payload), octet_length(of_payload_bytes));
    most bigint := (leasehold.policy_of(of_queue, of_kind)).max_payload;
BEGIN
    IF size > most THEN
        PERFORM leasehold.refuse(-4, format(
            'payload of %s bytes is too large: queue "%s" takes at most %s bytes', size, of_queue, most));
    END IF;
    INSERT INTO leasehold.schedule AS s (name, queue, cron, tz, catch_up, done_until, next_at,
            created_at, kind, priority, key, max_attempts, lease_ms, expires_ms, backoff_ms,
            backoff_cap_ms, payload_sum, payload, payload_bytes)
    VALUES (of_name, of_queue, of_cron, of_tz, of_catch_up, of_done_until, of_next_at, now, of_kind,
            of_priority, of_key, of_max_attempts, of_lease_ms, of_expires_ms, of_backoff_ms,
            of_backoff_cap_ms, of_payload_sum, of_payload, of_payload_bytes)
        ON CONFLICT (name) DO UPDATE
       SET queue = excluded.queue, cron = excluded.cron, tz = excluded.tz,
           catch_up = excluded.catch_up, done_until = excluded.done_until,
           next_at = excluded.next_at, error = NULL, kind = excluded.kind,
           priority = excluded.priority, key = excluded.key, max_attempts = excluded.max_attempts,
           lease_ms = excluded.lease_ms, expires_ms = excluded.expires_ms,
           backoff_ms = excluded.backoff_ms, backoff_cap_ms = excluded.backoff_cap_ms,
           payload_sum = excluded.payload_sum, payload = excluded.payload,
           payload_bytes = excluded.payload_bytes;
    PERFORM leasehold.schedule_event(now, 'schedule.set', of_name, of_queue, 'hand',
                                     of_cron || ', ' || of_tz, '');
    PERFORM leasehold.schedule_soon(of_next_at, now);
END $$;

CREATE FUNCTION leasehold.schedule_remove(name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    now timestamptz := leasehold.clock();
BEGIN
    PERFORM leasehold.need_name('schedule', name);
    DELETE FROM leasehold.schedule s WHERE s.name = schedule_remove.name;
    IF NOT FOUND THEN
        PERFORM leasehold.refuse(-5, format('there is no schedule "%s"', name));
    END IF;
    PERFORM leasehold.schedule_event(now, 'schedule.removed', name, NULL, 'hand', '', '');
END $$;

-- What is due, locked: each by one at a time. As many as go into eight megabytes, or one.
CREATE FUNCTION leasehold.schedules_due(most bigint) RETURNS TABLE (now timestamptz, due leasehold.schedule)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    one record;
BEGIN
    now := leasehold.clock();
    FOR one IN
        WITH ready AS MATERIALIZED (
            SELECT s.* FROM leasehold.schedule s WHERE s.next_at <= schedules_due.now
             ORDER BY s.next_at, s.name LIMIT most FOR UPDATE SKIP LOCKED)
        SELECT r::leasehold.schedule AS due,
               sum(coalesce(octet_length(r.payload), octet_length(r.payload_bytes), 0))
                   OVER (ORDER BY r.next_at, r.name ROWS UNBOUNDED PRECEDING) AS bytes
          FROM ready r ORDER BY r.next_at, r.name
    LOOP
        due := one.due;
        RETURN NEXT;
        EXIT WHEN one.bytes > 8388608;
    END LOOP;
END $$;

-- Nothing is told twice of the same trouble.
CREATE FUNCTION leasehold.schedule_failed(s leasehold.schedule, why text, now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF why IS DISTINCT FROM s.error THEN
        PERFORM leasehold.tell('error', format('schedule %s enqueues nothing: %s', s.name, why),
                               queue => s.queue, reason => why);
        PERFORM leasehold.schedule_event(now, 'schedule.failed', s.name, s.queue, 'system/schedule',
                                         why, '');
    END IF;
END $$;

-- The job of one instant, if it can be: else why not. An instant that a live job with its key stands in
-- the way of is done with, and told.
CREATE FUNCTION leasehold.enqueue_tick(s leasehold.schedule, at timestamptz, now timestamptz,
                                       p leasehold.policy, OUT job bigint, OUT why text)
LANGUAGE plpgsql
AS $$
DECLARE
    size bigint := coalesce(octet_length(s.payload), octet_length(s.payload_bytes));
    live leasehold.enqueued;
    made_state text;
BEGIN
    LOOP
        IF s.key IS NOT NULL THEN
            live := leasehold.job_of_key(s.queue, s.key);
            IF live.id IS NOT NULL THEN
                PERFORM leasehold.schedule_event(now, 'schedule.skipped', s.name, s.queue, 'system/schedule',
                    format('tick of %s skipped, job %s with its key is %s', leasehold.time_words(at),
                           live.id, live.state),
                    ',"instant":"' || leasehold.time_words(at) || '"', live.id);
                RETURN;
            END IF;
        END IF;
        IF size > p.max_payload THEN
            why := format('payload of %s bytes is too large: queue "%s" takes at most %s bytes', size,
                          s.queue, p.max_payload);
            RETURN;
        END IF;
        INSERT INTO leasehold.job(queue, kind, state, priority, max_attempts, run_at, created_at,
                                  state_changed_at, key, expires_at, lease_ms, backoff_ms,
                                  backoff_cap_ms, payload_sum, payload, payload_bytes, plain)
        VALUES (s.queue, s.kind, CASE WHEN at > now THEN 'scheduled' ELSE 'pending' END, s.priority,
                coalesce(s.max_attempts, p.max_attempts), at, now, now, s.key,
                now + leasehold.span(s.expires_ms), s.lease_ms, s.backoff_ms, s.backoff_cap_ms,
                s.payload_sum, s.payload, s.payload_bytes, false)
            ON CONFLICT (queue, key) WHERE key IS NOT NULL
                AND (state = 'pending' OR state = 'running' OR state = 'scheduled') DO NOTHING
        RETURNING id, state INTO job, made_state;
        EXIT WHEN FOUND;  -- else another has just enqueued this key
    END LOOP;
    PERFORM leasehold.tally(s.queue, now, 'e', NULL, made_state, 1);
    IF p.audit = 2 THEN
        PERFORM leasehold.schedule_event(now, 'job.enqueued', s.name, s.queue, 'system/schedule', '',
                                         ',"instant":"' || leasehold.time_words(at) || '"', job, made_state);
    END IF;
END $$;

-- Move a schedule on, and enqueue. Compare-and-set: of all who have noticed that it is due, one moves it
-- on; the others get -1. `missed` and `more` tell of what was not on time, `why` why nothing can be
-- enqueued. Returns how many jobs were.
CREATE FUNCTION leasehold.schedule_tick(of_name text, was_until timestamptz, upto timestamptz,
                                        of_next_at timestamptz, instants timestamptz[], missed text,
                                        more text, why text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    now  timestamptz := leasehold.clock();
    s    leasehold.schedule;
    p    leasehold.policy;
    made record;
    at   timestamptz;
    n    bigint := 0;
    last_job_made bigint;
    last_instant  timestamptz;
BEGIN
    UPDATE leasehold.schedule w SET done_until = upto, next_at = of_next_at
     WHERE w.name = of_name AND w.done_until = was_until RETURNING w.* INTO s;
    IF NOT FOUND THEN
        RETURN -1;
    END IF;
    IF missed IS NOT NULL THEN
        PERFORM leasehold.tell('warn', format('schedule %s: %s', s.name, missed), queue => s.queue,
                               reason => missed);
        PERFORM leasehold.schedule_event(now, 'schedule.missed', s.name, s.queue, 'system/schedule',
                                         missed, more);
    END IF;
    PERFORM leasehold.changed();
    p := leasehold.policy_of(s.queue, s.kind);
    FOREACH at IN ARRAY instants LOOP
        EXIT WHEN why IS NOT NULL;
        SELECT * INTO made FROM leasehold.enqueue_tick(s, at, now, p);
        why := made.why;
        IF made.job IS NOT NULL THEN
            n := n + 1;
            last_job_made := made.job;
            last_instant := at;
        END IF;
    END LOOP;
    why := left(why, 199);
    IF why IS NOT NULL THEN
        PERFORM leasehold.schedule_failed(s, why, now);
    END IF;
    UPDATE leasehold.schedule w
       SET last_at = coalesce(last_instant, w.last_at), last_job = coalesce(last_job_made, w.last_job),
           error = why
     WHERE w.name = of_name;
    PERFORM leasehold.schedule_soon(of_next_at, now);
    RETURN n;
END $$;

-- It cannot be told when it is due (then `why` says so), or not yet: nothing is settled, somebody looks
-- again later.
CREATE FUNCTION leasehold.schedule_put_off(of_name text, of_next_at timestamptz, why text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    now timestamptz := leasehold.clock();
    s   leasehold.schedule;
BEGIN
    SELECT * INTO s FROM leasehold.schedule w WHERE w.name = of_name FOR UPDATE;
    IF why IS NOT NULL THEN
        PERFORM leasehold.schedule_failed(s, why, now);
    END IF;
    UPDATE leasehold.schedule w SET next_at = of_next_at, error = why WHERE w.name = of_name;
    PERFORM leasehold.changed();
END $$;
