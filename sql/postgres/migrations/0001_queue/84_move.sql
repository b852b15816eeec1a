-- Moving the store (`leasehold move`): the part that this store has in a move, and the triggers that close it
-- meanwhile. The library reads and writes the rows in the order of their keys.

CREATE TABLE leasehold.move (
    one   boolean PRIMARY KEY DEFAULT true CHECK (one),
    part  text NOT NULL CHECK (part IN ('source', 'gone', 'target', 'filled')),
    id    text NOT NULL,   -- id of the move
    other text NOT NULL,   -- the other store: its uuid ...
    url   text NOT NULL    -- ... and its URL, for messages
);

-- Why only a move may write to this store; NULL: every act may.
CREATE FUNCTION leasehold.closed_words() RETURNS text LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT CASE part
           WHEN 'source' THEN pg_catalog.format(
               'store "%s" is being moved to "%s": nothing can change here',
               pg_catalog.current_database(), url)
           WHEN 'gone' THEN pg_catalog.format('store "%s" was moved to "%s": go on there',
               pg_catalog.current_database(), url)
           WHEN 'target' THEN pg_catalog.format(
               'store "%s" is being filled from "%s": "leasehold move" finishes it',
               pg_catalog.current_database(), url) END
      FROM leasehold.move WHERE one;
END;

-- While the store is closed, every table that acts write to has this trigger; at other times it has none and
-- costs nothing. The creation of the trigger waits for transactions that are writing.
CREATE FUNCTION leasehold.closed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving text := nullif(current_setting('leasehold.moving', true), '');
BEGIN
    -- A snapshot from before the store was closed (REPEATABLE READ) shows no move: such a transaction is
    -- refused, too.
    IF moving IS NULL OR moving IS DISTINCT FROM (SELECT id FROM leasehold.move WHERE one) THEN
        PERFORM leasehold.refuse(-14, coalesce(leasehold.closed_words(), format(
            'store "%s" has part in a move: nothing can change here', current_database())));
    END IF;
    RETURN NULL;
END $$;

-- Close or open the store. The lock is exclusive, so no transaction is writing or about to write.
CREATE FUNCTION leasehold.move_triggers(shut boolean) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    door text;
BEGIN
    FOREACH door IN ARRAY ARRAY['job', 'quarantine', 'queue', 'delta', 'rollup', 'policy', 'scope', 'schedule',
                                'lease', 'worker', 'event', 'request', 'report', 'total', 'output'] LOOP
        EXECUTE pg_catalog.format('LOCK TABLE leasehold.%I IN EXCLUSIVE MODE', door);
        EXECUTE pg_catalog.format('DROP TRIGGER IF EXISTS closed ON leasehold.%I', door);
        IF shut THEN
            EXECUTE pg_catalog.format('CREATE TRIGGER closed BEFORE INSERT OR UPDATE OR DELETE '
                'ON leasehold.%I FOR EACH STATEMENT EXECUTE FUNCTION leasehold.closed()', door);
        END IF;
    END LOOP;
END $$;

-- Does this store have this part in this move? If so, its rows may be written until the end of the transaction.
CREATE FUNCTION leasehold.move_need(of_part text, of_id text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM leasehold.move m WHERE m.part = of_part AND m.id = of_id) THEN
        PERFORM leasehold.refuse(-6, pg_catalog.format(
            'store "%s" has no part in this move any more', pg_catalog.current_database()));
    END IF;
    PERFORM pg_catalog.set_config('leasehold.moving', of_id, true);
END $$;

CREATE FUNCTION leasehold.move_set(of_part text, of_id text, of_other text, of_url text) RETURNS void
LANGUAGE sql VOLATILE
BEGIN ATOMIC
    INSERT INTO leasehold.move AS m (part, id, other, url) VALUES (of_part, of_id, of_other, of_url)
        ON CONFLICT (one) DO UPDATE
       SET part = excluded.part, id = excluded.id, other = excluded.other, url = excluded.url;
END;

-- Was the store never used: no job ever had an id, and nothing was configured?
CREATE FUNCTION leasehold.move_empty() RETURNS boolean LANGUAGE sql STABLE
RETURN pg_catalog.pg_sequence_last_value(
           pg_catalog.pg_get_serial_sequence('leasehold.job', 'id')::regclass) IS NULL
   AND NOT EXISTS (SELECT 1 FROM leasehold.job) AND NOT EXISTS (SELECT 1 FROM leasehold.policy)
   AND NOT EXISTS (SELECT 1 FROM leasehold.scope) AND NOT EXISTS (SELECT 1 FROM leasehold.schedule)
   AND NOT EXISTS (SELECT 1 FROM leasehold.lease) AND NOT EXISTS (SELECT 1 FROM leasehold.request);

