/*
 * guardian.c: the program between a worker and the command of a job.
 *
 *     leasehold-guardian PATH ARG0 ARGS…        with the worker's socket as descriptor 3
 *
 * It runs PATH when the worker orders it, one run at a time, and guarantees:
 *   - at `kill_at` everything that the command has started is killed (SIGKILL), unless the worker has
 *     put that time off; so a worker that is stopped or hangs is fenced off;
 *   - when the worker is gone, everything is killed at once;
 *   - it reports the end of a run only when nothing of it is left.
 * It is the reaper of orphaned descendants, so every process below it that loses its parent becomes its
 * own child. When it has no child, nothing is left.
 */
#include "worker/guardian.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    CHECK_MS = 1000, /* how often to check a clock that runs while the machine sleeps */
    AGAIN_MS = 20,   /* between two rounds of killing, for processes that fork meanwhile */
    MOST_DEPTH = 32
};

struct guardian {
    const char *path;
    char **argv;
    pid_t worker;
    int worker_fd, signals;
    bool orphan; /* the worker is gone: kill everything */

    bool running;  /* the command or its descendants run */
    pid_t command; /* 0: it has ended, */
    int status;    /* … with this status of waitpid() */
    bool termed, killing;
    bool stopped; /* the command was stopped */
    clockid_t clock;
    int64_t term_at, kill_at, again_at;
    int64_t linger_ms, linger_until; /* 0: the command still runs */
};

static int64_t now_ms(const struct guardian *g)
{
    struct timespec ts;
    (void)clock_gettime(g->clock, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static void send_report(struct guardian *g, const struct guardian_answer *answer)
{
    ssize_t n;
    do
        n = send(GUARDIAN_FD, answer, sizeof *answer, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        g->orphan = true;
}

/* ---- descendants ---- */

struct kin {
    int parent, group;
};

/* Read a file of /proc; "" if it is gone. */
static void read_proc(const char *path, char *text, size_t room)
{
    size_t n = 0;
    FILE *file = fopen(path, "re");

    if (file != NULL) {
        n = fread(text, 1, room - 1, file);
        (void)fclose(file);
    }
    text[n] = '\0';
}

static struct kin kin_of(pid_t pid)
{
    char path[64], text[512];
    struct kin kin = {0};

    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    read_proc(path, text, sizeof text);
    /* The name may contain anything. The fields start after its last parenthesis: ") S PARENT GROUP" */
    char *at = strrchr(text, ')');
    if (at != NULL && strlen(at) > 4) {
        kin.parent = (int)strtol(at + 4, &at, 10);
        kin.group = (int)strtol(at, &at, 10);
    }
    return kin;
}

struct pids {
    pid_t *at;
    size_t n, room;
};

static void pids_add(struct pids *pids, pid_t pid)
{
    if (pids->n == pids->room) {
        size_t room = pids->room ? pids->room * 2 : 64;
        pid_t *grown = realloc(pids->at, room * sizeof *grown);
        if (grown == NULL)
            return; /* no memory; the next round finds the process */
        pids->at = grown;
        pids->room = room;
    }
    pids->at[pids->n++] = pid;
}

/* Read the whole list: a list that is cut could end in the pid of another process. */
static void add_children(struct pids *pids, const char *path)
{
    long number = 0;
    int c;
    FILE *file = fopen(path, "re");

    if (file == NULL)
        return;
    while ((c = getc(file)) != EOF)
        if (c >= '0' && c <= '9') {
            number = number * 10 + (c - '0');
        } else {
            if (number > 0)
                pids_add(pids, (pid_t)number);
            number = 0;
        }
    (void)fclose(file);
}

/* /proc lists the children of each thread separately. */
static struct pids children_of(pid_t pid)
{
    char path[320];
    struct pids pids = {0};
    const struct dirent *entry;

    (void)snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *dir = opendir(path);
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        (void)snprintf(path, sizeof path, "/proc/%d/task/%s/children", (int)pid, entry->d_name);
        if (entry->d_name[0] != '.')
            add_children(&pids, path);
    }
    if (dir != NULL)
        (void)closedir(dir);
    return pids;
}

/* Open a pidfd of `pid` if it is a child of `parent`; -1: it is not, because the pid was reused. */
static int hold_child(pid_t pid, pid_t parent, struct kin *kin)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);

    if (fd < 0)
        return -1;
    *kin = kin_of(pid);
    /* The parent was read for this very process if it still exists. */
    if (kin->parent == parent && syscall(SYS_pidfd_send_signal, fd, 0, NULL, 0) == 0)
        return fd;
    (void)close(fd);
    return -1;
}

static void signal_tree(const struct guardian *g, pid_t root, int sig, int depth)
{
    struct pids children = children_of(root);

    for (size_t i = 0; i < children.n && depth < MOST_DEPTH; i++) {
        struct kin kin;
        int fd = hold_child(children.at[i], root, &kin);
        if (fd < 0)
            continue;
        /* Descendants first: without their parent they would move elsewhere in the tree. Members of the
         * command's process group get the signal with the group. */
        signal_tree(g, children.at[i], sig, depth + 1);
        if (g->command == 0 || kin.group != g->command)
            (void)syscall(SYS_pidfd_send_signal, fd, sig, NULL, 0);
        (void)close(fd);
    }
    free(children.at);
}

