/* Waiting calls, and many threads on one handle. */
#include "world.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>

/* ---- a claim that waits ---- */

struct claimer {
    pthread_t thread;
    lh_store *store;
    const char *const *queues;
    size_t n_queues;
    int64_t wait_ms;
    int cancel;
    lh_jobs *jobs;
    int rc;
};

static void *wait_and_claim(void *arg)
{
    struct claimer *c = arg;
    c->rc = lh_claim(c->store,
                     &(lh_claim_opts){.queues = c->queues,
                                      .n_queues = c->n_queues,
                                      .worker = "waiter",
                                      .wait_ms = c->wait_ms,
                                      .cancel = &c->cancel},
                     &c->jobs);
    return NULL;
}

static const char *const mail[] = {"mail"};

static void start_claim(struct claimer *c)
{
    if (c->queues == NULL) {
        c->queues = mail;
        c->n_queues = 1;
    }
    EXPECT_EQ(pthread_create(&c->thread, NULL, wait_and_claim, c), 0);
}

static void start(struct claimer *c)
{
    start_claim(c);
    EXPECT(test_thread_sleeps(c->thread));
}

static void finish(struct world *w, struct claimer *c)
{
    pthread_join(c->thread, NULL);
    if (c->jobs != NULL)
        keep_jobs(w, c->jobs);
}

SPEC(a_waiting_claim_is_woken_by_an_enqueue_of_another_thread)
{
    struct world w = world_open();
    struct claimer c = {.store = w.store, .wait_ms = -1};
    start(&c);
    int64_t id = enqueue(&w, "mail", "x");
    finish(&w, &c);
    EXPECT_OK(c.rc);
    EXPECT_EQ(c.jobs->n, 1);
    EXPECT_EQ(c.jobs->job[0].id, id);
    world_close(&w);
}

SPEC(a_waiting_claim_is_woken_by_an_enqueue_on_another_handle)
{
    struct world w = world_open();
    struct claimer c = {.store = world_second_handle(), .wait_ms = 60000};
    start(&c);
    int64_t id = enqueue(&w, "mail", "x");
    finish(&w, &c);
    EXPECT_OK(c.rc);
    EXPECT_EQ(c.jobs->job[0].id, id);
    lh_close(c.store);
    world_close(&w);
}

SPEC(a_waiting_claim_is_woken_by_each_of_its_queues)
{
    struct world w = world_open();
    static const char *const queues[] = {"a", "b", "c"};
    struct claimer c = {.store = w.store, .wait_ms = -1, .queues = queues, .n_queues = 3};
    start(&c);
    enqueue(&w, "z", "not for us");
    int64_t id = enqueue(&w, "c", "x");
    finish(&w, &c);
    EXPECT_OK(c.rc);
    EXPECT_EQ(c.jobs->job[0].id, id);
    world_close(&w);
}

SPEC(a_claim_that_finds_a_job_does_not_wait)
{
    struct world w = world_with_job("mail", "x");
    struct claimer c = {.store = w.store, .wait_ms = -1};
    start_claim(&c);
    finish(&w, &c);
    EXPECT_OK(c.rc);
    world_close(&w);
}

SPEC(a_waiting_claim_ends_empty_when_its_time_is_over)
{
    struct world w = world_open();
    struct claimer c = {.store = w.store, .wait_ms = 5000};
    start(&c);
    clock_advance_ms(&w, 5000);
    finish(&w, &c);
    EXPECT_STATUS(c.rc, LH_EMPTY);
    EXPECT(c.jobs == NULL);
    world_close(&w);
}

SPEC(a_waiting_claim_ends_when_its_cancel_flag_is_set)
{
    struct world w = world_open();
    struct claimer c = {.store = w.store, .wait_ms = -1};
    start(&c);
    __atomic_store_n(&c.cancel, 1, __ATOMIC_SEQ_CST);
    finish(&w, &c);
    EXPECT_STATUS(c.rc, LH_EINTR);
    EXPECT(c.jobs == NULL);
    world_close(&w);
}

SPEC(a_waiting_claim_gets_a_job_that_becomes_due)
{
    struct world w = world_open();
    struct claimer c = {.store = w.store, .wait_ms = -1};
    int64_t id = enqueue(&w, "mail", "x", .delay_ms = 5000);
    start(&c);
    clock_advance_ms(&w, 5000);
    finish(&w, &c);
    EXPECT_OK(c.rc);
    EXPECT_EQ(c.jobs->job[0].id, id);
    world_close(&w);
}

