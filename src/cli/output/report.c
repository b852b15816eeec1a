/*
 * Prints recovery reports, as text and as JSON.
 */
#include "report.h"

#include <inttypes.h>
#include <string.h>

/* ---- shared by text and JSON ----------------------------------------------------------------- */

const char *report_integrity(const lh_report *report)
{
    if (!report->integrity.ran)
        return "SKIPPED";
    if (!report->integrity.passed)
        return "FAILED";
    return report->integrity.repair_succeeded ? "REPAIRED" : "PASSED";
}

char *report_duration(int64_t ms, char *buf, size_t len)
{
    int64_t tenths = (ms + 50) / 100;

    if (tenths >= 600)
        return lh_duration_format(ms, buf, len);
    snprintf(buf, len, "%" PRId64 ".%" PRId64 "s", tenths / 10, tenths % 10);
    return buf;
}

void report_line(const lh_report *report, int64_t now, struct buf *out)
{
    char time[64], when[64];

    buf_format(out, "%s (%s), %s: ", lh_time_format(report->started_at, time, sizeof time),
               text_when(report->started_at, now, when, sizeof when), report->trigger);
    if (report->completed_at == 0)
        buf_text(out, "running, or interrupted; ");
    buf_format(out, "%" PRId64 " job%s, %" PRId64 " named lease%s", report->entries_reclaimed,
               text_plural(report->entries_reclaimed), report->locks_cleaned,
               text_plural(report->locks_cleaned));
    if (report->failed_recoveries > 0)
        buf_format(out, ", %" PRId64 " failed", report->failed_recoveries);
    if (report->integrity.ran && strcmp(report_integrity(report), "PASSED") != 0)
        buf_format(out, ", integrity %s", report_integrity(report));
}

/* ---- text ------------------------------------------------------------------------------------ */

/** Prints a time to the second, for people. */
static void add_time(struct buf *out, const char *label, int64_t ms)
{
    char time[64];

    lh_time_format(ms, time, sizeof time);
    buf_format(out, "%s: %.*sZ\n", label, (int)strcspn(time, "."), time);
}

static void add_item(struct buf *out, const char *text)
{
    buf_text(out, "  - ");
    text_visible(out, text, strlen(text));
    buf_char(out, '\n');
}

static void add_items(struct buf *out, const char *const *items, size_t n)
{
    for (size_t i = 0; i < n; i++)
        add_item(out, items[i]);
}

/** The lists are cut at LH_REPORT_MOST entries; the counts are complete. */
static void add_rest(struct buf *out, int64_t all, size_t listed)
{
    if (all > (int64_t)listed)
        buf_format(out, "  - and %" PRId64 " more\n", all - (int64_t)listed);
}

/** The reason why a job was failed, in the short words of the report. */
static const char *why_failed(const char *reason)
{
    if (reason != NULL && strncmp(reason, "POISON:", 7) == 0)
        return "poison";
    if (reason != NULL && strstr(reason, "Max attempts reached") != NULL)
        return "max attempts exceeded";
    return "its recovery action is fail";
}

static void add_job(struct buf *out, const lh_recovered_job *job)
{
    buf_format(out, "  - %" PRId64 ": ", job->job);
    if (!job->success)
        buf_text(out, "not recovered\n");
    else if (strcmp(job->action, "failed") == 0)
        buf_format(out, "failed (%s)\n", why_failed(job->reason));
    else if (job->max_attempts == LH_UNLIMITED)
        buf_format(out, "%s (attempt %" PRId64 "/unlimited)\n", job->action, job->attempt);
    else
        buf_format(out, "%s (attempt %" PRId64 "/%" PRId64 ")\n", job->action, job->attempt,
                   job->max_attempts);
}

static void add_jobs(struct buf *out, const lh_report *report)
{
    size_t listed = 0;

    buf_format(out, "\nOrphaned Tasks Found: %" PRId64 "\n", report->orphaned);
    for (size_t i = 0; i < report->n_recovered; i++)
        if (report->recovered[i].job != 0) {
            add_job(out, &report->recovered[i]);
            listed++;
        }
    add_rest(out, report->orphaned, listed);
}

static void add_failures(struct buf *out, const lh_report *report)
{
    size_t listed = 0;

    if (report->failed_recoveries == 0)
        return;
    buf_format(out, "\nFailed Recoveries: %" PRId64 "\n", report->failed_recoveries);
    for (size_t i = 0; i < report->n_recovered; i++) {
        const lh_recovered_job *job = &report->recovered[i];
        const char *error = job->error ? job->error : "the reason is not known";
        if (job->success)
            continue;
        buf_text(out, "  - ");
        if (job->job != 0) /* a recovery step can fail without a job */
            buf_format(out, "%" PRId64 ": ", job->job);
        text_visible(out, error, strlen(error));
        buf_char(out, '\n');
        listed++;
    }
    add_rest(out, report->failed_recoveries, listed);
}

static void add_head(struct buf *out, const lh_report *report)
{
    char text[64];

    buf_format(out, "=== Queue Recovery Report%s ===\n", report->dry_run ? " (dry run)" : "");
    add_time(out, "Started", report->started_at);
    buf_format(out, "Duration: %s\n\n", report_duration(report->duration_ms, text, sizeof text));
    buf_format(out, "Integrity Check: %s\n", report_integrity(report));
    add_items(out, report->integrity.errors, report->integrity.n_errors);
    if (report->wal_frames >= 0)
        buf_format(out, "WAL Checkpointed: %" PRId64 " frames\n", report->wal_frames);
    else
        buf_text(out, "WAL Checkpointed: SKIPPED\n");
}

