-- The claim floor, where a claim starts to search, and the limits of a queue.
--
-- The best job has the highest priority, then the lowest id, in two indexes: job_again (few jobs) and
-- job_fresh. While a long transaction is open, job_fresh keeps the entries of all jobs that were claimed since,
-- and a claim that started at the head of the index would read all of them. So for busy queues
-- leasehold.claim_floor stores, per priority, where the fresh jobs start. An id may commit later than higher
-- ids: a claim that finds nothing above `low` searches above `floor`, which leaves two seconds for the commit.
-- When a transaction that took longer has ended (leasehold.scan_bound.late), and at least once a second if that
-- is cheap, one claim scans the whole queue, so that no job stays hidden (tests/model/claim_floor.pml).

-- ---- the claim floor of a queue ----
--
-- A claim may be part of a transaction that stays open. Such a transaction must not keep others from scanning,
-- so a scan inserts rows of its own, and no row lock or unique key makes it wait. No advisory lock is used,
-- because every role that can connect could take it.

CREATE FUNCTION leasehold.last_floor_number(of_queue text) RETURNS bigint LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN (SELECT w.look FROM leasehold.claim_floor w WHERE w.queue = of_queue ORDER BY w.look DESC LIMIT 1);
END $$;

-- Is a scan of the whole queue due? If scans are cheap, once a second; if they are expensive, after a
-- transaction that took long to commit has ended, and otherwise rarely.
CREATE FUNCTION leasehold.floor_check_due(f leasehold.claim_floor, late bigint, now timestamptz) RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN f.next_look <= now OR f.next_look > now + interval '1 hour'
       OR (f.late <> late AND (f.rest_until <= now OR f.rest_until > now + interval '1 hour'));

-- A scan is due: does this claim make it? One of several claims does, the one that locks the row. The
-- transaction with the lock may stay open forever: after a second, others scan without the lock; for a late
-- commit, which may take any time, one in ten does.
CREATE FUNCTION leasehold.may_check_floor(of_queue text, late bigint, now timestamptz) RETURNS boolean LANGUAGE plpgsql
AS $$
DECLARE
    f leasehold.claim_floor;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN true;  -- locking a row that has changed since its snapshot would fail, and it writes nothing either
    END IF;
    SELECT * INTO f FROM leasehold.claim_floor w WHERE w.queue = of_queue ORDER BY w.look DESC, w.priority DESC LIMIT 1;
    PERFORM 1 FROM leasehold.claim_floor w WHERE w.queue = f.queue AND w.look = f.look AND w.priority = f.priority
        FOR UPDATE SKIP LOCKED;
    RETURN FOUND OR f.next_look <= now - interval '1 second' OR f.next_look > now + interval '1 hour'
        OR (f.late <> late AND random() < 0.1);
END $$;

-- Is the claim floor of this queue unknown, in a store with many dead entries? Then a claim reads all dead entries of
-- the queue. It is unknown until somebody has scanned the queue, two seconds after the first note.
CREATE FUNCTION leasehold.needs_first_scan(of_queue text) RETURNS boolean LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN leasehold.has_many_dead_rows()
           AND NOT EXISTS (SELECT 1 FROM leasehold.claim_floor w
                            WHERE w.queue = of_queue AND w.look = leasehold.last_floor_number(of_queue) AND w.floor > 0);
END $$;

-- Claims that need the first scan of a queue make it one after the other, and those that come later find a claim
-- floor. A claim waits for half a second at most: the other transaction may stay open. True: this claim makes the scan.
CREATE FUNCTION leasehold.begin_first_scan(of_queue text) RETURNS boolean LANGUAGE plpgsql
AS $$
DECLARE
    before text := current_setting('lock_timeout');
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' OR NOT leasehold.needs_first_scan(of_queue) THEN
        RETURN false;
    END IF;
    BEGIN
        PERFORM set_config('lock_timeout', '500ms', true);
        PERFORM FROM leasehold.maintenance_task d WHERE d.name = 'scan' FOR NO KEY UPDATE;
    EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
        NULL;
    END;
    PERFORM set_config('lock_timeout', before, true);
    RETURN leasehold.needs_first_scan(of_queue);
END $$;

