/* See mounts.h. */
#include "store/mounts.h"

#include "harness/harness.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

static void must(int rc, const char *what, const char *where)
{
    if (rc != 0)
        FAIL("could not %s \"%s\": %s", what, where, strerror(errno));
}

/* ---- mounts ---- */

static void put(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);

    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text) || close(fd) != 0)
        FAIL("could not write %s: %s", path, strerror(errno));
}

/* In a user namespace, root has no more rights than before, except for its own mounts. */
void own_mounts(void)
{
    bool root = geteuid() == 0;
    char users[64], groups[64];

    (void)snprintf(users, sizeof users, "0 %ld 1", (long)geteuid());
    (void)snprintf(groups, sizeof groups, "0 %ld 1", (long)getegid());
    if (unshare(CLONE_NEWNS | (root ? 0 : CLONE_NEWUSER)) != 0)
        FAIL("could not have mounts of our own, which this test needs: %s", strerror(errno));
    if (!root) {
        put("/proc/self/uid_map", users);
        put("/proc/self/setgroups", "deny");
        put("/proc/self/gid_map", groups);
    }
    must(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL), "detach", "/");
}

void mount_tmpfs(const char *at, const char *size)
{
    char data[64];

    (void)snprintf(data, sizeof data, "size=%s,mode=0700", size);
    must(mount("tmpfs", at, "tmpfs", MS_NOSUID | MS_NODEV, data), "mount memory at", at);
}

void mount_again(const char *from, const char *at)
{
    must(mount(from, at, NULL, MS_BIND, NULL), "mount again", from);
}

void mount_read_only(const char *at, bool yes)
{
    struct statvfs fs;

    /* The other flags of the mount must be repeated, or the kernel refuses. */
    must(statvfs(at, &fs), "look at", at);
    unsigned long flags = MS_REMOUNT | MS_BIND | (fs.f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC)) |
                          (fs.f_flag & ST_RELATIME ? MS_RELATIME : 0) |
                          (fs.f_flag & ST_NOATIME ? MS_NOATIME : 0) | (yes ? MS_RDONLY : 0);
    must(mount("none", at, NULL, flags, NULL), "mount read-only or not", at);
}

/* ---- rights ---- */

void obey_permissions(void)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct caps[2];
    const unsigned gone = 1U << CAP_DAC_OVERRIDE | 1U << CAP_DAC_READ_SEARCH;

    must((int)syscall(SYS_capget, &head, caps), "read", "capabilities");
    if ((caps[0].effective & gone) == 0)
        return;
    must(prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE), "give up", "CAP_DAC_OVERRIDE");
    must(prctl(PR_CAPBSET_DROP, CAP_DAC_READ_SEARCH), "give up", "CAP_DAC_READ_SEARCH");
    caps[0].effective &= ~gone;
    caps[0].permitted &= ~gone;
    caps[0].inheritable &= ~gone;
    must((int)syscall(SYS_capset, &head, caps), "give up", "capabilities");
}

/* ---- a kernel with fewer features ---- */

/* `call` fails with EOPNOTSUPP if all of `bits` are set in its argument number `arg`. */
static void refuse(unsigned call, unsigned arg, unsigned bits)
{
    const unsigned at = (unsigned)(offsetof(struct seccomp_data, args) + arg * sizeof(uint64_t));
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 4),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, bits),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, bits, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EOPNOTSUPP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {.len = sizeof program / sizeof program[0], .filter = program};

    must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prepare", "a filter of system calls");
    must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), "set", "a filter of system calls");
}

void without_nameless_files(void)
{
    refuse(SYS_openat, 2, O_TMPFILE);
}

void without_set_aside(void)
{
    refuse(SYS_fallocate, 1, 0);
}

/* ---- room ---- */

void fill_up(const char *path)
{
    static const char zeros[65536];
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

    for (size_t len = sizeof zeros; fd >= 0 && len >= 1;) {
        if (write(fd, zeros, len) > 0)
            continue;
        if (errno != ENOSPC)
            FAIL("could not fill %s: %s", path, strerror(errno));
        len /= 2;
    }
    must(fd < 0 ? -1 : close(fd), "fill", path);
}

/* ---- the program ---- */

void expect_program(const char *path, const char *const words[], int code, const char *out,
                    const char *err)
{
    const char *argv[12] = {getenv("TEST_LEASEHOLD"), "--store", path};

    EXPECT(argv[0] != NULL);
    for (int i = 0; words[i] != NULL; i++)
        argv[i + 3] = words[i];
    struct run r = run(NULL, argv);
    if (r.code != code)
        FAIL("leasehold %s: exit code %d, expected %d\n%s%s", words[0], r.code, code, r.out, r.err);
    EXPECT_CONTAINS(r.out, out);
    EXPECT_CONTAINS(r.err, err);
    run_clear(&r);
}
