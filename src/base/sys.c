/* sys.c: locks, futexes, threads, randomness, the identity of a process, file systems. */
#include "base/sys.h"

#include "base/error.h"
#include "base/hook.h"
#include "base/processes.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/magic.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- locks ---- */

static int lock_byte(int fd, int cmd, off_t byte, short type)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int rc;
    do
        rc = fcntl(fd, cmd, &lock);
    while (rc != 0 && errno == EINTR);
    return rc == 0 ? 0 : errno;
}

bool lhi_lock_try(int fd, off_t byte, bool shared)
{
    return lock_byte(fd, F_OFD_SETLK, byte, shared ? F_RDLCK : F_WRLCK) == 0;
}

int lhi_lock_wait(int fd, off_t byte, bool shared)
{
    return lock_byte(fd, F_OFD_SETLKW, byte, shared ? F_RDLCK : F_WRLCK);
}

void lhi_unlock(int fd, off_t byte)
{
    (void)lock_byte(fd, F_OFD_SETLK, byte, F_UNLCK);
}

bool lhi_is_locked(int fd, off_t byte)
{
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1, .l_pid = 0};
    return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

/* ---- futexes ---- */

int lhi_futex_wait(uint32_t *word, uint32_t value, uint32_t mask, int64_t timeout_ms)
{
    struct timespec ts, *deadline = NULL;

    if (timeout_ms >= 0) {
        /* FUTEX_WAIT_BITSET takes an absolute time of the monotonic clock. */
        (void)clock_gettime(CLOCK_MONOTONIC, &ts);
        ts.tv_sec += timeout_ms / 1000;
        ts.tv_nsec += timeout_ms % 1000 * 1000000;
        if (ts.tv_nsec >= 1000000000) {
            ts.tv_sec++;
            ts.tv_nsec -= 1000000000;
        }
        deadline = &ts;
    }
    long rc = syscall(SYS_futex, word, FUTEX_WAIT_BITSET, value, deadline, NULL, mask);
    return rc == 0 ? 0 : errno;
}

void lhi_futex_wake(uint32_t *word, int n, uint32_t mask)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE_BITSET, n, NULL, NULL, mask);
}

/* ---- threads ---- */

