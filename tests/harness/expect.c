/*
 * Expectations and helpers: the part of the harness that runs inside the process of a test. No function here
 * returns an error: each error fails the test.
 */
#include "harness.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

const char *test_source_path(const char *file)
{
    while (strncmp(file, "../", 3) == 0)
        file += 3;
    return file;
}

_Noreturn void test_fail(const char *file, int line, const char *fmt, ...)
{
    va_list args;

    fflush(stdout);
    fprintf(stderr, "%s:%d: ", test_source_path(file), line);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
    fflush(stderr);
    /* Not exit(): other threads may still use what its handlers take down, and the leaks of a
     * broken-off test are no news. */
    _exit(1);
}

void test_expect_eq(const char *file, int line, const char *a_text, const char *b_text, intmax_t a,
                    intmax_t b)
{
    if (a != b)
        test_fail(file, line, "expected: %s == %s\n  left:  %jd\n  right: %jd", a_text, b_text, a,
                  b);
}

void test_expect_str(const char *file, int line, const char *a_text, const char *b_text,
                     const char *a, const char *b)
{
    if (a == b || (a != NULL && b != NULL && strcmp(a, b) == 0))
        return;
    test_fail(file, line, "expected: %s is the same text as %s\n  left:  %s%s%s\n  right: %s%s%s",
              a_text, b_text, a ? "\"" : "", a ? a : "NULL", a ? "\"" : "", b ? "\"" : "",
              b ? b : "NULL", b ? "\"" : "");
}

void test_expect_contains(const char *file, int line, const char *expr, const char *text,
                          const char *part)
{
    if (text == NULL || strstr(text, part) == NULL)
        test_fail(file, line, "expected: %s contains \"%s\"\n  text: %s", expr, part,
                  text ? text : "NULL");
}

void test_expect_mem(const char *file, int line, const char *a_text, const char *b_text,
                     const void *a, size_t a_len, const void *b, size_t b_len)
{
    const unsigned char *left = a, *right = b;
    size_t same = 0;

    while (same < a_len && same < b_len && left[same] == right[same])
        same++;
    if (same < a_len || same < b_len)
        test_fail(file, line,
                  "expected: %s has the same bytes as %s\n  left: %zu bytes, right: %zu bytes, "
                  "equal up to %zu",
                  a_text, b_text, a_len, b_len, same);
}

void test_expect_status(const char *file, int line, const char *expr, int got, int wanted)
{
    if (got != wanted)
        test_fail(file, line, "expected: %s is %s (%d)\n  got: %s (%d)", expr,
                  lh_status_name(wanted), wanted, lh_status_name(got), got);
}

static int memory_file(const char *name, const char *content)
{
    int fd = memfd_create(name, MFD_CLOEXEC);
    size_t len = content ? strlen(content) : 0;

    if (fd < 0)
        FAIL("could not create a memory file: %s", strerror(errno));
    while (len > 0) {
        ssize_t n = write(fd, content, len);
        if (n < 0)
            FAIL("could not fill a memory file: %s", strerror(errno));
        content += n;
        len -= (size_t)n;
    }
    if (lseek(fd, 0, SEEK_SET) < 0)
        FAIL("could not rewind a memory file: %s", strerror(errno));
    return fd;
}

static char *read_and_close(int fd, size_t *len_out)
{
    off_t size = lseek(fd, 0, SEEK_END);
    size_t have = 0;
    char *text;

    if (size < 0 || (text = malloc((size_t)size + 1)) == NULL)
        FAIL("could not read the output of a program: %s", strerror(errno));
    while (have < (size_t)size) {
        ssize_t n = pread(fd, text + have, (size_t)size - have, (off_t)have);
        if (n <= 0)
            break;
        have += (size_t)n;
    }
    text[have] = '\0';
    close(fd);
    *len_out = have;
    return text;
}

