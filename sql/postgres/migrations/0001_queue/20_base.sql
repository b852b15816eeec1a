-- What all acts use: the clock, the epoch, policies, counts, events, formatting.
--
-- A function in SQL is inlined into its caller, and costs nothing, if it is one expression and is not declared
-- stricter than what it calls. Otherwise it is planned again at every call. So everything that is more than one
-- expression is in PL/pgSQL, whose plans are kept.
--
-- An object of another role must never be taken for one of ours or of the server's, whatever the caller's
-- search_path. So functions in SQL have a standard body (RETURN or BEGIN ATOMIC), whose names are resolved when
-- the function is created. A function in PL/pgSQL that clients or views call has a fixed search_path, or names
-- everything it uses with its schema, operators included. All other functions are called only with such a
-- search_path, and only their owner may execute them (90_access.sql).

-- The one clock, in milliseconds. It is not now(), which does not move within a transaction.
CREATE FUNCTION leasehold.clock() RETURNS timestamptz LANGUAGE sql VOLATILE
RETURN pg_catalog.date_trunc('milliseconds', pg_catalog.clock_timestamp());

-- The clock that measures how long a scan takes: expensive scans are made less often. It is a function of its
-- own, because tests replace both clocks.
CREATE FUNCTION leasehold.stopwatch() RETURNS timestamptz LANGUAGE sql VOLATILE
RETURN pg_catalog.clock_timestamp();

CREATE FUNCTION leasehold.span(ms bigint) RETURNS interval LANGUAGE sql IMMUTABLE STRICT
RETURN ms * interval '1 millisecond';

CREATE FUNCTION leasehold.ms(span interval) RETURNS bigint LANGUAGE sql IMMUTABLE STRICT
RETURN pg_catalog.round(1000 * pg_catalog.date_part('epoch', span))::bigint;

CREATE FUNCTION leasehold.unix_ms(at timestamptz) RETURNS bigint LANGUAGE sql IMMUTABLE STRICT
RETURN pg_catalog.floor(1000 * pg_catalog.date_part('epoch', at))::bigint;

-- When a claim last checked whether something is due. It saves most claims that check, and is the only state
-- outside of transactions: a sequence is changed in place, where a row would leave a dead version 100 times a
-- second. A claim that is rolled back has set it all the same; so every fiftieth claim checks whatever the
-- sequence says (claim_one).
CREATE SEQUENCE leasehold.due_check MINVALUE 0 START 0;

CREATE FUNCTION leasehold.due_checked_at() RETURNS timestamptz LANGUAGE sql VOLATILE
RETURN timestamptz 'epoch' + coalesce(pg_catalog.pg_sequence_last_value('leasehold.due_check'), 0)
       * interval '1 millisecond';

-- The time up to which deadlines count as passed: a lease has expired if lease_until <= due(now, ...). While
-- expiry is suspended (the clock jumped, another server took over) nothing expires.
CREATE FUNCTION leasehold.due(now timestamptz, no_expiry_before timestamptz) RETURNS timestamptz
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN now < no_expiry_before THEN '-infinity' ELSE now END;

