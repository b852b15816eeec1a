/*
 * A server that forks its children first, as gunicorn or PHP-FPM do: the parent has no store open
 * while it forks, and every child opens its own handle. A child that dies is replaced.
 *
 *     prefork STORE QUEUE          ends when no job is pending
 */
#include <leasehold.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILDREN = 3 };

/* Close the handle, after the reason was read from it. */
static int end(int rc, lh_store *store)
{
    if (rc < 0)
        fprintf(stderr, "%s: %s\n", lh_status_name(rc), lh_errmsg(store));
    lh_close(store);
    return lh_status_exit(rc < 0 ? rc : LH_OK);
}

/* In a child: a handle of its own, opened after the fork. */
static int serve(const char *path, const char *queue)
{
    char worker[32];
    lh_store *store;
    lh_jobs *jobs = NULL;

    snprintf(worker, sizeof worker, "child-%d", (int)getpid());
    const lh_claim_opts wish = {.queues = &queue, .n_queues = 1, .worker = worker};
    int rc = lh_open(path, NULL, &store);
    while (rc == LH_OK && (rc = lh_claim(store, &wish, &jobs)) == LH_OK) {
        lh_done done = {.job = jobs->job[0].id, .token = jobs->job[0].token};
        rc = lh_complete(store, &done, 1, NULL, NULL);
        lh_jobs_free(jobs);
    }
    return end(rc, store);
}

/* In the parent: whatever it does in the store, it closes the store again before the next fork. */
static int prepare(const char *path)
{
    const lh_open_opts create = {.create = true, .startup = true};
    lh_store *store;
    int rc = lh_open(path, &create, &store);

    return end(rc, store);
}

static pid_t start_child(const char *path, const char *queue)
{
    pid_t pid = fork();

    if (pid == 0)
        exit(serve(path, queue));
    return pid;
}

int main(int argc, char **argv)
{
    int running = 0, status, worst = 0;

    if (argc != 3) {
        fprintf(stderr, "usage: prefork STORE QUEUE\n");
        return lh_status_exit(LH_EMISUSE);
    }
    if ((worst = prepare(argv[1])) != 0)
        return worst;
    while (running < CHILDREN && start_child(argv[1], argv[2]) > 0)
        running++;
    while (running > 0 && wait(&status) > 0) {
        if (WIFSIGNALED(status) && start_child(argv[1], argv[2]) > 0)
            continue; /* it was killed: another one takes its place */
        running--;
        if (WIFEXITED(status) && WEXITSTATUS(status) > worst)
            worst = WEXITSTATUS(status);
    }
    return worst;
}
