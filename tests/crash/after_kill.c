#include "crash/after_kill.h"

#include "harness/harness.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct logbook *logbook_new(void)
{
    struct logbook *book =
        mmap(NULL, sizeof *book, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(book != MAP_FAILED);
    return book;
}

void play(const char *path, struct logbook *book, size_t pause_at)
{
    struct session s;

    session_start(&s, path, NULL);
    for (size_t i = 0; i < session_acts_n; i++) {
        if (i == pause_at)
            EXPECT_EQ(raise(SIGSTOP), 0);
        int rc = session_act(&s, i);
        if (rc != session_acts[i].outcome)
            FAIL("%s: %s: %s", session_acts[i].name, lh_status_name(rc), s.why);
        book->notes = s.notes;
        __atomic_store_n(&book->done, i + 1, __ATOMIC_SEQ_CST);
    }
    session_end(&s);
}

static void fail(const char *where, size_t i, const struct session *s, int rc, const char *what)
{
    FAIL("killed at %s, in act %zu, %s: %s\n  %s: %s", where, i,
         i < session_acts_n ? session_acts[i].name : "the end", what, lh_status_name(rc), s->why);
}

static void expect_picture(const char *where, const char *path, const char *wanted)
{
    char *now = session_picture(path, PICTURE_LOOSE);

    if (strcmp(now, wanted) != 0) {
        session_compare("in the end:", now, wanted);
        FAIL("killed at %s: the session went on, and came out otherwise than always", where);
    }
    free(now);
}

/* How far to continue: most mistakes show in the next few calls, and some in the last one. */
static size_t go_on_to(size_t i)
{
    static unsigned calls;
    return ++calls % 4 == 0 || i + 6 > session_acts_n ? session_acts_n : i + 6;
}

void aftermath(const struct reference *ref, const char *path, const struct logbook *book,
               const char *where)
{
    size_t i = book->done;
    const struct act *act = i < session_acts_n ? &session_acts[i] : NULL;
    char *now = session_picture(path, PICTURE_EXACT);
    bool before = strcmp(now, ref->exact[i]) == 0;
    bool after = act != NULL && strcmp(now, ref->exact[i + 1]) == 0;
    struct session s;

    session_start(&s, path, NULL);
    if (!before && !after) {
        session_compare("compared with before the act:", now, ref->exact[i]);
        if (act != NULL)
            session_compare("compared with after the act:", now, ref->exact[i + 1]);
        fail(where, i, &s, 0, "something acknowledged is lost, or something is torn");
    }
    free(now);
    EXPECT(session_same(&book->notes, &ref->notes[i]));

    s.notes = ref->notes[i];
    session_clock(i);
    int rc = session_open(&s, i);
    if (rc != LH_OK)
        fail(where, i, &s, rc, "the store cannot be opened");
    if (s.store != NULL)
        session_check(s.store, where);
    if (act != NULL && !(after && (act->flags & ACT_NO_IDENTITY) != 0)) {
        rc = session_act(&s, i);
        if (rc != act->outcome && !(after && rc == act->again))
            fail(where, i, &s, rc, "the repeat was not done");
    }
    size_t end = go_on_to(i);
    for (size_t k = i; k < end; k++) {
        if (k > i && (rc = session_act(&s, k)) != session_acts[k].outcome)
            fail(where, k, &s, rc, "a later act came out otherwise than always");
        /* Values that a repeat does not return are taken from the reference run. */
        if (k == i)
            s.notes = ref->notes[k + 1];
        else if (!session_same(&s.notes, &ref->notes[k + 1]))
            fail(where, k, &s, rc, "a later act told something else than always");
    }
    session_end(&s);
    expect_picture(where, path, ref->loose[end]);
    session_remove(path);
}
