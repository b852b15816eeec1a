-- The scan bound: how far back a claim must search for leases, silences, delays and expiries that have ended.

-- Everything that ends by time leaves an entry in an index, and while a long transaction is open, vacuum cannot
-- remove dead entries: a scan from the beginning of the index would read everything that ever ended. So a claim
-- that has scanned writes into leasehold.scan_bound up to which time nothing is left (except for what stays on
-- purpose), and later claims start there.
--
-- Below that time a row can only appear by the commit of a transaction that was in progress during the scan.
-- What such a transaction wrote ends no earlier than the transaction read the clock. So the bound is one second
-- before the previous row of leasehold.scan_bound, and the new row lists the transactions that were in progress
-- then and have written to the store. When one of them has ended, the next claim scans from the beginning. (The
-- second is for transactions that have read the clock and have no id yet.) In addition, a claim scans from the
-- beginning once a minute, or less often if that takes long.
--
-- In the same way a job can appear with an id that was given out long ago. The row has the highest id for which
-- that is impossible, except for the listed transactions; the claim floor is taken from there
-- (31_claim_floor.sql). `late` changes when one of the listed transactions has ended.
--
-- A row is void after a change of policy, which may free jobs that stayed, and after the clock was set back.
--
-- If there are many dead entries (leasehold.has_many_dead_rows), a scan from the beginning would take seconds
-- and be cancelled before its row is written. So it is made in pieces, backwards from the bound: each row says
-- which range is still to be scanned (the backlog), and the next scan continues there. Meanwhile the bound is
-- at most seconds old. The backlog has what ended since the start of a transaction that has just ended,
-- everything after a void row, and what ended while nobody scanned. A second, slow pass covers everything: it
-- finds rows that a plain UPDATE has put below the bound. If a scan finds something due that it cannot free
-- (the row is locked), it keeps the time (left_at), so that it delays neither the bound nor the passes.
CREATE TYPE leasehold.scan AS (
    since    timestamptz,      -- search what ended after this ...
    left_at  timestamptz[],    -- ... and what ended at one of these times
    floor    bigint,           -- search fresh jobs with ids above this
    late     bigint,           -- changes when jobs may have appeared below the floor
    fresh    boolean,          -- there is a row of the last second
    littered boolean,          -- there are many dead entries
    known    bigint,           -- the last row
    next     leasehold.scan_bound   -- the row to write once it is known what is left; NULL: none may be written
);

-- From how many dead rows on a store has many; how many index entries one scan may read of the backlog, and of
-- the slow pass.
CREATE FUNCTION leasehold.many_dead_rows() RETURNS bigint LANGUAGE sql IMMUTABLE RETURN 20000::bigint;
CREATE FUNCTION leasehold.backlog_batch() RETURNS bigint LANGUAGE sql IMMUTABLE RETURN 20000::bigint;
CREATE FUNCTION leasehold.recheck_batch() RETURNS bigint LANGUAGE sql IMMUTABLE RETURN 2000::bigint;

-- As counted by the server. It decides only how a scan is made, not what it finds.
CREATE FUNCTION leasehold.has_many_dead_rows() RETURNS boolean LANGUAGE sql STABLE
RETURN pg_catalog.pg_stat_get_dead_tuples('leasehold.job'::regclass)
     + pg_catalog.pg_stat_get_dead_tuples('leasehold.lease'::regclass)
     + pg_catalog.pg_stat_get_dead_tuples('leasehold.worker'::regclass) >= leasehold.many_dead_rows();

-- Transactions that are in progress, began before that one, and have written to the store.
CREATE FUNCTION leasehold.open_writers(snap pg_snapshot, before xid8) RETURNS xid8[] LANGUAGE plpgsql
AS $$
DECLARE
    older xid8[] := ARRAY(SELECT x FROM pg_catalog.pg_snapshot_xip(snap) x WHERE x < before);
BEGIN
    IF pg_catalog.cardinality(older) = 0 THEN
        RETURN older;
    END IF;
    RETURN ARRAY(
        SELECT x FROM pg_catalog.unnest(older) x
         WHERE EXISTS (SELECT 1 FROM pg_catalog.pg_locks t
                         JOIN pg_catalog.pg_locks r ON r.virtualtransaction = t.virtualtransaction
                        WHERE t.locktype = 'transactionid' AND t.granted AND t.mode = 'ExclusiveLock'
                          AND t.transactionid = x::xid
                          AND r.locktype = 'relation' AND r.granted AND r.mode = 'RowExclusiveLock'
                          AND r.relation IN ('leasehold.job'::regclass, 'leasehold.lease'::regclass,
                                             'leasehold.worker'::regclass)
                          AND r.database = (SELECT d.oid FROM pg_catalog.pg_database d
                                             WHERE d.datname = pg_catalog.current_database())));
