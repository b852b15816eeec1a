/*
 * Why writes and checkpoints hold the writer lock: this test forces the WAL-reset bug of SQLite.
 *
 * The window. A passive checkpoint takes the checkpoint lock, copies the wal-index header into its
 * own memory, and only then reads `nBackfill`, the shared count of frames already in the database.
 * It does not hold the write lock, so between those two reads a writer may commit. That is harmless
 * unless an earlier checkpoint had just finished the whole WAL: then the writer starts it over,
 * which sets `nBackfill` to zero, and puts its frames at the beginning. The checkpointer now
 * compares the new zero with the old length it remembers, concludes that the whole old WAL is still to be
 * copied, and ends by storing that old length in `nBackfill`. From then on frames that are not
 * written yet count as copied. Every commit that lands in them is synced and acknowledged, yet no
 * other connection looks for it in the WAL and no checkpoint copies it, the one of the last close
 * included, which then deletes the only copy. What remains is an older, sound database, so
 * integrity_check finds nothing. (The commit inside the window is copied, by accident: its frames
 * stand where the checkpointer expects old ones. The commits after it are lost.)
 *
 * How it is forced. If the header has changed since the checkpointer's last look, SQLite drops its
 * memory map of the database file (xUnfetch) exactly between the two reads, mapped or not. A VFS
 * laid over the default one runs the writer from inside that call, so that the test needs no threads, no sleeps and no luck.
 *
 * What it proves. Without the writer lock an affected SQLite loses every row committed after the
 * race, and a repaired one loses none. With the writer lock, an open-file-description lock on a file
 * beside the database, the writer tries at the same instant, is refused, and writes when the
 * checkpointer has finished. Then no row is lost, in any version of SQLite.
 */
#include <fcntl.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "harness/harness.h"

enum {
    /* Decides how many later frames are falsely taken as done. All rows together must fit on one
     * page, so that each commit is one frame and the lost ones leave a consistent database. */
    OLD_ROWS = 40,
    RACING_ROWS = 1,
    LATER_ROWS = 5,
    ALL_ROWS = OLD_ROWS + RACING_ROWS + LATER_ROWS
};

/* One connection and its own open file description of the writer lock; -1: it does not use the lock. */
struct party {
    sqlite3 *db;
    int writer_lock;
};

/* `vfs` and `methods` come first in their structs, because SQLite hands their addresses back to us
 * and we find our state from them. */
struct window_methods {
    sqlite3_io_methods methods;
    int (*real_unfetch)(sqlite3_file *, sqlite3_int64, void *);
    struct window *window;
};

struct window {
    sqlite3_vfs vfs;
    sqlite3_vfs *real;
    struct window_methods tap;
    const struct party *writer; /* writes the next time the window opens; NULL: no longer */
    int opened;
    int refused;
};

static bool sqlite_is_affected(void)
{
    const int version = sqlite3_libversion_number();
    const bool repaired_3_44 = version >= 3044006 && version < 3045000;
    const bool repaired_3_50 = version >= 3050007 && version < 3051000;

    return version < 3051003 && !repaired_3_44 && !repaired_3_50;
}

static bool writer_lock_set(const struct party *p, short type)
{
    struct flock whole_file = {.l_type = type, .l_whence = SEEK_SET};

    return p->writer_lock < 0 || fcntl(p->writer_lock, F_OFD_SETLK, &whole_file) == 0;
}

static bool writer_lock_enter(const struct party *p)
{
    return writer_lock_set(p, F_WRLCK);
}

static void writer_lock_leave(const struct party *p)
{
    EXPECT(writer_lock_set(p, F_UNLCK));
}

static void exec_sql(sqlite3 *db, const char *sql)
{
    EXPECT_EQ(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
}

static void count_rows(sqlite3 *db, int *out)
{
    sqlite3_stmt *stmt = NULL;

    EXPECT_EQ(sqlite3_prepare_v2(db, "SELECT count(*) FROM t", -1, &stmt, NULL), SQLITE_OK);
    EXPECT_EQ(sqlite3_step(stmt), SQLITE_ROW);
    *out = sqlite3_column_int(stmt, 0);
    EXPECT_EQ(sqlite3_finalize(stmt), SQLITE_OK);
}

static void expect_integrity_ok(sqlite3 *db)
{
    sqlite3_stmt *stmt = NULL;

    EXPECT_EQ(sqlite3_prepare_v2(db, "PRAGMA integrity_check", -1, &stmt, NULL), SQLITE_OK);
    EXPECT_EQ(sqlite3_step(stmt), SQLITE_ROW);
    EXPECT(strcmp((const char *)sqlite3_column_text(stmt, 0), "ok") == 0);
    EXPECT_EQ(sqlite3_finalize(stmt), SQLITE_OK);
}

/* Returns only once the row is committed and synced; false if the writer lock is taken. */
static bool commit_row(const struct party *p)
{
    if (!writer_lock_enter(p))
        return false;
    exec_sql(p->db, "INSERT INTO t DEFAULT VALUES");
    writer_lock_leave(p);
    return true;
}

static void checkpoint(const struct party *p, int *wal_frames, int *done_frames)
{
    EXPECT(writer_lock_enter(p));
    EXPECT_EQ(sqlite3_wal_checkpoint_v2(p->db, "main", SQLITE_CHECKPOINT_PASSIVE, wal_frames,
                                        done_frames),
              SQLITE_OK);
    writer_lock_leave(p);
}

static int window_unfetch(sqlite3_file *file, sqlite3_int64 offset, void *page)
{
    const struct window_methods *tap = (const struct window_methods *)(const void *)file->pMethods;
    struct window *window = tap->window;
    const struct party *writer = window->writer;

    if (writer != NULL) {
        window->writer = NULL;
        window->opened++;
        if (!commit_row(writer))
            window->refused++;
    }
    return tap->real_unfetch(file, offset, page);
}

static int window_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *file, int flags,
                       int *out_flags)
{
    struct window *window = (struct window *)(void *)vfs;
    const int rc = window->real->xOpen(window->real, name, file, flags, out_flags);

    /* The file stays the default VFS's own; only its table of methods is exchanged for a copy in
     * which one entry leads to us. That leaves nothing else of SQLite's behaviour to imitate. */
    if (rc == SQLITE_OK && (flags & SQLITE_OPEN_MAIN_DB) != 0) {
        window->tap.methods = *file->pMethods;
        window->tap.real_unfetch = file->pMethods->xUnfetch;
        window->tap.methods.xUnfetch = window_unfetch;
        file->pMethods = &window->tap.methods;
    }
    return rc;
}

