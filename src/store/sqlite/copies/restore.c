/*
 * Restoring: a copy becomes the store.
 *
 * The copy is checked and stays unchanged. From it a new file is made beside the store, under the
 * writer lock. One transaction in the new file ends everything that was in progress when the copy
 * was made: running jobs are released, named leases are freed, workers count as dead. The new file
 * continues above the epoch, the changes and the ids of both the copy and the replaced store, so
 * that nothing is issued twice. Jobs that are held in the replaced store go into quarantine.
 *
 * Then the new file takes the store's place and the old file is kept. If the process is killed at
 * any step, either the old store or the new one is in place; the note in the coordination file
 * tells the next open what to finish or to remove.
 */
#include "store/sqlite/acts/acts.h"
#include "store/sqlite/files/files.h"
#include "store/sqlite/files/trust.h"
#include "store/sqlite/open.h"
#include "store/sqlite/repair/repair.h"

#include "base/clock.h"
#include "base/hook.h"
#include "base/sys.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    /* If the replaced store cannot be read, it is unknown how often the machine was booted since
     * the copy was made. Each boot raised its epoch. */
    UNKNOWN_EPOCHS = 16,
};

struct restore {
    struct fork_guard fork_guard;
    struct db *place; /* the store's name and coordination file */
    struct db *fresh; /* first the copy, then the new file: its connection and caches */
    const char *from; /* the copy, as the caller gave it */
    char copy_file[PATH_MAX];
    struct conn copy;
    bool copy_had_log;
    bool entered;
    int64_t at;               /* the time in the names of the new files */
    char file[4300];          /* the new file */
    char uuid[40];            /* of the copy */
    int64_t epoch, changes;   /* of the copy */
    struct replaced replaced; /* the replaced store */
    int64_t copied_at, jobs, released, held;
};

static const char reason[] = "restored from a copy";

/* ---- the copy ---- */

static bool has_log(const struct restore *r)
{
    char name[PATH_MAX + 8];
    struct stat st;

    lhi_format(name, sizeof name, "%s-wal", r->copy_file);
    return stat(name, &st) == 0;
}

static int find_copy(struct restore *r, struct lhi_error *err)
{
    struct stat st;

    if (realpath(r->from, r->copy_file) == NULL || stat(r->copy_file, &st) != 0) {
        if (errno == ENOENT || errno == ENOTDIR)
            return lhi_fail(err, LH_EINVAL, "there is no copy \"%.300s\"", r->from);
        return lhi_fail_errno(err, errno, "could not look at the copy \"%.300s\"", r->from);
    }
    if (!S_ISREG(st.st_mode))
        return lhi_fail(err, LH_EINVAL, "copy \"%.300s\" is not a file", r->from);
    if (lhi_same_file(r->copy_file, r->place->file))
        return lhi_fail(err, LH_EINVAL, "\"%.300s\" is the store itself", r->from);
    r->copy_had_log = has_log(r);
    return LH_OK;
}

static int open_copy(struct restore *r, struct lhi_error *err)
{
    int rc = find_copy(r, err);

    if (rc != LH_OK)
        return rc;
    lhi_format(r->fresh->path, sizeof r->fresh->path, "%s", r->from);
    lhi_format(r->fresh->file, sizeof r->fresh->file, "%s", r->copy_file);
    /* One snapshot from the check to the last page, even if another process changes the copy
     * meanwhile. */
    rc = sq_copy_begin(r->fresh, &r->copy, err);
    if (rc < 0 && (rc != LH_EINVAL || r->copy.db == NULL))
        return sq_copy_failed("could not read the copy", r->from, err);
    if ((rc = sq_copy_sound(&r->copy, r->from, NULL, err)) == LH_OK &&
        (rc = sq_meta_text(&r->copy, "store_uuid", r->uuid, sizeof r->uuid, err)) == LH_OK &&
        (rc = sq_meta_int(&r->copy, "epoch", 0, &r->epoch, err)) == LH_OK &&
        (rc = sq_int(&r->copy, LHI_SQL_STORE_MARKS, err, 0, &r->changes, "")) == LH_OK)
        rc = sq_int(&r->copy, LHI_SQL_COPY_MADE_AT, err, 0, &r->copied_at, "");
    return rc;
}

/* Reading a file in WAL mode has created an empty log beside it. SQLite removes it again, unless
 * another process uses it by now. */
