/*
 * lease_run.c: lh_lease_run(): running a command while a named lease is held.
 *
 * A guardian watches the command, as for a job, but in our session: the command uses the terminal, the
 * signals and the standard streams of this process. The guardian keeps the deadlines. This thread passes
 * signals on and waits for the end; another thread extends the lease.
 */
#include "worker/lease_run.h"

#include "base/clock.h"
#include "base/processes.h"
#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KILL_AFTER_MS = 5000, FLAG_MS = 100, LAST_MS = 2000 };

#define DAYS_30 (INT64_C(30) * 24 * 3600 * 1000)
#define WORKER "LEASEHOLD_WORKER"

/* ---- checking the arguments ---- */

static int check(const struct lease_run *run, char *const *command, struct lhi_error *err)
{
    if (command == NULL || command[0] == NULL)
        return lhi_fail(err, LH_EMISUSE, "there is no command to run");
    if (run->scope == NULL || run->name == NULL)
        return lhi_fail(err, LH_EMISUSE, "there is no lease to run under");
    if (LHI_NEED_RESERVED(&run->opts, err) != LH_OK)
        return err->status;
    if (run->opts.wait_ms < -1)
        return lhi_fail(err, LH_EINVAL, "wait must be -1 (forever) or at least 0 ms, got %lld",
                        (long long)run->opts.wait_ms);
    if (run->opts.kill_after_ms < 0 || run->opts.kill_after_ms > DAYS_30)
        return lhi_fail(err, LH_EINVAL,
                        "time from SIGTERM to SIGKILL is %lld ms: 0 to %lld is allowed",
                        (long long)run->opts.kill_after_ms, (long long)DAYS_30);
    return LH_OK;
}

/* Choose an owner that is unique to this run, unless the caller gave one. Only a unique owner may be registered
 * as a worker, because another process could use the given one, too. */
static int name_owner(struct lease_run *run, struct lhi_error *err)
{
    uint32_t nonce = 0;

    run->own_name = run->opts.owner == NULL;
    if (run->own_name && !lhi_random(&nonce, sizeof nonce))
        return lhi_fail(err, LH_EFAIL,
                        "could not make an owner name: the kernel has no randomness");
    if (run->own_name)
        lhi_format(run->owner, sizeof run->owner, "%.110s-%08x", lh_default_owner(run->store),
                   nonce);
    else
        lhi_format(run->owner, sizeof run->owner, "%s", run->opts.owner);
    return LH_OK;
}

static int prepare(struct lease_run *run, char *const *command, struct lhi_error *err)
{
    int rc = name_owner(run, err);

    if (rc != LH_OK)
        return rc;
    if ((run->command_path = find_command(command[0], err)) == NULL ||
        (run->guardian_path = find_guardian(run->opts.guardian, err)) == NULL)
        return err->status != LH_OK ? err->status : lhi_no_memory(err);
    /* Variables that are replaced. Those of a job that runs this program stay. */
    static const char *const not_passed_on[] = {"LEASEHOLD_LEASE=", "LEASEHOLD_TOKEN=", NULL};
    run->environment = make_environment(not_passed_on, run->owner, NULL);
    return run->environment ? LH_OK : lhi_no_memory(err);
}

/* ---- the guardian ---- */

static void our_signals(sigset_t *set)
{
    static const int passed_on[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

    (void)sigemptyset(set);
    for (size_t i = 0; i < sizeof passed_on / sizeof *passed_on; i++)
        (void)sigaddset(set, passed_on[i]);
}

/* Start the guardian before the lease is acquired, so that a failure here acquires nothing. */
static int start_guardian(struct lease_run *run, char *const *command, struct lhi_error *err)
{
    sigset_t set;

    our_signals(&set);
    if (run->opts.own_signals &&
        (run->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK)) < 0)
        return lhi_fail_errno(err, errno, "could not listen to signals");
    run->guardian = guardian_start(run->guardian_path, run->command_path, command, run->environment,
                                   false, &run->socket);
    if (run->guardian < 0)
        return lhi_fail_errno(err, errno, "the guardian \"%s\" could not be started",
                              run->guardian_path);
    if ((run->death = (int)syscall(SYS_pidfd_open, run->guardian, 0)) < 0)
        return lhi_fail_errno(err, errno, "could not watch a guardian");
    return LH_OK;
}

