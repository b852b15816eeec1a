/* Refuse SQLite in a process that was forked while a SQLite store was open. fork.h says why. */
#include "store/sqlite/files/fork.h"

#include <leasehold.h>

#include <unistd.h>

/* The pid of the process that had a SQLite store open when it forked this process or an ancestor;
 * 0: none. The child's only thread writes it. */
static pid_t forked_by;

static void note_fork(void *arg)
{
    const struct fork_guard *guard = arg;
    forked_by = guard->pid;
}

int sq_fork_guard_enter(struct fork_guard *guard, const char *path, struct lhi_error *err)
{
    if (forked_by != 0)
        return lhi_fail(
            err, LH_EMISUSE,
            "store \"%.200s\" cannot be used in this process: process %d forked it while a "
            "SQLite store was open; close the store before fork, or open it after exec",
            path, (int)forked_by);
    guard->pid = getpid();
    lhi_forks_hold();
    lhi_forks_add(&guard->entry, note_fork, guard);
    lhi_forks_resume();
    return LH_OK;
}

void sq_fork_guard_leave(struct fork_guard *guard)
{
    lhi_forks_hold();
    lhi_forks_remove(&guard->entry);
    lhi_forks_resume();
}
