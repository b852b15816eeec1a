/* Waiting, and the threads that watch: the processes of workers, and writers that are not ours. */
#ifndef LHI_SQLITE_WATCH_H
#define LHI_SQLITE_WATCH_H

#include "store/sqlite/db.h"

/* ---- death_watch.c ---- */
void sq_death_watch_init(struct db *db);
void sq_death_watch_start(struct db *db); /* a caller waits: watch all registered workers */
void sq_death_watch_clear(struct db *db);

/* ---- foreign_writers.c ---- */
void sq_foreign_writers_watch(struct db *db);
void sq_foreign_writers_unwatch(struct db *db);

/* ---- waiting.c: operations of struct lhi_store_ops ---- */
uint32_t sq_db_ticket(void *self, const struct lhi_topic *topic);
enum lhi_subscribed sq_db_subscribe(void *self, const struct lhi_topic *topic);
bool sq_db_wait(void *self, const struct lhi_topic *topic, uint32_t ticket, int64_t timeout_ms);
uint32_t sq_db_deaths(void *self);
void sq_db_wake(void *self);

#endif
