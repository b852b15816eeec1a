"""A search_path that contains another role's objects: traps for every name that lacks a schema.

make_traps() fills the schema `trap` with operators, functions and types that have names of the server's own, and
the temporary schema with tables. A trap that is called increments the sequence trap.sprung, which no
rollback undoes, and fails. calls() generates a statement for every view and every granted function
from the catalog, so that new ones are covered, too.
"""

# First functions with the same arguments as the server's own, then some that only match better.
PATHS = ("trap, pg_temp, public, pg_catalog", "pg_catalog, trap, public")

TYPES = ("boolean", "smallint", "integer", "bigint", "double precision", "numeric", "text", '"char"', "name",
         "timestamptz", "interval", "jsonb", "json", "bytea", "uuid", "oid", "bigint[]", "text[]", "integer[]",
         "timestamptz[]", "bytea[]", "boolean[]")

MAKE = """
SET search_path = pg_catalog;
CREATE SEQUENCE trap.sprung;
GRANT ALL ON SEQUENCE trap.sprung TO PUBLIC;

CREATE FUNCTION trap.make(name text, arguments text, result text) RETURNS boolean LANGUAGE plpgsql AS $make$
BEGIN
    EXECUTE format('CREATE FUNCTION trap.%I(%s) RETURNS %s LANGUAGE plpgsql AS %L', name, arguments, result, format(
        'BEGIN PERFORM pg_catalog.nextval(''trap.sprung''); RAISE EXCEPTION USING MESSAGE = %L; END',
        'trapped: ' || name || '(' || arguments || ')'));
    RETURN true;
EXCEPTION WHEN OTHERS THEN
    RETURN false;  -- a name that two of the server's have, or a type that functions of users cannot have
END $make$;
SELECT trap.make('spring', '', 'boolean');

CREATE FUNCTION trap.text_of_ours() RETURNS text LANGUAGE sql AS $$
    SELECT (SELECT string_agg(p.prosrc || coalesce(pg_get_function_sqlbody(p.oid), ''), ' ') FROM pg_proc p
             WHERE p.pronamespace = 'leasehold'::regnamespace)
           || (SELECT string_agg(pg_get_viewdef(c.oid), ' ') FROM pg_class c
                WHERE c.relnamespace = 'leasehold'::regnamespace AND c.relkind = 'v')
$$;

-- Operators: for every pair of types that the server finds one of our operators for, one that fits exactly.
DO $$
DECLARE
    types constant text[] := @types@;
    ours  constant text := trap.text_of_ours();
    op    record;
    kind  text;
BEGIN
    FOR op IN
        SELECT o.name, row_number() OVER () AS n, l AS left, r AS right
          FROM (SELECT DISTINCT oprname::text AS name FROM pg_operator
                 WHERE oprnamespace = 'pg_catalog'::regnamespace AND oprkind = 'b'
                   AND oprleft = ANY (types::regtype[]) AND oprright = ANY (types::regtype[])
                   AND strpos(ours, oprname) > 0) o,
               unnest(types) l, unnest(types) r
         WHERE l = r OR (l !~ '\\[' AND r !~ '\\[')
    LOOP
        BEGIN
            EXECUTE format('SELECT pg_typeof(NULL::%s OPERATOR(pg_catalog.%s) NULL::%s)', op.left, op.name, op.right) INTO kind;
        EXCEPTION WHEN OTHERS THEN
            CONTINUE;
        END;
        IF trap.make('operator' || op.n, op.left || ',' || op.right, kind) THEN
            EXECUTE format('CREATE OPERATOR trap.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = trap.operator%s)',
                           op.name, op.left, op.right, op.n);
        END IF;
    END LOOP;
    FOR op IN SELECT oprname AS name, oprright::regtype AS right, oprresult::regtype AS kind, row_number() OVER () AS n
                FROM pg_operator WHERE oprkind = 'l' AND oprright = ANY (types::regtype[])
    LOOP
        PERFORM trap.make('prefix' || op.n, op.right::text, op.kind::text);
        EXECUTE format('CREATE OPERATOR trap.%s (RIGHTARG = %s, FUNCTION = trap.prefix%s)', op.name, op.right, op.n);
    END LOOP;
END $$;

-- Functions: those of the server that our own name, with the same arguments and with each argument as a
-- type that would be converted to it.
DO $$
DECLARE
    types constant text[] := @types@;
    ours  constant text := trap.text_of_ours();
    f     record;
    other text;
    given text[];
    result text;
BEGIN
    FOR f IN
        SELECT p.proname AS name, p.proretset, p.prorettype::regtype::text AS kind,
               ARRAY(SELECT t::regtype::text FROM unnest(p.proargtypes) t) AS args
          FROM pg_proc p
         WHERE p.pronamespace = 'pg_catalog'::regnamespace
           AND p.proname IN (SELECT lower(w[1]) FROM regexp_matches(ours, '([A-Za-z_0-9]+)\\s*\\(', 'g') w)
           AND NOT p.proargtypes::oid[] && ARRAY['internal', 'cstring']::regtype[]::oid[]
    LOOP
        result := CASE WHEN f.proretset THEN 'SETOF ' ELSE '' END || CASE f.kind WHEN 'record' THEN 'text' ELSE f.kind END;
        PERFORM trap.make(f.name, array_to_string(f.args, ','), result);
        FOR i IN 1..coalesce(cardinality(f.args), 0) LOOP
            FOREACH other IN ARRAY types LOOP
                given := f.args;
                given[i] := other;
                CONTINUE WHEN NOT (f.args[i] IN ('anyelement', 'any', '"any"') AND other !~ '\\[' OR f.args[i] = 'anyarray' AND other ~ '\\['
                    OR EXISTS (SELECT FROM pg_cast c WHERE c.castsource = other::regtype AND c.castcontext = 'i'
                                  AND c.casttarget::regtype::text = f.args[i]));
                PERFORM trap.make(f.name, array_to_string(given, ','),
                                  regexp_replace(regexp_replace(result, 'anyarray', other), 'anyelement', replace(other, '[]', '')));
            END LOOP;
        END LOOP;
    END LOOP;
END $$;

-- Types, as casts name them.
DO $$
DECLARE
    kind text;
BEGIN
    FOR kind IN SELECT DISTINCT t.typname FROM pg_type t
                 WHERE t.oid = ANY (@types@::regtype[]) AND t.typname !~ '^_'
                 UNION ALL SELECT unnest(ARRAY['regclass', 'regtype', 'regproc', 'regprocedure', 'regnamespace', 'xid', 'tid', 'bit'])
    LOOP
        EXECUTE format('CREATE DOMAIN trap.%I AS pg_catalog.%1$I CHECK (trap.spring())', kind);
    END LOOP;
END $$;
"""

