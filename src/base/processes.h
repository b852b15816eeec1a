/* Processes: which are there, told apart from a later one with the same number; and ending one. */
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

bool lhi_process_look(int64_t pid, struct lhi_process *out); /* false: it cannot be looked at */
int64_t lhi_process_start(int64_t pid);                      /* 0: unknown */
bool lhi_process_ended(const struct lhi_process *process);   /* a zombie, with all its threads */

/* Is the process that had this pid and start time gone for certain? A zombie is; what cannot be looked
 * at is not. Only for pids of our own namespace. */
bool lhi_process_gone(int64_t pid, int64_t start);

/* SIGKILL, for the very process that had this pid and start time. 0, or an errno: ESRCH (it is gone,
 * and no other was touched), EPERM. */
int lhi_process_kill(int64_t pid, int64_t start);

/* A process that was met in passing, while it is held: what is asked about it is about none that
 * gets its number later. */
struct lhi_met {
    int64_t pid, session;
    const char *value; /* of the variable in its environment; "": none, or not ours to read */
    int dir;
};

/* ENOENT or ESRCH: it is gone by now; another errno: it cannot be looked at. */
int lhi_met_look(const struct lhi_met *met, struct lhi_process *out);

/* Meet every process that can be seen. False: not all could be: no memory, no descriptors. */
bool lhi_meet_processes(const char *variable, void (*fn)(void *arg, const struct lhi_met *met),
                        void *arg);

#endif
