/*
 * watch.c: noticing foreign writers.
 *
 * Writers of ours ring the bell. A plain INSERT by another program does not, so one process of
 * those that wait watches the database's folder by inotify. It fires before a commit is visible and
 * at every write of our own, hence the debounce: look a moment later whether the database changed
 * without a commit of ours, and only then wake the others. While our own writers are busy, the
 * watch looks ten times a second and no more. The poll of a second under every wait is the net.
 */
#include "store/sqlite/db.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

enum {
    SETTLE_MS = 4, /* from the write to the visible commit, as a rule */
    LOOKS = 4,     /* … and a few more looks when it is not */
    BUSY_MS = 100, /* between looks while writers of ours are at work */
    TAKEOVER_MS = 1000,
};

static int64_t data_version(struct conn *conn)
{
    sqlite3_stmt *stmt = NULL;
    int64_t version = -1;

    if (sqlite3_prepare_v2(conn->db, "PRAGMA data_version", -1, &stmt, NULL) == SQLITE_OK &&
        sqlite3_step(stmt) == SQLITE_ROW)
        version = sqlite3_column_int64(stmt, 0);
    (void)sqlite3_finalize(stmt);
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

/* Something was written. Was it somebody else, and can it be seen by now? */
static bool look_for_foreign(struct db *db, struct conn *conn, int64_t *seen, uint64_t *ours)
{
    for (int i = 0; i < LOOKS; i++) {
        if (pause_for(db, SETTLE_MS << i))
            return true;
        int64_t version = data_version(conn);
        uint64_t committed = side_committed(&db->side);
        bool own = committed != *ours;
        *ours = committed;
        if (own) {
            *seen = version;
            return pause_for(db, BUSY_MS);
        }
        if (version != *seen) {
            *seen = version;
            side_ring_all(&db->side);
            side_changed(&db->side);
            return false;
        }
    }
    return false;
}

static void watch_folder(struct db *db, struct conn *conn, int fd)
{
    int64_t seen = data_version(conn);
    uint64_t ours = side_committed(&db->side);
    struct pollfd fds[2] = {{.fd = fd, .events = POLLIN},
                            {.fd = db->watch_stop[0], .events = POLLIN}};

    for (;;) {
        if (poll(fds, 2, -1) < 0 && errno != EINTR)
            return;
        if (fds[1].revents != 0)
            return;
        if (fds[0].revents == 0)
            continue;
        drain(fd);
        if (look_for_foreign(db, conn, &seen, &ours))
            if (pause_for(db, 0))
                return;
    }
}

static void *watch(void *arg)
{
    struct db *db = arg;
    struct conn conn = {0};
    struct lhi_error ignored;
    char folder[1024];

    /* One watcher for all processes of the store; when it goes, another takes over. */
    while (!side_take_watch(&db->side))
        if (pause_for(db, TAKEOVER_MS))
            return NULL;
    lhi_format(folder, sizeof folder, "%s", db->path);
    char *slash = strrchr(folder, '/');
    if (slash == NULL)
        lhi_format(folder, sizeof folder, ".");
    else
        slash[slash == folder] = '\0';
    /* The folder, not the -wal: the -wal comes and goes. */
    int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (fd >= 0 && inotify_add_watch(fd, folder, IN_MODIFY) >= 0 &&
        conn_open(&conn, db->path, SQLITE_OPEN_READONLY, &ignored) == LH_OK)
        watch_folder(db, &conn, fd);
    else
        lhi_log(&db->log, LH_LOG_WARN,
                "cannot watch \"%s\" for foreign writers: they are noticed by the poll", folder);
    if (fd >= 0)
        close(fd);
    conn_close(&conn);
    return NULL;
}

void watch_start(struct db *db)
{
    pthread_mutex_lock(&db->watch_mutex);
    if (!db->watching && !db->opts.read_only && db->watch_stop[0] < 0 &&
        pipe2(db->watch_stop, O_CLOEXEC) == 0)
        db->watching = pthread_create(&db->watcher, NULL, watch, db) == 0;
    pthread_mutex_unlock(&db->watch_mutex);
}

void watch_stop(struct db *db)
{
    if (db->watching) {
        close(db->watch_stop[1]);
        db->watch_stop[1] = -1;
        pthread_join(db->watcher, NULL);
    }
    for (int i = 0; i < 2; i++)
        if (db->watch_stop[i] >= 0)
            close(db->watch_stop[i]);
    db->watch_stop[0] = db->watch_stop[1] = -1;
    db->watching = false;
}
