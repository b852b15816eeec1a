-- Checks for an operator: invariants of the rows, each as a list of violations; the schema against its recorded
-- shape; the server. The queries run as the user who checks, and leave out what that user may not see.

-- name: check_rows
-- All of these are CHECK constraints. They are checked again in case an operator disabled the constraints.
SELECT f.id, f.what, f.text
  FROM (SELECT id,
               CASE WHEN (state = 'running') <> (lease_until IS NOT NULL)
                      OR (state = 'running') <> (worker IS NOT NULL)
                      OR (state = 'running' AND (started_at IS NULL OR token <= 0))
                    THEN 'invariant 1'
                    WHEN (max_attempts > 0 AND attempt > max_attempts) OR started_at > state_changed_at
                    THEN 'invariant 5'
                    WHEN token NOT BETWEEN 0 AND 9007199254740991 THEN 'invariant 2' END AS what,
               CASE WHEN token NOT BETWEEN 0 AND 9007199254740991
                    THEN 'token ' || token || ' is outside 0 to 9007199254740991'
                    WHEN max_attempts > 0 AND attempt > max_attempts
                    THEN 'attempt ' || attempt || ' is above max_attempts ' || max_attempts
                    WHEN started_at > state_changed_at THEN 'started after its last change of state'
                    ELSE 'running without a lease, worker, start or token, or a lease without running'
                    END AS text
          FROM leasehold.job) f
 WHERE f.what IS NOT NULL LIMIT $1;

-- name: check_lease_rows
SELECT NULL::bigint, 'leases', 'lease "' || l.scope || '/' || l.name || '": '
       || CASE WHEN l.token NOT BETWEEN 0 AND 9007199254740991
               THEN 'token ' || l.token || ' is outside 0 to 9007199254740991'
               WHEN l.owner IS NULL THEN 'it has an expiry and no owner'
               ELSE 'it has an owner and no expiry' END
  FROM leasehold.lease l
 WHERE l.token NOT BETWEEN 0 AND 9007199254740991 OR (l.owner IS NULL) <> (l.expires_at IS NULL)
 LIMIT $1;

-- name: check_ids
SELECT max(j.id), 'invariant 7', 'id is above the highest ever given' FROM leasehold.job j
HAVING has_sequence_privilege('leasehold.job_id_seq', 'SELECT')
   AND max(j.id) > coalesce((SELECT s.last_value FROM pg_sequences s
                              WHERE s.schemaname = 'leasehold' AND s.sequencename = 'job_id_seq'), 0);

-- name: check_outputs
SELECT NULL::bigint, 'output', 'deleted jobs whose output is left: ' || count(DISTINCT o.job)
  FROM leasehold.output o
 WHERE NOT EXISTS (SELECT 1 FROM leasehold.job j WHERE j.id = o.job) HAVING count(*) > 0 LIMIT $1;

-- name: check_counts
-- Counts all rows, which no other statement does; deltas that are not folded are included.
WITH kept AS MATERIALIZED (
    SELECT m.queue, m.state, sum(m.n) AS n
      FROM (SELECT q.queue, s.state, s.n
              FROM leasehold.queue q,
                   LATERAL (VALUES ('scheduled', q.scheduled), ('pending', q.pending),
                                   ('running', q.running), ('completed', q.completed),
                                   ('failed', q.failed), ('cancelled', q.cancelled)) s(state, n)
            UNION ALL
            SELECT d.queue, d.becomes, d.n FROM leasehold.delta d
            UNION ALL
            SELECT d.queue, d.was, -d.n FROM leasehold.delta d) m
     GROUP BY m.queue, m.state),
there AS MATERIALIZED (
    SELECT j.queue, j.state, count(*) AS n FROM leasehold.job j GROUP BY j.queue, j.state)
SELECT NULL::bigint, 'counts', f.text
  FROM (SELECT 'queue "' || k.queue || '" counts ' || k.state || ' as ' || k.n || ', there are '
               || coalesce(t.n, 0) AS text
          FROM (SELECT n.queue, s.state, coalesce(k.n, 0) AS n
                  FROM (SELECT DISTINCT queue FROM kept) n
                 CROSS JOIN (VALUES ('scheduled'), ('pending'), ('running'), ('completed'),
                                    ('failed'), ('cancelled')) s(state)
                  LEFT JOIN kept k ON k.queue = n.queue AND k.state = s.state) k
          LEFT JOIN there t ON t.queue = k.queue AND t.state = k.state
         WHERE k.n <> coalesce(t.n, 0)
        UNION ALL
        SELECT DISTINCT 'queue "' || t.queue || '" has jobs but no row to count them in'
          FROM there t WHERE NOT EXISTS (SELECT 1 FROM kept k WHERE k.queue = t.queue)) f
 ORDER BY f.text LIMIT $1;

-- name: check_payloads
-- A range of payloads by id: up to eight megabytes, at least one.
WITH next AS MATERIALIZED (
    SELECT id, payload_sum, payload, payload_bytes FROM leasehold.job WHERE id > $1 ORDER BY id LIMIT 1000),
sized AS (
    SELECT n.*, row_number() OVER (ORDER BY id) AS row,
           sum(coalesce(octet_length(payload), octet_length(payload_bytes), 0)) OVER (ORDER BY id) AS bytes
      FROM next n)