SPEC(a_waiting_claim_gets_a_stuck_job_when_its_lease_expires)
{
    struct world w = world_with_job("mail", "x");
    struct claimer c = {.store = w.store, .wait_ms = -1};
    lh_job dead;
    EXPECT_OK(claim_one(&w, "mail", &dead, .lease_ms = 5000));
    start(&c);
    clock_advance_ms(&w, 5000);
    finish(&w, &c);
    EXPECT_OK(c.rc);
    EXPECT_EQ(c.jobs->job[0].id, dead.id);
    EXPECT_EQ(c.jobs->job[0].recoveries, 1);
    world_close(&w);
}

/* Each of these ends a waiting claim, by a wake-up or by the poll of a second. */
SPEC(a_waiting_claim_is_woken_by_everything_that_makes_a_job_pending)
{
    struct world w = world_open();
    for (int how = 0; how < 7; how++) {
        struct claimer c = {.store = w.store, .wait_ms = -1};
        lh_job job, other;
        int64_t id = enqueue(&w, "mail", "x", .priority = 10);
        if (how == 5)
            EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_CONCURRENCY, .concurrency = 1));
        if (how == 6)
            EXPECT_OK(lh_queue_pause(w.store, "mail"));
        else
            EXPECT_OK(claim_one(&w, "mail", &job));
        if (how == 2)
            EXPECT_OK(lh_fail(
                w.store,
                &(lh_failure){.job = id, .token = job.token, .error = "no", .permanent = true}, 1,
                NULL, NULL));
        if (how == 3)
            EXPECT_OK(lh_release(w.store, &(lh_ref){id, job.token}, 1, 1000000, NULL, NULL));
        if (how == 5)
            enqueue(&w, "mail", "second");
        start(&c);
        switch (how) {
        case 0:
            EXPECT_OK(release(&w, &job));
            break;
        case 1:
            EXPECT_OK(lh_fail(
                w.store,
                &(lh_failure){.job = id, .token = job.token, .error = "no", .retry_in_ms = LH_NOW},
                1, NULL, NULL));
            break;
        case 2:
            EXPECT_OK(retry(&w, id));
            break;
        case 3:
            EXPECT_OK(lh_reschedule(w.store, id, 0, 0, NULL));
            break;
        case 4:
            EXPECT_OK(lh_release_worker(w.store, "w1", NULL, 0, 0, true, NULL, NULL));
            break;
        case 5:
            EXPECT_OK(complete(&w, &job)); /* its slot is free */
            break;
        default:
            EXPECT_OK(lh_queue_resume(w.store, "mail"));
            break;
        }
        finish(&w, &c);
        EXPECT_OK(c.rc);
        other = c.jobs->job[0];
        EXPECT_EQ(other.id == id, how != 5);
        EXPECT_OK(complete(&w, &other));
        EXPECT_OK(lh_policy_set(w.store, "mail", NULL, NULL, LH_POLICY_ALL));
    }
    world_close(&w);
}

SPEC(one_job_goes_to_one_of_many_waiting_claims)
{
    enum { WAITERS = 6 };
    struct world w = world_open();
    struct claimer c[WAITERS];
    int got = 0;
    for (int i = 0; i < WAITERS; i++) {
        c[i] = (struct claimer){.store = w.store, .wait_ms = -1};
        start(&c[i]);
    }
    for (int i = 0; i < WAITERS; i++)
        enqueue(&w, "mail", "x");
    for (int i = 0; i < WAITERS; i++) {
        finish(&w, &c[i]);
        EXPECT_OK(c[i].rc);
        got += (int)c[i].jobs->n;
    }
    EXPECT_EQ(got, WAITERS);
    EXPECT_EQ(queue_of(&w, "mail").running, WAITERS);
    world_close(&w);
}

SPEC(complete_and_claim_waits_too)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    lh_jobs *next = NULL;
    int raised = 1;
    EXPECT_OK(claim_one(&w, "mail", &job));
    lh_claim_opts opts = {
        .queues = mail, .n_queues = 1, .worker = "w1", .wait_ms = -1, .cancel = &raised};
    EXPECT_STATUS(lh_complete_claim(w.store, &(lh_done){.job = job.id, .token = job.token}, 1, NULL,
                                    &opts, &next),
                  LH_EINTR);
    EXPECT_EQ(job_of(&w, job.id).state, LH_COMPLETED);
    world_close(&w);
}