static void window_register(struct window *window)
{
    *window = (struct window){.real = sqlite3_vfs_find(NULL)};
    EXPECT(window->real != NULL);
    window->tap.window = window;
    window->vfs = *window->real;
    window->vfs.pNext = NULL;
    window->vfs.zName = "window";
    window->vfs.xOpen = window_open;
    EXPECT_EQ(sqlite3_vfs_register(&window->vfs, 0), SQLITE_OK);
}

static void party_open(struct party *p, bool with_writer_lock, const char *vfs_name)
{
    *p = (struct party){.writer_lock = -1};
    if (with_writer_lock) {
        p->writer_lock = open("t.db-lease", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        EXPECT(p->writer_lock >= 0);
    }
    EXPECT_EQ(sqlite3_open_v2("t.db", &p->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, vfs_name),
              SQLITE_OK);
    EXPECT(writer_lock_enter(p));
    exec_sql(p->db, "PRAGMA journal_mode = WAL");
    writer_lock_leave(p);
    exec_sql(p->db, "PRAGMA synchronous = FULL");
    exec_sql(p->db, "PRAGMA wal_autocheckpoint = 0");
}

/* The last connection to close runs a checkpoint, so closing passes the writer lock too. */
static void party_close(struct party *p)
{
    EXPECT(writer_lock_enter(p));
    EXPECT_EQ(sqlite3_close(p->db), SQLITE_OK);
    writer_lock_leave(p);
    if (p->writer_lock >= 0)
        EXPECT_EQ(close(p->writer_lock), 0);
}

/* The steps of the race, the same for both tests. Every commit was acknowledged under
 * synchronous=FULL; `*lost` is how many of their rows are gone after a clean close. */
static void race(bool with_writer_lock, struct window *window, int *lost)
{
    struct party writer, checkpointer;
    int wal_frames = 0, done_frames = 0, rows = 0;

    window_register(window);
    party_open(&writer, with_writer_lock, NULL);
    party_open(&checkpointer, with_writer_lock, window->vfs.zName);
    EXPECT(writer_lock_enter(&writer));
    exec_sql(writer.db, "CREATE TABLE t (id INTEGER PRIMARY KEY)");
    writer_lock_leave(&writer);

    /* Look now, so that the header remembered here is out of date by the time of the checkpoint:
     * SQLite makes the call we wait for only when the header has changed. */
    count_rows(checkpointer.db, &rows);
    EXPECT_EQ(rows, 0);

    for (int i = 0; i < OLD_ROWS; i++)
        EXPECT(commit_row(&writer));

    /* First checkpoint: complete, so the next writer will start the WAL over. */
    checkpoint(&writer, &wal_frames, &done_frames);
    EXPECT(wal_frames > RACING_ROWS + LATER_ROWS);
    EXPECT_EQ(done_frames, wal_frames);

    /* Second checkpoint, with the writer at the window; if refused there, it waits its turn. */
    window->writer = &writer;
    checkpoint(&checkpointer, NULL, NULL);
    EXPECT_EQ(window->opened, 1);
    if (window->refused > 0)
        EXPECT(commit_row(&writer));

    for (int i = 0; i < LATER_ROWS; i++)
        EXPECT(commit_row(&writer));
    /* The writer still has the page in its cache, so it is the last to find out. */
    count_rows(writer.db, &rows);
    EXPECT_EQ(rows, ALL_ROWS);

    party_close(&checkpointer);
    party_close(&writer);

    party_open(&writer, with_writer_lock, NULL);
    expect_integrity_ok(writer.db);
    count_rows(writer.db, &rows);
    party_close(&writer);
    EXPECT_EQ(sqlite3_vfs_unregister(&window->vfs), SQLITE_OK);
    *lost = ALL_ROWS - rows;
}

TEST(without_the_writer_lock_a_checkpoint_during_a_wal_reset_loses_rows)
{
    struct window window;
    int lost = 0;

    race(false, &window, &lost);
    EXPECT_EQ(window.refused, 0);
    EXPECT_EQ(lost, sqlite_is_affected() ? LATER_ROWS : 0);
}

TEST(with_the_writer_lock_a_checkpoint_during_a_wal_reset_loses_nothing)
{
    struct window window;
    int lost = 0;

    race(true, &window, &lost);
    EXPECT_EQ(window.refused, 1);
    EXPECT_EQ(lost, 0);
}
