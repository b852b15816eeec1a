-- What a program without a library says to enqueue, by pgbench: `payloads` is an array of them. No
-- trigger runs (plain = false), nothing is counted, nobody is woken.
INSERT INTO leasehold.job(queue, payload, payload_sum, max_attempts, plain)
SELECT 'bench', p, 1, 3, false FROM unnest(:payloads::text[]) p
RETURNING id;
