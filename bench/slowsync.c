/*
 * An LD_PRELOAD library that simulates a slow disk: every sync takes at least $SLOWSYNC_US
 * microseconds, in the floor and in the product, so that ratios can be measured for disks that we
 * do not have.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

typedef int sync_fn(int fd);

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int slowly(const char *name, int fd)
{
    const char *text = getenv("SLOWSYNC_US");
    int64_t until = now_ns() + (text ? strtoll(text, NULL, 10) : 0) * 1000;
    sync_fn *real;
    *(void **)&real = dlsym(RTLD_NEXT, name);
    int rc = real(fd);
    int64_t left = until - now_ns();
    if (rc == 0 && left > 0) {
        struct timespec t = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
        nanosleep(&t, NULL);
    }
    return rc;
}

int fdatasync(int fildes)
{
    return slowly("fdatasync", fildes);
}

int fsync(int fd)
{
    return slowly("fsync", fd);
}
