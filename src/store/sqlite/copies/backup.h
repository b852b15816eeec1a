/* Complete copies of a database file, for backup, restore and repair. */
#ifndef LHI_SQLITE_BACKUP_H
#define LHI_SQLITE_BACKUP_H

#include "store/sqlite/db.h"

/* Make the folder of `path` absolute and keep the last part; `what` is for the message. */
int sq_copy_place(const char *path, const char *what, char out[4096], struct lhi_error *err);

/* Open `conn` on the file of `source` (path, file and log are set), and begin the one snapshot that
 * is copied. If SQLite cannot read the file, for example on a read-only file system, open a private
 * copy. */
int sq_copy_begin(struct db *source, struct conn *conn, struct lhi_error *err);

/* Copy the open snapshot of `from` into the new file `file`, mode 0600. `opts` may be NULL; with it
 * the caller can watch and cancel the copy. A failure leaves no file behind. */
int sq_copy_make(struct conn *from, const char *file, const lh_backup_opts *opts,
                 struct lhi_error *err);
/* Was the copy complete? LH_EBUSY: the source could not be locked, and another process has written
 * to it. */
int sq_copy_was_whole(const struct db *source, struct lhi_error *err);
/* Open such a file. No other process uses it. */
int sq_copy_open(struct conn *conn, const char *file, struct lhi_error *err);
/* Close it as one complete, synced file without a log. */
int sq_copy_finish(struct conn *conn, const char *file, struct lhi_error *err);
void sq_copy_remove(const char *file);

/* Can `path` be used as a copy? It must be sound and have our tables, in a version that we know.
 * Otherwise err says why not. */
int sq_copy_sound(struct conn *conn, const char *path, const lh_flag *cancel,
                  struct lhi_error *err);

/* Put "`what` "path": " before SQLite's message, which does not name the file. */
int sq_copy_failed(const char *what, const char *path, struct lhi_error *err);

/* ---- partial.c: the place of an unfinished copy ---- */

struct partial {
    int fd; /* the locked folder; -1: there is none */
    char folder[4300], file[4300];
};
/* Create a private folder beside `target`, and choose the name of the copy in it. */
int sq_partial_make(struct partial *partial, const char *target, struct lhi_error *err);
void sq_partial_remove(struct partial *partial);
/* Remove the private folders that killed backups left in the folder of `target`. */
void sq_partial_clean(const char *target, const struct lhi_log *log);

/* ---- replaced_store.c: the store that a restore replaces ---- */

enum { MOST_EPOCHS = 8191 }; /* 13 bits of a token, see sq_raise_epoch() */

struct txn;

struct replaced {
    bool known;             /* it exists and could be read */
    bool same;              /* it is the store that the copy was made of */
    bool own_file;          /* it has only our tables */
    bool counted;           /* epoch and changes belong to the same store */
    int64_t epoch, changes; /* else 0, or the values of the coordination file */
    struct held_job {
        int64_t job, token, left_ms;
    } * held;
    size_t n_held;
    struct held_queue {
        const char *queue, *owner;
        int64_t job, left_ms;
    } * exclusive;
    size_t n_exclusive;
    struct last_id {
        const char *table;
        int64_t id;
    } * ids;
    size_t n_ids;
    struct lhi_arena arena;
};

/* Read the store in db's place, on db->conn, which is closed again. A damaged store is no failure:
 * everything readable is read. LH_EINVAL: it is a database that we must not replace. */
int sq_replaced_read(struct replaced *replaced, struct db *db, const char *uuid,
                     struct lhi_error *err);
/* Carry over, in the transaction that makes a copy the store. Holders in the replaced store learn
 * of it with their next act and may still be running. So their jobs, slots and exclusive leases
 * stay in quarantine until they have answered or their deadlines have passed. Ids and tokens
 * continue above those of the replaced store. */
int sq_replaced_carry_over(const struct replaced *replaced, struct txn *txn, struct lhi_error *err);
void sq_replaced_clear(struct replaced *replaced);

#endif