-- Raise the floor to where fresh jobs start now; called once in a while after a claim. A row that others have
-- claimed but not committed counts as present. What lies between the floor and the first job is read once and
-- need not be read again.
CREATE FUNCTION leasehold.raise_claim_floor(of_queue text, up_to bigint) RETURNS void LANGUAGE plpgsql
AS $$
DECLARE
    f     leasehold.claim_floor;
    first bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN;
    END IF;
    FOR f IN SELECT * FROM leasehold.claim_floor w WHERE w.queue = of_queue AND w.look = leasehold.last_floor_number(of_queue)
              ORDER BY w.priority FOR UPDATE SKIP LOCKED
    LOOP
        SELECT j.id INTO first FROM leasehold.job j
         WHERE j.state = 'pending' AND NOT j.again AND j.queue = of_queue AND j.priority = f.priority
           AND j.id > f.floor
         ORDER BY j.priority DESC, j.id LIMIT 1;
        UPDATE leasehold.claim_floor w
           SET floor = greatest(w.floor, least(up_to, first - 1)),
               low = coalesce(first - 1, greatest(w.low, up_to))
         WHERE w.queue = of_queue AND w.look = f.look AND w.priority = f.priority
           AND (w.floor < least(up_to, first - 1) OR w.low <> coalesce(first - 1, greatest(w.low, up_to)));
    END LOOP;
END $$;

-- Scan the whole queue: the first job of each priority. The more a scan costs, the rarer it is. If nothing is
-- known or pending, most jobs have had priority 0. `l`: the state before the scan.
CREATE FUNCTION leasehold.find_claim_floor(of_queue text, of_worker text, now timestamptz, l leasehold.scan)
RETURNS void LANGUAGE plpgsql
AS $$
DECLARE
    number bigint;
    began  timestamptz := leasehold.stopwatch();
    took   interval;
    above  integer := 32768;
    at     record;
    firsts bigint[] := '{}';
    prios  integer[] := '{}';
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN;  -- what an old snapshot shows must not count as the latest scan
    END IF;
    number := nextval('leasehold.claim_floor_number');
    FOR i IN 1..16 LOOP
        SELECT j.priority, j.id INTO at FROM leasehold.job j
         WHERE j.state = 'pending' AND NOT j.again AND j.queue = of_queue AND j.priority < above
         ORDER BY j.priority DESC, j.id LIMIT 1;
        EXIT WHEN NOT FOUND;
        above := at.priority;
        prios := prios || at.priority;
        firsts := firsts || at.id;
    END LOOP;
    took := leasehold.stopwatch() - began;
    WITH last AS MATERIALIZED (
        SELECT w.priority, w.low FROM leasehold.claim_floor w
         WHERE w.queue = of_queue AND w.look = leasehold.last_floor_number(of_queue))
    INSERT INTO leasehold.claim_floor(queue, look, priority, low, floor, next_look, late, rest_until)
    SELECT of_queue, number, x.priority, x.low, least(x.low, l.floor),
           now + least(greatest(interval '1 second', 1000 * took), interval '30 minutes'), l.late, now + 20 * took
      FROM (-- A job below the floor counts as above it from now on; otherwise one such job would be claimed per second.
            SELECT u.priority, u.first - 1 AS low FROM unnest(prios, firsts) u(priority, first)
            UNION ALL  -- priorities without a pending job
            SELECT o.priority, greatest(o.low, l.floor) FROM last o WHERE o.priority <> ALL (prios)
            UNION ALL  -- priorities that have just become empty
            SELECT DISTINCT j.priority, 0::bigint FROM leasehold.job j
             WHERE j.state = 'running' AND j.lease_until > now AND j.queue = of_queue
               AND j.worker = of_worker AND j.started_at >= now AND j.priority <> ALL (prios)
               AND NOT EXISTS (SELECT 1 FROM last o WHERE o.priority = j.priority)
            UNION ALL
            SELECT 0, l.floor WHERE prios = '{}' AND of_worker IS NULL AND NOT EXISTS (SELECT 1 FROM last)) x
     LIMIT 32;
    DELETE FROM leasehold.claim_floor w
     WHERE w.queue = of_queue
       AND (w.look, w.priority) IN (SELECT o.look, o.priority FROM leasehold.claim_floor o
                                     WHERE o.queue = of_queue AND o.look < number FOR UPDATE SKIP LOCKED);
END $$;

-- Is there a fresh job for a claim, or a scan due? Cheap scans are made here.
CREATE FUNCTION leasehold.fresh_job_waits(of_queue text, of_kinds text[], l leasehold.scan, now timestamptz)
RETURNS boolean LANGUAGE plpgsql STABLE
AS $$
DECLARE
    f     leasehold.claim_floor;
    above integer := 32767;
