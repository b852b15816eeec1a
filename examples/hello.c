/* The smallest program: enqueue a job, claim it, complete it. */
#include <leasehold.h>
#include <stdio.h>

int main(void)
{
    const lh_open_opts create = {.create = true};
    const lh_new_job job = {.payload = "hello", .payload_len = 5};
    const char *queues[] = {"mail"};
    const lh_claim_opts wish = {
        .queues = queues, .n_queues = 1, .worker = "w-1", .lease_ms = 30000};
    lh_store *store;
    lh_enqueued made;
    lh_jobs *jobs = NULL;

    int rc = lh_open("hello.db", &create, &store);
    if (rc == LH_OK)
        rc = lh_enqueue(store, "mail", &job, 1, NULL, &made);
    if (rc == LH_OK)
        rc = lh_claim(store, &wish, &jobs);
    if (rc == LH_OK) {
        const lh_job *held = &jobs->job[0];
        printf("job %lld: %.*s\n", (long long)held->id, (int)held->payload_len,
               (const char *)held->payload);
        lh_done done = {.job = held->id, .token = held->token};
        rc = lh_complete(store, &done, 1, NULL, NULL);
    }
    if (rc != LH_OK)
        fprintf(stderr, "%s: %s\n", lh_status_name(rc), lh_errmsg(store));
    lh_jobs_free(jobs);
    lh_close(store);
    return lh_status_exit(rc);
}