/* The process group of the command keeps its number while one member exists, even as a zombie. */
static void signal_all(const struct guardian *g, int sig)
{
    if (g->command > 0)
        (void)kill(-g->command, sig);
    signal_tree(g, getpid(), sig, 0);
}

static void term(struct guardian *g)
{
    if (g->termed)
        return;
    g->termed = true;
    g->stopped = g->command > 0;
    signal_all(g, SIGTERM);
    /* A stopped process does not react to SIGTERM. */
    signal_all(g, SIGCONT);
}

static void kill_all(struct guardian *g)
{
    g->killing = true;
    g->stopped = g->stopped || g->command > 0;
    g->again_at = now_ms(g) + AGAIN_MS;
    signal_all(g, SIGKILL);
}

/* ---- running the command ---- */

struct start {
    pid_t group;           /* 0: a new group */
    int fds[GUARDIAN_FDS]; /* -1: as in the guardian */
};

/* In lh_lease_run() the command shares the session and the terminal of our caller: it joins the caller's
 * process group, and signals that were ignored (nohup, a shell's background) stay ignored. */
static int join_or_part(const struct start *start)
{
    sigset_t none;

    if (setpgid(0, start->group) != 0)
        return errno;
    if (start->group == 0) {
        spawn_plain_signals();
        return 0;
    }
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    return 0;
}

static int prepare(void *arg)
{
    const struct start *start = arg;
    pid_t guardian = getppid();

    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        return errno;
    if (getppid() != guardian) /* the guardian died before the line above */
        _exit(127);
    int error = join_or_part(start);
    /* Move all descriptors to high numbers first, so that none is overwritten. */
    int high[GUARDIAN_FDS];
    for (int i = 0; i < GUARDIAN_FDS; i++)
        if (start->fds[i] >= 0 && (high[i] = fcntl(start->fds[i], F_DUPFD_CLOEXEC, 16)) < 0)
            return errno;
    for (int i = 0; i < GUARDIAN_FDS && error == 0; i++)
        if (start->fds[i] >= 0)
            error = spawn_fd(high[i], i);
    return error;
}

/* The job's variables, then ours, which had none of those when we were started. */
static char **make_environment(char *strings, size_t len)
{
    size_t n = 1, k = 0;

    for (char **e = environ; *e != NULL; e++)
        n++;
    for (size_t i = 0; i < len; i++)
        n += strings[i] == '\0';
    char **env = calloc(n, sizeof *env);
    if (env == NULL)
        return NULL;
    for (size_t at = 0; at < len; at += strlen(strings + at) + 1)
        env[k++] = strings + at;
    for (char **e = environ; *e != NULL; e++)
        env[k++] = *e;
    return env;
}

static void run(struct guardian *g, const struct guardian_message *m, char *strings, size_t len,
                const int *fds)
{
    bool own_session = getsid(0) == getpid();
    struct start start = {.group = own_session ? 0 : getpgid(g->worker)};
    char **env = make_environment(strings, len);

    memcpy(start.fds, fds, sizeof start.fds);
    struct spawn spawn = {
        .path = g->path, .argv = g->argv, .envp = env, .prepare = prepare, .arg = &start};
    errno = ENOMEM;
    pid_t pid = env ? spawn_process(&spawn) : -1;
    int error = errno;
    free(env);
    if (pid < 0) {
        send_report(g, &(struct guardian_answer){.report = GUARDIAN_REFUSED, .error = error});
        return;
    }
    g->running = true;
    g->command = pid;
    g->termed = g->killing = g->stopped = false;
    g->linger_until = 0;
    g->term_at = m->term_at;
    g->kill_at = m->kill_at;
    g->linger_ms = m->linger_ms;
    send_report(g, &(struct guardian_answer){.report = GUARDIAN_STARTED, .pid = pid});
}

/* The command has ended but some of its descendants run. They have no lease any more: stop them. */
static void sweep(struct guardian *g)
{
    if (g->linger_until == 0)
        g->linger_until = now_ms(g) + g->linger_ms;
    term(g);
    if (g->killing)
        kill_all(g); /* processes that have become our children since the last round */
}

static void reap(struct guardian *g)
{
    int status;
    pid_t pid;
    bool ended = false;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        if (pid == g->command) {
            g->command = 0;
            g->status = status;
            ended = true;
        }
    if (!g->running || g->command > 0)
        return;
    if (pid < 0 && errno == ECHILD) {
        g->running = false;
        send_report(g, &(struct guardian_answer){
                           .report = GUARDIAN_ENDED, .status = g->status, .stopped = g->stopped});
    } else if (ended || g->killing) {
        sweep(g);
    }
}

/* ---- the worker ---- */

