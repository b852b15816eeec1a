#include "fault/disk.h"

#include "harness/harness.h"

#include <fcntl.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SECTOR = 512, SIDE_PAGE = 4096, MOST_FILES = 16 };

/* ---------------------------------------------------------------- the record */

enum op_kind { OP_WRITE, OP_TRUNCATE, OP_SYNC, OP_SYNC_FAILED, OP_DELETE, OP_MARK };

struct op {
    enum op_kind kind;
    int file;
    int64_t at; /* OP_WRITE: offset. OP_TRUNCATE: new size. OP_MARK: its number */
    size_t len;
    unsigned char *bytes; /* OP_WRITE: what; OP_MARK: the coordination file, if any */
    size_t covers;        /* OP_SYNC: everything before this entry is on the disk now */
    bool folder;          /* OP_SYNC, OP_DELETE: the folder was synced with it */
    bool lost;            /* a sync of it failed: later ones do not know of it any more */
};

/* One file on the real VFS. Our part lies behind it. */
struct disk_file {
    const sqlite3_io_methods *real;
    int id;
    bool database;
    bool folder; /* its first sync takes the folder along */
};

static struct {
    sqlite3_vfs vfs;
    sqlite3_vfs *real;
    /* SQLite locks the database and not the others, so there are two tables of methods */
    sqlite3_io_methods methods[2];
    const sqlite3_io_methods *real_methods[2];
    pthread_mutex_t mutex;
    struct disk state;
    bool recording;
    char file[MOST_FILES][256];
    int n_files;
    struct op *op;
    size_t n_ops, room;
} the = {.mutex = PTHREAD_MUTEX_INITIALIZER};

struct disk *disk(void)
{
    return &the.state;
}

static int file_id(const char *path)
{
    for (int i = 0; i < the.n_files; i++)
        if (strcmp(the.file[i], path) == 0)
            return i;
    EXPECT(the.n_files < MOST_FILES);
    (void)snprintf(the.file[the.n_files], sizeof the.file[0], "%s", path);
    return the.n_files++;
}

static struct op *add_op(struct op op)
{
    if (the.n_ops == the.room) {
        the.room = the.room ? the.room * 2 : 1024;
        the.op = realloc(the.op, the.room * sizeof *the.op);
        EXPECT(the.op != NULL);
    }
    the.op[the.n_ops] = op;
    return &the.op[the.n_ops++];
}

static unsigned char *keep(const void *bytes, size_t len)
{
    unsigned char *copy = malloc(len ? len : 1);
    EXPECT(copy != NULL);
    memcpy(copy, bytes, len);
    return copy;
}

/* ---------------------------------------------------------------- the methods of a file */

static struct disk_file *ours(sqlite3_file *file)
{
    return (struct disk_file *)(void *)((char *)file + the.real->szOsFile);
}

static int fail_write(sqlite3_file *file, const void *bytes, int len, sqlite3_int64 at)
{
    struct disk *d = &the.state;
    struct disk_file *f = ours(file);

    d->fired = true;
    if (d->how == DISK_FULL)
        return SQLITE_FULL;
    if (d->how == DISK_SHORT && len > 1)
        (void)f->real->xWrite(file, bytes, len / 2, at);
    return SQLITE_IOERR_WRITE;
}

static int disk_write(sqlite3_file *file, const void *bytes, int len, sqlite3_int64 at)
{
    struct disk *d = &the.state;
    struct disk_file *f = ours(file);
    int rc;

    pthread_mutex_lock(&the.mutex);
    d->writes++;
    d->database_writes += f->database;
    bool fails = d->fail_write_at > 0 && (d->how == DISK_FULL ? d->writes >= d->fail_write_at
                                                              : d->writes == d->fail_write_at);
    rc = fails ? fail_write(file, bytes, len, at) : f->real->xWrite(file, bytes, len, at);
    if (the.recording && rc == SQLITE_OK)
        (void)add_op((struct op){.kind = OP_WRITE,
                                 .file = f->id,
                                 .at = at,
                                 .len = (size_t)len,
                                 .bytes = keep(bytes, (size_t)len)});
    pthread_mutex_unlock(&the.mutex);
    return rc;
}

static int disk_truncate(sqlite3_file *file, sqlite3_int64 size)
{
    struct disk_file *f = ours(file);

    pthread_mutex_lock(&the.mutex);
    int rc = f->real->xTruncate(file, size);
    if (the.recording && rc == SQLITE_OK)
        (void)add_op((struct op){.kind = OP_TRUNCATE, .file = f->id, .at = size});
    pthread_mutex_unlock(&the.mutex);
    return rc;
}

