-- Named leases.

-- name: lease_act
SELECT a.status, a.message, a.released, (a.lease).*
  FROM leasehold.lease_act($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) a;

-- name: lease_get
SELECT * FROM leasehold.lease_get($1, $2);

-- name: lease_list
SELECT * FROM leasehold.leases($1);
