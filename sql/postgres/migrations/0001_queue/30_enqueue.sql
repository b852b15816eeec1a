-- Enqueue: by plain INSERT, by function, many at once. A call with a request id happens once.

-- ---- producers: roles that enqueue, and may not read the jobs ----

-- Is the caller a producer? The login role counts, because the functions run as their owner.
CREATE FUNCTION leasehold.is_producer() RETURNS boolean LANGUAGE sql STABLE
RETURN NOT has_table_privilege(session_user, 'leasehold.job'::regclass, 'SELECT');

-- The server for which an oid is valid.
CREATE FUNCTION leasehold.this_system() RETURNS bigint LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN (SELECT c.system_identifier FROM pg_catalog.pg_control_system() c);
END $$;

-- Is this the row of the calling role?
CREATE FUNCTION leasehold.is_caller(p leasehold.producer, this_system bigint) RETURNS boolean LANGUAGE sql STABLE
RETURN CASE p.system_id WHEN this_system
            THEN p.role = (SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolname = session_user)
            ELSE p.role IS NOT NULL AND p.name = session_user END;

-- Store the current names of the roles, and which of them were dropped. A dump carries these names to another
-- server.
CREATE FUNCTION leasehold.update_producers() RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE leasehold.producer p
       SET name = coalesce(s.rolname, p.name), role = s.oid
      FROM (SELECT w.id, r.oid, r.rolname FROM leasehold.producer w LEFT JOIN pg_catalog.pg_roles r ON r.oid = w.role
             WHERE w.system_id = leasehold.this_system() AND w.role IS NOT NULL
               AND (r.oid IS NULL OR r.rolname <> w.name)
               FOR UPDATE OF w SKIP LOCKED) s
     WHERE p.id = s.id;
END $$;

-- The number of the calling producer; 0: the caller may read all jobs. The first enqueue of a producer creates
-- its row.
CREATE FUNCTION leasehold.producer_of_caller() RETURNS integer LANGUAGE plpgsql
AS $$
DECLARE
    this  bigint;
    found_id integer;
BEGIN
    IF NOT leasehold.is_producer() THEN
        RETURN 0;
    END IF;
    this := leasehold.this_system();
    SELECT p.id INTO found_id FROM leasehold.producer p
     WHERE p.system_id = this AND p.role = (SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolname = session_user);
    IF found_id IS NOT NULL THEN
        RETURN found_id;
    END IF;
    PERFORM leasehold.update_producers();
    UPDATE leasehold.producer p  -- the row came with a dump
       SET system_id = this, role = (SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolname = session_user)
     WHERE p.id = (SELECT min(w.id) FROM leasehold.producer w WHERE leasehold.is_caller(w, this))
    RETURNING p.id INTO found_id;
    IF found_id IS NULL THEN
        INSERT INTO leasehold.producer(role, system_id, name)
        SELECT r.oid, this, r.rolname FROM pg_catalog.pg_roles r WHERE r.rolname = session_user
            ON CONFLICT (system_id, role) DO UPDATE SET name = excluded.name
        RETURNING id INTO found_id;
    END IF;
    RETURN found_id;
END $$;

-- Did the calling producer enqueue this job?
CREATE FUNCTION leasehold.is_callers_job(of_job bigint) RETURNS boolean LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN EXISTS (SELECT 1 FROM leasehold.produced p JOIN leasehold.producer w ON w.id = p.producer
                    WHERE p.job = of_job AND leasehold.is_caller(w, leasehold.this_system()));
END $$;

