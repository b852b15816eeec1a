/*
 * guardian.c: the program that stands over a job.
 *
 *     leasehold-guardian PATH ARG0 ARGS…        with the worker's socket as descriptor 3
 *
 * It runs PATH when the worker says so, one run at a time, and promises:
 *   - at `kill_at` SIGKILL has been sent to everything the command has started, unless the worker
 *     has put that time off: a worker that is stopped, or hangs, is fenced off by it;
 *   - when the worker is gone, so is all of this, at once;
 *   - "ended" is only said when nothing is left of the run.
 * It is the reaper of orphaned descendants, so whatever is forked away below it, however often, comes
 * back as a child of its own: when it has no child, nothing is left. That is the whole trick.
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
    GLANCE_MS = 1000, /* by a clock that goes on while the machine sleeps: look at it so often */
    AGAIN_MS = 20,    /* between two rounds of killing: who forks faster than we look */
    MOST_DEPTH = 32
};

struct guardian {
    const char *path;
    char **argv;
    pid_t worker;
    int worker_fd, signals;
    bool orphan; /* the worker is gone: so must everything be */

    bool running;  /* a command, or what it left behind */
    pid_t command; /* 0: it has ended */
    int status;    /* … like this */
    bool termed, killing;
    bool stopped; /* the command did not end by itself */
    clockid_t clock;
    int64_t term_at, kill_at, again_at;
    int64_t linger_ms, linger_until; /* 0: it runs */
};

static int64_t now_ms(const struct guardian *g)
{
    struct timespec ts;
    (void)clock_gettime(g->clock, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static void say(struct guardian *g, const struct guardian_answer *answer)
{
    ssize_t n;
    do
        n = send(GUARDIAN_FD, answer, sizeof *answer, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        g->orphan = true;
}

/* ---- everything below us ---- */

struct kin {
    int parent, group;
};

/* A file of /proc as text; "" if it is gone. */
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
    /* The name may hold anything; what counts stands behind its last parenthesis: ") S PARENT GROUP" */
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
            return; /* the next round finds it */
        pids->at = grown;
        pids->room = room;
    }
    pids->at[pids->n++] = pid;
}

/* All of them: a list that was cut would end in the number of a stranger. */
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

/* Each thread has those that it has made. */
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

/* A hold on `pid`, if it is a child of `parent`: its number may be another's by now. -1: it is not. */
static int hold_child(pid_t pid, pid_t parent, struct kin *kin)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);

    if (fd < 0)
        return -1;
    *kin = kin_of(pid);
    /* What was read was its own, if it is still there. */
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
        /* Those below first: once their parent is gone they are somewhere else. Who is in the group
         * of the command has been told with it. */
        signal_tree(g, children.at[i], sig, depth + 1);
        if (g->command == 0 || kin.group != g->command)
            (void)syscall(SYS_pidfd_send_signal, fd, sig, NULL, 0);
        (void)close(fd);
    }
    free(children.at);
}

/* The process group of the command goes by its number for as long as one of it lives, a zombie too. */
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
    /* What was stopped cannot end. */
    signal_all(g, SIGCONT);
}

static void kill_all(struct guardian *g)
{
    g->killing = true;
    g->stopped = g->stopped || g->command > 0;
    g->again_at = now_ms(g) + AGAIN_MS;
    signal_all(g, SIGKILL);
}

/* ---- the run ---- */

struct start {
    pid_t group;           /* 0: its own */
    int fds[GUARDIAN_FDS]; /* -1: as in the guardian */
};

/* A command in the session of whoever started us shares its terminal, too: it is of the group that the
 * terminal speaks to, and what was ignored (nohup, a shell's background) still is. */
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
    if (getppid() != guardian) /* it died before the line above */
        _exit(127);
    int error = join_or_part(start);
    /* First out of the way of each other, then in place. */
    int high[GUARDIAN_FDS];
    for (int i = 0; i < GUARDIAN_FDS; i++)
        if (start->fds[i] >= 0 && (high[i] = fcntl(start->fds[i], F_DUPFD_CLOEXEC, 16)) < 0)
            return errno;
    for (int i = 0; i < GUARDIAN_FDS && error == 0; i++)
        if (start->fds[i] >= 0)
            error = spawn_fd(high[i], i);
    return error;
}

/* The job's variables before ours; they were taken out of ours when we were started. */
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
        say(g, &(struct guardian_answer){.news = GUARDIAN_REFUSED, .error = error});
        return;
    }
    g->running = true;
    g->command = pid;
    g->termed = g->killing = g->stopped = false;
    g->linger_until = 0;
    g->term_at = m->term_at;
    g->kill_at = m->kill_at;
    g->linger_ms = m->linger_ms;
    say(g, &(struct guardian_answer){.news = GUARDIAN_STARTED, .pid = pid});
}

/* The command has ended by itself, and something of it is still there: it has no lease to run under. */
static void sweep(struct guardian *g)
{
    if (g->linger_until == 0)
        g->linger_until = now_ms(g) + g->linger_ms;
    term(g);
    if (g->killing)
        kill_all(g); /* what came back to us since the last round */
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
        say(g, &(struct guardian_answer){
                   .news = GUARDIAN_ENDED, .status = g->status, .stopped = g->stopped});
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
        if (now_ms(g) >= m->term_at) /* everything stood still, and it is too late to begin */
            say(g, &(struct guardian_answer){.news = GUARDIAN_REFUSED, .error = ETIME});
        else if (!g->running)
            run(g, m, strings, len, fds);
        break;
    case GUARDIAN_DEADLINE:
    case GUARDIAN_STOP:
        g->term_at = m->term_at;
        g->kill_at = m->kill_at;
        break;
    case GUARDIAN_SIGNAL:
        if (g->command > 0) /* not reaped yet: the number is still its own */
            (void)kill(g->command, (int)m->signal);
        break;
    default:
        break;
    }
}

static void listen_to_worker(struct guardian *g)
{
    static char body[GUARDIAN_MOST]; /* of this one process, and too large for a small stack */
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
    /* A sleep of the machine does not end a wait, though time goes on in it: so the wait is short. */
    int64_t most = g->clock == CLOCK_MONOTONIC ? 60000 : GLANCE_MS;
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
        (void)fputs("leasehold-guardian: started by a worker, not by hand\n", stderr);
        return 2;
    }
    g.path = argv[1];
    g.argv = argv + 2;
    g.worker = getppid();
    g.worker_fd = (int)syscall(SYS_pidfd_open, g.worker, 0);
    if (g.worker_fd < 0 || getppid() != g.worker || prctl(PR_SET_CHILD_SUBREAPER, 1) != 0)
        return 1;
    /* To end us is the worker's business: whoever ends it ends us. */
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