/* The pages a failed sync could not write are clean afterwards: no later sync will write them. */
static void lose_unsynced(int file)
{
    size_t synced = 0;

    for (size_t i = 0; i < the.n_ops; i++)
        if (the.op[i].kind == OP_SYNC && the.op[i].file == file)
            synced = the.op[i].covers;
    for (size_t i = synced; i < the.n_ops; i++)
        if (the.op[i].file == file && the.op[i].kind == OP_WRITE)
            the.op[i].lost = true;
}

static int disk_sync(sqlite3_file *file, int flags)
{
    struct disk *d = &the.state;
    struct disk_file *f = ours(file);
    (void)flags;

    pthread_mutex_lock(&the.mutex);
    d->syncs++;
    if (d->fail_sync_at == d->syncs) {
        d->fired = true;
        if (the.recording) {
            lose_unsynced(f->id);
            (void)add_op((struct op){.kind = OP_SYNC_FAILED, .file = f->id});
        }
        pthread_mutex_unlock(&the.mutex);
        return SQLITE_IOERR_FSYNC;
    }
    size_t covers = the.n_ops;
    bool folder = f->folder;
    f->folder = false;
    pthread_mutex_unlock(&the.mutex);
    /* What is written from here on, by others, is too late for this sync. */
    if (the.recording)
        (void)usleep(20);
    pthread_mutex_lock(&the.mutex);
    if (the.recording)
        (void)add_op(
            (struct op){.kind = OP_SYNC, .file = f->id, .covers = covers, .folder = folder});
    pthread_mutex_unlock(&the.mutex);
    return SQLITE_OK;
}

static int disk_close(sqlite3_file *file)
{
    return ours(file)->real->xClose(file);
}

static int disk_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *file, int flags,
                     int *out_flags)
{
    struct disk_file *f = ours(file);
    (void)vfs;

    int rc = the.real->xOpen(the.real, name, file, flags, out_flags);
    if (rc != SQLITE_OK || name == NULL ||
        (flags & (SQLITE_OPEN_MAIN_DB | SQLITE_OPEN_WAL | SQLITE_OPEN_MAIN_JOURNAL)) == 0)
        return rc;
    pthread_mutex_lock(&the.mutex);
    sqlite3_io_methods *methods = &the.methods[(flags & SQLITE_OPEN_MAIN_DB) != 0];
    const sqlite3_io_methods **real = &the.real_methods[(flags & SQLITE_OPEN_MAIN_DB) != 0];
    if (*real == NULL) {
        *real = file->pMethods;
        *methods = *file->pMethods;
        methods->xClose = disk_close;
        methods->xWrite = disk_write;
        methods->xTruncate = disk_truncate;
        methods->xSync = disk_sync;
    }
    EXPECT(file->pMethods == *real);
    *f = (struct disk_file){.real = file->pMethods,
                            .id = file_id(name),
                            .database = (flags & SQLITE_OPEN_MAIN_DB) != 0,
                            .folder = (flags & SQLITE_OPEN_MAIN_DB) == 0 &&
                                      (flags & SQLITE_OPEN_CREATE) != 0};
    file->pMethods = methods;
    pthread_mutex_unlock(&the.mutex);
    return rc;
}

static int disk_delete(sqlite3_vfs *vfs, const char *name, int sync_folder)
{
    (void)vfs;
    pthread_mutex_lock(&the.mutex);
    int rc = the.real->xDelete(the.real, name, 0);
    if (the.recording && rc == SQLITE_OK)
        (void)add_op(
            (struct op){.kind = OP_DELETE, .file = file_id(name), .folder = sync_folder != 0});
    pthread_mutex_unlock(&the.mutex);
    return rc;
}

void disk_install(void)
{
    if (the.real != NULL)
        return;
    the.real = sqlite3_vfs_find(NULL);
    EXPECT(the.real != NULL);
    the.vfs = *the.real;
    the.vfs.zName = "disk";
    the.vfs.pNext = NULL;
    the.vfs.szOsFile = the.real->szOsFile + (int)sizeof(struct disk_file);
    the.vfs.xOpen = disk_open;
    the.vfs.xDelete = disk_delete;
    EXPECT_EQ(sqlite3_vfs_register(&the.vfs, 1), SQLITE_OK);
}

/* ---------------------------------------------------------------- faults */

void disk_arm(void)
{
    the.state = (struct disk){0};
}

void disk_arm_write(int64_t n, enum disk_fault how)
{
    the.state = (struct disk){.fail_write_at = n, .how = how};
}

void disk_arm_sync(int64_t n)
{
    the.state = (struct disk){.fail_sync_at = n};
}

/* ---------------------------------------------------------------- recording */

void disk_record(void)
{
    disk_forget();
    the.recording = true;
}

void disk_stop(void)
{
    the.recording = false;
}

