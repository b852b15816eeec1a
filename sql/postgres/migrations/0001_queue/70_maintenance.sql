-- Maintenance: what falls due by time alone; folding of the counts; creation of event days.

-- Tasks that one process does for all: its name, its end, and its position (fold: the number of folded
-- transactions). It is no named lease, because those belong to users: the end of a task is no death, and no
-- event reports it.
CREATE TABLE leasehold.maintenance_task (
    name     text COLLATE "C" PRIMARY KEY,
    owner    text,
    until    timestamptz NOT NULL DEFAULT '-infinity',
    position bigint      NOT NULL DEFAULT 0
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50);
INSERT INTO leasehold.maintenance_task(name) VALUES ('recover'), ('fold'), ('prune'), ('freeing'), ('scan');

-- ---- promotion and expiry ----

-- Cancel jobs that were not claimed before they expired, in a time range.
CREATE FUNCTION leasehold.expire_overdue(now timestamptz, since timestamptz, up_to timestamptz, most bigint)
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    first bigint := (SELECT m.first_token FROM leasehold.meta m);
    of    record;
    n     bigint := 0;
BEGIN
    FOR of IN
        WITH overdue AS MATERIALIZED (
            SELECT j.id, j.state, j.token FROM leasehold.job j
             WHERE $[expiry_passed(j, since, up_to)]
             ORDER BY j.expires_at LIMIT most FOR UPDATE SKIP LOCKED),
        gone AS (
            UPDATE leasehold.job j
               SET state = 'cancelled', token = leasehold.next_token(j.token, first),
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
        PERFORM leasehold.count_change(of.queue, now, 'o', of.was, 'cancelled', of.n);
        n := n + of.n;
    END LOOP;
    RETURN n;
END $$;

-- Jobs that are due in a time range become pending, unless their quarantine has not ended. LH000: there is
-- nothing, or other sessions have locked it.
CREATE FUNCTION leasehold.promote_batch(now timestamptz, since timestamptz, up_to timestamptz, most bigint)
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    of record;
    n  bigint := 0;
BEGIN
    PERFORM leasehold.lock_for_freeing();
    FOR of IN
        WITH due AS MATERIALIZED (
            SELECT j.id FROM leasehold.job j
             WHERE $[delay_ended(j, since, up_to)]
               AND coalesce((SELECT h.until FROM leasehold.quarantine h
                              WHERE h.queue = j.queue AND h.job = j.id), '-infinity') <= now
             ORDER BY j.run_at LIMIT most FOR UPDATE OF j SKIP LOCKED),
        moved AS (
            UPDATE leasehold.job j
               SET state = 'pending', again = true, state_changed_at = greatest(now, j.started_at)
              FROM due d WHERE j.id = ANY (ARRAY(SELECT p.id FROM due p)) AND j.id = d.id
            RETURNING j.queue)
        SELECT m.queue, count(*) AS n FROM moved m GROUP BY m.queue
    LOOP
        PERFORM leasehold.count_change(of.queue, now, 'o', 'scheduled', 'pending', of.n);
        n := n + of.n;
    END LOOP;
    IF n = 0 THEN
        RAISE EXCEPTION USING ERRCODE = 'LH000';
    END IF;
    RETURN n;
END $$;

CREATE FUNCTION leasehold.promote_due(now timestamptz, since timestamptz, up_to timestamptz, most bigint)
RETURNS bigint
LANGUAGE plpgsql
AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM leasehold.job j
                    WHERE $[delay_ended(j, since, up_to)]) THEN
        RETURN 0;
    END IF;
    RETURN leasehold.promote_batch(now, since, up_to, most);
EXCEPTION WHEN SQLSTATE 'LH000' THEN
    RETURN 0;
END $$;

-- Both, as a claim does them before it searches; it need not go further back than earlier claims. `more`: a
-- full batch was found.
CREATE FUNCTION leasehold.expire_and_promote(now timestamptz, l leasehold.scan, OUT expired bigint,
                                  OUT promoted bigint, OUT more boolean) LANGUAGE plpgsql
AS $$
DECLARE
    most constant bigint := 500;
    s    record;
BEGIN
    expired := 0;
    promoted := 0;
    FOR s IN SELECT * FROM leasehold.scan_ranges(l, now) LOOP
        expired := expired + leasehold.expire_overdue(now, s.since, s.up_to, most);
        promoted := promoted + leasehold.promote_due(now, s.since, s.up_to, most);
    END LOOP;
    more := expired >= most OR promoted >= most;
END $$;

-- ---- counts ----

-- Fold what the acts have appended into the counts and the counts per minute, in one session at a time. Queues
-- that other sessions have locked are left for later, so nobody waits here and there is no deadlock.
CREATE FUNCTION leasehold.fold_totals() RETURNS void LANGUAGE sql VOLATILE
BEGIN ATOMIC
    WITH gone AS (DELETE FROM leasehold.total RETURNING *)
    INSERT INTO leasehold.total SELECT g.key, sum(g.value) FROM gone g GROUP BY g.key;
END;

CREATE FUNCTION leasehold.fold(most bigint) RETURNS bigint LANGUAGE plpgsql
AS $$
DECLARE
    batch  tid[];
    names  text[] := '{}';
    counts text[];
    ours   text[] := '{}';
    folded bigint;
    now    timestamptz := leasehold.clock();
