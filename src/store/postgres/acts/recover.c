/*
 * acts/recover.c: one batch of a recovery.
 *
 * The state of the run is a parameter and a result. The database judges each job again from its row
 * under its lock (leasehold.recover_batch in sql/postgres/migrations).
 */
#include "store/postgres/pg.h"

#include <string.h>

static void put_flags(struct args *args, const struct lhi_act *act)
{
    const struct lhi_run *run = act->recover.run;
    const lh_recover_opts *opts = act->recover.opts;
    const struct {
        const char *name;
        bool set;
    } flags[] = {
        {"always", run->always},         {"whole", run->whole},
        {"leases", act->recover.leases}, {"last", act->recover.last},
        {"by_hand", opts != NULL},       {"at_once", opts != NULL && opts->now},
    };
    const size_t most = sizeof flags / sizeof flags[0];
    size_t n = 0;

    for (size_t i = 0; i < most; i++)
        n += flags[i].set;
    pg_arg_array(args, OID_TEXT, n);
    for (size_t i = 0; i < most; i++)
        if (flags[i].set)
            pg_put_text(args, flags[i].name);
}

/* In the order of struct lhi_run and of the columns of leasehold.batch. */
enum { COUNTERS = 9 };
static void counters(struct lhi_run *run, int64_t *out[COUNTERS])
{
    int64_t *const all[COUNTERS] = {&run->orphaned,     &run->retried,  &run->made_pending,
                                    &run->failed,       &run->released, &run->leases,
                                    &run->dead_workers, &run->failures, &run->untold};
    memcpy(out, all, sizeof all);
}

static void put_run(struct args *args, struct lhi_run *run)
{
    int64_t *count[COUNTERS];
    const size_t n_counted = sizeof run->counted / sizeof run->counted[0];

    pg_arg_text(args, run->trigger);
    pg_arg_opt(args, run->report);
    pg_arg_time(args, run->started_at);
    counters(run, count);
    pg_arg_array(args, OID_INT8, COUNTERS);
    for (size_t i = 0; i < COUNTERS; i++)
        pg_put_int(args, *count[i]);
    pg_arg_array(args, OID_INT8, n_counted);
    for (size_t i = 0; i < n_counted; i++)
        pg_put_int(args, run->counted[i]);
}

static void put_deaths(struct args *args, const struct lhi_death *deaths, size_t n)
{
    pg_arg_array(args, OID_TEXT, n);
    for (size_t i = 0; i < n; i++)
        pg_put_text(args, deaths[i].worker);
    pg_arg_array(args, OID_TIMESTAMPTZ, n);
    for (size_t i = 0; i < n; i++)
        pg_put_time(args, deaths[i].last_heartbeat_at);
    pg_arg_array(args, OID_TEXT, n);
    for (size_t i = 0; i < n; i++)
        pg_put_text(args, deaths[i].late ? "late" : deaths[i].proven ? "proven" : "silent");
    pg_arg_array(args, OID_TEXT, n);
    for (size_t i = 0; i < n; i++)
        pg_put_text(args, deaths[i].what);
    pg_arg_array(args, OID_TEXT, n);
    for (size_t i = 0; i < n; i++)
        pg_put_text(args, deaths[i].sessions);
}

static void put_health(struct args *args, const struct lhi_health *health)
{
    static const struct lhi_health none = {.wal_frames = -1};

    if (health == NULL)
        health = &none;
    pg_arg_text(args, !health->checked   ? "skipped"
                      : health->repaired ? "repaired"
                      : health->sound    ? "passed"
                                         : "failed");
    pg_arg_int(args, health->wal_frames);
    pg_arg_bool(args, health->repaired);
    pg_arg_array(args, OID_TEXT, health->findings.n);
    for (size_t i = 0; i < health->findings.n; i++)
        pg_put_text(args, strcmp(health->findings.finding[i].what, "integrity") == 0
                              ? "store.damaged"
                              : "recovery.inconsistency");
    pg_arg_array(args, OID_TEXT, health->findings.n);
    for (size_t i = 0; i < health->findings.n; i++)
        pg_put_text(args, health->findings.finding[i].text);
}

static void take_run(const struct rows *rows, struct lhi_act *act)
{
    enum { REPORT, STARTED_AT, COUNTS, OVER = COUNTS + COUNTERS };
    struct lhi_run *run = act->recover.run;
    int64_t *count[COUNTERS];

    run->report = pg_row_int(rows, 0, REPORT);
    run->started_at = pg_row_time(rows, 0, STARTED_AT);
    counters(run, count);
    for (int i = 0; i < COUNTERS; i++)
        *count[i] = pg_row_int(rows, 0, COUNTS + i);
    if (run->report != 0)
        for (size_t i = 0; i < sizeof run->counted / sizeof run->counted[0]; i++)
            run->counted[i] = *count[i + 1]; /* all but `orphaned`, which is counted elsewhere */
    act->recover.over = pg_row_bool(rows, 0, OVER);
}

int pg_act_recover(struct txn *txn, struct lhi_act *act)
{
    const lh_recover_opts *opts = act->recover.opts;
    struct args args = {0};
    struct rows rows;

    put_flags(&args, act);
    put_run(&args, act->recover.run);
    put_deaths(&args, act->recover.deaths, act->recover.n_deaths);
    pg_arg_array(&args, OID_INT8, act->n);
    for (size_t i = 0; i < act->n; i++)
        pg_put_int(&args, act->recover.ids[i]);
    pg_arg_ref(&args, opts != NULL && opts->by_age ? &opts->threshold_ms : NULL);
    pg_arg_opt(&args, opts != NULL ? (int64_t)opts->action : 0);
    pg_arg_text(&args, opts != NULL ? opts->queue : NULL);
    put_health(&args, act->recover.health);
    int rc = pg_call(txn, LHI_POSTGRES_RECOVER_BATCH, &args, &rows, &act->err);
    if (rc != LH_OK)
        return rc;
    take_run(&rows, act);
    pg_rows_free(&rows);
    act->recover.done =
        act->n; /* rows that others have locked are skipped, so the batch is always done */
    return LH_OK;
}

int pg_act_recount(struct txn *txn, struct lhi_act *act)
{
    return pg_call(txn, LHI_POSTGRES_RECOUNT, NULL, NULL, &act->err);
}
