/* shift.c: the helpers of shift.h. */
#include "work/shift.h"

#include "base/processes.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---------------------------------------------------------------- the store */

static const char *shop_path(void)
{
    const char *named = getenv("SHOP");
    return named ? named : "s.db";
}

struct shop shop_open_at(const char *path)
{
    struct shop shop = {0};

    EXPECT_EQ(setenv("SHOP", path, 1), 0);
    int rc = lh_open(path, &(lh_open_opts){.create = true}, &shop.store);
    if (rc != LH_OK)
        FAIL("%s: %s", lh_status_name(rc), lh_errmsg(shop.store));
    return shop;
}

struct shop shop_open(void)
{
    return shop_open_at("s.db");
}

void shop_close(struct shop *shop)
{
    lh_findings *findings = NULL;

    EXPECT_OK(lh_check(shop->store, NULL, &findings));
    for (size_t i = 0; i < findings->n; i++)
        if (strcmp(findings->finding[i].level, "error") == 0)
            FAIL("check: %s: %s", findings->finding[i].what, findings->finding[i].text);
    lh_findings_free(findings);
    lh_jobs_free(shop->seen);
    lh_close(shop->store);
    *shop = (struct shop){0};
}

int64_t put_bytes(struct shop *shop, const char *queue, const void *payload, size_t len)
{
    lh_new_job job = {.payload = payload, .payload_len = len};
    lh_enqueued out;

    EXPECT_OK(lh_enqueue(shop->store, queue, &job, 1, NULL, &out));
    return out.id;
}

int64_t put(struct shop *shop, const char *queue, const char *payload)
{
    return put_bytes(shop, queue, payload, strlen(payload));
}

void put_many(struct shop *shop, const char *queue, size_t n)
{
    enum { AT_ONCE = 500 };
    static const lh_new_job jobs[AT_ONCE];
    lh_enqueued out[AT_ONCE];

    for (size_t some; n > 0; n -= some) {
        some = n < AT_ONCE ? n : AT_ONCE;
        EXPECT_OK(lh_enqueue(shop->store, queue, jobs, some, NULL, out));
    }
}

const lh_job *look(struct shop *shop, int64_t id)
{
    lh_jobs_free(shop->seen);
    shop->seen = NULL;
    int rc = lh_job_get(shop->store, id, &shop->seen);
    if (rc != LH_OK)
        FAIL("job %lld: %s: %s", (long long)id, lh_status_name(rc), lh_errmsg(shop->store));
    return &shop->seen->job[0];
}

lh_state state_of(struct shop *shop, int64_t id)
{
    return look(shop, id)->state;
}

static int64_t count_in(const lh_queue *queue, lh_state state)
{
    const int64_t counts[] = {
        [LH_SCHEDULED] = queue->scheduled, [LH_PENDING] = queue->pending,
        [LH_RUNNING] = queue->running,     [LH_COMPLETED] = queue->completed,
        [LH_FAILED] = queue->failed,       [LH_CANCELLED] = queue->cancelled,
    };
    return counts[state];
}

int64_t count(struct shop *shop, lh_state state)
{
    lh_queues *queues = NULL;
    int64_t n = 0;

    EXPECT_OK(lh_queue_list(shop->store, &queues));
    for (size_t i = 0; i < queues->n; i++)
        n += count_in(&queues->queue[i], state);
    lh_queues_free(queues);
    return n;
}

int64_t workers(struct shop *shop)
{
    lh_workers *list = NULL;

    EXPECT_OK(lh_worker_list(shop->store, &list));
    int64_t n = (int64_t)list->n;
    lh_workers_free(list);
    return n;
}

int64_t events(struct shop *shop, const char *type)
{
    lh_events *list = NULL;
    int64_t n = 0;

    EXPECT_OK(lh_event_list(shop->store, &(lh_event_filter){.limit = 10000}, &list));
    for (size_t i = 0; i < list->n; i++)
        n += strcmp(list->event[i].type, type) == 0;
    lh_events_free(list);
    return n;
}

