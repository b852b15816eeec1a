/*
 * run.c: lh_worker_run(): checking the options, setting up the worker and clearing it.
 */
#include "worker/worker.h"

#include "base/notify.h"
#include "base/sys.h"

#include <errno.h>
#include <pwd.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

enum {
    MOST_JOBS = 1000,
    MOST_QUEUES = 64,
    GRACE_MS = 30000,
    KILL_AFTER_MS = 5000,
    HEARTBEAT_MS = 30000,
    MULTIPLIER = 3,
    DETECTION_MS = 60000,
};

#define DAYS_30 (INT64_C(30) * 24 * 3600 * 1000)

/* ---- checking the options ---- */

static int check_numbers(const lh_work_opts *opts, struct lhi_error *err)
{
    const struct {
        const char *what;
        int64_t value, least, most;
    } limits[] = {
        {"number of jobs at once", (int64_t)opts->jobs, 0, MOST_JOBS},
        {"number of jobs claimed in advance", (int64_t)opts->ahead, 0, MOST_JOBS},
        {"lease", opts->lease_ms, 0, DAYS_30},
        {"heartbeat", opts->heartbeat_ms, 0, DAYS_30},
        {"multiplier", opts->multiplier, 0, 1000},
        {"timeout", opts->timeout_ms, 0, 122 * DAYS_30},
        {"rate", opts->rate_n, 0, 1000000000},
        {"time of the rate", opts->rate_per_ms, opts->rate_n > 0, DAYS_30},
        {"grace", opts->grace_ms, LH_NOW, DAYS_30},
        {"time from SIGTERM to SIGKILL", opts->kill_after_ms, 0, DAYS_30},
        {"detection interval", opts->detection_ms, 0, DAYS_30},
    };

    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (limits[i].value < limits[i].least || limits[i].value > limits[i].most)
            return lhi_fail(err, LH_EINVAL, "%s is %lld: %lld to %lld is allowed", limits[i].what,
                            (long long)limits[i].value, (long long)limits[i].least,
                            (long long)limits[i].most);
    return LH_OK;
}

static int check_names(const char *what, const char *const *names, size_t n, struct lhi_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (!lh_name_ok(names[i]))
            return lhi_fail(err, LH_EINVAL,
                            "%s \"%s\" is not a name: 1 to 128 bytes of A-Z a-z 0-9 . _ : @ - are "
                            "allowed",
                            what, names[i] ? names[i] : "");
    return LH_OK;
}

static int check_opts(const lh_work_opts *opts, struct lhi_error *err)
{
    if (opts == NULL || opts->queues == NULL || opts->n_queues == 0)
        return lhi_fail(err, LH_EMISUSE, "a worker needs a queue");
    if ((opts->handler == NULL) == (opts->command == NULL || opts->command[0] == NULL))
        return lhi_fail(err, LH_EMISUSE, "a worker needs either a handler or a command");
    if (opts->n_queues > MOST_QUEUES)
        return lhi_fail(err, LH_EINVAL, "%zu queues are too many: 1 to %d are allowed",
                        opts->n_queues, MOST_QUEUES);
    int rc = LHI_NEED_RESERVED(opts, err);
    if (rc == LH_OK)
        rc = check_names("queue", opts->queues, opts->n_queues, err);
    if (rc == LH_OK)
        rc = check_names("kind", opts->kinds, opts->kinds ? opts->n_kinds : 0, err);
    return rc == LH_OK ? check_numbers(opts, err) : rc;
}

static void fill_in(lh_work_opts *opts)
{
    opts->jobs = opts->jobs ? opts->jobs : 1;
    if (opts->once) {
        opts->jobs = 1;
        opts->ahead = 0;
    }
    opts->heartbeat_ms = opts->heartbeat_ms ? opts->heartbeat_ms : HEARTBEAT_MS;
    opts->multiplier = opts->multiplier ? opts->multiplier : MULTIPLIER;
    opts->grace_ms = opts->grace_ms ? opts->grace_ms : GRACE_MS;
    opts->kill_after_ms = opts->kill_after_ms ? opts->kill_after_ms : KILL_AFTER_MS;
    opts->detection_ms = opts->detection_ms ? opts->detection_ms : DETECTION_MS;
}

/* ---- registering ---- */

