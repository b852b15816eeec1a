/* Wait until a thread really sleeps, instead of for a time in which it probably does. */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { LOOK_MS = 2, LOOKS_ASLEEP = 5 };

/* The calls in which the library waits: for a wake-up, for a message of a server, or for a time. A thread that
 * reads a pipe or writes a file is not in one of them. */
static bool is_wait(long number)
{
    static const long waits[] = {
        SYS_futex,     SYS_ppoll,      SYS_epoll_pwait, SYS_clock_nanosleep, SYS_rt_sigtimedwait,
#ifdef SYS_poll
        SYS_poll,      SYS_epoll_wait,
#endif
#ifdef SYS_nanosleep
        SYS_nanosleep,
#endif
    };

    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++)
        if (waits[i] == number)
            return true;
    return false;
}

static bool read_text(const char *folder, const char *name, char *text, size_t size)
{
    char path[128];
    size_t n = 0;

    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *in = fopen(path, "re");
    if (in != NULL) {
        n = fread(text, 1, size - 1, in);
        (void)fclose(in);
    }
    text[n] = '\0';
    return n > 0;
}

/* How often the thread has gone to sleep of itself, while it is in a call that waits; else -1. */
static int64_t sleep_number(const char *folder)
{
    static const char counter[] = "\nvoluntary_ctxt_switches:";
    char call[256], status[4096];
    char *end = call;

    if (!read_text(folder, "syscall", call, sizeof call) ||
        !read_text(folder, "status", status, sizeof status))
        return -1;
    long number = strtol(call, &end, 10);
    const char *at = strstr(status, counter);
    if (end == call || !is_wait(number) || at == NULL) /* "running" */
        return -1;
    return strtoll(at + sizeof counter - 1, NULL, 10);
}

static bool has_ended(const char *folder)
{
    char status[4096];

    return !read_text(folder, "status", status, sizeof status) ||
           strstr(status, "\nState:\tZ") != NULL || strstr(status, "\nState:\tX") != NULL;
}

/* One sleep that lasts for several looks: a wait for a lock or for the answer of a server is shorter. */
static bool sleeps(const char *folder)
{
    int64_t last = -1;

    for (int looks = 0; looks < LOOKS_ASLEEP;) {
        int64_t now = sleep_number(folder);
        looks = now >= 0 && now == last ? looks + 1 : 0;
        last = now;
        if (has_ended(folder))
            return false;
        (void)nanosleep(&(struct timespec){.tv_nsec = LOOK_MS * 1000000}, NULL);
    }
    return true;
}

bool test_thread_sleeps(pthread_t thread)
{
    char folder[64];
    clockid_t clock;

    /* The number of the clock is made from that of the thread, which has no other way to be asked for. */
    if (pthread_getcpuclockid(thread, &clock) != 0)
        return false;
    (void)snprintf(folder, sizeof folder, "/proc/self/task/%d", (int)~(clock >> 3));
    return sleeps(folder);
}

bool test_process_sleeps(pid_t pid)
{
    char folder[64];

    (void)snprintf(folder, sizeof folder, "/proc/%d", (int)pid);
    return sleeps(folder);
}