END $$;

-- For each of these transactions the time before which nothing ends that it wrote: a second before a row that
-- was written before the transaction got its id. (The second is for a clock that was read earlier.)
CREATE FUNCTION leasehold.earliest_writes(xids xid8[], s leasehold.scan_bound) RETURNS timestamptz[] LANGUAGE plpgsql
AS $$
BEGIN
    RETURN ARRAY(
        SELECT coalesce(s.births[pg_catalog.array_position(s.open, x)],
                        (SELECT w.at - interval '1 second' FROM leasehold.scan_bound w
                          WHERE w.generation = s.generation AND w.xid < x ORDER BY w.id DESC LIMIT 1),
                        '-infinity')
          FROM pg_catalog.unnest(xids) WITH ORDINALITY u(x, n) ORDER BY u.n);
END $$;

-- Where a scan must start. `notes`: the caller writes the next row if the last one is older than `every`. A
-- transaction older than half a second writes none, because it cannot tell which transactions began after it.
CREATE FUNCTION leasehold.read_scan_bound(of_generation bigint, now timestamptz, notes boolean DEFAULT false,
                                every interval DEFAULT '1 second')
RETURNS leasehold.scan LANGUAGE plpgsql
AS $$
DECLARE
    known record;
    s     leasehold.scan_bound;
    snap  pg_snapshot;
    void  boolean;
    gap   boolean;          -- no row was written for a long time
    whole boolean;
    born  timestamptz;      -- the first start of a listed transaction that has ended
    l     leasehold.scan;
