/* See worker_processes.h. */
#include "race/worker_processes.h"

#include "base/hook.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

lh_log_fn *crew_log;
void *crew_log_arg;

lh_store *crew_open(void)
{
    lh_store *store = NULL;
    lh_open_opts opts = {
        .create = true, .busy_ms = TEST_BUSY_MS, .log = crew_log, .log_arg = crew_log_arg};
    int rc = lh_open(test_store(), &opts, &store);

    if (rc != LH_OK)
        FAIL("%s: %s", lh_status_name(rc), lh_errmsg(store));
    return store;
}

/* ---------------------------------------------------------------- in the process of the worker */

struct worker {
    lh_store *store;
    const char *name;
    int orders, answers;
    int64_t job, token;
};

static int claim(struct worker *w, int64_t wait_ms)
{
    const char *queue = "q";
    lh_jobs *jobs = NULL;
    lh_claim_opts opts = {.queues = &queue,
                          .n_queues = 1,
                          .worker = w->name,
                          .lease_ms = HOLD_MS,
                          .wait_ms = wait_ms};
    int rc = lh_claim(w->store, &opts, &jobs);

    if (rc == LH_OK) {
        w->job = jobs->job[0].id;
        w->token = jobs->job[0].token;
    }
    lh_jobs_free(jobs);
    return rc;
}

static int hold(struct worker *w)
{
    lh_enqueued out;
    int rc =
        lh_enqueue(w->store, "q", &(lh_new_job){.payload = "x", .payload_len = 1}, 1, NULL, &out);
    return rc == LH_OK ? claim(w, 0) : rc;
}

static int act(struct worker *w, enum deed deed)
{
    lh_beat beat = {.job = w->job, .token = w->token};
    lh_done done = {.job = w->job, .token = w->token};

    switch (deed) {
    case HOLD:
        return hold(w);
    case WAIT:
        return claim(w, -1);
    case COMPLETE:
        return lh_complete(w->store, &done, 1, NULL, NULL);
    case BEAT:
        return lh_heartbeat(w->store, &beat, 1, NULL, NULL);
    case BEAT_WORKER:
        return lh_worker_heartbeat(w->store, w->name, 0, &beat, 1, NULL);
    case LEAVE:
        _exit(0);
    case STOP:
    case FIRST_LEAVES:
    case QUIT:
    default:
        return LH_OK;
    }
}

static void *obey(void *arg)
{
    struct worker *w = arg;
    enum deed deed = HOLD;

    while (deed != QUIT && read(w->orders, &deed, sizeof deed) == sizeof deed) {
        struct answer answer = {.status = act(w, deed)};
        answer.job = w->job;
        answer.token = w->token;
        answer.at_ns = now_ns();
        if (deed == QUIT)
            lh_close(w->store);
        EXPECT_EQ(write(w->answers, &answer, sizeof answer), sizeof answer);
        if (deed == STOP)
            (void)raise(SIGSTOP);
        if (deed == FIRST_LEAVES) {
            pthread_t heir;
            EXPECT_EQ(pthread_create(&heir, NULL, obey, w), 0);
            pthread_exit(NULL);
        }
    }
    test_child_done();
}

static void serve(const char *name, const lh_worker_opts *opts, int orders, int answers)
{
    static struct worker w; /* used after the first thread has ended */
    struct answer ready = {.status = LH_OK};
    char id[160];

    w = (struct worker){.store = crew_open(), .name = name, .orders = orders, .answers = answers};
    if (opts != NULL) {
        lh_worker_opts mine = *opts;
        mine.id = name;
        EXPECT_OK(lh_worker_register(w.store, &mine, id, sizeof id));
    }
    EXPECT_EQ(write(answers, &ready, sizeof ready), sizeof ready);
    (void)obey(&w);
}

/* ---------------------------------------------------------------- in the test */

enum place { HERE, ANOTHER_PID_NAMESPACE, ANOTHER_TIME };

/* For the children of this process. False: this user or this kernel cannot make one. */
static bool enter_namespace(enum place place)
{
    if (place == ANOTHER_TIME)
        return test_new_time_namespace(100000);
    return unshare(CLONE_NEWPID) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWPID) == 0;
}

static struct hand start(lh_store **store, const char *name, const lh_worker_opts *opts,
                         enum place place)
{
    int orders[2], answers[2];
    struct hand hand;
    struct answer ready;

