/*
 * Opening and closing a SQLite store.
 *
 * The order: coordination file and presence; writer lock; database; refuse a newer schema; look for
 * an unclean stop and a new boot; check and, if necessary, repair the file (health.c); set the
 * journal mode; migrate an older schema; compare the file with the coordination file and the
 * high-water mark; checkpoint the log. The core then runs the recovery. Everything that writes runs
 * under the writer lock, each step in a transaction of its own.
 */
#include "store/sqlite/open.h"
#include "store/sqlite/coordination/watch.h"
#include "store/sqlite/files/files.h"
#include "store/sqlite/files/trust.h"
#include "store/sqlite/reads/degraded.h"
#include "store/sqlite/reads/reads.h"
#include "store/sqlite/repair/repair.h"
#include "store/sqlite/row_sum.h"
#include "store/sqlite/sync.h"

#include "base/clock.h"
#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    SKIPPED_IDS = 1000000,
    OPEN_BYTES = 512 << 10 /* bytes of log that opening may write */
};

/* ---- opening ---- */

static int on_wal(void *arg, sqlite3 *handle, const char *name, int frames)
{
    struct db *db = arg;
    (void)handle;
    (void)name;
    db->wal_frames = frames;
    return SQLITE_OK;
}

/* Make the folder absolute and keep the last part. To SQLite a path with a leading slash is neither
 * a URI nor ":memory:", and it stays valid when the program changes its working directory. */
static int make_absolute(struct db *db, struct lhi_error *err)
{
    char folder[1024], real[PATH_MAX];
    const char *slash = strrchr(db->path, '/');
    const char *name = slash ? slash + 1 : db->path;

    if (slash == NULL)
        lhi_format(folder, sizeof folder, ".");
    else
        lhi_format(folder, sizeof folder, "%.*s", slash == db->path ? 1 : (int)(slash - db->path),
                   db->path);
    if (realpath(folder, real) == NULL) {
        if (errno == ENOENT || errno == ENOTDIR)
            return lhi_fail(err, db->opts.create ? LH_EIO : LH_ENOSTORE,
                            "there is no folder \"%s\" for the store \"%s\"", folder, db->path);
        return lhi_fail_errno(err, errno, "could not look at \"%s\"", folder);
    }
    size_t n = lhi_format(db->file, sizeof db->file, "%s%s%s", real,
                          strcmp(real, "/") == 0 ? "" : "/", name);
    if (n + 16 > sizeof db->file)
        return lhi_fail(err, LH_EINVAL, "path of the store \"%s\" is too long", db->path);
    return LH_OK;
}

static int inspect_path(struct db *db, bool *exists, struct lhi_error *err)
{
    struct stat st;

    *exists = false;
    if (lstat(db->file, &st) != 0) {
        if (errno != ENOENT)
            return lhi_fail_errno(err, errno, "could not look at \"%s\"", db->path);
        if (db->opts.read_only || !db->opts.create)
            return lhi_fail(err, LH_ENOSTORE, "there is no store at \"%s\"", db->path);
        return LH_OK;
    }
    if (S_ISDIR(st.st_mode))
        return lhi_fail(err, LH_EINVAL, "store \"%s\" is a directory, not a database file",
                        db->path);
    if (S_ISLNK(st.st_mode))
        return lhi_fail(err, LH_EINVAL, "store \"%s\" is a symbolic link: name the file itself",
                        db->path);
    if (!S_ISREG(st.st_mode))
        return lhi_fail(err, LH_EINVAL, "store \"%s\" is not a regular file", db->path);
    db->dev = st.st_dev;
    db->ino = st.st_ino;
    *exists = true;
    return LH_OK;
}

/* Create the file before SQLite opens it: SQLite would set its mode by the umask. */
static int create_file(const char *path, struct lhi_error *err)
{
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 && errno != EEXIST)
        return lhi_fail_errno(err, errno, "could not create the store \"%s\"", path);
    if (fd >= 0)
        close(fd);
    return LH_OK;
}

