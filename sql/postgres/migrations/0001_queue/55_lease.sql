-- Named leases: time-limited ownership of a (scope, name), and the state that outlives it.

-- A lease as it is at this moment. stale: it is held and has expired.
CREATE TYPE leasehold.lease_state AS (
    scope text, name text, owner text, token bigint, acquired_at timestamptz,
    expires_at timestamptz, remaining_ms bigint, stale boolean, value text, rows bigint,
    last_completed_at timestamptz);

CREATE FUNCTION leasehold.lease_state_of(l leasehold.lease, now timestamptz, due timestamptz)
RETURNS leasehold.lease_state LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
    SELECT l.scope, l.name, l.owner, l.token, l.acquired_at, l.expires_at,
           greatest(coalesce(leasehold.ms(l.expires_at - now), 0), 0),
           coalesce(l.expires_at <= due, false), l.value, l.rows, l.last_completed_at;
END;

-- The result of an act on a lease: a status (0: done), why it was refused, and the lease as it is now (all
-- NULL: there is no row).
CREATE TYPE leasehold.lease_outcome AS (
    status integer, message text, released boolean, lease leasehold.lease_state);

CREATE FUNCTION leasehold.lease_result(l leasehold.lease, now timestamptz, due timestamptz,
                                     released boolean DEFAULT false, status integer DEFAULT 0,
                                     message text DEFAULT NULL) RETURNS leasehold.lease_outcome
LANGUAGE sql IMMUTABLE
BEGIN ATOMIC SELECT status, message, released, leasehold.lease_state_of(l, now, due); END;

-- Before a token is made or anything expires: is this the server for which the epoch is valid?
CREATE FUNCTION leasehold.same_server(m leasehold.meta, now timestamptz) RETURNS leasehold.meta
LANGUAGE plpgsql
AS $$
BEGIN
    IF m.system_id = (SELECT system_identifier FROM pg_control_system())
       AND m.timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8)
       AND m.job_oid = 'leasehold.job'::regclass AND leasehold.has_not_crashed() THEN
        RETURN m;
    END IF;
    RETURN leasehold.new_server(now);
END $$;

-- Take a lease that is free or expired. Returns its token, or NULL if another owner holds it.
--
-- A row without state is deleted when the lease is freed, and the next token of the name must be above every
-- earlier one. So each token of a new row is a new number of one sequence, taken while this session has the row
-- locked.
CREATE FUNCTION leasehold.lease_take(now timestamptz, due timestamptz, first_token bigint,
                                     of_scope text, of_name text, of_owner text,
                                     until timestamptz, new_value text, of_job bigint)
RETURNS bigint LANGUAGE plpgsql
AS $$
DECLARE
    taken bigint;
BEGIN
    INSERT INTO leasehold.lease AS l (scope, name, owner, token, ttl_ms, acquired_at, expires_at,
                                      value, job)
    VALUES (of_scope, of_name, of_owner, 0, leasehold.ms(until - now), now, until, new_value, of_job)
        ON CONFLICT (scope, name) DO UPDATE
       SET owner = excluded.owner, ttl_ms = excluded.ttl_ms,
           token = greatest(l.token + 1, first_token + nextval('leasehold.lease_token')),
           acquired_at = excluded.acquired_at, expires_at = excluded.expires_at,
           value = coalesce(excluded.value, l.value), job = excluded.job
     WHERE l.owner IS NULL OR l.expires_at <= due
    RETURNING l.token INTO taken;
    IF taken = 0 THEN
        UPDATE leasehold.lease l SET token = first_token + nextval('leasehold.lease_token')
         WHERE l.scope = of_scope AND l.name = of_name
        RETURNING l.token INTO taken;
    END IF;
    RETURN taken;
END $$;

-- Free a lease if this is still its token. A row that carries no state is deleted.
CREATE FUNCTION leasehold.lease_free(of_scope text, of_name text, of_token bigint,
                                     new_value text DEFAULT NULL, new_rows bigint DEFAULT NULL,
                                     completed_at timestamptz DEFAULT NULL)
RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    DELETE FROM leasehold.lease l
     WHERE l.scope = of_scope AND l.name = of_name AND l.token = of_token
       AND coalesce(new_value, l.value) IS NULL AND coalesce(new_rows, l.rows) IS NULL
       AND coalesce(completed_at, l.last_completed_at) IS NULL;
    IF NOT FOUND THEN
        UPDATE leasehold.lease l
           SET owner = NULL, acquired_at = NULL, expires_at = NULL, ttl_ms = NULL, job = NULL,
               value = coalesce(new_value, l.value), rows = coalesce(new_rows, l.rows),
               last_completed_at = coalesce(completed_at, l.last_completed_at)
         WHERE l.scope = of_scope AND l.name = of_name AND l.token = of_token;
    END IF;
END $$;

CREATE FUNCTION leasehold.lease_event(now timestamptz, type text, l leasehold.lease, actor text,
                                      reason text DEFAULT NULL) RETURNS void LANGUAGE sql
RETURN leasehold.event_put(now, type, NULL, NULL, l.owner, l.scope || '/' || l.name, NULL, NULL,
                           actor, reason, l.token);

CREATE FUNCTION leasehold.need_lease_name(scope text, name text) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM leasehold.need_name('scope', scope), leasehold.need_given('lease name', name IS NOT NULL);
    IF length(name) > 256 OR name !~ '^[!-~]+$' THEN
        PERFORM leasehold.refuse(-3, format(
            'lease name "%s" is not allowed: 1 to 256 printable ASCII characters without a space',
            left(name, 140)));
    END IF;
END $$;

CREATE FUNCTION leasehold.need_value(value text) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM leasehold.need_text('value', value, 65536);
    IF NOT leasehold.is_json(value) THEN
        PERFORM leasehold.refuse(-3, 'value is not JSON: ' || left(value, 80));
    END IF;
END $$;

CREATE FUNCTION leasehold.lease_held(l leasehold.lease, now timestamptz, due timestamptz)
RETURNS leasehold.lease_outcome LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
    SELECT * FROM leasehold.lease_result(l, now, due, false, -10, format(
        'lease "%s/%s" is held by "%s" for another %s', l.scope, l.name, l.owner,
        leasehold.duration_words(leasehold.ms(l.expires_at - now))));
END;

-- Why this owner does not hold the lease.
CREATE FUNCTION leasehold.lease_lost(l leasehold.lease, of_scope text, of_name text, by_owner text,
                                     of_token bigint, due timestamptz) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN format('lease "%s/%s" ', of_scope, of_name)
    || CASE WHEN l.owner IS NULL THEN 'is held by nobody'
            WHEN l.owner <> by_owner THEN format('is held by "%s" now', l.owner)
            WHEN l.expires_at <= due THEN 'has expired'
            ELSE format('has token %s now, not %s', l.token, of_token) END;

-- The row, locked; all NULL if there is none.
CREATE FUNCTION leasehold.lease_lock(of_scope text, of_name text) RETURNS leasehold.lease
LANGUAGE sql VOLATILE
BEGIN ATOMIC SELECT l FROM leasehold.lease l WHERE l.scope = of_scope AND l.name = of_name FOR UPDATE; END;

CREATE FUNCTION leasehold.lease_end_of(now timestamptz, ttl_ms bigint, of_scope text)
RETURNS timestamptz LANGUAGE sql STABLE
RETURN now + leasehold.span(coalesce(
    ttl_ms, (SELECT s.ttl_ms FROM leasehold.scope s WHERE s.scope = of_scope), 300000));

CREATE FUNCTION leasehold.lease_acquire_one(now timestamptz, m leasehold.meta, old leasehold.lease,
                                            of_scope text, of_name text, by_owner text,
                                            until timestamptz, new_value text, take_only boolean)
RETURNS leasehold.lease_outcome LANGUAGE plpgsql
AS $$
DECLARE
    due timestamptz := leasehold.due(now, m.no_expiry_before);
    l   leasehold.lease := old;
