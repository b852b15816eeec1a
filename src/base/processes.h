/*
 * processes.h: looking at processes and killing one, without confusing it with a later process that has
 * the same pid.
 */
#ifndef LHI_PROCESSES_H
#define LHI_PROCESSES_H

#include <stdbool.h>
#include <stdint.h>

/* A process as the kernel shows it. */
struct lhi_process {
    char state;
    int64_t parent, session, threads;
    int64_t start; /* in clock ticks since boot */
};

bool lhi_process_read(int64_t pid, struct lhi_process *out); /* false: /proc does not show it */
int64_t lhi_process_start(int64_t pid);                      /* 0: unknown */
bool lhi_process_ended(const struct lhi_process *process);   /* a zombie, with all its threads */

/* Is the process with this pid and start time gone for certain? A zombie is gone; a process that cannot be
 * read is not. Only for pids of our own namespace. */
bool lhi_process_gone(int64_t pid, int64_t start);

/* Send SIGKILL to the process with this pid and start time, and to no other. Returns 0 or an errno: ESRCH
 * (it is gone), EPERM. */
int lhi_process_kill(int64_t pid, int64_t start);

/* A process met while walking through /proc. Its open directory makes sure that questions about it are not
 * answered for a later process with the same pid. */
struct lhi_met {
    int64_t pid, session;
    const char *value; /* of the variable in its environment; "": none, or no permission */
    int dir;
};

/* Returns 0 or an errno. ENOENT and ESRCH: the process is gone by now. */
int lhi_met_read(const struct lhi_met *met, struct lhi_process *out);

/* Call `fn` for every visible process, with the value of `variable` in its environment. False: some were
 * left out, because memory or descriptors ran out. */
bool lhi_meet_processes(const char *variable, void (*fn)(void *arg, const struct lhi_met *met),
                        void *arg);

#endif
