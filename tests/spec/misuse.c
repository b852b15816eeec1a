/* Invalid input is refused with a message that says what is allowed, and nothing is written. */
#include "world.h"

#include <stdlib.h>

static const char *const mail[] = {"mail"};
static char name129[130], key257[258], bytes[70000];

/* A world with one held job that no test here may change. */
struct calm {
    struct world w;
    lh_job job;
    int64_t changes;
};

static struct calm calm_open(void)
{
    struct calm x = {.w = world_open()};
    lh_store_info info;
    memset(name129, 'n', sizeof name129 - 1);
    memset(key257, 'k', sizeof key257 - 1);
    memset(bytes, 'b', sizeof bytes - 1);
    enqueue(&x.w, "mail", "x");
    enqueue(&x.w, "mail", "y");
    EXPECT_OK(claim_one(&x.w, "mail", &x.job));
    EXPECT_OK(lh_store_status(x.w.store, &info));
    x.changes = info.changes;
    return x;
}

static void calm_close(struct calm *x)
{
    lh_store_info info;
    EXPECT_OK(lh_store_status(x->w.store, &info));
    EXPECT_EQ(info.changes, x->changes);
    lh_queue q = queue_of(&x->w, "mail");
    EXPECT_EQ(q.pending, 1);
    EXPECT_EQ(q.running, 1);
    EXPECT_EQ(jobs_where(&x->w, (lh_job_filter){0})->n, 2);
    EXPECT_EQ(events_of(&x->w, 0)->n, 0);
    EXPECT_EQ(job_of(&x->w, x->job.id).lease_until, x->job.lease_until);
    world_close(&x->w);
}

#define REFUSED(call_, code_, part_)                  \
    do {                                              \
        EXPECT_STATUS(call_, code_);                  \
        EXPECT_CONTAINS(lh_errmsg(x.w.store), part_); \
    } while (0)

/* ---- enqueue ---- */

static int try_enqueue(struct calm *x, const char *queue, lh_new_job job)
{
    lh_enqueued out = {.id = -7};
    int rc = lh_enqueue(x->w.store, queue, &job, 1, NULL, &out);
    EXPECT_EQ(out.id, -7);
    return rc;
}

#define BAD_JOB(code_, part_, ...) \
    REFUSED(try_enqueue(&x, "mail", (lh_new_job){__VA_ARGS__}), code_, part_)

