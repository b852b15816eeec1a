#include "store/sqlite/coordination/coord.h"
#include "store/sqlite/files/trust.h"

#include "base/clock.h"
#include "base/sys.h"

#include <leasehold.h>

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC "LHSIDE1"

enum { BELL_BITS = 32 }; /* as many as a futex tells apart */

/* Layout of the mapped page: part of the format, shared by every version that has this magic. */
struct coord_page {
    char magic[8];
    char uuid[40];
    uint64_t dev, ino; /* of the database; 0: not known yet */
    uint64_t wal_ino;  /* of its log */
    uint32_t dirty;
    uint32_t sync_failed;
    uint64_t committed;
    uint64_t synced;
    int64_t frames;
    int64_t clock; /* store time minus the monotonic clock; 0: not known */
    uint32_t gate; /* futex: counts departures from the turnstile */
    uint32_t gate_waiters;
    int64_t hungry_until; /* somebody has waited long: newcomers queue until then */
    uint32_t bell;        /* futex: counts rings */
    uint32_t bell_waiters;
    uint32_t rings[BELL_BITS];     /* rings by the bit of a queue's hash … */
    uint32_t ring_hash[BELL_BITS]; /* … and whom the last of them was for */
    uint32_t bell_passes;          /* how often a ring was passed on since the last */
    uint32_t syncs;                /* futex: counts syncs of the log */
    uint32_t sync_waiters;
    uint32_t changed; /* futex: counts commits */
    uint32_t changed_waiters;
    int64_t holder_pid;
    char holder_what[24];
    uint32_t recovery_due;
    uint32_t own;  /* the database has no tables but ours */
    uint32_t work; /* enum coord_work … */
    int64_t work_at;
    uint32_t reserve_spent; /* a full disk: the reserve was given up, see reserve.c */
    uint32_t siren;         /* futex */
    uint32_t siren_waiters;
    int64_t recovering; /* monotonic: until then a recovery is under way */
};

enum { PAGE = 4096 };
_Static_assert(sizeof(struct coord_page) <= PAGE, "the side file is one page");

/* Lock bytes, far behind the page. */
enum { BYTE_TURN = 1 << 20, BYTE_PRESENT, BYTE_WRITER, BYTE_SYNC, BYTE_WATCH };

enum {
    SLICE_MS = 50,  /* a holder that was killed wakes nobody: look again after so long */
    HUNGRY_MS = 10, /* a wait beyond this makes newcomers queue */
    WARN_MS = 2000,
    RECOVERING_MS = 1000,
    CHECK_MS = 600000, /* how long to wait for a check or repair */
};

/* ---- forks ---- */

/* A lock lives with the open file description, which a forked child shares: with the descriptor the
 * child would keep the parent's locks beyond the parent's end. */
static void let_go(void *arg)
{
    struct coord *coord = arg;
    close(coord->fd);
    coord->fd = -1;
    coord->page = NULL; /* not inherited */
}

/* ---- time ---- */

/* What stands in the page is compared by processes of all time namespaces. */
static int64_t machine_ms(const struct coord *coord)
{
    return lhi_mono_ms() - coord->ahead_ms;
}

/* ---- the file ---- */

/* The file may be removed or replaced under us; then the lock we hold is not the one others see. */
static bool still_ours(const struct coord *coord)
{
    struct stat st;
    return stat(coord->path, &st) == 0 && st.st_ino == coord->ino && st.st_size >= PAGE;
}

/* A mapping keeps the open file description, and with it the locks, so no forked child may have it. */
static void *map_for_this_process(int fd)
{
    lhi_forks_hold();
    void *p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED || madvise(p, PAGE, MADV_DONTFORK) != 0) {
        int failed = errno;
        if (p != MAP_FAILED)
            (void)munmap(p, PAGE);
        errno = failed;
        p = NULL;
    }
    lhi_forks_resume();
    return p;
}

