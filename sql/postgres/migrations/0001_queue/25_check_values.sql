-- Checks of values, for callers without the library. The messages are the same as the library's.

-- (A regular expression with {1,128} would cost ten times as much.)
CREATE FUNCTION leasehold.is_name(value text) RETURNS boolean LANGUAGE sql IMMUTABLE
RETURN value !~ '[^A-Za-z0-9._:@-]' AND octet_length(value) BETWEEN 1 AND 128;

CREATE FUNCTION leasehold.need_name(what text, value text) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    IF value IS NULL THEN
        PERFORM leasehold.refuse(-3, what || ' is missing');
    ELSIF NOT leasehold.is_name(value) THEN
        PERFORM leasehold.refuse(-3, pg_catalog.format(
            '%s "%s" is not a name: 1 to 128 of A-Z a-z 0-9 . _ : @ - are allowed', what,
            pg_catalog.left(value, 140)));
    END IF;
END $$;

-- (In all functions of this file NULL means "not given" and is allowed.)
CREATE FUNCTION leasehold.need_range(what text, value bigint, low bigint, high bigint) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF value < low OR value > high THEN
        PERFORM leasehold.refuse(-3, pg_catalog.format('%s is %s: %s to %s is allowed', what, value,
                                                       low, high));
    END IF;
END $$;

-- Refuse a missing value.
CREATE FUNCTION leasehold.need_given(what text, given boolean) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    IF given IS NOT TRUE THEN
        PERFORM leasehold.refuse(-3, what || ' is missing');
    END IF;
END $$;

-- Refuse a list with holes, or one that does not start at 1.
CREATE FUNCTION leasehold.need_list(what text, given anyarray) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    -- (In this order, because array_position() does not accept two dimensions.)
    IF pg_catalog.array_ndims(given) > 1 OR pg_catalog.array_lower(given, 1) <> 1 THEN
        PERFORM leasehold.refuse(-3, pg_catalog.format('list of values of %s is not one list that starts at 1', what));
    ELSIF given IS NULL OR pg_catalog.array_position(given, NULL) IS NOT NULL THEN
        PERFORM leasehold.need_given(what, false);
    END IF;
END $$;

CREATE FUNCTION leasehold.need_names(what text, given text[]) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM leasehold.need_list(what, given);
    PERFORM leasehold.need_name(what, n) FROM pg_catalog.unnest(given) n;
END $$;

-- The lists that go with a list of n items. Each is missing, empty, or has one value per item. The caller
-- passes array_dims() of each, which is '[1:n]' for a list of n values that starts at 1. A list with other
-- bounds is refused even if it has n values: reading an element by its number would give NULL, and no limit
-- would apply to it.
CREATE FUNCTION leasehold.need_same_length(n integer, VARIADIC shapes text[]) RETURNS void LANGUAGE plpgsql
AS $$
DECLARE
    allowed constant text := '[1:' || n || ']';
BEGIN
    IF NOT coalesce(allowed <> ANY (shapes), false) THEN
        RETURN;
    END IF;
    PERFORM leasehold.refuse(-3, CASE WHEN s ~ '^\[1:[0-9]+\]$'
               THEN pg_catalog.format('there are %s items and %s values for them: one value per item is allowed', n,
                                      pg_catalog.substring(s, '[0-9]+(?=\]$)'))
               ELSE pg_catalog.format('list of values with the bounds %s is not one list that starts at 1', s) END)
       FROM pg_catalog.unnest(shapes) s WHERE s <> allowed;
END $$;

-- Jobs, their tokens, and the bounds of other lists.
CREATE FUNCTION leasehold.need_refs(jobs bigint[], tokens bigint[], VARIADIC shapes text[] DEFAULT '{}')
RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM leasehold.need_list('job', jobs);
    PERFORM leasehold.need_list('token', tokens);
    IF pg_catalog.cardinality(jobs) <> pg_catalog.cardinality(tokens) THEN
        PERFORM leasehold.refuse(-3, pg_catalog.format('there are %s jobs and %s tokens: one token a job is allowed',
                                            pg_catalog.cardinality(jobs), pg_catalog.cardinality(tokens)));
    END IF;
    PERFORM leasehold.need_same_length(pg_catalog.cardinality(jobs), VARIADIC shapes);