static int refuse_network(const struct db *db, struct lhi_error *err)
{
    if (db->opts.force_network || !lhi_on_network_fs(db->coord.fd))
        return LH_OK;
    return lhi_fail(err, LH_EINVAL,
                    "store \"%s\" is on a network file system, where locks cannot be trusted: "
                    "use a local disk",
                    db->path);
}

/* Refuse a newer schema before anything else. A file that is too damaged to show its version is
 * checked later. */
static int look_first(struct db *db, struct lhi_error *err)
{
    enum contents contents;
    int64_t version;
    bool other;
    int rc = sq_schema_look(&db->conn, &contents, &version, err);

    if (rc != LH_OK)
        return sq_health_repair(db, err);
    if (contents == CONTENTS_OURS && version > lhi_sqlite_migration_count)
        return sq_schema_update(db, err); /* it refuses the schema */
    if (contents != CONTENTS_OURS)
        return LH_OK;
    if ((rc = sq_refuse_foreign_log(db, err)) != LH_OK)
        return rc;
    struct lhi_error ignored;
    if (sq_other_boot(db, &other, &ignored) == LH_OK && other)
        sq_coord_set_recovery_due(&db->coord, true);
    if (sq_coord_recovery_due(&db->coord) && !db->health->due) {
        db->health->due = true;
        db->alone = sq_coord_alone(&db->coord); /* made shared again if nothing is due */
    }
    return sq_health_check(db, err);
}

static int verify_journal(struct db *db, struct lhi_error *err)
{
    bool changed = false;
    int rc = sq_set_wal_mode(&db->conn, &changed, err);

    /* A copy in the store's place is one file in another mode, on purpose. Nobody has changed the
     * mode. */
    if (rc != LH_OK || !changed || sq_coord_wal(&db->coord) == 0)
        return rc;
    lhi_log(&db->log, LH_LOG_WARN, "journal mode of \"%s\" was changed: it is set back to WAL",
            db->path);
    db->health->due = true; /* it is a finding of the report */
    if (!sq_finding_add(&db->health->findings, "warning", "journal",
                        "journal mode was changed: it is set back to WAL"))
        return lhi_no_memory(err);
    return LH_OK;
}

/* The part of opening that runs under the writer lock. */
static int open_for_writing(struct db *db, struct lhi_error *err)
{
    int64_t changes, own;
    sq_health_before_open(db);
    sq_reserve_before_open(db);
    int rc = sq_refuse_emptied(db, err);
    if (rc == LH_OK)
        rc = sq_conn_open(&db->conn, db->file, SQLITE_OPEN_READWRITE, err);
    if (rc != LH_OK)
        rc = sq_health_repair(db, err);
    if (rc == LH_OK && sqlite3_db_readonly(db->conn.db, "main") == 1)
        rc = lhi_fail(err, LH_EREADONLY, "store \"%s\" is not writable", db->path);
    if (rc != LH_OK || (rc = look_first(db, err)) != LH_OK ||
        (rc = sq_schema_update(db, err)) != LH_OK || (rc = verify_journal(db, err)) != LH_OK)
        return rc;
    /* Changing the journal mode has removed the journal, so its name must be taken again. */
    if ((rc = sq_trust_names(db->file, true, err)) != LH_OK)
        return rc;
    if (sq_meta_int(&db->conn, "own_file", 0, &own, err) != LH_OK)
        return err->status;
    sq_coord_set_own(&db->coord, own != 0); /* needed when the file is too damaged to read it */
    (void)sqlite3_wal_hook(db->conn.db, on_wal, db);
    /* SQLite opens the log when it first reads the database. */
    char name[4200];
    if ((rc = sq_int(&db->conn, LHI_SQL_STORE_MARKS, err, 0, &changes, "")) != LH_OK)
        return rc;
    db->wal_ino = sq_inode_of(db, "-wal", name);
    sq_coord_set_wal(&db->coord, db->wal_ino);
    db->shm_ino = sq_inode_of(db, "-shm", name);
    if (sqlite3_file_control(db->conn.db, "main", SQLITE_FCNTL_JOURNAL_POINTER, &db->wal) !=
            SQLITE_OK ||
        db->wal == NULL || db->wal->pMethods == NULL)
        return lhi_fail(err, LH_EFAIL, "could not reach the log of \"%s\"", db->path);
    if ((rc = sq_compare_marks(db, err)) != LH_OK ||
        (rc = sq_resolve_failed_sync(db, err)) != LH_OK)
        return rc;
    /* Making room may checkpoint, and a checkpoint marks everything up to `committed` as synced. So
     * this runs after the marks were compared. */
    sq_reserve_ready(db, OPEN_BYTES, OPEN_BYTES);
    if ((rc = sq_notice_boot(db, err)) != LH_OK || (rc = sq_health_after_open(db, err)) != LH_OK)
        return rc;
    sq_coord_set_dirty(&db->coord, true);
    sq_reserve_keep(db);
    return LH_OK;
}