/* A file that we have made is for all who may write the database; another is checked. */
static int settle_rights(const struct coord *coord, const char *db_path, bool to_write,
                         struct stat *st, struct lhi_error *err)
{
    struct stat database;
    const struct stat *of = stat(db_path, &database) == 0 ? &database : NULL;
    mode_t mode = sq_trust_writers(of);

    if (fstat(coord->fd, st) != 0)
        return lhi_fail_errno(err, errno, "could not look at the side file \"%s\"", coord->path);
    if (coord->created && of != NULL &&
        ((geteuid() == 0 && fchown(coord->fd, of->st_uid, of->st_gid) != 0) ||
         ((mode & 0060) && of->st_gid != st->st_gid &&
          fchown(coord->fd, (uid_t)-1, of->st_gid) != 0)))
        mode = 0600; /* for us alone, then */
    if (!to_write && of != NULL && sq_trust_links(db_path, of))
        st->st_nlink = 1;
    int rc = coord->created ? LH_OK : sq_trust_file(coord->path, st, of, err);
    /* A user who may read it may lock it, and so keep everybody out. */
    if (rc == LH_OK && (coord->created || (st->st_mode & 0077 & ~mode)))
        (void)fchmod(coord->fd, mode);
    return rc;
}

static int map_page(struct coord *coord, const char *db_path, bool to_write, struct lhi_error *err)
{
    struct stat st;
    int status = settle_rights(coord, db_path, to_write, &st, err);

    if (status != LH_OK)
        return status;
    if (st.st_size != 0 && st.st_size != PAGE)
        return lhi_fail(err, LH_EINVAL,
                        "\"%s\" is in the way: it is not a side file of ours, and would be written "
                        "over",
                        coord->path);
    if (st.st_size < PAGE) {
        /* Real blocks, not a hole: a full disk must not turn a store into the page into SIGBUS. */
        int rc = posix_fallocate(coord->fd, 0, PAGE);
        if (rc != 0)
            return lhi_fail_errno(err, rc, "could not make the side file \"%s\"", coord->path);
    }
    coord->page = map_for_this_process(coord->fd);
    if (coord->page == NULL)
        return lhi_fail_errno(err, errno, "could not map the side file \"%s\"", coord->path);
    coord->ino = st.st_ino;
    if (memcmp(coord->page->magic, MAGIC, sizeof MAGIC) == 0)
        return LH_OK;
    /* New, or damaged: it is made anew, by one of those who come at once. */
    int rc = lhi_lock_wait(coord->fd, BYTE_TURN, false);
    if (rc != 0)
        return lhi_fail_errno(err, rc, "could not lock the side file \"%s\"", coord->path);
    if (memcmp(coord->page->magic, MAGIC, sizeof MAGIC) != 0) {
        memset(coord->page, 0, sizeof *coord->page);
        memcpy(coord->page->magic, MAGIC, sizeof MAGIC);
    }
    lhi_unlock(coord->fd, BYTE_TURN);
    return LH_OK;
}

/* What another made is opened without O_CREAT, with which some kernels refuse a file of the database's
 * owner in a folder like /tmp; and without waiting, should it be no plain file. */
static void open_file(struct coord *coord, bool create)
{
    int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    bool taken;

    do {
        coord->fd = create ? open(coord->path, flags | O_CREAT | O_EXCL, 0600) : -1;
        coord->created = coord->fd >= 0;
        taken = create && errno == EEXIST;
        if (!coord->created && (taken || !create))
            coord->fd = open(coord->path, flags);
    } while (coord->fd < 0 && taken && errno == ENOENT); /* it was removed in between */
}

int sq_coord_open(struct coord *coord, const char *db_path, bool create, const struct lhi_log *log,
                  struct lhi_error *err)
{
    struct lhi_time_ns time;

