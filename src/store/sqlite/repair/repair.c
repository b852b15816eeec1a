/*
 * Repairing a damaged store.
 *
 * The repair works on a copy of the database and its log, in the folder of the store, under the
 * writer lock, with every other process locked out and a note in the coordination file. It tries
 * three methods until one gives a file that SQLite calls sound: rebuild the indexes (REINDEX), let
 * SQLite copy everything (VACUUM INTO), read every row around the damage (salvage.c). The result
 * takes the store's place (replace_file.c), and the damaged file is kept. If nothing helps or
 * anything fails, the store is unchanged, and the files that were made are removed.
 */
#include "store/sqlite/repair/repair.h"
#include "store/sqlite/open.h"
#include "store/sqlite/reads/reads.h"

#include "base/clock.h"
#include "base/hook.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct repair {
    struct db *db;
    struct damaged_file source;
    int64_t at;       /* the time in the names of the new files */
    char copy[4300];  /* of the store */
    int64_t folded;   /* frames of the log in the copy */
    bool touched;     /* the copy was changed by a method that failed */
    char fresh[4300]; /* the file that will take the store's place */
    const char *how;
    bool without_log;
    struct inventory inventory;
    struct repair_result result;
};

/* ---- names ---- */

static const char *const work_files[] = {"", "-vacuum", "-rows", "-rows-without-log"};
enum { WORK_FILES = sizeof work_files / sizeof work_files[0] };
static const char *const words[] = {"damaged", "replaced"};
enum { WORDS = sizeof words / sizeof words[0] };

/* Remove all files that a repair has made, except for `keep`. */
static void remove_work(const struct db *db, int64_t at, const char *keep)
{
    char name[4300];

    for (int i = 0; i < WORK_FILES; i++) {
        sq_aside_name(db, "repair", at, work_files[i], name);
        if (strcmp(name, keep) != 0)
            sq_copy_remove(name);
    }
    for (int i = 0; i < WORDS; i++) {
        sq_replace_source(db, words[i], at, name);
        sq_copy_remove(name);
    }
}

/* Choose a time for which no file exists. */
static void choose_time(struct repair *r)
{
    bool taken;

    r->at = lhi_wall_ms() - 1;
    do {
        char name[4300];
        struct stat st;
        r->at++;
        taken = false;
        for (int i = 0; i < WORK_FILES; i++) {
            sq_aside_name(r->db, "repair", r->at, work_files[i], name);
            taken = taken || lstat(name, &st) == 0;
        }
    } while (taken);
    sq_aside_name(r->db, "repair", r->at, "", r->copy);
}

/* ---- the methods ---- */

/* This method does not help. Other failures end the repair. */
static bool next_rung(int rc)
{
    return rc == LH_ECORRUPT || rc == LH_EINVAL || rc == LH_EFAIL || rc == LH_ETOOBIG;
}

/* SQLite reports a page number beyond all bounds as a full disk. If the disk really is full,
 * salvage will fail with that. */
static bool engine_gives_up(int rc)
{
    return next_rung(rc) || rc == LH_ENOSPC;
}

static int make_copy(struct repair *r, bool log, struct lhi_error *err)
{
    sq_copy_remove(r->copy);
    r->touched = false;
    return sq_source_copy(&r->source, r->db, r->copy, log, &r->folded, err);
}

/* If the file is sound, finish it: it will take the store's place. */
static int accept(struct repair *r, const char *file, const char *how, struct repair_result *result,
                  struct lhi_error *err)
{
    struct conn conn = {0};
    int rc = sq_copy_open(&conn, file, err);

    if (rc == LH_OK && (rc = sq_copy_sound(&conn, file, NULL, err)) == LH_OK &&
        (rc = sq_schema_as_made(&conn, err)) == LH_OK &&
        (rc = sq_repair_finish(&conn, &r->inventory, result, err)) == LH_OK)
        rc = sq_copy_finish(&conn, file, err);
    sq_conn_close(&conn);
    if (rc != LH_OK)
        return rc;
    lhi_format(r->fresh, sizeof r->fresh, "%s", file);
    r->how = how;
    return LH_OK;
}

