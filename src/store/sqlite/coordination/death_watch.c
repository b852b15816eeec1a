/* death_watch.c: the workers of a SQLite store, for those who watch their processes (store/deaths.c). */
#include "store/sqlite/db.h"

enum { REFRESH_MS = 5000 };

static bool workers(void *arg, struct lhi_suspects *out)
{
    struct db *db = arg;
    struct lhi_error ignored;

    if (db->mourner.db == NULL &&
        conn_open(&db->mourner, db->file, SQLITE_OPEN_READONLY, &ignored) != LH_OK)
        conn_close(&db->mourner);
    return db->mourner.db != NULL &&
           read_suspects(&db->mourner, LHI_SQL_WORKER_JUDGE, 0, out, &ignored) == LH_OK;
}

static void sound(void *arg)
{
    struct db *db = arg;
    side_sound_siren(&db->side);
}

void deaths_init(struct db *db)
{
    lhi_deaths_init(&db->deaths,
                    &(struct lhi_deaths_of){
                        .arg = db, .workers = workers, .sound = sound, .refresh_ms = REFRESH_MS});
}

void deaths_watch(struct db *db)
{
    uint32_t heard = side_siren(&db->side);

    if (!db->opts.read_only && !db->opts.no_recovery)
        lhi_deaths_watch(&db->deaths, heard);
}

void deaths_clear(struct db *db)
{
    lhi_deaths_clear(&db->deaths);
    conn_close(&db->mourner);
}