static void join_queues(const lh_work_opts *opts, char *buf, size_t len)
{
    size_t used = 0;

    buf[0] = '\0';
    for (size_t i = 0; i < opts->n_queues && used < len - 1; i++)
        used += lhi_format(buf + used, len - used, "%s%s", i ? "," : "", opts->queues[i]);
}

static void default_label(char *buf, size_t len)
{
    char host[64] = "localhost", room[1024];
    struct passwd entry, *user = NULL;

    (void)gethostname(host, sizeof host - 1);
    host[sizeof host - 1] = '\0';
    (void)getpwuid_r(geteuid(), &entry, room, sizeof room, &user);
    lhi_format(buf, len, "%.40s@%.60s", user ? user->pw_name : "worker", host);
    if (!lh_name_ok(buf))
        lhi_format(buf, len, "worker");
}

int worker_enrol(struct worker *w, lh_store *store)
{
    char queues[MOST_QUEUES * 130], label[120], made[sizeof w->id];

    join_queues(&w->opts, queues, sizeof queues);
    default_label(label, sizeof label);
    lh_worker_opts opts = {.id = w->id[0] != '\0' ? w->id : NULL,
                           .label = w->opts.label ? w->opts.label : label,
                           .queues = queues,
                           .interval_ms = w->opts.heartbeat_ms,
                           .multiplier = w->opts.multiplier,
                           .process = true,
                           .sessions = w->record.n_sessions > 0 ? w->record.sessions : NULL,
                           .n_sessions = w->record.n_sessions,
                           .tells_started = w->opts.ahead > 0};
    int rc = lh_worker_register(store, &opts, made, sizeof made);
    if (rc == LH_OK && w->id[0] == '\0')
        lhi_format(w->id, sizeof w->id, "%s", made);
    return rc;
}

/* ---- setting up and clearing ---- */

static bool start_store_calls(struct worker *w)
{
    return store_call_start(w, &w->claim_call) && store_call_start(w, &w->heartbeat_call) &&
           store_call_start(w, &w->outcome_call) && store_call_start(w, &w->record_call) &&
           store_call_start(w, &w->output_call) && store_call_start(w, &w->maintain_call) &&
           store_call_start(w, &w->open_call);
}

/* Set up the worker. Its registration counts as the first heartbeat. */
static int make(struct worker *w, struct lhi_error *err)
{
    lh_store_info info;
    int rc;

    if ((rc = check_system(err)) != LH_OK)
        return rc;
    if (!loop_init(w))
        return lhi_fail_errno(err, errno, "could not set up the worker's loop");
    if (!claims_init(w) || !outcomes_init(w) || !record_init(w) || !output_init(w) ||
        !heartbeats_init(w))
        return lhi_no_memory(err);
    if (w->opts.command != NULL &&
        (rc = command_locate(&w->opts, &w->command_path, &w->guardian_path, err)) != LH_OK)
        return rc;
    if ((rc = lh_store_status(w->store, &info)) != LH_OK)
        return lhi_fail(err, rc, "%s", lh_errmsg(w->store));
    lhi_format(w->store_uuid, sizeof w->store_uuid, "%s", info.uuid);
    w->confirmed_at = worker_now(w);
    if ((rc = worker_enrol(w, w->store)) != LH_OK)
        return lhi_fail(err, rc, "%s", lh_errmsg(w->store));
    if (w->opts.command != NULL && (rc = command_init(w, err)) != LH_OK)
        return rc;
    if (!start_store_calls(w) || (w->opts.handler != NULL && !handlers_start(w)))
        return lhi_fail(err, LH_ENOMEM, "could not start the worker's threads");
    /* Start a guardian before the first claim, so that nothing is claimed if that fails. */
    if (w->opts.command != NULL && !guard_new(w))
        return lhi_fail(err, LH_EFAIL, "the guardian \"%s\" could not be started",
                        w->guardian_path);
    return LH_OK;
}

static void take_down(struct worker *w)
{
    struct store_call *calls[STORE_CALLS] = {&w->claim_call,  &w->heartbeat_call, &w->outcome_call,
                                             &w->record_call, &w->output_call,    &w->maintain_call,
                                             &w->open_call};

    claims_cancel(w);
    maintain_cancel(w);
    if (w->opts.handler != NULL && w->handlers != NULL)
        handlers_stop(w);
    for (size_t i = 0; i < STORE_CALLS; i++)
        store_call_stop(calls[i]);
    command_clear(w);
    for (size_t i = 0; i < w->n_tasks && w->tasks != NULL; i++) {
        w->left_running = w->left_running || w->tasks[i].guard != NULL || w->tasks[i].unguarded;
        task_free(&w->tasks[i]);
    }
    lhi_free(w->tasks);
    if (w->claim.jobs != NULL) /* claimed during the stop: their leases expire */
        lh_jobs_free(w->claim.jobs);
    outcomes_clear(w);
    record_clear(w);
    output_end(w);
    heartbeats_clear(w);
    loop_clear(w);
    (void)pthread_mutex_destroy(&w->mutex);
    (void)pthread_cond_destroy(&w->work);
}

