/*
 * A worker for torture: it uses only the public header, records every call before and after it (history.py
 * has the format), and is killed and suspended at any moment.
 *
 *     client FOLDER prepare                       make the store
 *     client FOLDER enqueue PROCESS FIRST N       enqueue N jobs, numbered from FIRST
 *     client FOLDER work PROCESS SLOT SEED N      be a worker, that also enqueues N jobs a thread
 *
 * The next process in a slot repeats the unfinished enqueue of the process before it, with the same request
 * id. `control` in the folder says when to stop the faults, and when to exit. The store is store.db in the
 * folder, or the one that $TORTURE_STORE names, whose server may be down for a while.
 */
#include <leasehold.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
    THREADS = 4, /* with fewer threads, calls rarely share a transaction */
    SLOTS = 32,
    INTERVAL_MS = 100,
    MULTIPLIER = 3,
    SHORT_LEASE_MS = 120,
    LONG_LEASE_MS = 900,
    MOST_HELD = 2,
};

struct control {
    int32_t sober; /* no more faults: claimed jobs are completed; 2: no job is enqueued */
    int32_t stop;
    int64_t enqueued[SLOTS][THREADS];
};

struct client {
    const char *process;
    lh_store *store;
    struct control *control;
    int log;
    int slot;
    int64_t quota;
};

struct thread {
    pthread_t id;
    struct client *client;
    int number;
    uint64_t dice;
    int64_t ops;
};

/* A recorded call that has not returned. */
struct call {
    struct thread *thread;
    const char *act;
    int64_t op, call_ns;
};

static _Noreturn void die(const char *what, const char *why)
{
    (void)fprintf(stderr, "client: %s: %s\n", what, why);
    exit(1);
}

static int64_t number(const char *text)
{
    char *end = NULL;
    long long value = strtoll(text, &end, 10);

    if (end == text || *end != '\0')
        die(text, "a number is expected");
    return value;
}

/* The server is down, and will be started again. */
static bool is_away(int rc)
{
    return getenv("TORTURE_STORE") != NULL &&
           (rc == LH_EUNREACH || rc == LH_EBUSY || rc == LH_EUNKNOWN);
}

static void need(lh_store *store, const char *what, int rc)
{
    if (rc != LH_OK)
        die(what, lh_errmsg(store));
}

/* ---------------------------------------------------------------- chance and time */