    memset(coord, 0, sizeof *coord);
    coord->fd = -1;
    coord->log = log;
    coord->pid = getpid();
    lhi_time_ns(&time);
    coord->ahead_ms = time.ahead_ms;
    lhi_format(coord->path, sizeof coord->path, "%s-lease", db_path);
    lhi_forks_hold();
    open_file(coord, create);
    int failed = errno;
    if (coord->fd >= 0)
        lhi_forks_add(&coord->fork, let_go, coord);
    lhi_forks_resume();
    if (coord->fd < 0)
        return lhi_fail_errno(err, failed, "could not open the side file \"%s\"", coord->path);
    int rc = map_page(coord, db_path, create, err);
    if (rc != LH_OK)
        sq_coord_close(coord);
    return rc;
}

/* The locks are those of open file descriptions: closing this descriptor frees none of ours. */
bool sq_coord_look_at(const char *db_path, const struct stat *database, struct coord_view *out)
{
    char path[4300];
    struct coord_page page;
    struct lhi_error ignored;
    struct stat st;

    lhi_format(path, sizeof path, "%s-lease", db_path);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return false;
    bool ours = fstat(fd, &st) == 0 && sq_trust_file(path, &st, database, &ignored) == LH_OK &&
                pread(fd, &page, sizeof page, 0) == (ssize_t)sizeof page &&
                memcmp(page.magic, MAGIC, sizeof MAGIC) == 0;
    if (ours) {
        *out = (struct coord_view){.file = st.st_ino,
                                   .dev = page.dev,
                                   .ino = page.ino,
                                   .committed = page.committed,
                                   .synced = page.synced,
                                   .in_use = lhi_is_locked(fd, BYTE_PRESENT)};
        memcpy(out->uuid, page.uuid, sizeof out->uuid - 1);
    }
    close(fd);
    return ours;
}

void sq_coord_close(struct coord *coord)
{
    if (coord->fd >= 0) {
        for (off_t byte = BYTE_TURN; byte <= BYTE_WATCH; byte++)
            lhi_unlock(coord->fd, byte);
        lhi_forks_hold();
        lhi_forks_remove(&coord->fork);
        close(coord->fd);
        lhi_forks_resume();
    }
    if (coord->page != NULL)
        munmap(coord->page, PAGE);
    coord->page = NULL;
    coord->fd = -1;
}

void sq_coord_remove(struct coord *coord)
{
    if (coord->created && sq_coord_alone(coord))
        (void)unlink(coord->path);
}

static bool being_checked(const struct coord *coord)
{
    return strcmp(coord->page->holder_what, "check") == 0 ||
           strcmp(coord->page->holder_what, "repair") == 0;
}