/* The guardian exits when the socket is closed. */
static void end_guardian(struct lease_run *run)
{
    struct pollfd end = {.fd = run->death, .events = POLLIN};

    if (run->socket >= 0)
        (void)close(run->socket);
    if (end.fd >= 0)
        (void)poll(&end, 1, LAST_MS);
    if (run->guardian > 0)
        (void)waitpid(run->guardian, NULL, WNOHANG);
    if (run->death >= 0)
        (void)close(run->death);
    if (run->signals >= 0)
        (void)close(run->signals);
}

/* Was descriptor 3 open when we were started? Then the command gets it; in the guardian 3 is the socket. */
static bool was_given(int fd)
{
    int flags = fcntl(fd, F_GETFD);
    return flags >= 0 && (flags & FD_CLOEXEC) == 0;
}

static int order_run(struct lease_run *run, struct lhi_error *err)
{
    char variables[600];
    int fds[GUARDIAN_FDS] = {-1, -1, -1, GUARDIAN_FD};
    size_t len =
        1 + lhi_format(variables, sizeof variables, "LEASEHOLD_LEASE=%s/%s", run->scope, run->name);

    len += 1 + lhi_format(variables + len, sizeof variables - len, "LEASEHOLD_TOKEN=%lld",
                          (long long)run->token);
    struct guardian_message m = lease_times(run, GUARDIAN_RUN);
    m.fds = was_given(GUARDIAN_FD) ? 1U << GUARDIAN_FD : 0;
    /* Give the order first, so that the guardian keeps the first deadline. */
    if (!lease_order(run, &m, variables, len, fds))
        return lhi_fail_errno(err, errno, "the guardian \"%s\" is gone", run->guardian_path);
    if (extender_start(run))
        return LH_OK;
    lease_stop(run);
    return lhi_fail(err, LH_ENOMEM, "could not start a thread to extend the lease");
}

/* ---- after the guardian was killed ---- */

struct sweep {
    const struct lease_run *run;
    int64_t until;
    size_t found; /* in this search */
    bool left;    /* a process was killed but has not ended */
};

/* Wait until a killed child is gone. */
static void await_end(struct sweep *sweep, pid_t pid)
{
    while (waitpid(pid, NULL, WNOHANG) == 0) {
        if (lease_now(sweep->run) >= sweep->until) {
            sweep->left = true;
            return;
        }
        lhi_sleep_ms(1);
    }
}

/* The command was killed with the guardian. Processes that it had started are our children now. */
static void sweep_one(void *arg, const struct lhi_met *met)
{
    struct sweep *sweep = arg;
    const struct lease_run *run = sweep->run;
    struct lhi_process process;

    /* A process that does only this has no other children. */
    bool ours = run->opts.own_signals || strcmp(met->value, run->owner) == 0;
    if (!ours || met->pid == run->guardian || lhi_met_read(met, &process) != 0 ||
        process.parent != getpid())
        return;
    sweep->found++;
    (void)lhi_process_kill(met->pid, process.start);
    await_end(sweep, (pid_t)met->pid);
}

/* Kill everything. False: something may be left. */
static bool sweep_all(const struct lease_run *run)
{
    struct sweep sweep = {.run = run, .until = lease_now(run) + LAST_MS};

    if (run->command > 0)
        await_end(&sweep, run->command);
    do {
        sweep.found = 0;
        if (!lhi_meet_processes(WORKER, sweep_one, &sweep))
            return false;
    } while (sweep.found > 0 && !sweep.left); /* the ended processes may have had children */
    return !sweep.left;
}

