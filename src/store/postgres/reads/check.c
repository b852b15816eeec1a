/*
 * Checks of a store for an operator: its rows, its schema, its server. Changes nothing.
 *
 * Every check is a call of its own, so that no snapshot is held for long; the counts are compared
 * within one snapshot.
 */
#include "store/postgres/pg.h"

#include "base/checksum.h"
#include "base/clock.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    MOST = 20,            /* findings of one kind */
    PAYLOADS_MS = 20000,  /* time for reading payloads, of which there may be any number */
    SKEW_MS = 1000,       /* allowed difference of two machines' clocks */
    OLD_MS = 300000,      /* age of a transaction */
    FAR_BEHIND = 1000000, /* in transactions */
    MANY_DEAD = 50000,    /* in rows */
    MANY_UNFOLDED = 1000000,
    FAR_LAG_MS = 60000,
};

struct report {
    struct txn *txn;
    lh_findings *out;
    const lh_flag *cancel;
    struct lhi_error *err;
    bool failed; /* out of memory */
};

static void add_finding(struct report *report, const char *level, const char *what, const char *fmt,
                        ...) __attribute__((format(printf, 4, 5)));

static void add_finding(struct report *report, const char *level, const char *what, const char *fmt,
                        ...)
{
    lh_findings *out = report->out;
    struct lhi_arena *arena = lhi_arena_of(&out->priv);
    char text[512];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    lh_finding *grown = lhi_realloc(out->finding, (out->n + 1) * sizeof *grown);
    if (grown != NULL)
        out->finding = grown;
    char *copy = arena ? lhi_arena_strdup(arena, text) : NULL;
    char *subject = arena ? lhi_arena_strdup(arena, what) : NULL;
    if (grown == NULL || copy == NULL || subject == NULL) {
        report->failed = true;
        return;
    }
    out->finding[out->n++] = (lh_finding){.level = level, .what = subject, .text = copy};
    if (strcmp(level, "error") == 0)
        out->errors++;
}

static bool is_cancelled(const struct report *report)
{
    return report->cancel != NULL && __atomic_load_n(report->cancel, __ATOMIC_RELAXED) != 0;
}

static int ask(struct report *report, enum lhi_postgres_call which, struct args *args,
               struct rows *rows)
{
    *rows = (struct rows){0};
    if (is_cancelled(report)) {
        if (args != NULL)
            pg_args_clear(args);
        return lhi_fail(report->err, LH_EINTR, "check was interrupted");
    }
    return pg_call(report->txn, which, args, rows, report->err);
}

/* ---- rows ---- */

/* A statement that returns (job, what, text): violations of an invariant. */
static int check_invariant(struct report *report, enum lhi_postgres_call which, bool limited)
{
    enum { JOB, WHAT, TEXT };
    struct args args = {0};
    struct rows rows;

    if (limited)
        pg_arg_int(&args, MOST);
    int rc = ask(report, which, &args, &rows);
    if (rc != LH_OK)
        return rc;
    for (int i = 0; i < rows.n; i++) {
        if (pg_row_null(&rows, i, JOB))
            add_finding(report, "error", pg_row_text(&rows, i, WHAT), "%s",
                        pg_row_text(&rows, i, TEXT));
        else
            add_finding(report, "error", pg_row_text(&rows, i, WHAT), "job %lld: %s",
                        (long long)pg_row_int(&rows, i, JOB), pg_row_text(&rows, i, TEXT));
    }
    pg_rows_free(&rows);
    return LH_OK;
}

static int check_invariants(struct report *report)
{
    int rc = check_invariant(report, LHI_POSTGRES_CHECK_ROWS, true);

    if (rc == LH_OK)
        rc = check_invariant(report, LHI_POSTGRES_CHECK_LEASE_ROWS, true);
    if (rc == LH_OK)
        rc = check_invariant(report, LHI_POSTGRES_CHECK_IDS, false);
    if (rc == LH_OK)
        rc = check_invariant(report, LHI_POSTGRES_CHECK_COUNTS, true);
    if (rc == LH_OK)
        rc = check_invariant(report, LHI_POSTGRES_CHECK_OUTPUTS, true);
    return rc;
}