BEGIN
    IF l.littered AND leasehold.needs_first_scan(of_queue) THEN
        RETURN true;
    END IF;
    FOR f IN SELECT * FROM leasehold.claim_floor w WHERE w.queue = of_queue AND w.look = leasehold.last_floor_number(of_queue)
              ORDER BY w.priority DESC
    LOOP
        IF f.next_look - f.rest_until > interval '1 second' THEN
            IF leasehold.floor_check_due(f, l.late, now) OR l.floor > f.floor + 1000 THEN
                RETURN true;
            END IF;
        ELSIF leasehold.floor_check_due(f, l.late, now) THEN
            above := 32767;
            EXIT;
        END IF;
        IF leasehold.fresh_in(of_queue, of_kinds, f.priority + 1, above, 0)
           OR leasehold.fresh_in(of_queue, of_kinds, f.priority, f.priority, f.floor) THEN
            RETURN true;
        END IF;
        above := f.priority - 1;
    END LOOP;
    RETURN leasehold.fresh_in(of_queue, of_kinds, -32768, above, 0);
END $$;

-- Entries of fresh jobs that this transaction has read so far, dead ones included.
CREATE FUNCTION leasehold.fresh_entries_read() RETURNS bigint LANGUAGE sql VOLATILE
RETURN pg_catalog.pg_stat_get_xact_tuples_returned('leasehold.job_fresh'::regclass)
     + pg_catalog.pg_stat_get_xact_tuples_returned('leasehold.job_kind'::regclass);

-- The ranges of a queue's fresh jobs, best first, each with the id above which it starts: the claim floor if
-- known, else the beginning.
CREATE FUNCTION leasehold.fresh_ranges(of_queue text)
RETURNS TABLE (least_priority integer, most_priority integer, above bigint) LANGUAGE plpgsql STABLE
AS $$
DECLARE
    f leasehold.claim_floor;
BEGIN
    most_priority := 32767;
    FOR f IN SELECT * FROM leasehold.claim_floor w WHERE w.queue = of_queue AND w.look = leasehold.last_floor_number(of_queue)
              ORDER BY w.priority DESC
    LOOP
        least_priority := f.priority + 1;
        above := 0;
        RETURN NEXT;
        least_priority := f.priority;
        most_priority := f.priority;
        above := f.floor;
        RETURN NEXT;
        most_priority := f.priority - 1;
    END LOOP;
    least_priority := -32768;
    above := 0;
    RETURN NEXT;
END $$;

-- The newest fresh job above an id, of a queue or of a queue and kind (QUEUE/KIND): the last of the lowest
-- priority in one of the ranges.
CREATE FUNCTION leasehold.newest_fresh(of_queue text, above bigint) RETURNS bigint LANGUAGE plpgsql STABLE
AS $$
DECLARE
    s    record;
    best bigint;
BEGIN
    -- (One priority at a time: backwards, a range of priorities would be read to its beginning.)
    FOR s IN SELECT * FROM leasehold.fresh_ranges(split_part(of_queue, '/', 1)) LOOP
        best := greatest(best, CASE
            WHEN strpos(of_queue, '/') > 0 AND s.least_priority = s.most_priority THEN
                (SELECT j.id FROM leasehold.job j
                  WHERE j.state = 'pending' AND NOT j.again AND j.queue || '/' || j.kind = of_queue
                    AND j.priority = s.least_priority AND j.id > greatest(s.above, above)
                  ORDER BY j.id DESC LIMIT 1)
            WHEN strpos(of_queue, '/') > 0 THEN
                (SELECT j.id FROM leasehold.job j
                  WHERE j.state = 'pending' AND NOT j.again AND j.queue || '/' || j.kind = of_queue
                    AND j.priority >= s.least_priority AND j.priority <= s.most_priority
                  ORDER BY j.priority, j.id DESC LIMIT 1)
            WHEN s.least_priority = s.most_priority THEN
                (SELECT j.id FROM leasehold.job j
                  WHERE j.state = 'pending' AND NOT j.again AND j.queue = of_queue
                    AND j.priority = s.least_priority AND j.id > greatest(s.above, above)
                  ORDER BY j.id DESC LIMIT 1)
            ELSE
                (SELECT j.id FROM leasehold.job j
                  WHERE j.state = 'pending' AND NOT j.again AND j.queue = of_queue
                    AND j.priority >= s.least_priority AND j.priority <= s.most_priority
                  ORDER BY j.priority, j.id DESC LIMIT 1) END);
    END LOOP;
    RETURN CASE WHEN best > above THEN best END;
END $$;

-- ---- limits of a queue ----

-- How many of `want` may be claimed now. The queue's row is locked (lock_limits). bucket: what the rate leaves
-- at that time, in thousandths; NULL: there is no rate. The time is read after the lock, because the session
-- that had the lock may have counted later than the caller began.
CREATE FUNCTION leasehold.allowed_now(of_queue text, want bigint, p leasehold.policy,
                                      OUT allowed bigint, OUT bucket bigint, OUT now timestamptz)
