/*
 * A small test harness: a process, a directory and a time limit for every test.
 *
 *     SPEC(a_paused_queue_hands_out_no_job)
 *     {
 *         ...
 *         EXPECT_STATUS(lh_claim(store, &opts, &jobs), LH_EMPTY);
 *     }
 *
 * A test registers itself, starts in a fresh directory of its own, and ends at its first failed
 * expectation. It has passed only if its body ran to the end and the process then exited with code 0. So a
 * finding of a sanitizer or of valgrind at exit is a failure, and so is a signal or an early exit().
 * Processes that a test leaves behind are killed. After success the directory is removed; after a failure it
 * is kept, and its path is printed with all output of the test.
 *
 * The program is PROGRAM [--list] [--jobs N] [--times N] [--busy N] [NAME | GLOB]... and prints TAP 13. It
 * exits with 0 only if at least one test ran and all passed. --times runs the tests N times, --busy starts N
 * busy processes: together they find a test that depends on luck. TEST_TIMEOUT_SCALE multiplies all time
 * limits, for sanitizers and busy machines.
 */
#ifndef HARNESS_H
#define HARNESS_H

#include <leasehold.h>

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define TEST_DEFAULT_TIMEOUT_S 20
/* How long tests of behaviour wait for other writers: a busy machine may keep a writer from its processor for
 * longer than the five seconds that a store waits by itself. */
#define TEST_BUSY_MS 60000

struct test {
    const char *name;
    const char *file;
    int line;
    int timeout_s;
    void (*body)(void);
    struct test *next;
};

void test_register(struct test *test);

/* The path of a file below the source tree; compilers use paths that begin at the build folder. */
const char *test_source_path(const char *file);

#define TEST_TIMEOUT(name_, seconds_)                                                 \
    static void test_body_##name_(void);                                              \
    static struct test test_entry_##name_ = {#name_,     __FILE__,          __LINE__, \
                                             (seconds_), test_body_##name_, NULL};    \
    __attribute__((constructor)) static void test_register_##name_(void)              \
    {                                                                                 \
        test_register(&test_entry_##name_);                                           \
    }                                                                                 \
    static void test_body_##name_(void)

#define TEST(name_) TEST_TIMEOUT(name_, TEST_DEFAULT_TIMEOUT_S)
#define SPEC(name_) TEST(name_)

/* ---- expectations; each evaluates its arguments once ---- */

#define FAIL(...) test_fail(__FILE__, __LINE__, __VA_ARGS__)
#define EXPECT(cond_) ((cond_) ? (void)0 : FAIL("expected: %s", #cond_))
#define EXPECT_EQ(a_, b_) \
    test_expect_eq(__FILE__, __LINE__, #a_, #b_, (intmax_t)(a_), (intmax_t)(b_))
#define EXPECT_STR(a_, b_) test_expect_str(__FILE__, __LINE__, #a_, #b_, (a_), (b_))
#define EXPECT_CONTAINS(text_, part_) \
    test_expect_contains(__FILE__, __LINE__, #text_, (text_), (part_))
#define EXPECT_MEM(a_, a_len_, b_, b_len_) \
    test_expect_mem(__FILE__, __LINE__, #a_, #b_, (a_), (size_t)(a_len_), (b_), (size_t)(b_len_))
#define EXPECT_STATUS(expr_, code_) test_expect_status(__FILE__, __LINE__, #expr_, (expr_), (code_))
#define EXPECT_OK(expr_) EXPECT_STATUS(expr_, LH_OK)

_Noreturn void test_fail(const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void test_expect_eq(const char *file, int line, const char *a_text, const char *b_text, intmax_t a,
                    intmax_t b);
void test_expect_str(const char *file, int line, const char *a_text, const char *b_text,
                     const char *a, const char *b);
void test_expect_contains(const char *file, int line, const char *expr, const char *text,
                          const char *part);
void test_expect_mem(const char *file, int line, const char *a_text, const char *b_text,
                     const void *a, size_t a_len, const void *b, size_t b_len);
void test_expect_status(const char *file, int line, const char *expr, int got, int wanted);

/* End the test as skipped, because this machine lacks something. Call it first in a test. */
_Noreturn void test_skip(const char *why);

/* ---- help for tests; whatever of this cannot be done fails the test ---- */

/* The directory of this test, absolute; also its current directory at the start and its $TMPDIR. */
const char *test_tmpdir(void);

/* Where lh_open() finds the store of this test, for all of its processes: "s.db" in its directory, or a
 * fresh database when $TEST_STORES says so. After _renew() it is another one, as fresh. */
const char *test_store(void);
void test_store_renew(void);
bool test_store_is_postgres(void);

/* What a program did. code is its exit code, or -1 if sig killed it. The texts end with a zero byte
 * that the lengths do not count. */
struct run {
    int code;
    int sig;
    char *out;
    char *err;
    size_t out_len;
    size_t err_len;
};

/* Run argv (searched on $PATH, ends with NULL) to its end; stdin_data NULL means empty input. */
struct run run(const char *stdin_data, const char *const argv[]);
void run_clear(struct run *r);

/* Start argv and return. Its output is added to that of the test, and it is killed at the end of the test. */
pid_t test_spawn(const char *const argv[]);
/* Fork within a test. Returns 0 in the child, which ends by test_child_done() or by failing. */
pid_t test_fork(void);
/* The same in a test that has a store open. A process that was forked while a SQLite store was open
 * cannot open one: the handle is closed before the fork, and opened again in the parent. In the child
 * *store is NULL. */
pid_t test_fork_reopening(lh_store **store, lh_store *(*reopen)(void));
/* … or the child is forked before the store is opened, and waits until the parent closes *go. */
pid_t test_fork_waiting(int *go);
/* Make a time namespace for the children of this process, in which the monotonic clocks are ahead of the
 * machine's. False: this user may not, or the kernel has none. */
bool test_new_time_namespace(int64_t seconds);
/* The same as test_fork(), with the child in such a namespace. -1: there is none to be had here, and the
 * test says so and ends. */
pid_t test_fork_at_another_time(int64_t seconds);
_Noreturn void test_child_done(void);

/* Wait until this thread, or the first thread of this process, sleeps in a call that waits. False: it has
 * ended. A test that needs it to sleep expects true. */
bool test_thread_sleeps(pthread_t thread);
bool test_process_sleeps(pid_t pid);
/* Wait for a process of test_spawn or test_fork. Only code and sig are filled. */
struct run test_wait(pid_t pid);

#endif