SPEC(an_invalid_enqueue_is_refused)
{
    struct calm x = calm_open();
    lh_enqueued out;
    lh_new_job job = {.payload = "x", .payload_len = 1};
    REFUSED(try_enqueue(&x, NULL, job), LH_EINVAL, "queue");
    REFUSED(try_enqueue(&x, "", job), LH_EINVAL, "queue");
    REFUSED(try_enqueue(&x, "two words", job), LH_EINVAL, "two words");
    REFUSED(try_enqueue(&x, "a/b", job), LH_EINVAL, "a/b");
    REFUSED(try_enqueue(&x, "gr\xc3\xbc", job), LH_EINVAL, "queue");
    REFUSED(try_enqueue(&x, "*", job), LH_EINVAL, "queue");
    REFUSED(try_enqueue(&x, name129, job), LH_EINVAL, "128");
    BAD_JOB(LH_EINVAL, "kind", .kind = "");
    BAD_JOB(LH_EINVAL, "bad kind", .kind = "bad kind");
    BAD_JOB(LH_EINVAL, "kind", .kind = name129);
    BAD_JOB(LH_EINVAL, "32768", .priority = 32768);
    BAD_JOB(LH_EINVAL, "-32769", .priority = -32769);
    BAD_JOB(LH_EINVAL, "delay", .delay_ms = -1);
    BAD_JOB(LH_EINVAL, "delay", .delay_ms = INT64_MAX);
    BAD_JOB(LH_EINVAL, "both", .delay_ms = 1, .run_at = WORLD_START_MS);
    BAD_JOB(LH_EINVAL, "run at", .run_at = 1768473000); /* seconds by mistake */
    BAD_JOB(LH_EINVAL, "run at", .run_at = -1);
    BAD_JOB(LH_EINVAL, "run at", .run_at = INT64_MAX);
    BAD_JOB(LH_EINVAL, "key", .key = "");
    BAD_JOB(LH_ETOOBIG, "256", .key = key257);
    BAD_JOB(LH_EINVAL, "UTF-8", .key = "\xff");
    BAD_JOB(LH_EINVAL, "max attempts", .max_attempts = -2);
    BAD_JOB(LH_EINVAL, "1000001", .max_attempts = 1000001);
    BAD_JOB(LH_EINVAL, "lease", .lease_ms = -1);
    BAD_JOB(LH_EINVAL, "30d", .lease_ms = INT64_C(30) * 86400000 + 1);
    BAD_JOB(LH_EINVAL, "expiry", .expires_ms = -1);
    BAD_JOB(LH_EINVAL, "backoff", .backoff_ms = -1);
    BAD_JOB(LH_EINVAL, "backoff cap", .backoff_cap_ms = -1);
    BAD_JOB(LH_EMISUSE, "payload", .payload = NULL, .payload_len = 3);
    BAD_JOB(LH_ETOOBIG, "67108865", .payload = bytes, .payload_len = (64 << 20) + 1);
    REFUSED(lh_enqueue(x.w.store, "mail", NULL, 1, NULL, &out), LH_EMISUSE, "");
    REFUSED(lh_enqueue(x.w.store, "mail", &job, 0, NULL, &out), LH_EMISUSE, "");
    REFUSED(lh_enqueue(x.w.store, "mail", &job, 1, NULL, NULL), LH_EMISUSE, "");
    REFUSED(lh_enqueue(x.w.store, "mail", &job, 1, "", &out), LH_EINVAL, "request");
    REFUSED(lh_enqueue(x.w.store, "mail", &job, 1, key257, &out), LH_ETOOBIG, "request");
    REFUSED(lh_enqueue(x.w.store, "mail", &job, 1, "\xff\xfe", &out), LH_EINVAL, "request");
    EXPECT_STATUS(lh_enqueue(NULL, "mail", &job, 1, NULL, &out), LH_EMISUSE);
    calm_close(&x);
}

SPEC(values_at_their_limits_are_accepted)
{
    struct world w = world_open();
    char name128[129] = {0}, key256[257] = {0};
    memset(name128, 'n', 128);
    memset(key256, 'k', 256);
    enqueue(&w, name128, "x", .kind = name128, .key = key256, .priority = 32767,
            .max_attempts = 1000000, .lease_ms = INT64_C(30) * 86400000);
    enqueue(&w, "AZaz09._:@-", "x", .priority = -32768, .max_attempts = 1, .lease_ms = 1);
    lh_job job;
    EXPECT_OK(claim_one(&w, name128, &job, .worker = name128));
    EXPECT_STR(job.queue, name128);
    EXPECT_STR(job.kind, name128);
    EXPECT_STR(job.key, key256);
    EXPECT_OK(claim_one(&w, "AZaz09._:@-", &job, .worker = "AZaz09._:@-"));
    world_close(&w);
}

/* ---- claim ---- */

static int try_claim(struct calm *x, lh_claim_opts opts)
{
    lh_jobs *out = NULL;
    int rc = lh_claim(x->w.store, &opts, &out);
    EXPECT(out == NULL);
    return rc;
}

#define BAD_CLAIM(code_, part_, ...) \
    REFUSED(try_claim(&x, (lh_claim_opts){__VA_ARGS__}), code_, part_)

