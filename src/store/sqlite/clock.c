/*
 * Leases are measured in elapsed time; deadlines stay readable as wall-clock times.
 *
 * The store keeps an anchor: the boot id, the wall clock and the monotonic clock at one moment.
 * Store time is the anchor's wall time plus the time that the monotonic clock has run since. If the
 * wall clock is more than a second away from store time (it was set, or the machine slept), one
 * transaction shifts every running deadline by the jump and renews the anchor, before any deadline
 * is compared. So no live worker loses its job when the clock is set by an hour, and no lease lasts
 * longer than it should.
 *
 * The monotonic clock is the machine's: a process in a time namespace subtracts its offset. A
 * process without /proc knows neither its boot nor that offset, and uses the wall clock only.
 */
#include "store/sqlite/acts/acts.h"
#include "store/sqlite/open.h"
#include "store/sqlite/reads/reads.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

enum { JUMP_MS = 1000 };

/* The CHECKs of the tables refuse smaller times: they are seconds that were passed by mistake. */
#define EARLIEST_MS INT64_C(100000000000)

int64_t sq_machine_ms(const struct db *db)
{
    return lhi_mono_ms() - db->time.ahead_ms;
}

bool sq_clock_of_this_boot(const struct db *db, const char *anchor_boot)
{
    return db->boot[0] != '\0' && strcmp(anchor_boot, db->boot) == 0;
}

int64_t sq_db_now(void *self)
{
    struct db *db = self;
    bool shared = db->boot[0] != '\0' && db->coord.page != NULL;
    int64_t offset = shared ? sq_coord_clock(&db->coord) : 0;

    if (offset == 0)
        offset = __atomic_load_n(&db->clock, __ATOMIC_ACQUIRE);
    return offset ? sq_machine_ms(db) + offset : lhi_wall_ms();
}

int sq_clock_usable(int64_t wall_ms, struct lhi_error *err)
{
    char text[64];

    if (wall_ms >= EARLIEST_MS)
        return LH_OK;
    return lhi_fail(err, LH_EFAIL,
                    "the clock of this machine says %s: the store takes times from 1973-03-03 on: "
                    "set the clock",
                    lh_time_format(wall_ms, text, sizeof text));
}

int sq_clock_set_anchor(struct txn *txn, struct lhi_error *err)
{
    struct conn *conn = txn->conn;
    int64_t wall = lhi_wall_ms(), mono = sq_machine_ms(txn->db);
    int rc;

    if ((rc = sq_clock_usable(wall, err)) < 0 ||
        (rc = sq_meta_set_text(conn, "anchor_boot", txn->db->boot, err)) < 0 ||
        (rc = sq_meta_set_int(conn, "anchor_wall", wall, err)) < 0 ||
        (rc = sq_meta_set_int(conn, "anchor_mono", mono, err)) < 0 ||
        (rc = sq_run(conn, LHI_SQL_STORE_GENERATION, err, "")) < 0)
        return rc;
    txn->db->generation = -1;
    __atomic_store_n(&txn->db->clock, wall - mono, __ATOMIC_RELEASE);
    txn->anchored = true; /* other processes see the new anchor after the commit */
    txn->now = txn->wall = wall;
    txn->changed = txn->durable = true;
    return LH_OK;
}

/* A damaged row fails a statement over all running jobs. Then each job is changed by itself. The
 * damaged row stays unchanged; a recovery sets its job aside. */
static int change_running(struct txn *txn, enum lhi_sql one, int64_t value, const char *boot,
                          struct lhi_error *err)
{
    sqlite3_stmt *stmt = sq_stmt(txn->conn, LHI_SQL_JOB_RUNNING_IDS, err, "");
    int64_t *ids = NULL;
    size_t n = 0;
    int rc = stmt ? LH_OK : err->status;

    while (rc == LH_OK && (rc = sq_step(txn->conn, stmt, err)) == LH_OK) {
        int64_t *grown = sq_grow(ids, n, sizeof *ids);
        if (grown == NULL) {
            sq_reset(stmt);
            lhi_free(ids);
            return lhi_no_memory(err);
        }
        ids = grown;
        ids[n++] = sqlite3_column_int64(stmt, 0);
    }
    for (size_t i = 0; i < n && rc >= 0; i++) {
        rc = boot ? sq_run(txn->conn, one, err, "tii", boot, value, ids[i])
                  : sq_run(txn->conn, one, err, "ii", value, ids[i]);
        if (rc < 0 && sq_is_damage(txn, ids[i], rc, err))
            rc = sq_skip_job(txn, ids[i], err);
    }
    lhi_free(ids);
    return rc < 0 ? rc : LH_OK;
}