static int64_t now_ns(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static void sleep_ms(int64_t ms)
{
    struct timespec ts = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    (void)nanosleep(&ts, NULL);
}

/* a random number below n */
static int64_t roll(struct thread *t, int64_t n)
{
    t->dice ^= t->dice << 13;
    t->dice ^= t->dice >> 7;
    t->dice ^= t->dice << 17;
    return (int64_t)(t->dice % (uint64_t)n);
}

static bool raised(const int32_t *flag)
{
    return __atomic_load_n(flag, __ATOMIC_RELAXED) != 0;
}

/* ---------------------------------------------------------------- the history */

/* One write a line, so that lines of several processes do not mix. The newline comes first: SIGKILL
 * may cut a write at the end of a page, and the next line must not suffer for it. */
static void put(const struct client *client, const char *line, int len)
{
    if (len <= 0 || write(client->log, line, (size_t)len) != len)
        die("history", strerror(errno));
}

static struct call begin(struct thread *t, const char *act, int64_t job, int64_t token,
                         const char *more)
{
    char line[512];
    struct call call = {.thread = t, .act = act, .op = t->ops++ * THREADS + t->number};

    call.call_ns = now_ns();
    int len = snprintf(line, sizeof line,
                       "\n{\"process\":\"%s\",\"op\":%" PRId64 ",\"act\":\"%s\",\"job\":%" PRId64
                       ",\"token\":%" PRId64 ",\"call_ns\":%" PRId64 "%s}",
                       t->client->process, call.op, act, job, token, call.call_ns, more);
    put(t->client, line, len);
    return call;
}

static const char *result_of(int rc)
{
    if (rc == LH_OK || rc == LH_EMPTY)
        return "ok";
    return rc == LH_EUNKNOWN || rc == LH_ESTOPPED ? "unknown" : "fail";
}

static void returned(const struct call *call, int rc, int64_t return_ns, int64_t job, int64_t token,
                     const char *more)
{
    char line[512];
    int len = snprintf(line, sizeof line,
                       "\n{\"process\":\"%s\",\"op\":%" PRId64 ",\"act\":\"%s\",\"job\":%" PRId64
                       ",\"token\":%" PRId64 ",\"call_ns\":%" PRId64 ",\"return_ns\":%" PRId64
                       ",\"result\":\"%s\",\"status\":\"%s\"%s}",
                       call->thread->client->process, call->op, call->act, job, token,
                       call->call_ns, return_ns, result_of(rc), lh_status_name(rc), more);
    put(call->thread->client, line, len);
}

/* ---------------------------------------------------------------- acts */

static bool enqueue(struct thread *t, const char *name)
{
    char more[160];
    lh_enqueued out = {0};
    lh_new_job job = {.payload = name, .payload_len = strlen(name), .max_attempts = LH_UNLIMITED};

    (void)snprintf(more, sizeof more, ",\"payload\":\"%s\"", name);
    struct call call = begin(t, "enqueue", 0, 0, more);
    int rc = lh_enqueue(t->client->store, "q", &job, 1, name, &out);
    returned(&call, rc, now_ns(), out.id, 0, more);
    if (!is_away(rc))
        need(t->client->store, "enqueue", rc);
    return rc == LH_OK;
}

static void enqueue_next(struct thread *t)
{
    int64_t *count = &t->client->control->enqueued[t->client->slot][t->number];
    char name[64];

    (void)snprintf(name, sizeof name, "j-%d-%d-%" PRId64, t->client->slot, t->number, *count);
    *count += enqueue(t, name);
}

struct held {
    size_t n;
    int64_t lease_ms;
    int64_t claimed_ns;
    lh_ref ref[MOST_HELD];
};

static struct held claim(struct thread *t)
{
    const char *queue = "q";
    struct held held = {.lease_ms = roll(t, 4) == 0 ? LONG_LEASE_MS : SHORT_LEASE_MS};
    lh_jobs *jobs = NULL;
    char more[64];
    lh_claim_opts opts = {.queues = &queue,
                          .n_queues = 1,
                          .worker = t->client->process,
                          .n = (size_t)roll(t, MOST_HELD) + 1,
                          .lease_ms = held.lease_ms};

    (void)snprintf(more, sizeof more, ",\"lease_ms\":%" PRId64, held.lease_ms);
    struct call call = begin(t, "claim", 0, 0, "");
    int rc = lh_claim(t->client->store, &opts, &jobs);
    int64_t return_ns = now_ns();
    if (rc == LH_OK)
        held.n = jobs->n;
    else
        returned(&call, rc, return_ns, 0, 0, "");
    for (size_t i = 0; i < held.n; i++) {
        held.ref[i] = (lh_ref){.job = jobs->job[i].id, .token = jobs->job[i].token};
        returned(&call, rc, return_ns, held.ref[i].job, held.ref[i].token, more);
    }
    held.claimed_ns = call.call_ns;
    lh_jobs_free(jobs);
    return held;
}

/* A heartbeat for the worker and its jobs; lost jobs are dropped. */
static void beat(struct thread *t, struct held *held)
{
    lh_beat beats[MOST_HELD] = {{0}};
    int status[MOST_HELD] = {0};
    char more[64];
    size_t kept = 0;

    for (size_t i = 0; i < held->n; i++)
        beats[i] = (lh_beat){.job = held->ref[i].job, .token = held->ref[i].token};
    (void)snprintf(more, sizeof more, ",\"lease_ms\":%" PRId64, held->lease_ms);
    struct call call = begin(t, "beat", 0, 0, "");
    int rc = lh_worker_heartbeat(t->client->store, t->client->process, 0, beats, held->n, status);
    int64_t return_ns = now_ns();
    bool judged = rc == LH_OK || rc == LH_ELOST;
    returned(&call, judged ? LH_OK : rc, return_ns, 0, 0, "");
    for (size_t i = 0; i < held->n; i++) {
        returned(&call, judged ? status[i] : rc, return_ns, held->ref[i].job, held->ref[i].token,
                 more);
        if (judged && status[i] == LH_OK)
            held->ref[kept++] = held->ref[i];
    }
    held->n = kept;
}

static void complete(struct thread *t, const lh_ref *ref)
{
    lh_done done = {.job = ref->job, .token = ref->token};
    struct call call = begin(t, "complete", ref->job, ref->token, "");
    int rc = lh_complete(t->client->store, &done, 1, NULL, NULL);
    returned(&call, rc, now_ns(), ref->job, ref->token, "");
}

static void fail(struct thread *t, const lh_ref *ref)
{
    lh_failure failure = {
        .job = ref->job, .token = ref->token, .error = "no", .retry_in_ms = LH_NOW};
    struct call call = begin(t, "fail", ref->job, ref->token, "");
    int rc = lh_fail(t->client->store, &failure, 1, NULL, NULL);
    returned(&call, rc, now_ns(), ref->job, ref->token, "");
}

static void release(struct thread *t, const lh_ref *ref)
{
    struct call call = begin(t, "release", ref->job, ref->token, "");
    int rc = lh_release(t->client->store, ref, 1, 0, NULL, NULL);
    returned(&call, rc, now_ns(), ref->job, ref->token, "");
}

/* ---------------------------------------------------------------- a worker */

/* Sleep until about the end of the lease, so that what follows meets its recovery; or for longer,
 * so that another has it. */
static void oversleep(struct thread *t, const struct held *held, bool long_over)
{
    int64_t slept_ms = (now_ns() - held->claimed_ns) / 1000000;
    int64_t left_ms = held->lease_ms - slept_ms + (long_over ? 10 + roll(t, 80) : roll(t, 8) - 2);

    if (left_ms > 0)
        sleep_ms(left_ms);
}

static void end(struct thread *t, struct held *held)
{
    int64_t how = raised(&t->client->control->sober) ? 0 : roll(t, 10);

    if (how == 9) /* it drops its jobs without a call */
        return;
    if (how >= 7)
        oversleep(t, held, how == 8);
    if (how == 8)
        beat(t, held);
    for (size_t i = 0; i < held->n; i++) {
        if (how == 6)
            fail(t, &held->ref[i]);
        else if (how == 5)
            release(t, &held->ref[i]);
        else
            complete(t, &held->ref[i]);
    }
}

static void work_once(struct thread *t)
{
    struct held held = claim(t);

    if (held.n == 0)
        sleep_ms(5 + roll(t, 20));
    for (int64_t beats = held.n > 0 ? roll(t, 3) : 0; beats > 0 && held.n > 0; beats--) {
        sleep_ms(roll(t, SHORT_LEASE_MS / 2));
        held.claimed_ns = now_ns();
        beat(t, &held);
    }
    if (held.n > 0) {
        sleep_ms(roll(t, 30));
        end(t, &held);
    }
}

static bool wants_more(const struct thread *t)
{
    const struct control *control = t->client->control;

    return control->enqueued[t->client->slot][t->number] < t->client->quota &&
           __atomic_load_n(&control->sober, __ATOMIC_RELAXED) < 2;
}

static void *work(void *arg)
{
    struct thread *t = arg;
    struct control *control = t->client->control;

    while (!raised(&control->stop)) {
        if (wants_more(t) && roll(t, 2) == 0)
            enqueue_next(t);
        int rc = roll(t, 4) == 0 ? lh_recover(t->client->store, NULL, NULL) : LH_OK;
        if (rc < 0 && !is_away(rc))
            die("recover", lh_errmsg(t->client->store));
        work_once(t);
    }
    return NULL;
}

static bool enlist(struct thread *t)
{
    struct client *client = t->client;
    char id[160], more[128];
    lh_worker_opts opts = {.id = client->process,
                           .process = true,
                           .interval_ms = INTERVAL_MS,
                           .multiplier = MULTIPLIER};
    struct call call = begin(t, "register", 0, 0, "");
    int rc = lh_worker_register(client->store, &opts, id, sizeof id);

    (void)snprintf(more, sizeof more, ",\"interval_ms\":%d,\"multiplier\":%d,\"store_ms\":%" PRId64,
                   INTERVAL_MS, MULTIPLIER, lh_now(client->store));
    returned(&call, rc, now_ns(), 0, 0, more);
    if (!is_away(rc))
        need(client->store, "register", rc);
    return rc == LH_OK;
}

static void be_worker(struct client *client, uint64_t seed)
{
    struct thread threads[THREADS];

    for (int i = 0; i < THREADS; i++)
        threads[i] = (struct thread){
            .client = client, .number = i, .dice = (seed + 1) * 2654435761U + (uint64_t)i * 40503U};
    while (!enlist(&threads[0]))
        sleep_ms(50);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i].id, NULL, work, &threads[i]) != 0)
            die("thread", strerror(errno));
    for (int i = 0; i < THREADS; i++)
        (void)pthread_join(threads[i].id, NULL);
}