SPEC(an_invalid_claim_is_refused)
{
    struct calm x = calm_open();
    const char *bad[] = {"mail", "no good"}, *none[] = {NULL};
    static const char *many[65];
    lh_jobs *out = NULL;
    for (int i = 0; i < 65; i++)
        many[i] = "q";
    BAD_CLAIM(LH_EMISUSE, "queue", .worker = "w1");
    BAD_CLAIM(LH_EMISUSE, "queue", .worker = "w1", .queues = mail);
    BAD_CLAIM(LH_EMISUSE, "queue", .worker = "w1", .n_queues = 1);
    BAD_CLAIM(LH_EINVAL, "no good", .worker = "w1", .queues = bad, .n_queues = 2);
    BAD_CLAIM(LH_EINVAL, "queue", .worker = "w1", .queues = none, .n_queues = 1);
    BAD_CLAIM(LH_EINVAL, "queues", .worker = "w1", .queues = many, .n_queues = 65);
    BAD_CLAIM(LH_EINVAL, "worker", .queues = mail, .n_queues = 1);
    BAD_CLAIM(LH_EINVAL, "worker", .queues = mail, .n_queues = 1, .worker = "");
    BAD_CLAIM(LH_EINVAL, "a b", .queues = mail, .n_queues = 1, .worker = "a b");
    BAD_CLAIM(LH_EINVAL, "worker", .queues = mail, .n_queues = 1, .worker = name129);
    BAD_CLAIM(LH_EINVAL, "kind", .queues = mail, .n_queues = 1, .worker = "w1", .kinds = bad,
              .n_kinds = 2);
    BAD_CLAIM(LH_EMISUSE, "kind", .queues = mail, .n_queues = 1, .worker = "w1", .n_kinds = 2);
    BAD_CLAIM(LH_EINVAL, "1001", .queues = mail, .n_queues = 1, .worker = "w1", .n = 1001);
    BAD_CLAIM(LH_EINVAL, "lease", .queues = mail, .n_queues = 1, .worker = "w1", .lease_ms = -1);
    BAD_CLAIM(LH_EINVAL, "lease", .queues = mail, .n_queues = 1, .worker = "w1",
              .lease_ms = INT64_C(30) * 86400000 + 1);
    BAD_CLAIM(LH_EINVAL, "wait", .queues = mail, .n_queues = 1, .worker = "w1", .wait_ms = -2);
    BAD_CLAIM(LH_EINVAL, "request", .queues = mail, .n_queues = 1, .worker = "w1", .request = "");
    BAD_CLAIM(LH_ETOOBIG, "request", .queues = mail, .n_queues = 1, .worker = "w1",
              .request = key257);
    REFUSED(lh_claim(x.w.store, NULL, &out), LH_EMISUSE, "");
    calm_close(&x);
}

/* ---- the acts of a holder ---- */

#define BAD_BEAT(code_, part_, ...) \
    REFUSED(lh_heartbeat(x.w.store, &(lh_beat){__VA_ARGS__}, 1, NULL, NULL), code_, part_)

SPEC(an_invalid_heartbeat_is_refused)
{
    struct calm x = calm_open();
    int64_t job = x.job.id, token = x.job.token;
    REFUSED(lh_heartbeat(x.w.store, NULL, 1, NULL, NULL), LH_EMISUSE, "");
    REFUSED(lh_heartbeat(x.w.store, &(lh_beat){.job = job, .token = token}, 0, NULL, NULL),
            LH_EMISUSE, "");
    BAD_BEAT(LH_EINVAL, "job", .job = 0, .token = token);
    BAD_BEAT(LH_EINVAL, "-3", .job = -3, .token = token);
    BAD_BEAT(LH_EINVAL, "token", .job = job, .token = 0);
    BAD_BEAT(LH_EINVAL, "token", .job = job, .token = -1);
    BAD_BEAT(LH_EINVAL, "lease", .job = job, .token = token, .lease_ms = -1);
    BAD_BEAT(LH_EINVAL, "progress", .job = job, .token = token, .has_progress = true,
             .progress = 101);
    BAD_BEAT(LH_EINVAL, "progress", .job = job, .token = token, .has_progress = true,
             .progress = -1);
    BAD_BEAT(LH_ETOOBIG, "stage", .job = job, .token = token, .stage = key257);
    BAD_BEAT(LH_EINVAL, "stage", .job = job, .token = token, .stage = "\xff");
    BAD_BEAT(LH_ETOOBIG, "checkpoint", .job = job, .token = token, .checkpoint = bytes);
    BAD_BEAT(LH_EINVAL, "checkpoint", .job = job, .token = token, .checkpoint = "\"\xff\"");
    calm_close(&x);
}

