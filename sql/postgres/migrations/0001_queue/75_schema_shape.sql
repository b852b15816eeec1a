-- What the schema consists of, now and when it was created: `leasehold check` reports differences.

-- One row per object of the schema. `portable`: the text is the same on every version of the server; otherwise
-- it is the server's own rendering. Event partitions are left out, because they come and go. So is this
-- function, because a restored dump renders its unions differently. It has a search_path because the server's
-- functions that render views resolve operators in the caller's.
CREATE FUNCTION leasehold.shape() RETURNS TABLE (kind text, name text, shape text, portable boolean)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
WITH ours AS (
    SELECT c.oid, c.relname::text AS name, c.relkind, c.relpersistence::text
      FROM pg_catalog.pg_class c
     WHERE c.relnamespace = 'leasehold'::regnamespace AND c.relname !~ '^event_[0-9]{8}(_|$)'
)
SELECT f.kind, f.name, pg_catalog.md5(pg_catalog.replace(f.text, 'leasehold.', '')) AS shape, f.portable
  FROM (
    SELECT 'table' AS kind, o.name, o.relpersistence AS text, true AS portable
      FROM ours o WHERE o.relkind IN ('r', 'p')
    UNION ALL
    SELECT 'column', o.name || '.' || a.attname,
           pg_catalog.format_type(a.atttypid, a.atttypmod) || a.attnotnull || a.attidentity::text, true
      FROM ours o JOIN pg_catalog.pg_attribute a ON a.attrelid = o.oid
     WHERE o.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT 'default of column', o.name || '.' || a.attname, pg_catalog.pg_get_expr(d.adbin, d.adrelid), false
      FROM ours o JOIN pg_catalog.pg_attrdef d ON d.adrelid = o.oid
      JOIN pg_catalog.pg_attribute a ON a.attrelid = o.oid AND a.attnum = d.adnum
    UNION ALL
    SELECT 'constraint', n.conname || ' on ' || o.name, pg_catalog.pg_get_constraintdef(n.oid), false
      FROM ours o JOIN pg_catalog.pg_constraint n ON n.conrelid = o.oid
     WHERE n.contype IN ('c', 'p', 'u', 'f', 'x')
    UNION ALL
    SELECT 'index', o.name, pg_catalog.pg_get_indexdef(o.oid), false
      FROM ours o WHERE o.relkind IN ('i', 'I')
    UNION ALL
    SELECT 'trigger', t.tgname || ' on ' || o.name, pg_catalog.pg_get_triggerdef(t.oid) || t.tgenabled::text, false
      FROM ours o JOIN pg_catalog.pg_trigger t ON t.tgrelid = o.oid AND NOT t.tgisinternal
    UNION ALL
    SELECT 'view', o.name, pg_catalog.pg_get_viewdef(o.oid), false FROM ours o WHERE o.relkind = 'v'
    UNION ALL
    SELECT 'sequence', o.name, '', true FROM ours o WHERE o.relkind = 'S'
    UNION ALL
    SELECT 'function', p.proname || '(' || pg_catalog.replace(pg_catalog.oidvectortypes(p.proargtypes),
                                                              'leasehold.', '') || ')',
           coalesce(pg_catalog.pg_get_function_sqlbody(p.oid), p.prosrc) || p.prosecdef || p.provolatile::text
           || coalesce(p.proconfig::text, ''), p.prosqlbody IS NULL
      FROM pg_catalog.pg_proc p WHERE p.pronamespace = 'leasehold'::regnamespace AND p.proname <> 'shape') f;
END;

CREATE TABLE leasehold.original_shape (
    kind     text    NOT NULL,
    name     text    NOT NULL,
    shape    text    NOT NULL,
    portable boolean NOT NULL,
    server   integer NOT NULL,  -- major version that rendered the text
    PRIMARY KEY (kind, name)
);
