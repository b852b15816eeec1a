/* Opening: connections, the schema, the clock, and the health of a store after a crash. */
#ifndef LHI_SQLITE_OPEN_H
#define LHI_SQLITE_OPEN_H

#include "store/open.h"
#include "store/sqlite/db.h"

struct txn;

/* ---- connection.c, open.c ---- */

int sq_conn_open(struct conn *conn, const char *path, int flags, struct lhi_error *err);
/* Open for reading, also where the store cannot be written. */
int sq_conn_open_to_read(struct db *db, struct conn *conn, struct lhi_error *err);
/* Wait when the file is busy, or fail at once? */
void sq_conn_set_busy_wait(struct conn *conn, bool wait);
int sq_set_wal_mode(struct conn *conn, bool *changed, struct lhi_error *err);

/* ---- schema.c ---- */

enum contents { CONTENTS_EMPTY, CONTENTS_FOREIGN, CONTENTS_OURS };
int sq_schema_look(struct conn *conn, enum contents *out, int64_t *version, struct lhi_error *err);
int sq_schema_update(struct db *db, struct lhi_error *err); /* creates or migrates the tables */
int sq_schema_drop_sql(struct conn *conn, char **out, struct lhi_error *err);
int sq_meta_int(struct conn *conn, const char *key, int64_t fallback, int64_t *out,
                struct lhi_error *err);
int sq_meta_set_int(struct conn *conn, const char *key, int64_t value, struct lhi_error *err);
/* Set the epoch and its second copy. A repair needs the copy: it must never issue an old token again. */
int sq_epoch_set(struct conn *conn, int64_t epoch, struct lhi_error *err);
int sq_meta_set_text(struct conn *conn, const char *key, const char *value, struct lhi_error *err);
int sq_meta_text(struct conn *conn, const char *key, char *out, size_t len, struct lhi_error *err);

/* ---- clock.c ---- */

int64_t sq_db_now(void *self);
int sq_clock_usable(int64_t wall_ms, struct lhi_error *err);     /* LH_EFAIL: it is before 1973 */
int sq_clock_set_anchor(struct txn *txn, struct lhi_error *err); /* after a jump or a new boot */
/* The monotonic clock of the machine, the same in every time namespace. */
int64_t sq_machine_ms(const struct db *db);
/* Was the anchor set in this boot, so that our monotonic clock can be compared with it? */
bool sq_clock_of_this_boot(const struct db *db, const char *anchor_boot);
/* Compare the clocks and shift deadlines after a jump. It runs before anything is compared with the time. */
int sq_clock_check(struct txn *txn, struct lhi_error *err);
int sq_clock_new_boot(struct txn *txn, struct lhi_error *err);
int sq_raise_epoch(struct txn *txn, struct lhi_error *err);

/* ---- health.c ---- */

void sq_health_before_open(struct db *db); /* was the store closed cleanly? */
/* Check the file and, if no other process has the store open, repair it. Under the writer lock. The
 * connection may be a new one afterwards. */
int sq_health_check(struct db *db, struct lhi_error *err);
/* The open failed with err: repair the store if err is damage and a repair is allowed. */
int sq_health_repair(struct db *db, struct lhi_error *err);
/* Check the file while other processes have the store open: without the writer lock and without a repair. */
int sq_health_check_shared(struct db *db, struct lhi_error *err);
int sq_health_after_open(struct db *db, struct lhi_error *err); /* checkpoints the log */

#endif
