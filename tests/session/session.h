/*
 * One scripted session of all acts, for runs that break it off.
 *
 * The clock stands still and is set from the script, ids count from 1 and tokens follow rules, so
 * the store after act number i is the same in every run, to the last column. A *picture* is that
 * state as text. Whoever breaks an act off may therefore demand that the store is, as a whole, as
 * it was before the act or as it is after it, and nothing in between.
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

/* What the script remembers of what it was told. */
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
    char why[256];       /* what the last act that failed had to say */
};

enum {
    ACT_UNSYNCED = 1 << 0,    /* power loss may take it back */
    ACT_NO_IDENTITY = 1 << 1, /* repeated, it is another act */
    ACT_USER = 1 << 2,        /* on the user's own connection, in the user's own transaction */
    ACT_HEALS = 1 << 3,       /* takes back what is expired on its way; may fail to, and goes on */
    ACT_FILLER = 1 << 4,      /* like another one before; only there to fill the log */
    ACT_KEEPS_LOG = 1 << 5,   /* folds the log: matters only where there is one */
    ACT_STEPS = 1 << 6,       /* several transactions: a failure may leave the first done */
    ACT_CLOSES = 1 << 7,      /* ends without an open store */
};

struct act {
    const char *name;
    int (*run)(struct session *s);
    unsigned flags;
    int outcome;      /* what it returns */
    int again;        /* what it returns after it was done under the same identity, if not that */
    int64_t later_ms; /* so long after the act before */
    int64_t wall_ms;  /* the wall clock alone is set forward by this */
    const char *boot; /* the machine was booted anew */
};

extern const struct act session_acts[];
extern const size_t session_acts_n;

/* The same was told; but for the token of a named lease, which counts transactions. */
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
/* Says where two pictures part, on stderr. */
void session_compare(const char *title, const char *got, const char *wanted);

/* The session as it runs undisturbed: notes[i], exact[i] and loose[i] hold before act i. */
struct reference {
    struct notes *notes;
    char **exact, **loose;
};

void session_reference(struct reference *ref, const lh_open_opts *opts);
void session_reference_free(struct reference *ref);

/* ---- small things ---- */

/* Expects that lh_check() finds no error. */
void session_check(lh_store *store, const char *when);
/* Copy or remove database, log, index and side file. */
void session_copy(const char *from, const char *to);
void session_remove(const char *path);

#endif
