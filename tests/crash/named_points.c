/* SIGKILL at every named point of the session, at several of its passes. */
#include "crash/after_kill.h"

#include "base/hook.h"
#include "harness/harness.h"

#include <dirent.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const points[] = {
    "checkpoint:after",     "txn:before_commit",     "txn:after_commit",     "txn:before_sync",
    "txn:after_sync",       "job_cancel:inside",     "job_retry:inside",     "job_delete:inside",
    "job_claim:inside",     "job_recover:inside",    "job_heartbeat:inside", "job_complete:inside",
    "job_fail:inside",      "job_release:inside",    "job_enqueue:inside",   "migrate:step",
    "job_output:inside",    "migrate:before_commit", "migrate:after_commit", "recovery:before_end",
    "schedule_tick:inside",
};

/* Points that no session passes are tested elsewhere (tests/store, tests/spec/move.c). */
static const char *const elsewhere[] = {
    "age:", "backup:", "copy:", "move:", "repair:", "reserve:", "restore:", "scratch:", "swap:"};

enum { N_POINTS = sizeof points / sizeof points[0] };

/* False if the session passed the point no more than `skip` times. */
static bool kill_at(const struct reference *ref, struct logbook *book, const char *point,
                    int64_t skip)
{
    char where[100];

    memset(book, 0, sizeof *book);
    pid_t child = test_fork();
    if (child == 0) {
        (void)snprintf(lhi_control()->kill_at, sizeof lhi_control()->kill_at, "%s", point);
        lhi_control()->kill_skip = skip;
        play("s.db", book, NO_PAUSE);
        test_child_done();
    }
    struct run r = test_wait(child);
    if (r.sig != SIGKILL && r.code != 0)
        FAIL("the session failed by itself");
    (void)snprintf(where, sizeof where, "%s (passed %lld times)", point, (long long)skip);
    if (r.sig == SIGKILL)
        aftermath(ref, "s.db", book, where);
    else
        session_remove("s.db");
    return r.sig == SIGKILL;
}

static void kill_at_points(int first, int step)
{
    struct reference ref;
    struct logbook *book = logbook_new();
    int64_t kills = 0;

    session_reference(&ref, NULL);
    for (int i = first; i < N_POINTS; i += step) {
        /* Every nineteenth time it is passed, and the first; with TEST_THOROUGH set each time. */
        int64_t passed = 0, stride = getenv("TEST_THOROUGH") != NULL ? 1 : 19;
        for (; kill_at(&ref, book, points[i], passed); passed += stride)
            kills++;
        if (passed == 0)
            FAIL("the session never passes %s", points[i]);
    }
    (void)fprintf(stderr, "%lld kills\n", (long long)kills);
    session_reference_free(&ref);
}

TEST_TIMEOUT(a_kill_at_a_named_point_loses_nothing, 120)
{
    kill_at_points(0, 2);
}

TEST_TIMEOUT(a_kill_at_a_later_named_point_loses_nothing, 120)
{
    kill_at_points(1, 2);
}

/* ---------------------------------------------------------------- the list above is whole */

static bool listed(const char *name, size_t len)
{
    for (int i = 0; i < N_POINTS; i++)
        if (strlen(points[i]) == len && memcmp(points[i], name, len) == 0)
            return true;
    for (size_t i = 0; i < sizeof elsewhere / sizeof elsewhere[0]; i++)
        if (strncmp(name, elsewhere[i], strlen(elsewhere[i])) == 0)
            return true;
    return false;
}

static void search_file(const char *path, int *found)
{
    static const char mark[] = "LHI_POINT(\"";
    char line[512];
    FILE *in = fopen(path, "re");

    EXPECT(in != NULL);
    while (fgets(line, sizeof line, in) != NULL) {
        const char *p = strstr(line, mark);
        if (p == NULL)
            continue;
        p += sizeof mark - 1;
        size_t len = strcspn(p, "\"");
        if (!listed(p, len))
            FAIL("%s has a point that is not listed here: %.*s", path, (int)len, p);
        (*found)++;
    }
    (void)fclose(in);
}

static void search_folder(const char *path, int *found)
{
    DIR *dir = opendir(path);
    struct dirent *entry;

    EXPECT(dir != NULL);
    while ((entry = readdir(dir)) != NULL) {
        char name[PATH_MAX];
        size_t len = strlen(entry->d_name);
        (void)snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        if (entry->d_type == DT_DIR && entry->d_name[0] != '.')
            search_folder(name, found);
        else if (len > 2 && strcmp(entry->d_name + len - 2, ".c") == 0)
            search_file(name, found);
    }
    (void)closedir(dir);
}

/* The compiler was started in the build folder, which holds this program's own folder. */
TEST(every_named_point_of_the_sources_is_tested)
{
    char program[PATH_MAX] = "", source[PATH_MAX], root[PATH_MAX];
    int found = 0;

    EXPECT(readlink("/proc/self/exe", program, sizeof program - 1) > 0);
    for (int up = 0; up < 2; up++)
        *strrchr(program, '/') = '\0';
    (void)snprintf(source, sizeof source, "%s/%s", program, __FILE__);
    if (__FILE__[0] == '/')
        (void)snprintf(source, sizeof source, "%s", __FILE__);
    if (realpath(source, root) == NULL)
        FAIL("the sources are not where they were when this was built: %s", source);
    for (int up = 0; up < 3; up++)
        *strrchr(root, '/') = '\0';
    (void)snprintf(source, sizeof source, "%.4000s/src", root);
    search_folder(source, &found);
    EXPECT(found >= N_POINTS);
}