-- State of a job, and its result or last error once it has ended. A role that may not read the jobs sees only
-- its own; for that role, other jobs do not exist.
CREATE FUNCTION leasehold.result(job bigint, OUT id bigint, OUT state text, OUT attempt integer, OUT result text,
                                 OUT result_bytes bytea, OUT last_error text, OUT finished_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM leasehold.need_given('job', job IS NOT NULL);
    SELECT j.id, j.state, j.attempt, j.result, j.result_bytes, j.last_error, j.finished_at
      INTO id, state, attempt, result, result_bytes, last_error, finished_at
      FROM leasehold.job j
     WHERE j.id = result.job
       AND (NOT leasehold.is_producer()
            OR leasehold.is_callers_job(j.id));
    IF NOT FOUND THEN
        PERFORM leasehold.refuse(-5, format('there is no job %s', job));
    END IF;
END $$;

-- ---- plain INSERT ----

-- Fill in what a plain INSERT cannot. The functions below do this once per call, and set plain = false.
CREATE FUNCTION leasehold.inserting() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    bytes bigint := coalesce(octet_length(NEW.payload), octet_length(NEW.payload_bytes));
BEGIN
    PERFORM leasehold.need_name('queue', NEW.queue);
    IF NEW.kind IS NOT NULL THEN
        PERFORM leasehold.need_name('kind', NEW.kind);
    END IF;
    PERFORM leasehold.need_given('priority', NEW.priority IS NOT NULL);
    PERFORM leasehold.need_range('priority', NEW.priority, -32768, 32767);
    PERFORM leasehold.need_time('run_at', NEW.run_at);
    PERFORM leasehold.need_time('expires_at', NEW.expires_at);
    PERFORM leasehold.need_ms('lease_ms', NEW.lease_ms, 1, 2592000000);
    PERFORM leasehold.need_ms('backoff_ms', NEW.backoff_ms, 0, 315360000000);
    PERFORM leasehold.need_ms('backoff_cap_ms', NEW.backoff_cap_ms, 0, 315360000000);
    PERFORM leasehold.need_key(NEW.key);
    PERFORM leasehold.need_one_form('payload', NEW.payload IS NOT NULL AND NEW.payload_bytes IS NOT NULL);
    IF NEW.max_attempts <> -1 THEN
        PERFORM leasehold.need_range('max_attempts', NEW.max_attempts, 1, 1000000);
    END IF;
    IF NEW.state <> 'pending' AND (NEW.state <> 'scheduled' OR NEW.run_at IS NULL) THEN
        PERFORM leasehold.refuse(-3, 'a new job is pending, or scheduled with a run_at');
    ELSIF NEW.token <> 0 OR NEW.attempt <> 0 OR NEW.recoveries <> 0 THEN
        PERFORM leasehold.refuse(-3, 'a new job has no token, attempts or recoveries');
    ELSIF bytes > $[max_payload] OR (SELECT m.has_policies FROM leasehold.meta m WHERE m.one) THEN
        PERFORM leasehold.need_size(bytes, leasehold.policy_of(NEW.queue, NEW.kind));
    END IF;
    NEW.again := false;
    IF NEW.run_at > leasehold.clock() THEN
        NEW.state := 'scheduled';
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION leasehold.inserted() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    now timestamptz := leasehold.clock();
BEGIN
    PERFORM leasehold.count_change(NEW.queue, now, 'e', NULL, NEW.state, 1, kinds => ARRAY[NEW.kind]);
    IF NEW.state = 'scheduled' THEN
        PERFORM leasehold.wake_if_due_soon(NEW.run_at, now);
    END IF;
    IF leasehold.is_producer() THEN
        INSERT INTO leasehold.produced VALUES (NEW.id, leasehold.producer_of_caller());
    END IF;
    IF (SELECT has_policies FROM leasehold.meta)
       AND (leasehold.policy_of(NEW.queue, NEW.kind)).audit = 2 THEN
        PERFORM leasehold.event_put(now, 'job.enqueued', NEW.id, NEW.queue, NULL, NULL, NULL,
                                    NEW.state, 'sql', NULL, NULL);
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER job_inserting BEFORE INSERT ON leasehold.job
   FOR EACH ROW WHEN (NEW.plain) EXECUTE FUNCTION leasehold.inserting();
-- An AFTER trigger, so that a row that ON CONFLICT skips is not counted.
CREATE TRIGGER job_inserted AFTER INSERT ON leasehold.job
   FOR EACH ROW WHEN (NEW.plain) EXECUTE FUNCTION leasehold.inserted();

-- ---- request ids: a repeated call gets the same jobs ----

CREATE TYPE leasehold.enqueued AS (id bigint, state text, duplicate boolean);

-- The library made this request id after it lost an answer. lh:NONCE:AFTER names the nonce of the jobs, and an
-- id that all of them are above. A producer finds only its own jobs.
CREATE FUNCTION leasehold.jobs_of_nonce(request text, of_producer integer) RETURNS bigint[] LANGUAGE plpgsql STABLE
AS $$
DECLARE
    -- The lower bound is known when the query is planned, so the plan reads only the end of the table.
    of_nonce bigint := split_part(request, ':', 2);
    after_id bigint := split_part(request, ':', 3);
BEGIN
    RETURN (SELECT array_agg(j.id ORDER BY j.id) FROM leasehold.job j
             WHERE j.id > after_id AND j.nonce = of_nonce
               AND (of_producer = 0 OR EXISTS (SELECT 1 FROM leasehold.produced p
                                                WHERE p.job = j.id AND p.producer = of_producer)));
END $$;

-- A nonce is used once. The enqueue inserts it with its count; a later call with the request id inserts it,
-- too. The second of the two waits for the first to end, by the unique index, which no other role can lock. The
-- row of the later call stays for a day, so that the enqueue is refused if it arrives after that call.
CREATE FUNCTION leasehold.use_nonce(of_queue text, of_nonce bigint, now timestamptz, act "char") RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO leasehold.delta(queue, at, act, n, nonce) VALUES (of_queue, now, use_nonce.act, 0, of_nonce)
        ON CONFLICT DO NOTHING;
    RETURN FOUND;
END $$;

-- If this call was made before: its jobs, in order. No rows: the call is new, and its request id is now taken;
-- another call with the same id waits until this transaction ends. A job with the caller's own nonce is no
-- duplicate: the caller itself made it, and gets the answer only now.
CREATE FUNCTION leasehold.repeat_enqueue(of_request text, of_queue text, of_nonce bigint, n bigint,
                                         now timestamptz, of_producer integer)
RETURNS SETOF leasehold.enqueued LANGUAGE plpgsql
AS $$
DECLARE
    r     leasehold.request;
    found_jobs bigint[];
BEGIN
    INSERT INTO leasehold.request VALUES (of_request, 'enqueue', now, '{}', '{}', of_producer) ON CONFLICT DO NOTHING;
    IF FOUND THEN
        IF of_request !~ '^lh:[0-9]{1,19}:[0-9]{1,18}$' OR split_part(of_request, ':', 2)::numeric > 9223372036854775807 THEN
            RETURN;
        END IF;
        -- The first try may still be running without its client: wait for its end before the check.
        IF current_setting('transaction_isolation') <> 'read committed' THEN
            PERFORM leasehold.refuse(-3, format(
                'request "%s" is looked for under the isolation level read committed, not %s', of_request,
                current_setting('transaction_isolation')));
        END IF;
        PERFORM leasehold.use_nonce(of_queue, split_part(of_request, ':', 2)::bigint, now, 'n');
        found_jobs := leasehold.jobs_of_nonce(of_request, of_producer);
        IF found_jobs IS NULL OR cardinality(found_jobs) <> n THEN
            RETURN;
        END IF;
        UPDATE leasehold.request w SET jobs = found_jobs WHERE w.request = of_request AND w.producer = of_producer;
    END IF;
    SELECT * INTO r FROM leasehold.request w WHERE w.request = of_request AND w.producer = of_producer;
    IF r.act <> 'enqueue' THEN
        PERFORM leasehold.refuse(-3, format('request "%s" was used by another act before: %s',
                                            left(of_request, 96), r.act));
    ELSIF cardinality(r.jobs) <> n THEN
        PERFORM leasehold.refuse(-3, format('request "%s" was made before with %s jobs, now with %s',
                                            left(of_request, 96), cardinality(r.jobs), n));
    ELSIF EXISTS (SELECT 1 FROM leasehold.job j WHERE j.id = ANY (r.jobs) AND j.queue <> of_queue) THEN
        PERFORM leasehold.refuse(-3, format('request "%s" was made before for another queue',
                                            left(of_request, 96)));
    END IF;
    -- Without a state: the job was pruned, so it ended long ago. Without an id: the job belongs to another role
    -- and is not shown.
    RETURN QUERY
        SELECT w.id, coalesce(j.state, CASE WHEN w.id IS NOT NULL THEN 'completed' END), coalesce(j.nonce <> of_nonce, true)
          FROM unnest(r.jobs) WITH ORDINALITY w(id, ord)
          LEFT JOIN leasehold.job j ON j.id = ANY (r.jobs) AND j.id = w.id
         ORDER BY w.ord;
END $$;

-- ---- one job with a key ----

-- The live job with this key in the queue, if there is one.
CREATE FUNCTION leasehold.job_of_key(of_queue text, of_key text) RETURNS leasehold.enqueued
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET jit = off
AS $$
DECLARE
    found_job leasehold.enqueued;
BEGIN
    SELECT j.id, j.state, true INTO found_job FROM leasehold.job j
     WHERE j.queue = of_queue AND j.key = of_key
       AND (j.state = 'pending' OR j.state = 'running' OR j.state = 'scheduled');
    RETURN found_job;
END $$;

CREATE FUNCTION leasehold.need_size(bytes bigint, p leasehold.policy) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    IF bytes > p.max_payload THEN
        PERFORM leasehold.refuse(-4, format('payload of %s bytes is too large: queue "%s" takes at most %s bytes',
                                            bytes, p.queue, p.max_payload));
    END IF;
END $$;

-- ---- several jobs ----

-- Refuse values that no claim could handle: they would stop the queue.
CREATE FUNCTION leasehold.need_jobs(kinds text[], keys text[], priorities bigint[], max_attempts bigint[],
                                    leases_ms bigint[], expires_ms bigint[], backoffs_ms bigint[],
                                    backoff_caps_ms bigint[], delays_ms bigint[]) RETURNS void LANGUAGE plpgsql
AS $$
DECLARE
    longest constant bigint := 315360000000;
BEGIN
    PERFORM leasehold.need_name('kind', k) FROM unnest(kinds) k WHERE k IS NOT NULL;
    PERFORM leasehold.need_key(k) FROM unnest(keys) k WHERE k IS NOT NULL;
    PERFORM leasehold.need_ranges('priority', priorities, -32768, 32767);
    PERFORM leasehold.need_ranges('max attempts', array_remove(max_attempts, -1), 1, 1000000);
    PERFORM leasehold.need_all_ms('lease', leases_ms, 1, 2592000000);
    PERFORM leasehold.need_all_ms('expiry', expires_ms, 0, longest);
    PERFORM leasehold.need_all_ms('backoff', backoffs_ms, 0, longest);
    PERFORM leasehold.need_all_ms('backoff cap', backoff_caps_ms, 0, longest);
    PERFORM leasehold.need_all_ms('delay', delays_ms, 0, longest);
END $$;

-- Enqueue all jobs or none, in one queue; the answers are in the given order. The arrays are parallel. An array
-- that is NULL is not given, but `sums` has one element per job (NULL: no checksum). `nonce` lets the caller
-- find the jobs if the answer gets lost. A producer does not see a job of another role that has the key: it
-- learns only that there is one (id and state are NULL).
CREATE FUNCTION leasehold.enqueue_many(
    of_queue text, sums bigint[], payloads text[], payloads_bytes bytea[] DEFAULT NULL,
    kinds text[] DEFAULT NULL, priorities bigint[] DEFAULT NULL,
    run_ats timestamptz[] DEFAULT NULL, delays_ms bigint[] DEFAULT NULL,
    keys text[] DEFAULT NULL, max_attempts bigint[] DEFAULT NULL, leases_ms bigint[] DEFAULT NULL,
    expires_ms bigint[] DEFAULT NULL, backoffs_ms bigint[] DEFAULT NULL,
    backoff_caps_ms bigint[] DEFAULT NULL, of_request text DEFAULT NULL,
    of_nonce bigint DEFAULT NULL, of_actor text DEFAULT 'sql')
RETURNS SETOF leasehold.enqueued
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off
AS $$
DECLARE
    now    timestamptz := leasehold.clock();
    n      constant bigint := cardinality(sums);
    ruled  boolean;
    rings  boolean;
    told   boolean := false;
    most   bigint := $[max_payload];
    tries  integer := 3;
    plainly boolean := false;
    p      leasehold.policy;
    made   leasehold.enqueued;
    asked  record;
    at     timestamptz;
    waits  bigint := 0;
    soonest timestamptz;
    goes   bigint := 0;
    ids    bigint[] := '{}';
    mine   bigint[] := '{}';
    of_producer constant integer := CASE WHEN leasehold.is_producer() THEN leasehold.producer_of_caller() ELSE 0 END;
    produces constant boolean := of_producer > 0;
BEGIN
    PERFORM leasehold.need_name('queue', of_queue);
    PERFORM leasehold.need_given('number of jobs', n > 0);
    PERFORM leasehold.need_same_length(n::integer, array_dims(sums), array_dims(payloads), array_dims(payloads_bytes), array_dims(kinds),
        array_dims(priorities), array_dims(run_ats), array_dims(delays_ms), array_dims(keys),
        array_dims(max_attempts), array_dims(leases_ms), array_dims(expires_ms), array_dims(backoffs_ms),
        array_dims(backoff_caps_ms));
    IF of_actor NOT IN ('sql', 'library') THEN
        PERFORM leasehold.refuse(-3, format('actor "%s" is not known: sql or library is allowed', left(of_actor, 140)));
    END IF;
    IF coalesce(keys, kinds) IS NOT NULL
       OR coalesce(priorities, max_attempts, leases_ms, expires_ms, backoffs_ms, backoff_caps_ms, delays_ms) IS NOT NULL THEN
        PERFORM leasehold.need_jobs(kinds, keys, priorities, max_attempts, leases_ms, expires_ms, backoffs_ms,
                                    backoff_caps_ms, delays_ms);
    END IF;
    IF of_nonce IS NOT NULL AND of_request IS NULL AND NOT leasehold.use_nonce(of_queue, of_nonce, now, 'o') THEN
        PERFORM leasehold.refuse(-11, 'store is busy: another call has used this nonce');
    END IF;
    IF of_request IS NOT NULL THEN
        PERFORM leasehold.need_request(of_request);
        RETURN QUERY SELECT * FROM leasehold.repeat_enqueue(of_request, of_queue, of_nonce, n, now, of_producer);
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    SELECT m.has_policies, EXISTS (SELECT 1 FROM leasehold.sleeper i WHERE i.queue = of_queue AND i.asleep)
           OR (kinds IS NOT NULL AND EXISTS (SELECT 1 FROM leasehold.sleeper i
                                              WHERE i.queue > of_queue || '/' AND i.queue < of_queue || '0' AND i.asleep))
      INTO ruled, rings FROM leasehold.meta m;
    IF ruled AND kinds IS NULL THEN
        p := leasehold.policy_of(of_queue, NULL);
        told := p.audit = 2;
        most := p.max_payload;
        tries := p.max_attempts;
    END IF;
    -- The common cases have a statement each, because every expression costs: one job, and several jobs that
    -- need no check of their own.
    IF (NOT ruled OR (kinds IS NULL AND NOT told)) AND NOT produces AND keys IS NULL AND run_ats IS NULL AND delays_ms IS NULL AND of_request IS NULL
       AND payloads_bytes IS NULL
       AND (octet_length(payloads[1]) <= most OR payloads[1] IS NULL) THEN
        IF n = 1 AND kinds IS NULL AND priorities IS NULL AND max_attempts IS NULL AND leases_ms IS NULL
           AND expires_ms IS NULL AND backoffs_ms IS NULL AND backoff_caps_ms IS NULL THEN
            INSERT INTO leasehold.job(queue, max_attempts, created_at, state_changed_at, payload_sum,
                                      payload, nonce, plain)
            VALUES (of_queue, tries, now, now, sums[1], payloads[1], of_nonce, false)
            RETURNING job.id, 'pending', false INTO made;
            RETURN NEXT made;
            plainly := true;
        ELSIF n = 1 OR (SELECT max(octet_length(x)) FROM unnest(payloads) x) <= most THEN
            RETURN QUERY
                INSERT INTO leasehold.job(queue, kind, priority, max_attempts, created_at,
                                          state_changed_at, expires_at, lease_ms, backoff_ms,
                                          backoff_cap_ms, payload_sum, payload, nonce, plain)
                SELECT of_queue, u.kind, coalesce(u.priority, 0), coalesce(u.attempts, tries), now,
                       now, now + u.expires * interval '1 millisecond', u.lease, u.backoff, u.cap,
                       u.sum, u.payload, of_nonce, false
                  FROM unnest(sums, payloads, kinds, priorities, max_attempts, expires_ms, leases_ms,
                              backoffs_ms, backoff_caps_ms)
                       AS u(sum, payload, kind, priority, attempts, expires, lease, backoff, cap)
                RETURNING job.id, job.state, false;
            plainly := true;
        END IF;
    END IF;
    IF plainly THEN
        INSERT INTO leasehold.delta VALUES (of_queue, now, 'e', NULL, 'pending', n);
        IF rings THEN
            PERFORM leasehold.wake_queue(of_queue, now, coalesce(kinds, '{}'));
        END IF;
        RETURN;
    END IF;

    p := leasehold.policy_of(of_queue, NULL);
    FOR asked IN
        SELECT * FROM unnest(sums, payloads, payloads_bytes, kinds, priorities, run_ats, delays_ms,
                             keys, max_attempts, leases_ms, expires_ms, backoffs_ms, backoff_caps_ms)
               AS u(sum, payload, bytes, kind, priority, run_at, delay, key, attempts, lease, expires,
                    backoff, cap)
    LOOP
        IF ruled AND asked.kind IS NOT NULL THEN
            p := leasehold.policy_of(of_queue, asked.kind);
        ELSIF ruled AND p.kind <> '*' THEN
            p := leasehold.policy_of(of_queue, NULL);
        END IF;
        PERFORM leasehold.need_time('time to run at', asked.run_at);
        PERFORM leasehold.need_one_form('payload', asked.payload IS NOT NULL AND asked.bytes IS NOT NULL);
        PERFORM leasehold.refuse(-3, 'a job has a delay or a time to run at, not both')
          WHERE asked.run_at IS NOT NULL AND asked.delay > 0;
        at := coalesce(asked.run_at, now + nullif(asked.delay, 0) * interval '1 millisecond');
        LOOP
            IF asked.key IS NOT NULL THEN
                made := leasehold.job_of_key(of_queue, asked.key);
                EXIT WHEN made.id IS NOT NULL;
            END IF;
            PERFORM leasehold.need_size(coalesce(octet_length(asked.payload), octet_length(asked.bytes)), p);
            INSERT INTO leasehold.job(queue, kind, state, priority, max_attempts, run_at, created_at,
                                      state_changed_at, key, expires_at, lease_ms, backoff_ms,
                                      backoff_cap_ms, payload_sum, payload, payload_bytes, nonce, plain)
            VALUES (of_queue, asked.kind, CASE WHEN at > now THEN 'scheduled' ELSE 'pending' END,
                    coalesce(asked.priority, 0), coalesce(asked.attempts, p.max_attempts), at, now, now,
                    asked.key, now + asked.expires * interval '1 millisecond', asked.lease, asked.backoff,
                    asked.cap, asked.sum, asked.payload, asked.bytes, of_nonce, false)
                ON CONFLICT (queue, key) WHERE key IS NOT NULL
                    AND (state = 'pending' OR state = 'running' OR state = 'scheduled') DO NOTHING
            RETURNING job.id, job.state, false INTO made;
            EXIT WHEN FOUND;  -- else another session has just enqueued this key: that job is the answer
        END LOOP;
        IF produces AND made.duplicate AND NOT leasehold.is_callers_job(made.id) THEN
            made := (NULL, NULL, true);
        END IF;
        RETURN NEXT made;
        ids := ids || made.id;
        CONTINUE WHEN made.duplicate;
        mine := mine || made.id;
        IF made.state = 'pending' THEN
            goes := goes + 1;
        ELSE
            waits := waits + 1;
            soonest := least(soonest, at);
        END IF;
        IF p.audit = 2 THEN
            PERFORM leasehold.event_put(now, 'job.enqueued', made.id, of_queue, NULL, NULL, NULL,
                                        made.state, coalesce(of_actor, 'sql'), NULL, NULL);
        END IF;
    END LOOP;
    IF produces THEN
        INSERT INTO leasehold.produced SELECT m, of_producer FROM unnest(mine) m;
    END IF;
    IF waits > 0 THEN
        PERFORM leasehold.count_change(of_queue, now, 'e', NULL, 'scheduled', waits);
        PERFORM leasehold.wake_if_due_soon(soonest, now);
    END IF;
    IF goes > 0 THEN
        PERFORM leasehold.count_change(of_queue, now, 'e', NULL, 'pending', goes, kinds => coalesce(kinds, '{}'));
    END IF;
    IF of_request IS NOT NULL THEN
        UPDATE leasehold.request r SET jobs = ids WHERE r.request = of_request AND r.producer = of_producer;
    END IF;
END $$;

-- ---- one job, as the library enqueues it most of the time ----

-- (enqueue_one uses its caller's search_path, and need_name() must not be called like that.)
CREATE FUNCTION leasehold.refuse_queue(of_queue text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM leasehold.need_name('queue', of_queue);
END $$;

-- Enqueue a job that has only a payload, and return its id. The function has as few statements and expressions
-- as possible, because each costs measurably. It enqueues as if the queue had no policies, and checks them
-- afterwards. A nonce that was used before violates the index delta_nonce; the library recognizes that error.
--
-- The function runs as its owner with the caller's search_path, because a search_path of its own would be a
-- tenth of its cost. So everything here is named with its schema, operators and types included. The function
-- has no settings, because leaving the first one costs as much as a statement.
CREATE FUNCTION leasehold.enqueue_one(of_queue text, of_sum bigint, of_payload text, of_nonce bigint)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
AS $$
DECLARE
    now     pg_catalog.timestamptz := leasehold.clock();
    made    pg_catalog.int8;
    unusual pg_catalog.bool;
BEGIN
    IF leasehold.is_name(of_queue) IS NOT TRUE THEN
        PERFORM leasehold.refuse_queue(of_queue);
    END IF;
    WITH counted AS (
        INSERT INTO leasehold.delta VALUES (of_queue, now, 'e', NULL, 'pending', 1, 0, of_nonce))
    INSERT INTO leasehold.job(queue, max_attempts, created_at, state_changed_at, payload_sum, payload,
                              nonce, plain)
    VALUES (of_queue, 3, now, now, of_sum, of_payload, of_nonce, false)
    RETURNING job.id,
              (SELECT m.has_policies OR m.sleepers_until OPERATOR(pg_catalog.>) now FROM leasehold.meta m WHERE m.one)
              OR pg_catalog.octet_length(of_payload) OPERATOR(pg_catalog.>) $[max_payload] OR leasehold.is_producer()
         INTO made, unusual;
    IF unusual THEN
        PERFORM leasehold.enqueued_one(now, made, of_queue, pg_catalog.octet_length(of_payload));
    END IF;
    RETURN made;
END $$;

-- The rest of enqueue_one(), where something is unusual or a claimer sleeps.
CREATE FUNCTION leasehold.enqueued_one(now timestamptz, made bigint, of_queue text, bytes bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
AS $$
DECLARE
    p leasehold.policy;
BEGIN
    IF bytes > $[max_payload] OR (SELECT m.has_policies FROM leasehold.meta m WHERE m.one) THEN
        p := leasehold.policy_of(of_queue, NULL);
        PERFORM leasehold.need_size(bytes, p);
        IF p.max_attempts <> 3 THEN
            UPDATE leasehold.job j SET max_attempts = p.max_attempts WHERE j.id = made;
        END IF;
        IF p.audit = 2 THEN
            PERFORM leasehold.event_put(now, 'job.enqueued', made, of_queue, NULL, NULL, NULL, 'pending',
                                        'library', NULL, NULL);
        END IF;
    END IF;
    IF leasehold.is_producer() THEN
        INSERT INTO leasehold.produced VALUES (made, leasehold.producer_of_caller());
    END IF;
    PERFORM leasehold.wake_queue(of_queue, now, '{}');
END $$;

-- ---- one job, by SQL ----

-- SELECT * FROM leasehold.enqueue('mail', '{"to":"a@b.c"}', delay => '5 min');
CREATE FUNCTION leasehold.enqueue(
    queue text, payload text DEFAULT NULL, kind text DEFAULT NULL, priority integer DEFAULT 0,
    delay interval DEFAULT NULL, run_at timestamptz DEFAULT NULL, key text DEFAULT NULL,
    request text DEFAULT NULL, max_attempts integer DEFAULT NULL, lease interval DEFAULT NULL,
    expires interval DEFAULT NULL, backoff interval DEFAULT NULL, backoff_cap interval DEFAULT NULL,
    payload_bytes bytea DEFAULT NULL)
RETURNS leasehold.enqueued
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    longest constant bigint := 315360000000;
    made leasehold.enqueued;
BEGIN
    IF delay IS NOT NULL AND run_at IS NOT NULL THEN
        PERFORM leasehold.refuse(-3, 'a job has a delay or a time to run at, not both');
    END IF;
    PERFORM leasehold.need_one_form('payload', payload IS NOT NULL AND payload_bytes IS NOT NULL);
    PERFORM leasehold.need_time('time to run at', run_at);
    PERFORM leasehold.need_duration('delay', delay, 0, longest);
    PERFORM leasehold.need_duration('lease', lease, 1, 2592000000);
    PERFORM leasehold.need_duration('expiry', expires, 0, longest);
    PERFORM leasehold.need_duration('backoff', backoff, 0, longest);
    PERFORM leasehold.need_duration('backoff cap', backoff_cap, 0, longest);
    SELECT * INTO made FROM leasehold.enqueue_many(
        queue, ARRAY[NULL::bigint], ARRAY[payload], CASE WHEN payload_bytes IS NOT NULL THEN ARRAY[payload_bytes] END,
        ARRAY[kind], ARRAY[priority]::bigint[],
        CASE WHEN run_at IS NOT NULL THEN ARRAY[date_trunc('milliseconds', run_at)] END,
        CASE WHEN delay IS NOT NULL THEN ARRAY[leasehold.ms(delay)] END,
        CASE WHEN key IS NOT NULL THEN ARRAY[key] END, ARRAY[max_attempts]::bigint[],
        ARRAY[leasehold.ms(lease)], ARRAY[leasehold.ms(expires)], ARRAY[leasehold.ms(backoff)],
        ARRAY[leasehold.ms(backoff_cap)], request);
    RETURN made;
END $$;
