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
struct side_page {
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
    uint32_t work; /* enum side_work … */
    int64_t work_at;
    uint32_t reserve_spent; /* a full disk: the reserve was given up, see reserve.c */
    uint32_t siren;         /* futex */
    uint32_t siren_waiters;
    int64_t recovering; /* monotonic: until then a recovery is under way */
};

enum { PAGE = 4096 };
_Static_assert(sizeof(struct side_page) <= PAGE, "the side file is one page");

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
    struct side *side = arg;
    close(side->fd);
    side->fd = -1;
    side->page = NULL; /* not inherited */
}

/* ---- time ---- */

/* What stands in the page is compared by processes of all time namespaces. */
static int64_t machine_ms(const struct side *side)
{
    return lhi_mono_ms() - side->ahead_ms;
}

/* ---- the file ---- */

/* The file may be removed or replaced under us; then the lock we hold is not the one others see. */
static bool still_ours(const struct side *side)
{
    struct stat st;
    return stat(side->path, &st) == 0 && st.st_ino == side->ino && st.st_size >= PAGE;
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
static int settle_rights(const struct side *side, const char *db_path, bool to_write,
                         struct stat *st, struct lhi_error *err)
{
    struct stat database;
    const struct stat *of = stat(db_path, &database) == 0 ? &database : NULL;
    mode_t mode = trust_writers(of);

    if (fstat(side->fd, st) != 0)
        return lhi_fail_errno(err, errno, "could not look at the side file \"%s\"", side->path);
    if (side->created && of != NULL &&
        ((geteuid() == 0 && fchown(side->fd, of->st_uid, of->st_gid) != 0) ||
         ((mode & 0060) && of->st_gid != st->st_gid &&
          fchown(side->fd, (uid_t)-1, of->st_gid) != 0)))
        mode = 0600; /* for us alone, then */
    if (!to_write && of != NULL && trust_links(db_path, of))
        st->st_nlink = 1;
    int rc = side->created ? LH_OK : trust_file(side->path, st, of, err);
    /* A user who may read it may lock it, and so keep everybody out. */
    if (rc == LH_OK && (side->created || (st->st_mode & 0077 & ~mode)))
        (void)fchmod(side->fd, mode);
    return rc;
}

static int map_page(struct side *side, const char *db_path, bool to_write, struct lhi_error *err)
{
    struct stat st;
    int status = settle_rights(side, db_path, to_write, &st, err);

    if (status != LH_OK)
        return status;
    if (st.st_size != 0 && st.st_size != PAGE)
        return lhi_fail(err, LH_EINVAL,
                        "\"%s\" is in the way: it is not a side file of ours, and would be written "
                        "over",
                        side->path);
    if (st.st_size < PAGE) {
        /* Real blocks, not a hole: a full disk must not turn a store into the page into SIGBUS. */
        int rc = posix_fallocate(side->fd, 0, PAGE);
        if (rc != 0)
            return lhi_fail_errno(err, rc, "could not make the side file \"%s\"", side->path);
    }
    side->page = map_for_this_process(side->fd);
    if (side->page == NULL)
        return lhi_fail_errno(err, errno, "could not map the side file \"%s\"", side->path);
    side->ino = st.st_ino;
    if (memcmp(side->page->magic, MAGIC, sizeof MAGIC) == 0)
        return LH_OK;
    /* New, or damaged: it is made anew, by one of those who come at once. */
    int rc = lhi_lock_wait(side->fd, BYTE_TURN, false);
    if (rc != 0)
        return lhi_fail_errno(err, rc, "could not lock the side file \"%s\"", side->path);
    if (memcmp(side->page->magic, MAGIC, sizeof MAGIC) != 0) {
        memset(side->page, 0, sizeof *side->page);
        memcpy(side->page->magic, MAGIC, sizeof MAGIC);
    }
    lhi_unlock(side->fd, BYTE_TURN);
    return LH_OK;
}

/* What another made is opened without O_CREAT, with which some kernels refuse a file of the database's
 * owner in a folder like /tmp; and without waiting, should it be no plain file. */
static void open_file(struct side *side, bool create)
{
    int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    bool taken;

    do {
        side->fd = create ? open(side->path, flags | O_CREAT | O_EXCL, 0600) : -1;
        side->created = side->fd >= 0;
        taken = create && errno == EEXIST;
        if (!side->created && (taken || !create))
            side->fd = open(side->path, flags);
    } while (side->fd < 0 && taken && errno == ENOENT); /* it was removed in between */
}

int side_open(struct side *side, const char *db_path, bool create, const struct lhi_log *log,
              struct lhi_error *err)
{
    struct lhi_time_ns time;

    memset(side, 0, sizeof *side);
    side->fd = -1;
    side->log = log;
    side->pid = getpid();
    lhi_time_ns(&time);
    side->ahead_ms = time.ahead_ms;
    lhi_format(side->path, sizeof side->path, "%s-lease", db_path);
    lhi_forks_hold();
    open_file(side, create);
    int failed = errno;
    if (side->fd >= 0)
        lhi_forks_add(&side->fork, let_go, side);
    lhi_forks_resume();
    if (side->fd < 0)
        return lhi_fail_errno(err, failed, "could not open the side file \"%s\"", side->path);
    int rc = map_page(side, db_path, create, err);
    if (rc != LH_OK)
        side_close(side);
    return rc;
}

/* The locks are those of open file descriptions: closing this descriptor frees none of ours. */
bool side_look_at(const char *db_path, const struct stat *database, struct side_peek *out)
{
    char path[4300];
    struct side_page page;
    struct lhi_error ignored;
    struct stat st;

    lhi_format(path, sizeof path, "%s-lease", db_path);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return false;
    bool ours = fstat(fd, &st) == 0 && trust_file(path, &st, database, &ignored) == LH_OK &&
                pread(fd, &page, sizeof page, 0) == (ssize_t)sizeof page &&
                memcmp(page.magic, MAGIC, sizeof MAGIC) == 0;
    if (ours) {
        *out = (struct side_peek){.file = st.st_ino,
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

void side_close(struct side *side)
{
    if (side->fd >= 0) {
        for (off_t byte = BYTE_TURN; byte <= BYTE_WATCH; byte++)
            lhi_unlock(side->fd, byte);
        lhi_forks_hold();
        lhi_forks_remove(&side->fork);
        close(side->fd);
        lhi_forks_resume();
    }
    if (side->page != NULL)
        munmap(side->page, PAGE);
    side->page = NULL;
    side->fd = -1;
}

void side_remove(struct side *side)
{
    if (side->created && side_alone(side))
        (void)unlink(side->path);
}

static bool being_checked(const struct side *side)
{
    return strcmp(side->page->holder_what, "check") == 0 ||
           strcmp(side->page->holder_what, "repair") == 0;
}

int side_present(struct side *side, int64_t busy_ms, struct lhi_error *err)
{
    int64_t start = lhi_mono_ms();

    /* Held alone for the moments of the first open and the last close; and for as long as it takes to
     * check and repair a store after a crash, which everybody waits for. */
    while (!lhi_lock_try(side->fd, BYTE_PRESENT, true)) {
        if (lhi_mono_ms() - start >= (being_checked(side) ? CHECK_MS : busy_ms))
            return lhi_fail(err, LH_EBUSY, "store is busy: process %lld (%.23s) has it for itself",
                            (long long)side->page->holder_pid, side->page->holder_what);
        lhi_sleep_ms(1);
    }
    return LH_OK;
}

bool side_alone(struct side *side)
{
    return lhi_lock_try(side->fd, BYTE_PRESENT, false);
}

void side_share(struct side *side)
{
    (void)lhi_lock_try(side->fd, BYTE_PRESENT, true); /* a downgrade cannot fail */
}

bool side_join_writers(struct side *side)
{
    bool only = lhi_lock_try(side->fd, BYTE_WRITER, false);

    (void)lhi_lock_try(side->fd, BYTE_WRITER, true); /* alone is nobody but in the turnstile */
    return only;
}

bool side_leave_writers(struct side *side)
{
    bool last = lhi_lock_try(side->fd, BYTE_WRITER, false);

    lhi_unlock(side->fd, BYTE_WRITER);
    return last;
}

/* ---- the turnstile ---- */

void side_announce(struct side *side, const char *what)
{
    size_t len = strnlen(what, sizeof side->page->holder_what - 1);
    side->page->holder_pid = side->pid;
    memcpy(side->page->holder_what, what, len);
    side->page->holder_what[len] = '\0';
}

static bool may_barge(const struct side *side)
{
    return __atomic_load_n(&side->page->gate_waiters, __ATOMIC_RELAXED) == 0 ||
           __atomic_load_n(&side->page->hungry_until, __ATOMIC_RELAXED) < machine_ms(side);
}

int side_enter(struct side *side, int64_t busy_ms, const char *what, struct lhi_error *err)
{
    int64_t start = lhi_mono_ms(), waited = 0;
    bool first = true, warned = false;

    for (;;) {
        /* Who was woken, or comes when nobody is hungry, may take the lock at once; so the lock is
         * not idle while the next in line wakes up. */
        if ((!first || may_barge(side)) && lhi_lock_try(side->fd, BYTE_TURN, false))
            break;
        first = false;
        if (waited >= busy_ms)
            return lhi_fail(err, LH_EBUSY, "store is busy: waited %lld ms for process %lld (%.23s)",
                            (long long)waited, (long long)side->page->holder_pid,
                            side->page->holder_what);
        uint32_t seen = __atomic_load_n(&side->page->gate, __ATOMIC_ACQUIRE);
        __atomic_add_fetch(&side->page->gate_waiters, 1, __ATOMIC_SEQ_CST);
        if (waited >= HUNGRY_MS)
            __atomic_store_n(&side->page->hungry_until, machine_ms(side) + SLICE_MS,
                             __ATOMIC_RELAXED);
        if (lhi_lock_try(side->fd, BYTE_TURN, false)) {
            __atomic_sub_fetch(&side->page->gate_waiters, 1, __ATOMIC_SEQ_CST);
            break;
        }
        (void)lhi_futex_wait(&side->page->gate, seen, UINT32_MAX, SLICE_MS);
        __atomic_sub_fetch(&side->page->gate_waiters, 1, __ATOMIC_SEQ_CST);
        waited = lhi_mono_ms() - start;
        if (waited >= WARN_MS && !warned) {
            /* Said, never stolen: the holder may be slow, and the kernel frees it if it dies. */
            lhi_log(side->log, LH_LOG_WARN, "waiting for process %lld (%.23s) to leave the store",
                    (long long)side->page->holder_pid, side->page->holder_what);
            warned = true;
        }
    }
    if (!still_ours(side)) {
        lhi_unlock(side->fd, BYTE_TURN);
        return lhi_fail(err, LH_ESTOPPED,
                        "side file \"%s\" was removed or replaced while the store was open: "
                        "close the store and open it anew",
                        side->path);
    }
    side_announce(side, what);
    return LH_OK;
}

void side_leave(struct side *side)
{
    lhi_unlock(side->fd, BYTE_TURN);
    __atomic_add_fetch(&side->page->gate, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&side->page->gate_waiters, __ATOMIC_SEQ_CST) > 0)
        lhi_futex_wake(&side->page->gate, 1, UINT32_MAX);
}

/* ---- marks ---- */

uint64_t side_committed(const struct side *side)
{
    return __atomic_load_n(&side->page->committed, __ATOMIC_ACQUIRE);
}

void side_set_committed(struct side *side, uint64_t tick)
{
    __atomic_store_n(&side->page->committed, tick, __ATOMIC_RELEASE);
}

uint64_t side_synced(const struct side *side)
{
    return __atomic_load_n(&side->page->synced, __ATOMIC_ACQUIRE);
}

void side_raise_synced(struct side *side, uint64_t tick)
{
    uint64_t old = side_synced(side);
    while (old < tick && !__atomic_compare_exchange_n(&side->page->synced, &old, tick, false,
                                                      __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        ;
}

int64_t side_frames(const struct side *side)
{
    return __atomic_load_n(&side->page->frames, __ATOMIC_RELAXED);
}

void side_set_frames(struct side *side, int64_t frames)
{
    __atomic_store_n(&side->page->frames, frames, __ATOMIC_RELAXED);
}

void side_reset_marks(struct side *side, uint64_t tick)
{
    __atomic_store_n(&side->page->synced, tick, __ATOMIC_RELEASE);
    side_set_committed(side, tick);
}

bool side_sync_failed(const struct side *side)
{
    return __atomic_load_n(&side->page->sync_failed, __ATOMIC_ACQUIRE) != 0;
}

void side_set_sync_failed(struct side *side, bool failed)
{
    __atomic_store_n(&side->page->sync_failed, failed, __ATOMIC_RELEASE);
}

bool side_dirty(const struct side *side)
{
    return __atomic_load_n(&side->page->dirty, __ATOMIC_ACQUIRE) != 0;
}

void side_set_dirty(struct side *side, bool dirty)
{
    __atomic_store_n(&side->page->dirty, dirty, __ATOMIC_RELEASE);
}

bool side_own(const struct side *side)
{
    return side->page->own != 0;
}

void side_set_own(struct side *side, bool own)
{
    side->page->own = own;
}

bool side_recovery_due(const struct side *side)
{
    return __atomic_load_n(&side->page->recovery_due, __ATOMIC_ACQUIRE) != 0;
}

void side_set_recovery_due(struct side *side, bool due)
{
    __atomic_store_n(&side->page->recovery_due, due, __ATOMIC_RELEASE);
}

bool side_reserve_spent(const struct side *side)
{
    return __atomic_load_n(&side->page->reserve_spent, __ATOMIC_ACQUIRE) != 0;
}

void side_set_reserve_spent(struct side *side, bool spent)
{
    __atomic_store_n(&side->page->reserve_spent, spent, __ATOMIC_RELEASE);
}

enum side_work side_work(const struct side *side, int64_t *at)
{
    *at = side->page->work_at;
    return (enum side_work)__atomic_load_n(&side->page->work, __ATOMIC_ACQUIRE);
}

void side_set_work(struct side *side, enum side_work work, int64_t at)
{
    side->page->work_at = at;
    __atomic_store_n(&side->page->work, (uint32_t)work, __ATOMIC_RELEASE);
}

bool side_recovering(const struct side *side)
{
    int64_t left = __atomic_load_n(&side->page->recovering, __ATOMIC_RELAXED) - machine_ms(side);
    return left > 0 && left <= RECOVERING_MS; /* more is a time of another boot */
}

void side_set_recovering(struct side *side, bool yes)
{
    __atomic_store_n(&side->page->recovering, yes ? machine_ms(side) + RECOVERING_MS : 0,
                     __ATOMIC_RELAXED);
}

bool side_waited(const struct side *side)
{
    return __atomic_load_n(&side->page->gate_waiters, __ATOMIC_RELAXED) > 0;
}

bool side_same_file(const struct side *side, uint64_t dev, uint64_t ino)
{
    return side->page->ino == 0 || (side->page->dev == dev && side->page->ino == ino);
}

void side_set_file(struct side *side, uint64_t dev, uint64_t ino)
{
    side->page->dev = dev;
    side->page->ino = ino;
}

uint64_t side_wal(const struct side *side)
{
    return side->page->wal_ino;
}

void side_set_wal(struct side *side, uint64_t ino)
{
    side->page->wal_ino = ino;
}

const char *side_uuid(const struct side *side)
{
    return side->page->uuid;
}

void side_set_uuid(struct side *side, const char *uuid)
{
    lhi_format(side->page->uuid, sizeof side->page->uuid, "%s", uuid);
}

/* ---- syncing ---- */

uint32_t side_sync_ticket(const struct side *side)
{
    return __atomic_load_n(&side->page->syncs, __ATOMIC_SEQ_CST);
}

bool side_sync_try(struct side *side)
{
    return lhi_lock_try(side->fd, BYTE_SYNC, false);
}

void side_sync_done(struct side *side)
{
    lhi_unlock(side->fd, BYTE_SYNC);
    __atomic_add_fetch(&side->page->syncs, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&side->page->sync_waiters, __ATOMIC_SEQ_CST) > 0)
        lhi_futex_wake(&side->page->syncs, INT_MAX, UINT32_MAX);
}

void side_sync_wait(struct side *side, uint32_t ticket)
{
    __atomic_add_fetch(&side->page->sync_waiters, 1, __ATOMIC_SEQ_CST);
    /* The slice is for a syncer that was killed: it wakes nobody. */
    (void)lhi_futex_wait(&side->page->syncs, ticket, UINT32_MAX, SLICE_MS);
    __atomic_sub_fetch(&side->page->sync_waiters, 1, __ATOMIC_SEQ_CST);
}

/* ---- the bell ---- */

uint32_t side_queue_hash(const char *queue)
{
    uint32_t hash = 2166136261U;
    for (; *queue != '\0'; queue++)
        hash = (hash ^ (unsigned char)*queue) * 16777619U;
    return hash;
}

uint32_t side_bell(const struct side *side, const uint32_t *hashes, size_t n)
{
    uint32_t rings = 0;
    for (size_t i = 0; i < n; i++)
        rings += __atomic_load_n(&side->page->rings[hashes[i] % BELL_BITS], __ATOMIC_SEQ_CST);
    return rings;
}

static uint32_t bit_of(uint32_t hash)
{
    return (uint32_t)1 << (hash % BELL_BITS);
}

void side_ring(struct side *side, uint32_t hash, int n)
{
    struct side_page *page = side->page;

    __atomic_store_n(&page->ring_hash[hash % BELL_BITS], hash, __ATOMIC_SEQ_CST);
    __atomic_store_n(&page->bell_passes, 0, __ATOMIC_RELAXED);
    __atomic_add_fetch(&page->rings[hash % BELL_BITS], 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&page->bell, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&page->bell_waiters, __ATOMIC_SEQ_CST) > 0)
        lhi_futex_wake(&page->bell, n, bit_of(hash));
}

void side_ring_all(struct side *side)
{
    for (uint32_t i = 0; i < BELL_BITS; i++)
        __atomic_add_fetch(&side->page->rings[i], 2, __ATOMIC_SEQ_CST); /* two: for everybody */
    __atomic_add_fetch(&side->page->bell, 1, __ATOMIC_SEQ_CST);
    lhi_futex_wake(&side->page->bell, INT_MAX, UINT32_MAX);
}

/* The kernel tells 32 bits of a queue's hash apart. Who was woken for another queue of the same bit
 * passes the wake on, at most once to everybody who waits. Only when there was exactly one ring
 * since the ticket is it known whom it was for; else whoever wakes looks for itself: a look is
 * cheap, a lost wake is not. */
static bool not_for_us(struct side *side, uint32_t ticket, const uint32_t *hashes, size_t n)
{
    struct side_page *page = side->page;

    if (side_bell(side, hashes, n) != ticket + 1)
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

bool side_wait(struct side *side, uint32_t ticket, const uint32_t *hashes, size_t n,
               int64_t timeout_ms)
{
    struct side_page *page = side->page;
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
        if (side_bell(side, hashes, n) != ticket) {
            if (!not_for_us(side, ticket, hashes, n)) {
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
    return rung || side_bell(side, hashes, n) != ticket;
}

uint32_t side_changes(const struct side *side)
{
    return __atomic_load_n(&side->page->changed, __ATOMIC_SEQ_CST);
}

void side_changed(struct side *side)
{
    __atomic_add_fetch(&side->page->changed, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&side->page->changed_waiters, __ATOMIC_SEQ_CST) > 0)
        lhi_futex_wake(&side->page->changed, INT_MAX, UINT32_MAX);
}

bool side_wait_change(struct side *side, uint32_t ticket, int64_t timeout_ms)
{
    __atomic_add_fetch(&side->page->changed_waiters, 1, __ATOMIC_SEQ_CST);
    (void)lhi_futex_wait(&side->page->changed, ticket, UINT32_MAX, timeout_ms);
    __atomic_sub_fetch(&side->page->changed_waiters, 1, __ATOMIC_SEQ_CST);
    return side_changes(side) != ticket;
}

uint32_t side_siren(const struct side *side)
{
    return __atomic_load_n(&side->page->siren, __ATOMIC_SEQ_CST);
}

void side_sound_siren(struct side *side)
{
    __atomic_add_fetch(&side->page->siren, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&side->page->siren_waiters, __ATOMIC_SEQ_CST) > 0)
        lhi_futex_wake(&side->page->siren, INT_MAX, UINT32_MAX);
    side_ring_all(side);
}

bool side_wait_siren(struct side *side, uint32_t ticket, int64_t timeout_ms)
{
    __atomic_add_fetch(&side->page->siren_waiters, 1, __ATOMIC_SEQ_CST);
    (void)lhi_futex_wait(&side->page->siren, ticket, UINT32_MAX, timeout_ms);
    __atomic_sub_fetch(&side->page->siren_waiters, 1, __ATOMIC_SEQ_CST);
    return side_siren(side) != ticket;
}

bool side_take_watch(struct side *side)
{
    return lhi_lock_try(side->fd, BYTE_WATCH, false);
}

void side_end_watch(struct side *side)
{
    lhi_unlock(side->fd, BYTE_WATCH);
}

int64_t side_clock(const struct side *side)
{
    return __atomic_load_n(&side->page->clock, __ATOMIC_ACQUIRE);
}

void side_set_clock(struct side *side, int64_t offset)
{
    __atomic_store_n(&side->page->clock, offset, __ATOMIC_RELEASE);
}
