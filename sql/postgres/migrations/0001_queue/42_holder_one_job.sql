-- The acts of a holder on one job, for psql and plain drivers. They return the job as it is afterwards. A
-- refusal undoes the whole call, so it does not count as the answer of the holder of a revoked lease: the job
-- stays in quarantine until the old deadline.

CREATE FUNCTION leasehold.need_job(job bigint) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    IF job IS NULL THEN
        PERFORM leasehold.refuse(-3, 'job is missing');
    ELSIF job < 1 THEN
        PERFORM leasehold.refuse(-3, format('job %s is not an id: ids start at 1', job));
    END IF;
END $$;

CREATE FUNCTION leasehold.need_ref(job bigint, token bigint) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM leasehold.need_job(job);
    IF token IS NULL THEN
        PERFORM leasehold.refuse(-3, 'token is missing');
    END IF;
    PERFORM leasehold.need_token(token);
END $$;

-- The job, or an error if the act was refused.
CREATE FUNCTION leasehold.job_after(refused leasehold.outcome, of_job bigint) RETURNS leasehold.job
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off
AS $$
DECLARE
    j leasehold.job;
BEGIN
    IF refused.status < 0 THEN
        PERFORM leasehold.refuse(refused.status, refused.message);
    END IF;
    SELECT * INTO j FROM leasehold.job w WHERE w.id = of_job;
    RETURN j;
END $$;

CREATE FUNCTION leasehold.heartbeat(job bigint, token bigint, lease interval DEFAULT NULL,
                                    progress integer DEFAULT NULL, stage text DEFAULT NULL,
                                    checkpoint text DEFAULT NULL)
RETURNS leasehold.job LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    refused leasehold.outcome;
BEGIN
    PERFORM leasehold.need_ref(job, token), leasehold.need_duration('lease', lease, 1, 2592000000),
            leasehold.need_range('progress', progress, 0, 100),
            leasehold.need_text('stage', stage, 256),
            leasehold.need_text('checkpoint', checkpoint, 65536);
    SELECT * INTO refused FROM leasehold.heartbeat_many(ARRAY[job], ARRAY[token],
        ARRAY[leasehold.ms(lease)], ARRAY[progress]::bigint[], ARRAY[stage], ARRAY[checkpoint]);
    RETURN leasehold.job_after(refused, job);
END $$;

-- The result is text or bytes, not both.
CREATE FUNCTION leasehold.complete(job bigint, token bigint, result text DEFAULT NULL,
                                   result_bytes bytea DEFAULT NULL)
RETURNS leasehold.job LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    refused leasehold.outcome;
BEGIN
    PERFORM leasehold.need_ref(job, token);
    IF result IS NOT NULL AND result_bytes IS NOT NULL THEN
        PERFORM leasehold.refuse(-3, 'a result is text or bytes, not both');
    END IF;
    SELECT * INTO refused FROM leasehold.complete_many(ARRAY[job], ARRAY[token], ARRAY[result],
                                                       ARRAY[result_bytes]);
    RETURN leasehold.job_after(refused, job);
END $$;

-- retry_in NULL: by the backoff; 0: at once.
CREATE FUNCTION leasehold.fail(job bigint, token bigint, error text,
                               retry_in interval DEFAULT NULL, permanent boolean DEFAULT false)
RETURNS leasehold.job LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    refused leasehold.outcome;
BEGIN
    PERFORM leasehold.need_ref(job, token);
    IF error IS NULL THEN
        PERFORM leasehold.refuse(-3, 'a failure needs an error text');
    END IF;
    PERFORM leasehold.need_text('error', error, 65536),
            leasehold.need_duration('retry delay', retry_in, 0, 315360000000);
    SELECT * INTO refused FROM leasehold.fail_many(ARRAY[job], ARRAY[token], ARRAY[error],
        ARRAY[CASE leasehold.ms(retry_in) WHEN 0 THEN -1 ELSE leasehold.ms(retry_in) END],
        ARRAY[permanent]);
    RETURN leasehold.job_after(refused, job);
END $$;

CREATE FUNCTION leasehold.release(job bigint, token bigint, delay interval DEFAULT NULL)
RETURNS leasehold.job LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    refused leasehold.outcome;
BEGIN
    PERFORM leasehold.need_ref(job, token),
            leasehold.need_duration('delay', delay, 0, 315360000000);
    SELECT * INTO refused
      FROM leasehold.release_many(ARRAY[job], ARRAY[token], leasehold.ms(delay));
    RETURN leasehold.job_after(refused, job);
END $$;

-- Release all jobs of a worker, or the named ones. Returns how many.
CREATE FUNCTION leasehold.release_worker(worker text, jobs bigint[] DEFAULT NULL,
                                         delay interval DEFAULT NULL,
                                         at_once boolean DEFAULT false)
RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    refused leasehold.outcome;
BEGIN
    PERFORM leasehold.need_name('worker', worker),
            leasehold.need_duration('delay', delay, 0, 315360000000);
    IF jobs IS NULL THEN
        RETURN leasehold.release_worker_all(worker, leasehold.ms(delay), coalesce(at_once, false));
    END IF;
    SELECT * INTO refused FROM leasehold.release_worker_many(worker, jobs, leasehold.ms(delay),
                                                             coalesce(at_once, false));
    IF refused.status < 0 THEN
        PERFORM leasehold.refuse(refused.status, refused.message);
    END IF;
    RETURN cardinality(jobs);
END $$;
