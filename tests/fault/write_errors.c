/*
 * Every write and every sync fails once.
 *
 * No acknowledged change is lost and none is half done, and each failure has its own answer. After a commit or a
 * sync that failed the outcome is unknown and the handle stops; the caller opens the store again and repeats the
 * call with the same request id. A full disk refuses the call, and calls work again when there is room.
 */
#include "fault/disk.h"
#include "fault/stage.h"

#include "harness/harness.h"

#include <errno.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is(enum stage_state state, enum stage_state wanted)
{
    return state == wanted || state == STAGE_SAME;
}

/* ---------------------------------------------------------------- unknown outcomes */

/* A stopped handle refuses every call. */
static void expect_stopped(struct stage *stage, size_t i, const char *fault, int64_t n)
{
    lh_enqueued out;
    int rc = lh_enqueue(stage->s.store, "after", &(lh_new_job){.kind = "x"}, 1, NULL, &out);

    if (rc != LH_ESTOPPED)
        STAGE_FAIL(stage, i, fault, n, rc, "the handle went on after an unknown outcome");
}

/* Open the store again and repeat the call under the same request id. */
static void resolve(struct stage *stage, size_t i, const char *fault, int64_t n, int rc)
{
    const struct act *act = &session_acts[i];
    char request[300] = "";

    if (stage->s.store != NULL)
        (void)snprintf(request, sizeof request, "%s", lh_last_request(stage->s.store));
    if (rc == LH_EUNKNOWN && stage->s.store != NULL && (act->flags & ACT_USER) == 0)
        expect_stopped(stage, i, fault, n);
    session_end(&stage->s);
    enum stage_state state = stage_look(stage, i, PICTURE_LOOSE);
    if (state == STAGE_TORN)
        STAGE_FAIL(stage, i, fault, n, rc, "the store is torn");
    if (rc == LH_EIO && state == STAGE_AFTER && (act->flags & ACT_STEPS) == 0)
        STAGE_FAIL(stage, i, fault, n, rc, "LH_EIO says that nothing was done");
    int opened = session_open(&stage->s, i);
    if (opened != LH_OK)
        STAGE_FAIL(stage, i, fault, n, opened, "the store cannot be opened any more");
    if ((act->flags & ACT_NO_IDENTITY) != 0 && request[0] == '\0') {
        /* The caller cannot repeat it; but an enqueue of the library always has a request id. */
        if (rc == LH_EUNKNOWN && strncmp(act->name, "enqueue", 7) == 0)
            STAGE_FAIL(stage, i, fault, n, rc, "an unknown enqueue has no request id");
    } else {
        stage->s.request = request[0] != '\0' ? request : NULL;
        stage_expect_done(stage, i, fault, n, state != STAGE_BEFORE);
    }
    /* The next write recovers what is left. */
    lh_enqueued out;
    if (stage->s.store == NULL)
        EXPECT_OK(session_open(&stage->s, 1));
    EXPECT_OK(lh_enqueue(stage->s.store, "after", &(lh_new_job){.kind = "x"}, 1, NULL, &out));
    session_check(stage->s.store, act->name);
}

static void judge_broken(struct stage *stage, size_t i, const char *fault, int64_t n, int rc)
{
    const struct act *act = &session_acts[i];

    if (rc == act->outcome) {
        /* The call is done: only the checkpoint failed. */
        if (!session_same(&stage->s.notes, &stage->ref.notes[i + 1]))
            STAGE_FAIL(stage, i, fault, n, rc, "it told something else than always");
        if (!is(stage_look(stage, i, PICTURE_LOOSE), STAGE_AFTER))
            STAGE_FAIL(stage, i, fault, n, rc, "it was acknowledged, and is not there");
    } else if (rc == LH_EUNKNOWN || rc == LH_EIO) {
        resolve(stage, i, fault, n, rc);
    } else {
        STAGE_FAIL(stage, i, fault, n, rc, "a failed write or sync is EUNKNOWN, or EIO");
    }
}

/* ---------------------------------------------------------------- writes */

/* False if there is no such write. */
static bool break_write(struct stage *stage, size_t i, int64_t n, enum disk_fault how)
{
    const char *fault = how == DISK_SHORT ? "short write" : "failing write";

    stage_set(stage, i);
    disk_arm_write(n, how);
    int rc = session_act(&stage->s, i);
    bool fired = disk()->fired, committing = disk()->database_writes == 0;
    disk_arm();
    if (fired) {
        if (rc == LH_EIO && committing && (session_acts[i].flags & (ACT_STEPS | ACT_USER)) == 0)
            STAGE_FAIL(stage, i, fault, n, rc, "a commit that failed is unknown");
        judge_broken(stage, i, fault, n, rc);
    } else if (rc != session_acts[i].outcome) {
        STAGE_FAIL(stage, i, fault, n, rc, "nothing had failed");
    }
    stage_strike(stage);
    return fired;
}

static bool fail_write(struct stage *stage, size_t i, int64_t n)
{
    return break_write(stage, i, n, DISK_EIO);
}

static bool halve_write(struct stage *stage, size_t i, int64_t n)
{
    return break_write(stage, i, n, DISK_SHORT);
}