static void add_end(struct buf *out, const lh_report *report)
{
    buf_char(out, '\n');
    if (report->dry_run)
        buf_text(out, "Dry Run: nothing was changed\n");
    else if (report->completed_at == 0)
        buf_text(out, "Recovery Incomplete: it is running, or was interrupted\n");
    else
        add_time(out, "Recovery Complete", report->completed_at);
}

static void print_text(const lh_report *report)
{
    struct buf out = {0};

    add_head(&out, report);
    add_jobs(&out, report);
    buf_format(&out, "\nDead Workers: %zu\n", report->n_dead_workers);
    for (size_t i = 0; i < report->n_dead_workers; i++) {
        const lh_dead_worker *dead = &report->dead_workers[i];
        char age[32];
        text_span(report->started_at - dead->last_heartbeat, age, sizeof age);
        buf_format(&out, "  - %s (last heartbeat: %s ago)\n", dead->worker, age);
    }
    if (report->locks_cleaned > 0)
        buf_format(&out, "\nLocks Cleaned: %" PRId64 "\n", report->locks_cleaned);
    add_failures(&out, report);
    if (report->n_inconsistencies > 0) {
        buf_format(&out, "\nInconsistencies: %zu\n", report->n_inconsistencies);
        add_items(&out, report->inconsistencies, report->n_inconsistencies);
    }
    add_end(&out, report);
    fwrite(buf_str(&out), 1, out.n, stdout);
    buf_clear(&out);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void js_texts(struct js *json, const char *key, const char *const *texts, size_t n)
{
    js_key(json, key);
    js_open(json, '[');
    for (size_t i = 0; i < n; i++)
        js_text(json, texts[i]);
    js_close(json, ']');
}

static void js_integrity(struct js *json, const lh_report *report, bool lists)
{
    js_key(json, "integrity");
    js_open(json, '{');
    js_key_bool(json, "ran", report->integrity.ran);
    js_key_bool(json, "passed", report->integrity.passed);
    if (lists)
        js_texts(json, "errors", report->integrity.errors, report->integrity.n_errors);
    js_key_bool(json, "repair_attempted", report->integrity.repair_attempted);
    js_key_bool(json, "repair_succeeded", report->integrity.repair_succeeded);
    js_close(json, '}');
}

static void js_recovered(struct js *json, const lh_recovered_job *job)
{
    js_open(json, '{');
    js_key(json, "job");
    js_int_or_null(json, job->job, 0);
    js_key_text(json, "queue", job->queue);
    js_key_text(json, "kind", job->kind);
    js_key_text(json, "action", job->action);
    js_key_int(json, "attempt", job->attempt);
    js_key(json, "max_attempts");
    js_attempts(json, job->max_attempts);
    js_key_text(json, "previous_worker", job->previous_worker);
    js_key_text(json, "reason", job->reason);
    js_key_bool(json, "success", job->success);
    js_key_text(json, "error", job->error);
    js_close(json, '}');
}

static void js_dead_worker(struct js *json, const lh_dead_worker *dead)
{
    js_open(json, '{');
    js_key_text(json, "worker", dead->worker);
    js_key_time(json, "last_heartbeat", dead->last_heartbeat);
    js_key(json, "jobs");
    js_open(json, '[');
    for (size_t i = 0; i < dead->n_jobs; i++)
        js_int(json, dead->jobs[i]);
    js_close(json, ']');
    js_close(json, '}');
}

static void js_lists(struct js *json, const lh_report *report)
{
    js_key(json, "recovered");
    js_open(json, '[');
    for (size_t i = 0; i < report->n_recovered; i++)
        js_recovered(json, &report->recovered[i]);
    js_close(json, ']');
    js_key(json, "dead_workers");
    js_open(json, '[');
    for (size_t i = 0; i < report->n_dead_workers; i++)
        js_dead_worker(json, &report->dead_workers[i]);
    js_close(json, ']');
}

void js_report(struct js *json, const lh_report *report, bool lists)
{
    js_open(json, '{');
    js_key(json, "id");
    js_int_or_null(json, report->id, 0);
    js_key_text(json, "trigger", report->trigger);
    js_key_time(json, "started_at", report->started_at);
    js_key_time(json, "completed_at", report->completed_at);
    js_key_int(json, "duration_ms", report->duration_ms);
    js_integrity(json, report, lists);
    js_key(json, "wal_frames");
    js_int_or_null(json, report->wal_frames, -1);
    js_key_int(json, "orphaned", report->orphaned);
    js_key_int(json, "entries_reclaimed", report->entries_reclaimed);
    js_key_int(json, "locks_cleaned", report->locks_cleaned);
    js_key_time(json, "recovery_timestamp", report->recovery_timestamp);
    if (lists)
        js_lists(json, report);
    js_key_int(json, "failed_recoveries", report->failed_recoveries);
    if (lists)
        js_texts(json, "inconsistencies", report->inconsistencies, report->n_inconsistencies);
    js_key_bool(json, "dry_run", report->dry_run);
    js_close(json, '}');
}

/* ---- text or JSON ---------------------------------------------------------------------------- */

void report_print(const struct cli *cli, const lh_report *report)
{
    struct js json = {0};

    if (!cli->json) {
        print_text(report);
        return;
    }
    js_report(&json, report, true);
    js_line(&json);
    js_clear(&json);
}
