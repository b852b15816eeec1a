/* repair.h: what the files of a repair share: repair.c, source_copy.c, salvage.c, finish.c, replace_file.c. */
#ifndef LHI_SQLITE_REPAIR_H
#define LHI_SQLITE_REPAIR_H

#include "store/sqlite/copies/backup.h"
#include "store/sqlite/repair/pages.h"

/* ---- replace_file.c ---- */

/* The note in the side file, on the disk too. */
int sq_repair_note(struct db *db, enum coord_work work, int64_t at, struct lhi_error *err);
int sq_sync_folder(const char *file, struct lhi_error *err); /* the folder that `file` is in */
/* Where the file that is to come stands, from the note that it may be put in place. */
void sq_replace_source(const struct db *db, const char *word, int64_t at, char out[4300]);
/* Put it there: all that is not done yet. */
int sq_replace_finish(struct db *db, const char *word, int64_t at, char kept[4300],
                      struct lhi_error *err);

/* ---- source_copy.c: the damaged file, held and copied ---- */

struct source {
    sqlite3 *holder; /* keeps every other program out */
    sqlite3_file *file;
};

int sq_file_create(const char *file, int *fd, struct lhi_error *err); /* a new one, for us alone */
/* LH_EBUSY: another program has it open. */
int sq_source_lock(struct source *source, const struct db *db, struct lhi_error *err);
void sq_source_unlock(struct source *source);
/* Copy it, and its log, into `to`; fold the log into the copy and put its header right, so that `to`
 * alone is the store. `*folded`: how many frames of the log are in it. Without `log`: as if there were
 * none. */
int sq_source_copy(const struct source *source, const struct db *db, const char *to, bool log,
                   int64_t *folded, struct lhi_error *err);

/* ---- inventory.c ---- */

/* Row ids, ascending once sorted. */
struct ids {
    int64_t *id;
    size_t n;
};
bool sq_ids_add(struct ids *ids, int64_t id); /* false: out of memory */
void sq_ids_sort(struct ids *ids);            /* and each once */
bool sq_ids_have(const struct ids *ids, int64_t id);

/* What the indexes of lh_job (pending, timed, key) know: which jobs there are. */
enum { JOB_INDEXES = 3 };
struct inventory {
    struct ids ids[JOB_INDEXES];
    bool whole[JOB_INDEXES]; /* all of the index could be read */
    bool tables_whole;       /* every page of every table adds up */
};
int sq_inventory_read(struct inventory *inventory, const char *file, struct lhi_error *err);
void sq_inventory_free(struct inventory *inventory);

/* ---- finish.c ---- */

/* What became of a store on a rung of the ladder. */
struct repair_result {
    lh_findings said;
    size_t named;         /* of what is lost or partial, so far */
    int64_t unnamed;      /* … beyond the most that are named */
    int64_t jobs, rows;   /* kept: jobs, and rows of all other tables */
    bool lost;            /* something is gone: no token may be handed out again */
    bool fence;           /* a row was damaged, perhaps its token: the epoch must rise */
    struct ids lost_jobs; /* those that are named already */
    char uuid[40];
};
/* One thing that is lost or partial; false: out of memory. */
bool sq_repair_add_loss(struct repair_result *result, const char *level, const char *what,
                        const char *fmt, ...) __attribute__((format(printf, 4, 5)));
int sq_repair_add_lost_job(struct repair_result *result, int64_t id, const char *why,
                           struct lhi_error *err);
void sq_repair_result_clear(struct repair_result *result);

/* Nobody knows how many ids were given beyond `seen`: new ones begin far above. */
int sq_counters_skip(struct conn *conn, int64_t seen, struct repair_result *result,
                     struct lhi_error *err);
/* LH_ECORRUPT: our tables, indexes, views or triggers are not what our migrations make. */
int sq_schema_as_made(struct conn *conn, struct lhi_error *err);
/* The last touch to a sound file: what is lost or partial by comparison, the epoch, the marks. */
int sq_repair_finish(struct conn *conn, const struct inventory *inventory,
                     struct repair_result *result, struct lhi_error *err);

/* ---- salvage.c ---- */

/* Make the new file `to` of every row that can be read in `from`. LH_ECORRUPT: there is none. */
int sq_salvage(struct db *db, const char *from, const char *to, struct repair_result *result,
               struct lhi_error *err);

#endif
