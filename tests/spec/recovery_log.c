/* The log lines of a recovery: their text, their level, and their fields. */
#include "recovery_world.h"

#include <stdio.h>

enum { MOST = 32 };

struct entry {
    int level;
    char line[256], queue[32], worker[32], reason[256]; /* "": none */
    int64_t job, token, attempt;
};

struct book {
    struct entry entry[MOST];
    int n;
};

static void copy_text(char *to, size_t len, const char *from)
{
    int n = snprintf(to, len, "%s", from ? from : "");
    EXPECT(n >= 0 && (size_t)n < len);
}

static void write_down(void *arg, const lh_log_entry *from)
{
    struct book *book = arg;
    EXPECT(book->n < MOST);
    struct entry *to = &book->entry[book->n++];
    *to = (struct entry){
        .level = from->level, .job = from->job, .token = from->token, .attempt = from->attempt};
    copy_text(to->line, sizeof to->line, from->line);
    copy_text(to->queue, sizeof to->queue, from->queue);
    copy_text(to->worker, sizeof to->worker, from->worker);
    copy_text(to->reason, sizeof to->reason, from->reason);
}

static struct world world_that_logs(struct book *book)
{
    struct world w = world_open();
    lh_close(w.store);
    w.store = world_handle((lh_open_opts){.log = write_down, .log_arg = book});
    book->n = 0;
    return w;
}

/* There is exactly one such line. */
static const struct entry *the_line(const struct book *book, const char *line)
{
    const struct entry *found = NULL;
    for (int i = 0; i < book->n; i++) {
        if (strcmp(book->entry[i].line, line) != 0)
            continue;
        if (found != NULL)
            FAIL("logged twice: %s", line);
        found = &book->entry[i];
    }
    if (found == NULL) {
        for (int i = 0; i < book->n; i++)
            (void)fprintf(stderr, "  logged: %s\n", book->entry[i].line);
        FAIL("not logged: %s", line);
    }
    return found;
}

static void expect_of_worker(const struct entry *entry, int level, const char *worker,
                             const char *reason)
{
    EXPECT_EQ(entry->level, level);
    EXPECT_STR(entry->worker, worker);
    EXPECT_STR(entry->reason, reason);
    EXPECT_EQ(entry->job, 0);
}

SPEC(the_death_lateness_and_cleaning_of_a_worker_are_logged_with_its_name)
{
    struct book book;
    struct world w = world_that_logs(&book);
    enlist_process(&w, "w-1");
    enlist(&w, "w-2", .process = true, .interval_ms = 60000);
    held(&w, "mail", "w-1", 60000);
    held(&w, "mail", "w-2", 60000);
    clock_advance_ms(&w, SILENCE_MS / 3);
    (void)upkeep(&w);
    EXPECT_EQ(book.n, 0); /* the heartbeat was in time */
    clock_advance_ms(&w, SILENCE_MS / 3);
    (void)upkeep(&w);
    (void)upkeep(&w);
    EXPECT_EQ(book.n, 1); /* logged once */
    expect_of_worker(the_line(&book, "worker w-1 is late: it missed a heartbeat"), LH_LOG_INFO,
                     "w-1", "");
    clock_advance_ms(&w, SILENCE_MS / 3);
    (void)upkeep(&w);
    const struct entry *dead =
        the_line(&book, "worker w-1 is dead: it has been silent for 3s (3 × 1s)");
    expect_of_worker(dead, LH_LOG_WARN, "w-1", "has been silent for 3s (3 × 1s)");
    const struct entry *cleaned =
        the_line(&book, "worker w-1 is cleaned up: everything it held is free");
    expect_of_worker(cleaned, LH_LOG_INFO, "w-1", "");
    EXPECT(dead < cleaned);
    for (int i = 0; i < book.n; i++) /* no line names the live worker */
        EXPECT(strcmp(book.entry[i].worker, "w-2") != 0);
    int before = book.n;
    (void)upkeep(&w);
    EXPECT_EQ(book.n, before);
    world_close(&w);
}

SPEC(a_dead_worker_that_still_holds_a_job_is_not_logged_as_cleaned_up)
{
    struct book book;
    struct world w = world_that_logs(&book);
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_RECOVERY, .recovery = false));
    enlist_process(&w, "w-1");
    held(&w, "mail", "w-1", 60000);
    clock_advance_ms(&w, SILENCE_MS);
    (void)upkeep(&w);
    (void)the_line(&book, "worker w-1 is dead: it has been silent for 3s (3 × 1s)");
    for (int i = 0; i < book.n; i++)
        EXPECT(strstr(book.entry[i].line, "cleaned") == NULL);
    (void)recover_by(&w, NULL); /* by an operator, so in spite of the policy */
    (void)the_line(&book, "worker w-1 is cleaned up: everything it held is free");
    world_close(&w);
}

SPEC(a_recovered_job_is_logged_with_worker_token_and_attempt)
{
    struct book book;
    struct world w = world_that_logs(&book);
    char line[300];
    lh_job job = held(&w, "mail", "w-1", 1000);
    clock_advance_ms(&w, 2000);
    (void)recover_by(&w, NULL);
    const char *reason = job_of(&w, job.id).last_error;
    (void)snprintf(line, sizeof line, "job %lld recovered: %s", (long long)job.id, reason);
    const struct entry *entry = the_line(&book, line);
    EXPECT_EQ(entry->level, LH_LOG_WARN);
    EXPECT_EQ(entry->job, job.id);
    EXPECT_EQ(entry->token, job.token);
    EXPECT_EQ(entry->attempt, 1);
    EXPECT_STR(entry->queue, "mail");
    EXPECT_STR(entry->worker, "w-1");
    EXPECT_STR(entry->reason, reason);
    world_close(&w);
}

SPEC(a_recovered_lease_is_logged_with_its_holder_and_its_token)
{
    struct book book;
    struct world w = world_that_logs(&book);
    lh_leases *out = NULL;
    EXPECT_OK(lh_lease_acquire(w.store, "sync", "a",
                               &(lh_lease_opts){.owner = "o-1", .ttl_ms = 1000}, &out));
    lh_lease lease = keep_lease(&w, out);
    clock_advance_ms(&w, 1000);
    (void)upkeep(&w);
    const struct entry *freed =
        the_line(&book, "lease sync/a of o-1 was freed: RECLAIMED_TTL: lease had expired");
    expect_of_worker(freed, LH_LOG_INFO, "o-1", "RECLAIMED_TTL: lease had expired");
    EXPECT_EQ(freed->token, lease.token);
    world_close(&w);
}

SPEC(a_worker_that_becomes_degraded_is_logged_as_an_error_once)
{
    static struct book book;
    struct world w = world_that_logs(&book);
    enlist(&w, "w-1", .interval_ms = 1000);
    book.n = 0;
    for (int i = 0; i < 2; i++)
        EXPECT_OK(lh_worker_degraded(w.store, "w-1", "no key"));
    const struct entry *line = the_line(&book, "worker w-1 is degraded: no key");
    EXPECT_EQ(line->level, LH_LOG_ERROR);
    EXPECT_STR(line->worker, "w-1");
    EXPECT_STR(line->reason, "no key");
    EXPECT_OK(lh_worker_degraded(w.store, "w-1", NULL));
    EXPECT_EQ(the_line(&book, "worker w-1 is no longer degraded")->level, LH_LOG_INFO);
    world_close(&w);
}