bool lhi_thread_start(pthread_t *thread, void *(*run)(void *), void *arg)
{
    sigset_t all, before;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(thread, NULL, run, arg) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

/* ---- a child process that answers one question ---- */

/* The thread sanitizer treats every clone() as a fork, which has a copy of the memory. */
#if defined(__SANITIZE_THREAD__)
#define CHILD_FLAGS CLONE_VFORK
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define CHILD_FLAGS CLONE_VFORK
#endif
#endif
#ifndef CHILD_FLAGS
#define CHILD_FLAGS (CLONE_VM | CLONE_VFORK)
#endif

enum { CHILD_STACK = 64 * 1024 };

int lhi_ask_child(int (*ask)(void *), void *arg)
{
    sigset_t all, before;
    int status = 0;
    char *stack = mmap(NULL, CHILD_STACK, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);

    if (stack == MAP_FAILED)
        return -1;
    /* No signal handler may run in the child, because it shares our memory. */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    /* The child has its own descriptors, and its end sends no signal. */
    pid_t pid = clone(ask, stack + CHILD_STACK, CHILD_FLAGS, arg);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    (void)munmap(stack, CHILD_STACK);
    if (pid < 0)
        return -1;
    while (waitpid(pid, &status, __WALL) < 0)
        if (errno != EINTR)
            return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* ---- randomness ---- */

bool lhi_random(void *buf, size_t len)
{
    unsigned char *p = buf;
    while (len > 0) {
        ssize_t n = getrandom(p, len, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        p += n;
        len -= (size_t)n;
    }
    return true;
}

void lhi_uuid(char out[37])
{
    unsigned char b[16];

    if (!lhi_random(b, sizeof b)) {
        /* Without randomness, time and pid still distinguish two stores. */
        struct timespec ts;
        (void)clock_gettime(CLOCK_REALTIME, &ts);
        int64_t parts[2] = {(int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec, getpid()};
        memcpy(b, parts, sizeof b);
    }
    b[6] = (unsigned char)((b[6] & 0x0f) | 0x40);
    b[8] = (unsigned char)((b[8] & 0x3f) | 0x80);
    lhi_format(out, 37, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
               b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12],
               b[13], b[14], b[15]);
}

/* ---- identity ---- */

/* The first line of a small file, without its newline; "" if there is none. */
static void read_line(const char *path, char *out, size_t len)
{
    size_t used = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd >= 0) {
        ssize_t n = read(fd, out, len - 1);
        used = n > 0 ? (size_t)n : 0;
        close(fd);
    }
    out[used] = '\0';
    out[strcspn(out, "\n")] = '\0';
}

void lhi_boot_id(char out[40])
{
#ifdef LHI_TEST
    if (lhi_control()->boot[0] != '\0') {
        lhi_format(out, 40, "%s", lhi_control()->boot);
        return;
    }
#endif
    read_line("/proc/sys/kernel/random/boot_id", out, 40);
}

/* The number of a namespace of this process; 0: it cannot be read, or the kernel does not have this kind. */
static int64_t namespace_of(const char *kind)
{
    char path[64];
    struct stat st;

    lhi_format(path, sizeof path, "/proc/self/ns/%s", kind);
    return stat(path, &st) == 0 ? (int64_t)st.st_ino : 0;
}

void lhi_time_ns(struct lhi_time_ns *out)
{
    char line[128];
    char *rest;

    *out = (struct lhi_time_ns){.id = namespace_of("time")};
    out->differs_from_children = out->id != namespace_of("time_for_children");
    if (out->id == 0 || out->differs_from_children)
        return;
    read_line("/proc/self/timens_offsets", line, sizeof line);
    if (strncmp(line, "monotonic", 9) != 0)
        return; /* this kernel has no time namespaces */
    int64_t seconds = strtoll(line + 9, &rest, 10);
    out->ahead_ms = seconds * 1000 + strtoll(rest, NULL, 10) / 1000000;
}

void lhi_identify(struct lhi_identity *id)
{
    memset(id, 0, sizeof *id);
    if (gethostname(id->host, sizeof id->host - 1) != 0)
        id->host[0] = '\0';
    read_line("/etc/machine-id", id->machine, sizeof id->machine);
    lhi_boot_id(id->boot);
    id->pid_ns = namespace_of("pid");
    id->time_ns = namespace_of("time");
    id->pid = getpid();
    id->start = lhi_process_start(id->pid);
}

/* ---- files ---- */

bool lhi_same_file(const char *a, const char *b)
{
    struct stat sa, sb;
    return lstat(a, &sa) == 0 && lstat(b, &sb) == 0 && sa.st_dev == sb.st_dev &&
           sa.st_ino == sb.st_ino;
}

bool lhi_on_network_fs(int fd)
{
    /* SMB2, CIFS, Ceph and Lustre have no name in linux/magic.h. */
    static const unsigned long unnamed[] = {0xfe534d42, 0xff534d42, 0x00c36400, 0x0bd00bd0};
    struct statfs fs;

    if (fstatfs(fd, &fs) != 0)
        return false;
    switch ((unsigned long)fs.f_type) {
    case NFS_SUPER_MAGIC:
    case SMB_SUPER_MAGIC:
    case CODA_SUPER_MAGIC:
    case AFS_SUPER_MAGIC:
    case V9FS_MAGIC:
        return true;
    default:
        break;
    }
    for (size_t i = 0; i < sizeof unnamed / sizeof unnamed[0]; i++)
        if ((unsigned long)fs.f_type == unnamed[i])
            return true;
    return false;
}

int64_t lhi_free_bytes(const char *path)
{
    struct statvfs fs;
    if (statvfs(path, &fs) != 0)
        return -1;
    return (int64_t)(fs.f_bavail * fs.f_frsize);
}