/* ---- waiting for a job, and for events ---- */

struct watcher {
    pthread_t thread;
    lh_store *store;
    int64_t id, wait_ms;
    int cancel;
    lh_jobs *jobs;
    lh_events *events;
    int rc;
};

static void *wait_for_job(void *arg)
{
    struct watcher *x = arg;
    x->rc = lh_job_wait(x->store, x->id, x->wait_ms, &x->cancel, &x->jobs);
    return NULL;
}

static void *wait_for_event(void *arg)
{
    struct watcher *x = arg;
    x->rc = lh_event_list(x->store, &(lh_event_filter){.wait_ms = x->wait_ms, .cancel = &x->cancel},
                          &x->events);
    return NULL;
}

SPEC(waiting_for_a_job_ends_when_the_job_finishes)
{
    struct world w = world_open();
    lh_job job;
    for (int end = 0; end < 3; end++) {
        struct watcher x = {.store = w.store, .wait_ms = -1};
        x.id = enqueue(&w, "mail", "x");
        EXPECT_OK(claim_one(&w, "mail", &job));
        EXPECT_EQ(pthread_create(&x.thread, NULL, wait_for_job, &x), 0);
        EXPECT(test_thread_sleeps(x.thread));
        EXPECT_OK(beat(&w, &job)); /* a heartbeat is no end */
        if (end == 0)
            EXPECT_OK(complete(&w, &job));
        else if (end == 1)
            EXPECT_OK(lh_fail(
                w.store,
                &(lh_failure){.job = job.id, .token = job.token, .error = "no", .permanent = true},
                1, NULL, NULL));
        else
            EXPECT_OK(cancel(&w, job.id));
        pthread_join(x.thread, NULL);
        EXPECT_OK(x.rc);
        keep_jobs(&w, x.jobs);
        EXPECT_EQ(x.jobs->n, 1);
        EXPECT_EQ(x.jobs->job[0].id, job.id);
        EXPECT_EQ(x.jobs->job[0].state, (lh_state)(LH_COMPLETED + end));
    }
    world_close(&w);
}

SPEC(waiting_for_a_finished_or_unknown_job_returns_at_once)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    lh_jobs *jobs = NULL;
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_STATUS(lh_job_wait(w.store, job.id, 0, NULL, &jobs), LH_EMPTY);
    EXPECT_OK(complete(&w, &job));
    EXPECT_OK(lh_job_wait(w.store, job.id, -1, NULL, &jobs));
    keep_jobs(&w, jobs);
    EXPECT_STATUS(lh_job_wait(w.store, 4711, -1, NULL, &jobs), LH_ENOTFOUND);
    world_close(&w);
}

SPEC(waiting_for_a_job_ends_by_time_and_by_the_cancel_flag)
{
    struct world w = world_open();
    struct watcher timed = {.store = w.store, .wait_ms = 5000};
    struct watcher cancelled = {.store = w.store, .wait_ms = -1};
    timed.id = cancelled.id = enqueue(&w, "mail", "x");
    EXPECT_EQ(pthread_create(&timed.thread, NULL, wait_for_job, &timed), 0);
    EXPECT_EQ(pthread_create(&cancelled.thread, NULL, wait_for_job, &cancelled), 0);
    EXPECT(test_thread_sleeps(timed.thread) && test_thread_sleeps(cancelled.thread));
    clock_advance_ms(&w, 5000);
    __atomic_store_n(&cancelled.cancel, 1, __ATOMIC_SEQ_CST);
    pthread_join(timed.thread, NULL);
    pthread_join(cancelled.thread, NULL);
    EXPECT_STATUS(timed.rc, LH_EMPTY);
    EXPECT_STATUS(cancelled.rc, LH_EINTR);
    world_close(&w);
}

