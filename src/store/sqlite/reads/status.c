/* Reads about the store as a whole: its status, what is due next, and whether a claim would find a job. */
#include "base/clock.h"
#include "base/sys.h"
#include "store/sqlite/acts/recovery.h"
#include "store/sqlite/files/files.h"
#include "store/sqlite/open.h"
#include "store/sqlite/reads/degraded.h"
#include "store/sqlite/reads/reads.h"
#include "store/sqlite/rows.h"
#include "store/sqlite/sync.h"
#include <string.h>
#include <sys/stat.h>

static int64_t file_size(const char *path, const char *suffix)
{
    char full[4200];
    struct stat st;
    lhi_format(full, sizeof full, "%s%s", path, suffix);
    return stat(full, &st) == 0 ? (int64_t)st.st_size : 0;
}

static int count_workers(struct conn *conn, int64_t now, lh_store_info *info, struct lhi_error *err)
{
    sqlite3_stmt *stmt = sq_stmt(conn, LHI_SQL_WORKER_COUNTS, err, "i", now);
    int rc = stmt ? sq_step(conn, stmt, err) : err->status;
    if (rc < 0)
        return rc;
    info->workers_alive = sqlite3_column_int64(stmt, 0);
    info->workers_late = sqlite3_column_int64(stmt, 1);
    info->workers_dead = sqlite3_column_int64(stmt, 2);
    info->workers_degraded = sqlite3_column_int64(stmt, 3);
    sq_reset(stmt);
    return LH_OK;
}

static int64_t sooner(int64_t a, int64_t b)
{
    return a < 0 ? b : b < 0 ? a : a < b ? a : b;
}

/* Is something due now, and in how many ms is the next thing due? -1: nothing is scheduled. */
static int next_due(struct conn *conn, int64_t now, int64_t wall, bool *due, int64_t *next_ms,
                    struct lhi_error *err)
{
    sqlite3_stmt *stmt = sq_stmt(conn, LHI_SQL_NEXT_DUE, err, "ii", now, wall);
    int rc = stmt ? sq_step(conn, stmt, err) : err->status;

    if (rc < 0)
        return rc;
    *due = sqlite3_column_int(stmt, 0) != 0;
    *next_ms = -1;
    for (int i = 1; i <= 6; i++) {
        /* run_at, expires_at of jobs, and schedules use the wall clock */
        bool by_wall = i == 2 || i >= 5;
        int64_t at = sqlite3_column_int64(stmt, i);
        if (at != 0)
            *next_ms = sooner(*next_ms, at - (by_wall ? wall : now));
    }
    sq_reset(stmt);
    return LH_OK;
}

int sq_read_stats(struct db *db, struct conn *conn, struct lhi_act *act, struct lhi_error *err)
{
    lh_store_info *info = act->info;
    int64_t now = sq_db_now(db), version, next_ms;
    char closed[sizeof db->closed];
    struct age age;
    bool due;
    int rc;

    memset(info, 0, sizeof *info);
    info->kind = "sqlite";
    lhi_format(info->url, sizeof info->url, "sqlite:%s", db->path);
    info->wal_bytes = file_size(db->file, "-wal");
    info->file_bytes = file_size(db->file, "");
    info->free_bytes = lhi_free_bytes(db->file);
    info->clock_skew_ms = lhi_wall_ms() - now;
    if ((rc = sq_read_age(db, conn, &age, err)) < 0 ||
        (rc = next_due(conn, now, lhi_wall_ms(), &due, &next_ms, err)) < 0 ||
        (rc = sq_read_totals(conn, info, err)) < 0 ||
        (rc = sq_meta_text(conn, "degraded", info->degraded, sizeof info->degraded, err)) < 0)
        return rc;
    info->next_due_at = due ? now : next_ms >= 0 ? now + next_ms : 0;
    lhi_format(info->uuid, sizeof info->uuid, "%s", age.uuid);
    info->changes = age.changes < 0 ? 0 : age.changes;
    if ((rc = sq_meta_int(conn, "schema_version", 0, &version, err)) < 0 ||
        (rc = sq_meta_int(conn, "epoch", 0, &info->epoch, err)) < 0 ||
        (rc = sq_move_closed(db, conn, closed, sizeof closed, err)) < 0)
        return rc;
    info->schema = (int)version;
    if (db->degraded[0] != '\0')
        lhi_format(info->degraded, sizeof info->degraded, "%s", db->degraded);
    else if (closed[0] != '\0')
        lhi_format(info->degraded, sizeof info->degraded, "%.255s", closed);
    else if (db->coord.page != NULL && sq_coord_sync_failed(&db->coord))
        lhi_format(info->degraded, sizeof info->degraded, "a sync of the log has failed");
    else if (age.missing > 0)
        lhi_format(info->degraded, sizeof info->degraded,
                   "store is older than it was: acknowledged changes are missing");
    else if (db->coord.page != NULL && sq_reserve_spent(db))
        lhi_format(info->degraded, sizeof info->degraded,
                   "device is full: new jobs are refused, other acts use the reserve");
    return count_workers(conn, now, info, err);
}

/* Is a job of these queues and kinds pending? */
static int poll_pending(struct conn *conn, const lh_claim_opts *opts, int64_t *pending,
                        struct lhi_error *err)
{
    size_t n_kinds = opts->n_kinds > 0 ? opts->n_kinds : 1;
    int rc = LH_OK;

    for (size_t i = 0; i < opts->n_queues * n_kinds && *pending == 0 && rc >= 0; i++) {
        const char *queue = opts->queues[i / n_kinds];
        rc = opts->n_kinds > 0 ? sq_int(conn, LHI_SQL_POLL_KIND, err, 0, pending, "tt", queue,
                                        opts->kinds[i % n_kinds])
                               : sq_int(conn, LHI_SQL_POLL_PENDING, err, 0, pending, "t", queue);
    }
    return rc;
}

/* Would a claim find something to do? If not, when is the next thing due? */
int sq_read_poll(struct db *db, struct conn *conn, struct lhi_act *act, struct lhi_error *err)
{
    const lh_claim_opts *opts = act->poll.opts;
    int64_t now = sq_db_now(db), wall = lhi_wall_ms(), pending = 0;
    int rc;

    if (opts != NULL && (rc = poll_pending(conn, opts, &pending, err)) < 0)
        return rc;
    bool due = false;
    rc = next_due(conn, now, wall, &due, &act->poll.next_ms, err);
    act->poll.found = pending != 0 || due;
    return rc;
}

/* Does a job of these queues and kinds wait for its next attempt, or for a slot of its queue? */
int sq_read_retries(struct conn *conn, struct lhi_act *act, struct lhi_error *err)
{
    const lh_claim_opts *opts = act->retries.opts;
    size_t n_kinds = opts->n_kinds > 0 ? opts->n_kinds : 1;
    int64_t found = 0;

    for (size_t i = 0; i < opts->n_queues * n_kinds && found == 0; i++) {
        const char *kind = opts->n_kinds > 0 ? opts->kinds[i % n_kinds] : NULL;
        const char *queue = opts->queues[i / n_kinds];
        int rc = sq_int(conn, LHI_SQL_JOB_RETRY_WAITS, err, 0, &found, "tt", queue, kind);
        if (rc >= 0 && found == 0)
            rc = kind ? sq_int(conn, LHI_SQL_JOB_LIMITED_OF_KIND, err, 0, &found, "tt", queue, kind)
                      : sq_int(conn, LHI_SQL_JOB_LIMITED, err, 0, &found, "t", queue);
        if (rc < 0)
            return rc;
    }
    act->retries.waiting = found != 0;
    return LH_OK;
}
