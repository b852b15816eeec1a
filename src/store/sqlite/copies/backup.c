/*
 * Copying a store while other processes use it.
 *
 * One read snapshot is held for the whole copy, on a connection of its own. So the copy shows one
 * moment, never has to start again, and makes no writer wait; only the log cannot start again until
 * the copy is done. The copy is made in a private folder beside FILE (partial.c), turned into one
 * file without a log, synced, read back, checked, and renamed at the end. Until then FILE is
 * unchanged. If anything fails, the copy is removed; what a SIGKILL leaves behind, the next backup
 * removes.
 */
#include "store/sqlite/open.h"
#include "store/sqlite/reads/degraded.h"
#include "store/sqlite/reads/reads.h"
#include "store/sqlite/repair/repair.h"

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

enum { STEP_PAGES = 1024 };

int sq_copy_failed(const char *what, const char *path, struct lhi_error *err)
{
    struct lhi_error said = *err;
    return lhi_fail(err, said.status, "%s \"%.160s\": %.250s", what, path, said.text);
}

/* ---- making a complete file ---- */

int sq_copy_place(const char *path, const char *what, char out[4096], struct lhi_error *err)
{
    char folder[PATH_MAX], real[PATH_MAX];
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;

    lhi_format(folder, sizeof folder, "%.*s",
               slash == NULL   ? 1
               : slash == path ? 1
                               : (int)(slash - path),
               slash ? path : ".");
    if (realpath(folder, real) == NULL) {
        if (errno == ENOENT || errno == ENOTDIR)
            return lhi_fail(err, LH_EINVAL, "there is no folder \"%.180s\" for the %s \"%.180s\"",
                            folder, what, path);
        return lhi_fail_errno(err, errno, "could not look at \"%.300s\"", folder);
    }
    /* Names derived from it are longer. */
    if (lhi_format(out, 4096, "%s/%s", strcmp(real, "/") == 0 ? "" : real, name) > 4000)
        return lhi_fail(err, LH_EINVAL, "path of the %s \"%.300s\" is too long", what, path);
    return LH_OK;
}

static void folder_of(const char *file, char out[4096])
{
    lhi_format(out, 4096, "%.*s", (int)(strrchr(file, '/') - file + 1), file);
}

int sq_copy_begin(struct db *source, struct conn *conn, struct lhi_error *err)
{
    int64_t any;
    int rc = sq_conn_open(conn, source->file, SQLITE_OPEN_READONLY, err);

    if (rc == LH_OK && (rc = sq_exec(conn, "BEGIN", err)) == LH_OK)
        rc = sq_int(conn, LHI_SQL_COPY_BYTES, err, 0, &any, "");
    if ((rc == LH_EIO || rc == LH_EREADONLY) && (rc = sq_degraded_open(source, conn, err)) == LH_OK)
        rc = sq_exec(conn, "BEGIN", err);
    return rc;
}

int sq_copy_was_whole(const struct db *source, struct lhi_error *err)
{
    if (!sq_degraded_outdated(source))
        return LH_OK;
    return lhi_fail(err, LH_EBUSY, "\"%.300s\" was written to by others while it was copied",
                    source->path);
}

static bool raised(const lh_backup_opts *opts)
{
    return opts != NULL && opts->cancel != NULL &&
           __atomic_load_n(opts->cancel, __ATOMIC_RELAXED) != 0;
}

static int copy_pages(struct conn *from, struct conn *to, const lh_backup_opts *opts,
                      struct lhi_error *err)
{
    sqlite3_backup *copying = sqlite3_backup_init(to->db, "main", from->db, "main");
    int rc = SQLITE_OK;
    bool stop = false;

    if (copying == NULL)
        return sq_fail(to, sqlite3_extended_errcode(to->db), err);
    while (rc == SQLITE_OK && !(stop = raised(opts))) {
        rc = sqlite3_backup_step(copying, STEP_PAGES);
        LHI_POINT("copy:step");
        int total = sqlite3_backup_pagecount(copying);
        if (opts != NULL && opts->progress != NULL)
            opts->progress(opts->progress_arg, total - sqlite3_backup_remaining(copying), total);
    }
    int end = sqlite3_backup_finish(copying);
    if (stop)
        return lhi_fail(err, LH_EINTR, "copying was interrupted");
    return rc == SQLITE_DONE ? LH_OK : sq_fail(to, end == SQLITE_OK ? rc : end, err);
}