void disk_forget(void)
{
    for (size_t i = 0; i < the.n_ops; i++)
        free(the.op[i].bytes);
    free(the.op);
    the.op = NULL;
    the.n_ops = the.room = 0;
    disk_stop();
}

void disk_mark(int n, const char *side)
{
    unsigned char page[SIDE_PAGE];
    struct op op = {.kind = OP_MARK, .file = -1, .at = n};

    pthread_mutex_lock(&the.mutex);
    if (the.recording) {
        /* It is ours alone to close: SQLite holds no locks on the coordination file. */
        int fd = side ? open(side, O_RDONLY | O_CLOEXEC) : -1;
        ssize_t got = fd >= 0 ? pread(fd, page, sizeof page, 0) : -1;
        if (fd >= 0)
            close(fd);
        if (got > 0) {
            op.len = (size_t)got;
            op.bytes = keep(page, (size_t)got);
        }
        (void)add_op(op);
    }
    pthread_mutex_unlock(&the.mutex);
}

size_t disk_recorded(void)
{
    return the.n_ops;
}

int disk_marks(size_t cut, int *all)
{
    int last = -1, n = 0;

    for (size_t i = 0; i < cut && i < the.n_ops; i++)
        if (the.op[i].kind == OP_MARK) {
            last = (int)the.op[i].at;
            if (all != NULL)
                all[n++] = last;
        }
    if (all != NULL)
        all[n] = -1;
    return last;
}

/* ---------------------------------------------------------------- the cut */

uint64_t disk_roll(uint64_t *dice, uint64_t below)
{
    *dice = *dice * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (*dice >> 33) % below;
}

enum mode { MODE_DROP, MODE_KEEP, MODE_PREFIX, MODE_SHUFFLE, MODE_HOLES, MODES };

/* How far the versions of one sector are known to be, and how far they get: entries of the record.
 * One more of these stands for the size of the file. */
struct fate {
    size_t floor, reached;
};

struct rest {
    size_t first, cut; /* entries of the record that concern the present file */
    size_t sectors;
    struct fate *fate; /* [sectors + 1], the last for the size */
};

static void touched(const struct op *op, const struct rest *rest, size_t *from, size_t *to)
{
    *from = (size_t)op->at / SECTOR;
    *to = op->kind == OP_WRITE ? ((size_t)op->at + op->len + SECTOR - 1) / SECTOR : rest->sectors;
}

/* The file as it was last made: entries before that belong to one of the same name. */
static bool find_rest(int file, size_t cut, uint64_t *dice, struct rest *rest)
{
    bool exists = false, deleted = false;
    size_t end = 0;

    *rest = (struct rest){.cut = cut};
    for (size_t i = 0; i < cut; i++) {
        const struct op *op = &the.op[i];
        if (op->kind == OP_DELETE && op->file == file) {
            deleted = true;
            /* Until the folder is synced, the name may come back. */
            for (size_t j = i; j < cut; j++)
                if ((the.op[j].kind == OP_SYNC || the.op[j].kind == OP_DELETE) && the.op[j].folder)
                    exists = false;
        } else if (op->file == file && (op->kind == OP_WRITE || op->kind == OP_TRUNCATE)) {
            if (deleted || !exists)
                rest->first = i;
            deleted = false;
            exists = true;
            if (op->kind == OP_WRITE && (size_t)op->at + op->len > end)
                end = (size_t)op->at + op->len;
        }
    }
    rest->sectors = (end + SECTOR - 1) / SECTOR;
    return exists && (!deleted || disk_roll(dice, 2) == 0);
}

