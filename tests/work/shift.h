/*
 * shift.h: `leasehold work` as real processes over a real store, and checks of what they do.
 *
 *     struct shop shop = shop_open();
 *     int64_t job = put(&shop, "q", "hello");
 *     struct shift shift = SHIFT("q", "--", "cat");
 *     EVENTUALLY(look(&shop, job)->state == LH_COMPLETED);
 *     EXPECT_EQ(shift_stop(&shift), 0);
 *     shop_close(&shop);
 *
 * Commands are sh scripts. They wait for files that the test creates, and the test waits for what they
 * write. A helper that fails makes the test fail.
 */
#ifndef WORK_SHIFT_H
#define WORK_SHIFT_H

#include "harness/harness.h"

#include <signal.h>

/* ---- the store: s.db, or what $SHOP names ---- */

struct shop {
    lh_store *store;
    lh_jobs *seen;
};

struct shop shop_open(void);
struct shop shop_open_at(const char *path);
void shop_close(struct shop *shop); /* and check the store */

int64_t put(struct shop *shop, const char *queue, const char *payload);
int64_t put_bytes(struct shop *shop, const char *queue, const void *payload, size_t len);
void put_many(struct shop *shop, const char *queue, size_t n);
const lh_job *look(struct shop *shop, int64_t id); /* valid until the next call */
lh_state state_of(struct shop *shop, int64_t id);
int64_t count(struct shop *shop, lh_state state);
int64_t workers(struct shop *shop); /* the number of workers ever registered */
int64_t events(struct shop *shop, const char *type);
void cancel(struct shop *shop, int64_t id);
void recover(struct shop *shop);
#define policy(shop_, ...) \
    EXPECT_OK(lh_policy_set((shop_)->store, "q", NULL, &(lh_policy){__VA_ARGS__}, 0))
/* A failed job is pending again immediately. */
void no_backoff(struct shop *shop);
/* A backoff that is longer than any test, so that a failed job stays scheduled. */
enum { LONG_BACKOFF_MS = 3600000 };
void long_backoff(struct shop *shop);

/* ---- workers ---- */

struct shift {
    pid_t pid;
    char log[32]; /* the file with its log */
};

#define SHIFT(...) shift_start((const char *const[]){__VA_ARGS__, NULL})
struct shift shift_start(const char *const words[]);
void shift_signal(const struct shift *shift, int sig);
/* SIGSTOP, but not during a write: a process that is stopped there would block all writers. */
void shift_freeze(const struct shift *shift);
int shift_wait(struct shift *shift); /* returns the exit code, or minus the signal */
int shift_stop(struct shift *shift); /* SIGTERM, then shift_wait() */
bool said(const struct shift *shift, const char *words);
int times_said(const struct shift *shift, const char *words);
int64_t number_after(const struct shift *shift,
                     const char *words); /* -1: the log does not have the words */

/* Run a worker to its end; .err is its log. */
#define WORK(...) work_run((const char *const[]){__VA_ARGS__, NULL})
struct run work_run(const char *const words[]);
/* Run a worker and expect this exit code. */
#define EXPECT_WORK(code_, ...) \
    expect_work(__FILE__, __LINE__, (code_), (const char *const[]){__VA_ARGS__, NULL})
void expect_work(const char *file, int line, int code, const char *const words[]);

/* `leasehold WORDS…`, which must succeed. */
#define PROGRAM(...) program((const char *const[]){__VA_ARGS__, NULL})
void program(const char *const words[]);

const char *guardian_path(void);
pid_t guardian_of(const struct shift *shift); /* the first one */

/* ---- files and processes ---- */

void touch(const char *path);
void write_file(const char *path, const char *text, int mode);
bool exists(const char *path);
size_t lines_of(const char *path);   /* 0: there is none */
int64_t number_in(const char *path); /* waits for the line with the number */
bool gone(int64_t pid);

/* ---- waiting for a condition, never for time to pass ---- */

enum { PATIENCE_MS = 15000 };

int64_t now_ms(void);      /* CLOCK_MONOTONIC */
int64_t now_wall_ms(void); /* the clock of the store */
void not_yet(int64_t since_ms, const char *file, int line, const char *what);
#define EVENTUALLY(cond_)                                   \
    do {                                                    \
        int64_t since_ms_ = now_ms();                       \
        while (!(cond_))                                    \
            not_yet(since_ms_, __FILE__, __LINE__, #cond_); \
    } while (0)

/* ---- pieces of scripts ---- */

/* The arguments that run a script. */
#define SH(script_) "sh", "-c", (const char *)(script_)
/* Wait for a file. */
#define UNTIL(file_) "while [ ! -e " file_ " ]; do sleep 0.02; done; "

#endif