int sq_coord_present(struct coord *coord, int64_t busy_ms, struct lhi_error *err)
{
    int64_t start = lhi_mono_ms();

    /* Held alone for the moments of the first open and the last close; and for as long as it takes to
     * check and repair a store after a crash, which everybody waits for. */
    while (!lhi_lock_try(coord->fd, BYTE_PRESENT, true)) {
        if (lhi_mono_ms() - start >= (being_checked(coord) ? CHECK_MS : busy_ms))
            return lhi_fail(err, LH_EBUSY, "store is busy: process %lld (%.23s) has it for itself",
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
    (void)lhi_lock_try(coord->fd, BYTE_PRESENT, true); /* a downgrade cannot fail */
}

bool sq_coord_join_writers(struct coord *coord)
{
    bool only = lhi_lock_try(coord->fd, BYTE_WRITER, false);

    (void)lhi_lock_try(coord->fd, BYTE_WRITER, true); /* alone is nobody but in the turnstile */
    return only;
}

bool sq_coord_leave_writers(struct coord *coord)
{
    bool last = lhi_lock_try(coord->fd, BYTE_WRITER, false);

    lhi_unlock(coord->fd, BYTE_WRITER);
    return last;
}

/* ---- the turnstile ---- */

void sq_writer_lock_announce(struct coord *coord, const char *what)
{
    size_t len = strnlen(what, sizeof coord->page->holder_what - 1);
    coord->page->holder_pid = coord->pid;
    memcpy(coord->page->holder_what, what, len);
    coord->page->holder_what[len] = '\0';
}

static bool may_barge(const struct coord *coord)
{
    return __atomic_load_n(&coord->page->gate_waiters, __ATOMIC_RELAXED) == 0 ||
           __atomic_load_n(&coord->page->hungry_until, __ATOMIC_RELAXED) < machine_ms(coord);
}

int sq_writer_lock(struct coord *coord, int64_t busy_ms, const char *what, struct lhi_error *err)
{
    int64_t start = lhi_mono_ms(), waited = 0;
    bool first = true, warned = false;

    for (;;) {
        /* Who was woken, or comes when nobody is hungry, may take the lock at once; so the lock is
         * not idle while the next in line wakes up. */
        if ((!first || may_barge(coord)) && lhi_lock_try(coord->fd, BYTE_TURN, false))
            break;
        first = false;
        if (waited >= busy_ms)
            return lhi_fail(err, LH_EBUSY, "store is busy: waited %lld ms for process %lld (%.23s)",
                            (long long)waited, (long long)coord->page->holder_pid,
                            coord->page->holder_what);
        uint32_t seen = __atomic_load_n(&coord->page->gate, __ATOMIC_ACQUIRE);
        __atomic_add_fetch(&coord->page->gate_waiters, 1, __ATOMIC_SEQ_CST);
        if (waited >= HUNGRY_MS)
            __atomic_store_n(&coord->page->hungry_until, machine_ms(coord) + SLICE_MS,
                             __ATOMIC_RELAXED);
        if (lhi_lock_try(coord->fd, BYTE_TURN, false)) {
            __atomic_sub_fetch(&coord->page->gate_waiters, 1, __ATOMIC_SEQ_CST);
            break;
        }
        (void)lhi_futex_wait(&coord->page->gate, seen, UINT32_MAX, SLICE_MS);
        __atomic_sub_fetch(&coord->page->gate_waiters, 1, __ATOMIC_SEQ_CST);
        waited = lhi_mono_ms() - start;
        if (waited >= WARN_MS && !warned) {
            /* Said, never stolen: the holder may be slow, and the kernel frees it if it dies. */
            lhi_log(coord->log, LH_LOG_WARN, "waiting for process %lld (%.23s) to leave the store",
                    (long long)coord->page->holder_pid, coord->page->holder_what);
            warned = true;
        }
    }
    if (!still_ours(coord)) {
        lhi_unlock(coord->fd, BYTE_TURN);
        return lhi_fail(err, LH_ESTOPPED,
                        "side file \"%s\" was removed or replaced while the store was open: "
                        "close the store and open it anew",
                        coord->path);
    }
    sq_writer_lock_announce(coord, what);
    return LH_OK;
}

void sq_writer_unlock(struct coord *coord)
{
    lhi_unlock(coord->fd, BYTE_TURN);
    __atomic_add_fetch(&coord->page->gate, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&coord->page->gate_waiters, __ATOMIC_SEQ_CST) > 0)
        lhi_futex_wake(&coord->page->gate, 1, UINT32_MAX);
}

/* ---- marks ---- */

uint64_t sq_coord_committed(const struct coord *coord)
{
    return __atomic_load_n(&coord->page->committed, __ATOMIC_ACQUIRE);
}

void sq_coord_set_committed(struct coord *coord, uint64_t tick)
{
    __atomic_store_n(&coord->page->committed, tick, __ATOMIC_RELEASE);
}

uint64_t sq_coord_synced(const struct coord *coord)
{
    return __atomic_load_n(&coord->page->synced, __ATOMIC_ACQUIRE);
}

void sq_coord_raise_synced(struct coord *coord, uint64_t tick)
{
    uint64_t old = sq_coord_synced(coord);
    while (old < tick && !__atomic_compare_exchange_n(&coord->page->synced, &old, tick, false,
                                                      __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        ;
}

int64_t sq_coord_frames(const struct coord *coord)
{
    return __atomic_load_n(&coord->page->frames, __ATOMIC_RELAXED);
}

void sq_coord_set_frames(struct coord *coord, int64_t frames)
{
    __atomic_store_n(&coord->page->frames, frames, __ATOMIC_RELAXED);
}

void sq_coord_reset_marks(struct coord *coord, uint64_t tick)
{
    __atomic_store_n(&coord->page->synced, tick, __ATOMIC_RELEASE);
    sq_coord_set_committed(coord, tick);
}

bool sq_coord_sync_failed(const struct coord *coord)
{
    return __atomic_load_n(&coord->page->sync_failed, __ATOMIC_ACQUIRE) != 0;
}

void sq_coord_set_sync_failed(struct coord *coord, bool failed)
{
    __atomic_store_n(&coord->page->sync_failed, failed, __ATOMIC_RELEASE);
}

bool sq_coord_dirty(const struct coord *coord)
{
    return __atomic_load_n(&coord->page->dirty, __ATOMIC_ACQUIRE) != 0;
}

void sq_coord_set_dirty(struct coord *coord, bool dirty)
{
    __atomic_store_n(&coord->page->dirty, dirty, __ATOMIC_RELEASE);
}

bool sq_coord_own(const struct coord *coord)
{
    return coord->page->own != 0;
}

void sq_coord_set_own(struct coord *coord, bool own)
{
    coord->page->own = own;
}

bool sq_coord_recovery_due(const struct coord *coord)
{
    return __atomic_load_n(&coord->page->recovery_due, __ATOMIC_ACQUIRE) != 0;
}

void sq_coord_set_recovery_due(struct coord *coord, bool due)
{
    __atomic_store_n(&coord->page->recovery_due, due, __ATOMIC_RELEASE);
}

bool sq_coord_reserve_spent(const struct coord *coord)
{
    return __atomic_load_n(&coord->page->reserve_spent, __ATOMIC_ACQUIRE) != 0;
}

void sq_coord_set_reserve_spent(struct coord *coord, bool spent)
{
    __atomic_store_n(&coord->page->reserve_spent, spent, __ATOMIC_RELEASE);
}

enum coord_work sq_coord_work(const struct coord *coord, int64_t *at)
{
    *at = coord->page->work_at;
    return (enum coord_work)__atomic_load_n(&coord->page->work, __ATOMIC_ACQUIRE);
}

void sq_coord_set_work(struct coord *coord, enum coord_work work, int64_t at)
{
    coord->page->work_at = at;
    __atomic_store_n(&coord->page->work, (uint32_t)work, __ATOMIC_RELEASE);
}

bool sq_coord_recovering(const struct coord *coord)
{
    int64_t left = __atomic_load_n(&coord->page->recovering, __ATOMIC_RELAXED) - machine_ms(coord);
    return left > 0 && left <= RECOVERING_MS; /* more is a time of another boot */
}

void sq_coord_set_recovering(struct coord *coord, bool yes)
{
    __atomic_store_n(&coord->page->recovering, yes ? machine_ms(coord) + RECOVERING_MS : 0,
                     __ATOMIC_RELAXED);
}

bool sq_writer_lock_wanted(const struct coord *coord)
{
    return __atomic_load_n(&coord->page->gate_waiters, __ATOMIC_RELAXED) > 0;
}

bool sq_coord_same_file(const struct coord *coord, uint64_t dev, uint64_t ino)
{
    return coord->page->ino == 0 || (coord->page->dev == dev && coord->page->ino == ino);
}

void sq_coord_set_file(struct coord *coord, uint64_t dev, uint64_t ino)
{
    coord->page->dev = dev;
    coord->page->ino = ino;
}

uint64_t sq_coord_wal(const struct coord *coord)
{
    return coord->page->wal_ino;
}

void sq_coord_set_wal(struct coord *coord, uint64_t ino)
{
    coord->page->wal_ino = ino;
}

const char *sq_coord_uuid(const struct coord *coord)
{
    return coord->page->uuid;
}

void sq_coord_set_uuid(struct coord *coord, const char *uuid)
{
    lhi_format(coord->page->uuid, sizeof coord->page->uuid, "%s", uuid);
}

/* ---- syncing ---- */

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
    /* The slice is for a syncer that was killed: it wakes nobody. */
    (void)lhi_futex_wait(&coord->page->syncs, ticket, UINT32_MAX, SLICE_MS);
    __atomic_sub_fetch(&coord->page->sync_waiters, 1, __ATOMIC_SEQ_CST);
}

/* ---- the bell ---- */

uint32_t sq_queue_hash(const char *queue)
{
    uint32_t hash = 2166136261U;
    for (; *queue != '\0'; queue++)
        hash = (hash ^ (unsigned char)*queue) * 16777619U;
    return hash;
}

uint32_t sq_queue_ticket(const struct coord *coord, const uint32_t *hashes, size_t n)
{
    uint32_t rings = 0;
    for (size_t i = 0; i < n; i++)
        rings += __atomic_load_n(&coord->page->rings[hashes[i] % BELL_BITS], __ATOMIC_SEQ_CST);
    return rings;
}

static uint32_t bit_of(uint32_t hash)
{
    return (uint32_t)1 << (hash % BELL_BITS);
}

void sq_wake_queue(struct coord *coord, uint32_t hash, int n)
{
    struct coord_page *page = coord->page;

    __atomic_store_n(&page->ring_hash[hash % BELL_BITS], hash, __ATOMIC_SEQ_CST);
    __atomic_store_n(&page->bell_passes, 0, __ATOMIC_RELAXED);
    __atomic_add_fetch(&page->rings[hash % BELL_BITS], 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&page->bell, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&page->bell_waiters, __ATOMIC_SEQ_CST) > 0)
        lhi_futex_wake(&page->bell, n, bit_of(hash));
}

void sq_wake_all_queues(struct coord *coord)
{
    for (uint32_t i = 0; i < BELL_BITS; i++)
        __atomic_add_fetch(&coord->page->rings[i], 2, __ATOMIC_SEQ_CST); /* two: for everybody */
    __atomic_add_fetch(&coord->page->bell, 1, __ATOMIC_SEQ_CST);
    lhi_futex_wake(&coord->page->bell, INT_MAX, UINT32_MAX);
}

/* The kernel tells 32 bits of a queue's hash apart. Who was woken for another queue of the same bit
 * passes the wake on, at most once to everybody who waits. Only when there was exactly one ring
 * since the ticket is it known whom it was for; else whoever wakes looks for itself: a look is
 * cheap, a lost wake is not. */
static bool not_for_us(struct coord *coord, uint32_t ticket, const uint32_t *hashes, size_t n)
{
    struct coord_page *page = coord->page;

    if (sq_queue_ticket(coord, hashes, n) != ticket + 1)
        return false;
    for (size_t i = 0; i < n; i++) {
        uint32_t last = __atomic_load_n(&page->ring_hash[hashes[i] % BELL_BITS], __ATOMIC_SEQ_CST);
        for (size_t j = 0; j < n; j++)
            if (hashes[j] == last)
                return false;
    }
    if (__atomic_add_fetch(&page->bell_passes, 1, __ATOMIC_RELAXED) <=
        __atomic_load_n(&page->bell_waiters, __ATOMIC_SEQ_CST))
        lhi_futex_wake(&page->bell, 1, bit_of(hashes[0]));
    return true;
}

bool sq_wait_queue(struct coord *coord, uint32_t ticket, const uint32_t *hashes, size_t n,
                   int64_t timeout_ms)
{
    struct coord_page *page = coord->page;
    int64_t deadline = lhi_mono_ms() + timeout_ms, left = timeout_ms;
    uint32_t mask = 0;
    bool rung = false;

    for (size_t i = 0; i < n; i++)
        mask |= bit_of(hashes[i]);
    __atomic_add_fetch(&page->bell_waiters, 1, __ATOMIC_SEQ_CST);
    while (left > 0) {
        /* The word counts all rings, the ticket ours only: what rings for others in between makes
         * the futex refuse to sleep, and we try again. */
        uint32_t word = __atomic_load_n(&page->bell, __ATOMIC_SEQ_CST);
        if (sq_queue_ticket(coord, hashes, n) != ticket) {
            if (!not_for_us(coord, ticket, hashes, n)) {
                rung = true;
                break;
            }
            ticket++;
        }
        if (lhi_futex_wait(&page->bell, word, mask, left) == ETIMEDOUT)
            break;
        left = deadline - lhi_mono_ms();
    }
    __atomic_sub_fetch(&page->bell_waiters, 1, __ATOMIC_SEQ_CST);
    return rung || sq_queue_ticket(coord, hashes, n) != ticket;
}

uint32_t sq_commit_ticket(const struct coord *coord)
{
    return __atomic_load_n(&coord->page->changed, __ATOMIC_SEQ_CST);
}

void sq_wake_commit(struct coord *coord)
{
    __atomic_add_fetch(&coord->page->changed, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&coord->page->changed_waiters, __ATOMIC_SEQ_CST) > 0)
        lhi_futex_wake(&coord->page->changed, INT_MAX, UINT32_MAX);
}

