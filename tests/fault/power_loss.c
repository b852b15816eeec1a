/*
 * The power fails. One run on a disk that records every write gives any number of failures: for each of them
 * the files are made as they could have been at some moment, and are opened on a rebooted machine.
 *
 * All acknowledged changes are there, except claims and heartbeats, whose holders were on the same machine; no
 * change is half done; and no token is handed out twice.
 */
#include "fault/disk.h"
#include "session/session.h"

#include "base/hook.h"
#include "harness/harness.h"

#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { CUTS = 250 };

/* Another run, other cuts; the seed is printed, and TEST_SEED repeats it. */
static uint64_t seed(void)
{
    const char *given = getenv("TEST_SEED");
    uint64_t value = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL) * 1000003U;

    (void)fprintf(stderr, "TEST_SEED=%llu\n", (unsigned long long)value);
    return value;
}

static void boot_again(void)
{
    static int boots = 100;
    (void)snprintf(lhi_control()->boot, sizeof lhi_control()->boot, "boot-%d", boots++);
}

/* ---------------------------------------------------------------- the session */

/* After the leases of the old boot have ended, every job that comes again comes with a token that
 * was never handed out before. */
static void expect_new_tokens(lh_store *store, const struct notes *before, size_t cut)
{
    static const char *const queues[] = {"mail",  "bare",  "plain", "solo", "slow",
                                         "frail", "fresh", "bulk",  "large"};
    struct lhi_control *control = lhi_control();
    int rc = LH_OK;

    control->wall_ms += 4000000;
    control->mono_ms += 4000000;
    for (int round = 0; round < 4 && rc == LH_OK; round++) {
        lh_jobs *jobs = NULL;
        rc = lh_claim(
            store, &(lh_claim_opts){.queues = queues, .n_queues = 9, .worker = "w-new", .n = 1000},
            &jobs);
        for (size_t i = 0; rc == LH_OK && i < jobs->n; i++)
            for (size_t k = 0; k < before->n_issued; k++)
                if (before->issued[k].job == jobs->job[i].id &&
                    before->issued[k].token >= jobs->job[i].token)
                    FAIL("cut %zu: job %lld was held under token %lld before the power failed, and "
                         "is handed out under %lld again",
                         cut, (long long)jobs->job[i].id, (long long)before->issued[k].token,
                         (long long)jobs->job[i].token);
        lh_jobs_free(jobs);
    }
    EXPECT(rc == LH_OK || rc == LH_EMPTY);
}

static void survive(const struct reference *ref, const lh_open_opts *opts, size_t cut,
                    uint64_t *dice)
{
    /* Acts up to `done` were acknowledged, and those up to `kept` must be there. */
    size_t done = (size_t)(disk_marks(cut, NULL) + 1), kept = done, found;
    struct session s;

    while (kept > 0 && (session_acts[kept - 1].flags & ACT_UNSYNCED) != 0 && !opts->remote)
        kept--;
    /* A store that nobody wrote to yet may be lost as a whole. */
    if (kept == 1)
        kept = 0;
    session_remove("cut.db");
    disk_cut("s.db", "cut.db", cut, dice);
    char *now = session_picture("cut.db", PICTURE_EXACT);
    for (found = kept; found <= done + 1 && found <= session_acts_n; found++)
        if (strcmp(now, ref->exact[found]) == 0)
            break;
    if (found > done + 1 || found > session_acts_n) {
        session_compare("compared with what must be there:", now, ref->exact[kept]);
        FAIL("cut %zu, in %s: what was acknowledged is not there, or something is torn", cut,
             done < session_acts_n ? session_acts[done].name : "the end");
    }
    session_start(&s, "cut.db", opts);
    session_clock(done);
    boot_again();
    int rc = session_open(&s, 1);
    if (rc != LH_OK)
        FAIL("cut %zu: %s: %s", cut, lh_status_name(rc), s.why);
    session_check(s.store, "after the power failed");
    expect_new_tokens(s.store, &ref->notes[done], cut);
    session_check(s.store, "after the work went on");
    session_end(&s);
    session_remove("cut.db");
    free(now);
}

