/* Marks and notes in the coordination file: how far the store got, which file it is, what is in progress.
 * coord.h says when each may be read and written. */
#include "store/sqlite/coordination/coord_page.h"

#include "base/text.h"

enum { RECOVERING_MS = 1000 };

/* ---- how far the store got ---- */

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

/* ---- which store it is ---- */

bool sq_coord_own(const struct coord *coord)
{
    return coord->page->own != 0;
}

void sq_coord_set_own(struct coord *coord, bool own)
{
    coord->page->own = own;
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

/* ---- what is in progress ---- */

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
    int64_t left =
        __atomic_load_n(&coord->page->recovering, __ATOMIC_RELAXED) - sq_coord_machine_ms(coord);
    return left > 0 && left <= RECOVERING_MS; /* a time further ahead is from another boot */
}

void sq_coord_set_recovering(struct coord *coord, bool yes)
{
    __atomic_store_n(&coord->page->recovering, yes ? sq_coord_machine_ms(coord) + RECOVERING_MS : 0,
                     __ATOMIC_RELAXED);
}

/* ---- the clock ---- */

int64_t sq_coord_clock(const struct coord *coord)
{
    return __atomic_load_n(&coord->page->clock, __ATOMIC_ACQUIRE);
}

void sq_coord_set_clock(struct coord *coord, int64_t offset)
{
    __atomic_store_n(&coord->page->clock, offset, __ATOMIC_RELEASE);
}
