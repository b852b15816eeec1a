-- Maintenance, polls, and schedules.

-- name: maintain
SELECT expired, promoted, schedules, more FROM leasehold.maintain_round();

-- name: prune
SELECT after, pruned, more FROM leasehold.prune_round($1, $2);

-- name: poll
SELECT something, next_ms, spare_ms FROM leasehold.poll($1, $2, $3);

-- name: retry_waits
SELECT leasehold.retry_waits($1, $2);

-- name: resign_leader
SELECT leasehold.resign_leader($1);

-- name: schedule_list
SELECT * FROM leasehold.schedule ORDER BY name;

-- name: schedule_before
SELECT now, cron, tz, done_until FROM leasehold.schedule_before($1);

-- name: schedule_put
SELECT leasehold.schedule_put($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17,
                              $18);

-- name: schedule_remove
SELECT leasehold.schedule_remove($1);

-- name: schedule_due
SELECT (d.due).*, d.now FROM leasehold.schedules_due($1) d;

-- name: schedule_run
SELECT leasehold.schedule_run($1, $2, $3, $4, $5, $6, $7, $8);

-- name: schedule_put_off
SELECT leasehold.schedule_put_off($1, $2, $3);