static void cut_session(const lh_open_opts *opts, int cuts)
{
    struct reference ref;
    struct session s;
    uint64_t dice = seed();

    disk_install();
    session_reference(&ref, opts);
    session_start(&s, "s.db", opts);
    disk_record();
    for (size_t i = 0; i < session_acts_n; i++) {
        EXPECT_EQ(session_act(&s, i), session_acts[i].outcome);
        disk_mark((int)i, "s.db-lease");
    }
    session_end(&s);
    disk_stop();
    for (int i = 0; i < cuts; i++)
        survive(&ref, opts, 1 + disk_roll(&dice, disk_recorded()), &dice);
    disk_forget();
    session_reference_free(&ref);
}

TEST_TIMEOUT(acknowledged_changes_survive_a_power_loss, 120)
{
    cut_session(&(lh_open_opts){0}, CUTS);
}

TEST_TIMEOUT(claims_and_heartbeats_of_remote_workers_survive_a_power_loss, 120)
{
    cut_session(&(lh_open_opts){.remote = true}, CUTS / 3);
}

/* ---------------------------------------------------------------- many at once */

enum { THREADS = 6, ROUNDS = 12 };

static struct {
    lh_store *store[2];
} crowd;

/* Mark 2k: job k + 1 of this thread was enqueued. Mark 2k + 1: it was completed. */
static void *member(void *arg)
{
    int me = (int)(intptr_t)arg;
    lh_store *store = crowd.store[me % 2];
    char queue[16], payload[32];
    const char *queues[1] = {queue};

    (void)snprintf(queue, sizeof queue, "q%d", me);
    for (int i = 0; i < ROUNDS; i++) {
        lh_enqueued out;
        lh_jobs *jobs = NULL;
        int tag = me * ROUNDS + i;
        int len = snprintf(payload, sizeof payload, "%d", tag);
        EXPECT_OK(lh_enqueue(store, queue,
                             &(lh_new_job){.payload = payload, .payload_len = (size_t)len}, 1, NULL,
                             &out));
        disk_mark(2 * tag, "s.db-lease");
        EXPECT_OK(lh_claim(
            store, &(lh_claim_opts){.queues = queues, .n_queues = 1, .worker = queue}, &jobs));
        EXPECT_OK(lh_complete(
            store, &(lh_done){.job = jobs->job[0].id, .token = jobs->job[0].token}, 1, NULL, NULL));
        disk_mark(2 * tag + 1, "s.db-lease");
        lh_jobs_free(jobs);
    }
    return NULL;
}

static void survive_crowd(size_t cut, uint64_t *dice)
{
    static int marks[2 * THREADS * ROUNDS + 1];
    char state[THREADS * ROUNDS] = {0};
    lh_store *store = NULL;
    lh_jobs *jobs = NULL;

    (void)disk_marks(cut, marks);
    session_remove("cut.db");
    disk_cut("s.db", "cut.db", cut, dice);
    boot_again();
    int rc = lh_open("cut.db", &(lh_open_opts){.create = true}, &store);
    if (rc != LH_OK)
        FAIL("cut %zu: %s: %s", cut, lh_status_name(rc), lh_errmsg(store));
    session_check(store, "after the power failed");
    EXPECT_OK(lh_job_list(store, &(lh_job_filter){.limit = 10000}, &jobs));
    for (size_t i = 0; i < jobs->n; i++) {
        int tag = (int)strtol(jobs->job[i].payload, NULL, 10);
        EXPECT_EQ(state[tag], 0);
        state[tag] = jobs->job[i].state == LH_COMPLETED ? 2 : 1;
    }
    for (int *mark = marks; *mark >= 0; mark++)
        if (state[*mark / 2] < 1 + *mark % 2)
            FAIL("cut %zu: job \"%d\" was acknowledged as %s, and is %s", cut, *mark / 2,
                 *mark % 2 ? "completed" : "enqueued", state[*mark / 2] ? "not" : "gone");
    lh_jobs_free(jobs);
    lh_close(store);
    session_remove("cut.db");
}

TEST_TIMEOUT(calls_that_share_a_sync_survive_a_power_loss, 120)
{
    pthread_t thread[THREADS];
    uint64_t dice = seed();

    disk_install();
    disk_record();
    for (int i = 0; i < 2; i++)
        EXPECT_OK(lh_open("s.db", &(lh_open_opts){.create = true}, &crowd.store[i]));
    for (intptr_t i = 0; i < THREADS; i++)
        EXPECT_EQ(pthread_create(&thread[i], NULL, member, (void *)i), 0);
    for (int i = 0; i < THREADS; i++)
        EXPECT_EQ(pthread_join(thread[i], NULL), 0);
    for (int i = 0; i < 2; i++)
        lh_close(crowd.store[i]);
    disk_stop();
    for (int i = 0; i < CUTS; i++)
        survive_crowd(1 + disk_roll(&dice, disk_recorded()), &dice);
    disk_forget();
}

