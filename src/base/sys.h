/* The operating system, as far as we use it directly: locks, futexes, randomness, identity. */
#ifndef LHI_SYS_H
#define LHI_SYS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Open-file-description locks on one byte: the kernel frees them when the holder dies, and a
 * second handle in the same process is a second holder. */
bool lhi_lock_try(int fd, off_t byte, bool shared);
int lhi_lock_wait(int fd, off_t byte, bool shared); /* 0 or an errno */
void lhi_unlock(int fd, off_t byte);
bool lhi_is_locked(int fd, off_t byte); /* by another holder; for this the file need only be read */

/* Wait while *word == value, for at most timeout_ms (< 0: for ever), for a wake that shares a bit
 * with `mask`. The word may lie in memory shared between processes. Returns 0 for a wake,
 * else an errno: ETIMEDOUT, EAGAIN (the value was another), EINTR. */
int lhi_futex_wait(uint32_t *word, uint32_t value, uint32_t mask, int64_t timeout_ms);
void lhi_futex_wake(uint32_t *word, int n, uint32_t mask);

/* Randomness of the kernel; false when there is none to be had. */
bool lhi_random(void *buf, size_t len);
void lhi_uuid(char out[37]);

/* A thread that gets no signal: those are the program's. */
bool lhi_thread_start(pthread_t *thread, void *(*run)(void *), void *arg);

/* What `ask` returns (0 to 255) in a process with descriptors of its own: what it closes there frees no
 * lock of this process. It shares our memory while we stand still, so it may only make system calls.
 * -1: it could not be asked. */
int lhi_ask_child(int (*ask)(void *), void *arg);

/* Who a process is, so that its death can be proven and a reused pid told apart. */
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
 * which stays the same until the process ends. */
struct lhi_time_ns {
    int64_t id; /* 0: unknown, or the kernel has none */
    /* It is not that of our children, of which alone the kernel shows the offsets. */
    bool differs_from_children;
    int64_t ahead_ms; /* how far our CLOCK_MONOTONIC is ahead of the machine's; 0 where not known */
};

void lhi_time_ns(struct lhi_time_ns *out);

void lhi_identify(struct lhi_identity *id);
void lhi_boot_id(char out[40]); /* "" when unknown */

bool lhi_same_file(const char *a, const char *b); /* under two names; links are not followed */
bool lhi_on_network_fs(int fd);
int64_t lhi_free_bytes(const char *path); /* room for us on the device; -1: unknown */

#endif
