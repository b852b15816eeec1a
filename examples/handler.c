/*
 * A worker whose jobs are calls of a function, four at a time. It counts the words of each payload. The
 * library renews the leases. Ctrl-C and SIGTERM stop the worker gracefully.
 *
 *     handler STORE QUEUE          ends when no job is pending
 */
#include <ctype.h>
#include <leasehold.h>
#include <stdio.h>

static lh_outcome count_words(void *arg, lh_task *task, const lh_job *job)
{
    const char *text = job->payload;
    char result[32];
    long words = 0;

    (void)arg;
    if (job->payload_len == 0) {
        lh_task_error(task, "the payload is empty");
        return LH_RAN_PERMANENT; /* nor will it have words next time */
    }
    for (size_t i = 0; i < job->payload_len; i++) {
        /* Another worker may have the job, or this one must stop: the store refuses our result. */
        if (lh_task_lost(task))
            return LH_RAN_NOT_NOW;
        if (!isspace((unsigned char)text[i]) && (i == 0 || isspace((unsigned char)text[i - 1])))
            words++;
    }
    lh_task_progress(task, 100);
    lh_task_result(task, result, (size_t)snprintf(result, sizeof result, "{\"words\":%ld}", words));
    return LH_RAN_OK;
}

int main(int argc, char **argv)
{
    const lh_open_opts how = {.create = true, .startup = true};
    const char *queues[] = {argc == 3 ? argv[2] : ""};
    const lh_work_opts work = {.queues = queues,
                               .n_queues = 1,
                               .label = "words",
                               .jobs = 4,
                               .ahead = 100,
                               .drain = true,
                               .handler = count_words,
                               .own_signals = true};
    lh_work_tally tally = {0};
    char why[300] = "";
    lh_store *store;

    if (argc != 3) {
        fprintf(stderr, "usage: handler STORE QUEUE\n");
        return lh_status_exit(LH_EMISUSE);
    }
    int rc = lh_open(argv[1], &how, &store);
    if (rc < 0)
        fprintf(stderr, "%s\n", lh_errmsg(store));
    else if ((rc = lh_worker_run(store, &work, &tally, why, sizeof why)) < 0)
        fprintf(stderr, "%s\n", why);
    printf("completed %lld, failed %lld\n", (long long)tally.completed, (long long)tally.failed);
    lh_close(store);
    return lh_status_exit(rc);
}