/* One in `stride` writes of an act, others in each; with TEST_THOROUGH set every one. */
static void break_writes(bool (*broken)(struct stage *, size_t i, int64_t n), int64_t stride)
{
    struct stage stage;
    int64_t faults = 0;

    if (getenv("TEST_THOROUGH") != NULL)
        stride = 1;
    disk_install();
    stage_build(&stage);
    for (size_t i = 0; i < session_acts_n; i++) {
        if ((session_acts[i].flags & ACT_FILLER) != 0)
            continue;
        for (int64_t n = 1 + (int64_t)(i % (size_t)stride); broken(&stage, i, n); n += stride)
            faults++;
    }
    (void)fprintf(stderr, "%lld faults\n", (long long)faults);
    EXPECT(faults > 500 / stride);
    stage_clear(&stage);
}

TEST_TIMEOUT(every_write_may_fail, 120)
{
    break_writes(fail_write, 19);
}

TEST_TIMEOUT(every_write_may_end_half_way, 120)
{
    break_writes(halve_write, 19);
}

/* ---------------------------------------------------------------- a full disk */

static bool fill_disk(struct stage *stage, size_t i, int64_t n)
{
    const struct act *act = &session_acts[i];

    stage_set(stage, i);
    disk_arm_write(n, DISK_FULL);
    int rc = session_act(&stage->s, i);
    bool fired = disk()->fired;
    disk_arm();
    if (!fired || rc == act->outcome) {
        if (rc != act->outcome)
            STAGE_FAIL(stage, i, "full disk from write", n, rc, "the disk was not full");
        bool could_not_heal = fired && (act->flags & ACT_HEALS) != 0;
        if (!could_not_heal && !is(stage_look(stage, i, PICTURE_EXACT), STAGE_AFTER))
            STAGE_FAIL(stage, i, "full disk from write", n, rc, "acknowledged, and not there");
    } else {
        if (rc != LH_ENOSPC)
            STAGE_FAIL(stage, i, "full disk from write", n, rc, "a full disk is LH_ENOSPC");
        enum stage_state state = stage_look(stage, i, PICTURE_EXACT);
        if (!is(state, STAGE_BEFORE) && !(state == STAGE_AFTER && (act->flags & ACT_STEPS) != 0))
            STAGE_FAIL(stage, i, "full disk from write", n, rc, "LH_ENOSPC, and something done");
        /* After there is room again, the same handle works without being reopened. */
        if (stage->s.store == NULL)
            EXPECT_OK(session_open(&stage->s, i));
        stage_expect_done(stage, i, "full disk from write", n, false);
    }
    if (stage->s.store != NULL)
        session_check(stage->s.store, "after a full disk");
    stage_strike(stage);
    return fired;
}

TEST_TIMEOUT(the_disk_may_be_full_from_any_write_on, 120)
{
    break_writes(fill_disk, 5);
}

/* ---------------------------------------------------------------- syncs */

static bool break_sync(struct stage *stage, size_t i, int64_t n)
{
    const struct act *act = &session_acts[i];
    const unsigned excused = ACT_UNSYNCED | ACT_STEPS | ACT_USER | ACT_CLOSES;

    stage_set(stage, i);
    disk_arm_sync(n);
    int rc = session_act(&stage->s, i);
    bool fired = disk()->fired, folded = disk()->database_writes > 0;
    disk_arm();
    if (fired) {
        if (rc != LH_EUNKNOWN && !folded && (act->flags & excused) == 0)
            STAGE_FAIL(stage, i, "failing sync", n, rc, "a failed sync is unknown");
        judge_broken(stage, i, "failing sync", n, rc);
    } else if (rc != act->outcome) {
        STAGE_FAIL(stage, i, "failing sync", n, rc, "nothing had failed");
    }
    stage_strike(stage);
    return fired;
}

TEST_TIMEOUT(every_sync_may_fail, 120)
{
    struct stage stage;
    int64_t faults = 0;

    disk_install();
    stage_build(&stage);
    for (size_t i = 0; i < session_acts_n; i++) {
        if ((session_acts[i].flags & ACT_FILLER) != 0)
            continue;
        for (int64_t n = 1; break_sync(&stage, i, n); n++)
            faults++;
    }
    (void)fprintf(stderr, "%lld faults\n", (long long)faults);
    EXPECT(faults > 60);
    stage_clear(&stage);
}

/* ---------------------------------------------------------------- what the kernel may do */

static ssize_t half_a_write(int fd, const void *bytes, size_t len, off_t at)
{
    static unsigned calls;

    if (++calls % 3 == 0) {
        errno = EINTR;
        return -1;
    }
    return pwrite(fd, bytes, len > 1 ? len / 2 : len, at);
}

TEST(interrupted_and_partial_writes_are_no_failure)
{
    sqlite3_vfs *vfs = sqlite3_vfs_find(NULL);
    struct session s;

    EXPECT_EQ(vfs->xSetSystemCall(vfs, "pwrite", (sqlite3_syscall_ptr)half_a_write), SQLITE_OK);
    EXPECT_EQ(vfs->xSetSystemCall(vfs, "pwrite64", (sqlite3_syscall_ptr)half_a_write), SQLITE_OK);
    session_start(&s, "s.db", NULL);
    for (size_t i = 0; i < session_acts_n; i++) {
        int rc = session_act(&s, i);
        if (rc != session_acts[i].outcome)
            FAIL("%s: %s: %s", session_acts[i].name, lh_status_name(rc), s.why);
    }
    EXPECT_OK(session_open(&s, 1));
    session_check(s.store, "after writes in pieces");
    session_end(&s);
}
