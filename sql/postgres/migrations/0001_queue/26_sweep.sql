-- How far back a claim must look for what has ended by time: leases, silence, delays, expiries.

-- Whatever ends by time leaves an entry in an index, and while an xmin is held nobody may remove it: a probe
-- that began at the head of the index would read all that ever ended. So a claim that has looked notes in
-- leasehold.sweep up to which moment nothing is left (but what stays on purpose), and later claims begin there.
--
-- A row can come to light below that moment only by the commit of a transaction that was in progress when the
-- claim looked. What such a transaction wrote ended no earlier than the transaction read the clock. So the note
-- reaches to one second before the note before it, and names the transactions that have been in progress since
-- then and have written to the store. When one of them has ended, the next claim looks from the beginning.
-- (The second is for those that have read the clock and have no transaction id yet.) Behind all that, a claim
-- looks from the beginning once a minute, or less often where that takes long.
--
-- In the same way a job can come to light with an id that was given out long ago. The note has the highest id of
-- which that is certain for all transactions that it does not name: where fresh jobs begin is taken from there
-- (31_front.sql). `late` changes when one of those named has ended.
--
-- A note is void after a change of policy, which may set free what stayed, and when the clock was set back.
CREATE TYPE leasehold.look AS (
    since   timestamptz,       -- what ended after this is to be looked for
    floor   bigint,            -- and fresh jobs with ids above this
    late    bigint,            -- changes when jobs may have come to light below it
    fresh   boolean,           -- there is a note of the last second
    next    leasehold.sweep    -- the note to make once it is known what is left; NULL: none may be made
);

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

-- From when on to look. `notes`: the caller makes the next note, if the last one is older than `every`. A
-- transaction that is older than half a second makes none: it cannot tell which transactions began after its own.
CREATE FUNCTION leasehold.swept(of_generation bigint, now timestamptz, notes boolean DEFAULT false,
                                every interval DEFAULT '1 second')
RETURNS leasehold.look LANGUAGE plpgsql
AS $$
DECLARE
    known record;
    s     leasehold.sweep;
    snap  pg_snapshot;
    void  boolean;
    whole boolean;
    l     leasehold.look;
BEGIN
    -- In one statement: what the row says was known before the snapshot was taken.
    SELECT w AS note, pg_catalog.pg_current_snapshot() AS taken INTO known
      FROM leasehold.sweep w ORDER BY w.id DESC LIMIT 1;
    s := known.note;
    snap := known.taken;
    void := s.id IS NULL OR s.generation <> of_generation OR s.at > now + interval '1 second';
    IF void THEN
        s := (0, of_generation, '-infinity', '-infinity', 0, 0, 0, '0', '{}', 0, 0, '-infinity',
              '-infinity')::leasehold.sweep;
        snap := pg_catalog.pg_current_snapshot();
    END IF;
    l.since := s.bound;
    l.floor := s.floor;
    l.late := s.late;
    -- Where looks from the beginning are expensive there is much to read behind an old note, too.
    IF pg_catalog.isfinite(s.whole_at) AND s.whole_at > s.rest_until + interval '1 minute' THEN
        every := interval '1 second';
    END IF;
    l.fresh := s.at >= now - every;
    IF void OR (s.open <> '{}' AND EXISTS (SELECT 1 FROM pg_catalog.unnest(s.open) x
                                            WHERE pg_catalog.pg_visible_in_snapshot(x, snap))) THEN
        l.late := -1;
        l.fresh := false;
    END IF;
    whole := s.whole_at <= now OR (s.looked <> l.late AND s.rest_until <= now);
    IF whole THEN  -- by a caller that can note it: others leave it to the claim that follows
        l.since := CASE WHEN notes THEN '-infinity' ELSE s.bound END;
        l.fresh := false;
    END IF;
    IF NOT notes OR l.fresh OR pg_catalog.current_setting('transaction_isolation') <> 'read committed'
       OR pg_catalog.clock_timestamp() > pg_catalog.transaction_timestamp() + interval '500 milliseconds' THEN
        RETURN l;
    END IF;
    l.next := (pg_catalog.nextval('leasehold.sweep_id_seq'), of_generation, now, s.at - interval '1 second',
               coalesce(pg_catalog.pg_sequence_last_value('leasehold.job_id_seq'), 0), s.given, s.given_before,
               pg_catalog.pg_current_xact_id(), leasehold.open_writers(snap, s.xid), s.late, s.looked,
               s.rest_until, s.whole_at)::leasehold.sweep;
    IF l.late = -1 THEN
        l.late := (l.next).id;
        l.next.late := (l.next).id;
    END IF;
    IF whole THEN
        l.next.looked := l.late;
    END IF;
    RETURN l;
