/* spawn.c: starting a program without copying our memory: this thread waits until the exec. */
#include "worker/guardian.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STACK = 64 * 1024 };

void spawn_plain_signals(void)
{
    const unsigned long plain[8] = {0}; /* the kernel's struct sigaction: SIG_DFL, no flags */
    sigset_t none;

    /* Use the system call: libc hides two signals, which may have been ignored when we were started. */
    for (int sig = 1; sig < NSIG; sig++)
        (void)syscall(SYS_rt_sigaction, sig, plain, NULL, sizeof(uint64_t));
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

int spawn_fd(int from, int to)
{
    if (from != to)
        return dup2(from, to) < 0 ? errno : 0;
    return fcntl(to, F_SETFD, 0) != 0 ? errno : 0;
}

static int become(void *arg)
{
    struct spawn *spawn = arg;

    spawn->error = spawn->prepare ? spawn->prepare(spawn->arg) : 0;
    if (spawn->error == 0) {
        (void)execve(spawn->path, spawn->argv, spawn->envp);
        spawn->error = errno;
    }
    _exit(127);
}

pid_t spawn_process(struct spawn *spawn)
{
    sigset_t all, before;
    char *stack =
        mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);

    if (stack == MAP_FAILED)
        return -1;
    /* No signal handler may run in the new process, because it shares our memory. */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    spawn->error = 0;
    pid_t pid = clone(become, stack + STACK, CLONE_VM | CLONE_VFORK | SIGCHLD, spawn);
    int error = pid < 0 ? errno : spawn->error;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    (void)munmap(stack, STACK);
    if (pid > 0 && error != 0)
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            continue;
    errno = error;
    return error == 0 ? pid : -1;
}
