/* processes.c: reading /proc, and killing a process without hitting another one. */
#include "base/processes.h"

#include "base/error.h"
#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- one process ---- */

/* Parse fields 3, 4, 6, 20 and 22 of /proc/PID/stat. The command in field 2 may contain spaces and
 * parentheses, so counting starts after the last closing parenthesis. */
static bool parse_stat(const char *line, struct lhi_process *out)
{
    int64_t field[23] = {0};
    const char *p = strrchr(line, ')');

    if (p == NULL || p[1] != ' ')
        return false;
    out->state = p[2];
    for (int i = 3; i <= 22; i++) {
        p = strchr(p + 1, ' ');
        if (p == NULL)
            return false;
        field[i] = strtoll(p + 1, NULL, 10);
    }
    out->parent = field[4];
    out->session = field[6];
    out->threads = field[20];
    out->start = field[22];
    return true;
}

/* Read a stat file. Returns 0 or an errno. */
static int look(int dir, const char *path, struct lhi_process *out)
{
    char line[1024];
    int fd = openat(dir, path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return errno;
    ssize_t n = read(fd, line, sizeof line - 1);
    int error = n < 0 ? errno : EIO;
    close(fd);
    line[n > 0 ? n : 0] = '\0';
    return parse_stat(line, out) ? 0 : error;
}

bool lhi_process_read(int64_t pid, struct lhi_process *out)
{
    char path[64];

    lhi_format(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    return look(AT_FDCWD, path, out) == 0;
}

int64_t lhi_process_start(int64_t pid)
{
    struct lhi_process found = {0};
    return lhi_process_read(pid, &found) ? found.start : 0;
}

bool lhi_process_ended(const struct lhi_process *process)
{
    /* A process whose first thread has ended is shown as a zombie, even if other threads still run. */
    return (process->state == 'Z' && process->threads <= 1) || process->state == 'X';
}

bool lhi_process_gone(int64_t pid, int64_t start)
{
    struct lhi_process found = {0};

    if (kill((pid_t)pid, 0) != 0 && errno == ESRCH)
        return true;
    if (!lhi_process_read(pid, &found))
        return false;
    if (start != 0 && found.start != start)
        return true; /* another process has this pid now */
    return lhi_process_ended(&found);
}

int lhi_process_kill(int64_t pid, int64_t start)
{
    int fd = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);

    if (fd < 0)
        return errno;
    /* Checked after the pidfd is open: if the start time matches, the pidfd is that process. */
    int error = ESRCH;
    if (start != 0 && lhi_process_start(pid) == start)
        error = syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0) == 0 ? 0 : errno;
    close(fd);
    return error;
}

/* ---- all processes ---- */

enum { VALUE_MAX = 256, ROOM = 32768 };

struct environment {
    const char *variable;
    size_t len;
    char *bytes;  /* ROOM */
    bool goes_on; /* `bytes` does not start at the beginning of an entry */
    char value[VALUE_MAX];
};

/* The value of the variable among the bytes read so far. */
static bool find_value(struct environment *env, size_t used, bool to_the_end)
{
    const char *p = env->bytes, *end = env->bytes + used;

    while (p < end && (p = memmem(p, (size_t)(end - p), env->variable, env->len)) != NULL) {
        const char *value = p + env->len;
        bool entry = p == env->bytes ? !env->goes_on : p[-1] == '\0';
        bool ours = entry && value < end && *value == '=';
        const char *stop = ours ? memchr(value, '\0', (size_t)(end - value)) : NULL;
        if (ours && stop == NULL && to_the_end)
            stop = end;
        if (stop != NULL) {
            lhi_format(env->value, sizeof env->value, "%.*s", (int)(stop - value - 1), value + 1);
            return true;
        }
        p = value;
    }
    return false;
}

/* Read the variable from an environment of any size, block by block. The end of a block is kept, because
 * the entry may be cut in two there. False: the process exists, but out of descriptors or memory. */
static bool read_value(struct environment *env, int dir)
{
    size_t used = 0, kept = env->len + VALUE_MAX;
    int fd = openat(dir, "environ", O_RDONLY | O_CLOEXEC);

    env->value[0] = '\0';
    env->goes_on = false;
    if (fd < 0)
        return errno != EMFILE && errno != ENFILE && errno != ENOMEM;
    for (;;) {
        ssize_t n = read(fd, env->bytes + used, ROOM - used);
        used += n > 0 ? (size_t)n : 0;
        if (find_value(env, used, n <= 0) || n <= 0)
            break;
        if (used == ROOM) {
            memmove(env->bytes, env->bytes + used - kept, kept);
            used = kept;
            env->goes_on = true;
        }
    }
    close(fd);
    return true;
}

int lhi_met_read(const struct lhi_met *met, struct lhi_process *out)
{
    return look(met->dir, "stat", out);
}

/* Meet one process. False: it exists but could not be opened. */
static bool meet(int proc, const char *name, struct environment *env,
                 void (*fn)(void *arg, const struct lhi_met *met), void *arg)
{
    struct lhi_met met = {.pid = strtoll(name, NULL, 10)};

    met.dir = openat(proc, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (met.dir < 0)
        return errno == ENOENT || errno == ESRCH;
    met.session = getsid((pid_t)met.pid);
    bool known = read_value(env, met.dir);
    met.value = env->value;
    fn(arg, &met);
    close(met.dir);
    return known;
}

bool lhi_meet_processes(const char *variable, void (*fn)(void *arg, const struct lhi_met *met),
                        void *arg)
{
    struct environment env = {
        .variable = variable, .len = strlen(variable), .bytes = lhi_malloc(ROOM)};
    DIR *proc = env.bytes ? opendir("/proc") : NULL;
    const struct dirent *entry = NULL;
    bool any = false, all = true;

    while (proc != NULL && (entry = readdir(proc)) != NULL)
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9') {
            all = meet(dirfd(proc), entry->d_name, &env, fn, arg) && all;
            any = true;
        }
    if (proc != NULL)
        (void)closedir(proc);
    lhi_free(env.bytes);
    return any && all; /* there is at least this process */
}