/* No other process knows the file, so nothing must be safe until the whole file is synced. */
int sq_copy_open(struct conn *conn, const char *file, struct lhi_error *err)
{
    int rc = sq_conn_open(conn, file, SQLITE_OPEN_READWRITE, err);

    if (rc == LH_OK)
        rc = sq_exec(conn, "PRAGMA locking_mode = EXCLUSIVE; PRAGMA synchronous = OFF", err);
    return rc;
}

int sq_copy_make(struct conn *from, const char *file, const lh_backup_opts *opts,
                 struct lhi_error *err)
{
    struct conn to = {0};
    /* Create the file before SQLite does: SQLite would follow links and set its mode by the
     * umask. */
    int fd, rc = sq_file_create(file, &fd, err);

    /* A folder that cannot be written to says nothing about the store. */
    if (rc != LH_OK)
        return err->status = rc == LH_EREADONLY ? LH_EIO : rc;
    close(fd);
    rc = sq_copy_open(&to, file, err);
    if (rc == LH_OK && (rc = sq_exec(&to, "PRAGMA journal_mode = MEMORY", err)) == LH_OK)
        rc = copy_pages(from, &to, opts, err);
    sq_conn_close(&to);
    if (rc != LH_OK)
        sq_copy_remove(file);
    return rc;
}