SELECT id, payload_sum, payload, payload_bytes FROM sized
 WHERE bytes <= 8388608 OR row = 1 ORDER BY id;

-- name: check_schedules
SELECT name, payload_sum, payload, payload_bytes FROM leasehold.schedule ORDER BY name;

-- name: check_integrity
-- Damage that the server itself has noticed. (Only the server can read its files.)
SELECT f.text
  FROM (SELECT checksum_failures || ' pages of this database did not match their checksum, the last at '
               || checksum_last_failure AS text
          FROM pg_stat_database WHERE datname = current_database() AND checksum_failures > 0
        UNION ALL
        SELECT 'index ' || i.indexrelid::regclass || ' is not valid: REINDEX it'
          FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
         WHERE c.relnamespace = 'leasehold'::regnamespace AND NOT i.indisvalid) f;

-- name: check_schema
-- What is missing or has changed since it was created. Added objects are the user's own.
SELECT coalesce(m.kind, s.kind) || ' ' || coalesce(m.name, s.name),
       CASE WHEN s.name IS NULL THEN 'is missing' WHEN m.name IS NULL THEN 'is not one of ours'
            ELSE 'differs from its definition' END,
       m.name IS NULL
  FROM leasehold.original_shape m FULL JOIN leasehold.shape() s ON s.kind = m.kind AND s.name = m.name
 WHERE m.name IS NULL OR s.name IS NULL
    OR (m.shape <> s.shape
        AND (m.portable OR m.server = current_setting('server_version_num')::integer / 10000))
 ORDER BY m.name IS NULL, coalesce(m.kind, s.kind), coalesce(m.name, s.name) LIMIT $1;

-- name: check_server
-- Settings with which a session starts. (Our own sessions ask for another isolation level.)
SELECT current_setting('server_version'),
       coalesce((SELECT m.schema_version FROM leasehold.meta m), 0), leasehold.clock(),
       pg_is_in_recovery(),
       current_setting('fsync') = 'on', current_setting('full_page_writes') = 'on',
       current_setting('synchronous_commit'), current_setting('synchronous_standby_names'),
       (SELECT string_agg(c.relname, ', ' ORDER BY c.relname) FROM pg_class c
         WHERE c.relnamespace = 'leasehold'::regnamespace AND c.relkind = 'r'
           AND c.relpersistence = 'u' AND c.relname NOT IN ('sleeper', 'crash_marker')),
       (SELECT s.reset_val FROM pg_settings s WHERE s.name = 'default_transaction_isolation');

-- name: check_standbys
-- Without the privilege to monitor, the server tells only the number of standbys.
SELECT count(*), count(r.sync_state), count(*) FILTER (WHERE r.sync_state IN ('sync', 'quorum')),
       coalesce(max(CASE WHEN NOT pg_is_in_recovery()
                         THEN pg_wal_lsn_diff(pg_current_wal_lsn(), r.replay_lsn) END), 0)::bigint,
       coalesce(max((1000 * extract(epoch FROM r.replay_lag))::bigint), 0)
  FROM pg_stat_replication r;

-- name: check_oldest
-- The session with the oldest snapshot or transaction id holds up vacuum; a session in a transaction with
-- neither does not. Without the privilege to monitor, a user sees the numbers of other users' sessions, but not
-- what they are or since when. (Autovacuum has no user.)
SELECT f.holder, f.age_ms, f.behind
  FROM (SELECT 'pid ' || a.pid || coalesce(', user ' || a.usename, '')
               || coalesce(', application ' || nullif(a.application_name, ''), '')
               || coalesce(', ' || a.state, '') AS holder,
               (1000 * extract(epoch FROM leasehold.clock() - a.xact_start))::bigint AS age_ms,
               greatest(age(a.backend_xmin), age(a.backend_xid))::bigint AS behind
          FROM pg_stat_activity a
         WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
           AND a.usesysid IS NOT NULL AND coalesce(a.backend_type, 'client backend') = 'client backend'
           AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
        UNION ALL
        SELECT 'prepared transaction ' || p.gid || ', user ' || p.owner,
               (1000 * extract(epoch FROM leasehold.clock() - p.prepared))::bigint,
               age(p.transaction)::bigint
          FROM pg_prepared_xacts p WHERE p.database = current_database()
        UNION ALL
        SELECT 'standby ' || coalesce(nullif(r.application_name, ''), r.pid::text)
               || ', by its hot_standby_feedback', NULL, age(r.backend_xmin)::bigint
          FROM pg_stat_replication r WHERE r.backend_xmin IS NOT NULL
        UNION ALL
        SELECT 'replication slot ' || s.slot_name, NULL, age(s.xmin)::bigint
          FROM pg_replication_slots s WHERE s.xmin IS NOT NULL) f
 ORDER BY f.behind DESC, f.age_ms DESC NULLS LAST LIMIT 1;

-- name: check_vacuum
SELECT t.relname::text, t.n_live_tup, t.n_dead_tup,
       coalesce('last vacuumed at '
                || to_char(greatest(t.last_vacuum, t.last_autovacuum) AT TIME ZONE 'UTC',
                           'YYYY-MM-DD"T"HH24:MI:SS"Z"'), 'never vacuumed')
  FROM pg_stat_all_tables t
 WHERE t.schemaname = 'leasehold' AND t.relname IN ('job', 'delta', 'event_default') ORDER BY t.relname;