static int by_reindex(struct repair *r, struct lhi_error *err)
{
    struct conn conn = {0};
    int rc = sq_copy_open(&conn, r->copy, err);

    r->touched = true;
    if (rc == LH_OK)
        rc = sq_exec(&conn, "REINDEX", err);
    if (rc == LH_OK)
        rc = sq_copy_finish(&conn, r->copy, err);
    sq_conn_close(&conn);
    LHI_POINT("repair:reindexed");
    return rc == LH_OK ? accept(r, r->copy, "REINDEX", &r->result, err) : rc;
}

static int vacuum_into(struct conn *conn, const char *file, struct lhi_error *err)
{
    sqlite3_stmt *stmt = NULL;
    int fd, status = sq_file_create(file, &fd, err);

    if (status != LH_OK)
        return status;
    close(fd);
    int rc = sqlite3_prepare_v2(conn->db, "VACUUM INTO ?1", -1, &stmt, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_text(stmt, 1, file, -1, SQLITE_STATIC);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(stmt);
    status = rc == SQLITE_DONE ? LH_OK : sq_fail(conn, rc, err);
    (void)sqlite3_finalize(stmt);
    return status;
}

static int by_vacuum(struct repair *r, struct lhi_error *err)
{
    struct conn conn = {0};
    char file[4300];
    int rc = sq_copy_open(&conn, r->copy, err);

    sq_repair_result_clear(&r->result);
    sq_aside_name(r->db, "repair", r->at, "-vacuum", file);
    if (rc == LH_OK)
        rc = vacuum_into(&conn, file, err);
    sq_conn_close(&conn);
    LHI_POINT("repair:vacuumed");
    if (rc == LH_OK)
        rc = accept(r, file, "VACUUM INTO", &r->result, err);
    if (rc != LH_OK)
        sq_copy_remove(file);
    return rc;
}

static int salvage_into(struct repair *r, const char *suffix, char file[4300],
                        struct repair_result *result, struct lhi_error *err)
{
    sq_aside_name(r->db, "repair", r->at, suffix, file);
    int rc = sq_salvage(r->db, r->copy, file, result, err);
    LHI_POINT("repair:salvaged");
    return rc;
}

/* Is the store better without its log? Then the changes in the log are missing. The high-water mark
 * stays, so opening the store needs --accept-loss. */
static bool prefers(const struct repair *r, const struct repair_result *without, int with_rc)
{
    const struct repair_result *with = &r->result;
    const char *known = sq_coord_uuid(&r->db->coord);

    if (with_rc != LH_OK)
        return true;
    if (known[0] != '\0' && strcmp(with->uuid, without->uuid) != 0)
        return strcmp(without->uuid, known) == 0;
    return without->jobs > with->jobs;
}

static int salvage_without_log(struct repair *r, int with_rc, char file[4300],
                               struct lhi_error *err)
{
    struct repair_result without = {0};
    struct lhi_error said = {0};
    char other[4300];
    int rc = make_copy(r, false, &said);

    if (rc == LH_OK)
        rc = salvage_into(r, "-rows-without-log", other, &without, &said);
    if (rc != LH_OK && !next_rung(rc)) {
        *err = said;
        sq_repair_result_clear(&without);
        return rc;
    }
    if (rc == LH_OK && prefers(r, &without, with_rc)) {
        sq_repair_result_clear(&r->result);
        r->result = without;
        r->result.lost = true;
        r->without_log = true;
        lhi_format(file, 4300, "%s", other);
        return LH_OK;
    }
    sq_repair_result_clear(&without);
    return with_rc;
}

static int by_rows(struct repair *r, struct lhi_error *err)
{
    char file[4300];
    int rc = r->touched ? make_copy(r, true, err) : LH_OK;

    sq_repair_result_clear(&r->result);
    if (rc == LH_OK)
        rc = salvage_into(r, "-rows", file, &r->result, err);
    if (rc != LH_OK && !next_rung(rc))
        return rc;
    if (r->folded > 0 && (rc != LH_OK || r->result.lost))
        rc = salvage_without_log(r, rc, file, err);
    if (rc != LH_OK)
        return rc;
    return accept(r, file, "reading row by row", &r->result, err);
}

/* SQLite's methods keep what SQLite can reach. If a page of a table is inconsistent, that may be
 * less than there is. */
static int try_methods(struct repair *r, struct lhi_error *err)
{
    int rc = make_copy(r, true, err);

    if (rc == LH_OK)
        rc = sq_inventory_read(&r->inventory, r->copy, err);
    LHI_POINT("repair:copied");
    if (rc != LH_OK)
        return rc;
    if (r->inventory.tables_whole && !engine_gives_up(rc = by_reindex(r, err)))
        return rc;
    if (r->inventory.tables_whole && !engine_gives_up(rc = by_vacuum(r, err)))
        return rc;
    return by_rows(r, err);
}

/* ---- findings ---- */

static bool tell_harvest(const struct repair *r, lh_findings *out)
{
    const lh_findings *said = &r->result.findings;
    bool ok = true;

    for (size_t i = 0; i < said->n; i++)
        ok = ok && sq_finding_add(out, said->finding[i].level, said->finding[i].what, "%s",
                                  said->finding[i].text);
    if (r->result.jobs + r->result.rows > 0)
        ok = ok && sq_finding_add(out, "info", "repair",
                                  "repaired by %s: %lld jobs and %lld other rows were salvaged",
                                  r->how, (long long)r->result.jobs, (long long)r->result.rows);
    else if (r->result.lost)
        ok = ok && sq_finding_add(out, "info", "repair", "repaired by %s", r->how);
    else
        ok =
            ok && sq_finding_add(out, "info", "repair", "repaired by %s, no loss is known", r->how);
    if (r->without_log)
        ok = ok && sq_finding_add(out, "error", "lost",
                                  "log of the store was left out: with it, more would be lost");
    return ok;
}

static int newest_change(const char *file, int64_t *at, struct lhi_error *err)
{
    struct conn conn = {0};
    int rc = sq_conn_open(&conn, file, SQLITE_OPEN_READONLY, err);

    if (rc == LH_OK)
        rc = sq_int(&conn, LHI_SQL_CHECK_NEWEST, err, 0, at, "");
    sq_conn_close(&conn);
    return rc;
}

static int tell(const struct repair *r, const char *kept, int64_t newest, lh_findings *out,
                struct lhi_error *err)
{
    char time[40] = "unknown";

    if (newest > 0)
        lh_time_format(newest, time, sizeof time);
    if (!tell_harvest(r, out) ||
        !sq_finding_add(out, "info", "repair", "recovery point: the newest change found is of %s",
                        time) ||
        !sq_finding_add(out, "info", "repair", "the damaged file is kept as \"%.400s\"", kept) ||
        !sq_finding_add(out, "warning", "repair", "make a backup now: leasehold backup FILE"))
        return lhi_no_memory(err);
    lhi_log(&r->db->log, r->result.lost ? LH_LOG_ERROR : LH_LOG_WARN,
            "store \"%s\" was repaired by %s%s; the damaged file is kept as \"%s\"", r->db->path,
            r->how, r->result.lost ? ", with losses" : "", kept);
    return LH_OK;
}

/* ---- all of it ---- */

/* Log the findings before the file is replaced: a process that is killed afterwards cannot. */
static void log_harvest(const struct repair *r)
{
    const lh_findings *said = &r->result.findings;

    for (size_t i = 0; i < said->n; i++)
        lhi_log(&r->db->log,
                strcmp(said->finding[i].level, "error") == 0 ? LH_LOG_ERROR : LH_LOG_WARN,
                "store \"%s\": %s", r->db->path, said->finding[i].text);
}

static int repair_held(struct repair *r, struct lhi_health *health, struct lhi_error *err)
{
    struct db *db = r->db;
    struct lhi_error ignored;
    char kept[4300];
    int64_t newest = 0;

    choose_time(r);
    int rc = sq_repair_note(db, WORK_MAKING, r->at, err);
    LHI_POINT("repair:noted");
    if (rc == LH_OK)
        rc = try_methods(r, err);
    if (rc == LH_OK)
        rc = newest_change(r->fresh, &newest, err);
    LHI_POINT("repair:made");
    if (rc == LH_OK) {
        /* After the replacement there is no note any more by which the next open would remove
         * it. */
        remove_work(db, r->at, r->fresh);
        log_harvest(r);
        rc = sq_replace_file(db, r->fresh, "damaged", r->at, kept, err);
    }
    /* The next open finishes an incomplete replacement. */
    int64_t at;
    if (rc != LH_OK && sq_coord_work(&db->coord, &at) != WORK_REPLACING) {
        remove_work(db, r->at, "");
        (void)sq_repair_note(db, WORK_NONE, 0, &ignored);
    }
    if (rc != LH_OK)
        return rc;
    health->repaired = true;
    return tell(r, kept, newest, &health->findings, err);
}

int sq_repair_store(struct db *db, struct lhi_health *health, struct lhi_error *err)
{
    struct repair *r = lhi_calloc(1, sizeof *r);

    health->repair_attempted = true;
    if (r == NULL)
        return lhi_no_memory(err);
    r->db = db;
    int rc = sq_source_lock(&r->source, db, err);
    if (rc == LH_OK)
        rc = repair_held(r, health, err);
    sq_source_unlock(&r->source);
    sq_inventory_free(&r->inventory);
    sq_repair_result_clear(&r->result);
    lhi_free(r);
    if (!next_rung(rc))
        return rc;
    struct lhi_error said = *err;
    return lhi_fail(err, LH_ECORRUPT,
                    "store \"%.150s\" is damaged and could not be repaired (%.150s); it is as it "
                    "was: put a backup in its place with \"leasehold restore FILE\"",
                    db->path, said.text);
}

static int tell_resumed(struct db *db, const char *kept, struct lhi_error *err)
{
    lhi_log(&db->log, LH_LOG_WARN,
            "finished an interrupted repair of \"%s\"; the previous file is kept as \"%s\"",
            db->path, kept);
    if (db->health != NULL &&
        !sq_finding_add(&db->health->findings, "warning", "repair",
                        "finished an interrupted repair or restore: its findings are in the log of "
                        "that program; the previous file is kept as \"%.300s\"",
                        kept))
        return lhi_no_memory(err);
    return LH_OK;
}

int sq_repair_resume(struct db *db, struct lhi_error *err)
{
    int64_t at;
    enum coord_work work = sq_coord_work(&db->coord, &at);
    int rc = LH_OK;

    if (work == WORK_NONE)
        return LH_OK;
    for (int i = 0; i < WORDS && work == WORK_REPLACING && rc == LH_OK; i++) {
        char ready[4300], kept[4300];
        struct stat st;
        sq_replace_source(db, words[i], at, ready);
        if (lstat(ready, &st) != 0)
            continue;
        rc = sq_replace_finish(db, words[i], at, kept, err);
        if (rc == LH_OK)
            rc = tell_resumed(db, kept, err);
    }
    if (rc != LH_OK)
        return rc;
    remove_work(db, at, "");
    if ((rc = sq_sync_folder(db->file, err)) != LH_OK)
        return rc;
    return sq_repair_note(db, WORK_NONE, 0, err);
}
