/*
 * Wake-ups through futexes in the coordination file: of idle workers of a queue, of processes that wait
 * for a commit, and of processes that wait for maintenance.
 *
 * A waiter takes a ticket, polls the store, and waits with the ticket. A wake-up after the ticket ends the
 * wait at once, so none is missed.
 */
#include "store/sqlite/coordination/coord_page.h"

#include "base/clock.h"
#include "base/sys.h"

#include <errno.h>
#include <limits.h>

/* ---- queue wake-ups ---- */

uint32_t sq_queue_hash(const char *queue)
{
    uint32_t hash = 2166136261U;
    for (; *queue != '\0'; queue++)
        hash = (hash ^ (unsigned char)*queue) * 16777619U;
    return hash;
}

uint32_t sq_queue_ticket(const struct coord *coord, const uint32_t *hashes, size_t n)
{
    uint32_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += __atomic_load_n(&coord->page->wakeups[hashes[i] % WAKE_BITS], __ATOMIC_SEQ_CST);
    return sum;
}

static uint32_t bit_of(uint32_t hash)
{
    return (uint32_t)1 << (hash % WAKE_BITS);
}

void sq_wake_queue(struct coord *coord, uint32_t hash, int n)
{
    struct coord_page *page = coord->page;

    __atomic_store_n(&page->last_hash[hash % WAKE_BITS], hash, __ATOMIC_SEQ_CST);
    __atomic_store_n(&page->passed_on, 0, __ATOMIC_RELAXED);
    __atomic_add_fetch(&page->wakeups[hash % WAKE_BITS], 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&page->queue_wakeups, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&page->queue_waiters, __ATOMIC_SEQ_CST) > 0)
        lhi_futex_wake(&page->queue_wakeups, n, bit_of(hash));
}

void sq_wake_all_queues(struct coord *coord)
{
    for (uint32_t i = 0; i < WAKE_BITS; i++)
        __atomic_add_fetch(&coord->page->wakeups[i], 2,
                           /* adding two makes not_for_us() false for every waiter */
                           __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&coord->page->queue_wakeups, 1, __ATOMIC_SEQ_CST);
    lhi_futex_wake(&coord->page->queue_wakeups, INT_MAX, UINT32_MAX);
}

/* The futex distinguishes only 32 bits of a queue's hash. A waiter that was woken for another queue with the
 * same bit passes the wake-up on, at most once per waiter. The queue is known only if there was exactly one
 * wake-up since the ticket. Otherwise the waiter polls: a poll is cheap, a lost wake-up is not. */
static bool not_for_us(struct coord *coord, uint32_t ticket, const uint32_t *hashes, size_t n)
{
    struct coord_page *page = coord->page;

    if (sq_queue_ticket(coord, hashes, n) != ticket + 1)
        return false;
    for (size_t i = 0; i < n; i++) {
        uint32_t last = __atomic_load_n(&page->last_hash[hashes[i] % WAKE_BITS], __ATOMIC_SEQ_CST);
        for (size_t j = 0; j < n; j++)
            if (hashes[j] == last)
                return false;
    }
    if (__atomic_add_fetch(&page->passed_on, 1, __ATOMIC_RELAXED) <=
        __atomic_load_n(&page->queue_waiters, __ATOMIC_SEQ_CST))
        lhi_futex_wake(&page->queue_wakeups, 1, bit_of(hashes[0]));
    return true;
}

bool sq_wait_queue(struct coord *coord, uint32_t ticket, const uint32_t *hashes, size_t n,
                   int64_t timeout_ms)
{
    struct coord_page *page = coord->page;
    int64_t deadline = lhi_mono_ms() + timeout_ms, left = timeout_ms;
    uint32_t mask = 0;
    bool woken = false;

    for (size_t i = 0; i < n; i++)
        mask |= bit_of(hashes[i]);
    __atomic_add_fetch(&page->queue_waiters, 1, __ATOMIC_SEQ_CST);
    while (left > 0) {
        /* The futex word counts all queue wake-ups, the ticket only those of our queues. If another
         * queue is woken in between, the futex does not sleep and the loop runs again. */
        uint32_t word = __atomic_load_n(&page->queue_wakeups, __ATOMIC_SEQ_CST);
        if (sq_queue_ticket(coord, hashes, n) != ticket) {
            if (!not_for_us(coord, ticket, hashes, n)) {
                woken = true;
                break;
            }
            ticket++;
        }
        if (lhi_futex_wait(&page->queue_wakeups, word, mask, left) == ETIMEDOUT)
            break;
        left = deadline - lhi_mono_ms();
    }
    __atomic_sub_fetch(&page->queue_waiters, 1, __ATOMIC_SEQ_CST);
    return woken || sq_queue_ticket(coord, hashes, n) != ticket;
}

/* ---- commits ---- */

uint32_t sq_commit_ticket(const struct coord *coord)
{
    return __atomic_load_n(&coord->page->commits, __ATOMIC_SEQ_CST);
}

void sq_wake_commit(struct coord *coord)
{
    __atomic_add_fetch(&coord->page->commits, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&coord->page->commit_waiters, __ATOMIC_SEQ_CST) > 0)
        lhi_futex_wake(&coord->page->commits, INT_MAX, UINT32_MAX);
}

bool sq_wait_commit(struct coord *coord, uint32_t ticket, int64_t timeout_ms)
{
    __atomic_add_fetch(&coord->page->commit_waiters, 1, __ATOMIC_SEQ_CST);
    (void)lhi_futex_wait(&coord->page->commits, ticket, UINT32_MAX, timeout_ms);
    __atomic_sub_fetch(&coord->page->commit_waiters, 1, __ATOMIC_SEQ_CST);
    return sq_commit_ticket(coord) != ticket;
}

/* ---- maintenance wake-ups ---- */

uint32_t sq_maintenance_ticket(const struct coord *coord)
{
    return __atomic_load_n(&coord->page->maintenance_wakeups, __ATOMIC_SEQ_CST);
}

void sq_wake_maintenance(struct coord *coord)
{
    __atomic_add_fetch(&coord->page->maintenance_wakeups, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&coord->page->maintenance_waiters, __ATOMIC_SEQ_CST) > 0)
        lhi_futex_wake(&coord->page->maintenance_wakeups, INT_MAX, UINT32_MAX);
    sq_wake_all_queues(coord);
}

bool sq_wait_maintenance(struct coord *coord, uint32_t ticket, int64_t timeout_ms)
{
    __atomic_add_fetch(&coord->page->maintenance_waiters, 1, __ATOMIC_SEQ_CST);
    (void)lhi_futex_wait(&coord->page->maintenance_wakeups, ticket, UINT32_MAX, timeout_ms);
    __atomic_sub_fetch(&coord->page->maintenance_waiters, 1, __ATOMIC_SEQ_CST);
    return sq_maintenance_ticket(coord) != ticket;
}
