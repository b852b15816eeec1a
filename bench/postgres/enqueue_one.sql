-- One job: the plainest INSERT.
INSERT INTO leasehold.job(queue, payload, payload_sum, max_attempts, plain)
VALUES ('bench', :payload, 1, 3, false)
RETURNING id;