# Temporary tables with names of ours and of the server's.
SHADOW = """
DO $$
DECLARE
    relation record;
BEGIN
    FOR relation IN
        SELECT DISTINCT ON (c.relname) c.relname, n.nspname FROM pg_catalog.pg_class c
          JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
         WHERE c.relkind IN ('r', 'p', 'v')
           AND (n.nspname = 'leasehold' OR (n.nspname = 'pg_catalog' AND c.relname ~ '^pg_(locks|class|proc|stat|roles|'
                'namespace|sequence|type|prepared|replication|inherits|attr|index|trigger|constraint|depend|tables|settings)'))
         ORDER BY c.relname, n.nspname
    LOOP
        BEGIN
            EXECUTE pg_catalog.format('CREATE TEMP VIEW %I AS SELECT * FROM %I.%1$I WHERE trap.spring()',
                                      relation.relname, relation.nspname);
        EXCEPTION WHEN invalid_table_definition THEN
            NULL;  -- pg_attribute and others have columns that no view can have
        END;
    END LOOP;
END $$;
"""

# Run one statement with one search_path and undo it: 'done', or its error.
DRIVE = """
CREATE SCHEMA drive;
CREATE FUNCTION drive.outcome(statement text, path text) RETURNS text LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
DECLARE
    message text;
BEGIN
    PERFORM set_config('search_path', path, true);
    EXECUTE statement;
    RAISE EXCEPTION USING ERRCODE = 'ZZ000';
EXCEPTION WHEN SQLSTATE 'ZZ000' THEN
    RETURN 'done';
WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS message = MESSAGE_TEXT;
    RETURN regexp_replace(SQLSTATE || ' ' || message, '[0-9]+', 'N', 'g');
END $$;
"""