void cancel(struct shop *shop, int64_t id)
{
    EXPECT_OK(lh_cancel(shop->store, &id, 1, NULL, NULL));
}

void recover(struct shop *shop)
{
    lh_report *report = NULL;
    EXPECT_OK(lh_recover(shop->store, NULL, &report));
    lh_report_free(report);
}

static void backoff(struct shop *shop, int64_t ms)
{
    const lh_policy rule = {
        .set = LH_POLICY_BACKOFF | LH_POLICY_BACKOFF_CAP, .backoff_ms = ms, .backoff_cap_ms = ms};

    EXPECT_OK(lh_policy_set(shop->store, NULL, NULL, &rule, 0));
}

void no_backoff(struct shop *shop)
{
    backoff(shop, 1);
}

void long_backoff(struct shop *shop)
{
    backoff(shop, LONG_BACKOFF_MS);
}

/* ---------------------------------------------------------------- workers */

static char *content(const char *path)
{
    static char text[1 << 20];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t have = 0;
    ssize_t n = 0;

    while (fd >= 0 && have < sizeof text - 1 &&
           (n = read(fd, text + have, sizeof text - 1 - have)) > 0)
        have += (size_t)n;
    if (fd >= 0)
        close(fd);
    text[have] = '\0';
    return text;
}

enum { WORDS_MOST = 40 };

static void command_line(const char *act, const char *const words[], const char *argv[WORDS_MOST])
{
    size_t n = 0;

    argv[n++] = getenv("TEST_LEASEHOLD");
    EXPECT(argv[0] != NULL);
    argv[n++] = "--store";
    argv[n++] = shop_path();
    if (act != NULL)
        argv[n++] = act;
    for (size_t i = 0; words[i] != NULL; i++) {
        EXPECT(n < WORDS_MOST - 1);
        argv[n++] = words[i];
    }
    argv[n] = NULL;
}

struct shift shift_start(const char *const words[])
{
    static int number;
    const char *argv[WORDS_MOST];
    struct shift shift;

    command_line("work", words, argv);
    (void)snprintf(shift.log, sizeof shift.log, "log-%d", ++number);
    int log = open(shift.log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    EXPECT(log >= 0);
    shift.pid = test_fork();
    if (shift.pid == 0) {
        union {
            const char *const *given;
            char *const *wanted;
        } args = {.given = argv};
        if (dup2(log, 1) == 1 && dup2(log, 2) == 2)
            (void)execv(argv[0], args.wanted);
        _exit(127);
    }
    close(log);
    EVENTUALLY(said(&shift, "is ready") || gone(shift.pid));
    if (gone(shift.pid))
        FAIL("the worker did not start:\n%s", content(shift.log));
    return shift;
}

void shift_signal(const struct shift *shift, int sig)
{
    EXPECT_EQ(kill(shift->pid, sig), 0);
}

/* A writer holds the writer lock or the sync lock: bytes of the coordination file. */
static bool is_locked(int side, off_t byte)
{
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};

    EXPECT_EQ(fcntl(side, F_OFD_GETLK, &lock), 0);
    return lock.l_type != F_UNLCK;
}

static bool someone_writes(void)
{
    enum { TURN = 1 << 20, SYNC = TURN + 3 };
    char path[128];

    (void)snprintf(path, sizeof path, "%s-lease", shop_path());
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    EXPECT(fd >= 0);
    bool locked = is_locked(fd, TURN) || is_locked(fd, SYNC);
    close(fd);
    return locked;
}

static bool is_stopped(pid_t pid)
{
    struct lhi_process process;
    return lhi_process_read(pid, &process) && process.state == 'T';
}

void shift_freeze(const struct shift *shift)
{
    int64_t since = now_ms();

    for (;;) {
        shift_signal(shift, SIGSTOP);
        EVENTUALLY(is_stopped(shift->pid));
        if (!someone_writes())
            return;
        shift_signal(shift, SIGCONT);
        not_yet(since, __FILE__, __LINE__, "a moment in which nobody writes");
    }
}