END $$;

CREATE FUNCTION leasehold.need_ranges(what text, given bigint[], low bigint, high bigint) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM leasehold.need_range(what, v, low, high) FROM pg_catalog.unnest(given) v
      WHERE v < low OR v > high;
END $$;

CREATE FUNCTION leasehold.need_ms(what text, value bigint, low bigint, high bigint) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    IF value < low OR value > high THEN
        PERFORM leasehold.refuse(-3, pg_catalog.format(
            '%s is %s ms: %s to %s is allowed', what, value,
            CASE low WHEN 0 THEN '0' ELSE leasehold.duration_words(low) END,
            leasehold.duration_words(high)));
    END IF;
END $$;

CREATE FUNCTION leasehold.need_all_ms(what text, given bigint[], low bigint, high bigint) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM leasehold.need_ms(what, v, low, high) FROM pg_catalog.unnest(given) v WHERE v < low OR v > high;
END $$;

CREATE FUNCTION leasehold.need_duration(what text, value interval, low bigint, high bigint)
RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    IF NOT pg_catalog.isfinite(value) THEN
        PERFORM leasehold.refuse(-3, pg_catalog.format('%s is %s: at most %s is allowed', what, value,
                                                       leasehold.duration_words(high)));
    ELSIF value IS NOT NULL THEN
        PERFORM leasehold.need_ms(what, leasehold.ms(value), low, high);
    END IF;
END $$;

CREATE FUNCTION leasehold.need_time(what text, value timestamptz) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    IF value < '1973-03-03 09:46:40+00' OR value >= '10000-01-01 00:00:00+00' THEN
        PERFORM leasehold.refuse(-3, pg_catalog.format(
            '%s is %s: 1973-03-03T09:46:40Z to the end of the year 9999 is allowed', what, value));
    END IF;
END $$;

CREATE FUNCTION leasehold.need_text(what text, value text, most bigint) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF pg_catalog.octet_length(value) > most THEN
        PERFORM leasehold.refuse(-4, pg_catalog.format(
            '%s is too large: at most %s bytes are allowed', what, most));
    END IF;
END $$;

CREATE FUNCTION leasehold.need_texts(what text, given text[], most bigint) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM leasehold.need_text(what, v, most) FROM pg_catalog.unnest(given) v WHERE pg_catalog.octet_length(v) > most;
END $$;

-- The request id: a repeated call is recognized by it.
CREATE FUNCTION leasehold.need_request(value text) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    IF pg_catalog.octet_length(value) NOT BETWEEN 1 AND 256 THEN
        PERFORM leasehold.refuse(-3, pg_catalog.format('request id has %s bytes: 1 to 256 bytes are allowed',
                                                       pg_catalog.octet_length(value)));
    END IF;
END $$;

CREATE FUNCTION leasehold.need_key(value text) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    IF pg_catalog.octet_length(value) NOT BETWEEN 1 AND 256 THEN
        PERFORM leasehold.refuse(-3, pg_catalog.format('key has %s bytes: 1 to 256 bytes are allowed',
                                                       pg_catalog.octet_length(value)));
    END IF;
END $$;

-- A payload or a result is text or bytes.
CREATE FUNCTION leasehold.need_one_form(what text, two boolean) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    IF two THEN
        PERFORM leasehold.refuse(-3, pg_catalog.format('a %s is text or bytes, not both', what));
    END IF;
END $$;

CREATE FUNCTION leasehold.need_token(token bigint) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    IF token < 1 THEN
        PERFORM leasehold.refuse(-3, pg_catalog.format(
            'token %s is not a token: tokens start at 1', token));
    END IF;
END $$;

CREATE FUNCTION leasehold.is_json(value text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE STRICT
AS $$
BEGIN
    RETURN value::json IS NOT NULL;
EXCEPTION WHEN invalid_text_representation OR untranslatable_character OR statement_too_complex THEN
    RETURN false;
END $$;
