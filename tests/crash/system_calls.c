/* SIGKILL at 300 moments chosen evenly over the system calls of the session: before a call, and
 * between its end and the return from it. */
#include "crash/after_kill.h"

#include "harness/harness.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KILLS = 300, MOST_ACTS = 200 };

/* The number of stops, two for each system call, before each call of the session. */
struct timetable {
    long begins[MOST_ACTS];
    long all;
};

/* The session in a child that is traced from call `i` on. */
static pid_t start(struct logbook *book, size_t i)
{
    int status;

    memset(book, 0, sizeof *book);
    pid_t child = test_fork();
    if (child == 0) {
        EXPECT_EQ(ptrace(PTRACE_TRACEME, 0, NULL, NULL), 0);
        play("s.db", book, i);
        test_child_done();
    }
    EXPECT(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
    EXPECT_EQ(ptrace(PTRACE_SETOPTIONS, child, NULL, PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD), 0);
    return child;
}

/* To the next stop; false when the child has ended. */
static bool step(pid_t child)
{
    int status;

    EXPECT_EQ(ptrace(PTRACE_SYSCALL, child, NULL, NULL), 0);
    EXPECT_EQ(waitpid(child, &status, 0), child);
    if (WIFSTOPPED(status))
        return true;
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return false;
}

static void count_stops(struct logbook *book, struct timetable *table)
{
    pid_t child = start(book, 0);
    size_t known = 0;

    EXPECT(session_acts_n < MOST_ACTS);
    *table = (struct timetable){0};
    for (; step(child); table->all++)
        for (; known < book->done && known < session_acts_n; known++)
            table->begins[known + 1] = table->all;
    session_remove("s.db");
}

static void kill_at(const struct reference *ref, struct logbook *book,
                    const struct timetable *table, long at)
{
    char where[64];
    size_t i = 0;
    int status;

    while (i + 1 < session_acts_n && table->begins[i + 1] <= at)
        i++;
    pid_t child = start(book, i);
    for (long k = table->begins[i]; k <= at; k++)
        if (!step(child)) {
            session_remove("s.db"); /* one system call less than the first time, at the end */
            return;
        }
    EXPECT_EQ(kill(child, SIGKILL), 0);
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT(WIFSIGNALED(status));
    (void)snprintf(where, sizeof where, "stop %ld of %ld", at, table->all);
    aftermath(ref, "s.db", book, where);
}

static void kill_over_session(int first, int stride)
{
    struct reference ref;
    struct timetable table;
    struct logbook *book = logbook_new();

    session_reference(&ref, NULL);
    count_stops(book, &table);
    (void)fprintf(stderr, "%ld stops\n", table.all);
    EXPECT(table.all > KILLS);
    for (int i = first; i < KILLS; i += stride)
        kill_at(&ref, book, &table, table.all * i / KILLS);
    session_reference_free(&ref);
}

TEST_TIMEOUT(a_kill_in_any_system_call_loses_nothing, 200)
{
    kill_over_session(0, 2);
}

TEST_TIMEOUT(a_kill_in_a_later_system_call_loses_nothing, 200)
{
    kill_over_session(1, 2);
}
