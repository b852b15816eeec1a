/*
 * Each call of the session on its own stage: the store as the call finds it, a fresh handle, and one fault
 * inside the call. So every fault is tested in every call, independently of the calls before it.
 */
#ifndef STAGE_H
#define STAGE_H

#include "session/session.h"

struct stage {
    struct reference ref;
    struct session s; /* the run at hand, on run.db */
};

/* Plays the session once and keeps what every act finds. */
void stage_build(struct stage *stage);
void stage_clear(struct stage *stage);

/* Set the scene of act `i`, with the store open as it was before it. */
void stage_set(struct stage *stage, size_t i);
void stage_strike(struct stage *stage); /* close and clean up */

/* How the store on the stage of act `i` stands, read as after a crash of every process. */
enum stage_state { STAGE_BEFORE, STAGE_AFTER, STAGE_SAME, STAGE_TORN };
enum stage_state stage_look(struct stage *stage, size_t i, enum picture_of what);

/* Ends the test, saying what act, which fault and what was seen. */
_Noreturn void stage_fail(const char *file, int line, const struct stage *stage, size_t i,
                          const char *fault, int64_t n, int rc, const char *what);
#define STAGE_FAIL(stage_, i_, fault_, n_, rc_, what_) \
    stage_fail(__FILE__, __LINE__, stage_, i_, fault_, n_, rc_, what_)

/* The act is done now, whole: its outcome and what it told are as always. The repeat of one that
 * was `done` before may say so. */
void stage_expect_done(struct stage *stage, size_t i, const char *fault, int64_t n, bool done);

#endif