int shift_wait(struct shift *shift)
{
    EVENTUALLY(gone(shift->pid));
    struct run r = test_wait(shift->pid);
    shift->pid = 0;
    return r.code >= 0 ? r.code : -r.sig;
}

int shift_stop(struct shift *shift)
{
    shift_signal(shift, SIGTERM);
    return shift_wait(shift);
}

int times_said(const struct shift *shift, const char *words)
{
    int n = 0;
    for (const char *at = content(shift->log); (at = strstr(at, words)) != NULL; at++)
        n++;
    return n;
}

bool said(const struct shift *shift, const char *words)
{
    return times_said(shift, words) > 0;
}

int64_t number_after(const struct shift *shift, const char *words)
{
    const char *at = strstr(content(shift->log), words);

    return at != NULL ? strtoll(at + strlen(words), NULL, 10) : -1;
}

struct run work_run(const char *const words[])
{
    const char *argv[WORDS_MOST];

    command_line("work", words, argv);
    return run(NULL, argv);
}

void expect_work(const char *file, int line, int code, const char *const words[])
{
    struct run r = work_run(words);

    if (r.code != code)
        test_fail(file, line, "exit code %d, signal %d, expected exit code %d\n%s%s", r.code, r.sig,
                  code, r.out, r.err);
    run_clear(&r);
}

void program(const char *const words[])
{
    const char *argv[WORDS_MOST];

    command_line(NULL, words, argv);
    struct run r = run(NULL, argv);
    if (r.code != 0)
        FAIL("leasehold %s: exit code %d\n%s%s", words[0], r.code, r.out, r.err);
    run_clear(&r);
}

const char *guardian_path(void)
{
    static char path[4096];
    char copy[4096];

    (void)snprintf(copy, sizeof copy, "%s", getenv("TEST_LEASEHOLD"));
    (void)snprintf(path, sizeof path, "%s/leasehold-guardian", dirname(copy));
    return path;
}

static pid_t child_of(pid_t pid)
{
    char path[64];

    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)pid, (int)pid);
    return (pid_t)strtol(content(path), NULL, 10);
}

pid_t guardian_of(const struct shift *shift)
{
    EVENTUALLY(child_of(shift->pid) > 0);
    return child_of(shift->pid);
}

/* ---------------------------------------------------------------- files and processes */

void write_file(const char *path, const char *text, int mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, (mode_t)mode);

    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text) || close(fd) != 0)
        FAIL("could not write \"%s\": %s", path, strerror(errno));
}

void touch(const char *path)
{
    write_file(path, "", 0600);
}

bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

size_t lines_of(const char *path)
{
    size_t n = 0;
    for (const char *at = content(path); (at = strchr(at, '\n')) != NULL; at++)
        n++;
    return n;
}

int64_t number_in(const char *path)
{
    EVENTUALLY(lines_of(path) > 0);
    int64_t number = strtoll(content(path), NULL, 10);
    EXPECT(number > 0);
    return number;
}

bool gone(int64_t pid)
{
    return lhi_process_gone(pid, 0);
}

/* ---------------------------------------------------------------- time */

static int64_t clock_ms(clockid_t clock)
{
    struct timespec ts;
    (void)clock_gettime(clock, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

int64_t now_ms(void)
{
    return clock_ms(CLOCK_MONOTONIC);
}

int64_t now_wall_ms(void)
{
    return clock_ms(CLOCK_REALTIME);
}

void not_yet(int64_t since_ms, const char *file, int line, const char *what)
{
    const char *scale = getenv("TEST_TIMEOUT_SCALE");
    int64_t patience = PATIENCE_MS * (scale ? strtoll(scale, NULL, 10) : 1);

    if (now_ms() - since_ms > patience)
        test_fail(file, line, "never came: %s", what);
    (void)nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
}