/* Mark the worker as stopped and release its jobs; without a store, their leases expire. */
static void unregister(struct worker *w, struct lhi_error *err)
{
    /* If a command could not be killed, its job must not be released before its lease expires. */
    bool may = w->store != NULL && !w->reopen && !w->left_running;
    int rc = may ? lh_worker_stop(w->store, w->id) : LH_OK;

    if (rc < 0 && w->rc == LH_OK) {
        w->rc = rc;
        (void)lhi_fail(err, rc, "%s", lh_errmsg(w->store));
    }
}

/* Discard signals that arrived after the worker had stopped. */
static void forget_signals(const sigset_t *ours)
{
    const struct timespec none = {0};

    while (sigtimedwait(ours, NULL, &none) > 0)
        continue;
}

static int run(struct worker *w, struct lhi_error *err)
{
    int rc = make(w, err);

    if (rc == LH_OK) {
        lhi_notify("READY=1");
        worker_report(w, &(lh_work_event){.what = LH_WORK_READY}, NULL);
        worker_loop(w);
        if (w->rc < 0)
            (void)lhi_fail(err, w->rc, "%s", w->error);
    } else {
        w->rc = rc;
    }
    return w->rc;
}

static void copy_reason(const struct lhi_error *err, char *errmsg, size_t errlen)
{
    if (errmsg != NULL && errlen > 0)
        lhi_format(errmsg, errlen, "%s", err->text);
}

int lh_worker_check(const lh_work_opts *opts, char *errmsg, size_t errlen)
{
    struct lhi_error err;
    char *command = NULL, *guardian = NULL;

    lhi_error_clear(&err);
    int rc = check_opts(opts, &err);
    if (rc == LH_OK)
        rc = check_system(&err);
    if (rc == LH_OK && opts->command != NULL)
        rc = command_locate(opts, &command, &guardian, &err);
    lhi_free(command);
    lhi_free(guardian);
    copy_reason(&err, errmsg, errlen);
    return rc;
}

static void copy_tally(const struct worker *w, lh_work_tally *tally)
{
    if (tally == NULL)
        return;
    *tally = w ? w->tally : (lh_work_tally){0};
    lhi_format(tally->worker, sizeof tally->worker, "%s", w ? w->id : "");
}

int lh_worker_run(lh_store *store, const lh_work_opts *opts, lh_work_tally *tally, char *errmsg,
                  size_t errlen)
{
    struct lhi_error err;
    struct process_state before;
    sigset_t ours;

    lhi_error_clear(&err);
    int rc = check_opts(opts, &err);
    struct worker *w = rc == LH_OK ? lhi_calloc(1, sizeof *w) : NULL;
    if (w == NULL) {
        rc = rc == LH_OK ? lhi_no_memory(&err) : rc;
        copy_tally(NULL, tally);
        copy_reason(&err, errmsg, errlen);
        return rc;
    }
    w->store = store;
    w->clock = lh_store_clock(store);
    w->opts = *opts;
    w->epoll = w->wakeup.fd = w->signals.fd = -1;
    w->run_us = -1;
    (void)pthread_mutex_init(&w->mutex, NULL);
    (void)pthread_cond_init(&w->work, NULL);
    fill_in(&w->opts);
    (void)sigemptyset(&ours);
    if (w->opts.own_signals)
        stop_signals(&ours);
    change_process_state(&ours, w->opts.command != NULL, &before);
    (void)run(w, &err);
    take_down(w);
    if (w->id[0] != '\0')
        unregister(w, &err);
    worker_report(w, &(lh_work_event){.what = LH_WORK_STOPPED}, NULL);
    if (w->opts.own_signals)
        forget_signals(&ours);
    restore_process_state(&before);
    rc = w->rc;
    copy_tally(w, tally);
    copy_reason(&err, errmsg, errlen);
    lhi_free(w);
    return rc;
}