/* What is acknowledged after the failure, for all to see. */
static int enqueue_next(lh_store *store)
{
    lh_enqueued out;
    return lh_enqueue(store, "next", &(lh_new_job){.kind = "n"}, 1, NULL, &out);
}

/* ---------------------------------------------------------------- a store is made */

static void survive_making(size_t cut, uint64_t *dice)
{
    lh_store *store = NULL;
    int last = disk_marks(cut, NULL);

    session_remove("cut.db");
    disk_cut("s.db", "cut.db", cut, dice);
    boot_again();
    int rc = lh_open("cut.db", &(lh_open_opts){.create = true}, &store);
    if (rc != LH_OK)
        FAIL("cut %zu: %s: %s", cut, lh_status_name(rc), lh_errmsg(store));
    session_check(store, "after the power failed");
    for (int id = 1; id <= last + 1; id++) {
        lh_jobs *job = NULL;
        EXPECT_OK(lh_job_get(store, id, &job));
        lh_jobs_free(job);
    }
    lh_close(store);
    session_remove("cut.db");
}

TEST_TIMEOUT(a_store_survives_power_loss_while_it_is_made, 120)
{
    enum { MADE = 3 };
    uint64_t dice = seed();
    lh_store *store[2];

    disk_install();
    disk_record();
    for (int i = 0; i < 2; i++)
        EXPECT_OK(lh_open("s.db", &(lh_open_opts){.create = true}, &store[i]));
    for (int i = 0; i < MADE; i++) {
        EXPECT_OK(enqueue_next(store[i % 2]));
        disk_mark(i, "s.db-lease");
    }
    disk_stop();
    for (int i = 0; i < CUTS / 2; i++)
        survive_making(1 + disk_roll(&dice, disk_recorded()), &dice);
    for (int i = 0; i < 2; i++)
        lh_close(store[i]);
    disk_forget();
}

/* ---------------------------------------------------------------- a sync that failed before */

/* The session up to `act`, whose sync number `n` fails; the kernel then holds what it could not
 * write for written. False if there is no such sync. */
static bool fail_sync(struct session *s, size_t act, int64_t n, int *rc)
{
    session_start(s, "s.db", NULL);
    disk_record();
    for (size_t i = 0; i < act; i++)
        EXPECT_EQ(session_act(s, i), session_acts[i].outcome);
    disk_arm_sync(n);
    *rc = session_act(s, act);
    bool fired = disk()->fired;
    disk_arm();
    return fired;
}

static void cut_after_failed_sync(size_t act, int64_t n, uint64_t *dice)
{
    lh_store *store = NULL;

    session_remove("cut.db");
    disk_cut("s.db", "cut.db", disk_recorded(), dice);
    char *now = session_picture("cut.db", PICTURE_EXACT);
    if (strstr(now, "'next'") == NULL)
        FAIL("%s, failing sync %lld: what was acknowledged after it is lost",
             session_acts[act].name, (long long)n);
    free(now);
    boot_again();
    EXPECT_OK(lh_open("cut.db", &(lh_open_opts){.create = true}, &store));
    session_check(store, "after a failed sync and a power failure");
    lh_close(store);
}

/* The handle whose sync failed is closed, another is opened, and more is acknowledged. */
static bool fail_sync_then_power(size_t act, int64_t n, uint64_t *dice)
{
    struct session s;
    int rc;
    bool fired = fail_sync(&s, act, n, &rc);

    if (fired) {
        if (rc != session_acts[act].outcome)
            session_end(&s);
        if (s.store == NULL)
            EXPECT_OK(session_open(&s, 1));
        /* Acknowledged or refused; but what is acknowledged lasts. */
        rc = enqueue_next(s.store);
        if (rc == LH_ESTOPPED || rc == LH_EUNKNOWN) {
            session_end(&s);
            EXPECT_OK(session_open(&s, 1));
            rc = enqueue_next(s.store);
        }
        if (rc != LH_OK)
            FAIL("%s, failing sync %lld: the store did not heal: %s: %s", session_acts[act].name,
                 (long long)n, lh_status_name(rc), lh_errmsg(s.store));
        disk_stop();
        for (int k = 0; k < 4; k++)
            cut_after_failed_sync(act, n, dice);
    }
    session_end(&s);
    disk_forget();
    session_remove("s.db");
    return fired;
}

