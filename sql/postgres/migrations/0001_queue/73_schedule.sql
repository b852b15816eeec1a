-- Schedules. Only the library can compute when a schedule is due.

-- What must be known before a schedule is set: the time, and up to when its runs are done.
CREATE FUNCTION leasehold.schedule_before(of_name text, OUT now timestamptz, OUT cron text,
                                          OUT tz text, OUT done_until timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    now := leasehold.clock();
    SELECT s.cron, s.tz, s.done_until INTO cron, tz, done_until
      FROM leasehold.schedule s WHERE s.name = of_name FOR UPDATE;
END $$;

-- Every event of a schedule names it, as text and as data. `more` continues the JSON object.
CREATE FUNCTION leasehold.schedule_event(now timestamptz, type text, of_name text, of_queue text,
                                         actor text, what text, more text, job bigint DEFAULT NULL,
                                         to_state text DEFAULT NULL) RETURNS void LANGUAGE sql
RETURN leasehold.event_put(now, type, job, of_queue, NULL, NULL, NULL, to_state, actor,
                           'schedule ' || of_name || CASE what WHEN '' THEN '' ELSE ': ' || what END,
                           NULL, '{"schedule":"' || of_name || '"' || more || '}');

CREATE FUNCTION leasehold.schedule_put(
    of_name text, of_queue text, of_cron text, of_tz text, of_catch_up bigint,
    of_done_until timestamptz, of_next_at timestamptz, of_kind text, of_priority bigint, of_key text,
    of_max_attempts bigint, of_lease_ms bigint, of_expires_ms bigint, of_backoff_ms bigint,
    of_backoff_cap_ms bigint, of_payload_sum bigint, of_payload text, of_payload_bytes bytea)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    now timestamptz := leasehold.clock();
BEGIN
    PERFORM leasehold.need_name('schedule', of_name), leasehold.need_name('queue', of_queue);
    PERFORM leasehold.need_name('kind', of_kind) WHERE of_kind IS NOT NULL;
    PERFORM leasehold.need_given('cron', of_cron IS NOT NULL), leasehold.need_given('tz', of_tz IS NOT NULL),
            leasehold.need_given('catch_up', of_catch_up IS NOT NULL), leasehold.need_given('next_at', of_next_at IS NOT NULL),
            leasehold.need_given('done_until', of_done_until IS NOT NULL), leasehold.need_given('priority', of_priority IS NOT NULL),
            leasehold.need_given('payload_sum', of_payload_sum IS NOT NULL);
    PERFORM leasehold.need_range('catch_up', of_catch_up, 0, 2), leasehold.need_range('priority', of_priority, -32768, 32767),
            leasehold.need_time('done_until', of_done_until), leasehold.need_time('next_at', of_next_at),
            leasehold.need_key(of_key), leasehold.need_range('max attempts', nullif(of_max_attempts, -1), 1, 1000000),
            leasehold.need_ms('lease', of_lease_ms, 1, 2592000000), leasehold.need_ms('expiry', of_expires_ms, 0, 315360000000),
            leasehold.need_ms('backoff', of_backoff_ms, 0, 315360000000),
            leasehold.need_ms('backoff cap', of_backoff_cap_ms, 0, 315360000000),
            leasehold.need_one_form('payload', of_payload IS NOT NULL AND of_payload_bytes IS NOT NULL);
    PERFORM leasehold.need_size(coalesce(octet_length(of_payload), octet_length(of_payload_bytes)),
                                leasehold.policy_of(of_queue, of_kind));
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
    PERFORM leasehold.wake_if_due_soon(of_next_at, now);
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

-- The schedules that are due, locked, so that one session at a time runs each. As many as have payloads of
-- eight megabytes together, at least one.
CREATE FUNCTION leasehold.schedules_due(most bigint) RETURNS TABLE (now timestamptz, due leasehold.schedule)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    one record;
BEGIN
    PERFORM leasehold.need_range('number of schedules', most, 0, 1000000);
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

-- The same failure is reported only once.
CREATE FUNCTION leasehold.schedule_failed(s leasehold.schedule, why text, now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF why IS DISTINCT FROM s.error THEN
        PERFORM leasehold.log_message('error', format('schedule %s enqueues nothing: %s', s.name, why),
                               queue => s.queue, reason => why);
        PERFORM leasehold.schedule_event(now, 'schedule.failed', s.name, s.queue, 'system/schedule',
                                         why, '');
    END IF;
END $$;

-- Enqueue the job of one run, or return why it cannot be enqueued. If a live job has the schedule's key, the
-- run is skipped and reported.
CREATE FUNCTION leasehold.enqueue_run(s leasehold.schedule, at timestamptz, now timestamptz,
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
                    format('run of %s skipped, job %s with its key is %s', leasehold.time_words(at),
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
        EXIT WHEN FOUND;  -- else another session has just enqueued this key
    END LOOP;
    PERFORM leasehold.count_change(s.queue, now, 'e', NULL, made_state, 1);
    IF p.audit = 2 THEN
        PERFORM leasehold.schedule_event(now, 'job.enqueued', s.name, s.queue, 'system/schedule', '',
                                         ',"instant":"' || leasehold.time_words(at) || '"', job, made_state);
    END IF;
END $$;

-- Advance a schedule and enqueue its jobs. The write compares done_until: of all sessions that saw the schedule
-- due, one advances it, the others get -1. `missed` and `more` describe runs that were late; `why` says why
-- nothing can be enqueued. Returns the number of enqueued jobs.
CREATE FUNCTION leasehold.schedule_run(of_name text, was_until timestamptz, upto timestamptz,
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
    PERFORM leasehold.need_time('upto', upto), leasehold.need_time('next_at', of_next_at);
    UPDATE leasehold.schedule w SET done_until = upto, next_at = of_next_at
     WHERE w.name = of_name AND w.done_until = was_until RETURNING w.* INTO s;
    IF NOT FOUND THEN
        RETURN -1;
    END IF;
    IF missed IS NOT NULL THEN
        PERFORM leasehold.log_message('warn', format('schedule %s: %s', s.name, missed), queue => s.queue,
                               reason => missed);
        PERFORM leasehold.schedule_event(now, 'schedule.missed', s.name, s.queue, 'system/schedule',
                                         missed, more);
    END IF;
    PERFORM leasehold.changed();
    p := leasehold.policy_of(s.queue, s.kind);
    FOREACH at IN ARRAY instants LOOP
        EXIT WHEN why IS NOT NULL;
        SELECT * INTO made FROM leasehold.enqueue_run(s, at, now, p);
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
    PERFORM leasehold.wake_if_due_soon(of_next_at, now);
    RETURN n;
END $$;

-- The schedule is not due yet, or `why` says why its next run cannot be computed. Nothing is done; it is
-- examined again later.
CREATE FUNCTION leasehold.schedule_put_off(of_name text, of_next_at timestamptz, why text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    now timestamptz := leasehold.clock();
    s   leasehold.schedule;
BEGIN
    PERFORM leasehold.need_given('next_at', of_next_at IS NOT NULL), leasehold.need_time('next_at', of_next_at);
    SELECT * INTO s FROM leasehold.schedule w WHERE w.name = of_name FOR UPDATE;
    IF why IS NOT NULL THEN
        PERFORM leasehold.schedule_failed(s, why, now);
    END IF;
    UPDATE leasehold.schedule w SET next_at = of_next_at, error = why WHERE w.name = of_name;
    PERFORM leasehold.changed();
END $$;
