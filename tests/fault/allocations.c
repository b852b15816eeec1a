/*
 * Every allocation fails once: those of the library, and those of SQLite.
 *
 * A call that runs out of memory returns an error, has done nothing and leaks nothing, and the handle works
 * afterwards. A call that succeeds without the memory has done all of its work.
 *
 * With a fresh handle each call first prepares its statements, which takes SQLite thousands of allocations. One
 * in 151 of these fails (fewer in a startup), others in each call. With TEST_THOROUGH set it is one in 11, and
 * others in each run; to test all of them would take hours. With prepared statements, and inside the library,
 * every allocation fails.
 */
#include "fault/disk.h"
#include "fault/stage.h"
#include "session/sanitized.h"

#include "base/hook.h"
#include "harness/harness.h"

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---------------------------------------------------------------- what fails */

static struct {
    sqlite3_mem_methods real;
    int64_t calls, fail_at;
} engine;

static bool engine_fails(void)
{
    return ++engine.calls == engine.fail_at;
}

static void *engine_malloc(int size)
{
    return engine_fails() ? NULL : engine.real.xMalloc(size);
}

static void *engine_realloc(void *p, int size)
{
    return engine_fails() ? NULL : engine.real.xRealloc(p, size);
}

static void engine_install(void)
{
    EXPECT_EQ(sqlite3_config(SQLITE_CONFIG_GETMALLOC, &engine.real), SQLITE_OK);
    sqlite3_mem_methods methods = engine.real;
    methods.xMalloc = engine_malloc;
    methods.xRealloc = engine_realloc;
    EXPECT_EQ(sqlite3_config(SQLITE_CONFIG_MALLOC, &methods), SQLITE_OK);
    EXPECT_EQ(sqlite3_initialize(), SQLITE_OK);
}

/* The Nth allocation from now on fails; 0: none. `fired` is true if there were that many. */
struct memory {
    const char *name;
    void (*arm)(int64_t n);
    bool (*fired)(int64_t n);
};

static void arm_ours(int64_t n)
{
    lhi_control()->calls[LHI_FAULT_ALLOC] = 0;
    lhi_control()->fail_at[LHI_FAULT_ALLOC] = n;
}

static bool ours_fired(int64_t n)
{
    return lhi_control()->calls[LHI_FAULT_ALLOC] >= n;
}

static void arm_engine(int64_t n)
{
    engine.calls = 0;
    engine.fail_at = n;
}

static bool engine_fired(int64_t n)
{
    return engine.calls >= n;
}

static const struct memory ours = {"allocation", arm_ours, ours_fired};
static const struct memory its = {"allocation of the engine", arm_engine, engine_fired};

/* ---------------------------------------------------------------- one fault, one act */

static bool is(enum stage_state state, enum stage_state wanted)
{
    return state == wanted || state == STAGE_SAME;
}

/* The call returned success, so it must be done. */
static void judge_done(struct stage *stage, size_t i, const struct memory *memory, int64_t n,
                       bool fired)
{
    const struct act *act = &session_acts[i];

    if (!session_same(&stage->s.notes, &stage->ref.notes[i + 1]))
        STAGE_FAIL(stage, i, memory->name, n, act->outcome, "it told something else than always");
    if (fired && (act->flags & ACT_HEALS) != 0)
        session_check(stage->s.store, "after a claim that could not heal");
    else if (!is(stage_look(stage, i, PICTURE_EXACT), STAGE_AFTER))
        STAGE_FAIL(stage, i, memory->name, n, act->outcome, "it was said to be done, and is not");
}

/* The call returned an error, so nothing may be done. */
static void judge_not_done(struct stage *stage, size_t i, const struct memory *memory, int64_t n,
                           int rc, bool wrote)
{
    if (rc != LH_ENOMEM)
        STAGE_FAIL(stage, i, memory->name, n, rc, "running out of memory is LH_ENOMEM");
    if (!wrote && n % 64 != 0)
        return;
    enum stage_state state = stage_look(stage, i, PICTURE_EXACT);
    if (!is(state, STAGE_BEFORE) &&
        !(state == STAGE_AFTER && (session_acts[i].flags & ACT_STEPS) != 0))
        STAGE_FAIL(stage, i, memory->name, n, rc, "it did something, and said it had not");
}

/* With a fresh handle. False once there is no such allocation any more. */
static bool fail_fresh(struct stage *stage, size_t i, const struct memory *memory, int64_t n)
{
    stage_set(stage, i);
    disk_arm();
    memory->arm(n);
    int rc = session_act(&stage->s, i);
    bool fired = memory->fired(n);
    memory->arm(0);
    if (!fired && rc != session_acts[i].outcome)
        STAGE_FAIL(stage, i, memory->name, n, rc, "nothing had failed");
    if (rc == session_acts[i].outcome) {
        judge_done(stage, i, memory, n, fired);
    } else {
        judge_not_done(stage, i, memory, n, rc, disk()->writes > 0);
        /* The same handle works; if the call was to open it, there is none. */
        if (stage->s.store == NULL)
            EXPECT_OK(session_open(&stage->s, i));
        rc = session_act(&stage->s, i);
        if (rc != session_acts[i].outcome)
            STAGE_FAIL(stage, i, memory->name, n, rc, "the handle did not go on to work");
        if (n % 64 == 0 && !is(stage_look(stage, i, PICTURE_LOOSE), STAGE_AFTER))
            STAGE_FAIL(stage, i, memory->name, n, rc, "the second try did not do it");
    }
    if (n % 64 == 0 && stage->s.store != NULL)
        session_check(stage->s.store, "after running out of memory");
    stage_strike(stage);
    return fired;
}