static void obey(struct guardian *g, const struct guardian_message *m, char *strings, size_t len,
                 const int *fds)
{
    switch (m->order) {
    case GUARDIAN_RUN:
        g->clock = (clockid_t)m->clock;
        if (now_ms(g) >= m->term_at) /* the machine was suspended, and it is too late to start */
            send_report(g, &(struct guardian_answer){.report = GUARDIAN_REFUSED, .error = ETIME});
        else if (!g->running)
            run(g, m, strings, len, fds);
        break;
    case GUARDIAN_DEADLINE:
    case GUARDIAN_STOP:
        g->term_at = m->term_at;
        g->kill_at = m->kill_at;
        break;
    case GUARDIAN_SIGNAL:
        if (g->command > 0) /* it is not reaped, so the pid is still its own */
            (void)kill(g->command, (int)m->signal);
        break;
    default:
        break;
    }
}

static void listen_to_worker(struct guardian *g)
{
    static char body[GUARDIAN_MOST]; /* static, because it is large; there is one thread */
    struct guardian_message m;
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(GUARDIAN_FDS * sizeof(int))];
    } control;
    struct iovec iov[2] = {{&m, sizeof m}, {body, sizeof body}};
    struct msghdr msg = {
        .msg_iov = iov, .msg_iovlen = 2, .msg_control = &control, .msg_controllen = sizeof control};
    int fds[GUARDIAN_FDS] = {-1, -1, -1, -1}, got[GUARDIAN_FDS], n_got = 0;

    ssize_t n = recvmsg(GUARDIAN_FD, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n < (ssize_t)sizeof m) {
        g->orphan = true;
        return;
    }
    struct cmsghdr *head = CMSG_FIRSTHDR(&msg);
    if (head != NULL && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS) {
        n_got = (int)((head->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(got, CMSG_DATA(head), (size_t)n_got * sizeof(int));
    }
    for (int i = 0, k = 0; i < GUARDIAN_FDS; i++)
        if (m.fds & 1U << i && k < n_got)
            fds[i] = got[k++];
    obey(g, &m, body, (size_t)n - sizeof m, fds);
    for (int k = 0; k < n_got; k++)
        (void)close(got[k]);
}

/* ---- time ---- */

static int64_t kill_time(const struct guardian *g)
{
    return g->linger_until != 0 && g->linger_until < g->kill_at ? g->linger_until : g->kill_at;
}

static int wait_ms(const struct guardian *g)
{
    int64_t next = INT64_MAX, now = now_ms(g);

    if (!g->running)
        return -1;
    if (!g->termed)
        next = g->term_at;
    if (!g->killing && kill_time(g) < next)
        next = kill_time(g);
    if (g->killing)
        next = g->again_at;
    /* The wait does not end while the machine sleeps, although this clock runs: keep it short. */
    int64_t most = g->clock == CLOCK_MONOTONIC ? 60000 : CHECK_MS;
    return next <= now ? 0 : next - now > most ? (int)most : (int)(next - now);
}

static void look_at_the_clock(struct guardian *g)
{
    int64_t now = now_ms(g);

    if (!g->running)
        return;
    if (now >= g->term_at)
        term(g);
    if ((now >= kill_time(g) && !g->killing) || (g->killing && now >= g->again_at))
        kill_all(g);
}

static void watch(struct guardian *g)
{
    struct pollfd fds[] = {{.fd = GUARDIAN_FD, .events = POLLIN},
                           {.fd = g->signals, .events = POLLIN},
                           {.fd = g->worker_fd, .events = POLLIN}};
    struct signalfd_siginfo info;

    while (!g->orphan || g->running) {
        fds[0].fd = g->orphan ? -1 : GUARDIAN_FD;
        fds[2].fd = g->orphan ? -1 : g->worker_fd;
        if (poll(fds, 3, wait_ms(g)) < 0)
            continue;
        if (fds[1].revents != 0)
            (void)!read(g->signals, &info, sizeof info);
        reap(g);
        if (fds[2].revents != 0)
            g->orphan = true;
        else if (fds[0].revents != 0)
            listen_to_worker(g);
        if (g->orphan && g->running && !g->killing)
            kill_all(g);
        look_at_the_clock(g);
    }
}

int main(int argc, char **argv)
{
    struct guardian g = {.clock = CLOCK_MONOTONIC};
    sigset_t set;

    if (argc < 3 || fcntl(GUARDIAN_FD, F_SETFD, FD_CLOEXEC) != 0) {
        (void)fputs("leasehold-guardian: only a worker can start this program\n", stderr);
        return 2;
    }
    g.path = argv[1];
    g.argv = argv + 2;
    g.worker = getppid();
    g.worker_fd = (int)syscall(SYS_pidfd_open, g.worker, 0);
    if (g.worker_fd < 0 || getppid() != g.worker || prctl(PR_SET_CHILD_SUBREAPER, 1) != 0)
        return 1;
    /* Block all signals: only the worker, by closing the socket, ends the guardian. */
    (void)sigfillset(&set);
    (void)sigprocmask(SIG_SETMASK, &set, NULL);
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGCHLD);
    g.signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (g.signals < 0)
        return 1;
    watch(&g);
    return 0;
}