# Values for arguments, by name or else by type.
BY_NAME = {
    "verb": "'acquire'", "action": "'retry'", "trigger": "'manual'", "flags": "'{}'", "unset": "'{}'",
    "value": "'{}'", "new_value": "'{}'", "checkpoint": "'{}'", "checkpoints": "ARRAY['{}']", "of_cron": "'0 3 * * *'",
    "cron": "'0 3 * * *'", "of_tz": "'UTC'", "audit": "'full'", "integrity": "'skipped'", "missed": "NULL", "why": "NULL",
    "counts": "'{0,0,0,0,0,0,0,0,0}'", "counted": "'{0,0,0,0,0,0,0}'", "sessions": "NULL", "verdicts": "'{silent}'",
    "finding_types": "'{}'", "findings": "'{}'", "report": "NULL", "dead": "'{}'", "by_ms": "NULL", "of_token": "1",
    "request": "'again'", "of_request": "NULL", "payload_bytes": "NULL", "of_payload_bytes": "NULL", "results_bytes": "NULL",
    "jump_ms": "60000", "known_ms": "0", "rate_per_ms": "1000", "queues": "'{mail,post}'", "exclusive": "false",
}
BY_TYPE = {"text": "'mail'", "boolean": "true", "bigint": "1", "integer": "1", "interval": "'1 min'", "bytea": "'x'",
           "timestamp with time zone": "'2026-01-15 10:00+00'", "text[]": "'{mail}'", "bigint[]": "'{1}'",
           "timestamp with time zone[]": "'{2026-01-15 10:00+00}'", "boolean[]": "'{true}'", "bytea[]": "NULL"}
ALONE = {"action": "1", "audit": "2"}  # where they are numbers
JOBS = {"retry": "3", "delete": "4", "reschedule": "6"}  # jobs for acts that a running job refuses

GRANTED = """
SELECT p.proname, p.pronargs - p.pronargdefaults, coalesce(array_to_string(p.proargnames[:p.pronargs], ','), ''),
       array_to_string(ARRAY(SELECT format_type(t, NULL) FROM unnest(p.proargtypes) t), ',')
  FROM pg_proc p
 WHERE p.pronamespace = 'leasehold'::regnamespace AND p.prorettype <> 'trigger'::regtype
   AND (p.proacl IS NULL OR EXISTS (SELECT FROM aclexplode(p.proacl) a WHERE a.grantee <> p.proowner))
 ORDER BY p.oid
"""

VIEWS = "SELECT relname FROM pg_class WHERE relnamespace = 'leasehold'::regnamespace AND relkind = 'v' ORDER BY 1"


def value_of(name, kind):
    if kind != "text" and name in ALONE:
        value = ALONE[name]
    elif kind == "text" and name == "queues":
        value = "'mail'"
    else:
        value = BY_NAME.get(name) or BY_TYPE[kind]
    base = kind.replace("timestamp with time zone", "timestamptz").replace("boolean", "bool").replace("bigint", "int8")
    base = base.replace("integer", "int4")
    return f"{value}::pg_catalog.{base}"


def calls_of(name, required, names, types):
    """Calls with the required arguments; then with each optional one."""
    given = [(n, JOBS[name] if n == "job" and name in JOBS else value_of(n, t)) for n, t in zip(names, types)]
    must = [f"{n} => {v}" for n, v in given[:required]]
    yield f"SELECT * FROM leasehold.{name}({', '.join(must)})"
    for n, v in given[required:]:
        yield f"SELECT * FROM leasehold.{name}({', '.join([*must, f'{n} => {v}'])})"


