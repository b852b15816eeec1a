/*
 * guardian.h: what a worker and its guardians say to each other, and how both start a process.
 *
 * A guardian stands over one job at a time. It is a program of its own, so that it lives on when the
 * worker is stopped, hangs or is killed, and has next to nothing that could go wrong. The two speak
 * over a socket that keeps messages apart (SOCK_SEQPACKET); when it ends, the other one is gone.
 */
#ifndef LHI_GUARDIAN_H
#define LHI_GUARDIAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    GUARDIAN_FD = 3,       /* the socket, in the guardian */
    GUARDIAN_FDS = 4,      /* a job's standard input, output and error, and its line back to us */
    GUARDIAN_MOST = 160000 /* bytes of a message: the checkpoint is the largest part of it */
};

/* From the worker. Times are by the clock that comes with them, in milliseconds. */
enum guardian_order {
    GUARDIAN_RUN =
        1, /* with GUARDIAN_FDS descriptors; behind it the job's variables, each ended by 0 */
    GUARDIAN_DEADLINE, /* a heartbeat was confirmed: these are the new times */
    GUARDIAN_STOP,     /* the same, and nothing more will be confirmed */
    GUARDIAN_SIGNAL    /* pass the signal on to the command */
};

struct guardian_message {
    uint32_t order; /* enum guardian_order */
    uint32_t
        fds; /* which of the descriptors come with it, as bits; the others are as in the guardian */
    int64_t term_at, kill_at;
    int64_t clock;     /* CLOCK_MONOTONIC, or CLOCK_BOOTTIME where time goes on while we sleep */
    int64_t linger_ms; /* so long may what the command left behind take, once asked to end */
    int64_t signal;
};

/* From the guardian. */
enum guardian_news { GUARDIAN_STARTED = 1, GUARDIAN_REFUSED, GUARDIAN_ENDED };

struct guardian_answer {
    uint32_t news;
    int32_t pid;      /* STARTED: of the command */
    int32_t error;    /* REFUSED: errno of what could not be done */
    int32_t status;   /* ENDED: as of waitpid(); all that it had started is gone, too */
    uint32_t stopped; /* ENDED: it was told to end before it did */
};

/* Start `path` without copying the memory of this process. `prepare` (NULL: nothing) runs in the new
 * process, which shares that memory while ours stands still: system calls only. Returns the pid, or
 * -1 with errno as execve or `prepare` left it. */
struct spawn {
    const char *path;
    char *const *argv;
    char *const *envp;
    int (*prepare)(void *arg); /* 0, or an errno */
    void *arg;
    int error;
};

pid_t spawn_process(struct spawn *spawn);

/* In `prepare`: every signal as a new program expects it. */
void spawn_plain_signals(void);
/* In `prepare`: descriptor `from` as `to`, also when they are the same; 0 or an errno. */
int spawn_fd(int from, int to);

#endif