static void close_copy(struct restore *r)
{
    struct lhi_error ignored;

    sq_conn_close(&r->copy);
    if (r->copy_file[0] == '\0' || r->copy_had_log || !has_log(r))
        return;
    if (sq_conn_open(&r->copy, r->copy_file, SQLITE_OPEN_READWRITE, &ignored) == LH_OK) {
        (void)sqlite3_db_config(r->copy.db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0, NULL);
        (void)sq_exec(&r->copy, "SELECT count(*) FROM sqlite_schema", &ignored);
    }
    sq_conn_close(&r->copy);
}

/* ---- the place ---- */

static int look_at_place(struct restore *r, const char *path, struct lhi_error *err)
{
    struct db *db = r->place;
    struct stat st;

    if (strlen(path) == 0 || strlen(path) >= sizeof db->path - 16)
        return lhi_fail(err, LH_EINVAL, "store path is %zu bytes long: 1 to 1000 are allowed",
                        strlen(path));
    lhi_format(db->path, sizeof db->path, "%s", path);
    int rc = sq_copy_place(path, "store", db->file, err);
    if (rc != LH_OK)
        return rc;
    bool exists = lstat(db->file, &st) == 0;
    if (!exists && errno != ENOENT)
        return lhi_fail_errno(err, errno, "could not look at \"%.300s\"", path);
    if (exists && !S_ISREG(st.st_mode))
        return lhi_fail(err, LH_EINVAL, "store \"%.300s\" is not a regular file", path);
    return exists ? sq_refuse_file_mount(db, err) : LH_OK;
}

/* From here on no other process writes, neither in this place nor to the replaced file. */
static int enter_place(struct restore *r, struct lhi_error *err)
{
    struct db *db = r->place;
    int64_t at;
    int rc = sq_coord_open(&db->coord, db->file, true, &db->log, err);

    if (rc == LH_OK && !db->opts.force_network && lhi_on_network_fs(db->coord.fd))
        rc =
            lhi_fail(err, LH_EINVAL,
                     "store \"%.300s\" is on a network file system, where locks cannot be trusted: "
                     "use a local disk",
                     db->path);
    if (rc != LH_OK || (rc = sq_coord_present(&db->coord, db->opts.busy_ms, err)) != LH_OK ||
        (rc = sq_writer_lock(&db->coord, db->opts.busy_ms, "restore", err)) != LH_OK)
        return rc;
    r->entered = true;
    if ((rc = sq_trust_names(db->file, true, err)) != LH_OK)
        return rc;
    /* The process that wrote the note held the writer lock, so it is dead. */
    return sq_coord_work(&db->coord, &at) == WORK_NONE ? LH_OK : sq_repair_resume(db, err);
}

/* ---- the new file: everything in progress ends ---- */

static int set_epoch(struct restore *r, struct txn *txn, struct lhi_error *err)
{
    int64_t known = r->replaced.epoch > r->epoch ? r->replaced.epoch : r->epoch;
    int64_t epoch = known + (r->replaced.counted ? 1 : UNKNOWN_EPOCHS);

    if (epoch > MOST_EPOCHS)
        return lhi_fail(err, LH_EFAIL, "copy \"%.200s\" has used up its %d epochs", r->from,
                        (int)MOST_EPOCHS);
    txn->db->epoch = epoch;
    if (sq_epoch_set(txn->conn, epoch, err) < 0 ||
        sq_run(txn->conn, LHI_SQL_STORE_GENERATION, err, "") < 0)
        return err->status;
    r->epoch = epoch;
    return LH_OK;
}

/* No worker has died, so these jobs are released, not recovered. */
static int release_running(struct restore *r, struct txn *txn, struct lhi_error *err)
{
    struct held {
        int64_t id, token;
    } batch[LHI_BATCH];
    size_t n;
    int rc = LH_OK;

    do {
        sqlite3_stmt *stmt =
            sq_stmt(txn->conn, LHI_SQL_RESTORE_RUNNING, err, "i", (int64_t)LHI_BATCH);
        if (stmt == NULL)
            return err->status;
        for (n = 0; n < LHI_BATCH && (rc = sq_step(txn->conn, stmt, err)) == LH_OK; n++)
            batch[n] = (struct held){sqlite3_column_int64(stmt, 0), sqlite3_column_int64(stmt, 1)};
        sq_reset(stmt);
        if (rc == LH_EMPTY)
            rc = LH_OK;
        for (size_t i = 0; i < n && rc == LH_OK; i++)
            rc = sq_release_by_operator(txn, batch[i].id, batch[i].token, 0, false, "restore", err);
        r->released += (int64_t)n;
    } while (rc == LH_OK && n == LHI_BATCH);
    return rc;
}

