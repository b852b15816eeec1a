/*
 * guard.c: the guardians of a worker, as the worker sees them.
 *
 * There are as many guardians as jobs run at once. They are started when they are needed and then
 * reused. Each leads a process session in which its jobs run one after the other, so the sessions are
 * in the worker's record long before a job runs in them.
 */
#include "worker/worker.h"

#include "base/clock.h"
#include "base/processes.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    LAST_MS = 2000,
    SWEEP_MS = 3,
    SWEEP_MOST_MS = 1000,
    SWEPT_CLEAN = 3,
}; /* how long to wait for a guardian whose command cannot be killed */

/* ---- starting a guardian ---- */

static int in_guardian(void *arg)
{
    const int *fd = arg;

    if (setsid() < 0)
        return errno;
    spawn_plain_signals();
    return spawn_fd(*fd, GUARDIAN_FD);
}

/* For lh_lease_run(): the guardian stays in our session, so that the command can use the terminal, but
 * leaves our process group, so that a signal to the group does not kill it. Signals stay blocked. Signals
 * that were ignored stay ignored. */
static int with_us(void *arg)
{
    const int *fd = arg;
    struct sigaction plain = {.sa_handler = SIG_DFL};

    if (setpgid(0, 0) != 0)
        return errno;
    (void)sigaction(SIGPIPE, &plain, NULL);
    (void)sigaction(SIGXFSZ, &plain, NULL);
    return spawn_fd(*fd, GUARDIAN_FD);
}

pid_t guardian_start(const char *guardian, const char *path, char *const *command,
                     char *const *environment, bool session, int *socket)
{
    int pair[2], n = 0;

    while (command[n] != NULL)
        n++;
    char **argv = lhi_calloc((size_t)n + 3, sizeof *argv);
    if (argv == NULL) {
        errno = ENOMEM;
        return -1;
    }
    argv[0] = (char *)(uintptr_t) "leasehold-guardian";
    argv[1] = (char *)(uintptr_t)path;
    for (int i = 0; i < n; i++)
        argv[2 + i] = command[i];
    pid_t pid = -1;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0) {
        struct spawn spawn = {.path = guardian,
                              .argv = argv,
                              .envp = environment,
                              .prepare = session ? in_guardian : with_us,
                              .arg = &pair[1]};
        pid = spawn_process(&spawn);
        int error = errno;
        (void)close(pair[1]);
        if (pid < 0)
            (void)close(pair[0]);
        else
            *socket = pair[0];
        errno = error;
    }
    lhi_free(argv);
    return pid;
}

/* ---- reports of a guardian ---- */

static void on_message(struct worker *w, struct source *source, uint32_t events);
static void on_death(struct worker *w, struct source *source, uint32_t events);

static bool is_idle(const struct guard *guard)
{
    return guard->pid > 0 && guard->recorded && !guard->killed && guard->task == NULL;
}

struct guard *guard_idle(struct worker *w)
{
    for (size_t i = 0; i < w->n_guards; i++)
        if (is_idle(&w->guards[i]))
            return &w->guards[i];
    return NULL;
}

/* Is there a guardian for one more job, besides those that are about to start? */
bool guard_spare(const struct worker *w)
{
    size_t idle = 0, taken = 0;

    for (size_t i = 0; i < w->n_guards; i++)
        idle += is_idle(&w->guards[i]);
    for (size_t i = 0; i < w->n_tasks; i++)
        taken += w->tasks[i].state == TASK_RECORDING || w->tasks[i].state == TASK_RECORDED;
    return idle > taken;
}

static struct guard *guard_place(struct worker *w)
{
    for (size_t i = 0; i < w->n_guards; i++)
        if (w->guards[i].pid == 0)
            return &w->guards[i];
    return NULL;
}

/* Is a guardian started but not in the worker's record yet? */
static bool guard_coming(const struct worker *w)
{
    size_t coming = 0;

    for (size_t i = 0; i < w->n_guards; i++)
        coming += w->guards[i].pid > 0 && !w->guards[i].recorded;
    return coming > 0 && (coming >= w->opts.jobs - w->running || coming >= w->ahead);
}

/* Start a guardian, unless one is being recorded. False: resources are missing. */
bool guard_new(struct worker *w)
{
    struct guard *guard = guard_place(w);
    int fd;

    if (guard == NULL || guard_coming(w))
        return true;
    pid_t pid = guardian_start(w->guardian_path, w->command_path, w->opts.command, w->environment,
                               true, &fd);
    if (pid < 0) {
        out_of_resources(w, NULL, "could not start a guardian", errno);
        return false;
    }
    *guard =
        (struct guard){.worker = w,
                       .pid = pid,
                       .socket = {.fd = fd, .ready = on_message},
                       .death = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .ready = on_death}};
    if (guard->death.fd < 0 || !source_add(w, &guard->socket) || !source_add(w, &guard->death)) {
        out_of_resources(w, NULL, "could not watch a guardian", errno);
        guard_end(w, guard);
        return false;
    }
    w->sessions_changed = true;
    return true;
}

