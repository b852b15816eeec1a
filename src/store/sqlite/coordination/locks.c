/* Locks on the coordination file: presence, writers, the writer lock, the sync lock, the watch lock. The
 * kernel releases them when their holder dies. */
#include "store/sqlite/coordination/coord_page.h"

#include "base/clock.h"
#include "base/sys.h"

#include <leasehold.h>

#include <limits.h>
#include <string.h>
#include <sys/stat.h>

enum {
    QUEUE_UP_MS = 10, /* after a wait this long, newcomers may no longer overtake */
    WARN_MS = 2000,
    CHECKED_MS = 600000, /* how long to wait while another process checks or repairs the store */
};

/* ---- presence and writers ---- */

static bool being_checked(const struct coord *coord)
{
    return strcmp(coord->page->holder_what, "check") == 0 ||
           strcmp(coord->page->holder_what, "repair") == 0;
}

int sq_coord_present(struct coord *coord, int64_t busy_ms, struct lhi_error *err)
{
    int64_t start = lhi_mono_ms();

    /* A process holds this lock alone during a first open and a last close, and while it checks or
     * repairs the store after a crash. */
    while (!lhi_lock_try(coord->fd, BYTE_PRESENT, true)) {
        if (lhi_mono_ms() - start >= (being_checked(coord) ? CHECKED_MS : busy_ms))
            return lhi_fail(err, LH_EBUSY,
                            "store is busy: process %lld (%.23s) uses it exclusively",
                            (long long)coord->page->holder_pid, coord->page->holder_what);
        lhi_sleep_ms(1);
    }
    return LH_OK;
}

bool sq_coord_alone(struct coord *coord)
{
    return lhi_lock_try(coord->fd, BYTE_PRESENT, false);
}

void sq_coord_share(struct coord *coord)
{
    /* Going from exclusive to shared cannot fail. */
    (void)lhi_lock_try(coord->fd, BYTE_PRESENT, true);
}

bool sq_coord_join_writers(struct coord *coord)
{
    bool only = lhi_lock_try(coord->fd, BYTE_WRITERS, false);

    /* It is held exclusively only under the writer lock. */
    (void)lhi_lock_try(coord->fd, BYTE_WRITERS, true);
    return only;
}

bool sq_coord_leave_writers(struct coord *coord)
{
    bool last = lhi_lock_try(coord->fd, BYTE_WRITERS, false);

    lhi_unlock(coord->fd, BYTE_WRITERS);
    return last;
}

/* ---- the writer lock ---- */

/* If the file was removed or replaced, other processes lock another file than we do. */
static bool is_in_place(const struct coord *coord)
{
    struct stat st;
    return stat(coord->path, &st) == 0 && st.st_ino == coord->ino && st.st_size >= COORD_PAGE_BYTES;
}

void sq_writer_lock_announce(struct coord *coord, const char *what)
{
    size_t len = strnlen(what, sizeof coord->page->holder_what - 1);
    coord->page->holder_pid = coord->pid;
    memcpy(coord->page->holder_what, what, len);
    coord->page->holder_what[len] = '\0';
}

static bool may_overtake(const struct coord *coord)
{
    return __atomic_load_n(&coord->page->lock_waiters, __ATOMIC_RELAXED) == 0 ||
           __atomic_load_n(&coord->page->newcomers_wait_until, __ATOMIC_RELAXED) <
               sq_coord_machine_ms(coord);
}

