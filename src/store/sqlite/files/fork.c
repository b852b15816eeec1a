/* Refuses SQLite to a process that was forked while a SQLite store was open. See fork.h. */
#include "store/sqlite/files/fork.h"

#include <leasehold.h>

#include <unistd.h>

/* The process that had a SQLite store open when it forked this one, or one of its ancestors; 0: none.
 * It is written in the child by its only thread. */
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