static void take_report(struct guard *guard, const struct guardian_answer *answer)
{
    struct lh_task *task = guard->task;

    if (task == NULL)
        return;
    switch (answer->report) {
    case GUARDIAN_STARTED:
        command_started(task);
        break;
    case GUARDIAN_REFUSED:
        guard->task = NULL;
        command_refused(task, answer->error);
        break;
    case GUARDIAN_ENDED:
        guard->task = NULL;
        command_ended(task, answer);
        break;
    default:
        break;
    }
}

/* Read one report. True: there was one. */
static bool read_report(struct worker *w, struct guard *guard)
{
    struct guardian_answer answer;

    if (guard->socket.fd < 0)
        return false;
    ssize_t n = recv(guard->socket.fd, &answer, sizeof answer, MSG_DONTWAIT);
    if (n == (ssize_t)sizeof answer)
        take_report(guard, &answer);
    else if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        source_close(w, &guard->socket); /* its pidfd reports its end */
    return n == (ssize_t)sizeof answer;
}

static void on_message(struct worker *w, struct source *source, uint32_t events)
{
    (void)events;
    (void)read_report(w, (struct guard *)(void *)((char *)source - offsetof(struct guard, socket)));
}

/* ---- the end of a guardian ---- */

void guard_end(struct worker *w, struct guard *guard)
{
    struct pollfd end = {.fd = guard->death.fd, .events = POLLIN};

    source_close(w, &guard->socket); /* it exits when the socket is closed */
    if (end.fd >= 0)
        (void)poll(&end, 1, LAST_MS);
    source_close(w, &guard->death);
    if (guard->pid > 0)
        (void)waitpid(guard->pid, NULL, end.fd >= 0 ? WNOHANG : 0);
    *guard = (struct guard){.socket.fd = -1, .death.fd = -1};
}

static bool is_guardian(const struct worker *w, int64_t pid)
{
    for (size_t i = 0; i < w->n_guards; i++)
        if (w->guards[i].pid == pid)
            return true;
    return false;
}

static bool in_swept_session(const struct worker *w, int64_t session)
{
    for (size_t i = 0; i < w->n_tasks; i++)
        if (w->tasks[i].unguarded && w->tasks[i].session == session)
            return true;
    return false;
}

struct sweep {
    struct worker *w;
    size_t found;
};

static void sweep_one(void *arg, const struct lhi_met *met)
{
    struct sweep *sweep = arg;
    struct lhi_process process;

    if (is_guardian(sweep->w, met->pid) || lhi_met_read(met, &process) != 0)
        return;
    /* If this process is only a worker, every child that is not a guardian is a leftover. Otherwise only
     * a child that has the worker's id in its environment is one. */
    bool came_to_us = process.parent == getpid() &&
                      (sweep->w->opts.own_signals || strcmp(met->value, sweep->w->id) == 0);
    if (!in_swept_session(sweep->w, met->session) && !came_to_us)
        return;
    sweep->found++; /* even if it is dead: its children may have become ours after we passed them */
    if (lhi_process_ended(&process)) {
        if (process.parent == getpid())
            (void)waitpid((pid_t)met->pid, NULL, WNOHANG);
        return;
    }
    (void)lhi_process_kill(met->pid, process.start);
}

/* Kill what killed guardians have left running. Their jobs stay ours until several searches have found
 * nothing: a process that forks may escape one search. */
void guards_sweep(struct worker *w, int64_t now)
{
    struct sweep sweep = {.w = w};

    if (w->n_unguarded == 0 || now < w->sweep_at)
        return;
    bool listed = lhi_meet_processes("LEASEHOLD_WORKER", sweep_one, &sweep);
    /* Search less often for a process that cannot be killed. */
    w->sweep_ms = w->sweep_ms * 2 < SWEEP_MOST_MS ? w->sweep_ms * 2 : SWEEP_MOST_MS;
    if (listed && sweep.found == 0)
        w->sweep_ms = SWEEP_MS;
    w->sweep_at = worker_now(w) + w->sweep_ms;
    w->swept_clean = listed && sweep.found == 0 ? w->swept_clean + 1 : 0;
    if (w->swept_clean < SWEPT_CLEAN)
        return;
    for (size_t i = 0; i < w->n_tasks; i++)
        if (w->tasks[i].unguarded) {
            w->tasks[i].unguarded = false;
            w->n_unguarded--;
            command_unguarded(&w->tasks[i]);
        }
}