/* ---- while the command runs ---- */

/* Pass signals on, except those of the terminal, which the command gets itself. */
static void pass_on(struct lease_run *run)
{
    struct signalfd_siginfo info;

    while (read(run->signals, &info, sizeof info) == (ssize_t)sizeof info) {
        struct guardian_message m = {.order = GUARDIAN_SIGNAL, .signal = info.ssi_signo};
        if (info.ssi_code != SI_KERNEL)
            (void)guardian_order(run->socket, &m, NULL, 0, NULL);
    }
}

static int refused(const struct lease_run *run, int error, struct lhi_error *err)
{
    char words[80];

    if (error == ETIME) /* the machine was suspended for longer than the lease */
        return lhi_fail(err, LH_ELOST, "lease \"%s/%.140s\" had ended before the command began",
                        run->scope, run->name);
    return lhi_fail(err, LH_EINVAL, "command \"%.200s\" cannot be run: %s", run->command_path,
                    strerror_r(error, words, sizeof words));
}

/* Read a report of the guardian. LH_EMPTY: the command still runs. */
static int read_report(struct lease_run *run, bool *stopped, struct lhi_error *err)
{
    struct guardian_answer answer;

    while (recv(run->socket, &answer, sizeof answer, MSG_DONTWAIT) == (ssize_t)sizeof answer) {
        if (answer.report == GUARDIAN_REFUSED)
            return refused(run, answer.error, err);
        if (answer.report == GUARDIAN_STARTED)
            run->command = answer.pid;
        if (answer.report != GUARDIAN_ENDED)
            continue;
        run->status = answer.status;
        *stopped = answer.stopped;
        return LH_OK;
    }
    return LH_EMPTY;
}

static bool cancelled(const struct lease_run *run)
{
    return lh_flag_raised(run->opts.cancel) != 0;
}

/* Wait until the command and all its descendants are gone. */
static int attend(struct lease_run *run, bool *stopped, struct lhi_error *err)
{
    struct pollfd fds[] = {{.fd = run->socket, .events = POLLIN},
                           {.fd = run->death, .events = POLLIN},
                           {.fd = run->signals, .events = POLLIN}};
    int rc = LH_EMPTY;

    while (rc == LH_EMPTY) {
        if (cancelled(run))
            lease_stop(run);
        if (poll(fds, 3, run->opts.cancel ? FLAG_MS : -1) < 0)
            continue;
        if (fds[2].revents != 0)
            pass_on(run);
        rc = read_report(run, stopped, err);
        if (rc == LH_EMPTY && fds[1].revents != 0)
            return lhi_fail(err, LH_EFAIL, "the guardian was killed, and the command with it");
    }
    return rc;
}

/* ---- the end ---- */

/* Was the lease released under our own token (by the command, with `lease complete`) and not acquired since?
 * Then it was not lost. */
static bool given_back_for_us(struct lease_run *run)
{
    lh_leases *leases = NULL;
    bool ours = lh_lease_get(run->store, run->scope, run->name, &leases) == LH_OK &&
                leases->lease[0].owner == NULL && leases->lease[0].token == run->token;

    lh_leases_free(leases);
    return ours;
}

static int lost(const struct lease_run *run, const char *why, struct lhi_error *err)
{
    return lhi_fail(err, LH_ELOST, "lease \"%s/%.140s\" was lost while the command ran%s%s",
                    run->scope, run->name, why[0] ? ": " : "", why);
}

static int give_back(struct lease_run *run, struct lhi_error *err)
{
    lh_lease_opts opts = {.owner = run->owner, .token = run->token};
    bool released = false;
    int rc = lh_lease_release(run->store, run->scope, run->name, &opts, &released);

    if (rc == LH_EBUSY)
        rc = lh_lease_release(run->store, run->scope, run->name, &opts, &released);
    if (rc == LH_EHELD || (rc == LH_OK && !released && !given_back_for_us(run)))
        return lost(run, rc == LH_EHELD ? lh_errmsg(run->store) : "", err);
    if (rc != LH_OK)
        return lhi_fail(err, rc, "lease \"%s/%.140s\" could not be released: %s", run->scope,
                        run->name, lh_errmsg(run->store));
    return LH_OK;
}

