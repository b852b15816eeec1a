/* backup.h: whole copies of a database file, for whoever makes one: backup, restore, repair. */
#ifndef LHI_SQLITE_BACKUP_H
#define LHI_SQLITE_BACKUP_H

#include "store/sqlite/db.h"

/* `path` with its folder made absolute, the last part as it is; `what` is for the message. */
int sq_copy_place(const char *path, const char *what, char out[4096], struct lhi_error *err);

/* Open `conn` on the file of `source`, of which path, file and log are set, and begin the one snapshot
 * that is copied. Where SQLite cannot read it, such as on a read-only file system, from a copy. */
int sq_copy_begin(struct db *source, struct conn *conn, struct lhi_error *err);

/* Copy what `from` sees, in the one snapshot it has open, into the new file `file`: mode 0600, made
 * here. With opts (NULL: none) it can be watched and cancelled. A failure leaves nothing behind. */
int sq_copy_make(struct conn *from, const char *file, const lh_backup_opts *opts,
                 struct lhi_error *err);
/* … and was it whole? LH_EBUSY: where nothing could be locked, somebody has written meanwhile. */
int sq_copy_was_whole(const struct db *source, struct lhi_error *err);
/* Open such a file, to be changed by nobody but us. */
int sq_copy_open(struct conn *conn, const char *file, struct lhi_error *err);
/* Close it again as one whole file, without a log, that the disk has. */
int sq_copy_finish(struct conn *conn, const char *file, struct lhi_error *err);
void sq_copy_remove(const char *file);

/* The engine, a table of ours, a schema we know: else why `path` cannot be used. */
int sq_copy_sound(struct conn *conn, const char *path, const lh_flag *cancel,
                  struct lhi_error *err);

/* What the engine said does not name the file: put "`what` "path": " before it. */
int sq_copy_failed(const char *what, const char *path, struct lhi_error *err);

/* ---- partial.c: where a copy is made until it has its name ---- */

struct partial {
    int fd; /* of the folder, locked; -1: there is none */
    char folder[4300], file[4300];
};
/* A private folder beside `target`, and the name of the copy in it. */
int sq_partial_make(struct partial *partial, const char *target, struct lhi_error *err);
void sq_partial_remove(struct partial *partial);
/* Remove those in the folder of `target` that backups which were killed have left. */
void sq_partial_clean(const char *target, const struct lhi_log *log);

/* ---- replaced_store.c: the store that is replaced, and what must go on from where it had got to ---- */

enum { MOST_EPOCHS = 8191 }; /* 13 bits of a token, see sq_raise_epoch() */

struct txn;

struct replaced {
    bool known;             /* it is there, and could be read */
    bool same;              /* … and is the store that the copy was made of */
    bool own_file;          /* nobody else has tables in it */
    bool counted;           /* epoch and changes are those of the same store */
    int64_t epoch, changes; /* else 0, or what the side file knows */
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

/* Look at the store in db's place, on db->conn, which is closed again. Damage is no failure: what
 * can be read is read. LH_EINVAL: it is a database that is not ours to replace. */
int sq_replaced_read(struct replaced *replaced, struct db *db, const char *uuid,
                     struct lhi_error *err);
/* Inside the transaction that makes a copy the store. Holders over there are told at their next act
 * and may be at work until then: their jobs, slots and exclusive leases are nobody else's before
 * they have answered or their time is up. And no id is given twice. */
int sq_replaced_carry_over(const struct replaced *replaced, struct txn *txn, struct lhi_error *err);
void sq_replaced_clear(struct replaced *replaced);

#endif