SPEC(invalid_outcomes_are_refused)
{
    struct calm x = calm_open();
    int64_t job = x.job.id, token = x.job.token;
    lh_store *s = x.w.store;
    static char error[(64 << 10) + 2];
    memset(error, 'e', sizeof error - 1);
    REFUSED(lh_complete(s, NULL, 1, NULL, NULL), LH_EMISUSE, "");
    REFUSED(lh_complete(s, &(lh_done){.job = job, .token = token}, 0, NULL, NULL), LH_EMISUSE, "");
    REFUSED(lh_complete(s, &(lh_done){.job = 0, .token = token}, 1, NULL, NULL), LH_EINVAL, "job");
    REFUSED(lh_complete(s, &(lh_done){.job = job}, 1, NULL, NULL), LH_EINVAL, "token");
    REFUSED(lh_complete(s, &(lh_done){.job = job, .token = token, .result_len = 3}, 1, NULL, NULL),
            LH_EMISUSE, "result");
    REFUSED(
        lh_complete(
            s,
            &(lh_done){.job = job, .token = token, .result = bytes, .result_len = (64 << 20) + 1},
            1, NULL, NULL),
        LH_ETOOBIG, "result");
    REFUSED(lh_fail(s, NULL, 1, NULL, NULL), LH_EMISUSE, "");
    REFUSED(lh_fail(s, &(lh_failure){.job = job, .token = token}, 1, NULL, NULL), LH_EMISUSE,
            "error");
    REFUSED(lh_fail(s, &(lh_failure){.job = job, .error = "e"}, 1, NULL, NULL), LH_EINVAL, "token");
    REFUSED(lh_fail(s, &(lh_failure){.job = job, .token = token, .error = "e", .retry_in_ms = -2},
                    1, NULL, NULL),
            LH_EINVAL, "retry");
    REFUSED(lh_fail(s, &(lh_failure){.job = job, .token = token, .error = error}, 1, NULL, NULL),
            LH_ETOOBIG, "error");
    REFUSED(lh_fail(s, &(lh_failure){.job = job, .token = token, .error = "\xff"}, 1, NULL, NULL),
            LH_EINVAL, "UTF-8");
    REFUSED(lh_release(s, NULL, 1, 0, NULL, NULL), LH_EMISUSE, "");
    REFUSED(lh_release(s, &(lh_ref){job, 0}, 1, 0, NULL, NULL), LH_EINVAL, "token");
    REFUSED(lh_release(s, &(lh_ref){job, token}, 1, -1, NULL, NULL), LH_EINVAL, "delay");
    REFUSED(lh_release_worker(s, NULL, NULL, 0, 0, true, NULL, NULL), LH_EINVAL, "worker");
    REFUSED(lh_release_worker(s, "a b", NULL, 0, 0, true, NULL, NULL), LH_EINVAL, "worker");
    REFUSED(lh_release_worker(s, "w1", NULL, 0, -1, true, NULL, NULL), LH_EINVAL, "delay");
    calm_close(&x);
}

