/*
 * program.c: what workers and lh_lease_run() share: finding programs, their environment, and the signals
 * and the reaper state of this process.
 */
#include "worker/worker.h"

#include "base/processes.h"
#include "base/sys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define WORKER "LEASEHOLD_WORKER="

/* ---- programs ---- */

static bool can_run(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

/* Find a command as a shell does. */
char *find_command(const char *name, struct lhi_error *err)
{
    char path[4096];
    const char *dirs = getenv("PATH");

    if (strchr(name, '/') != NULL) {
        if (can_run(name))
            return lhi_strdup(name);
        (void)lhi_fail(err, LH_EINVAL, "command \"%s\" %s", name,
                       access(name, F_OK) == 0 ? "is not an executable file" : "does not exist");
        return NULL;
    }
    for (const char *at = dirs ? dirs : "/usr/bin:/bin"; *name != '\0' && *at != '\0';) {
        size_t len = strcspn(at, ":");
        lhi_format(path, sizeof path, "%.*s%s%s", (int)len, at, len ? "/" : "", name);
        if (can_run(path))
            return lhi_strdup(path);
        at += len + (at[len] == ':');
    }
    (void)lhi_fail(err, LH_EINVAL, "command \"%s\" was not found in $PATH", name);
    return NULL;
}

/* Find the guardian next to this program (in a build folder), else where it was installed. */
char *find_guardian(const char *given, struct lhi_error *err)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 32);

    if (given == NULL && n > 0) {
        path[n] = '\0';
        char *slash = strrchr(path, '/');
        lhi_format(slash + 1, sizeof path - (size_t)(slash + 1 - path), "leasehold-guardian");
        if (can_run(path))
            return lhi_strdup(path);
    }
    const char *place = given ? given : LEASEHOLD_LIBEXECDIR "/leasehold-guardian";
    if (can_run(place))
        return lhi_strdup(place);
    (void)lhi_fail(err, LH_EINVAL, "the guardian \"%s\" cannot be run: is Leasehold installed?",
                   place);
    return NULL;
}

/* ---- the system ---- */

/* Does /proc belong to another pid namespace, as after `unshare --pid` without --mount-proc? The /proc of an
 * outer namespace shows all pids that we have, from its own namespace down to ours. */
static bool foreign_proc(void)
{
    char text[32] = "", line[256];
    int64_t first = 0, second = 0;

    if (readlink("/proc/self", text, sizeof text - 1) < 0)
        return false; /* there is no /proc */
    if (strtoll(text, NULL, 10) != getpid())
        return true;
    FILE *status = fopen("/proc/self/status", "re");
    while (status != NULL && fgets(line, sizeof line, status) != NULL)
        if (strncmp(line, "NSpid:", 6) == 0) {
            char *end;
            first = strtoll(line + 6, &end, 10);
            second = strtoll(end, NULL, 10);
        }
    if (status != NULL)
        (void)fclose(status);
    return first != 0 && second != 0;
}

int check_system(struct lhi_error *err)
{
    struct lhi_process self;
    struct lhi_time_ns time;
    char boot[40];

    lhi_boot_id(boot);
    lhi_time_ns(&time);
    /* Start times of guardians and the search for leftover processes need /proc. */
    bool foreign = foreign_proc();
    if (!foreign && (boot[0] == '\0' || !lhi_process_read(getpid(), &self)))
        return lhi_fail(
            err, LH_EFAIL,
            "/proc shows no processes here, and nothing can be run without it: mount it "
            "with \"mount -t proc proc /proc\"");
    if (foreign)
        return lhi_fail(
            err, LH_EFAIL,
            "/proc shows the processes of another pid namespace, and nothing can be run "
            "without our own: mount it with \"mount -t proc proc /proc\", or start "
            "with \"unshare --pid --fork --mount-proc\"");
    /* The guardian must have the same clocks as the worker. */
    if (time.differs_from_children)
        return lhi_fail(err, LH_EMISUSE,
                        "a worker cannot run here: this process has made a time namespace for its "
                        "children; start the worker in a child");
    return LH_OK;
}

/* ---- environment ---- */

static bool is_among(const char *const *names, const char *variable)
{
    for (; *names != NULL; names++)
        if (strncmp(variable, *names, strlen(*names)) == 0)
            return true;
    return false;
}

static char *join(const char *name, const char *value)
{
    size_t room = strlen(name) + strlen(value) + 1;
    char *made = lhi_malloc(room);

    if (made != NULL)
        lhi_format(made, room, "%s%s", name, value);
    return made;
}

/* The first one or two entries are made here. */
char **make_environment(const char *const *without, const char *worker, const char *store)
{
    size_t n = 0, k = 1;

    while (environ[n] != NULL)
        n++;
    char **made = lhi_calloc(n + 3, sizeof *made);
    if (made == NULL)
        return NULL;
    made[0] = join(WORKER, worker);
    if (store != NULL)
        made[k++] = join("LEASEHOLD_STORE=", store);
    if (made[0] == NULL || made[k - 1] == NULL) {
        free_environment(made, store != NULL);
        return NULL;
    }
    for (size_t i = 0; i < n; i++)
        if (!is_among(without, environ[i]) && strncmp(environ[i], WORKER, sizeof WORKER - 1) != 0)
            made[k++] = environ[i];
    return made;
}

void free_environment(char **made, bool store)
{
    if (made == NULL)
        return;
    lhi_free(made[0]);
    if (store)
        lhi_free(made[1]);
    lhi_free((void *)made);
}

/* ---- signals and reaping of this process ---- */

void change_process_state(const sigset_t *blocked, bool reaper, struct process_state *before)
{
    (void)pthread_sigmask(SIG_BLOCK, blocked, &before->mask);
    if (prctl(PR_GET_CHILD_SUBREAPER, &before->subreaper) != 0)
        before->subreaper = 0;
    if (reaper)
        (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
}

void restore_process_state(const struct process_state *before)
{
    (void)prctl(PR_SET_CHILD_SUBREAPER, before->subreaper);
    (void)pthread_sigmask(SIG_SETMASK, &before->mask, NULL);
}