static void decide(int file, struct rest *rest, enum mode mode, uint64_t *dice)
{
    size_t synced = 0, from, to;

    for (size_t i = rest->first; i < rest->cut; i++)
        if (the.op[i].kind == OP_SYNC && the.op[i].file == file)
            synced = the.op[i].covers;
    for (size_t i = rest->first; i < synced; i++) {
        const struct op *op = &the.op[i];
        if (op->file != file || op->lost || (op->kind != OP_WRITE && op->kind != OP_TRUNCATE))
            continue;
        touched(op, rest, &from, &to);
        for (size_t s = from; s < to; s++)
            rest->fate[s].floor = i + 1;
        rest->fate[rest->sectors].floor = i + 1;
    }
    size_t start = synced > rest->first ? synced : rest->first;
    size_t span = rest->cut - start + 1, common = start + disk_roll(dice, span);
    for (size_t s = 0; s <= rest->sectors; s++) {
        struct fate *fate = &rest->fate[s];
        switch (mode) {
        case MODE_DROP:
            fate->reached = fate->floor;
            break;
        case MODE_KEEP:
            fate->reached = rest->cut;
            break;
        case MODE_PREFIX:
            fate->reached = common;
            break;
        case MODE_SHUFFLE:
            fate->reached = start + disk_roll(dice, span);
            break;
        default:
            fate->reached = disk_roll(dice, 8) == 0 ? fate->floor : rest->cut;
            break;
        }
        if (fate->reached < fate->floor)
            fate->reached = fate->floor;
    }
}

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* What is left of a file, in memory of the caller. */
static unsigned char *settle(int file, const struct rest *rest, size_t *size)
{
    unsigned char *content = calloc(rest->sectors + 1, SECTOR);
    size_t from, to;

    EXPECT(content != NULL);
    *size = 0;
    for (size_t i = rest->first; i < rest->cut; i++) {
        const struct op *op = &the.op[i];
        if (op->file != file || (op->kind != OP_WRITE && op->kind != OP_TRUNCATE))
            continue;
        touched(op, rest, &from, &to);
        if (op->kind == OP_TRUNCATE && i < rest->fate[rest->sectors].reached)
            *size = min_size(*size, (size_t)op->at);
        for (size_t s = from; s < to; s++) {
            if (i >= rest->fate[s].reached)
                continue;
            size_t low = s * SECTOR, high = low + SECTOR;
            if (low < (size_t)op->at)
                low = (size_t)op->at;
            if (op->kind == OP_TRUNCATE) {
                memset(content + low, 0, high - low);
                continue;
            }
            high = min_size(high, (size_t)op->at + op->len);
            memcpy(content + low, op->bytes + (low - (size_t)op->at), high - low);
            if (*size < high)
                *size = high;
        }
    }
    return content;
}

static void put_file(const char *path, const unsigned char *content, size_t size)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    EXPECT(fd >= 0);
    EXPECT_EQ(ftruncate(fd, 0), 0);
    EXPECT_EQ(write(fd, content, size), (ssize_t)size);
    close(fd);
}

static void cut_file(int file, const char *to, size_t cut, enum mode mode, uint64_t *dice)
{
    struct rest rest;
    size_t size;

    if (!find_rest(file, cut, dice, &rest))
        return;
    rest.fate = calloc(rest.sectors + 1, sizeof *rest.fate);
    EXPECT(rest.fate != NULL);
    decide(file, &rest, mode, dice);
    unsigned char *content = settle(file, &rest, &size);
    put_file(to, content, size);
    free(content);
    free(rest.fate);
}

/* The coordination file is mapped and never synced: any state it ever had may be on the disk, or none. */
static void cut_side(const char *to, size_t cut, uint64_t *dice)
{
    static const unsigned char zeros[SIDE_PAGE];
    const struct op *last = NULL, *any = NULL;
    uint64_t seen = 0;

    for (size_t i = 0; i < cut; i++)
        if (the.op[i].kind == OP_MARK && the.op[i].bytes != NULL) {
            last = &the.op[i];
            if (disk_roll(dice, ++seen) == 0)
                any = last;
        }
    switch (disk_roll(dice, 6)) {
    case 0:
        return;
    case 1:
        put_file(to, zeros, sizeof zeros);
        return;
    case 2:
        last = any;
        break;
    default:
        break;
    }
    if (last != NULL)
        put_file(to, last->bytes, last->len);
}

void disk_cut(const char *from, const char *to, size_t cut, uint64_t *dice)
{
    static const char *const suffixes[] = {"", "-wal", "-journal"};
    char name[256], path[256];
    enum mode mode = (enum mode)disk_roll(dice, MODES);

    for (size_t i = 0; i < 3; i++) {
        (void)snprintf(path, sizeof path, "%s%s", to, suffixes[i]);
        (void)unlink(path);
        for (int f = 0; f < the.n_files; f++) {
            (void)snprintf(name, sizeof name, "%s%s", from, suffixes[i]);
            const char *base = strrchr(the.file[f], '/');
            if (strcmp(base ? base + 1 : the.file[f], name) == 0)
                cut_file(f, path, cut, mode, dice);
        }
    }
    (void)snprintf(path, sizeof path, "%s-lease", to);
    (void)unlink(path);
    cut_side(path, cut, dice);
    (void)snprintf(path, sizeof path, "%s-shm", to);
    (void)unlink(path);
}

void disk_evict(const char *name)
{
    uint64_t dice = 1;

    pthread_mutex_lock(&the.mutex);
    for (int f = 0; f < the.n_files; f++) {
        const char *base = strrchr(the.file[f], '/');
        if (strcmp(base ? base + 1 : the.file[f], name) == 0)
            cut_file(f, name, the.n_ops, MODE_DROP, &dice);
    }
    pthread_mutex_unlock(&the.mutex);
}