SPEC(waiting_for_events_ends_with_the_first_event)
{
    struct world w = world_open();
    struct watcher x = {.store = w.store, .wait_ms = -1};
    EXPECT_EQ(pthread_create(&x.thread, NULL, wait_for_event, &x), 0);
    EXPECT(test_thread_sleeps(x.thread));
    EXPECT_OK(lh_queue_pause(w.store, "mail"));
    pthread_join(x.thread, NULL);
    EXPECT_OK(x.rc);
    EXPECT_EQ(x.events->n, 1);
    EXPECT_STR(x.events->event[0].type, "queue.paused");
    lh_events_free(x.events);
    world_close(&w);
}

SPEC(waiting_for_events_ends_empty_by_time_and_interrupted_by_the_cancel_flag)
{
    struct world w = world_open();
    struct watcher timed = {.store = w.store, .wait_ms = 5000};
    struct watcher cancelled = {.store = w.store, .wait_ms = -1, .cancel = 1};
    EXPECT_EQ(pthread_create(&timed.thread, NULL, wait_for_event, &timed), 0);
    EXPECT_EQ(pthread_create(&cancelled.thread, NULL, wait_for_event, &cancelled), 0);
    EXPECT(test_thread_sleeps(timed.thread));
    clock_advance_ms(&w, 5000);
    pthread_join(timed.thread, NULL);
    pthread_join(cancelled.thread, NULL);
    EXPECT_OK(timed.rc);
    EXPECT_EQ(timed.events->n, 0);
    lh_events_free(timed.events);
    EXPECT_STATUS(cancelled.rc, LH_EINTR);
    world_close(&w);
}

/* ---- many threads on one handle ---- */

enum { THREADS = 8, EACH = 60 };

struct worker {
    pthread_t thread;
    lh_store *store;
    int number;
    int64_t enqueued[EACH];
    lh_ref claimed[THREADS * EACH];
    size_t n_claimed;
    const char *wrong;
};

static const int64_t ref_of_nobody = 1000000;

static void *work(void *arg)
{
    struct worker *me = arg;
    const char *queues[] = {"mail"};
    char name[16];
    (void)snprintf(name, sizeof name, "w%d", me->number);
    lh_claim_opts opts = {.queues = queues, .n_queues = 1, .worker = name, .n = 3};
    for (int i = 0; i < EACH; i++) {
        lh_enqueued out;
        if (lh_enqueue(me->store, "mail", &(lh_new_job){.payload = name, .payload_len = 2}, 1, NULL,
                       &out) != LH_OK)
            me->wrong = "enqueue";
        me->enqueued[i] = out.id;
        lh_jobs *jobs = NULL;
        int rc = lh_claim(me->store, &opts, &jobs);
        if (rc == LH_EMPTY)
            continue;
        if (rc != LH_OK)
            me->wrong = "claim";
        for (size_t k = 0; rc == LH_OK && k < jobs->n; k++) {
            lh_ref ref = {jobs->job[k].id, jobs->job[k].token};
            me->claimed[me->n_claimed++] = ref;
            if (jobs->job[k].worker == NULL || strcmp(jobs->job[k].worker, name) != 0)
                me->wrong = "a job of another worker";
            if (lh_heartbeat(me->store, &(lh_beat){.job = ref.job, .token = ref.token}, 1, NULL,
                             NULL) != LH_OK)
                me->wrong = "heartbeat";
            if (lh_complete(me->store, &(lh_done){.job = ref.job, .token = ref.token}, 1, NULL,
                            NULL) != LH_OK)
                me->wrong = "complete";
        }
        lh_jobs_free(jobs);
        /* Only the thread whose call failed gets the error. */
        if (lh_cancel(me->store, &ref_of_nobody, 1, NULL, NULL) != LH_ENOTFOUND ||
            lh_errmsg(me->store)[0] == '\0')
            me->wrong = "the message of its own failure";
        if (lh_queue_resume(me->store, "mail") != LH_OK || lh_errmsg(me->store)[0] != '\0')
            me->wrong = "no message after success";
    }
    return NULL;
}

SPEC(many_threads_on_one_handle_get_each_job_once)
{
    struct world w = world_open();
    static struct worker workers[THREADS];
    static bool seen[THREADS * EACH + 1];
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.store = w.store, .number = i};
        EXPECT_EQ(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    size_t total = 0;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        if (workers[i].wrong != NULL)
            FAIL("thread %d: %s went wrong", i, workers[i].wrong);
        for (size_t k = 0; k < workers[i].n_claimed; k++, total++) {
            int64_t id = workers[i].claimed[k].job;
            EXPECT(id >= 1 && id <= THREADS * EACH);
            EXPECT(!seen[id]);
            seen[id] = true;
        }
    }
    lh_queue q = queue_of(&w, "mail");
    EXPECT_EQ(q.completed, (int64_t)total);
    EXPECT_EQ(q.completed + q.pending, THREADS * EACH);
    EXPECT_EQ(q.hour_enqueued, THREADS * EACH);
    world_close(&w);
}

