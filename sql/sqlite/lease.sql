-- Named leases.

-- name: lease_get
SELECT * FROM lh_lease WHERE scope = :scope AND name = :name;

-- name: lease_list
SELECT * FROM lh_lease WHERE :scope IS NULL OR scope = :scope ORDER BY scope, name;

-- name: lease_acquire
-- Guarded by the expiry: an active lease of another owner cannot be taken. The token of a new row
-- starts at the store's count of changes, which is above every token that the name ever had.
INSERT INTO lh_lease(scope, name, owner, token, ttl_ms, acquired_at, expires_at, value, job)
VALUES (:scope, :name, :owner, (:epoch << 40) + :tick, :ttl_ms, :now, :expires_at, :value, :job)
    ON CONFLICT(scope, name) DO UPDATE
   SET owner = excluded.owner, ttl_ms = excluded.ttl_ms,
       token = max(token, :epoch << 40) + 1,
       acquired_at = excluded.acquired_at, expires_at = excluded.expires_at,
       value = coalesce(excluded.value, value), job = excluded.job
 WHERE owner IS NULL OR expires_at <= :now
RETURNING token;

-- name: lease_extend
UPDATE lh_lease
   SET expires_at = iif(:by_ms > 0, expires_at + :by_ms, :now + :ttl_ms),
       ttl_ms = iif(:by_ms > 0, ttl_ms, :ttl_ms), value = coalesce(:value, value)
 WHERE scope = :scope AND name = :name AND owner = :owner AND (:token = 0 OR token = :token)
   AND expires_at > :now;

-- name: lease_follow
-- The exclusive lease of a queue ends together with its job's lease.
UPDATE lh_lease SET expires_at = :expires_at, ttl_ms = :ttl_ms
 WHERE scope = 'processing' AND name = :queue AND job = :job;

-- name: lease_of_job
SELECT token FROM lh_lease WHERE scope = 'processing' AND name = :queue AND job = :job;

-- name: lease_job
SELECT job FROM lh_lease WHERE scope = :scope AND name = :name;

-- name: lease_free
UPDATE lh_lease
   SET owner = NULL, acquired_at = NULL, expires_at = NULL, ttl_ms = NULL, job = NULL,
       value = coalesce(:value, value), rows = coalesce(:rows, rows),
       last_completed_at = coalesce(:completed_at, last_completed_at)
 WHERE scope = :scope AND name = :name AND token = :token;

-- name: lease_delete
-- The row has nothing left to store.
DELETE FROM lh_lease
 WHERE scope = :scope AND name = :name AND owner IS NULL
   AND value IS NULL AND rows IS NULL AND last_completed_at IS NULL;