static int shift_running(struct txn *txn, int64_t jump, struct lhi_error *err)
{
    int rc = sq_run(txn->conn, LHI_SQL_CLOCK_SHIFT_JOBS, err, "i", jump);

    if (rc != LH_ELOST && rc != LH_ECORRUPT)
        return rc;
    lhi_error_clear(err);
    return change_running(txn, LHI_SQL_CLOCK_SHIFT_JOB, jump, NULL, err);
}

/* Running jobs of processes of the old boot, and jobs without such a process. */
static int boot_running(struct txn *txn, const char *boot, struct lhi_error *err)
{
    int rc = sq_run(txn->conn, LHI_SQL_BOOT_JOBS_OF_PROCESSES, err, "it", txn->now, boot);

    if (rc >= 0)
        rc = sq_run(txn->conn, LHI_SQL_BOOT_JOBS_WITHOUT_PROCESS, err, "it", txn->now, boot);
    if (rc != LH_ELOST && rc != LH_ECORRUPT)
        return rc;
    lhi_error_clear(err);
    return change_running(txn, LHI_SQL_BOOT_JOB, txn->now, boot, err);
}

int sq_clock_check(struct txn *txn, struct lhi_error *err)
{
    struct conn *conn = txn->conn;
    int64_t jump;
    char data[64];
    int rc;

    int64_t offset = __atomic_load_n(&txn->db->clock, __ATOMIC_ACQUIRE);
    txn->wall = lhi_wall_ms();
    txn->now = offset ? sq_machine_ms(txn->db) + offset : txn->wall;
    /* The wall clock has lost its time. If store time is known, it continues without the wall
     * clock. */
    if (txn->wall < EARLIEST_MS && offset != 0)
        txn->wall = txn->now;
    if ((rc = sq_clock_usable(txn->wall, err)) < 0)
        return rc;
    jump = txn->wall - txn->now;
    if (llabs(jump) <= JUMP_MS)
        return LH_OK;
    if ((rc = shift_running(txn, jump, err)) < 0 ||
        (rc = sq_run(conn, LHI_SQL_CLOCK_SHIFT_IN_QUARANTINE, err, "i", jump)) < 0 ||
        (rc = sq_run(conn, LHI_SQL_CLOCK_SHIFT_QUARANTINE, err, "i", jump)) < 0 ||
        (rc = sq_run(conn, LHI_SQL_CLOCK_SHIFT_BUCKETS, err, "i", jump)) < 0 ||
        (rc = sq_run(conn, LHI_SQL_CLOCK_SHIFT_LEASES, err, "i", jump)) < 0 ||
        (rc = sq_run(conn, LHI_SQL_CLOCK_SHIFT_WORKERS, err, "i", jump)) < 0 ||
        (rc = sq_run(conn, LHI_SQL_SCHEDULE_REWIND, err, "i", txn->wall)) < 0 ||
        (rc = sq_clock_set_anchor(txn, err)) < 0)
        return rc;
    lhi_format(data, sizeof data, "{\"jump_ms\":%lld}", (long long)jump);
    sq_txn_log(txn, LH_LOG_WARN, NULL, "clock jumped by %lld ms: leases shifted with it",
               (long long)jump);
    return sq_txn_event(
        txn, &(struct event){.type = "clock.jump", .actor = "system/clock", .data = data}, err);
}

int sq_raise_epoch(struct txn *txn, struct lhi_error *err)
{
    int64_t epoch;
    int rc;

    if ((rc = sq_meta_int(txn->conn, "epoch", 0, &epoch, err)) < 0)
        return rc;
    /* Tokens stay below 2^53: 13 bits of epoch above a count of 40 bits. */
    if (epoch >= 8191)
        return lhi_fail(err, LH_EFAIL, "store has used up its 8191 epochs: move it to a new store");
    if ((rc = sq_epoch_set(txn->conn, epoch + 1, err)) < 0)
        return rc;
    txn->db->epoch = epoch + 1;
    txn->reloaded = true; /* an act that is undone takes the epoch back */
    return sq_run(txn->conn, LHI_SQL_STORE_GENERATION, err, "") < 0 ? err->status : LH_OK;
}

int sq_clock_new_boot(struct txn *txn, struct lhi_error *err)
{
    struct conn *conn = txn->conn;
    const char *boot = txn->db->boot;
    int rc;

    if ((rc = sq_clock_set_anchor(txn, err)) < 0 || (rc = sq_raise_epoch(txn, err)) < 0 ||
        (rc = boot_running(txn, boot, err)) < 0 ||
        (rc = sq_run(conn, LHI_SQL_BOOT_LEASES, err, "i", txn->now)) < 0 ||
        (rc = sq_run(conn, LHI_SQL_SCHEDULE_REWIND, err, "i", txn->wall)) < 0)
        return rc; /* the recovery that follows checks the workers */
    sq_txn_log(txn, LH_LOG_INFO, NULL, "the machine has booted: epoch is %lld",
               (long long)txn->db->epoch);
    return LH_OK;
}