BEGIN
    -- In one statement: what the row says was known before the snapshot was taken.
    SELECT w AS note, pg_catalog.pg_current_snapshot() AS taken INTO known
      FROM leasehold.scan_bound w ORDER BY w.id DESC LIMIT 1;
    s := known.note;
    snap := known.taken;
    void := s.id IS NULL OR s.generation <> of_generation OR s.at > now + interval '1 second';
    l.littered := leasehold.has_many_dead_rows();
    l.known := s.id;
    IF void THEN
        s := (0, of_generation, '-infinity', '-infinity', 0, 0, 0, '0', '{}', 0, 0, '-infinity', '-infinity',
              '{}', '{}', '-infinity', '-infinity', '-infinity')::leasehold.scan_bound;
        snap := pg_catalog.pg_current_snapshot();
    END IF;
    l.floor := s.floor;
    l.late := s.late;
    -- Where complete scans are expensive, there is also much to read behind an old row.
    IF s.owed_to > s.owed_from
       OR (pg_catalog.isfinite(s.whole_at) AND s.whole_at > s.rest_until + interval '1 minute') THEN
        every := interval '1 second';
    END IF;
    l.fresh := s.at >= now - every;
    born := CASE WHEN s.open <> '{}' THEN
                (SELECT min(coalesce(b, '-infinity')) FROM unnest(s.open, s.births) o(x, b)
                  WHERE pg_catalog.pg_visible_in_snapshot(x, snap)) END;
    IF void OR born IS NOT NULL THEN
        l.late := -1;
        l.fresh := false;
    END IF;
    gap := l.littered AND s.at < now - interval '15 seconds';
    IF gap THEN
        s.owed_from := CASE WHEN s.owed_to > s.owed_from THEN least(s.owed_from, s.bound) ELSE s.bound END;
        s.owed_to := now - interval '1 second';
        s.bound := s.owed_to;
    END IF;
    l.since := s.bound;
    l.left_at := s.left_at;
    whole := s.whole_at <= now OR (s.looked <> l.late AND s.rest_until <= now);
    IF NOT l.littered THEN
        -- In one piece, including the backlog, by a caller that can write the row; others leave it to the next
        -- claim.
        whole := whole OR s.owed_to > s.owed_from OR pg_catalog.isfinite(s.net_to) OR s.left_at <> '{}';
        s.owed_to := '-infinity';
        s.owed_from := '-infinity';
        s.net_to := '-infinity';
        IF whole THEN
            l.since := CASE WHEN notes THEN '-infinity' ELSE s.bound END;
            l.fresh := false;
        END IF;
    END IF;
    IF NOT notes OR l.fresh OR pg_catalog.current_setting('transaction_isolation') <> 'read committed'
       OR leasehold.stopwatch() > pg_catalog.transaction_timestamp() + interval '500 milliseconds' THEN
        RETURN l;
    END IF;
    l.next := s;
    l.next.id := pg_catalog.nextval('leasehold.scan_bound_id_seq');
    l.next.at := now;
    l.next.bound := CASE WHEN gap THEN s.bound ELSE s.at - interval '1 second' END;
    l.next.given := coalesce(pg_catalog.pg_sequence_last_value('leasehold.job_id_seq'), 0);
    l.next.given_before := s.given;
    l.next.floor := s.given_before;
    l.next.xid := pg_catalog.pg_current_xact_id();
    -- (Transactions listed before stay listed while they are in progress: one that is just ending has no lock
    -- any more, and its commit is not in the snapshot yet.)
    l.next.open := ARRAY(SELECT x FROM pg_catalog.unnest(s.open) x WHERE NOT pg_catalog.pg_visible_in_snapshot(x, snap)
                         UNION
                         SELECT x FROM pg_catalog.unnest(leasehold.open_writers(
                                           snap, CASE WHEN gap THEN (l.next).xid ELSE s.xid END)) x);
    l.next.births := CASE WHEN void THEN pg_catalog.array_fill('-infinity'::timestamptz,
                                                               ARRAY[pg_catalog.cardinality((l.next).open)])
                          ELSE leasehold.earliest_writes((l.next).open, s) END;
    IF l.late = -1 THEN
        l.late := (l.next).id;
        l.next.late := (l.next).id;
    END IF;
    IF l.littered THEN
        l.next.looked := l.late;
        IF born IS NOT NULL AND born < (l.next).bound THEN
            l.next.owed_from := CASE WHEN s.owed_to > s.owed_from THEN least(s.owed_from, born) ELSE born END;
            l.next.owed_to := (l.next).bound;
        END IF;
        IF void THEN
            l.next.whole_at := now + interval '1 minute';
        ELSIF s.whole_at <= now AND NOT pg_catalog.isfinite(s.net_to) THEN
            l.next.net_to := (l.next).bound;
            l.next.whole_at := 'infinity';
        END IF;
    ELSIF whole THEN
        l.next.looked := l.late;
    END IF;
    RETURN l;
END $$;

-- ---- scans in pieces ----

-- Entries that this transaction has read so far from the indexes by time, dead ones included.
CREATE FUNCTION leasehold.entries_read() RETURNS bigint LANGUAGE sql VOLATILE
RETURN pg_catalog.pg_stat_get_xact_tuples_returned('leasehold.job_running'::regclass)
     + pg_catalog.pg_stat_get_xact_tuples_returned('leasehold.job_scheduled'::regclass)
     + pg_catalog.pg_stat_get_xact_tuples_returned('leasehold.job_expiry'::regclass)
     + pg_catalog.pg_stat_get_xact_tuples_returned('leasehold.lease_expires'::regclass)
     + pg_catalog.pg_stat_get_xact_tuples_returned('leasehold.worker_silent'::regclass);

-- The last times within a range at which something is due, at most `most`. (A time may appear twice.)
CREATE FUNCTION leasehold.times_due(m leasehold.meta, since timestamptz, up_to timestamptz, due timestamptz,
                                      now timestamptz, most bigint) RETURNS timestamptz[]
LANGUAGE plpgsql
AS $$
DECLARE
    stay boolean := leasehold.any_recovery_off(m);