END $$;

-- Note what a look has found: `first` is the earliest moment of what is left (leasehold.first_due), NULL where
-- nothing is. While expiry is held back nobody has looked.
CREATE FUNCTION leasehold.note_sweep(m leasehold.meta, l leasehold.look, first timestamptz, began timestamptz)
RETURNS void LANGUAGE plpgsql
AS $$
DECLARE
    s    leasehold.sweep := l.next;
    took interval := pg_catalog.clock_timestamp() - began;
BEGIN
    IF s.id IS NULL OR s.at < m.no_expiry_before THEN
        RETURN;
    END IF;
    IF l.since = '-infinity' THEN
        s.rest_until := s.at + 20 * took;
        s.whole_at := s.at + greatest(interval '1 minute', 1000 * took);
    END IF;
    s.bound := least(s.bound, first - interval '1 millisecond');
    INSERT INTO leasehold.sweep OVERRIDING SYSTEM VALUE SELECT s.*;
    IF s.id % 64 = 0 THEN
        DELETE FROM leasehold.sweep w
         WHERE w.id IN (SELECT o.id FROM leasehold.sweep o WHERE o.id < s.id - 64 FOR UPDATE SKIP LOCKED);
    END IF;
END $$;

-- ---- what is left ----

-- Queues with recovery off keep their stuck jobs at the head of the index: up to so many are walked past at
-- once, and the next claim begins behind them.
CREATE FUNCTION leasehold.walks_past() RETURNS bigint LANGUAGE sql IMMUTABLE
RETURN 5000::bigint;

-- The first of these leases that does not stay on purpose; or the last that was walked past.
CREATE FUNCTION leasehold.first_expired(m leasehold.meta, since timestamptz, due timestamptz) RETURNS timestamptz
LANGUAGE plpgsql
AS $$
BEGIN
    IF NOT leasehold.some_stay(m) THEN
        RETURN (SELECT j.lease_until FROM leasehold.job j
                 WHERE j.state = 'running' AND j.lease_until > since AND j.lease_until <= due
                 ORDER BY j.lease_until LIMIT 1);
    END IF;
    RETURN (SELECT coalesce(min(e.lease_until) FILTER (WHERE e.free_it),
                            CASE WHEN count(*) = leasehold.walks_past() THEN max(e.lease_until) END)
              FROM (SELECT j.lease_until, leasehold.recovers(j.queue, j.kind) AS free_it FROM leasehold.job j
                     WHERE j.state = 'running' AND j.lease_until > since AND j.lease_until <= due
                     ORDER BY j.lease_until LIMIT leasehold.walks_past()) e);
END $$;

-- The earliest moment of what has ended by time and is still there; NULL: there is nothing.
CREATE FUNCTION leasehold.first_due(m leasehold.meta, since timestamptz, due timestamptz, now timestamptz)
RETURNS timestamptz LANGUAGE plpgsql
AS $$
BEGIN
    RETURN least(
        leasehold.first_expired(m, since, due),
        (SELECT l.expires_at FROM leasehold.lease l
          WHERE l.expires_at IS NOT NULL AND l.expires_at > since AND l.expires_at <= due
          ORDER BY l.expires_at LIMIT 1),
        (SELECT w.silent_at FROM leasehold.worker w
          WHERE w.silent_at IS NOT NULL AND w.silent_at > since AND w.silent_at <= due
          ORDER BY w.silent_at LIMIT 1),
        (SELECT j.run_at FROM leasehold.job j
          WHERE j.state = 'scheduled' AND j.run_at > since AND j.run_at <= now ORDER BY j.run_at LIMIT 1),
        (SELECT j.expires_at FROM leasehold.job j
          WHERE j.expires_at IS NOT NULL AND j.expires_at > since AND j.expires_at <= now AND j.token = 0
            AND (j.state = 'pending' OR j.state = 'scheduled')
          ORDER BY j.expires_at LIMIT 1));
END $$;