BEGIN
    IF NOT EXISTS (SELECT 1 FROM leasehold.delta) AND NOT EXISTS (SELECT 1 FROM leasehold.change) THEN
        RETURN 0;
    END IF;
    PERFORM 1 FROM leasehold.maintenance_task d WHERE d.name = 'fold' FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    IF EXISTS (SELECT 1 FROM leasehold.total OFFSET 100) THEN
        PERFORM leasehold.fold_totals();
    END IF;
    WHILE cardinality(ours) = 0 LOOP  -- the first rows may all belong to queues that others have locked
        batch := ARRAY(SELECT d.ctid FROM leasehold.delta d
                        WHERE d.queue <> ALL (names)
                          AND (d.act <> 'n' OR d.at < now - interval '1 day') LIMIT most);
        EXIT WHEN cardinality(batch) = 0;
        names := names || ARRAY(SELECT DISTINCT d.queue FROM leasehold.delta d
                                 WHERE d.ctid = ANY (batch) ORDER BY 1);
        -- A row for the nonce of a lost call counts nothing: it creates no queue and waits for none.
        counts := ARRAY(SELECT DISTINCT d.queue FROM leasehold.delta d WHERE d.ctid = ANY (batch) AND d.act <> 'n');
        INSERT INTO leasehold.queue(queue)
        SELECT n.queue FROM unnest(counts) n(queue)
         WHERE NOT EXISTS (SELECT 1 FROM leasehold.queue q WHERE q.queue = n.queue)
            ON CONFLICT DO NOTHING;
        ours := ARRAY(SELECT DISTINCT d.queue FROM leasehold.delta d WHERE d.ctid = ANY (batch) AND d.queue <> ALL (counts))
                || ARRAY(SELECT q.queue FROM leasehold.queue q WHERE q.queue = ANY (counts)
                          ORDER BY q.queue FOR UPDATE SKIP LOCKED);
    END LOOP;
    WITH gone AS (
        DELETE FROM leasehold.delta d WHERE d.ctid = ANY (batch) AND d.queue = ANY (ours)
        RETURNING d.*, d.xmin AS by),
    changed AS (
        DELETE FROM leasehold.change c RETURNING c.xmin AS by),
    transactions AS (
        UPDATE leasehold.maintenance_task u
           SET position = u.position
               + (SELECT count(DISTINCT t.by::text)
                    FROM (SELECT g.by FROM gone g WHERE g.act <> 'n' UNION ALL SELECT c.by FROM changed c) t)
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
          FROM gone g WHERE g.act NOT IN ('o', 'n') GROUP BY 1, 2
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

-- ---- event days ----

-- Events of days without a partition go into the default one.
CREATE INDEX event_default_at ON leasehold.event_default(at);

-- Nobody waits for the creation of a new day, neither writers of events nor this session. What cannot be done
-- at once, or not by this user, is left to the next round; until then the events of that day go into the
-- default partition. A day that has events there stays there.
CREATE FUNCTION leasehold.make_event_day(name text, first timestamptz) RETURNS void LANGUAGE plpgsql
AS $$
DECLARE
    last   constant timestamptz := first + interval '24 hours';
    before constant text := current_setting('lock_timeout');
BEGIN
    PERFORM set_config('lock_timeout', '100ms', true);
    IF NOT EXISTS (SELECT 1 FROM leasehold.event_default e WHERE e.at >= first AND e.at < last) THEN
        -- Created separately and attached, which locks less than CREATE ... PARTITION OF.
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

-- Today and the next two days, each from midnight UTC.
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

-- One round of what falls due, except for recovery (leasehold.recover) and pruning. `schedules`: schedules are
-- due, which only the library can run; `more`: call again at once.
CREATE FUNCTION leasehold.maintain_round(OUT expired bigint, OUT promoted bigint, OUT folded bigint,
                                 OUT schedules boolean, OUT more boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    most constant bigint := 20000;
    now  timestamptz := leasehold.clock();
    m    leasehold.meta;
BEGIN
    SELECT * INTO m FROM leasehold.meta;
    m := leasehold.same_server(m, now);
    SELECT * INTO expired, promoted, more FROM leasehold.expire_and_promote(now, leasehold.recovery_scan(m, now, false));
    DELETE FROM leasehold.quarantine h
     WHERE (h.queue, h.job) IN (SELECT o.queue, o.job FROM leasehold.quarantine o WHERE o.until <= now
                                   FOR UPDATE SKIP LOCKED);
    IF FOUND THEN
        PERFORM leasehold.changed();
    END IF;
    folded := leasehold.fold(most);
    more := more OR folded = most;
    PERFORM leasehold.make_event_days(now);
    -- A clock that was set back by more than a day was wrong before, and nobody wants to wait until then.
    -- Within a day, no scheduled run happens twice.
    UPDATE leasehold.schedule s SET done_until = now, next_at = now
     WHERE s.done_until > now + interval '24 hours';
    schedules := EXISTS (SELECT 1 FROM leasehold.schedule s WHERE s.next_at <= now);
END $$;
