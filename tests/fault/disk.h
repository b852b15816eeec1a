/*
 * A disk that fails on demand, and whose power can be cut: a VFS on top of the default one.
 *
 * It sees every write and sync of SQLite and of the library, which syncs through SQLite's files. Once installed
 * it is the default. Syncs are counted and recorded but not carried out, because the machine keeps its power.
 *
 * If recording is on, it keeps every write. disk_cut() then makes the files as a power failure at any moment
 * since could have left them: all synced data is there, and each sector (512 bytes) that was written since has
 * any of its versions, independently of all other sectors.
 */
#ifndef DISK_H
#define DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum disk_fault {
    DISK_EIO,   /* the write fails */
    DISK_SHORT, /* half of it is written, then it fails */
    DISK_FULL,  /* this write and all that follow find no space */
};

struct disk {
    /* since disk_arm() */
    int64_t writes, syncs;
    int64_t database_writes; /* of `writes`, those into the database file: folding the log */
    bool fired;
    /* set by disk_arm_… */
    int64_t fail_write_at, fail_sync_at;
    enum disk_fault how;
};

void disk_install(void);
struct disk *disk(void);

/* Reset the counts; nothing fails. */
void disk_arm(void);
void disk_arm_write(int64_t n, enum disk_fault how);
void disk_arm_sync(int64_t n);

/* ---- recording ---- */

void disk_record(void);
/* Note in the record that mark `n` was reached (what was acknowledged so far, say). `side`, if not
 * NULL, is a file the disk does not see; its content is kept with the mark. */
void disk_mark(int n, const char *side);
size_t disk_recorded(void);           /* how many entries the record has */
int disk_marks(size_t cut, int *all); /* the last mark before `cut`, -1: none */
/* Stop recording; and forget everything. */
void disk_stop(void);
void disk_forget(void);

/* After a failed sync what was not on the disk may be dropped from memory, too: put the real file
 * into the state the disk has. */
void disk_evict(const char *path);

/* Make `to` (database, log, journal, coordination file) what is left of `from` if the power fails after
 * `cut` entries of the record; `dice` decides what else of the unsynced writes made it. */
void disk_cut(const char *from, const char *to, size_t cut, uint64_t *dice);

uint64_t disk_roll(uint64_t *dice, uint64_t below);

#endif