/* Rows of (id or name, sum, payload, payload as bytes). */
enum { OWNER, SUM, PAYLOAD, PAYLOAD_BYTES };

static bool corrupt(const struct rows *rows, int row)
{
    int column = pg_row_null(rows, row, PAYLOAD) ? PAYLOAD_BYTES : PAYLOAD;
    size_t len = 0;
    const void *bytes =
        pg_row_null(rows, row, column) ? NULL : pg_row_bytes(rows, row, column, &len);

    return !pg_row_null(rows, row, SUM) && pg_row_int(rows, row, SUM) != lhi_checksum(bytes, len);
}

/* Checks payloads until the time is up: reading every payload of a large store would take too
 * long. */
static int check_payloads(struct report *report)
{
    int64_t after = 0, bad = 0, deadline = lhi_mono_ms() + PAYLOADS_MS;

    for (;;) {
        struct args args = {0};
        struct rows rows;
        pg_arg_int(&args, after);
        int rc = ask(report, LHI_POSTGRES_CHECK_PAYLOADS, &args, &rows);
        if (rc != LH_OK)
            return rc;
        for (int i = 0; i < rows.n; i++)
            if (corrupt(&rows, i) && bad++ < MOST)
                add_finding(report, "error", "payload",
                            "job %lld: payload does not match its checksum",
                            (long long)pg_row_int(&rows, i, OWNER));
        bool over = rows.n == 0;
        if (!over)
            after = pg_row_int(&rows, rows.n - 1, OWNER);
        pg_rows_free(&rows);
        if (over)
            return LH_OK;
        if (lhi_mono_ms() >= deadline) {
            add_finding(report, "info", "payload", "checked up to job %lld, then time was up",
                        (long long)after);
            return LH_OK;
        }
    }
}

static int check_schedules(struct report *report)
{
    struct rows rows;
    int rc = ask(report, LHI_POSTGRES_CHECK_SCHEDULES, NULL, &rows);

    if (rc != LH_OK)
        return rc;
    for (int i = 0; i < rows.n; i++)
        if (corrupt(&rows, i))
            add_finding(report, "error", "payload",
                        "schedule %s: payload does not match its checksum",
                        pg_row_text(&rows, i, OWNER));
    pg_rows_free(&rows);
    return LH_OK;
}

/* ---- schema ---- */

static int check_integrity(struct report *report)
{
    struct rows rows;
    int rc = ask(report, LHI_POSTGRES_CHECK_INTEGRITY, NULL, &rows);

    if (rc != LH_OK)
        return rc;
    for (int i = 0; i < rows.n; i++)
        add_finding(report, "error", "integrity", "%s", pg_row_text(&rows, i, 0));
    pg_rows_free(&rows);
    return LH_OK;
}

static int check_schema(struct report *report)
{
    enum { THING, IS, ADDED };
    struct args args = {0};
    struct rows rows;

    pg_arg_int(&args, MOST);
    int rc = ask(report, LHI_POSTGRES_CHECK_SCHEMA, &args, &rows);
    if (rc != LH_OK)
        return rc;
    for (int i = 0; i < rows.n; i++)
        add_finding(report, pg_row_bool(&rows, i, ADDED) ? "info" : "warning", "schema", "%s %s",
                    pg_row_text(&rows, i, THING), pg_row_text(&rows, i, IS));
    pg_rows_free(&rows);
    return LH_OK;
}

/* ---- the server ---- */