/* Negative descriptors are ignored. */
static pid_t start(const char *const argv[], int in, int out, int err)
{
    pid_t pid;

    fflush(NULL);
    pid = fork();
    if (pid < 0)
        FAIL("could not fork: %s", strerror(errno));
    if (pid > 0)
        return pid;
    if ((in < 0 || dup2(in, 0) == 0) && (out < 0 || dup2(out, 1) == 1) &&
        (err < 0 || dup2(err, 2) == 2)) {
        union {
            const char *const *given;
            char *const *wanted;
        } args = {.given = argv}; /* exec promises not to write, its prototype does not say so */
        execvp(argv[0], args.wanted);
    }
    dprintf(2, "could not run %s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

struct run run(const char *stdin_data, const char *const argv[])
{
    /* Files rather than pipes: nothing can block on a full one, and a daemon that keeps its end
     * open does not keep us waiting. */
    int in = memory_file("stdin", stdin_data);
    int out = memory_file("stdout", NULL);
    int err = memory_file("stderr", NULL);
    struct run r = test_wait(start(argv, in, out, err));

    close(in);
    r.out = read_and_close(out, &r.out_len);
    r.err = read_and_close(err, &r.err_len);
    return r;
}

void run_clear(struct run *r)
{
    free(r->out);
    free(r->err);
    *r = (struct run){0};
}

pid_t test_spawn(const char *const argv[])
{
    return start(argv, -1, -1, -1);
}

pid_t test_fork(void)
{
    pid_t pid;

    fflush(NULL);
    pid = fork();
    if (pid < 0)
        FAIL("could not fork: %s", strerror(errno));
    return pid;
}

pid_t test_fork_reopening(lh_store **store, lh_store *(*reopen)(void))
{
    lh_close(*store);
    *store = NULL;
    pid_t pid = test_fork();
    if (pid > 0)
        *store = reopen();
    return pid;
}

pid_t test_fork_waiting(int *go)
{
    int gate[2];
    char byte;

    if (pipe(gate) != 0)
        FAIL("could not make a pipe: %s", strerror(errno));
    pid_t pid = test_fork();
    if (pid > 0) {
        close(gate[0]);
        *go = gate[1];
        return pid;
    }
    close(gate[1]);
    if (read(gate[0], &byte, 1) != 0)
        FAIL("the parent of a waiting child does not let it go: %s", strerror(errno));
    close(gate[0]);
    return 0;
}

enum { NEW_TIME = 0x80 }; /* CLONE_NEWTIME, which older headers do not have */

bool test_new_time_namespace(int64_t seconds)
{
    if (unshare(NEW_TIME) != 0 && unshare(CLONE_NEWUSER | NEW_TIME) != 0)
        return false;
    int fd = open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC);
    char line[80];
    int n = snprintf(line, sizeof line, "monotonic %lld 0\nboottime %lld 0\n", (long long)seconds,
                     (long long)seconds);
    bool shifted = fd >= 0 && write(fd, line, (size_t)n) == n;

    if (fd >= 0)
        close(fd);
    return shifted;
}

pid_t test_fork_at_another_time(int64_t seconds)
{
    enum { NO_NAMESPACE = 77 };
    int answer[2];
    pid_t pid = -1;

    if (pipe(answer) != 0)
        FAIL("could not make a pipe: %s", strerror(errno));
    pid_t between = test_fork();
    if (between == 0) {
        bool made = test_new_time_namespace(seconds);
        pid = made ? test_fork() : -1;
        if (made && pid == 0) {
            close(answer[0]);
            close(answer[1]);
            return 0;
        }
        if (write(answer[1], &pid, sizeof pid) != sizeof pid)
            _exit(1);
        if (!made)
            _exit(NO_NAMESPACE);
        struct run ended = test_wait(pid);
        _exit(ended.sig != 0 ? 128 + ended.sig : ended.code);
    }
    close(answer[1]);
    if (read(answer[0], &pid, sizeof pid) != sizeof pid)
        FAIL("a process in a time namespace was not started");
    close(answer[0]);
    if (pid > 0)
        return between;
    (void)test_wait(between);
    (void)fprintf(stderr, "not run: this user may not make a time namespace\n");
    return -1;
}

_Noreturn void test_child_done(void)
{
    fflush(NULL);
    _exit(0);
}

struct run test_wait(pid_t pid)
{
    struct run r = {.code = -1};
    int status;

    while (waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR)
            FAIL("could not wait for process %d: %s", (int)pid, strerror(errno));
    }
    if (WIFEXITED(status))
        r.code = WEXITSTATUS(status);
    else
        r.sig = WTERMSIG(status);
    return r;
}
