/*
 * A worker: it claims jobs of one queue and works on them in steps. A second thread sends heartbeats, so
 * that a long step does not lose the lease. The worker registers as a process, so that its death is noticed
 * at once. It ends when the queue stays empty.
 *
 *     worker STORE QUEUE [MS]      MS: how long a step takes
 */
#include <leasehold.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LEASE_MS = 3000, STEPS = 4 };

struct heart {
    lh_store *store;
    const char *worker;
    const lh_job *job;
    int step; /* what the job has done, told with each beat */
    bool done;
    bool lost; /* the job is not ours any more: stop, and change nothing */
};

static void sleep_ms(long ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

static void *beat(void *arg)
{
    struct heart *heart = arg;

    /* Three heartbeats fit into one lease, so one may be late. */
    for (int passed = 0; !__atomic_load_n(&heart->done, __ATOMIC_ACQUIRE); passed++) {
        sleep_ms(100);
        if (passed % (LEASE_MS / 3 / 100) != 0)
            continue;
        lh_beat one = {.job = heart->job->id,
                       .token = heart->job->token,
                       .has_progress = true,
                       .progress = __atomic_load_n(&heart->step, __ATOMIC_ACQUIRE) * 100 / STEPS};
        int rc = lh_worker_heartbeat(heart->store, heart->worker, 0, &one, 1, NULL);
        /* A busy store may answer the next heartbeat. A lost lease stays lost. */
        if (rc == LH_ELOST || rc == LH_ECANCELLED)
            __atomic_store_n(&heart->lost, true, __ATOMIC_RELEASE);
    }
    return NULL;
}

/* One job. This one only prints, in slow steps. */
static int work_on(lh_store *store, const char *worker, const lh_job *job, long step_ms)
{
    struct heart heart = {.store = store, .worker = worker, .job = job};
    pthread_t thread;

    if (pthread_create(&thread, NULL, beat, &heart) != 0)
        return LH_ENOMEM;
    printf("job %lld, attempt %lld: %.*s\n", (long long)job->id, (long long)job->attempt,
           (int)job->payload_len, job->payload ? (const char *)job->payload : "");
    while (heart.step < STEPS && !__atomic_load_n(&heart.lost, __ATOMIC_ACQUIRE)) {
        sleep_ms(step_ms);
        __atomic_add_fetch(&heart.step, 1, __ATOMIC_RELEASE);
    }
    __atomic_store_n(&heart.done, true, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
    if (heart.lost)
        return LH_ELOST;
    lh_done done = {.job = job->id, .token = job->token, .result = "\"ok\"", .result_len = 4};
    return lh_complete(store, &done, 1, NULL, NULL);
}

/* Log lines of the library: which job was recovered, and why. */
static void tell(void *arg, const lh_log_entry *entry)
{
    (void)arg;
    if (entry->level <= LH_LOG_WARN)
        fprintf(stderr, "%s\n", entry->line);
}

int main(int argc, char **argv)
{
    /* `startup`: after a crash, check and recover the store first. */
    const lh_open_opts how = {.startup = true, .log = tell};
    const lh_worker_opts who = {.label = "example", .process = true, .interval_ms = LEASE_MS / 3};
    long step_ms = argc == 4 ? strtol(argv[3], NULL, 10) : 50;
    char id[160];
    lh_store *store;

    if (argc < 3 || argc > 4) {
        fprintf(stderr, "usage: worker STORE QUEUE [MS]\n");
        return lh_status_exit(LH_EMISUSE);
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    int rc = lh_open(argv[1], &how, &store);
    if (rc == LH_OK)
        rc = lh_worker_register(store, &who, id, sizeof id);
    const char *queues[] = {argv[2]};
    const lh_claim_opts wish = {
        .queues = queues, .n_queues = 1, .worker = id, .lease_ms = LEASE_MS, .wait_ms = 500};
    while (rc == LH_OK) {
        lh_jobs *jobs = NULL;
        rc = lh_claim(store, &wish, &jobs);
        if (rc == LH_OK)
            rc = work_on(store, id, &jobs->job[0], step_ms);
        if (rc == LH_ELOST || rc == LH_ECANCELLED) {
            /* Another worker has it, or will have it. Go on with the next job. */
            fprintf(stderr, "%s\n", lh_errmsg(store));
            rc = LH_OK;
        }
        lh_jobs_free(jobs);
    }
    if (rc == LH_EMPTY)
        rc = lh_worker_stop(store, id);
    if (rc < 0)
        fprintf(stderr, "%s\n", lh_errmsg(store));
    lh_close(store);
    return lh_status_exit(rc);
}