/* ---------------------------------------------------------------- the program */

static void prepare(lh_store *store)
{
    lh_policy policy = {.set = LH_POLICY_AUDIT | LH_POLICY_MAX_RECOVERIES | LH_POLICY_MAX_ATTEMPTS |
                               LH_POLICY_BACKOFF | LH_POLICY_BACKOFF_CAP,
                        .audit = LH_AUDIT_FULL,
                        .max_recoveries = LH_UNLIMITED,
                        .max_attempts = LH_UNLIMITED,
                        .backoff_ms = 10,
                        .backoff_cap_ms = 50};
    need(store, "policy", lh_policy_set(store, "q", NULL, &policy, 0));
}

static void enqueue_all(struct client *client, int64_t first, int64_t n)
{
    struct thread t = {.client = client};
    char name[64], more[64];

    struct call call = begin(&t, "look", 0, 0, "");
    (void)snprintf(more, sizeof more, ",\"store_ms\":%" PRId64, lh_now(client->store));
    returned(&call, LH_OK, now_ns(), 0, 0, more);
    for (int64_t i = first; i < first + n; i++) {
        (void)snprintf(name, sizeof name, "j-%" PRId64, i);
        while (!enqueue(&t, name))
            sleep_ms(50);
    }
}

static void open_all(struct client *client)
{
    int fd = open("control", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void *p = MAP_FAILED;

    client->log = open("history.jsonl", O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0 && ftruncate(fd, sizeof *client->control) == 0)
        p = mmap(NULL, sizeof *client->control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (client->log < 0 || p == MAP_FAILED)
        die("open", strerror(errno));
    client->control = p;
    const char *url = getenv("TORTURE_STORE");
    int rc;
    while (is_away(
        rc = lh_open(url ? url : "store.db", &(lh_open_opts){.create = true}, &client->store))) {
        lh_close(client->store);
        sleep_ms(50);
    }
    need(client->store, "store", rc);
}

int main(int argc, char **argv)
{
    struct client client = {.process = "setup"};
    bool works = argc == 7 && strcmp(argv[2], "work") == 0;
    bool enqueues = argc == 6 && strcmp(argv[2], "enqueue") == 0;

    if (!works && !enqueues && !(argc == 3 && strcmp(argv[2], "prepare") == 0))
        die("usage", "client FOLDER prepare | enqueue PROCESS FIRST N | work PROCESS SLOT SEED N");
    if (chdir(argv[1]) != 0)
        die(argv[1], strerror(errno));
    if (works || enqueues)
        client.process = argv[3];
    if (works) {
        client.slot = (int)number(argv[4]) % SLOTS;
        client.quota = number(argv[6]);
    }
    open_all(&client);
    if (works)
        be_worker(&client, (uint64_t)number(argv[5]));
    else if (enqueues)
        enqueue_all(&client, number(argv[4]), number(argv[5]));
    else
        prepare(client.store);
    lh_close(client.store);
    return 0;
}