static int open_writer(struct db *db, bool exists, struct lhi_error *err)
{
    int rc = sq_check_writable(db, err);

    if (rc == LH_OK)
        rc = sq_refuse_file_mount(db, err);
    if (rc != LH_OK || (!exists && (rc = create_file(db->file, err)) != LH_OK))
        return rc;
    if ((rc = sq_coord_open(&db->coord, db->file, true, &db->log, err)) != LH_OK ||
        (rc = refuse_network(db, err)) != LH_OK ||
        (rc = sq_coord_present(&db->coord, db->opts.busy_ms, err)) != LH_OK ||
        (rc = sq_writer_lock(&db->coord, db->opts.busy_ms, "open", err)) != LH_OK)
        return rc;
    /* Finish or undo an interrupted repair or restore first, even if other processes have the store
     * open. The process that did it held the writer lock, so it is dead. */
    int64_t at;
    if (sq_coord_work(&db->coord, &at) != WORK_NONE)
        rc = sq_repair_resume(db, err);
    if (rc == LH_OK)
        rc = sq_refuse_second_name(db, err);
    if (rc == LH_OK)
        rc = sq_trust_names(db->file, true, err);
    if (rc == LH_OK)
        rc = sq_recognize_file(db, !exists, err);
    if (rc == LH_OK)
        rc = open_for_writing(db, err);
    if (rc == LH_ENOSTORE || rc == LH_EINVAL || rc == LH_ENEWER || rc == LH_ESTOPPED)
        sq_coord_remove(&db->coord);
    if (rc == LH_OK)
        sq_trust_warn_of_owner(db->file, &db->log);
    sq_coord_share(&db->coord);
    db->alone = false;
    sq_writer_unlock(&db->coord);
    return rc == LH_OK ? sq_health_check_shared(db, err) : rc;
}

static int load_anchor(struct db *db, struct lhi_error *err)
{
    char boot[40];
    int64_t wall, mono;
    int rc;

    if ((rc = sq_meta_text(&db->conn, "anchor_boot", boot, sizeof boot, err)) < 0 ||
        (rc = sq_meta_int(&db->conn, "anchor_wall", 0, &wall, err)) < 0 ||
        (rc = sq_meta_int(&db->conn, "anchor_mono", 0, &mono, err)) < 0)
        return rc;
    if (sq_clock_of_this_boot(db, boot))
        db->clock = wall - mono;
    return LH_OK;
}

int sq_conn_open_to_read(struct db *db, struct conn *conn, struct lhi_error *err)
{
    int rc = sq_conn_open(conn, db->file, SQLITE_OPEN_READONLY, err);

    /* SQLite opens the log when it first reads the database. */
    if (rc == LH_OK)
        rc = sq_exec(conn, "SELECT 1 FROM sqlite_schema LIMIT 1", err);
    if (rc == LH_EREADONLY || rc == LH_EIO || rc == LH_ENOSPC)
        return sq_degraded_open(db, conn, err);
    if (rc == LH_OK)
        sq_degraded_note(db);
    return rc;
}