static void check_durability(struct report *report, const struct rows *rows)
{
    enum { RECOVERY = 3, FSYNC, PAGES, COMMIT, STANDBYS, UNLOGGED, ISOLATION };
    const char *commit = pg_row_text(rows, 0, COMMIT);

    if (pg_row_bool(rows, 0, RECOVERY))
        add_finding(report, "warning", "server",
                    "the server is a standby: nothing can be written to it");
    if (!pg_row_bool(rows, 0, FSYNC))
        add_finding(report, "warning", "server",
                    "fsync is off: acknowledged commits may be lost when the machine fails");
    if (!pg_row_bool(rows, 0, PAGES))
        add_finding(report, "warning", "server",
                    "full_page_writes is off: pages may be torn when the machine fails");
    if (strcmp(commit, "off") == 0)
        add_finding(
            report, "warning", "server",
            "synchronous_commit is off: acknowledged commits may be lost when the server fails");
    if (!pg_row_null(rows, 0, UNLOGGED))
        add_finding(report, "warning", "server",
                    "tables are unlogged, and lost when the server fails: %s",
                    pg_row_text(rows, 0, UNLOGGED));
    if (strcmp(pg_row_text(rows, 0, ISOLATION), "read committed") != 0)
        add_finding(
            report, "warning", "server",
            "default_transaction_isolation is \"%s\": programs that call the functions directly "
            "must repeat calls refused with 40001, or use read committed",
            pg_row_text(rows, 0, ISOLATION));
}

static void compare_clock(struct report *report, int64_t before, int64_t server, int64_t after)
{
    int64_t skew = server - (before + (after - before) / 2);
    int64_t trip = after - before;
    bool apart = skew > SKEW_MS + trip || skew < -SKEW_MS - trip;

    add_finding(report, apart ? "warning" : "info", "clock",
                "clock of the server is %lld ms %s this machine's",
                (long long)(skew < 0 ? -skew : skew), skew < 0 ? "behind" : "ahead of");
}

/* Must commits wait for a standby, and is there one? */
static int check_standbys(struct report *report, const char *wanted, const char *commit)
{
    enum { ALL, TOLD, SYNCHRONOUS, LAG_BYTES, LAG_MS };
    struct rows rows;
    int rc = ask(report, LHI_POSTGRES_CHECK_STANDBYS, NULL, &rows);

    if (rc != LH_OK)
        return rc;
    int64_t all = pg_row_int(&rows, 0, ALL), visible = pg_row_int(&rows, 0, TOLD);
    bool waits = wanted[0] != '\0' && strcmp(commit, "off") != 0 && strcmp(commit, "local") != 0;
    if (waits && (all == 0 || (visible == all && pg_row_int(&rows, 0, SYNCHRONOUS) == 0)))
        add_finding(
            report, "warning", "replication",
            "synchronous_standby_names is \"%s\" and none of these is connected: every commit "
            "waits for one",
            wanted);
    if (all > 0 && visible < all)
        add_finding(
            report, "info", "replication",
            "standbys connected: %lld; only members of pg_monitor see how far behind they are",
            (long long)all);
    else if (all > 0)
        add_finding(
            report, pg_row_int(&rows, 0, LAG_MS) > FAR_LAG_MS ? "warning" : "info", "replication",
            "standbys connected: %lld, synchronous: %lld; the last is %lld bytes and %lld ms "
            "behind",
            (long long)all, (long long)pg_row_int(&rows, 0, SYNCHRONOUS),
            (long long)pg_row_int(&rows, 0, LAG_BYTES), (long long)pg_row_int(&rows, 0, LAG_MS));
    pg_rows_free(&rows);
    return LH_OK;
}

static int check_server(struct report *report)
{
    enum { VERSION, SCHEMA, NOW, COMMIT = 6, STANDBYS };
    struct rows rows;
    int64_t before = lhi_wall_ms();
    int rc = ask(report, LHI_POSTGRES_CHECK_SERVER, NULL, &rows);

    if (rc != LH_OK)
        return rc;
    compare_clock(report, before, pg_row_time(&rows, 0, NOW), lhi_wall_ms());
    add_finding(report, "info", "version", "leasehold %s, PostgreSQL %s, schema %lld", LH_VERSION,
                pg_row_text(&rows, 0, VERSION), (long long)pg_row_int(&rows, 0, SCHEMA));
    check_durability(report, &rows);
    rc = check_standbys(report, pg_row_text(&rows, 0, STANDBYS), pg_row_text(&rows, 0, COMMIT));
    pg_rows_free(&rows);
    return rc;
}