static bool is_thorough(void)
{
    return getenv("TEST_THOROUGH") != NULL;
}

static void fail_each_fresh(const struct memory *memory, int64_t stride, size_t part, size_t parts)
{
    const int64_t first = stride > 1 && is_thorough() ? time(NULL) % 10000 : 0;
    struct stage stage;
    int64_t faults = 0;

    disk_install();
    stage_build(&stage);
    sqlite3_int64 used = sqlite3_memory_used();
    for (size_t i = part; i < session_acts_n; i += parts) {
        if ((session_acts[i].flags & ACT_FILLER) != 0)
            continue;
        /* A startup prepares nearly all statements, which other calls do too. */
        bool starts =
            (session_acts[i].flags & ACT_STEPS) != 0 && (session_acts[i].flags & ACT_HEALS) != 0;
        int64_t step = stride > 1 && starts ? 5 * stride : stride;
        for (int64_t n = 1 + (first + (int64_t)i) % step; fail_fresh(&stage, i, memory, n);
             n += step)
            faults++;
        if (sqlite3_memory_used() > used)
            FAIL("%s leaks %lld bytes of the engine", session_acts[i].name,
                 (long long)(sqlite3_memory_used() - used));
    }
    (void)fprintf(stderr, "%lld faults, from %lld on\n", (long long)faults, (long long)first);
    EXPECT(faults > 100);
    stage_clear(&stage);
}

static int64_t stride(void)
{
    return is_thorough() ? 11 : SANITIZED ? 201 : 151;
}

TEST_TIMEOUT(every_allocation_of_the_library_may_fail, 120)
{
    fail_each_fresh(&ours, 1, 0, 1);
}

TEST_TIMEOUT(allocations_of_sqlite_may_fail, 600)
{
    engine_install();
    fail_each_fresh(&its, stride(), 0, 2);
}

TEST_TIMEOUT(allocations_of_sqlite_may_fail_in_later_calls, 600)
{
    engine_install();
    fail_each_fresh(&its, stride(), 1, 2);
}

/* ---------------------------------------------------------------- a handle that has seen it all */

/* Prepare all statements of a call without doing it, because the disk is full. */
static void rehearse(struct stage *stage, size_t i)
{
    struct notes notes = stage->s.notes;

    if ((session_acts[i].flags & ACT_STEPS) != 0)
        return;
    disk_arm_write(1, DISK_FULL);
    (void)session_act(&stage->s, i);
    disk_arm();
    stage->s.notes = notes;
}

static bool fail_warm(struct stage *stage, size_t i, const struct memory *memory, int64_t n)
{
    disk_arm();
    memory->arm(n);
    int rc = session_act(&stage->s, i);
    bool fired = memory->fired(n);
    memory->arm(0);
    if (rc == session_acts[i].outcome) {
        judge_done(stage, i, memory, n, fired);
        return false;
    }
    judge_not_done(stage, i, memory, n, rc, disk()->writes > 0);
    if (stage->s.store == NULL)
        EXPECT_OK(session_open(&stage->s, i));
    return true;
}

TEST_TIMEOUT(every_allocation_of_sqlite_may_fail_in_a_prepared_call, 120)
{
    struct stage stage;
    int64_t faults = 0;

    engine_install();
    disk_install();
    session_reference(&stage.ref, NULL);
    session_start(&stage.s, "run.db", NULL);
    /* One handle is used for all calls. */
    for (size_t i = 0; i < session_acts_n; i++) {
        const struct act *act = &session_acts[i];
        int64_t n = 1;
        stage.s.notes = stage.ref.notes[i];
        if (i == 0 || (act->flags & (ACT_FILLER | ACT_USER | ACT_HEALS)) != 0) {
            EXPECT_EQ(session_act(&stage.s, i), act->outcome);
            continue;
        }
        rehearse(&stage, i);
        while (fail_warm(&stage, i, &its, n))
            n++;
        faults += n;
    }
    (void)fprintf(stderr, "%lld faults\n", (long long)faults);
    EXPECT(faults > 1000);
    session_end(&stage.s);
    session_reference_free(&stage.ref);
}

/* A claim whose recovery failed leaves work undone, so each try has a stage of its own. */
TEST_TIMEOUT(every_allocation_of_sqlite_may_fail_in_a_prepared_claim_that_recovers, 120)
{
    struct stage stage;
    int64_t faults = 0;

    engine_install();
    disk_install();
    stage_build(&stage);
    for (size_t i = 0; i < session_acts_n; i++) {
        bool more = (session_acts[i].flags & (ACT_HEALS | ACT_STEPS)) == ACT_HEALS;
        for (int64_t n = 1; more; n++, faults++) {
            stage_set(&stage, i);
            rehearse(&stage, i);
            its.arm(n);
            int rc = session_act(&stage.s, i);
            more = its.fired(n);
            its.arm(0);
            if (rc == session_acts[i].outcome)
                judge_done(&stage, i, &its, n, more);
            else
                judge_not_done(&stage, i, &its, n, rc, true);
            stage_strike(&stage);
        }
    }
    (void)fprintf(stderr, "%lld faults\n", (long long)faults);
    EXPECT(faults > 50);
    stage_clear(&stage);
}