SPEC(one_invalid_item_refuses_the_whole_batch)
{
    struct calm x = calm_open();
    lh_beat beats[] = {
        {.job = x.job.id, .token = x.job.token},
        {.job = x.job.id, .token = x.job.token, .has_progress = true, .progress = 200}};
    lh_done done[] = {{.job = x.job.id, .token = x.job.token}, {.job = x.job.id, .token = 0}};
    clock_advance_ms(&x.w, 1);
    REFUSED(lh_heartbeat(x.w.store, beats, 2, NULL, NULL), LH_EINVAL, "progress");
    REFUSED(lh_complete(x.w.store, done, 2, NULL, NULL), LH_EINVAL, "token");
    calm_close(&x);
}

SPEC(an_invalid_operator_call_is_refused)
{
    struct calm x = calm_open();
    lh_store *s = x.w.store;
    int64_t zero = 0, minus = -1, id = x.job.id;
    REFUSED(lh_cancel(s, NULL, 1, NULL, NULL), LH_EMISUSE, "");
    REFUSED(lh_cancel(s, &id, 0, NULL, NULL), LH_EMISUSE, "");
    REFUSED(lh_cancel(s, &zero, 1, NULL, NULL), LH_EINVAL, "job");
    REFUSED(lh_retry(s, &minus, 1, LH_RETRY_FORCE, NULL, NULL), LH_EINVAL, "job");
    REFUSED(lh_retry(s, NULL, 2, LH_RETRY_FORCE, NULL, NULL), LH_EMISUSE, "");
    REFUSED(lh_retry(s, &id, 1, 8, NULL, NULL), LH_EMISUSE, "");
    REFUSED(lh_delete(s, &zero, 1, NULL), LH_EINVAL, "job");
    REFUSED(lh_delete(s, NULL, 1, NULL), LH_EMISUSE, "");
    REFUSED(lh_reschedule(s, 0, 1000, 0, NULL), LH_EINVAL, "job");
    REFUSED(lh_reschedule(s, id, -1, 0, NULL), LH_EINVAL, "delay");
    REFUSED(lh_reschedule(s, id, 0, 1768473000, NULL), LH_EINVAL, "run at");
    REFUSED(lh_prune(s, -1, NULL, NULL), LH_EINVAL, "age");
    REFUSED(lh_queue_pause(s, NULL), LH_EINVAL, "queue");
    REFUSED(lh_queue_pause(s, "a b"), LH_EINVAL, "a b");
    REFUSED(lh_queue_resume(s, ""), LH_EINVAL, "queue");
    REFUSED(lh_queue_purge(s, "*", NULL), LH_EINVAL, "queue");
    REFUSED(lh_queue_delete(s, "*"), LH_EINVAL, "queue");
    REFUSED(lh_queue_delete(s, NULL), LH_EINVAL, "queue");
    calm_close(&x);
}

/* ---- named leases, scopes, workers ---- */

