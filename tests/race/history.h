/*
 * What workers saw, in shared memory, and a check whether it can have happened.
 *
 * Every worker writes to its own place. Tokens order the leases of a job, so the check sorts by them: each (job,
 * token) is handed out once; of two claims of a job that did not overlap, the later one has the higher token,
 * and it came after the earlier lease had ended; each job is completed once, under its last token, and its row
 * says so at the end.
 */
#ifndef HISTORY_H
#define HISTORY_H

#include <leasehold.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MOST_WORKERS = 16, MOST_ENTRIES = 500000 };

struct entry {
    int64_t job, token;
    int64_t call_ns, return_ns;
    bool complete; /* else: a claim */
    int status;
};

struct place {
    size_t n;
    struct entry entry[MOST_ENTRIES];
};

struct history {
    bool stop;     /* the workers stop */
    uint64_t busy; /* a process found a lock of SQLite taken */
    struct place place[MOST_WORKERS];
};

struct history *history_new(void);
int64_t history_now(void); /* ns, of one clock for all */
void history_add(struct history *history, int worker, const struct entry *entry);

/* Expects that the history is possible, that all of the jobs 1 … n are completed in `store`, and
 * that the store is sound. */
void history_check(const struct history *history, lh_store *store, const char *queue, int64_t n,
                   int64_t lease_ms);

/* From here on this process counts in history->busy; also its log lines that speak of locks. */
void history_watch_locks(struct history *history);
void history_log(void *history, const lh_log_entry *entry); /* an lh_log_fn */

#endif
