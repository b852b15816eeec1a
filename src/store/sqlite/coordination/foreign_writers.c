/*
 * Noticing foreign writers, that is, programs that write to the database without our library.
 *
 * Our own writers wake idle workers themselves. A plain INSERT by another program does not. So one
 * of the waiting processes watches the database's folder by inotify. Events arrive before a commit
 * is visible, and also for our own writes. So the watch waits a few milliseconds, compares the
 * database's version with our own commits, and wakes the others only if somebody else has
 * committed. While our own writers are busy, it checks at most four times a second. In any case
 * every waiting process polls once a second.
 */
#include "store/sqlite/coordination/watch.h"
#include "store/sqlite/open.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

enum {
    SETTLE_MS = 4, /* usually enough from the write to the visible commit */
    LOOKS = 4,     /* the checks after a write, with growing pauses */
    BUSY_MS = 250, /* between checks while our own writers are busy */
    TAKEOVER_MS = 1000,
};

struct watch {
    struct db *db;
    struct conn conn;
    sqlite3_stmt *version_stmt;
    int fd; /* inotify */
    const char *folder;
    int64_t version;    /* of the database, when last checked */
    uint64_t committed; /* transactions of our own, when last checked */
};

/* The version of the database. It changes whenever another connection has committed. */
static int64_t data_version(struct watch *w)
{
    int64_t version = -1;

    if (sqlite3_step(w->version_stmt) == SQLITE_ROW)
        version = sqlite3_column_int64(w->version_stmt, 0);
    (void)sqlite3_reset(w->version_stmt);
    return version;
}

/* Wait. True: the watch must stop. */
static bool pause_for(struct db *db, int64_t ms)
{
    struct pollfd stop = {.fd = db->watch_stop[0], .events = POLLIN};
    return poll(&stop, 1, (int)ms) > 0;
}

static void drain(int fd)
{
    char events[4096];
    while (read(fd, events, sizeof events) > 0)
        ;
}

/* Our own writers are busy and wake workers themselves. Remove the watch for a while: otherwise
 * every page that they write would queue an event. */
static bool look_away(struct watch *w, int *mark)
{
    (void)inotify_rm_watch(w->fd, *mark);
    bool stop = pause_for(w->db, BUSY_MS);
    drain(w->fd);
    *mark = inotify_add_watch(w->fd, w->folder, IN_MODIFY);
    w->version = data_version(w);
    w->committed = sq_coord_committed(&w->db->coord);
    return stop || *mark < 0;
}

/* Something was written. Find out whether somebody else has committed. True: the watch must
 * stop. */
static bool look_for_foreign(struct watch *w, int *mark)
{
    for (int i = 0; i < LOOKS; i++) {
        if (pause_for(w->db, SETTLE_MS << i))
            return true;
        if (sq_coord_committed(&w->db->coord) != w->committed)
            return look_away(w, mark);
        int64_t version = data_version(w);
        if (version != w->version) {
            w->version = version;
            sq_wake_all_queues(&w->db->coord);
            sq_wake_commit(&w->db->coord);
            return false;
        }
    }
    return false;
}

static void watch_folder(struct watch *w)
{
    int mark = inotify_add_watch(w->fd, w->folder, IN_MODIFY);
    struct pollfd fds[2] = {{.fd = w->fd, .events = POLLIN},
                            {.fd = w->db->watch_stop[0], .events = POLLIN}};

    w->version = data_version(w);
    w->committed = sq_coord_committed(&w->db->coord);
    while (mark >= 0) {
        if (poll(fds, 2, -1) < 0 && errno != EINTR)
            return;
        if (fds[1].revents != 0)
            return;
        if (fds[0].revents == 0)
            continue;
        drain(w->fd);
        if (look_for_foreign(w, &mark))
            return;
    }
}

static bool prepare(struct watch *w)
{
    struct lhi_error ignored;

    w->fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    return w->fd >= 0 &&
           sq_conn_open(&w->conn, w->db->file, SQLITE_OPEN_READONLY, &ignored) == LH_OK &&
           sqlite3_prepare_v3(w->conn.db, "PRAGMA data_version", -1, SQLITE_PREPARE_PERSISTENT,
                              &w->version_stmt, NULL) == SQLITE_OK;
}

static void *watch(void *arg)
{
    struct db *db = arg;
    struct watch w = {.db = db, .fd = -1};
    char folder[4096];

    /* One process watches for all processes of the store. If it ends, another one takes over. */
    while (!sq_coord_lock_watch(&db->coord))
        if (pause_for(db, TAKEOVER_MS))
            return NULL;
    lhi_format(folder, sizeof folder, "%s", db->file);
    char *slash = strrchr(folder, '/'); /* the path is absolute */
    slash[slash == folder] = '\0';
    w.folder = folder; /* not the -wal, which is created and removed repeatedly */
    if (prepare(&w))
        watch_folder(&w);
    else
        lhi_log(&db->log, LH_LOG_WARN,
                "cannot watch \"%s\" for foreign writers: they are noticed by the poll", folder);
    (void)sqlite3_finalize(w.version_stmt);
    sq_conn_close(&w.conn);
    if (w.fd >= 0)
        close(w.fd);
    sq_coord_unlock_watch(&db->coord);
    return NULL;
}

void sq_foreign_writers_watch(struct db *db)
{
    pthread_mutex_lock(&db->watch_mutex);
    if (!db->watching && !db->opts.read_only && db->watch_stop[0] < 0 &&
        pipe2(db->watch_stop, O_CLOEXEC) == 0)
        db->watching = lhi_thread_start(&db->watcher, watch, db);
    pthread_mutex_unlock(&db->watch_mutex);
}

void sq_foreign_writers_unwatch(struct db *db)
{
    if (db->watching) {
        (void)!write(db->watch_stop[1], "",
                     /* closing the pipe is not enough, because a forked child may have a copy */
                     1);
        pthread_join(db->watcher, NULL);
    }
    for (int i = 0; i < 2; i++)
        if (db->watch_stop[i] >= 0)
            close(db->watch_stop[i]);
    db->watch_stop[0] = db->watch_stop[1] = -1;
    db->watching = false;
}
