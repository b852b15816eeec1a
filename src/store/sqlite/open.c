/*
 * open.c: opening and closing a SQLite store.
 *
 * Order: side file and presence → turnstile → the database → is it ours? → newer: refuse → older:
 * migrate → is it the store the side file knows, and not older than its mark? → a new boot? →
 * settings. Everything that writes happens under the turnstile, each step in one transaction.
 */
#include "store/sqlite/db.h"

#include "base/clock.h"
#include "base/hook.h"
#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BUSY_STEPS = 1550 };

/* ---- a connection ---- */

/* Writers of ours never meet here: they queue in the turnstile. A foreign program on the same file
 * may hold the write lock, and whoever opens a store first rebuilds its index: met with small steps,
 * for 1.55 s in all (50 ms, doubled four times). */
static int patience(void *arg, int steps)
{
    (void)arg;
    if (steps >= BUSY_STEPS)
        return 0;
    lhi_sleep_ms(1);
    return 1;
}

void conn_patient(struct conn *conn, bool patient)
{
    (void)sqlite3_busy_handler(conn->db, patient ? patience : NULL, NULL);
}

int conn_open(struct conn *conn, const char *path, int flags, struct lhi_error *err)
{
    int rc = sqlite3_open_v2(path, &conn->db,
                             flags | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE, NULL);
    if (rc != SQLITE_OK)
        return sql_fail(conn, rc, err);
    (void)sqlite3_extended_result_codes(conn->db, 1);
    conn_patient(conn, true);
    (void)sqlite3_db_config(conn->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    (void)sqlite3_db_config(conn->db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    (void)sqlite3_db_config(conn->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    return sql_exec(
        conn,
        "PRAGMA foreign_keys = ON; PRAGMA cell_size_check = ON; PRAGMA mmap_size = 0;"
        "PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = 0; PRAGMA temp_store = MEMORY",
        err);
}

/* Which file it is: its inode and when that was made, because a number is given out again. */
static uint64_t inode_of(const struct db *db, const char *suffix, char path[4200])
{
    struct statx st;

    lhi_format(path, 4200, "%s%s", db->file, suffix);
    if (statx(AT_FDCWD, path, 0, STATX_INO | STATX_BTIME, &st) != 0)
        return 0;
    uint64_t born = (uint64_t)st.stx_btime.tv_sec * 1000000000U + st.stx_btime.tv_nsec;
    return st.stx_ino ^ (born * UINT64_C(0x9e3779b97f4a7c15));
}

bool db_moved(const struct db *db)
{
    struct stat st;
    return stat(db->file, &st) != 0 || st.st_dev != db->dev || st.st_ino != db->ino;
}

bool db_disturbed(const struct db *db)
{
    char shm[4200];
    return db_moved(db) || inode_of(db, "-shm", shm) != db->shm_ino;
}

static int on_wal(void *arg, sqlite3 *handle, const char *name, int frames)
{
    struct db *db = arg;
    (void)handle;
    (void)name;
    db->wal_frames = frames;
    return SQLITE_OK;
}

/* Several of us may open a new file at once, and a foreign program may be busy with it. */
int set_wal_mode(struct conn *conn, struct lhi_error *err)
{
    int64_t deadline = lhi_mono_ms() + BUSY_STEPS;
    for (;;) {
        sqlite3_stmt *stmt = NULL;
        int rc = sqlite3_prepare_v2(conn->db, "PRAGMA journal_mode = WAL", -1, &stmt, NULL);
        if (rc == SQLITE_OK)
            rc = sqlite3_step(stmt);
        bool wal = rc == SQLITE_ROW &&
                   sqlite3_stricmp((const char *)sqlite3_column_text(stmt, 0), "wal") == 0;
        int status = rc == SQLITE_ROW ? LH_OK : sql_fail(conn, rc, err);
        (void)sqlite3_finalize(stmt);
        if (wal)
            return LH_OK;
        if (status == LH_OK)
            return lhi_fail(err, LH_EFAIL, "database cannot be switched to WAL mode here");
        if (status != LH_EBUSY || lhi_mono_ms() >= deadline)
            return status;
        lhi_sleep_ms(1);
    }
}

/* ---- is it the store the side file knows? ---- */

static int accept_loss(struct txn *txn, void *arg, struct lhi_error *err)
{
    (void)arg;
    txn->changed = true;
    return raise_epoch(txn, err);
}

static int compare_marks(struct db *db, struct lhi_error *err)
{
    char uuid[40];
    int64_t changes;
    int rc;

    if ((rc = meta_text(&db->conn, "store_uuid", uuid, sizeof uuid, err)) < 0 ||
        (rc = sql_int(&db->conn, LHI_SQL_STORE_MARKS, err, 0, &changes, "")) < 0)
        return rc;
    if (strcmp(side_uuid(&db->side), uuid) != 0) {
        /* Another store was put in this place. Whoever has the old one open must close it first. */
        if (side_uuid(&db->side)[0] != '\0' && !side_alone(&db->side))
            return lhi_fail(err, LH_ESTOPPED,
                            "database \"%s\" was replaced while other processes have it open",
                            db->path);
        side_set_uuid(&db->side, uuid);
        side_reset_marks(&db->side, (uint64_t)changes);
        side_set_sync_failed(&db->side, false);
        side_set_frames(&db->side, 0);
        side_share(&db->side);
        return LH_OK;
    }
    if ((uint64_t)changes >= side_synced(&db->side)) {
        /* The database is the truth: the mark may be behind it (a writer died before it set the
         * mark), or ahead (the log was cut). */
        side_set_committed(&db->side, (uint64_t)changes);
        return LH_OK;
    }
    if (!db->opts.accept_loss)
        return lhi_fail(err, LH_EOLDER,
                        "store \"%s\" is older than it was: %llu acknowledged changes are missing "
                        "(a lost -wal file, or an old copy); \"leasehold check --accept-loss\" "
                        "goes on without them",
                        db->path, (unsigned long long)(side_synced(&db->side) - (uint64_t)changes));
    side_reset_marks(&db->side, (uint64_t)changes);
    return txn_alone(db, accept_loss, NULL, err);
}

/* A failed sync was flagged, and nobody else has the store open: SQLite has just read the log anew
 * and cut it at its last whole commit, and compare_marks() has seen that nothing acknowledged is
 * missing. What is there is moved into the database. If frames are missing, claims may have been
 * among them, which are not synced: a new epoch keeps their tokens from being handed out again. */
static int resolve_failed_sync(struct db *db, struct lhi_error *err)
{
    int64_t whole, expected = side_frames(&db->side);
    int rc = LH_OK;

    if (!side_sync_failed(&db->side) || !side_alone(&db->side))
        return LH_OK;
    if ((rc = wal_valid_frames(db->file, &whole, err)) == LH_OK &&
        db_checkpoint(db, SQLITE_CHECKPOINT_TRUNCATE) == SQLITE_OK) {
        side_set_sync_failed(&db->side, false);
        side_set_frames(&db->side, 0);
        if (whole < expected)
            rc = txn_alone(db, accept_loss, NULL, err);
        lhi_log(&db->log, LH_LOG_WARN,
                "an earlier sync of \"%s-wal\" failed: the log was read anew", db->path);
    }
    side_share(&db->side);
    return rc;
}

static int new_boot(struct txn *txn, void *arg, struct lhi_error *err)
{
    (void)arg;
    return clock_new_boot(txn, err);
}

static int notice_boot(struct db *db, struct lhi_error *err)
{
    char boot[40];
    int rc = meta_text(&db->conn, "anchor_boot", boot, sizeof boot, err);

    if (rc < 0)
        return rc;
    if (db->boot[0] == '\0' || strcmp(boot, db->boot) == 0)
        return LH_OK;
    /* The anchor of the old boot says nothing about this one's clock: start from now. */
    return txn_alone(db, new_boot, NULL, err);
}

/* ---- opening ---- */

/* The folder made absolute, the last part as it is. What starts with a slash is no URI and no
 * ":memory:" to SQLite, and stays what it is when the program changes its working directory. */
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

/* Before SQLite sees the name: with SQLite's own creation the mode would be the umask's choice. */
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
    if (db->opts.force_network || !lhi_on_network_fs(db->side.fd))
        return LH_OK;
    return lhi_fail(err, LH_EINVAL,
                    "store \"%s\" is on a network file system, where locks cannot be trusted: "
                    "use a local disk",
                    db->path);
}

/* Another file stands in the store's place, but the log beside it is still that of the old one: to
 * SQLite it would be the new one's. It is kept, under another name. */
static int set_old_log_aside(struct db *db, struct lhi_error *err)
{
    char wal[4200], shm[4200], aside[4300];
    uint64_t ino = inode_of(db, "-wal", wal);

    if (ino == 0 || ino != side_wal(&db->side))
        return LH_OK;
    lhi_format(aside, sizeof aside, "%s.of-another-%lld", wal, (long long)lhi_wall_ms());
    if (rename(wal, aside) != 0)
        return lhi_fail_errno(err, errno, "could not set the log \"%s\" of another store aside",
                              wal);
    (void)inode_of(db, "-shm", shm);
    (void)unlink(shm); /* the index of that log; made anew from the next */
    lhi_log(&db->log, LH_LOG_WARN,
            "database \"%s\" was replaced: the log of the one before is kept as \"%s\"", db->path,
            aside);
    return LH_OK;
}

/* Others may have the store open while the file behind its name was exchanged. They share the log
 * with us: one write of ours would reach their file, one checkpoint of theirs would take ours. So
 * this is asked before SQLite is. */
static int same_file(struct db *db, bool created, struct lhi_error *err)
{
    struct stat st;

    if (stat(db->file, &st) != 0)
        return lhi_fail_errno(err, errno, "could not look at \"%s\"", db->path);
    if (!side_same_file(&db->side, st.st_dev, st.st_ino)) {
        if (!side_alone(&db->side)) {
            if (created && st.st_size == 0)
                (void)unlink(db->file);
            return lhi_fail(err, LH_ESTOPPED,
                            "database \"%s\" was removed or replaced while other processes have "
                            "it open: stop them first",
                            db->path);
        }
        int rc = set_old_log_aside(db, err);
        side_share(&db->side);
        if (rc != LH_OK)
            return rc;
    }
    side_set_file(&db->side, st.st_dev, st.st_ino);
    db->dev = st.st_dev;
    db->ino = st.st_ino;
    return LH_OK;
}

/* The part of opening that happens under the turnstile. */
static int open_for_writing(struct db *db, struct lhi_error *err)
{
    int64_t changes;
    int rc = conn_open(&db->conn, db->file, SQLITE_OPEN_READWRITE, err);

    if (rc == LH_OK && sqlite3_db_readonly(db->conn.db, "main") == 1)
        rc = lhi_fail(err, LH_EREADONLY, "store \"%s\" is not writable", db->path);
    if (rc != LH_OK || (rc = schema_update(db, err)) != LH_OK ||
        (rc = set_wal_mode(&db->conn, err)) != LH_OK)
        return rc;
    (void)sqlite3_wal_hook(db->conn.db, on_wal, db);
    /* SQLite opens the log with the first look into the database. */
    char name[4200];
    if ((rc = sql_int(&db->conn, LHI_SQL_STORE_MARKS, err, 0, &changes, "")) != LH_OK)
        return rc;
    side_set_wal(&db->side, inode_of(db, "-wal", name));
    db->shm_ino = inode_of(db, "-shm", name);
    if (sqlite3_file_control(db->conn.db, "main", SQLITE_FCNTL_JOURNAL_POINTER, &db->wal) !=
            SQLITE_OK ||
        db->wal == NULL || db->wal->pMethods == NULL)
        return lhi_fail(err, LH_EFAIL, "could not reach the log of \"%s\"", db->path);
    if ((rc = compare_marks(db, err)) != LH_OK || (rc = resolve_failed_sync(db, err)) != LH_OK ||
        (rc = notice_boot(db, err)) != LH_OK)
        return rc;
    side_set_dirty(&db->side, true);
    return LH_OK;
}

static int open_writer(struct db *db, bool exists, struct lhi_error *err)
{
    int rc;

    if (!exists && (rc = create_file(db->file, err)) != LH_OK)
        return rc;
    if ((rc = side_open(&db->side, db->file, true, &db->log, err)) != LH_OK ||
        (rc = refuse_network(db, err)) != LH_OK ||
        (rc = side_present(&db->side, db->opts.busy_ms, err)) != LH_OK ||
        (rc = side_enter(&db->side, db->opts.busy_ms, "open", err)) != LH_OK)
        return rc;
    rc = same_file(db, !exists, err);
    if (rc == LH_OK)
        rc = open_for_writing(db, err);
    if (rc == LH_ENOSTORE || rc == LH_EINVAL || rc == LH_ENEWER)
        side_remove(&db->side);
    side_leave(&db->side);
    return rc;
}

static int load_anchor(struct db *db, struct lhi_error *err)
{
    char boot[40];
    int64_t wall, mono;
    int rc;

    if ((rc = meta_text(&db->conn, "anchor_boot", boot, sizeof boot, err)) < 0 ||
        (rc = meta_int(&db->conn, "anchor_wall", 0, &wall, err)) < 0 ||
        (rc = meta_int(&db->conn, "anchor_mono", 0, &mono, err)) < 0)
        return rc;
    if (strcmp(boot, db->boot) == 0)
        db->clock = wall - mono;
    return LH_OK;
}

static int open_reader(struct db *db, struct lhi_error *err)
{
    enum contents contents;
    int64_t version;
    int rc = conn_open(&db->conn, db->file, SQLITE_OPEN_READONLY, err);

    if (rc != LH_OK || (rc = schema_look(&db->conn, &contents, &version, err)) != LH_OK)
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
    /* The bell is heard where the side file is there; who only reads does not make one. */
    struct lhi_error ignored;
    if (side_open(&db->side, db->file, false, &db->log, &ignored) == LH_OK &&
        side_present(&db->side, db->opts.busy_ms, err) != LH_OK)
        return err->status;
    return load_anchor(db, err);
}

/* In a forked child: SQLite's connections are the parent's, nothing of them may be closed. */
static void abandon(void *self)
{
    struct db *db = self;
    side_close(&db->side);
}

/* The last clean close folds the log into the database, so that the file alone is the store. */
static void fold_log(struct db *db)
{
    struct lhi_error ignored;

    if (side_enter(&db->side, db->opts.busy_ms, "close", &ignored) != LH_OK)
        return;
    if (__atomic_load_n(&db->stopped, __ATOMIC_ACQUIRE) == 0 && side_alone(&db->side)) {
        if (!side_sync_failed(&db->side) && !db_disturbed(db) &&
            db_checkpoint(db, SQLITE_CHECKPOINT_TRUNCATE) == SQLITE_OK)
            side_set_dirty(&db->side, false);
        side_share(&db->side);
    }
    conn_close(&db->reader);
    conn_close(&db->conn); /* under the turnstile: closing may touch the log too */
    side_leave(&db->side);
}

static void db_close(void *self)
{
    struct db *db = self;

    watch_stop(db);
    if (!db->opts.read_only && db->wal != NULL)
        fold_log(db);
    conn_close(&db->reader);
    conn_close(&db->conn);
    side_close(&db->side);
    db_free_caches(db);
    pthread_mutex_destroy(&db->mutex);
    pthread_mutex_destroy(&db->sync_mutex);
    pthread_mutex_destroy(&db->read_mutex);
    pthread_mutex_destroy(&db->watch_mutex);
    lhi_free(db);
}

enum { MAX_QUEUES = 64 };

static size_t hash_queues(const lh_claim_opts *opts, uint32_t hashes[MAX_QUEUES])
{
    size_t n = opts->n_queues < MAX_QUEUES ? opts->n_queues : MAX_QUEUES;
    for (size_t i = 0; i < n; i++)
        hashes[i] = side_queue_hash(opts->queues[i]);
    return n;
}

static uint32_t db_ticket(void *self, const lh_claim_opts *opts)
{
    struct db *db = self;
    uint32_t hashes[MAX_QUEUES];

    if (db->side.page == NULL)
        return 0;
    return opts ? side_bell(&db->side, hashes, hash_queues(opts, hashes)) : side_changes(&db->side);
}

static bool db_wait(void *self, uint32_t ticket, const lh_claim_opts *opts, int64_t timeout_ms)
{
    struct db *db = self;
    uint32_t hashes[MAX_QUEUES];

    if (db->side.page == NULL) {
        lhi_sleep_ms(timeout_ms);
        return true; /* no bell to hear here: have a look */
    }
    watch_start(db);
    if (opts == NULL)
        return side_wait_change(&db->side, ticket, timeout_ms);
    return side_wait(&db->side, ticket, hashes, hash_queues(opts, hashes), timeout_ms);
}

static const struct lhi_store_ops sqlite_ops = {
    .kind = "sqlite",
    .close = db_close,
    .abandon = abandon,
    .perform = db_perform,
    .read = db_read,
    .now = db_now,
    .ticket = db_ticket,
    .wait = db_wait,
};

int lhi_sqlite_open(const char *path, const lh_open_opts *opts, const struct lhi_log *log,
                    struct lhi_store *out, struct lhi_error *err)
{
    bool exists;
    int rc;

    if (strlen(path) == 0 || strlen(path) >= sizeof((struct db *)0)->path - 16)
        return lhi_fail(err, LH_EINVAL, "store path is %zu bytes long: 1 to 1000 are allowed",
                        strlen(path));
    struct db *db = lhi_calloc(1, sizeof *db);
    if (db == NULL)
        return lhi_fail(err, LH_ENOMEM, "out of memory");
    lhi_format(db->path, sizeof db->path, "%s", path);
    db->opts = *opts;
    if (db->opts.busy_ms == 0)
        db->opts.busy_ms = 5000;
    db->log = *log;
    db->generation = -1;
    db->side.fd = -1;
    db->watch_stop[0] = db->watch_stop[1] = -1;
    pthread_mutex_init(&db->mutex, NULL);
    pthread_mutex_init(&db->sync_mutex, NULL);
    pthread_mutex_init(&db->read_mutex, NULL);
    pthread_mutex_init(&db->watch_mutex, NULL);
    lhi_boot_id(db->boot);

    rc = make_absolute(db, err);
    if (rc == LH_OK)
        rc = inspect_path(db, &exists, err);
    if (rc == LH_OK)
        rc = opts->read_only ? open_reader(db, err) : open_writer(db, exists, err);
    if (rc != LH_OK) {
        if (rc == LH_EINVAL && db->conn.db != NULL &&
            (sqlite3_errcode(db->conn.db) & 0xff) == SQLITE_NOTADB)
            rc = lhi_fail(err, LH_EINVAL, "store \"%s\" is not a SQLite database", path);
        else if (strstr(err->text, path) == NULL) {
            /* What the engine said does not name the file. */
            struct lhi_error said = *err;
            rc = lhi_fail(err, said.status, "store \"%.200s\": %.250s", path, said.text);
        }
        db->opts.read_only = true; /* nothing to fold */
        db_close(db);
        return rc;
    }
    out->ops = &sqlite_ops;
    out->self = db;
    return LH_OK;
}
