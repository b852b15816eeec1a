/*
 * foreign_writers.c: noticing foreign writers.
 *
 * Writers of ours ring the bell. A plain INSERT by another program does not, so one process of
 * those that wait watches the database's folder by inotify. It fires before a commit is visible and
 * at every write of our own, hence the debounce: look a moment later whether the database changed
 * without a commit of ours, and only then wake the others. While our own writers are busy the watch
 * looks four times a second and no more. The poll of a second under every wait is the net.
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
    SETTLE_MS = 4, /* from the write to the visible commit, as a rule */
    LOOKS = 4,     /* … and a few more looks when it is not */
    BUSY_MS = 250, /* between looks while writers of ours are at work */
    TAKEOVER_MS = 1000,
};

struct watch {
    struct db *db;
    struct conn conn;
    sqlite3_stmt *version_stmt;
    int fd; /* inotify */
    const char *folder;
    int64_t version;    /* of the database, as last seen */
    uint64_t committed; /* by writers of ours, as last seen */
};

/* Changes whenever another connection has committed. */
static int64_t data_version(struct watch *w)
{
    int64_t version = -1;

    if (sqlite3_step(w->version_stmt) == SQLITE_ROW)
        version = sqlite3_column_int64(w->version_stmt, 0);
    (void)sqlite3_reset(w->version_stmt);
    return version;
}

/* True: told to stop. */
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

/* Writers of ours are at work, and ring by themselves. Look away for a while: with the watch on,
 * every page they write would be queued for us. */
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

/* Something was written. Was it somebody else, and can it be seen by now? True: stop. */
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

    /* One watcher for all processes of the store; when it goes, another takes over. */
    while (!sq_coord_lock_watch(&db->coord))
        if (pause_for(db, TAKEOVER_MS))
            return NULL;
    lhi_format(folder, sizeof folder, "%s", db->file);
    char *slash = strrchr(folder, '/'); /* the path is absolute */
    slash[slash == folder] = '\0';
    w.folder = folder; /* not the -wal, which comes and goes */
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
                     1); /* not by closing it: a forked child may have a copy */
        pthread_join(db->watcher, NULL);
    }
    for (int i = 0; i < 2; i++)
        if (db->watch_stop[i] >= 0)
            close(db->watch_stop[i]);
    db->watch_stop[0] = db->watch_stop[1] = -1;
    db->watching = false;
}