CREATE FUNCTION leasehold.next_token(token bigint, first_token bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE
RETURN greatest(token, first_token) + 1;

CREATE FUNCTION leasehold.first_token_of(epoch bigint) RETURNS bigint LANGUAGE sql VOLATILE
RETURN (epoch << 40) + floor(random() * (1::bigint << 39))::bigint;

-- Log a message: the library writes it to its log, psql shows it. The SQLSTATE has the level: LHE00, LHW00,
-- LHI00.
CREATE FUNCTION leasehold.log_message(level text, message text, job bigint DEFAULT NULL,
                               token bigint DEFAULT NULL, attempt integer DEFAULT NULL,
                               queue text DEFAULT NULL, worker text DEFAULT NULL,
                               reason text DEFAULT NULL) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    RAISE NOTICE USING
        ERRCODE = CASE level WHEN 'error' THEN 'LHE00' WHEN 'warn' THEN 'LHW00' ELSE 'LHI00' END,
        MESSAGE = message,
        DETAIL = pg_catalog.json_strip_nulls(pg_catalog.json_build_object(
            'job', job, 'token', token, 'attempt', attempt, 'queue', queue, 'worker', worker,
            'reason', reason))::text;
END $$;

-- Refuse a call. SQLSTATE LH008 is LH_ELOST (-8) of the library, and so on.
CREATE FUNCTION leasehold.refuse(status integer, message text) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'LH' || pg_catalog.lpad((-status)::text, 3, '0'),
        MESSAGE = message;
END $$;

-- Outcome of one item of a batch: its number from 1, a status (0: done), and why it was refused.
CREATE TYPE leasehold.outcome AS (n integer, status integer, message text);

-- Is it certain that the server still remembers every token it handed out?
CREATE FUNCTION leasehold.has_not_crashed() RETURNS boolean LANGUAGE plpgsql
AS $$
BEGIN
    IF pg_catalog.pg_is_in_recovery() THEN
        RETURN true;  -- a standby cannot read unlogged tables, and makes no tokens
    END IF;
    RETURN EXISTS (SELECT 1 FROM leasehold.crash_marker u WHERE u.one AND u.xmin = u.xid);
END $$;

-- The epoch was valid for another server (promoted, restored from a dump or a backup, upgraded): raise the
-- epoch, so that no token is handed out twice. Then nothing expires for the length of the longest lease,
-- because the holders were cut off and may be alive. Leases that a dump shows as held end, because the jobs may
-- have gone to others since the dump. The epoch is never below the timeline, because the epoch of the previous
-- timeline may be among the lost commits. After a crash of the same server only the epoch rises.
--
-- The new epoch is on disk before anyone sees it, whatever the caller's synchronous_commit: after a second
-- crash the server would choose the same epoch again.
CREATE FUNCTION leasehold.new_server(now timestamptz) RETURNS leasehold.meta LANGUAGE plpgsql
AS $$
DECLARE
    m       leasehold.meta;
    id      bigint := (SELECT system_identifier FROM pg_control_system());
    line    text := left(pg_walfile_name(pg_current_wal_lsn()), 8);
    longest bigint := 0;
    same    boolean;
    restored boolean;
BEGIN
    SELECT * INTO m FROM leasehold.meta FOR UPDATE;
    same := m.system_id = id AND m.timeline = line AND m.job_oid = 'leasehold.job'::regclass;
    IF same AND leasehold.has_not_crashed() THEN
        RETURN m;  -- another session has done it
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'local', true);
    END IF;
    restored := m.job_oid <> 'leasehold.job'::regclass
                OR (m.system_id <> id AND EXISTS (SELECT 1 FROM leasehold.crash_marker u WHERE u.one AND u.xmin <> u.xid));
    IF NOT same THEN
        SELECT greatest(1000, (SELECT max(held_ms) FROM leasehold.job WHERE state = 'running'),
                        (SELECT max(ttl_ms) FROM leasehold.lease WHERE expires_at IS NOT NULL))
          INTO longest;
    END IF;
    m.epoch := greatest(m.epoch + 1, least(('x' || line)::bit(32)::bigint, 4096));
    UPDATE leasehold.meta
       SET epoch = m.epoch, first_token = leasehold.first_token_of(m.epoch),
           system_id = id, timeline = line, recovery_due = recovery_due OR NOT same,
           job_oid = 'leasehold.job'::regclass, generation = generation + 1,
           no_expiry_before = CASE WHEN same THEN no_expiry_before
                                   ELSE greatest(no_expiry_before, now + leasehold.span(longest)) END
    RETURNING * INTO m;
    INSERT INTO leasehold.crash_marker(xid) VALUES ('0') ON CONFLICT DO NOTHING;
    UPDATE leasehold.crash_marker u SET one = true WHERE u.one;  -- the row gets the xmin of this transaction ...
    UPDATE leasehold.crash_marker u SET xid = u.xmin WHERE u.one;  -- ... and its xid says so
    IF same THEN
        PERFORM leasehold.event_put(now, 'store.restored', NULL, NULL, NULL, NULL, NULL, NULL,
            'system/recovery', 'the server has crashed: epoch ' || m.epoch, NULL);
        PERFORM leasehold.log_message('info', 'the server has crashed since the store was last used: epoch ' || m.epoch);
        RETURN m;
    END IF;
    PERFORM leasehold.event_put(now, 'store.restored', NULL, NULL, NULL, NULL, NULL, NULL,
        'system/recovery', 'another server: epoch ' || m.epoch || ', timeline ' || line, NULL);
    PERFORM leasehold.log_message('warn', 'the store is on another server now (timeline ' || line
        || '): epoch ' || m.epoch || ', nothing expires before '
        || to_char(m.no_expiry_before AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'));
    IF restored THEN
        PERFORM leasehold.end_all_leases(now, m);
    END IF;
    RETURN m;
END $$;

-- ---- policies ----

-- The values for a queue and kind: from its own row, then (queue, any), (any, kind), (any, any), then the
-- built-in value. Rate, concurrency and exclusive belong to a queue as a whole: call it with kind NULL.
CREATE FUNCTION leasehold.policy_of(of_queue text, of_kind text) RETURNS leasehold.policy
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    p leasehold.policy;
    r leasehold.policy;
BEGIN
    p := (of_queue, coalesce(of_kind, '*'), $[lease_ms], $[max_attempts], $[max_recoveries], $[action],
          $[recovery]::boolean, $[recovery_backoff_ms], $[backoff_ms], $[backoff_cap_ms], $[timeout_ms],
          $[exclusive]::boolean, $[audit], $[retention_ms], $[retention_failed_ms], $[max_payload], $[rate_n],
          $[rate_per_ms], $[concurrency], $[max_output], $[retention_output_ms]);
    FOR r IN
        SELECT * FROM leasehold.policy w
         WHERE w.queue IN (of_queue, '*') AND w.kind IN (coalesce(of_kind, '*'), '*')
         ORDER BY w.queue = '*' DESC, w.kind = '*' DESC  -- the widest row first: a later row overrides it
    LOOP
        p.lease_ms := coalesce(r.lease_ms, p.lease_ms);
        p.max_attempts := coalesce(r.max_attempts, p.max_attempts);
        p.max_recoveries := coalesce(r.max_recoveries, p.max_recoveries);
        p.action := coalesce(r.action, p.action);
        p.recovery := coalesce(r.recovery, p.recovery);
        p.recovery_backoff_ms := coalesce(r.recovery_backoff_ms, p.recovery_backoff_ms);
        p.backoff_ms := coalesce(r.backoff_ms, p.backoff_ms);
        p.backoff_cap_ms := coalesce(r.backoff_cap_ms, p.backoff_cap_ms);
        p.timeout_ms := coalesce(r.timeout_ms, p.timeout_ms);
        p.exclusive := coalesce(r.exclusive, p.exclusive);
        p.audit := coalesce(r.audit, p.audit);
        p.retention_ms := coalesce(r.retention_ms, p.retention_ms);
        p.retention_failed_ms := coalesce(r.retention_failed_ms, p.retention_failed_ms);
        p.max_payload := coalesce(r.max_payload, p.max_payload);
        p.rate_n := coalesce(r.rate_n, p.rate_n);
        p.rate_per_ms := coalesce(r.rate_per_ms, p.rate_per_ms);
        p.concurrency := coalesce(r.concurrency, p.concurrency);
        p.max_output := coalesce(r.max_output, p.max_output);
        p.retention_output_ms := coalesce(r.retention_output_ms, p.retention_output_ms);
    END LOOP;
    RETURN p;
END $$;

-- Delay before the next attempt: doubled with each attempt, capped. Half of it is random, so that jobs that
-- failed together do not return together.
CREATE FUNCTION leasehold.backoff(base_ms bigint, cap_ms bigint, attempt integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    d bigint := least(cap_ms::numeric, base_ms * 2::numeric ^ least(greatest(attempt - 1, 0), 62))::bigint;
BEGIN
    RETURN d - d / 2 + floor((d / 2) * random())::bigint;
END $$;

-- ---- counts, wake-ups, events ----

-- Record that this transaction changes something. (A transaction that writes a delta need not.)
CREATE FUNCTION leasehold.changed() RETURNS boolean LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO leasehold.change DEFAULT VALUES;
    RETURN true;
END $$;

-- Wake the processes that sleep under this name (leasehold.sleeper): notify them, and end their subscription. Where nobody
-- sleeps nothing is sent, because NOTIFY takes a lock that all commits of the server share. A transaction that finds
-- the sleepers being woken by another notifies them too: the other may take long, or be rolled back.
CREATE FUNCTION leasehold.wake_sleeper(name text, now timestamptz) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM leasehold.sleeper i WHERE i.queue = name AND i.asleep) THEN
        UPDATE leasehold.sleeper i SET asleep = false, notified_at = now
         WHERE i.queue = (SELECT s.queue FROM leasehold.sleeper s WHERE s.queue = name AND s.asleep
                             FOR UPDATE SKIP LOCKED);
        PERFORM pg_catalog.pg_notify('leasehold', name);
    END IF;
END $$;

-- Wake the sleepers of a queue: those that take any kind, and those that take one of these kinds. NULL: the
-- kinds are not known. A sleeper for a kind has the name QUEUE/KIND.
CREATE FUNCTION leasehold.wake_queue(of_queue text, now timestamptz, kinds text[] DEFAULT NULL) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
DECLARE
    sleeper text;
BEGIN
    PERFORM leasehold.wake_sleeper(of_queue, now);
    IF kinds IS NULL THEN
        FOR sleeper IN SELECT i.queue FROM leasehold.sleeper i
                        WHERE i.queue > of_queue || '/' AND i.queue < of_queue || '0' AND i.asleep LOOP
            PERFORM leasehold.wake_sleeper(sleeper, now);
        END LOOP;
    ELSIF kinds <> '{}' THEN
        FOR sleeper IN SELECT DISTINCT of_queue || '/' || k.kind FROM pg_catalog.unnest(kinds) k(kind)
                        WHERE k.kind IS NOT NULL LOOP
            PERFORM leasehold.wake_sleeper(sleeper, now);
        END LOOP;
    END IF;
END $$;

-- Wake the processes that wait for something to fall due.
CREATE FUNCTION leasehold.wake_maintenance(now timestamptz) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM leasehold.wake_sleeper('!', now);
END $$;

-- Something falls due at this time. A process that waits for maintenance polls once a second, so it needs a
-- wake-up only if the time is nearer.
CREATE FUNCTION leasehold.wake_if_due_soon(at timestamptz, now timestamptz) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    IF at <= now + interval '1 second' THEN
        PERFORM leasehold.wake_maintenance(now);
    END IF;
END $$;

-- Count n changes of state in one queue, and wake its sleepers if jobs became pending.
CREATE FUNCTION leasehold.count_change(of_queue text, now timestamptz, act "char", was text, becomes text,
                                n bigint, ms bigint DEFAULT 0, kinds text[] DEFAULT NULL) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO leasehold.delta VALUES (of_queue, now, act, was, becomes, n, ms);
    IF becomes = 'pending' THEN
        PERFORM leasehold.wake_queue(of_queue, now, kinds);
    END IF;
END $$;

CREATE FUNCTION leasehold.event_put(at timestamptz, type text, job bigint, queue text, worker text,
                                    lease text, from_state text, to_state text, actor text,
                                    reason text, token bigint, data text DEFAULT NULL,
                                    attempt integer DEFAULT NULL, max_attempts integer DEFAULT NULL,
                                    action text DEFAULT NULL, report bigint DEFAULT NULL)
RETURNS void LANGUAGE plpgsql
AS $$
DECLARE
    counted boolean := leasehold.changed();
BEGIN
    INSERT INTO leasehold.event(at, type, job, queue, worker, lease, from_state, to_state, actor,
                                reason, token, data, attempt, max_attempts, action, report)
    VALUES (event_put.at, event_put.type, event_put.job, event_put.queue, event_put.worker,
            event_put.lease, event_put.from_state, event_put.to_state, event_put.actor,
            event_put.reason, event_put.token, event_put.data, event_put.attempt,
            event_put.max_attempts, event_put.action, event_put.report);
END $$;

-- ---- formatting ----

-- "3d4h", "5m10s", "250ms": at most two units.
CREATE FUNCTION leasehold.duration_words(ms bigint) RETURNS text LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    names constant text[] := ARRAY['d', 'h', 'm', 's', 'ms'];
    sizes constant bigint[] := ARRAY[86400000, 3600000, 60000, 1000, 1];
    rest  bigint := ms;
    words text := '';
    parts integer := 0;
BEGIN
    IF ms <= 0 THEN
        RETURN '0s';
    END IF;
    FOR i IN 1..5 LOOP
        EXIT WHEN parts = 2 OR (parts > 0 AND (rest < sizes[i] OR sizes[i] = 1));
        IF rest >= sizes[i] THEN
            words := words || (rest / sizes[i])::text || names[i];
            rest := rest % sizes[i];
            parts := parts + 1;
        END IF;
    END LOOP;
    RETURN words;
END $$;

-- RFC 3339 in UTC with milliseconds, like every time in the output.
CREATE FUNCTION leasehold.time_words(at timestamptz) RETURNS text LANGUAGE sql STABLE
RETURN pg_catalog.to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"');