BEGIN
    RETURN ARRAY(
        SELECT u.t FROM (
            (SELECT j.lease_until AS t FROM leasehold.job j
              WHERE $[lease_ended(j, since, least(up_to, due))]
                AND (NOT stay OR leasehold.recovery_is_on(j.queue, j.kind))
              ORDER BY j.lease_until DESC LIMIT most)
            UNION ALL
            (SELECT l.expires_at FROM leasehold.lease l
              WHERE $[named_lease_ended(l, since, least(up_to, due))]
              ORDER BY l.expires_at DESC LIMIT most)
            UNION ALL
            (SELECT w.silent_at FROM leasehold.worker w
              WHERE $[silence_too_long(w, since, least(up_to, due))]
              ORDER BY w.silent_at DESC LIMIT most)
            UNION ALL
            (SELECT j.run_at FROM leasehold.job j
              WHERE $[delay_ended(j, since, least(up_to, now))]
              ORDER BY j.run_at DESC LIMIT most)
            UNION ALL
            (SELECT j.expires_at FROM leasehold.job j
              WHERE $[expiry_passed(j, since, least(up_to, now))]
              ORDER BY j.expires_at DESC LIMIT most)) u
         ORDER BY u.t DESC LIMIT most);
END $$;

-- What is due at these times: leases and workers to free, jobs to promote or expire.
CREATE FUNCTION leasehold.leftover_due(m leasehold.meta, moments timestamptz[], due timestamptz, now timestamptz,
                                   OUT frees timestamptz[], OUT moves_in timestamptz[])
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    stay boolean := leasehold.any_recovery_off(m);
BEGIN
    SELECT coalesce(array_agg(u.t) FILTER (WHERE u.freed), '{}'), coalesce(array_agg(u.t) FILTER (WHERE u.moved), '{}')
      INTO frees, moves_in
      FROM (SELECT x.t,
                   x.t <= due AND (
                   EXISTS (SELECT 1 FROM leasehold.job j WHERE j.state = 'running' AND j.lease_until = x.t
                                                           AND (NOT stay OR leasehold.recovery_is_on(j.queue, j.kind)))
                   OR EXISTS (SELECT 1 FROM leasehold.lease l WHERE l.expires_at IS NOT NULL AND l.expires_at = x.t)
                   OR EXISTS (SELECT 1 FROM leasehold.worker w WHERE w.silent_at IS NOT NULL AND w.silent_at = x.t))
                   AS freed,
                   x.t <= now AND (
                   EXISTS (SELECT 1 FROM leasehold.job j WHERE j.state = 'scheduled' AND j.run_at = x.t)
                   OR EXISTS (SELECT 1 FROM leasehold.job j
                               WHERE j.expires_at IS NOT NULL AND j.expires_at = x.t AND j.token = 0
                                 AND (j.state = 'pending' OR j.state = 'scheduled'))) AS moved
              FROM (SELECT DISTINCT v.t FROM pg_catalog.unnest(moments) v(t)) x) u;
END $$;

-- How many times a row keeps at most. If there are more, the bound stays behind.
CREATE FUNCTION leasehold.most_leftover() RETURNS integer LANGUAGE sql IMMUTABLE RETURN 100;

-- The width of a range before a time that can be read at once: this width, or less. A scan that takes too long
-- is cancelled, and so would every later one be. The condition on the queue's name is always false and makes
-- the server read only the index, which takes a thirtieth of the time.
CREATE FUNCTION leasehold.readable_width(up_to timestamptz, INOUT width interval) LANGUAGE plpgsql
AS $$
DECLARE
    began timestamptz;
BEGIN
    WHILE width > interval '1 second' LOOP
        began := leasehold.stopwatch();
        PERFORM 1 FROM leasehold.job j
          WHERE j.state = 'running' AND j.lease_until > up_to - width AND j.lease_until <= up_to AND j.queue = '';
        PERFORM 1 FROM leasehold.job j
          WHERE j.state = 'scheduled' AND j.run_at > up_to - width AND j.run_at <= up_to AND j.queue = '';
        EXIT WHEN leasehold.stopwatch() < began + interval '2 milliseconds';
        width := width / 4;
    END LOOP;
END $$;

-- Scan a range from its end to its beginning until about `most` entries are read. `up_to`: how far it came;
-- `moments`: times at which something is due. Only the width of a range can be chosen, and the density of the
-- entries is not known. So the next range is at most twice as wide as one that was cheap, and no wider than a
-- minute or an eighth of the distance covered: a busy day may precede a quiet night.
CREATE FUNCTION leasehold.scan_range(m leasehold.meta, down_to timestamptz, due timestamptz, now timestamptz,
                                       most bigint, INOUT up_to timestamptz, OUT moments timestamptz[])
LANGUAGE plpgsql
AS $$
DECLARE
    began  timestamptz := leasehold.stopwatch();
    first  bigint := leasehold.entries_read();
    before bigint := first;
    n      bigint;
    low    timestamptz;
    width  interval := '50 milliseconds';