struct loner {
    pthread_t thread;
    lh_store *store;
    int number;
    int rc;
};

static void *enqueue_alone(void *arg)
{
    struct loner *me = arg;
    for (int i = 0; i < 5 && me->rc == LH_OK; i++) {
        char queue[16];
        lh_enqueued out;
        (void)snprintf(queue, sizeof queue, "q%d-%d", me->number, i);
        me->rc = lh_enqueue(me->store, queue, &(lh_new_job){0}, 1, NULL, &out);
    }
    return NULL;
}

SPEC(many_threads_in_many_queues_share_their_transactions)
{
    enum { LONERS = 100 };
    struct world w = world_open();
    static struct loner loners[LONERS];
    for (int i = 0; i < LONERS; i++) {
        loners[i] = (struct loner){.store = w.store, .number = i};
        EXPECT_EQ(pthread_create(&loners[i].thread, NULL, enqueue_alone, &loners[i]), 0);
    }
    for (int i = 0; i < LONERS; i++)
        pthread_join(loners[i].thread, NULL);
    for (int i = 0; i < LONERS; i++)
        EXPECT_OK(loners[i].rc);
    EXPECT_EQ(jobs_where(&w, (lh_job_filter){.limit = 10000})->n, 5 * LONERS);
    world_close(&w);
}

/* Refused acts share transactions with good ones, and neither harms the other: not even what was
 * counted before the refusal remains. */
static void *act_badly(void *arg)
{
    struct loner *me = arg;
    bool bad = me->number % 2 != 0;
    const lh_new_job jobs[2] = {{.payload = "ok", .payload_len = 2},
                                {.payload = "too large", .payload_len = bad ? 9 : 3}};
    for (int i = 0; i < 50; i++) {
        lh_enqueued out[2];
        int rc = lh_enqueue(me->store, "small", jobs, 2, NULL, out);
        if (rc != (bad ? LH_ETOOBIG : LH_OK))
            me->rc = rc ? rc : LH_EFAIL;
    }
    return NULL;
}

SPEC(a_refused_call_does_not_affect_others_in_its_transaction)
{
    struct world w = world_open();
    static struct loner loners[8];
    EXPECT_OK(policy(&w, "small", NULL, .set = LH_POLICY_MAX_PAYLOAD, .max_payload = 4));
    for (int i = 0; i < 8; i++) {
        loners[i] = (struct loner){.store = w.store, .number = i};
        EXPECT_EQ(pthread_create(&loners[i].thread, NULL, act_badly, &loners[i]), 0);
    }
    for (int i = 0; i < 8; i++)
        pthread_join(loners[i].thread, NULL);
    for (int i = 0; i < 8; i++)
        EXPECT_OK(loners[i].rc);
    EXPECT_EQ(queue_of(&w, "small").pending, 400);
    EXPECT_EQ(queue_of(&w, "small").hour_enqueued, 400);
    world_close(&w);
}

/* ---- a claim that drains ---- */

/* One claim that waits for what is still to come, with its cancel flag raised where `would_wait`: what
 * would wait is interrupted (LH_EINTR), and what would not ends as ever. */
static int drain_with(struct world *w, const char *kind, bool would_wait, lh_job *out)
{
    int cancel = would_wait;
    lh_jobs *jobs = NULL;
    int rc = lh_claim(w->store,
                      &(lh_claim_opts){.queues = mail,
                                       .n_queues = 1,
                                       .kinds = kind ? &kind : NULL,
                                       .n_kinds = kind != NULL,
                                       .worker = "drainer",
                                       .wait_ms = -1,
                                       .cancel = &cancel,
                                       .drain = true},
                      &jobs);
    if (rc == LH_OK)
        *out = keep_jobs(w, jobs)->job[0];
    return rc;
}

static void expect_it_waits(struct world *w)
{
    lh_job job;
    EXPECT_STATUS(drain_with(w, NULL, true, &job), LH_EINTR);
}

