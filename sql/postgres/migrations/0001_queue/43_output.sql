-- The output of runs: one row per run, each stream bounded.

-- How many bytes at the end belong to a character that is not complete?
CREATE FUNCTION leasehold.half_character(bytes bytea) RETURNS integer LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    len integer := octet_length(bytes);
    c   integer;
BEGIN
    FOR back IN 1..least(3, len) LOOP
        c := get_byte(bytes, len - back);
        IF c < 128 OR c >= 248 THEN  -- not part of a longer character
            RETURN 0;
        ELSIF c >= 192 THEN
            RETURN CASE WHEN CASE WHEN c >= 240 THEN 4 WHEN c >= 224 THEN 3 ELSE 2 END > back
                        THEN back ELSE 0 END;
        END IF;
    END LOOP;
    RETURN 0;
END $$;

-- Cut a stream to at most this many bytes, a quarter of them from its beginning. No character is cut.
CREATE FUNCTION leasehold.stream_cut(most bigint, INOUT bytes bigint, INOUT head bytea, INOUT tail bytea)
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    room integer;
BEGIN
    head := coalesce(head, '');
    tail := coalesce(tail, '');
    bytes := greatest(bytes, octet_length(head) + octet_length(tail), 0);
    IF octet_length(head) + octet_length(tail) > most THEN
        IF tail = '' THEN  -- the caller passed the whole stream as its beginning
            tail := head;
        END IF;
        head := substring(head FOR (most / 4)::integer);
        room := most - octet_length(head);
        tail := substring(tail FROM greatest(octet_length(tail) - room, 0) + 1);
    END IF;
    IF octet_length(head) + octet_length(tail) < bytes THEN
        head := substring(head FOR octet_length(head) - leasehold.half_character(head));
        FOR i IN 1..3 LOOP
            EXIT WHEN tail = '' OR get_byte(tail, 0) NOT BETWEEN 128 AND 191;
            tail := substring(tail FROM 2);
        END LOOP;
    END IF;
    head := nullif(head, '');
    tail := nullif(tail, '');
END $$;

-- Store what these runs have written so far. A run may write under the current token of its job, or to a row
-- that it began while it had the token. `results`: sizes of results that are not stored whole. Returns the
-- refused items. The newest 20 runs of a job are kept.
CREATE FUNCTION leasehold.output_many(jobs bigint[], tokens bigint[], results bigint[],
                                      out_bytes bigint[], out_heads bytea[], out_tails bytea[],
                                      err_bytes bigint[], err_heads bytea[], err_tails bytea[])
RETURNS SETOF leasehold.outcome LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    runs constant integer := 20;
    now  timestamptz := leasehold.clock();
    most bigint;
    m    leasehold.meta;
    run  record;
    o    record;
    e    record;
BEGIN
    PERFORM leasehold.need_refs(jobs, tokens, array_dims(results), array_dims(out_bytes), array_dims(out_heads),
        array_dims(out_tails), array_dims(err_bytes), array_dims(err_heads), array_dims(err_tails));
    SELECT * INTO m FROM leasehold.meta WHERE one;
    -- Keep the jobs from being deleted first: the deletion would miss this output. Rows are locked in the order
    -- of their ids.
    PERFORM 1 FROM leasehold.job j WHERE j.id = ANY (jobs) ORDER BY j.id FOR KEY SHARE;
    FOR i IN 1..cardinality(jobs) LOOP
        SELECT j.queue, j.kind, coalesce(w.attempt, j.attempt) AS attempt,
               j.token = tokens[i] OR w.job IS NOT NULL AS may, w.job IS NOT NULL AS has_row INTO run
          FROM leasehold.job j LEFT JOIN leasehold.output w ON w.job = j.id AND w.token = tokens[i]
         WHERE j.id = jobs[i];
        IF NOT FOUND THEN
            RETURN NEXT (i, -5, format('there is no job %s', jobs[i]))::leasehold.outcome;
            CONTINUE;
        ELSIF NOT run.may THEN
            RETURN NEXT (i, -8, format('output of job %s is not kept: token %s is not its token any more',
                                       jobs[i], tokens[i]))::leasehold.outcome;
            CONTINUE;
        END IF;
        most := CASE WHEN m.has_policies THEN (leasehold.policy_of(run.queue, run.kind)).max_output
                     ELSE $[max_output] END;
        SELECT * INTO o FROM leasehold.stream_cut(most, CASE WHEN most > 0 THEN out_bytes[i] END,
            CASE WHEN most > 0 THEN out_heads[i] END, CASE WHEN most > 0 THEN out_tails[i] END);
        SELECT * INTO e FROM leasehold.stream_cut(most, CASE WHEN most > 0 THEN err_bytes[i] END,
            CASE WHEN most > 0 THEN err_heads[i] END, CASE WHEN most > 0 THEN err_tails[i] END);
        CONTINUE WHEN o.bytes = 0 AND e.bytes = 0 AND results[i] IS NULL;
        -- Output that arrives late does not replace newer output.
        INSERT INTO leasehold.output AS w
        VALUES (jobs[i], tokens[i], run.attempt, now, results[i], o.bytes, o.head, o.tail, e.bytes, e.head,
                e.tail)
            ON CONFLICT (job, token) DO UPDATE
           SET at = excluded.at, result_bytes = coalesce(excluded.result_bytes, w.result_bytes),
               stdout_bytes = excluded.stdout_bytes, stdout_head = excluded.stdout_head,
               stdout_tail = excluded.stdout_tail, stderr_bytes = excluded.stderr_bytes,
               stderr_head = excluded.stderr_head, stderr_tail = excluded.stderr_tail
         WHERE excluded.stdout_bytes >= w.stdout_bytes AND excluded.stderr_bytes >= w.stderr_bytes;
        IF NOT run.has_row THEN
            DELETE FROM leasehold.output w
             WHERE w.job = jobs[i]
               AND w.token <= (SELECT r.token FROM leasehold.output r WHERE r.job = jobs[i]
                                ORDER BY r.token DESC OFFSET runs LIMIT 1);
        END IF;
        PERFORM leasehold.changed();
    END LOOP;
END $$;

-- However a job is deleted, the output of its runs goes with it, and so does the row that names its producer.
CREATE FUNCTION leasehold.jobs_gone() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
AS $$
BEGIN
    DELETE FROM leasehold.output o WHERE o.job = ANY (ARRAY(SELECT g.id FROM gone g));
    DELETE FROM leasehold.produced p WHERE p.job = ANY (ARRAY(SELECT g.id FROM gone g));
    RETURN NULL;
END $$;
CREATE TRIGGER deleted AFTER DELETE ON leasehold.job REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION leasehold.jobs_gone();

-- A stream as text: bytes that are no text are escaped, and a cut is marked.
CREATE FUNCTION leasehold.stream_text(bytes bigint, head bytea, tail bytea) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    cut bigint := bytes - octet_length(coalesce(head, '')) - octet_length(coalesce(tail, ''));
BEGIN
    IF cut <= 0 THEN
        RETURN convert_from(coalesce(head, '') || coalesce(tail, ''), 'UTF8');
    END IF;
    RETURN convert_from(coalesce(head, ''), 'UTF8') || format(E'\n[... %s bytes cut ...]\n', cut)
           || convert_from(coalesce(tail, ''), 'UTF8');
EXCEPTION WHEN OTHERS THEN
    RETURN encode(coalesce(head, ''), 'escape')
           || CASE WHEN cut > 0 THEN format(E'\n[... %s bytes cut ...]\n', cut) ELSE '' END
           || encode(coalesce(tail, ''), 'escape');
END $$;