LANGUAGE plpgsql
AS $$
DECLARE
    q    leasehold.queue;
    used bigint;
BEGIN
    now := leasehold.clock();
    allowed := CASE WHEN p.exclusive THEN 1 ELSE want END;
    IF p.concurrency = 0 AND p.rate_n = 0 THEN
        RETURN;
    END IF;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        -- It would count the jobs that ran when its transaction began.
        PERFORM leasehold.refuse(-3, format('queue "%s" has limits: claim from it in a transaction that is '
            'READ COMMITTED, not %s', of_queue, upper(current_setting('transaction_isolation'))));
    END IF;
    SELECT * INTO q FROM leasehold.queue w WHERE w.queue = of_queue;
    IF p.concurrency > 0 THEN
        -- Slots in quarantine are not free yet.
        SELECT (SELECT count(*) FROM leasehold.job j WHERE j.state = 'running' AND j.queue = of_queue)
             + (SELECT count(*) FROM leasehold.quarantine h WHERE h.queue = of_queue AND h.until > now)
          INTO used;
        allowed := greatest(least(allowed, p.concurrency - used), 0);
    END IF;
    IF p.rate_n > 0 AND allowed > 0 THEN
        bucket := CASE
            WHEN q.bucket_at IS NULL OR now < q.bucket_at
                 OR leasehold.ms(now - q.bucket_at) >= p.rate_per_ms THEN p.rate_n * 1000
            ELSE least(p.rate_n * 1000, q.bucket
                       + floor(p.rate_n * 1000.0::float8 * leasehold.ms(now - q.bucket_at) / p.rate_per_ms)::bigint) END;
        allowed := least(allowed, bucket / 1000);
    END IF;
END $$;

-- Limits are checked with the row of their queue locked. Several rows are locked in one order; otherwise two
-- claims that name the queues in different orders would deadlock. The wait is short, because the session with
-- the lock may be in a transaction that stays open. Returns the queues that could not be locked.
CREATE FUNCTION leasehold.lock_limits(queues text[]) RETURNS text[] LANGUAGE plpgsql
SET lock_timeout = '100ms'
AS $$
DECLARE
    limited text;
    busy    text[] := '{}';
BEGIN
    FOR limited IN SELECT DISTINCT q.queue FROM unnest(queues) q(queue)
                 WHERE EXISTS (SELECT 1 FROM leasehold.policy p
                                WHERE p.queue IN (q.queue, '*')
                                  AND (p.exclusive OR p.concurrency > 0 OR p.rate_n > 0))
                 ORDER BY 1
    LOOP
        PERFORM 1 FROM leasehold.queue w WHERE w.queue = limited FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            BEGIN
                INSERT INTO leasehold.queue(queue) VALUES (limited) ON CONFLICT DO NOTHING;
                PERFORM 1 FROM leasehold.queue w WHERE w.queue = limited FOR UPDATE;
            EXCEPTION WHEN lock_not_available THEN
                busy := busy || limited;
                CONTINUE;
            END;
        END IF;
        -- The exclusive lease: its holder may just be ending it.
        IF EXISTS (SELECT 1 FROM leasehold.lease l WHERE l.scope = 'processing' AND l.name = limited) THEN
            PERFORM 1 FROM leasehold.lease l WHERE l.scope = 'processing' AND l.name = limited
               FOR UPDATE SKIP LOCKED;
            IF NOT FOUND THEN
                busy := busy || limited;
            END IF;
        END IF;
    END LOOP;
    RETURN busy;
END $$;

-- The best job, without claiming it.
CREATE FUNCTION leasehold.first_pending(of_queue text, of_kinds text[]) RETURNS bigint
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF of_kinds IS NOT NULL THEN
        RETURN (SELECT b.id FROM leasehold.best_of_kinds(of_queue, of_kinds, 1, -32768, 32767, 0) b);
    END IF;
    RETURN (SELECT w.id FROM (
                (SELECT j.id, j.priority FROM leasehold.job j
                  WHERE j.state = 'pending' AND NOT j.again AND j.queue = of_queue
                  ORDER BY j.priority DESC, j.id LIMIT 1)
                UNION ALL
                (SELECT j.id, j.priority FROM leasehold.job j
                  WHERE j.state = 'pending' AND j.again AND j.queue = of_queue
                  ORDER BY j.priority DESC, j.id LIMIT 1)) w
             ORDER BY w.priority DESC, w.id LIMIT 1);
END $$;

-- ---- kinds ----

