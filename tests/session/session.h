/*
 * One session of all calls, which crash and fault tests interrupt.
 *
 * The clock is set from the session, ids count from 1 and tokens follow rules, so the store after call i is the
 * same in every run, in every column. A *picture* is that state as text. So a test that interrupts a call can
 * demand that the store is as before the call or as after it, and in no other state.
 *
 *     struct session s;
 *     session_start(&s, "s.db", NULL);
 *     for (size_t i = 0; i < session_acts_n; i++)
 *         session_act(&s, i);
 *     session_end(&s);
 */
#ifndef SESSION_H
#define SESSION_H

#include <leasehold.h>

/* What the session remembers of the results of its calls. */
enum {
    MAIL,
    KEYED = MAIL + 5,
    DELAYED,
    FRESH,
    BARE,
    ORDERED,
    PLAIN = ORDERED + 2,
    SOLO,
    SLOW = SOLO + 2,
    FRAIL = SLOW + 3,
    DOOMED,
    LARGE = DOOMED + 2,
    LATE,
    AGED,
    BULK = AGED + 2,
    BULK_N = 120,
    JOBS = BULK + BULK_N
};

enum { MOST_ISSUED = 256 };

struct notes {
    int64_t id[JOBS], token[JOBS];
    int64_t lease_token;
    /* every lease of a job that was handed out, in order */
    lh_ref issued[MOST_ISSUED];
    size_t n_issued;
};

struct session {
    char path[200];
    lh_open_opts opts;
    lh_store *store;
    struct notes notes;
    const char *request; /* repeat an enqueue that names no request under this id */
    char why[256];       /* the error message of the last call that failed */
};

enum {
    ACT_UNSYNCED = 1 << 0,    /* a power loss may undo it */
    ACT_NO_IDENTITY = 1 << 1, /* a repeat is another call */
    ACT_USER = 1 << 2,        /* on the user's own connection, in the user's own transaction */
    ACT_HEALS = 1 << 3,       /* also recovers expired jobs; continues if that fails */
    ACT_FILLER = 1 << 4,      /* like an earlier call; only there to fill the WAL */
    ACT_KEEPS_LOG = 1 << 5,   /* makes a checkpoint */
    ACT_STEPS = 1 << 6,       /* several transactions: a failure may leave the first done */
    ACT_CLOSES = 1 << 7,      /* ends without an open store */
};

struct act {
    const char *name;
    int (*run)(struct session *s);
    unsigned flags;
    int outcome;      /* what it returns */
    int again;        /* what a repeat with the same request id returns, if not that */
    int64_t later_ms; /* this long after the call before it */
    int64_t wall_ms;  /* the wall clock alone is set forward by this */
    const char *boot; /* the machine was rebooted */
};

extern const struct act session_acts[];
extern const size_t session_acts_n;

/* The same results, except for the token of a named lease, which counts transactions. */
bool session_same(const struct notes *a, const struct notes *b);

/* Set the clock and the boot to what they are at act `i`. */
void session_clock(size_t i);
void session_start(struct session *s, const char *path, const lh_open_opts *opts);
/* Open the store as act `i` finds it: not at all before the first. */
int session_open(struct session *s, size_t i);
/* Perform act `i` at its time; its outcome, with s->why set if that is a failure. */
int session_act(struct session *s, size_t i);
void session_end(struct session *s);

/* ---- pictures ---- */

enum picture_of {
    PICTURE_EXACT,
    /* without events, reports, epoch and counts: what repeating and healing may add to */
    PICTURE_LOOSE,
};

/* The state of the store at `path` as a crash of every process would leave it: read from a copy of
 * database and log, so that nothing is disturbed. "" where there is no store. free() it. */
char *session_picture(const char *path, enum picture_of what);
/* Print the differences of two snapshots to stderr. */
void session_compare(const char *title, const char *got, const char *wanted);

/* The session without faults: notes[i], exact[i] and loose[i] hold before call i. */
struct reference {
    struct notes *notes;
    char **exact, **loose;
};

void session_reference(struct reference *ref, const lh_open_opts *opts);
void session_reference_free(struct reference *ref);

/* ---- small things ---- */

/* Expects that lh_check() finds no error. */
void session_check(lh_store *store, const char *when);
/* Copy or remove the database, its WAL and index, and the coordination file. */
void session_copy(const char *from, const char *to);
void session_remove(const char *path);

#endif