SPEC(an_invalid_named_lease_is_refused)
{
    struct calm x = calm_open();
    lh_store *s = x.w.store;
    lh_leases *leases = NULL;
    bool flag;
    static char name257[258], value[(64 << 10) + 2];
    memset(name257, 'n', sizeof name257 - 1);
    memset(value, '1', sizeof value - 1);
    REFUSED(lh_lease_acquire(s, NULL, "n", NULL, NULL), LH_EINVAL, "scope");
    REFUSED(lh_lease_acquire(s, "", "n", NULL, NULL), LH_EINVAL, "scope");
    REFUSED(lh_lease_acquire(s, "a/b", "n", NULL, NULL), LH_EINVAL, "a/b");
    REFUSED(lh_lease_acquire(s, "s", NULL, NULL, NULL), LH_EINVAL, "name");
    REFUSED(lh_lease_acquire(s, "s", "", NULL, NULL), LH_EINVAL, "name");
    REFUSED(lh_lease_acquire(s, "s", "a b", NULL, NULL), LH_EINVAL, "a b");
    REFUSED(lh_lease_acquire(s, "s", "a\nb", NULL, NULL), LH_EINVAL, "name");
    REFUSED(lh_lease_acquire(s, "s", "\xc3\xbc", NULL, NULL), LH_EINVAL, "name");
    REFUSED(lh_lease_acquire(s, "s", name257, NULL, NULL), LH_EINVAL, "256");
    REFUSED(lh_lease_acquire(s, "s", "n", &(lh_lease_opts){.owner = "a b"}, NULL), LH_EINVAL,
            "owner");
    REFUSED(lh_lease_acquire(s, "s", "n", &(lh_lease_opts){.ttl_ms = -1}, NULL), LH_EINVAL, "ttl");
    REFUSED(
        lh_lease_acquire(s, "s", "n", &(lh_lease_opts){.ttl_ms = INT64_C(30) * 86400000 + 1}, NULL),
        LH_EINVAL, "ttl");
    REFUSED(lh_lease_acquire(s, "s", "n", &(lh_lease_opts){.by_ms = 5}, NULL), LH_EINVAL, "");
    REFUSED(lh_lease_acquire(s, "s", "n", &(lh_lease_opts){.value = value}, NULL), LH_ETOOBIG,
            "value");
    REFUSED(lh_lease_extend(s, "s", "n", &(lh_lease_opts){.ttl_ms = 5, .by_ms = 5}, NULL),
            LH_EINVAL, "both");
    REFUSED(lh_lease_extend(s, "s", "n", &(lh_lease_opts){.by_ms = -5}, NULL), LH_EINVAL, "");
    REFUSED(lh_lease_extend(s, "s", "n", &(lh_lease_opts){.token = -5}, NULL), LH_EINVAL, "token");
    REFUSED(lh_lease_complete(s, "s", "n", &(lh_lease_opts){.has_rows = true, .rows = -1}, NULL),
            LH_EINVAL, "rows");
    REFUSED(lh_lease_release(s, "s", "a b", NULL, &flag), LH_EINVAL, "name");
    REFUSED(lh_lease_get(s, "s", "a b", &leases), LH_EINVAL, "name");
    REFUSED(lh_lease_list(s, "a b", &leases), LH_EINVAL, "scope");
    REFUSED(lh_lease_is_stale(s, "s", "", &flag), LH_EINVAL, "name");
    REFUSED(lh_scope_set(s, "a b", 1000), LH_EINVAL, "scope");
    REFUSED(lh_scope_set(s, "s", -1), LH_EINVAL, "ttl");
    REFUSED(lh_scope_set(s, "s", INT64_C(30) * 86400000 + 1), LH_EINVAL, "ttl");
    EXPECT_OK(lh_lease_list(s, NULL, &leases));
    EXPECT_EQ(leases->n, 0);
    lh_leases_free(leases);
    calm_close(&x);
}

SPEC(an_invalid_worker_is_refused)
{
    struct calm x = calm_open();
    lh_store *s = x.w.store;
    char id[160];
    static char label120[121], queues[4098];
    memset(label120, 'l', sizeof label120 - 1);
    memset(queues, 'q', sizeof queues - 1);
    REFUSED(lh_worker_register(s, &(lh_worker_opts){.id = "a b"}, id, sizeof id), LH_EINVAL, "a b");
    REFUSED(lh_worker_register(s, &(lh_worker_opts){.label = ""}, id, sizeof id), LH_EINVAL,
            "label");
    REFUSED(lh_worker_register(s, &(lh_worker_opts){.label = label120}, id, sizeof id), LH_EINVAL,
            "label");
    REFUSED(lh_worker_register(s, &(lh_worker_opts){.id = "w", .interval_ms = -1}, id, sizeof id),
            LH_EINVAL, "interval");
    REFUSED(lh_worker_register(s, &(lh_worker_opts){.id = "w", .multiplier = -1}, id, sizeof id),
            LH_EINVAL, "multiplier");
    REFUSED(lh_worker_register(s, &(lh_worker_opts){.id = "w", .queues = queues}, id, sizeof id),
            LH_ETOOBIG, "queues");
    REFUSED(lh_worker_register(s, &(lh_worker_opts){.id = "w"}, NULL, 0), LH_EMISUSE, "");
    REFUSED(lh_worker_heartbeat(s, NULL, 0, NULL, 0, NULL), LH_EINVAL, "worker");
    REFUSED(lh_worker_heartbeat(s, "a b", 0, NULL, 0, NULL), LH_EINVAL, "worker");
    REFUSED(lh_worker_heartbeat(s, "w", -1, NULL, 0, NULL), LH_EINVAL, "interval");
    REFUSED(lh_worker_heartbeat(s, "w", 0, NULL, 2, NULL), LH_EMISUSE, "");
    REFUSED(lh_worker_heartbeat(s, "w", 0, &(lh_beat){.job = 1}, 1, NULL), LH_EINVAL, "token");
    REFUSED(lh_worker_stop(s, ""), LH_EINVAL, "worker");
    lh_workers *workers = NULL;
    EXPECT_OK(lh_worker_list(s, &workers));
    EXPECT_EQ(workers->n, 0);
    lh_workers_free(workers);
    calm_close(&x);
}

