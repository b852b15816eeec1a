-- The store as a whole, as the library sees it: its version, and subscriptions to wake-ups.

-- Every version of the library calls this on every version of the schema: it may only be extended.
CREATE FUNCTION leasehold.about(OUT schema_version integer, OUT recovery_due boolean,
                                OUT last_job bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- After a restore from a dump, the first write takes care of it before anything else.
    SELECT m.schema_version, m.recovery_due OR m.job_oid <> 'leasehold.job'::regclass OR NOT leasehold.has_not_crashed()
           OR m.system_id <> (SELECT c.system_identifier FROM pg_control_system() c)
      INTO schema_version, recovery_due FROM leasehold.meta m;
    last_job := pg_sequence_last_value(pg_get_serial_sequence('leasehold.job', 'id'));
END $$;

-- Jobs as they are now, in the given order.
CREATE FUNCTION leasehold.jobs_of(ids bigint[]) RETURNS SETOF leasehold.job
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off
AS $$
BEGIN
    RETURN QUERY
        SELECT j.* FROM unnest(ids) WITH ORDINALITY i(id, n)
          JOIN leasehold.job j ON j.id = ANY (ids) AND j.id = i.id
         ORDER BY i.n;
END $$;

-- Subscribe to wake-ups for these queues: the next job that becomes pending there notifies
-- (leasehold.wake_queue). True: poll once more, because a job that came between the caller's last poll and this
-- call has notified nobody. If others already subscribed, nothing is written, so hundreds of sleepers cost
-- nothing. A row that is locked is being woken, and its session notifies.
--
-- leasehold.meta says that there are sleepers at all, so that an enqueue of one job need not search for them
-- while all workers are busy. If another session has locked that row, the caller does not wait: then the
-- maintenance leader wakes the sleepers (wake_missed).
CREATE FUNCTION leasehold.subscribe(queues text[]) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    now     timestamptz := leasehold.clock();
    known   boolean := queues = '{!}'
                       OR (SELECT m.sleepers_until > now + interval '5 minutes' FROM leasehold.meta m WHERE m.one);
    n_added bigint;
    n_armed bigint;
BEGIN
    PERFORM leasehold.need_list('queue', queues);
    PERFORM leasehold.need_names('queue', ARRAY(SELECT split_part(q, '/', 1) FROM unnest(queues) q WHERE q <> '!'));
    PERFORM leasehold.need_name('kind', substr(q, strpos(q, '/') + 1)) FROM unnest(queues) q WHERE strpos(q, '/') > 0;
    IF known AND NOT EXISTS (SELECT 1 FROM unnest(queues) q(queue)
                              WHERE NOT EXISTS (SELECT 1 FROM leasehold.sleeper i
                                                 WHERE i.queue = q.queue AND i.asleep
                                                   AND i.until > now + interval '30 seconds')) THEN
        RETURN false;
    END IF;
    INSERT INTO leasehold.sleeper AS i (queue, asleep, until)
    SELECT DISTINCT q.queue, true, now + interval '1 minute' FROM unnest(queues) q(queue)
     WHERE NOT EXISTS (SELECT 1 FROM leasehold.sleeper o WHERE o.queue = q.queue)
     ORDER BY q.queue
    ON CONFLICT (queue) DO NOTHING;
    GET DIAGNOSTICS n_added = ROW_COUNT;
    UPDATE leasehold.sleeper i SET asleep = true, until = now + interval '1 minute'
     WHERE i.queue IN (SELECT s.queue FROM leasehold.sleeper s
                        WHERE s.queue = ANY(queues)
                          AND NOT (s.asleep AND s.until > now + interval '30 seconds')
                        ORDER BY s.queue FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS n_armed = ROW_COUNT;
    IF NOT known THEN
        UPDATE leasehold.meta m SET sleepers_until = now + interval '10 minutes'
         WHERE m.one = (SELECT s.one FROM leasehold.meta s WHERE s.one FOR UPDATE SKIP LOCKED);
    END IF;
    RETURN n_added + n_armed > 0 OR NOT known;
END $$;