-- The n best jobs of these kinds in a range of priorities, fresh ones above an id; locks nothing.
CREATE FUNCTION leasehold.best_of_kinds(of_queue text, of_kinds text[], n bigint, least_priority integer,
                                        most_priority integer, low bigint)
RETURNS TABLE(id bigint, priority integer) LANGUAGE plpgsql STABLE
SET enable_sort = off  -- for each kind; the final sort has only a few rows
AS $$
BEGIN
    RETURN QUERY
    SELECT b.id, b.priority
      FROM (SELECT DISTINCT u.kind FROM unnest(of_kinds) u(kind)) k
     CROSS JOIN (VALUES (false, low), (true, 0::bigint)) a(again, above)
     CROSS JOIN LATERAL (
        SELECT j.id, j.priority FROM leasehold.job j
         WHERE j.state = 'pending' AND j.queue || '/' || j.kind = of_queue || '/' || k.kind AND j.again = a.again
           AND j.priority >= least_priority AND j.priority <= most_priority AND j.id > a.above
         ORDER BY j.priority DESC, j.id LIMIT n) b
     ORDER BY b.priority DESC, b.id LIMIT n;
END $$;

-- Lock up to n of them, at first only the n best, because locks last as long as the caller's transaction. If
-- others have locked some, try twice as many, and so on. (The state is compared in a form that no index of
-- pending jobs matches, so the rows are found by their ids.)
CREATE FUNCTION leasehold.lock_of_kinds(of_queue text, of_kinds text[], n bigint, least_priority integer,
                                        most_priority integer, low bigint) RETURNS bigint[]
LANGUAGE plpgsql
AS $$
DECLARE
    tries  bigint := n;
    best   bigint[];
    ids    bigint[] := '{}';
BEGIN
    LOOP
        best := ARRAY(SELECT b.id FROM leasehold.best_of_kinds(of_queue, of_kinds, tries, least_priority,
                                                               most_priority, low) b);
        ids := ids || ARRAY(SELECT j.id FROM leasehold.job j
                             WHERE j.id = ANY (best) AND j.id <> ALL (ids) AND j.state || '' = 'pending'
                               AND (j.expires_at IS NULL OR j.token > 0 OR j.expires_at > leasehold.clock())
                             ORDER BY j.priority DESC, j.id LIMIT n - cardinality(ids) FOR UPDATE SKIP LOCKED);
        EXIT WHEN cardinality(ids) >= n OR cardinality(best) < tries;
        tries := 2 * tries;
    END LOOP;
    RETURN ids;
END $$;

-- Is a job of these kinds pending, fresh or again, in a range of priorities above an id? (One kind at a time:
-- in one statement the server would join and read all jobs of the queue.)
CREATE FUNCTION leasehold.kind_waits(of_queue text, of_kinds text[], of_again boolean, least_priority integer,
                                     most_priority integer, above bigint) RETURNS boolean LANGUAGE plpgsql STABLE
AS $$
DECLARE
    of_kind text;
BEGIN
    FOREACH of_kind IN ARRAY of_kinds LOOP
        IF (SELECT j.id FROM leasehold.job j
             WHERE j.state = 'pending' AND j.again = of_again AND j.queue || '/' || j.kind = of_queue || '/' || of_kind
               AND j.priority >= least_priority AND j.priority <= most_priority AND j.id > above
             ORDER BY j.priority DESC, j.id LIMIT 1) IS NOT NULL THEN
            RETURN true;
        END IF;
    END LOOP;
    RETURN false;
END $$;

-- The same with NULL for any kind. (Fresh jobs and others have an index each, so each has a statement of its
-- own.)
CREATE FUNCTION leasehold.fresh_in(of_queue text, of_kinds text[], least_priority integer, most_priority integer,
                                   above bigint) RETURNS boolean LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF of_kinds IS NOT NULL THEN
        RETURN leasehold.kind_waits(of_queue, of_kinds, false, least_priority, most_priority, above);
    END IF;
    RETURN EXISTS (SELECT 1 FROM leasehold.job j
                    WHERE j.state = 'pending' AND NOT j.again AND j.queue = of_queue
                      AND j.priority >= least_priority AND j.priority <= most_priority AND j.id > above);
END $$;

CREATE FUNCTION leasehold.retried_job_waits(of_queue text, of_kinds text[]) RETURNS boolean LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF of_kinds IS NOT NULL THEN
        RETURN leasehold.kind_waits(of_queue, of_kinds, true, -32768, 32767, 0);
    END IF;
    RETURN EXISTS (SELECT 1 FROM leasehold.job j WHERE j.state = 'pending' AND j.again AND j.queue = of_queue);
END $$;