/* ---- reading ---- */

SPEC(an_invalid_query_is_refused)
{
    struct calm x = calm_open();
    lh_store *s = x.w.store;
    lh_jobs *jobs = NULL;
    lh_events *events = NULL;
    REFUSED(lh_job_list(s, &(lh_job_filter){.queue = "a b"}, &jobs), LH_EINVAL, "queue");
    REFUSED(lh_job_list(s, &(lh_job_filter){.kind = "a b"}, &jobs), LH_EINVAL, "kind");
    REFUSED(lh_job_list(s, &(lh_job_filter){.worker = "a b"}, &jobs), LH_EINVAL, "worker");
    REFUSED(lh_job_list(s, &(lh_job_filter){.limit = 10001}, &jobs), LH_EINVAL, "limit");
    REFUSED(lh_job_list(s, &(lh_job_filter){.state = (lh_state)7}, &jobs), LH_EINVAL, "state");
    REFUSED(lh_job_wait(s, 1, -2, NULL, &jobs), LH_EINVAL, "wait");
    REFUSED(lh_event_list(s, &(lh_event_filter){.wait_ms = -2}, &events), LH_EINVAL, "wait");
    EXPECT(jobs == NULL);
    EXPECT(events == NULL);
    calm_close(&x);
}

SPEC(a_missing_output_parameter_is_misuse)
{
    struct calm x = calm_open();
    lh_store *s = x.w.store;
    lh_claim_opts opts = {.queues = mail, .n_queues = 1, .worker = "w1"};
    EXPECT_STATUS(lh_claim(s, &opts, NULL), LH_EMISUSE);
    EXPECT_STATUS(lh_complete_claim(s, &(lh_done){.job = x.job.id, .token = x.job.token}, 1, NULL,
                                    &opts, NULL),
                  LH_EMISUSE);
    EXPECT_STATUS(lh_job_get(s, 1, NULL), LH_EMISUSE);
    EXPECT_STATUS(lh_job_list(s, NULL, NULL), LH_EMISUSE);
    EXPECT_STATUS(lh_job_wait(s, 1, 0, NULL, NULL), LH_EMISUSE);
    EXPECT_STATUS(lh_queue_list(s, NULL), LH_EMISUSE);
    EXPECT_STATUS(lh_policy_get(s, "mail", NULL, NULL), LH_EMISUSE);
    EXPECT_STATUS(lh_policy_list(s, NULL), LH_EMISUSE);
    EXPECT_STATUS(lh_lease_get(s, "s", "n", NULL), LH_EMISUSE);
    EXPECT_STATUS(lh_lease_list(s, NULL, NULL), LH_EMISUSE);
    EXPECT_STATUS(lh_lease_is_stale(s, "s", "n", NULL), LH_EMISUSE);
    EXPECT_STATUS(lh_worker_list(s, NULL), LH_EMISUSE);
    EXPECT_STATUS(lh_recovery_stats(s, NULL), LH_EMISUSE);
    EXPECT_STATUS(lh_event_list(s, NULL, NULL), LH_EMISUSE);
    EXPECT_STATUS(lh_store_status(s, NULL), LH_EMISUSE);
    EXPECT_STATUS(lh_check(s, NULL, NULL), LH_EMISUSE);
    EXPECT_STATUS(lh_drop_sql(s, NULL), LH_EMISUSE);
    calm_close(&x);
}