int64_t guards_next(const struct worker *w)
{
    return w->n_unguarded > 0 ? w->sweep_at : INT64_MAX;
}

/* Reap orphaned descendants, which have become our children. */
void guards_reap(struct worker *w)
{
    int status;

    while (w->opts.own_signals && waitpid(-1, &status, WNOHANG) > 0)
        continue;
}

/* The guardian was killed, and the command with it. Processes that the command had started become our
 * children, because we are the next reaper, and must be killed. */
static void on_death(struct worker *w, struct source *source, uint32_t events)
{
    struct guard *guard = (struct guard *)(void *)((char *)source - offsetof(struct guard, death));
    pid_t session = guard->pid;

    (void)events;
    while (read_report(w, guard)) /* its reports before the end still count */
        continue;
    struct lh_task *task = guard->task;
    guard_end(w, guard);
    w->sessions_changed = true;
    if (task == NULL)
        return;
    task->guard = NULL;
    task->session = session;
    task->unguarded = true;
    w->n_unguarded++;
    w->swept_clean = 0;
    w->sweep_at = 0;
    w->sweep_ms = SWEEP_MS;
}

/* ---- orders to a guardian ---- */

bool guardian_order(int socket, const struct guardian_message *m, const char *body, size_t len,
                    const int *fds)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(GUARDIAN_FDS * sizeof(int))];
    } control;
    struct iovec iov[2] = {{(void *)(uintptr_t)m, sizeof *m}, {(void *)(uintptr_t)body, len}};
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};
    int sent[GUARDIAN_FDS];
    size_t n = 0;

    for (int i = 0; i < GUARDIAN_FDS && fds != NULL; i++)
        if (m->fds & 1U << i)
            sent[n++] = fds[i];
    if (n > 0) {
        memset(&control, 0, sizeof control);
        control.head = (struct cmsghdr){.cmsg_len = CMSG_LEN(n * sizeof(int)),
                                        .cmsg_level = SOL_SOCKET,
                                        .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.head), sent, n * sizeof(int));
        msg.msg_control = &control;
        msg.msg_controllen = CMSG_SPACE(n * sizeof(int));
    }
    ssize_t sent_len;
    do
        sent_len = sendmsg(socket, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent_len < 0 && errno == EINTR);
    return sent_len >= 0;
}

static struct guardian_message times_of(const struct lh_task *task, uint32_t what)
{
    return (struct guardian_message){.order = what,
                                     .term_at = task->term_at,
                                     .kill_at = task->kill_at,
                                     .clock = task->worker->clock,
                                     .linger_ms = task->worker->opts.kill_after_ms};
}

bool guard_run(struct guard *guard, struct lh_task *task, const char *variables, size_t len,
               const int fds[GUARDIAN_FDS])
{
    struct guardian_message m = times_of(task, GUARDIAN_RUN);

    m.fds = (1U << GUARDIAN_FDS) - 1;
    if (!guardian_order(guard->socket.fd, &m, variables, len, fds))
        return false;
    guard->task = task;
    task->guard = guard;
    return true;
}

void guard_deadline(struct guard *guard, const struct lh_task *task, bool stop)
{
    struct guardian_message m = times_of(task, stop ? GUARDIAN_STOP : GUARDIAN_DEADLINE);
    (void)guardian_order(guard->socket.fd, &m, NULL, 0,
                         NULL); /* if this fails, the guardian is gone or exiting */
}

bool guard_is_stopped(const struct guard *guard)
{
    struct lhi_process process;
    return lhi_process_read(guard->pid, &process) && (process.state == 'T' || process.state == 't');
}

/* A guardian that was stopped (SIGSTOP) would never report the end of its command. */
void guard_continue(const struct guard *guard)
{
    if (guard_is_stopped(guard))
        (void)syscall(SYS_pidfd_send_signal, guard->death.fd, SIGCONT, NULL, 0);
}

void guard_kill(struct guard *guard)
{
    while (read_report(guard->worker, guard)) /* it may have reported the end already */
        continue;
    if (guard->task == NULL || guard->killed)
        return;
    (void)syscall(SYS_pidfd_send_signal, guard->death.fd, SIGKILL, NULL, 0);
    guard->killed = true;
}

void guards_close(struct worker *w)
{
    for (size_t i = 0; i < w->n_guards; i++)
        if (w->guards[i].pid > 0)
            guard_end(w, &w->guards[i]);
    lhi_free(w->guards);
    w->guards = NULL;
    w->n_guards = 0;
}