static int open_reader(struct db *db, struct lhi_error *err)
{
    enum contents contents;
    int64_t version;
    int rc = sq_conn_open_to_read(db, &db->conn, err);

    if (rc != LH_OK || (rc = sq_schema_look(&db->conn, &contents, &version, err)) != LH_OK)
        return rc;
    db->known = contents == CONTENTS_EMPTY && sq_coord_knows_file(db);
    if ((rc = sq_refuse_emptied(db, err)) != LH_OK)
        return rc;
    if (contents != CONTENTS_OURS)
        return lhi_fail(err, LH_ENOSTORE,
                        "database \"%s\" has no leasehold tables: \"leasehold migrate\" adds them",
                        db->path);
    if (version > lhi_sqlite_migration_count)
        return lhi_fail(err, LH_ENEWER,
                        "store \"%s\" has schema version %lld, this program knows up to %d: "
                        "use a newer leasehold",
                        db->path, (long long)version, lhi_sqlite_migration_count);
    if (version < lhi_sqlite_migration_count)
        return lhi_fail(err, LH_ENOSTORE,
                        "store \"%s\" has the older schema version %lld: \"leasehold migrate\" "
                        "brings it up to date",
                        db->path, (long long)version);
    char problem[480], name[4200];
    if (db->seen == 0) { /* the handle reads the live files, which are these */
        db->wal_ino = sq_inode_of(db, "-wal", name);
        db->shm_ino = sq_inode_of(db, "-shm", name);
    }
    /* Wake-ups need the coordination file. A handle that only reads does not create it. */
    struct lhi_error said;
    rc = db->coord.page != NULL ? LH_OK
                                : sq_coord_open(&db->coord, db->file, false, &db->log, &said);
    if (rc == LH_EINVAL)
        lhi_log(&db->log, LH_LOG_WARN, "%s", said.text);
    if (rc == LH_OK && sq_coord_present(&db->coord, db->opts.busy_ms, err) != LH_OK)
        return err->status;
    if (sq_names_problem(db, problem, sizeof problem) != LH_OK)
        lhi_log(&db->log, LH_LOG_WARN, "%s", problem);
    return load_anchor(db, err);
}

/* The last clean close checkpoints the log, so that the database file alone is the store. */
static void checkpoint_log(struct db *db)
{
    struct lhi_error ignored;

    if (sq_writer_lock(&db->coord, db->opts.busy_ms, "close", &ignored) != LH_OK)
        return;
    bool well = __atomic_load_n(&db->stopped, __ATOMIC_ACQUIRE) == 0 &&
                !sq_coord_sync_failed(&db->coord) && !sq_db_files_changed(db);
    if (!well)
        (void)sq_db_save_log(db);
    if (well && sq_coord_alone(&db->coord)) {
        (void)sq_db_checkpoint(db, SQLITE_CHECKPOINT_TRUNCATE, NULL);
        sq_coord_share(&db->coord);
    }
    sq_conn_close(&db->reader);
    sq_conn_close(&db->conn); /* under the writer lock, because closing may write to the log too */
    if (sq_coord_leave_writers(&db->coord) && well && !sq_coord_sync_failed(&db->coord))
        sq_coord_set_dirty(&db->coord, false);
    sq_writer_unlock(&db->coord);
}

static void db_close(void *self)
{
    struct db *db = self;

    sq_foreign_writers_unwatch(db);
    sq_death_watch_clear(db);
    if (!db->opts.read_only && db->wal != NULL)
        checkpoint_log(db);
    sq_conn_close(&db->reader);
    sq_conn_close(&db->conn);
    sq_coord_close(&db->coord);
    sq_fork_guard_leave(&db->fork_guard); /* SQLite is not used after this point */
    sq_db_free_caches(db);
    pthread_mutex_destroy(&db->mutex);
    pthread_mutex_destroy(&db->sync_mutex);
    pthread_mutex_destroy(&db->read_mutex);
    pthread_mutex_destroy(&db->watch_mutex);
    lhi_free(db);
}

static const struct lhi_store_ops sqlite_ops = {
    .kind = "sqlite",
    .clock = CLOCK_MONOTONIC,
    .close = db_close,
    .perform = sq_db_perform,
    .read = sq_db_read,
    .now = sq_db_now,
    .ticket = sq_db_ticket,
    .subscribe = sq_db_subscribe,
    .wait = sq_db_wait,
    .deaths = sq_db_deaths,
    .wake = sq_db_wake,
};