static int tell_of_it(struct restore *r, struct txn *txn, struct lhi_error *err)
{
    char data[256], words[400];

    lhi_format(words, sizeof words, "%s: \"%.300s\"", reason, r->from);
    lhi_format(data, sizeof data,
               "{\"jobs\":%lld,\"copied_at\":%lld,\"released\":%lld,\"held_back\":%lld,"
               "\"epoch\":%lld}",
               (long long)r->jobs, (long long)r->copied_at, (long long)r->released,
               (long long)r->held, (long long)r->epoch);
    return sq_txn_event(
        txn,
        &(struct event){
            .type = "store.restored", .actor = "restore", .reason = words, .data = data},
        err);
}

static int end_what_was_under_way(struct restore *r, struct txn *txn, struct lhi_error *err)
{
    struct conn *conn = txn->conn;
    int rc;

    txn->tick = (r->replaced.changes > r->changes ? r->replaced.changes : r->changes) + 1;
    if ((rc = sq_clock_check(txn, err)) < 0 || (rc = set_epoch(r, txn, err)) < 0 ||
        (rc = release_running(r, txn, err)) < 0 ||
        (rc = sq_replaced_carry_over(&r->replaced, txn, err)) < 0 ||
        (rc = sq_run(conn, LHI_SQL_RESTORE_LEASE_EVENTS, err, "it", txn->now, reason)) < 0 ||
        (rc = sq_run(conn, LHI_SQL_RESTORE_LEASES, err, "i", txn->now)) < 0 ||
        (rc = sq_run(conn, LHI_SQL_RESTORE_WORKER_EVENTS, err, "it", txn->now, reason)) < 0 ||
        (rc = sq_run(conn, LHI_SQL_RESTORE_WORKERS, err, "")) < 0 ||
        (rc = sq_run(conn, LHI_SQL_RESTORE_FORGET, err, "")) < 0 ||
        (rc = sq_int(conn, LHI_SQL_COPY_JOBS, err, 0, &r->jobs, "")) < 0 ||
        (rc = sq_int(conn, LHI_SQL_COPY_IN_QUARANTINE, err, 0, &r->held, "i", txn->now)) < 0 ||
        (rc = tell_of_it(r, txn, err)) < 0)
        return rc;
    return sq_txn_flush(txn, err);
}

/* Read settings and clock of the new file. It is not the store yet, so the coordination file is not
 * changed. */
static int txn_know(struct txn *txn, struct db *db, struct lhi_error *err)
{
    memset(txn, 0, sizeof *txn);
    txn->db = db;
    txn->conn = &db->conn;
    txn->anchored = true;
    return sq_txn_reload(txn, err);
}

static int finish_fresh(struct restore *r, struct lhi_error *err)
{
    struct db *db = r->fresh;
    struct txn txn = {0};
    int rc = sq_copy_open(&db->conn, r->file, err);

    if (rc != LH_OK || (rc = sq_schema_update(db, err)) != LH_OK ||
        (rc = sq_run(&db->conn, LHI_SQL_TXN_BEGIN, err, "")) < 0)
        return rc;
    if ((rc = txn_know(&txn, db, err)) == LH_OK &&
        (rc = end_what_was_under_way(r, &txn, err)) == LH_OK)
        rc = sq_run(&db->conn, LHI_SQL_TXN_COMMIT, err, "");
    lhi_arena_clear(&txn.arena);
    LHI_POINT("restore:settled");
    return rc < 0 ? rc : sq_copy_finish(&db->conn, r->file, err);
}

/* ---- all of it ---- */

/* Choose a free name. */
static void choose_name(struct restore *r)
{
    struct stat st;

    r->at = lhi_wall_ms() - 1;
    do
        sq_aside_name(r->place, "repair", ++r->at, "", r->file);
    while (lstat(r->file, &st) == 0);
}