bool sq_wait_commit(struct coord *coord, uint32_t ticket, int64_t timeout_ms)
{
    __atomic_add_fetch(&coord->page->changed_waiters, 1, __ATOMIC_SEQ_CST);
    (void)lhi_futex_wait(&coord->page->changed, ticket, UINT32_MAX, timeout_ms);
    __atomic_sub_fetch(&coord->page->changed_waiters, 1, __ATOMIC_SEQ_CST);
    return sq_commit_ticket(coord) != ticket;
}

uint32_t sq_maintenance_ticket(const struct coord *coord)
{
    return __atomic_load_n(&coord->page->siren, __ATOMIC_SEQ_CST);
}

void sq_wake_maintenance(struct coord *coord)
{
    __atomic_add_fetch(&coord->page->siren, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&coord->page->siren_waiters, __ATOMIC_SEQ_CST) > 0)
        lhi_futex_wake(&coord->page->siren, INT_MAX, UINT32_MAX);
    sq_wake_all_queues(coord);
}

bool sq_wait_maintenance(struct coord *coord, uint32_t ticket, int64_t timeout_ms)
{
    __atomic_add_fetch(&coord->page->siren_waiters, 1, __ATOMIC_SEQ_CST);
    (void)lhi_futex_wait(&coord->page->siren, ticket, UINT32_MAX, timeout_ms);
    __atomic_sub_fetch(&coord->page->siren_waiters, 1, __ATOMIC_SEQ_CST);
    return sq_maintenance_ticket(coord) != ticket;
}

bool sq_coord_lock_watch(struct coord *coord)
{
    return lhi_lock_try(coord->fd, BYTE_WATCH, false);
}

void sq_coord_unlock_watch(struct coord *coord)
{
    lhi_unlock(coord->fd, BYTE_WATCH);
}

int64_t sq_coord_clock(const struct coord *coord)
{
    return __atomic_load_n(&coord->page->clock, __ATOMIC_ACQUIRE);
}

void sq_coord_set_clock(struct coord *coord, int64_t offset)
{
    __atomic_store_n(&coord->page->clock, offset, __ATOMIC_RELEASE);
}