BEGIN
    IF l.expires_at > due AND l.owner = by_owner AND NOT take_only THEN
        UPDATE leasehold.lease c
           SET expires_at = until, ttl_ms = leasehold.ms(until - now),
               value = coalesce(new_value, c.value)
         WHERE c.scope = of_scope AND c.name = of_name AND c.token = l.token
        RETURNING * INTO l;
        PERFORM leasehold.changed();
        RETURN leasehold.lease_result(l, now, due);
    END IF;
    IF l.owner IS NULL OR l.expires_at <= due THEN
        IF leasehold.lease_take(now, due, m.first_token, of_scope, of_name, by_owner, until, new_value,
                                NULL) IS NOT NULL THEN
            IF old.owner IS NOT NULL THEN
                PERFORM leasehold.lease_event(now, 'lease.recovered', old, 'system/recovery',
                                              'RECLAIMED_TTL: lease had expired');
            END IF;
            l := leasehold.lease_lock(of_scope, of_name);
            PERFORM leasehold.lease_event(now, 'lease.acquired', l, by_owner);
            RETURN leasehold.lease_result(l, now, due);
        END IF;
        -- Another session has inserted the row meanwhile.
        RETURN leasehold.lease_acquire_one(now, m, leasehold.lease_lock(of_scope, of_name), of_scope,
                                           of_name, by_owner, until, new_value, take_only);
    END IF;
    RETURN leasehold.lease_held(l, now, due);
END $$;

CREATE FUNCTION leasehold.lease_extend_one(now timestamptz, due timestamptz, old leasehold.lease,
                                           until timestamptz, by_ms bigint, new_value text)
RETURNS leasehold.lease_outcome LANGUAGE plpgsql
AS $$
DECLARE
    l leasehold.lease;
BEGIN
    IF by_ms > 2592000000 - leasehold.ms(old.expires_at - now) THEN
        PERFORM leasehold.refuse(-3, format(
            'lease "%s/%s" would be held for another %s: at most 30d from now is allowed', old.scope, old.name,
            leasehold.duration_words(leasehold.ms(old.expires_at - now) + by_ms)));
    END IF;
    UPDATE leasehold.lease c
       SET expires_at = coalesce(c.expires_at + leasehold.span(by_ms), until),
           ttl_ms = CASE WHEN by_ms IS NULL THEN leasehold.ms(until - now) ELSE c.ttl_ms END,
           value = coalesce(new_value, c.value)
     WHERE c.scope = old.scope AND c.name = old.name AND c.token = old.token
       AND c.expires_at > due
    RETURNING * INTO l;
    PERFORM leasehold.changed();
    RETURN leasehold.lease_result(l, now, due);
END $$;

CREATE FUNCTION leasehold.lease_end_one(now timestamptz, due timestamptz, old leasehold.lease,
                                        completed boolean, new_value text, new_rows bigint)
RETURNS leasehold.lease_outcome LANGUAGE plpgsql
AS $$
DECLARE
    l leasehold.lease;
BEGIN
    PERFORM leasehold.lease_free(old.scope, old.name, old.token, new_value, new_rows,
                                 CASE WHEN completed THEN now END);
    PERFORM leasehold.lease_event(
        now, CASE WHEN completed THEN 'lease.completed' ELSE 'lease.released' END, old, old.owner);
    SELECT * INTO l FROM leasehold.lease c WHERE c.scope = old.scope AND c.name = old.name;
    RETURN leasehold.lease_result(l, now, due, released => true);
END $$;

-- verb: acquire, extend, release or complete. ttl_ms NULL: the value of the scope, else 300 s. of_token NULL:
-- the token is not compared. take_only: a lease that the owner already holds is returned without an extension.
CREATE FUNCTION leasehold.lease_act(verb text, of_scope text, of_name text, by_owner text,
                                    ttl_ms bigint, by_ms bigint, of_token bigint, new_value text,
                                    new_rows bigint, take_only boolean)
RETURNS leasehold.lease_outcome
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    now   timestamptz := leasehold.clock();
    m     leasehold.meta;
    due   timestamptz;
    until timestamptz;
    l     leasehold.lease;
    mine  boolean;