def calls(ask):
    """A statement for every view and every function that a role other than the owner may call."""
    yield "INSERT INTO leasehold.job(queue, kind, payload, key) VALUES ('mail', 'big', 'x', 'k')"
    for view in ask(VIEWS).split():
        yield f"SELECT * FROM leasehold.{view}"
    for line in ask(GRANTED).splitlines():
        name, required, names, types = line.split("|")
        yield from calls_of(name, int(required), names.split(",") if names else [], types.split(",") if types else [])


def calls_with_null(ask):
    """Every granted function with each argument in turn NULL: function, argument, statement."""
    for line in ask(GRANTED).splitlines():
        name, required, names, types = line.split("|")
        given = list(zip(names.split(","), types.split(","))) if names else []
        for i, (argument, kind) in enumerate(given):
            values = [f"{n} => {value_of(n, t)}" for j, (n, t) in enumerate(given) if j < int(required) and j != i]
            null = value_of(argument, kind).rsplit("::", 1)[1]
            yield name, argument, f"SELECT * FROM leasehold.{name}({', '.join([*values, f'{argument} => NULL::{null}'])})"


# For each type: values that are too small, too large, or otherwise wrong.
ODD = {
    "bigint": ("'-9223372036854775808'", "'-3'", "'-1'", "0", "40000", "9223372036854775807"),
    "integer": ("'-2147483648'", "'-1'", "0", "40000", "2147483647"),
    "text": ("''", "'no name'", "'{'", "repeat('x', 300)", "repeat('x', 70000)"),
    "interval": ("'-1 s'", "'0'", "'200 years'", "'170000000 years'"),
    "timestamp with time zone": ("'-infinity'", "'infinity'", "'0044-03-15 BC'", "'0001-01-01'", "'10000-01-01'"),
    "boolean": (),
    "bytea": (),
}

# Functions that views call with their own values.
OF_VIEWS = {"due", "ms", "next_due", "span", "stream_text"}


def odd_values(kind):
    """Odd values of that type; for a list also lists of other lengths and shapes."""
    if not kind.endswith("[]"):
        return ODD[kind]
    base = kind[:-2]
    one = {"boolean": "true", "bytea": "'x'", "text": "'mail'", "bigint": "1"}.get(base, "'2026-01-15 10:00+00'") + "::" + base
    return (*(f"ARRAY[{value}::{base}]" for value in ODD[base]), "'{}'", f"ARRAY[{one}, {one}]", f"ARRAY[ARRAY[{one}]]",
            f"ARRAY[ARRAY[{one}, {one}]]", f"ARRAY[NULL::{base}]", f"array_fill({one}, ARRAY[1], ARRAY[2])")


def calls_out_of_range(ask):
    """Every granted function with each odd value for each argument: description, statement."""
    for line in ask(GRANTED).splitlines():
        name, required, names, types = line.split("|")
        given = list(zip(names.split(","), types.split(","))) if names and name not in OF_VIEWS else []
        for i, (argument, kind) in enumerate(given):
            values = [f"{n} => {value_of(n, t)}" for j, (n, t) in enumerate(given) if j < int(required) and j != i]
            for odd in odd_values(kind):
                yield (f"{name}({argument} => {odd})",
                       f"SELECT * FROM leasehold.{name}({', '.join([*values, f'{argument} => {odd}::{kind}'])})")


# The columns of a plain INSERT.
INSERTED = {"queue": "text", "kind": "text", "priority": "integer", "key": "text", "run_at": "timestamp with time zone",
            "expires_at": "timestamp with time zone", "max_attempts": "integer", "lease_ms": "bigint", "backoff_ms": "bigint",
            "backoff_cap_ms": "bigint"}


def inserts_out_of_range():
    for column, kind in INSERTED.items():
        for odd in (*odd_values(kind), "NULL"):
            queue = "" if column == "queue" else ", queue"
            mail = "" if column == "queue" else ", 'mail'"
            yield f"INSERT {column} = {odd}", f"INSERT INTO leasehold.job({column}{queue}) VALUES ({odd}::{kind}{mail})"


def make_traps():
    return MAKE.replace("@types@", "ARRAY[" + ", ".join(f"'{kind}'" for kind in TYPES) + "]")