TEST_TIMEOUT(changes_acknowledged_after_a_failed_sync_survive_a_power_loss, 120)
{
    uint64_t dice = seed();
    int64_t faults = 0;

    disk_install();
    for (size_t i = 1; i < session_acts_n; i++) {
        if ((session_acts[i].flags & (ACT_FILLER | ACT_USER | ACT_CLOSES)) != 0)
            continue;
        for (int64_t n = 1; fail_sync_then_power(i, n, &dice); n++)
            faults++;
    }
    (void)fprintf(stderr, "%lld faults\n", (long long)faults);
    EXPECT(faults > 40);
}

static size_t act_named(const char *name)
{
    size_t i = 0;

    while (strcmp(session_acts[i].name, name) != 0)
        EXPECT(++i < session_acts_n);
    return i;
}

/* The picture without the lines that say `word`. */
static void leave_out(char *picture, const char *word)
{
    char *out = picture;

    for (char *line = picture; *line != '\0';) {
        size_t len = strcspn(line, "\n") + 1;
        const char *found = strstr(line, word);
        if (found == NULL || found >= line + len) {
            memmove(out, line, len);
            out += len;
        }
        line += len;
    }
    *out = '\0';
}

static void expect_whole(const struct reference *ref, size_t act, bool next)
{
    char *now = session_picture("s.db", PICTURE_LOOSE);
    char *before = strdup(ref->loose[act]), *after = strdup(ref->loose[act + 1]);

    EXPECT(before != NULL && after != NULL);
    if (next && strstr(now, "'next'") == NULL)
        FAIL("what was acknowledged after the failed sync is gone");
    char *pictures[3] = {now, before, after};
    for (int i = 0; i < 3; i++) {
        leave_out(pictures[i], "'next'");
        leave_out(pictures[i], "sqlite_sequence|'lh_job'");
    }
    if (strcmp(now, before) != 0 && strcmp(now, after) != 0) {
        session_compare("compared with before:", now, before);
        session_compare("compared with after:", now, after);
        FAIL("the store is torn");
    }
    for (int i = 0; i < 3; i++)
        free(pictures[i]);
}

/* Memory is short, and the kernel drops the clean pages that are not on the disk. The log was
 * started over just before, so where the lost frames should be, older ones come to light, of other
 * pages. A process that has the store open all along must not take them for the commit. */
static void drop_lost_pages(const struct reference *ref, size_t act, int64_t n)
{
    struct session s;
    lh_store *other = NULL, *store = NULL;

    session_start(&s, "s.db", NULL);
    disk_record();
    for (size_t i = 0; i < act; i++)
        EXPECT_EQ(session_act(&s, i), session_acts[i].outcome);
    EXPECT_OK(lh_open("s.db", NULL, &other));
    disk_arm_sync(n);
    EXPECT_STATUS(session_act(&s, act), LH_EUNKNOWN);
    EXPECT(disk()->fired);
    disk_arm();
    disk_evict("s.db-wal");

    int rc = enqueue_next(other);
    (void)fprintf(stderr, "the other handle: %s: %s\n", lh_status_name(rc), lh_errmsg(other));
    lh_close(other);
    session_end(&s);
    int opened = lh_open("s.db", NULL, &store);
    if (opened != LH_OK)
        FAIL("could not open it again: %s: %s", lh_status_name(opened), lh_errmsg(store));
    EXPECT_OK(enqueue_next(store));
    session_check(store, "after pages were lost");
    lh_close(store);
    expect_whole(ref, act, rc == LH_OK);
    disk_forget();
    session_remove("s.db");
}

TEST(frames_that_a_failed_sync_lost_never_reach_the_database)
{
    const size_t act = act_named("enqueue_late");
    struct reference ref;

    disk_install();
    session_reference(&ref, NULL);
    drop_lost_pages(&ref, act, 1); /* the head of the new log */
    drop_lost_pages(&ref, act, 2); /* the commit */
    session_reference_free(&ref);
}