BEGIN
    PERFORM leasehold.need_given('act', verb IS NOT NULL);
    PERFORM leasehold.need_lease_name(of_scope, of_name);
    PERFORM leasehold.need_name('owner', by_owner);
    PERFORM leasehold.need_ms('ttl', ttl_ms, 1, 2592000000);
    PERFORM leasehold.need_ms('extension', by_ms, 1, 2592000000);
    IF by_ms IS NOT NULL AND (ttl_ms IS NOT NULL OR verb <> 'extend') THEN
        PERFORM leasehold.refuse(-3, 'a lease is extended by a time or to a ttl, not both');
    END IF;
    PERFORM leasehold.need_token(of_token);
    PERFORM leasehold.need_range('rows', new_rows, 0, 9223372036854775807);
    PERFORM leasehold.need_value(new_value);

    SELECT * INTO m FROM leasehold.meta WHERE one;
    IF verb IN ('acquire', 'extend') THEN
        m := leasehold.same_server(m, now);
    END IF;
    due := leasehold.due(now, m.no_expiry_before);
    until := leasehold.lease_end_of(now, ttl_ms, of_scope);
    IF verb = 'acquire' THEN
        PERFORM leasehold.wake_if_due_soon(until, now);
    END IF;
    l := leasehold.lease_lock(of_scope, of_name);
    mine := coalesce(l.owner = by_owner AND (of_token IS NULL OR of_token = l.token), false);

    IF mine AND l.expires_at > due AND l.job IS NOT NULL THEN
        RETURN leasehold.lease_result(l, now, due, false, -6, format(
            'lease "%s/%s" belongs to job %s and ends with it', of_scope, of_name, l.job));
    ELSIF verb = 'acquire' THEN
        RETURN leasehold.lease_acquire_one(now, m, l, of_scope, of_name, by_owner, until, new_value,
                                           coalesce(take_only, false));
    ELSIF verb = 'extend' AND mine AND l.expires_at > due THEN
        RETURN leasehold.lease_extend_one(now, due, l, until, by_ms, new_value);
    ELSIF verb IN ('release', 'complete') AND mine THEN
        RETURN leasehold.lease_end_one(now, due, l, verb = 'complete', new_value, new_rows);
    ELSIF verb = 'release' AND l.owner <> by_owner AND l.expires_at > due THEN
        RETURN leasehold.lease_held(l, now, due);
    ELSIF verb = 'release' THEN
        -- The lease is not held any more: a second release is harmless.
        RETURN leasehold.lease_result(l, now, due);
    ELSIF verb IN ('extend', 'complete') THEN
        RETURN leasehold.lease_result(l, now, due, false, -8, leasehold.lease_lost(
            l, of_scope, of_name, by_owner, of_token, due));
    END IF;
    PERFORM leasehold.refuse(-3, format(
        'act "%s" on a lease is not known: acquire, extend, release or complete is allowed', left(verb, 140)));
END $$;

-- ---- by SQL ----

CREATE FUNCTION leasehold.lease_or_refuse(o leasehold.lease_outcome) RETURNS leasehold.lease_state
LANGUAGE plpgsql
AS $$
BEGIN
    IF o.status < 0 THEN
        PERFORM leasehold.refuse(o.status, o.message);
    END IF;
    RETURN o.lease;
END $$;

-- Acquire the lease, or extend it if the owner already holds it. Returns the lease with its token.
CREATE FUNCTION leasehold.lease_acquire(scope text, name text, owner text,
                                        ttl interval DEFAULT NULL, value text DEFAULT NULL)
RETURNS leasehold.lease_state
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN leasehold.lease_or_refuse(leasehold.lease_act(
        'acquire', scope, name, owner, leasehold.ms(ttl), NULL, NULL, value, NULL, false));
END $$;

-- Extend to now + ttl, or add a time to the expiry.
CREATE FUNCTION leasehold.lease_extend(scope text, name text, owner text,
                                       token bigint DEFAULT NULL, ttl interval DEFAULT NULL,
                                       by interval DEFAULT NULL, value text DEFAULT NULL)
RETURNS leasehold.lease_state
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN leasehold.lease_or_refuse(leasehold.lease_act(
        'extend', scope, name, owner, leasehold.ms(ttl), leasehold.ms(by), token, value, NULL,
        false));
END $$;

-- Returns false if the lease was not held any more, which is harmless.
CREATE FUNCTION leasehold.lease_release(scope text, name text, owner text,
                                        token bigint DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    o leasehold.lease_outcome := leasehold.lease_act(
        'release', scope, name, owner, NULL, NULL, token, NULL, NULL, false);
BEGIN
    PERFORM leasehold.lease_or_refuse(o);
    RETURN o.released;
END $$;

-- Release the lease after its work is done: stores rows, value and the time of completion.
CREATE FUNCTION leasehold.lease_complete(scope text, name text, owner text,
                                         token bigint DEFAULT NULL, rows bigint DEFAULT NULL,
                                         value text DEFAULT NULL) RETURNS leasehold.lease_state
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN leasehold.lease_or_refuse(leasehold.lease_act(
        'complete', scope, name, owner, NULL, NULL, token, value, rows, false));
END $$;