/* SQLite takes the file for no database. It is a damaged store if the coordination file names it or
 * its contents show it. */
static int refuse_contents(struct db *db, struct lhi_error *err)
{
    if (!sq_coord_knows_file(db) && !sq_header_is_zeroed(db))
        return lhi_fail(err, LH_EINVAL, "store \"%s\" is not a SQLite database", db->path);
    return lhi_fail(err, LH_ECORRUPT, "store \"%s\" is damaged: it does not begin as a database%s",
                    db->path, db->opts.repair ? "" : "; \"leasehold check --repair\" repairs it");
}

/* The kernel shows the offsets of the time namespace of future children, not of this process. */
static int refuse_unknown_clock(const struct db *db, struct lhi_error *err)
{
    if (!db->time.differs_from_children)
        return LH_OK;
    return lhi_fail(
        err, LH_EMISUSE,
        "store \"%.200s\" cannot be used in this process: its clock is not that of the time "
        "namespace it has made for its children; open the store in a child",
        db->path);
}

int lhi_sqlite_open(const char *path, const lh_open_opts *opts, const struct lhi_log *log,
                    struct lhi_store *out, struct lhi_health *health, struct lhi_error *err)
{
    bool exists;
    int rc;

    if (strlen(path) == 0 || strlen(path) >= sizeof((struct db *)0)->path - 16)
        return lhi_fail(err, LH_EINVAL, "store path is %zu bytes long: 1 to 1000 are allowed",
                        strlen(path));
    struct db *db = lhi_calloc(1, sizeof *db);
    if (db == NULL)
        return lhi_no_memory(err);
    lhi_format(db->path, sizeof db->path, "%s", path);
    db->opts = *opts;
    if (db->opts.busy_ms == 0)
        db->opts.busy_ms = 5000;
    db->log = *log;
    db->generation = -1;
    db->coord.fd = -1;
    db->watch_stop[0] = db->watch_stop[1] = -1;
    pthread_mutex_init(&db->mutex, NULL);
    pthread_mutex_init(&db->sync_mutex, NULL);
    db->stuck_sync = -1;
    pthread_mutex_init(&db->read_mutex, NULL);
    pthread_mutex_init(&db->watch_mutex, NULL);
    sq_death_watch_init(db);
    db->health = health;
    lhi_boot_id(db->boot);
    lhi_time_ns(&db->time);

    rc = sq_fork_guard_enter(&db->fork_guard, path, err);
    if (rc == LH_OK)
        rc = refuse_unknown_clock(db, err);
    if (rc == LH_OK)
        rc = make_absolute(db, err);
    if (rc == LH_OK)
        rc = inspect_path(db, &exists, err);
    if (rc == LH_OK)
        rc = opts->read_only ? open_reader(db, err) : open_writer(db, exists, err);
    /* A store that is being moved, or was moved, is not recovered: every act is refused with that
     * reason. */
    if (rc == LH_OK && health->due &&
        (rc = sq_move_closed(db, &db->conn, db->closed, sizeof db->closed, err)) == LH_OK)
        health->due = db->closed[0] == '\0';
    if (rc != LH_OK) {
        if (rc == LH_EINVAL && db->conn.db != NULL &&
            (sqlite3_errcode(db->conn.db) & 0xff) == SQLITE_NOTADB)
            rc = refuse_contents(db, err);
        else if (strstr(err->text, path) == NULL) {
            /* SQLite's message does not name the file. */
            struct lhi_error said = *err;
            rc = lhi_fail(err, said.status, "store \"%.200s\": %.200s%s", path, said.text,
                          said.status == LH_ECORRUPT && !db->opts.repair
                              ? "; \"leasehold check --repair\" repairs it"
                              : "");
        }
        db->opts.read_only = true; /* there is no log to checkpoint */
        db_close(db);
        return rc;
    }
    db->health = NULL;
    out->ops = &sqlite_ops;
    out->self = db;
    return LH_OK;
}
