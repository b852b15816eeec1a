/* Fork and SQLite: a process must not use SQLite if it was forked while a SQLite store was open.
 *
 * SQLite keeps lists of its locks and shared memory per process. A forked child inherits the lists, but
 * not the locks: it believes that it holds locks which the kernel has never given it. The next process
 * that opens the store then truncates the shared memory under the child, which dies of SIGBUS. If the
 * parent has threads, the child also inherits SQLite's mutexes as they were, and may wait forever for a
 * thread that does not exist in it. SQLite offers no way to clear this state, so the child is refused. */
#ifndef LHI_SQLITE_FORK_H
#define LHI_SQLITE_FORK_H

#include "base/error.h"
#include "base/forks.h"

#include <sys/types.h>

struct fork_guard {
    struct lhi_fork_entry entry;
    pid_t pid;
};

/* Call these around every use of SQLite. LH_EMISUSE: this process is such a child. */
int sq_fork_guard_enter(struct fork_guard *guard, const char *path, struct lhi_error *err);
void sq_fork_guard_leave(struct fork_guard *guard); /* may be called without a matching enter */

#endif
