/* hook.c: the control block of the test library, see hook.h. Empty in the library that ships. */
#include "base/hook.h"

#ifdef LHI_TEST

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct lhi_control own_block;
static struct lhi_control *block = &own_block;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void attach(void)
{
    const char *path = getenv("LHI_TEST_CONTROL");
    if (path == NULL)
        return;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof own_block) != 0)
        abort();
    void *p = mmap(NULL, sizeof own_block, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        abort();
    close(fd);
    block = p;
}

struct lhi_control *lhi_control(void)
{
    pthread_once(&once, attach);
    return block;
}

bool lhi_fault(enum lhi_fault kind)
{
    struct lhi_control *c = lhi_control();
    int64_t call = __atomic_add_fetch(&c->calls[kind], 1, __ATOMIC_RELAXED);
    return call == __atomic_load_n(&c->fail_at[kind], __ATOMIC_RELAXED);
}

void lhi_point(const char *name)
{
    struct lhi_control *c = lhi_control();
    if (c->kill_at[0] == '\0' || strcmp(c->kill_at, name) != 0)
        return;
    if (__atomic_fetch_sub(&c->kill_skip, 1, __ATOMIC_RELAXED) <= 0)
        kill(getpid(), c->stop_there ? SIGSTOP : SIGKILL);
}

int64_t lhi_poll_ms(int64_t ms)
{
    int64_t instead = __atomic_load_n(&lhi_control()->poll_ms, __ATOMIC_RELAXED);
    return instead != 0 ? instead : ms;
}

#else

typedef int lhi_hook_unused; /* ISO C wants a declaration in every translation unit */

#endif
