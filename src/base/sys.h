/* sys.h: the system calls that we use directly: locks, futexes, randomness, identity. */
#ifndef LHI_SYS_H
#define LHI_SYS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Open-file-description locks on one byte. The kernel releases them when the holder dies. A second handle
 * in the same process is a second holder. */
bool lhi_lock_try(int fd, off_t byte, bool shared);
int lhi_lock_wait(int fd, off_t byte, bool shared); /* 0 or an errno */
void lhi_unlock(int fd, off_t byte);
bool lhi_is_locked(int fd, off_t byte); /* by another holder; `fd` may be read-only */

/* While *word == value, wait up to timeout_ms (negative: forever) for a wake-up that shares a bit with
 * `mask`. The word may be in shared memory. Returns 0 after a wake-up, else an errno: ETIMEDOUT, EAGAIN (the
 * value is different), EINTR. */
int lhi_futex_wait(uint32_t *word, uint32_t value, uint32_t mask, int64_t timeout_ms);
void lhi_futex_wake(uint32_t *word, int n, uint32_t mask);

/* Random bytes from the kernel; false: it has none. */
bool lhi_random(void *buf, size_t len);
void lhi_uuid(char out[37]);

/* Start a thread that blocks all signals, which are the program's business. */
bool lhi_thread_start(pthread_t *thread, void *(*run)(void *), void *arg);

/* Run `ask` in a child process and return its result (0 to 255); -1: that failed. The child has its own
 * descriptors, so closing one there releases no lock of this process. It shares our memory while this
 * thread waits, so `ask` may only make system calls. */
int lhi_ask_child(int (*ask)(void *), void *arg);

/* The identity of a process, by which its death can be proven even if its pid is reused. */
struct lhi_identity {
    char host[128];
    char machine[40];
    char boot[40];
    int64_t pid_ns;  /* 0: unknown */
    int64_t time_ns; /* 0: unknown, or the kernel has none */
    int64_t pid;
    int64_t start; /* in clock ticks since boot, as its time namespace counts; 0: unknown */
};

/* The time namespace of this process. Its monotonic clocks differ from those of the machine by an offset,
 * which does not change while the process lives. */
struct lhi_time_ns {
    int64_t id; /* 0: unknown, or the kernel has none */
    /* Our children have another one. The kernel shows the offset of theirs only. */
    bool differs_from_children;
    int64_t ahead_ms; /* our CLOCK_MONOTONIC minus the machine's; 0: unknown */
};

void lhi_time_ns(struct lhi_time_ns *out);

void lhi_identify(struct lhi_identity *id);
void lhi_boot_id(char out[40]); /* "": unknown */

bool lhi_same_file(const char *a,
                   const char *b); /* are both paths one file? Does not follow links */
bool lhi_on_network_fs(int fd);
int64_t lhi_free_bytes(const char *path); /* available to us on the device; -1: unknown */

#endif