static int sync_file(const char *file, struct lhi_error *err)
{
    int fd = open(file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    int failed = fd < 0 || fsync(fd) != 0 ? errno : 0;

    /* Drop the cache, so that reading back really reads the disk. */
    if (failed == 0)
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    if (fd >= 0)
        close(fd);
    return failed ? lhi_fail_errno(err, failed, "could not sync \"%.300s\"", file) : LH_OK;
}

int sq_copy_finish(struct conn *conn, const char *file, struct lhi_error *err)
{
    /* Leave WAL mode, which is noted in the header: a log beside the file could be left behind when
     * the file is moved. Opening it as a store switches back. */
    int rc = sq_exec(conn, "PRAGMA journal_mode = DELETE", err);

    sq_conn_close(conn);
    return rc == LH_OK ? sync_file(file, err) : rc;
}

static const char *const side_files[] = {"-wal", "-shm", "-journal", "-lease"};
enum { SIDE_FILES = sizeof side_files / sizeof side_files[0] };

void sq_copy_remove(const char *file)
{
    char name[4300];

    for (int i = 0; i < SIDE_FILES; i++) {
        lhi_format(name, sizeof name, "%s%s", file, side_files[i]);
        (void)unlink(name);
    }
    (void)unlink(file);
}

/* ---- is it sound? ---- */

int sq_copy_sound(struct conn *conn, const char *path, const lh_flag *cancel, struct lhi_error *err)
{
    enum contents contents = CONTENTS_EMPTY;
    lh_findings findings = {0};
    int64_t version = 0;
    int rc = sq_schema_look(conn, &contents, &version, err);

    if (rc == LH_EINVAL)
        return lhi_fail(err, LH_EINVAL, "\"%.300s\" is not a SQLite database", path);
    if (rc == LH_OK && contents != CONTENTS_OURS)
        return lhi_fail(err, LH_EINVAL,
                        "\"%.300s\" is no copy of a store: it has no tables of ours", path);
    if (rc == LH_OK && version > lhi_sqlite_migration_count)
        return lhi_fail(err, LH_ENEWER,
                        "\"%.200s\" has schema version %lld, this program knows up to %d: use a "
                        "newer leasehold",
                        path, (long long)version, lhi_sqlite_migration_count);
    if (rc == LH_OK)
        rc = sq_check_file(conn, cancel, &findings, err);
    if (rc == LH_OK && findings.errors > 0) {
        const char *first = "?";
        for (size_t i = findings.n; i > 0; i--)
            if (strcmp(findings.finding[i - 1].level, "error") == 0)
                first = findings.finding[i - 1].text;
        rc = lhi_fail(err, LH_ECORRUPT, "\"%.200s\" is damaged: %.220s", path, first);
    } else if (rc < 0 && rc != LH_EINTR) {
        rc = sq_copy_failed("could not check", path, err);
    }
    sq_findings_clear(&findings);
    return rc;
}

/* ---- backup ---- */

struct backup {
    struct db *db;
    struct db *source; /* used by this backup only */
    const char *path;  /* as the caller gave it */
    const lh_backup_opts *opts;
    char file[4096]; /* absolute */
    struct partial partial;
    char uuid[40];          /* of the store, in the snapshot */
    int64_t changes, bytes; /* the store's count of changes, and its size */
};

/* Is this the store itself, also under another name, or a file that belongs to it? */
static bool is_of_store(const struct db *db, const char *file, const struct stat *there)
{
    for (int i = -1; i < SIDE_FILES; i++) {
        char name[4300];
        struct stat st;
        lhi_format(name, sizeof name, "%s%s", db->file, i < 0 ? "" : side_files[i]);
        if (strcmp(name, file) == 0)
            return true;
        if (there != NULL && stat(name, &st) == 0 && st.st_dev == there->st_dev &&
            st.st_ino == there->st_ino)
            return true;
    }
    return false;
}

/* SQLite would take a log beside FILE for the copy's own. */
static int refuse_neighbours(const struct backup *b, struct lhi_error *err)
{
    for (int i = 0; i < SIDE_FILES; i++) {
        char name[4300];
        struct stat st;
        lhi_format(name, sizeof name, "%s%s", b->file, side_files[i]);
        if (lstat(name, &st) == 0)
            return lhi_fail(err, LH_EINVAL,
                            "\"%.200s\" cannot become the copy: \"%.200s%s\" beside it belongs to "
                            "another database and would be taken for a part of it",
                            b->path, b->path, side_files[i]);
    }
    return LH_OK;
}

static int look_at_target(struct backup *b, struct lhi_error *err)
{
    struct stat st;
    int rc = sq_copy_place(b->path, "copy", b->file, err);

    if (rc != LH_OK)
        return rc;
    bool exists = lstat(b->file, &st) == 0;
    if (!exists && errno != ENOENT)
        return lhi_fail_errno(err, errno, "could not look at \"%.300s\"", b->path);
    if (is_of_store(b->db, b->file, exists ? &st : NULL))
        return lhi_fail(err, LH_EINVAL, "\"%.300s\" belongs to the store: name another file",
                        b->path);
    if (exists && S_ISDIR(st.st_mode))
        return lhi_fail(err, LH_EINVAL, "\"%.300s\" is a directory: name a file in it", b->path);
    if (exists && !S_ISREG(st.st_mode))
        return lhi_fail(err, LH_EINVAL, "\"%.300s\" is not a regular file: name another one",
                        b->path);
    if (exists && !b->opts->replace)
        return lhi_fail(err, LH_EINVAL, "\"%.300s\" exists already: --force replaces it", b->path);
    return refuse_neighbours(b, err);
}

/* Begin the snapshot, and read the values that the copy must have. */
static int open_snapshot(struct backup *b, struct conn *from, struct lhi_error *err)
{
    int rc = sq_copy_begin(b->source, from, err);

    if (rc == LH_OK &&
        (rc = sq_int(from, LHI_SQL_STORE_MARKS, err, -1, &b->changes, "")) == LH_OK &&
        (rc = sq_meta_text(from, "store_uuid", b->uuid, sizeof b->uuid, err)) == LH_OK)
        rc = sq_int(from, LHI_SQL_COPY_BYTES, err, 0, &b->bytes, "");
    return rc < 0 ? sq_copy_failed("could not read the store", b->db->path, err) : LH_OK;
}

/* A full disk would do more harm to the store than a missing copy. */
static int need_room(const struct backup *b, struct lhi_error *err)
{
    char folder[4096];

    folder_of(b->file, folder);
    int64_t room = lhi_free_bytes(folder);
    if (room < 0 || room > b->bytes)
        return LH_OK;
    return lhi_fail(err, LH_ENOSPC,
                    "no space left for the copy \"%.200s\": it needs %lld KiB, %lld KiB are free",
                    b->path, (long long)(b->bytes >> 10), (long long)(room >> 10));
}

/* Open and check the copy as a later restore would. */
static int verify(const struct backup *b, struct lhi_error *err)
{
    struct conn conn = {0};
    char uuid[40] = "";
    int64_t changes = -1;
    int rc = sq_conn_open(&conn, b->partial.file, SQLITE_OPEN_READONLY, err);

    if (rc == LH_OK && (rc = sq_copy_sound(&conn, b->path, b->opts->cancel, err)) == LH_OK &&
        (rc = sq_meta_text(&conn, "store_uuid", uuid, sizeof uuid, err)) == LH_OK)
        rc = sq_int(&conn, LHI_SQL_STORE_MARKS, err, -1, &changes, "");
    if (rc == LH_OK && (strcmp(uuid, b->uuid) != 0 || changes < b->changes))
        rc = lhi_fail(err, LH_ECORRUPT, "copy \"%.200s\" is not what was copied", b->path);
    sq_conn_close(&conn);
    return rc;
}

/* Replace an existing file only if the caller asked for it, even if the file appeared meanwhile. */
static int put_in_place(const struct backup *b, struct lhi_error *err)
{
    unsigned flags = b->opts->replace ? 0 : RENAME_NOREPLACE;
    const char *from = b->partial.file;
    int failed = renameat2(AT_FDCWD, from, AT_FDCWD, b->file, flags) == 0 ? 0 : errno;

    /* Some file systems do not support the flag. There, check right before the rename. */
    if (failed == EINVAL && flags != 0)
        failed = access(b->file, F_OK) == 0 ? EEXIST : rename(from, b->file) != 0 ? errno : 0;
    if (failed == EEXIST)
        return lhi_fail(err, LH_EINVAL, "\"%.300s\" exists already: --force replaces it", b->path);
    if (failed != 0)
        return lhi_fail_errno(err, failed, "could not name the copy \"%.300s\"", b->path);
    return sq_sync_folder(b->file, err);
}

/* Store in the copy when it was made. */
static int sign(const struct backup *b, struct lhi_error *err)
{
    struct conn copy = {0};
    int rc = sq_copy_open(&copy, b->partial.file, err);

    if (rc == LH_OK && (rc = sq_meta_set_int(&copy, "backup_at", sq_db_now(b->db), err)) == LH_OK)
        rc = sq_copy_finish(&copy, b->partial.file, err);
    sq_conn_close(&copy);
    return rc;
}

static int make_copy(struct backup *b, struct lhi_error *err)
{
    struct conn from = {0};
    int rc = open_snapshot(b, &from, err);

    if (rc == LH_OK)
        rc = need_room(b, err);
    if (rc == LH_OK) {
        rc = sq_copy_make(&from, b->partial.file, b->opts, err);
        LHI_POINT("backup:copied");
        if (rc == LH_OK && (rc = sq_copy_was_whole(b->source, err)) == LH_OK)
            rc = sign(b, err);
        if (rc < 0 && rc != LH_EINTR)
            rc = sq_copy_failed("could not make the copy", b->path, err);
    }
    sq_conn_close(&from);
    return rc;
}

static int copy_and_check(struct backup *b, struct lhi_error *err)
{
    int rc = look_at_target(b, err);

    if (rc != LH_OK)
        return rc;
    sq_partial_clean(b->file, &b->db->log);
    if (sq_partial_make(&b->partial, b->file, err) != LH_OK)
        return sq_copy_failed("could not make the copy", b->path, err);
    LHI_POINT("backup:begun");
    rc = make_copy(b, err);
    if (rc == LH_OK)
        rc = verify(b, err);
    LHI_POINT("backup:checked");
    if (rc == LH_OK)
        rc = put_in_place(b, err);
    sq_partial_remove(&b->partial);
    return rc;
}

int sq_backup_store(struct db *db, struct lhi_act *act, struct lhi_error *err)
{
    struct backup b = {.db = db, .path = act->backup.path, .opts = act->backup.opts};

    b.source = lhi_calloc(1, sizeof *b.source);
    if (b.source == NULL)
        return lhi_no_memory(err);
    lhi_format(b.source->path, sizeof b.source->path, "%s", db->path);
    lhi_format(b.source->file, sizeof b.source->file, "%s", db->file);
    int rc = copy_and_check(&b, err);
    lhi_free(b.source);
    return rc;
}
