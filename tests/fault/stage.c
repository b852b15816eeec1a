#include "fault/stage.h"

#include "harness/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *image(size_t i)
{
    static char name[32];
    (void)snprintf(name, sizeof name, "image-%zu.db", i);
    return name;
}

/* The log is folded before an act, so that the files stay small and a fresh handle finds little to
 * read; but for the act that is about a long log. */
static void keep_images(struct stage *stage)
{
    struct session s;

    session_start(&s, "s.db", NULL);
    for (size_t i = 0; i < session_acts_n; i++) {
        if (s.store != NULL && (session_acts[i].flags & (ACT_FILLER | ACT_KEEPS_LOG)) == 0) {
            session_end(&s);
            EXPECT_OK(session_open(&s, i));
        }
        if ((session_acts[i].flags & ACT_FILLER) == 0)
            session_copy(s.path, image(i));
        s.notes = stage->ref.notes[i];
        EXPECT_EQ(session_act(&s, i), session_acts[i].outcome);
    }
    session_end(&s); /* its files stay, so that no copy gets their inode numbers */
}

void stage_build(struct stage *stage)
{
    session_reference(&stage->ref, NULL);
    keep_images(stage);
}

void stage_clear(struct stage *stage)
{
    session_reference_free(&stage->ref);
}

void stage_set(struct stage *stage, size_t i)
{
    session_start(&stage->s, "run.db", NULL);
    session_copy(image(i), stage->s.path);
    stage->s.notes = stage->ref.notes[i];
    /* The handle was opened before the act, so before its boot. */
    session_clock(i > 0 ? i - 1 : 0);
    int rc = session_open(&stage->s, i);
    if (rc != LH_OK)
        FAIL("could not set the scene of %s: %s: %s", session_acts[i].name, lh_status_name(rc),
             stage->s.why);
    session_clock(i);
}

void stage_strike(struct stage *stage)
{
    session_end(&stage->s);
    session_remove(stage->s.path);
}

enum stage_state stage_look(struct stage *stage, size_t i, enum picture_of what)
{
    char **pictures = what == PICTURE_EXACT ? stage->ref.exact : stage->ref.loose;
    char *now = session_picture(stage->s.path, what);
    bool before = strcmp(now, pictures[i]) == 0, after = strcmp(now, pictures[i + 1]) == 0;

    if (!before && !after) {
        session_compare("compared with before the act:", now, pictures[i]);
        session_compare("compared with after the act:", now, pictures[i + 1]);
    }
    free(now);
    return before && after ? STAGE_SAME : before ? STAGE_BEFORE : after ? STAGE_AFTER : STAGE_TORN;
}

_Noreturn void stage_fail(const char *file, int line, const struct stage *stage, size_t i,
                          const char *fault, int64_t n, int rc, const char *what)
{
    test_fail(file, line, "act %zu, %s, with %s number %lld: %s\n  the act returned %s: %s", i,
              session_acts[i].name, fault, (long long)n, what, lh_status_name(rc), stage->s.why);
}

void stage_expect_done(struct stage *stage, size_t i, const char *fault, int64_t n, bool done)
{
    const struct act *act = &session_acts[i];
    int rc = session_act(&stage->s, i);

    if (rc != act->outcome && !(done && rc == act->again))
        STAGE_FAIL(stage, i, fault, n, rc, "the repeat was not done");
    if (rc == act->outcome && !session_same(&stage->s.notes, &stage->ref.notes[i + 1]))
        STAGE_FAIL(stage, i, fault, n, rc, "the repeat told something else");
    stage->s.notes = stage->ref.notes[i + 1];
    enum stage_state state = stage_look(stage, i, PICTURE_LOOSE);
    if (state != STAGE_AFTER && state != STAGE_SAME)
        STAGE_FAIL(stage, i, fault, n, rc, "the repeat did not do it once");
}
