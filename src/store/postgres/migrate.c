/*
 * migrate.c: finds, compares and updates the schema.
 *
 * All steps are one transaction under an advisory lock. If two processes migrate at once, the
 * second one finds nothing to do.
 */
#include "store/postgres/wire.h"

#include <string.h>

/* "leasehol" as a number. No other program should lock it. */
#define MIGRATION_LOCK "SELECT pg_catalog.pg_advisory_xact_lock(7810758949120829292)"

int lhi_postgres_schema_version(void)
{
    return lhi_postgres_migration_count;
}

int pg_schema_look(struct txn *txn, struct schema *out, struct lhi_error *err)
{
    struct rows rows;

    *out = (struct schema){0};
    int rc = pg_call(txn, LHI_POSTGRES_STORE_LOOK, NULL, &rows, err);
    if (rc != LH_OK)
        return rc;
    bool ours = rows.n == 1 && pg_row_bool(&rows, 0, 0);
    pg_rows_free(&rows);
    if (!ours)
        return LH_OK;
    if ((rc = pg_call(txn, LHI_POSTGRES_STORE_ABOUT, NULL, &rows, err)) != LH_OK)
        return rc;
    if (rows.n == 1) {
        out->version = (int)pg_row_int(&rows, 0, 0);
        out->recovery_due = pg_row_bool(&rows, 0, 1);
        pg_saw_job(txn->pg, pg_row_int(&rows, 0, 2));
    }
    pg_rows_free(&rows);
    if (out->version < 1)
        return lhi_fail(err, LH_ECORRUPT,
                        "schema leasehold of \"%s\" has no version: restore a backup",
                        txn->pg->target.name);
    return LH_OK;
}

static int migrate(struct txn *txn, struct schema *schema, struct lhi_error *err)
{
    struct args args = {0};
    int rc = pg_call_text(txn, MIGRATION_LOCK, NULL, NULL, err);

    if (rc == LH_OK)
        rc = pg_schema_look(txn, schema, err);
    for (int i = schema->version; i < lhi_postgres_migration_count && rc == LH_OK; i++)
        rc = pg_call_script(txn, lhi_postgres_migrations[i].text, err);
    if (rc != LH_OK)
        return rc;
    pg_arg_int(&args, lhi_postgres_migration_count);
    return pg_call_text(txn,
                        "UPDATE leasehold.meta SET schema_version = $1 WHERE schema_version < $1",
                        &args, NULL, err);
}

/* With another encoding, a payload that is not UTF-8 could be inserted, and its claim would
 * fail. */
static int check_encoding(const struct txn *txn, struct lhi_error *err)
{
    const char *encoding = PQparameterStatus(txn->conn->pg, "server_encoding");

    if (encoding == NULL || strcmp(encoding, "UTF8") == 0)
        return LH_OK;
    return lhi_fail(err, LH_EINVAL, "database \"%s\" has the encoding %s: UTF8 is allowed",
                    txn->pg->target.database, encoding);
}

static int update(struct txn *txn, struct schema *schema, struct lhi_error *err)
{
    txn->deadline = pg_real_ms() + SCAN_MS;
    txn->writes = true;
    pg_txn_wrap(txn);
    int rc = migrate(txn, schema, err);
    int from = schema->version; /* as seen under the lock */
    if (rc == LH_OK)
        rc = pg_txn_commit(txn, err);
    if (rc == LH_OK && txn->conn->notices.unconfirmed)
        rc = pg_fail_unconfirmed(txn, err);
    if (rc != LH_OK) {
        pg_txn_rollback(txn);
        return rc;
    }
    txn->wrapped = txn->writes = false;
    if (from < lhi_postgres_migration_count)
        lhi_log(&txn->pg->log, LH_LOG_INFO, "store \"%s\" migrated from version %d to %d",
                txn->pg->target.name, from, lhi_postgres_migration_count);
    return pg_schema_look(txn, schema, err);
}

int pg_schema_update(struct txn *txn, struct schema *schema, struct lhi_error *err)
{
    const struct pg *pg = txn->pg;

    if (schema->version > lhi_postgres_migration_count)
        return lhi_fail(err, LH_ENEWER,
                        "store \"%s\" has schema version %d, this program knows up to %d: "
                        "use a newer leasehold",
                        pg->target.name, schema->version, lhi_postgres_migration_count);
    if (schema->version == lhi_postgres_migration_count)
        return LH_OK;
    if (schema->version == 0 && (pg->opts.read_only || !pg->opts.adopt))
        return lhi_fail(err, LH_ENOSTORE,
                        "database \"%s\" has no leasehold schema: \"leasehold migrate\" adds it",
                        pg->target.database);
    if (pg->opts.read_only || (!pg->opts.create && !pg->opts.adopt))
        return lhi_fail(err, LH_ENOSTORE,
                        "store \"%s\" has the older schema version %d: \"leasehold migrate\" "
                        "brings it up to date",
                        pg->target.name, schema->version);
    int rc = check_encoding(txn, err);
    return rc == LH_OK ? update(txn, schema, err) : rc;
}
