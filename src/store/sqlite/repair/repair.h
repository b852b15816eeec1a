/* Repairing a damaged store on a copy, and replacing the store's file. */
#ifndef LHI_SQLITE_REPAIR_H
#define LHI_SQLITE_REPAIR_H

#include "store/sqlite/copies/backup.h"
#include "store/sqlite/repair/pages.h"

/* ---- repair.c ---- */

/* Repair a copy of the damaged file (REINDEX, then VACUUM INTO, then row by row), check the copy, and put it
 * in the file's place. Under the writer lock, alone, with no connection open on the file. health->findings
 * lists what was lost in whole or in part, the recovery point, where the damaged file is kept, and the advice to
 * make a backup. LH_ECORRUPT: nothing helped, and the file is unchanged. */
int sq_repair_store(struct db *db, struct lhi_health *health, struct lhi_error *err);
/* Finish or undo an interrupted repair or restore, under the same conditions. */
int sq_repair_resume(struct db *db, struct lhi_error *err);

/* ---- replace_file.c ---- */

/* Put the complete, synced file `fresh`, which is in the same folder, in the store's place: move the old log
 * aside, keep the old file as DB.`word`-TIME (returned in `kept`), rename, sync the folder, and set the marks
 * of the coordination file. Under the writer lock, with no connection of ours open on the file. */
int sq_replace_file(struct db *db, const char *fresh, const char *word, int64_t at, char kept[4300],
                    struct lhi_error *err);
/* The name DB.`word`-TIME with a suffix. */
void sq_aside_name(const struct db *db, const char *word, int64_t at, const char *suffix,
                   char out[4300]);

/* Write the note into the coordination file and sync it. */
int sq_repair_note(struct db *db, enum coord_work work, int64_t at, struct lhi_error *err);
int sq_sync_folder(const char *file, struct lhi_error *err); /* the folder that contains `file` */
/* The name of the new file from the moment when the note allows to put it in place. */
void sq_replace_source(const struct db *db, const char *word, int64_t at, char out[4300]);
/* Put the new file in place: every step that is still missing. */
int sq_replace_finish(struct db *db, const char *word, int64_t at, char kept[4300],
                      struct lhi_error *err);

/* ---- source_copy.c: the damaged file, locked and copied ---- */

struct damaged_file {
    sqlite3 *holder; /* its locks keep every other program out */
    sqlite3_file *file;
};

int sq_file_create(const char *file, int *fd, struct lhi_error *err); /* a new file, mode 0600 */
/* LH_EBUSY: another program has it open. */
int sq_source_lock(struct damaged_file *source, const struct db *db, struct lhi_error *err);
void sq_source_unlock(struct damaged_file *source);
/* Copy the file into `to`, apply the log to the copy and correct its header, so that `to` alone is the
 * store. `*folded`: the number of frames that were applied. `log` is false: ignore the log. */
int sq_source_copy(const struct damaged_file *source, const struct db *db, const char *to, bool log,
                   int64_t *folded, struct lhi_error *err);

/* ---- inventory.c ---- */

/* Row ids. */
struct ids {
    int64_t *id;
    size_t n;
};
bool sq_ids_add(struct ids *ids, int64_t id); /* false: out of memory */
void sq_ids_sort(struct ids *ids);            /* ascending, without duplicates */
bool sq_ids_have(const struct ids *ids, int64_t id);

/* The jobs that the indexes of lh_job (pending, timed, key) list. */
enum { JOB_INDEXES = 3 };
struct inventory {
    struct ids ids[JOB_INDEXES];
    bool whole[JOB_INDEXES]; /* the whole index could be read */
    bool tables_whole;       /* every page of every table is consistent */
};
int sq_inventory_read(struct inventory *inventory, const char *file, struct lhi_error *err);
void sq_inventory_free(struct inventory *inventory);

/* ---- finish.c ---- */

/* The result of one method of repair. */
struct repair_result {
    lh_findings findings;
    size_t named;         /* losses that have a finding */
    int64_t unnamed;      /* further losses, beyond the limit of findings */
    int64_t jobs, rows;   /* kept rows: jobs, and rows of other tables */
    bool lost;            /* something was lost, so no old token may be issued again */
    bool fence;           /* a row was damaged, perhaps its token: the epoch must rise */
    struct ids lost_jobs; /* the lost jobs that have a finding */
    char uuid[40];
};
/* Add a finding about a loss. False: out of memory. */
bool sq_repair_add_loss(struct repair_result *result, const char *level, const char *what,
                        const char *fmt, ...) __attribute__((format(printf, 4, 5)));
int sq_repair_add_lost_job(struct repair_result *result, int64_t id, const char *why,
                           struct lhi_error *err);
void sq_repair_result_clear(struct repair_result *result);

/* Ids above `seen` may have been given; new ids begin far above it. */
int sq_counters_skip(struct conn *conn, int64_t seen, struct repair_result *result,
                     struct lhi_error *err);
/* LH_ECORRUPT: our tables, indexes, views or triggers differ from those that the migrations make. */
int sq_schema_as_made(struct conn *conn, struct lhi_error *err);
/* Finish a sound file: compare it with the inventory, report losses, set the epoch and the marks. */
int sq_repair_finish(struct conn *conn, const struct inventory *inventory,
                     struct repair_result *result, struct lhi_error *err);

/* ---- salvage.c ---- */

/* Make the new file `to` from every row of `from` that can be read. LH_ECORRUPT: there is none. */
int sq_salvage(struct db *db, const char *from, const char *to, struct repair_result *result,
               struct lhi_error *err);

#endif