static int make_fresh(struct restore *r, struct lhi_error *err)
{
    int rc = sq_copy_make(&r->copy, r->file, NULL, err);

    LHI_POINT("restore:copied");
    if (rc == LH_OK && (rc = sq_copy_was_whole(r->fresh, err)) == LH_OK)
        rc = finish_fresh(r, err);
    sq_conn_close(&r->fresh->conn);
    if (rc < 0)
        return sq_copy_failed("could not restore from", r->from, err);
    LHI_POINT("restore:made");
    return LH_OK;
}

static int replace_store(struct restore *r, char kept[4300], struct lhi_error *err)
{
    struct coord *coord = &r->place->coord;
    struct lhi_error ignored;
    int64_t at;
    int rc = sq_replaced_read(&r->replaced, r->place, r->uuid, err);

    if (rc != LH_OK)
        return rc;
    choose_name(r);
    if ((rc = sq_repair_note(r->place, WORK_MAKING, r->at, err)) == LH_OK &&
        (rc = make_fresh(r, err)) == LH_OK)
        rc = sq_replace_file(r->place, r->file, "replaced", r->at, kept, err);
    if (rc != LH_OK) {
        /* An incomplete replacement is finished by its note. */
        if (sq_coord_work(coord, &at) == WORK_MAKING)
            (void)sq_repair_resume(r->place, &ignored);
        return rc;
    }
    /* Whatever happened to the old store, the new one is sound and no job runs in it. */
    if (sq_coord_alone(coord)) {
        sq_coord_set_dirty(coord, false);
        sq_coord_set_recovery_due(coord, false);
        sq_coord_share(coord);
    }
    /* Processes that wait for a job in the old store poll, and learn that it was replaced. */
    sq_wake_all_queues(coord);
    sq_wake_commit(coord);
    return LH_OK;
}

static int restore(struct restore *r, char kept[4300], struct lhi_error *err)
{
    int rc = open_copy(r, err);

    if (rc == LH_OK && (rc = enter_place(r, err)) == LH_OK)
        rc = replace_store(r, kept, err);
    if (rc != LH_OK)
        sq_coord_remove(&r->place->coord);
    if (r->entered)
        sq_writer_unlock(&r->place->coord);
    return rc;
}

static struct db *new_place(const lh_open_opts *opts, const struct lhi_log *log)
{
    struct db *db = lhi_calloc(1, sizeof *db);

    if (db == NULL)
        return NULL;
    db->opts = *opts;
    db->opts.create = true; /* allow the migration of a copy of an older version */
    if (db->opts.busy_ms == 0)
        db->opts.busy_ms = 5000;
    db->log = *log;
    db->generation = -1;
    db->coord.fd = -1;
    lhi_boot_id(db->boot);
    lhi_time_ns(&db->time);
    return db;
}

static void free_place(struct db *db)
{
    if (db == NULL)
        return;
    sq_conn_close(&db->conn);
    sq_coord_close(&db->coord);
    sq_db_free_caches(db);
    lhi_free(db);
}

static void restore_free(struct restore *r)
{
    close_copy(r);
    free_place(r->place);
    free_place(r->fresh);
    sq_replaced_clear(&r->replaced);
    sq_fork_guard_leave(&r->fork_guard); /* SQLite is not used after this point */
    lhi_free(r);
}

static struct restore *restore_new(const char *from, const lh_open_opts *opts,
                                   const struct lhi_log *log)
{
    struct restore *r = lhi_calloc(1, sizeof *r);

    if (r == NULL)
        return NULL;
    r->from = from;
    r->place = new_place(opts, log);
    r->fresh = new_place(opts, log);
    if (r->place != NULL && r->fresh != NULL)
        return r;
    restore_free(r);
    return NULL;
}

int lhi_sqlite_restore(const char *path, const char *from, const lh_open_opts *opts,
                       const struct lhi_log *log, char *kept, size_t keptlen, struct lhi_error *err)
{
    char name[4300] = "";
    struct restore *r = restore_new(from, opts, log);

    if (r == NULL)
        return lhi_no_memory(err);
    int rc = sq_fork_guard_enter(&r->fork_guard, path, err);
    if (rc == LH_OK)
        rc = look_at_place(r, path, err);
    if (rc == LH_OK)
        rc = restore(r, name, err);
    restore_free(r);
    if (rc == LH_OK && kept != NULL && keptlen > 0)
        lhi_format(kept, keptlen, "%s", name);
    return rc;
}