BEGIN
    moments := '{}';
    WHILE up_to > down_to AND pg_catalog.cardinality(moments) <= leasehold.most_leftover() LOOP
        width := leasehold.readable_width(up_to, width);
        low := CASE WHEN up_to < now - interval '30 days' THEN down_to ELSE greatest(down_to, up_to - width) END;
        moments := moments || leasehold.times_due(m, low, up_to, due, now, leasehold.most_leftover() + 1);
        up_to := low;
        n := leasehold.entries_read();
        -- (The time limit is for a server that does not count.)
        EXIT WHEN up_to <= down_to OR n - first >= most OR leasehold.stopwatch() > began + most * interval '50 microseconds';
        width := CASE WHEN n - before > most / 4 THEN greatest(width / 2, interval '1 millisecond')
                      ELSE least(width * 2, greatest(interval '1 minute', (now - up_to) / 8)) END;
        before := n;
    END LOOP;
END $$;

-- Scan a piece of the backlog, or every five seconds of the slow pass; called before the row is written. One
-- session at a time does it. The others use the bound they have; they neither wait nor write a row, which would
-- undo the progress. (A session that holds the lock for more than three seconds has written no row meanwhile.)
CREATE FUNCTION leasehold.scan_backlog(m leasehold.meta, INOUT l leasehold.scan, due timestamptz, now timestamptz)
LANGUAGE plpgsql
AS $$
DECLARE
    s    leasehold.scan_bound := l.next;
    last leasehold.scan_bound;
    r    record;
    owed boolean := s.owed_to > s.owed_from;
BEGIN
    IF NOT l.littered OR s.id IS NULL OR s.at < m.no_expiry_before
       OR NOT (owed OR (pg_catalog.isfinite(s.net_to) AND s.rest_until <= now)) THEN
        RETURN;
    END IF;
    SELECT * INTO last FROM leasehold.scan_bound w ORDER BY w.id DESC LIMIT 1;
    PERFORM 1 FROM leasehold.scan_bound w WHERE w.id = last.id FOR UPDATE SKIP LOCKED;
    IF (NOT FOUND AND last.at BETWEEN now - interval '3 seconds' AND now)
       OR (SELECT max(w.id) FROM leasehold.scan_bound w) IS DISTINCT FROM l.known THEN
        l.next := NULL;
        RETURN;
    END IF;
    IF owed THEN
        r := leasehold.scan_range(m, s.owed_from, due, now, leasehold.backlog_batch(), s.owed_to);
        s.owed_to := r.up_to;
    ELSE
        r := leasehold.scan_range(m, '-infinity', due, now, leasehold.recheck_batch(), s.net_to);
        s.net_to := r.up_to;
        s.rest_until := now + interval '5 seconds';
        IF NOT pg_catalog.isfinite(s.net_to) THEN
            s.whole_at := now + interval '1 minute';
        END IF;
    END IF;
    IF pg_catalog.cardinality(l.left_at) + pg_catalog.cardinality(r.moments) <= leasehold.most_leftover() THEN
        l.left_at := l.left_at || r.moments;
    ELSE
        l.since := least(l.since, r.up_to);
    END IF;
    l.next := s;
END $$;

-- Write the row of a scan. `first`: the earliest time of what is left (leasehold.first_due); NULL: nothing is
-- left. While expiry is suspended nothing was scanned.
CREATE FUNCTION leasehold.save_scan_bound(m leasehold.meta, l leasehold.scan, first timestamptz, began timestamptz,
                                     due timestamptz, now timestamptz)
RETURNS void LANGUAGE plpgsql
AS $$
DECLARE
    s    leasehold.scan_bound := l.next;
    took interval := leasehold.stopwatch() - began;
    more timestamptz[] := '{}';
    rest record;