int sq_writer_lock(struct coord *coord, int64_t busy_ms, const char *what, struct lhi_error *err)
{
    int64_t start = lhi_mono_ms(), waited = 0;
    bool first = true, warned = false;

    for (;;) {
        /* A newcomer may take a free lock before a waiter has woken up, unless a waiter has waited
         * long. So the lock is not idle while the waiter wakes up. */
        if ((!first || may_overtake(coord)) && lhi_lock_try(coord->fd, BYTE_WRITER_LOCK, false))
            break;
        first = false;
        if (waited >= busy_ms)
            return lhi_fail(err, LH_EBUSY, "store is busy: waited %lld ms for process %lld (%.23s)",
                            (long long)waited, (long long)coord->page->holder_pid,
                            coord->page->holder_what);
        uint32_t seen = __atomic_load_n(&coord->page->lock_releases, __ATOMIC_ACQUIRE);
        __atomic_add_fetch(&coord->page->lock_waiters, 1, __ATOMIC_SEQ_CST);
        if (waited >= QUEUE_UP_MS)
            __atomic_store_n(&coord->page->newcomers_wait_until,
                             sq_coord_machine_ms(coord) + SLICE_MS, __ATOMIC_RELAXED);
        if (lhi_lock_try(coord->fd, BYTE_WRITER_LOCK, false)) {
            __atomic_sub_fetch(&coord->page->lock_waiters, 1, __ATOMIC_SEQ_CST);
            break;
        }
        (void)lhi_futex_wait(&coord->page->lock_releases, seen, UINT32_MAX, SLICE_MS);
        __atomic_sub_fetch(&coord->page->lock_waiters, 1, __ATOMIC_SEQ_CST);
        waited = lhi_mono_ms() - start;
        if (waited >= WARN_MS && !warned) {
            /* Only a warning: the holder may be slow, and if it dies the kernel releases the lock. */
            lhi_log(coord->log, LH_LOG_WARN, "waiting for process %lld (%.23s) to leave the store",
                    (long long)coord->page->holder_pid, coord->page->holder_what);
            warned = true;
        }
    }
    if (!is_in_place(coord)) {
        lhi_unlock(coord->fd, BYTE_WRITER_LOCK);
        return lhi_fail(
            err, LH_ESTOPPED,
            "coordination file \"%s\" was removed or replaced while the store was open: "
            "close the store and open it again",
            coord->path);
    }
    sq_writer_lock_announce(coord, what);
    return LH_OK;
}

void sq_writer_unlock(struct coord *coord)
{
    lhi_unlock(coord->fd, BYTE_WRITER_LOCK);
    __atomic_add_fetch(&coord->page->lock_releases, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&coord->page->lock_waiters, __ATOMIC_SEQ_CST) > 0)
        lhi_futex_wake(&coord->page->lock_releases, 1, UINT32_MAX);
}
bool sq_writer_lock_wanted(const struct coord *coord)
{
    return __atomic_load_n(&coord->page->lock_waiters, __ATOMIC_RELAXED) > 0;
}

/* ---- the sync lock ---- */

uint32_t sq_sync_ticket(const struct coord *coord)
{
    return __atomic_load_n(&coord->page->syncs, __ATOMIC_SEQ_CST);
}

bool sq_sync_lock_try(struct coord *coord)
{
    return lhi_lock_try(coord->fd, BYTE_SYNC, false);
}

void sq_sync_unlock(struct coord *coord)
{
    lhi_unlock(coord->fd, BYTE_SYNC);
    __atomic_add_fetch(&coord->page->syncs, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&coord->page->sync_waiters, __ATOMIC_SEQ_CST) > 0)
        lhi_futex_wake(&coord->page->syncs, INT_MAX, UINT32_MAX);
}

void sq_sync_wait(struct coord *coord, uint32_t ticket)
{
    __atomic_add_fetch(&coord->page->sync_waiters, 1, __ATOMIC_SEQ_CST);
    (void)lhi_futex_wait(&coord->page->syncs, ticket, UINT32_MAX, SLICE_MS);
    __atomic_sub_fetch(&coord->page->sync_waiters, 1, __ATOMIC_SEQ_CST);
}

/* ---- the watch lock ---- */

bool sq_coord_lock_watch(struct coord *coord)
{
    return lhi_lock_try(coord->fd, BYTE_WATCH, false);
}

void sq_coord_unlock_watch(struct coord *coord)
{
    lhi_unlock(coord->fd, BYTE_WATCH);
}