/* Choose the outcome, the most serious one first. */
static int judge(const struct lease_run *run, int ended, bool stopped, struct lhi_error *err)
{
    if (ended != LH_OK)
        return ended;
    if (__atomic_load_n(&run->lost, __ATOMIC_ACQUIRE))
        return lost(run, run->error, err);
    if (stopped && cancelled(run))
        return lhi_fail(err, LH_EINTR, "the command was stopped");
    if (stopped)
        return lhi_fail(err, LH_ELOST,
                        "lease \"%s/%.140s\" was not extended in time, the command was stopped%s%s",
                        run->scope, run->name, run->error[0] ? ": " : "", run->error);
    return LH_OK;
}

/* Run the command, then release the lease. */
static int hold(struct lease_run *run, struct lhi_error *err)
{
    struct lhi_error release = {0};
    bool stopped = false;
    int rc = order_run(run, err);

    if (rc == LH_OK)
        rc = attend(run, &stopped, err);
    extender_quit(run);
    bool clean = rc != LH_EFAIL || sweep_all(run);
    int given = clean ? give_back(run, &release) : LH_OK;
    extender_join(run);
    rc = judge(run, rc, stopped, err);
    if (rc == LH_OK && given != LH_OK) {
        *err = release;
        rc = given;
    }
    /* A lease that could not be released is free when this process has ended. */
    if (run->enrolled && clean && (given == LH_OK || given == LH_ELOST))
        (void)lh_worker_stop(run->store, run->owner);
    return rc;
}

/* ---- the call ---- */

static void clear(struct lease_run *run)
{
    end_guardian(run);
    lease_taken(run);
    free_environment(run->environment, false);
    lhi_free(run->command_path);
    lhi_free(run->guardian_path);
    (void)pthread_mutex_destroy(&run->mutex);
}

static int run_under(struct lease_run *run, char *const *command, struct lhi_error *err)
{
    int rc = prepare(run, command, err);

    if (rc == LH_OK)
        rc = start_guardian(run, command, err);
    if (rc == LH_OK)
        rc = lease_take(run, err);
    return rc == LH_OK ? hold(run, err) : rc;
}

int lh_lease_run(lh_store *store, const char *scope, const char *name, char *const *command,
                 const lh_lease_run_opts *opts, int *status, char *errmsg, size_t errlen)
{
    static const lh_lease_run_opts defaults;
    struct lease_run run = {
        .store = store, .clock = lh_store_clock(store), .scope = scope, .name = name};
    struct process_state before;
    sigset_t ours;
    struct lhi_error err;

    lhi_error_clear(&err);
    run.opts = opts ? *opts : defaults;
    run.socket = run.death = run.signals = run.quit = -1;
    int rc = check(&run, command, &err);
    if (rc == LH_OK)
        rc = check_system(&err);
    if (rc == LH_OK) {
        if (run.opts.kill_after_ms == 0)
            run.opts.kill_after_ms = KILL_AFTER_MS;
        (void)pthread_mutex_init(&run.mutex, NULL);
        (void)sigemptyset(&ours);
        if (run.opts.own_signals)
            our_signals(&ours);
        change_process_state(&ours, true, &before);
        run.mask = before.mask;
        rc = run_under(&run, command, &err);
        clear(&run);
        restore_process_state(&before);
        if (status != NULL && (rc == LH_OK || rc == LH_ELOST))
            *status = run.status;
    }
    if (errmsg != NULL && errlen > 0)
        lhi_format(errmsg, errlen, "%s", rc == LH_OK ? "" : err.text);
    return rc;
}