static void expect_it_ends(struct world *w)
{
    lh_job job;
    EXPECT_STATUS(drain_with(w, NULL, false, &job), LH_EMPTY);
}

static void expect_it_claims(struct world *w, int64_t id)
{
    lh_job job;
    EXPECT_OK(drain_with(w, NULL, false, &job));
    EXPECT_EQ(job.id, id);
    EXPECT_OK(complete(w, &job));
}

SPEC(a_draining_claim_ends_when_no_job_is_expected)
{
    struct world w = world_open();
    enqueue(&w, "mail", "for tomorrow", .delay_ms = 86400000);
    enqueue(&w, "news", "of another queue");
    expect_it_ends(&w);
    world_close(&w);
}

SPEC(a_draining_claim_waits_for_a_retry)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_BACKOFF, .backoff_ms = 60000));
    EXPECT_OK(claim_one(&w, "mail", &job));
    expect_it_ends(&w); /* jobs of other workers do not count */
    EXPECT_OK(fail(&w, &job, "not yet"));
    expect_it_waits(&w);
    EXPECT_STATUS(drain_with(&w, "other", false, &job), LH_EMPTY);
    clock_advance_ms(&w, 200000);
    expect_it_claims(&w, job.id);
    expect_it_ends(&w);
    world_close(&w);
}

/* Exit code 75 of a command refunds the attempt, but the job still counts as a retry. */
SPEC(a_draining_claim_waits_for_a_job_released_with_a_delay)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(lh_release(w.store, &(lh_ref){job.id, job.token}, 1, 60000, NULL, NULL));
    EXPECT_EQ(job_of(&w, job.id).attempt, 0);
    expect_it_waits(&w);
    clock_advance_ms(&w, 60000);
    expect_it_claims(&w, job.id);
    world_close(&w);
}

SPEC(a_draining_claim_waits_for_a_job_in_quarantine)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 60000));
    EXPECT_OK(lh_release_worker(w.store, "w1", &job.id, 1, 0, false, NULL, NULL));
    expect_it_waits(&w);
    clock_advance_ms(&w, 60000);
    expect_it_claims(&w, job.id);
    world_close(&w);
}

SPEC(a_draining_claim_waits_for_the_rate_of_the_queue)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_RATE, .rate_n = 1, .rate_per_ms = 60000));
    int64_t second = enqueue(&w, "mail", "y");
    EXPECT_OK(claim_one(&w, "mail", &job));
    expect_it_waits(&w);
    clock_advance_ms(&w, 60000);
    expect_it_claims(&w, second);
    world_close(&w);
}

/* Another worker has the slot. The job is pending, so the queue is not drained. */
static void expect_it_waits_for_a_slot(const lh_policy *limit)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(lh_policy_set(w.store, "mail", NULL, limit, 0));
    int64_t second = enqueue(&w, "mail", "y", .kind = "large");
    EXPECT_OK(claim_one(&w, "mail", &job));
    expect_it_waits(&w);
    EXPECT_STATUS(drain_with(&w, "large", true, &job), LH_EINTR);
    EXPECT_STATUS(drain_with(&w, "other", false, &job), LH_EMPTY);
    EXPECT_OK(lh_queue_pause(w.store, "mail"));
    expect_it_ends(&w);
    EXPECT_OK(lh_queue_resume(w.store, "mail"));
    EXPECT_OK(complete(&w, &job));
    expect_it_claims(&w, second);
    expect_it_ends(&w);
    world_close(&w);
}

SPEC(a_draining_claim_waits_for_the_concurrency_limit_of_the_queue)
{
    expect_it_waits_for_a_slot(&(lh_policy){.set = LH_POLICY_CONCURRENCY, .concurrency = 1});
}

SPEC(a_draining_claim_waits_for_an_exclusive_queue)
{
    expect_it_waits_for_a_slot(&(lh_policy){.set = LH_POLICY_EXCLUSIVE, .exclusive = true});
}

SPEC(a_draining_claim_does_not_wait_for_a_paused_queue)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_BACKOFF, .backoff_ms = 60000));
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(fail(&w, &job, "not yet"));
    expect_it_waits(&w);
    EXPECT_OK(lh_queue_pause(w.store, "mail"));
    expect_it_ends(&w);
    world_close(&w);
}