static int check_oldest(struct report *report)
{
    enum { HOLDER, AGE_MS, BEHIND };
    struct rows rows;
    int rc = ask(report, LHI_POSTGRES_CHECK_OLDEST, NULL, &rows);

    if (rc != LH_OK)
        return rc;
    for (int i = 0; i < rows.n; i++) {
        int64_t age_ms = pg_row_int(&rows, i, AGE_MS), behind = pg_row_int(&rows, i, BEHIND);
        char age[32];
        if (pg_row_null(&rows, i, AGE_MS))
            add_finding(
                report, behind >= FAR_BEHIND ? "warning" : "info", "transactions",
                "oldest is %lld transactions behind: %s; dead rows cannot be vacuumed while it "
                "lasts; only members of pg_monitor see for how long",
                (long long)behind, pg_row_text(&rows, i, HOLDER));
        else
            add_finding(report, age_ms >= OLD_MS ? "warning" : "info", "transactions",
                        "oldest is %s old: %s; dead rows cannot be vacuumed while it lasts",
                        lh_duration_format(age_ms, age, sizeof age), pg_row_text(&rows, i, HOLDER));
    }
    pg_rows_free(&rows);
    return LH_OK;
}

static int check_vacuum(struct report *report)
{
    enum { TABLE, LIVE, DEAD, WHEN };
    struct rows rows;
    int rc = ask(report, LHI_POSTGRES_CHECK_VACUUM, NULL, &rows);

    if (rc != LH_OK)
        return rc;
    for (int i = 0; i < rows.n; i++) {
        const char *table = pg_row_text(&rows, i, TABLE);
        int64_t live = pg_row_int(&rows, i, LIVE), dead = pg_row_int(&rows, i, DEAD);
        if (strcmp(table, "job") == 0)
            add_finding(report, dead > MANY_DEAD + live / 5 ? "warning" : "info", "vacuum",
                        "leasehold.job has about %lld rows and %lld dead ones, %s", (long long)live,
                        (long long)dead, pg_row_text(&rows, i, WHEN));
        else if (live > MANY_UNFOLDED)
            add_finding(
                report, "warning", "upkeep",
                "leasehold.%s has about %lld rows: no process runs maintenance on this store",
                table, (long long)live);
    }
    pg_rows_free(&rows);
    return LH_OK;
}

/* ---- entry points ---- */

int pg_read_check(struct txn *txn, struct lhi_act *act)
{
    static int (*const checks[])(struct report *) = {
        check_schema, check_invariants, check_payloads, check_schedules,
        check_server, check_oldest,     check_vacuum};
    struct report report = {
        .txn = txn, .out = act->check.out, .cancel = act->check.cancel, .err = &act->err};
    int rc;

    if (act->check.rows_only) {
        rc = check_invariants(&report);
        return rc == LH_OK && report.failed ? lhi_no_memory(&act->err) : rc;
    }
    size_t before = report.out->errors;
    rc = check_integrity(&report);
    if (rc == LH_OK && report.out->errors == before)
        add_finding(&report, "info", "integrity", "passed");
    for (size_t i = 0; i < sizeof checks / sizeof checks[0] && rc == LH_OK; i++)
        rc = checks[i](&report);
    return rc == LH_OK && report.failed ? lhi_no_memory(&act->err) : rc;
}

int pg_read_integrity(struct txn *txn, struct lhi_act *act)
{
    struct report report = {
        .txn = txn, .out = act->check.out, .cancel = act->check.cancel, .err = &act->err};
    int rc = check_integrity(&report);

    return rc == LH_OK && report.failed ? lhi_no_memory(&act->err) : rc;
}
