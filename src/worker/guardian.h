/*
 * guardian.h: the messages between a worker and its guardians, and how both start a process.
 *
 * A guardian watches one job at a time. It is a program of its own, so it survives a worker that is
 * stopped, hangs or is killed. The two communicate over a socket that keeps messages apart
 * (SOCK_SEQPACKET). A closed socket means that the other side is gone.
 */
#ifndef LHI_GUARDIAN_H
#define LHI_GUARDIAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    GUARDIAN_FD = 3, /* the socket, in the guardian */
    GUARDIAN_FDS =
        4, /* a job's standard input, output and error, and the pipe for its progress lines */
    GUARDIAN_MOST = 160000 /* bytes of a message, of which the checkpoint is the largest part */
};

/* Orders of the worker. Times are milliseconds of the clock in the message. */
enum guardian_order {
    GUARDIAN_RUN =
        1, /* with GUARDIAN_FDS descriptors; followed by the job's variables, each with a zero byte */
    GUARDIAN_DEADLINE, /* a heartbeat was confirmed: new times */
    GUARDIAN_STOP,     /* the same, and there will be no later times */
    GUARDIAN_SIGNAL    /* pass the signal on to the command */
};

struct guardian_message {
    uint32_t order; /* enum guardian_order */
    uint32_t fds;   /* bits: which descriptors are attached; the others are those of the guardian */
    int64_t term_at, kill_at;
    int64_t clock;     /* CLOCK_MONOTONIC, or CLOCK_BOOTTIME, which runs while the machine sleeps */
    int64_t linger_ms; /* from SIGTERM to SIGKILL for what the command left running */
    int64_t signal;
};

/* Reports of the guardian. */
enum guardian_report { GUARDIAN_STARTED = 1, GUARDIAN_REFUSED, GUARDIAN_ENDED };

struct guardian_answer {
    uint32_t report;
    int32_t pid;      /* STARTED: of the command */
    int32_t error;    /* REFUSED: the errno */
    int32_t status;   /* ENDED: as of waitpid(); all its descendants are gone, too */
    uint32_t stopped; /* ENDED: it was stopped */
};

/* Start `path` without copying the memory of this process. `prepare` (may be NULL) runs in the new process
 * before the exec; it shares our memory while we wait, so it may only make system calls. Returns the pid, or
 * -1 with the errno of execve() or `prepare`. */
struct spawn {
    const char *path;
    char *const *argv;
    char *const *envp;
    int (*prepare)(void *arg); /* 0, or an errno */
    void *arg;
    int error;
};

pid_t spawn_process(struct spawn *spawn);

/* In `prepare`: set every signal to its default. */
void spawn_plain_signals(void);
/* In `prepare`: make descriptor `from` available as `to`, even if they are equal. 0 or an errno. */
int spawn_fd(int from, int to);

#endif