-- The source: no job may be running. The deltas are folded, so that all counts are in one place.
CREATE FUNCTION leasehold.move_close(of_id text, of_other text, of_url text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    n    bigint;
    last timestamptz;
BEGIN
    PERFORM pg_catalog.set_config('leasehold.moving', of_id, true);
    PERFORM leasehold.move_triggers(true);
    IF EXISTS (SELECT 1 FROM leasehold.move m WHERE m.part <> 'filled') THEN
        PERFORM leasehold.refuse(-6, pg_catalog.format('store "%s" takes part in another move',
                                                       pg_catalog.current_database()));
    END IF;
    SELECT count(*), max(lease_until) INTO n, last FROM leasehold.job WHERE state = 'running';
    IF n > 0 THEN
        PERFORM leasehold.refuse(-6, pg_catalog.format(
            '%s job%s running in store "%s": stop the workers, or wait for the leases to end (%s)',
            n, CASE n WHEN 1 THEN ' is' ELSE 's are' END, pg_catalog.current_database(),
            leasehold.time_words(last)));
    END IF;
    PERFORM leasehold.move_set('source', of_id, of_other, of_url);
    WHILE EXISTS (SELECT 1 FROM leasehold.delta d WHERE d.act <> 'n') OR EXISTS (SELECT 1 FROM leasehold.change) LOOP
        PERFORM leasehold.fold(10000);
    END LOOP;
    PERFORM leasehold.fold_totals();
END $$;

-- The target: empty, or half of a move from the same source, which continues unless it is to start again.
CREATE FUNCTION leasehold.move_prepare(of_id text, of_other text, of_url text, anew boolean)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    m    leasehold.move;
    half boolean;
BEGIN
    SELECT * INTO m FROM leasehold.move FOR UPDATE;
    half := m.part = 'target' AND m.other = of_other;
    IF half AND m.id = of_id AND NOT anew THEN
        RETURN;
    END IF;
    PERFORM leasehold.move_triggers(true);
    IF NOT coalesce(half, false)
       AND (coalesce(m.part, 'filled') <> 'filled' OR NOT leasehold.move_empty()) THEN
        PERFORM leasehold.refuse(-6, pg_catalog.format(
            'store "%s" is not empty: a store is moved into a new one', pg_catalog.current_database()));
    END IF;
    TRUNCATE leasehold.job, leasehold.quarantine, leasehold.queue, leasehold.delta, leasehold.change, leasehold.rollup,
             leasehold.policy, leasehold.scope, leasehold.schedule, leasehold.lease, leasehold.event,
             leasehold.request, leasehold.produced, leasehold.report, leasehold.total, leasehold.claim_floor, leasehold.output;
    PERFORM leasehold.move_set('target', of_id, of_other, of_url);
END $$;

-- The source: everything has been moved.
CREATE FUNCTION leasehold.move_leave(of_id text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM leasehold.move_need('source', of_id);
    UPDATE leasehold.move SET part = 'gone';
END $$;

-- The source: the move is abandoned.
CREATE FUNCTION leasehold.move_reopen(of_id text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM leasehold.move_need('source', of_id);
    DELETE FROM leasehold.move;
    PERFORM leasehold.move_triggers(false);
END $$;

-- An id is never used again.
CREATE FUNCTION leasehold.move_id(of_table text, last bigint) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    seq  regclass := pg_catalog.pg_get_serial_sequence('leasehold.' || of_table, 'id')::regclass;
    high bigint := greatest(pg_catalog.pg_sequence_last_value(seq), last);
BEGIN
    IF high > 0 THEN
        PERFORM pg_catalog.setval(seq, high);
    END IF;
END $$;

-- The target: ids and epoch continue from the source's, and the store is open.
CREATE FUNCTION leasehold.move_finish(of_id text, of_url text, epoch bigint, last_job bigint,
                                      last_event bigint, last_report bigint) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    now timestamptz := leasehold.clock();
    m   leasehold.meta;
BEGIN
    PERFORM leasehold.move_need('target', of_id);
    PERFORM leasehold.move_id('job', last_job);
    PERFORM leasehold.move_id('event', last_event);
    PERFORM leasehold.move_id('report', last_report);
    SELECT * INTO m FROM leasehold.meta FOR UPDATE;
    IF greatest(m.epoch, move_finish.epoch) >= 8191 THEN
        PERFORM leasehold.refuse(-1, 'the 8191 epochs are used up');
    END IF;
    UPDATE leasehold.meta t
       SET epoch = greatest(t.epoch, move_finish.epoch) + 1,
           first_token = leasehold.first_token_of(greatest(t.epoch, move_finish.epoch) + 1), generation = t.generation + 1,
           has_policies = EXISTS (SELECT 1 FROM leasehold.policy),
           has_paused = EXISTS (SELECT 1 FROM leasehold.queue WHERE paused)
    RETURNING * INTO m;
    UPDATE leasehold.move SET part = 'filled';
    PERFORM leasehold.event_put(now, 'store.moved', NULL, NULL, NULL, NULL, NULL, NULL, 'move',
        pg_catalog.format('moved from "%s"', of_url), NULL,
        pg_catalog.format('{"epoch":%s,"last_job":%s}', m.epoch, last_job));
    PERFORM leasehold.wake_queue(q.queue, now) FROM leasehold.queue q WHERE q.pending > 0;
    PERFORM leasehold.move_triggers(false);
END $$;

-- The state of this store, as a move needs it.
CREATE FUNCTION leasehold.move_look(OUT uuid text, OUT epoch bigint, OUT part text, OUT id text,
                                    OUT other text, OUT last_job bigint, OUT last_event bigint,
                                    OUT last_report bigint, OUT empty boolean, OUT n bigint)
LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT m.uuid::text, m.epoch, v.part, v.id, v.other,
           pg_sequence_last_value(pg_get_serial_sequence('leasehold.job', 'id')::regclass),
           pg_sequence_last_value(pg_get_serial_sequence('leasehold.event', 'id')::regclass),
           pg_sequence_last_value(pg_get_serial_sequence('leasehold.report', 'id')::regclass),
           leasehold.move_empty(),
           (SELECT count(*) FROM leasehold.job) + (SELECT count(*) FROM leasehold.event)
           + (SELECT count(*) FROM leasehold.rollup) + (SELECT count(*) FROM leasehold.request r WHERE r.producer = 0)
           + (SELECT count(*) FROM leasehold.lease) + (SELECT count(*) FROM leasehold.report)
           + (SELECT count(*) FROM leasehold.output)
      FROM leasehold.meta m LEFT JOIN leasehold.move v ON true;
END;