SPEC(a_null_handle_is_misuse_and_freeing_null_is_harmless)
{
    lh_jobs *jobs = NULL;
    lh_queues *queues = NULL;
    const char *queue = "mail";
    EXPECT_STATUS(
        lh_claim(NULL, &(lh_claim_opts){.queues = &queue, .n_queues = 1, .worker = "w1"}, &jobs),
        LH_EMISUSE);
    EXPECT_STATUS(lh_heartbeat(NULL, &(lh_beat){.job = 1, .token = 1}, 1, NULL, NULL), LH_EMISUSE);
    EXPECT_STATUS(lh_complete(NULL, &(lh_done){.job = 1, .token = 1}, 1, NULL, NULL), LH_EMISUSE);
    EXPECT_STATUS(lh_job_get(NULL, 1, &jobs), LH_EMISUSE);
    EXPECT_STATUS(lh_queue_list(NULL, &queues), LH_EMISUSE);
    EXPECT_STATUS(lh_recover(NULL, NULL, NULL), LH_EMISUSE);
    EXPECT_STATUS(lh_maintain(NULL, NULL, NULL), LH_EMISUSE);
    EXPECT(lh_errmsg(NULL) != NULL);
    EXPECT_STR(lh_last_request(NULL), "");
    lh_close(NULL);
    lh_jobs_free(NULL);
    lh_queues_free(NULL);
    lh_policies_free(NULL);
    lh_leases_free(NULL);
    lh_workers_free(NULL);
    lh_events_free(NULL);
    lh_findings_free(NULL);
}

/* ---- messages ---- */

SPEC(a_success_clears_the_last_error_message)
{
    struct calm x = calm_open();
    EXPECT_STR(lh_errmsg(x.w.store), "");
    EXPECT_STATUS(cancel(&x.w, 4711), LH_ENOTFOUND);
    EXPECT_CONTAINS(lh_errmsg(x.w.store), "4711");
    EXPECT(job_exists(&x.w, x.job.id));
    EXPECT_STR(lh_errmsg(x.w.store), "");
    EXPECT_STR(lh_last_request(x.w.store), "");
    calm_close(&x);
}

SPEC(a_message_is_one_line_of_lower_case_without_a_full_stop)
{
    struct calm x = calm_open();
    int64_t id = x.job.id;
    for (int i = 0; i < 5; i++) {
        if (i == 0)
            EXPECT_STATUS(try_enqueue(&x, "a b", (lh_new_job){0}), LH_EINVAL);
        else if (i == 1)
            EXPECT_STATUS(cancel(&x.w, 4711), LH_ENOTFOUND);
        else if (i == 2)
            EXPECT_STATUS(retry(&x.w, id), LH_ESTATE);
        else if (i == 3)
            EXPECT_STATUS(complete(&x.w, &(lh_job){.id = id, .token = 99}), LH_ELOST);
        else
            EXPECT_STATUS(lh_worker_stop(x.w.store, "w"), LH_ENOTFOUND);
        const char *text = lh_errmsg(x.w.store);
        size_t len = strlen(text);
        EXPECT(len > 10);
        EXPECT(text[0] >= 'a' && text[0] <= 'z');
        EXPECT(text[len - 1] != '.');
        EXPECT(strchr(text, '\n') == NULL);
        EXPECT(strstr(text, "LH_") == NULL);
    }
    calm_close(&x);
}