BEGIN
    IF s.id IS NULL OR s.at < m.no_expiry_before THEN
        RETURN;
    END IF;
    IF l.since = '-infinity' THEN
        s.rest_until := s.at + 20 * took;
        s.whole_at := s.at + greatest(interval '1 minute', 1000 * took);
    END IF;
    s.left_at := '{}';
    IF l.littered THEN
        IF pg_catalog.cardinality(l.left_at) > 0 THEN
            rest := leasehold.leftover_due(m, l.left_at, due, now);
            s.left_at := ARRAY(SELECT DISTINCT t FROM pg_catalog.unnest(rest.frees || rest.moves_in) t);
        END IF;
        IF first <= s.bound THEN
            more := leasehold.times_due(m, l.since, s.bound, due, now, leasehold.most_leftover() + 1);
        END IF;
        IF pg_catalog.cardinality(s.left_at) + pg_catalog.cardinality(more) <= leasehold.most_leftover() THEN
            s.left_at := s.left_at || more;
            first := NULL;
        END IF;
    END IF;
    s.bound := least(s.bound, first - interval '1 millisecond');
    INSERT INTO leasehold.scan_bound OVERRIDING SYSTEM VALUE SELECT s.*;
    IF s.id % 64 = 0 THEN
        DELETE FROM leasehold.scan_bound w
         WHERE w.id IN (SELECT o.id FROM leasehold.scan_bound o WHERE o.id < s.id - 64 FOR UPDATE SKIP LOCKED);
    END IF;
END $$;

-- Where a recovery or a report starts to scan: from the beginning, or, if that would read very many dead
-- entries, where claims start. `everything`: an operator asks and waits for it.
CREATE FUNCTION leasehold.recovery_scan(m leasehold.meta, now timestamptz, everything boolean) RETURNS leasehold.scan
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    l leasehold.scan;
BEGIN
    IF NOT everything AND leasehold.has_many_dead_rows() THEN
        RETURN leasehold.read_scan_bound(m.generation, now);
    END IF;
    l.since := '-infinity';
    l.left_at := '{}';
    RETURN l;
END $$;

-- The time ranges of a scan: each from after one time up to another.
CREATE FUNCTION leasehold.scan_ranges(l leasehold.scan, due timestamptz)
RETURNS TABLE (since timestamptz, up_to timestamptz) LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
    SELECT l.since, due
    UNION ALL
    SELECT t - interval '1 microsecond', t FROM unnest(l.left_at) t WHERE t <= due AND t <= l.since;
END;

-- ---- what is left ----

-- Queues with recovery off keep expired jobs at the head of the index: a claim skips up to this many, and the
-- next claim starts behind them.
CREATE FUNCTION leasehold.most_skipped() RETURNS bigint LANGUAGE sql IMMUTABLE
RETURN 5000::bigint;

-- The first expired lease of a job that is to be recovered; otherwise the last that was skipped.
CREATE FUNCTION leasehold.first_expired(m leasehold.meta, since timestamptz, due timestamptz) RETURNS timestamptz
LANGUAGE plpgsql
AS $$
BEGIN
    IF NOT leasehold.any_recovery_off(m) THEN
        RETURN (SELECT j.lease_until FROM leasehold.job j
                 WHERE $[lease_ended(j, since, due)]
                 ORDER BY j.lease_until LIMIT 1);
    END IF;
    RETURN (SELECT coalesce(min(e.lease_until) FILTER (WHERE e.free_it),
                            CASE WHEN count(*) = leasehold.most_skipped() THEN max(e.lease_until) END)
              FROM (SELECT j.lease_until, leasehold.recovery_is_on(j.queue, j.kind) AS free_it FROM leasehold.job j
                     WHERE $[lease_ended(j, since, due)]
                     ORDER BY j.lease_until LIMIT leasehold.most_skipped()) e);
END $$;

-- The earliest time of what has ended and is still there; NULL: there is nothing.
CREATE FUNCTION leasehold.first_due(m leasehold.meta, since timestamptz, due timestamptz, now timestamptz)
RETURNS timestamptz LANGUAGE plpgsql
AS $$
BEGIN
    RETURN least(
        leasehold.first_expired(m, since, due),
        (SELECT l.expires_at FROM leasehold.lease l
          WHERE $[named_lease_ended(l, since, due)]
          ORDER BY l.expires_at LIMIT 1),
        (SELECT w.silent_at FROM leasehold.worker w
          WHERE $[silence_too_long(w, since, due)]
          ORDER BY w.silent_at LIMIT 1),
        (SELECT j.run_at FROM leasehold.job j
          WHERE $[delay_ended(j, since, now)] ORDER BY j.run_at LIMIT 1),
        (SELECT j.expires_at FROM leasehold.job j
          WHERE $[expiry_passed(j, since, now)]
          ORDER BY j.expires_at LIMIT 1));
END $$;