    EXPECT(pipe(orders) == 0 && pipe(answers) == 0);
    (void)snprintf(hand.name, sizeof hand.name, "%s", name);
    hand.orders = orders[1];
    hand.answers = answers[0];
    hand.pid = test_fork_reopening(store, crew_open);
    if (hand.pid == 0) {
        close(answers[0]);
        if (place != HERE && !enter_namespace(place))
            test_child_done(); /* and the pipe closes */
        pid_t inner = place != HERE ? test_fork() : 0;
        if (inner == 0)
            serve(hand.name, opts, orders[0], answers[1]);
        close(answers[1]);
        (void)test_wait(inner);
        test_child_done();
    }
    close(orders[0]);
    close(answers[1]);
    if (read(hand.answers, &ready, sizeof ready) != sizeof ready) {
        if (place == HERE)
            FAIL("worker \"%s\" did not start", name);
        hand_reap(&hand);
    }
    return hand;
}

struct hand hand_start(lh_store **store, const char *name, const lh_worker_opts *opts)
{
    return start(store, name, opts, HERE);
}

struct hand hand_start_elsewhere(lh_store **store, const char *name, const lh_worker_opts *opts)
{
    return start(store, name, opts, ANOTHER_PID_NAMESPACE);
}

struct hand hand_start_at_another_time(lh_store **store, const char *name,
                                       const lh_worker_opts *opts)
{
    return start(store, name, opts, ANOTHER_TIME);
}

void tell(struct hand *hand, enum deed deed)
{
    EXPECT_EQ(write(hand->orders, &deed, sizeof deed), sizeof deed);
}

struct answer hear(struct hand *hand)
{
    struct answer answer;

    if (read(hand->answers, &answer, sizeof answer) != sizeof answer)
        FAIL("worker \"%s\" does not answer", hand->name);
    return answer;
}

struct answer ask(struct hand *hand, enum deed deed)
{
    tell(hand, deed);
    return hear(hand);
}

void hand_kill(const struct hand *hand)
{
    EXPECT_EQ(kill(hand->pid, SIGKILL), 0);
}

void hand_reap(struct hand *hand)
{
    (void)test_wait(hand->pid);
    hand->pid = 0;
    close(hand->orders);
    close(hand->answers);
}

void hand_quit(struct hand *hand)
{
    EXPECT_OK(ask(hand, QUIT).status);
    EXPECT_EQ(test_wait(hand->pid).code, 0);
    close(hand->orders);
    close(hand->answers);
}

void await_stop(const struct hand *hand)
{
    int status = 0;

    EXPECT_EQ(waitpid(hand->pid, &status, WUNTRACED), hand->pid);
    EXPECT(WIFSTOPPED(status));
}

void hand_continue(const struct hand *hand)
{
    EXPECT_EQ(kill(hand->pid, SIGCONT), 0);
}

/* ---------------------------------------------------------------- time */

void clock_start(void)
{
    EXPECT_EQ(setenv("LHI_TEST_CONTROL", "control", 1), 0);
    (void)lhi_control();
}

void clock_advance_ms(int64_t ms)
{
    __atomic_add_fetch(&lhi_control()->wall_ms, ms, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&lhi_control()->mono_ms, ms, __ATOMIC_SEQ_CST);
}

void polls_stop(void)
{
    enum { HOUR_MS = 3600000 };
    __atomic_store_n(&lhi_control()->poll_ms, HOUR_MS, __ATOMIC_SEQ_CST);
}

int64_t now_ns(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

void pause_between_looks(void)
{
    (void)nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
}

/* ---------------------------------------------------------------- looking */

lh_job job_now(lh_store *store, int64_t id)
{
    lh_jobs *jobs = NULL;

    EXPECT_OK(lh_job_get(store, id, &jobs));
    lh_job job = jobs->job[0];
    job.queue = job.kind = job.worker = job.last_error = NULL; /* freed with the list */
    lh_jobs_free(jobs);
    return job;
}

void expect_sound(lh_store *store)
{
    lh_findings *findings = NULL;

    EXPECT_OK(lh_check(store, NULL, &findings));
    for (size_t i = 0; i < findings->n; i++)
        if (strcmp(findings->finding[i].level, "error") == 0)
            FAIL("check: %s: %s", findings->finding[i].what, findings->finding[i].text);
    lh_findings_free(findings);
}
