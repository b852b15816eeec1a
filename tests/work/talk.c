/* Progress lines of a command ($LEASEHOLD_FD), and what the next attempt gets. */
#include "work/shift.h"

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHECKPOINT_MOST = 64 * 1024 };

/* The first attempt reports and fails; the second one returns the checkpoint that it got. */
#define TWO_ATTEMPTS(talk_)                                                                       \
    "if [ $LEASEHOLD_ATTEMPT = 2 ]; then printf %s \"$LEASEHOLD_CHECKPOINT\"; exit 0; fi; " talk_ \
    "exit 1"

static void expect_checkpoint(struct shop *shop, int64_t job, const char *wanted)
{
    EVENTUALLY(state_of(shop, job) == LH_COMPLETED);
    const lh_job *seen = look(shop, job);
    EXPECT_MEM(seen->result, seen->result_len, wanted, strlen(wanted));
}

TEST(progress_stage_and_checkpoint_are_seen_while_the_command_runs)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    struct shift shift = SHIFT(
        "q", "--",
        SH("printf 'progress 40\\nstage reading \\303\\244 file\\n' >&$LEASEHOLD_FD;" UNTIL(
            "more") "echo 'checkpoint {\"page\": 7}' >&3; echo progress 100 >&3;" UNTIL("go")));
    EVENTUALLY(look(&shop, job)->progress == 40 && look(&shop, job)->stage != NULL);
    EXPECT_STR(look(&shop, job)->stage, "reading \303\244 file");
    touch("more");
    EVENTUALLY(look(&shop, job)->progress == 100 && look(&shop, job)->checkpoint != NULL);
    EXPECT_STR(look(&shop, job)->checkpoint, "{\"page\": 7}");
    EXPECT_EQ(look(&shop, job)->state, LH_RUNNING);
    touch("go");
    EVENTUALLY(state_of(&shop, job) == LH_COMPLETED);
    EXPECT_EQ(shift_stop(&shift), 0);
    shop_close(&shop);
}

/* The command may end before its report was sent. */
TEST(the_last_progress_of_a_command_is_kept)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    EXPECT_WORK(0, "q", "--drain=pending", "--",
                SH("i=0; while [ $i -lt 200 ]; do i=$((i+1)); echo checkpoint $i >&3;"
                   "echo progress $((i / 2)) >&3; done; exit 1"));
    EXPECT_STR(look(&shop, job)->checkpoint, "200");
    EXPECT_EQ(look(&shop, job)->progress, 100);
    shop_close(&shop);
}

TEST(the_largest_checkpoint_reaches_the_next_attempt)
{
    struct shop shop = shop_open();
    char *wanted = malloc(CHECKPOINT_MOST + 1);
    EXPECT(wanted != NULL);
    memset(wanted, 'x', CHECKPOINT_MOST);
    wanted[0] = wanted[CHECKPOINT_MOST - 1] = '"';
    wanted[CHECKPOINT_MOST] = '\0';
    no_backoff(&shop);
    int64_t job = put_bytes(&shop, "q", wanted, CHECKPOINT_MOST);
    struct shift shift =
        SHIFT("q", "--", SH(TWO_ATTEMPTS("printf 'checkpoint ' >&3; cat >&3; echo >&3;")));
    expect_checkpoint(&shop, job, wanted);
    EXPECT_EQ(shift_stop(&shift), 0);
    free(wanted);
    shop_close(&shop);
}

TEST(an_unknown_progress_line_is_reported_and_changes_nothing)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    struct shift shift =
        SHIFT("q", "--drain", "--",
              SH("exec >&3; echo progress 40; echo stage one;"
                 "echo progress 101; echo progress -1; echo progress 4x; echo progress;"
                 "echo; echo hello there; echo CHECKPOINT 1; printf 'stage \\377\\n';"
                 "printf 'stage '; head -c 300 /dev/zero | tr '\\0' x; echo;"
                 "head -c 3000000 /dev/zero | tr '\\0' y; echo;"
                 "printf 'checkpoint '; head -c 3000000 /dev/zero | tr '\\0' 1; echo;"
                 "head -c 1000 /dev/zero; echo;"
                 "exec >&-"));
    EXPECT_EQ(shift_wait(&shift), 0);
    EXPECT(said(&shift, "job 1 wrote \"progress 101\": progress 0 … 100, stage WORDS or checkpoint "
                        "JSON is allowed"));
    EXPECT(said(&shift, "job 1 wrote 10 more lines that are not understood"));
    EXPECT_EQ(state_of(&shop, job), LH_COMPLETED);
    EXPECT_EQ(look(&shop, job)->progress, 40);
    EXPECT_STR(look(&shop, job)->stage, "one");
    EXPECT_STR(look(&shop, job)->checkpoint, NULL);
    shop_close(&shop);
}

TEST(a_checkpoint_that_is_not_json_is_refused_alone)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    struct shift shift = SHIFT("q", "--drain=pending", "--",
                               SH("echo 'checkpoint {\"a\": 1}' >&3; echo progress 50 >&3;"
                                  "echo stage two >&3; echo 'checkpoint {bad' >&3; exit 1"));
    EXPECT_EQ(shift_wait(&shift), 0);
    EXPECT_STR(look(&shop, job)->checkpoint, "{\"a\": 1}");
    EXPECT_EQ(look(&shop, job)->progress, 50);
    EXPECT_STR(look(&shop, job)->stage, "two");
    EXPECT(said(&shift, "{bad") || said(&shift, "a report of job 1 was refused"));
    shop_close(&shop);
}

TEST(a_bad_checkpoint_of_a_running_command_is_refused_alone)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    struct shift shift = SHIFT("q", "--",
                               SH("echo 'checkpoint {bad' >&3; echo progress 10 >&3;" UNTIL(
                                   "more") "echo 'checkpoint {\"good\": 1}' >&3;" UNTIL("go")));
    EVENTUALLY(look(&shop, job)->progress == 10);
    touch("more");
    EVENTUALLY(look(&shop, job)->checkpoint != NULL);
    EXPECT_STR(look(&shop, job)->checkpoint, "{\"good\": 1}");
    touch("go");
    EVENTUALLY(state_of(&shop, job) == LH_COMPLETED);
    EXPECT_EQ(shift_stop(&shift), 0);
    shop_close(&shop);
}

TEST(a_last_progress_line_without_a_newline_counts)
{
    struct shop shop = shop_open();
    no_backoff(&shop);
    int64_t job = put(&shop, "q", "x");
    struct shift shift = SHIFT("q", "--", SH(TWO_ATTEMPTS("printf 'checkpoint {\"a\": 1}' >&3;")));
    expect_checkpoint(&shop, job, "{\"a\": 1}");
    EXPECT_EQ(shift_stop(&shift), 0);
    shop_close(&shop);
}

/* ---------------------------------------------------------------- a store that refuses writes */

static void run_sql(sqlite3 *db, const char *sql)
{
    char *error = NULL;
    if (sqlite3_exec(db, sql, NULL, NULL, &error) != SQLITE_OK)
        FAIL("%s: %s", sql, error);
}

static sqlite3 *lock_store(void)
{
    sqlite3 *db;
    EXPECT_EQ(sqlite3_open("s.db", &db), SQLITE_OK);
    EXPECT_EQ(sqlite3_busy_timeout(db, 5000), SQLITE_OK);
    run_sql(db, "BEGIN IMMEDIATE");
    return db;
}

static void unlock_store(sqlite3 *db)
{
    run_sql(db, "ROLLBACK");
    EXPECT_EQ(sqlite3_close(db), SQLITE_OK);
}

TEST(a_checkpoint_that_could_not_be_sent_is_sent_later)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    struct shift shift =
        SHIFT("q", "--",
              SH(": >begun;" UNTIL(
                  "talk") "echo 'checkpoint {\"a\": 1}' >&3; echo stage two >&3;" UNTIL("go")));
    EVENTUALLY(exists("begun"));
    sqlite3 *lock = lock_store();
    touch("talk");
    EVENTUALLY(said(&shift, "a heartbeat failed"));
    unlock_store(lock);
    int64_t since = now_ms();
    EVENTUALLY(said(&shift, "resolved: "));
    EVENTUALLY(look(&shop, job)->stage != NULL); /* the checkpoint was sent first */
    EXPECT(now_ms() - since < 20000);            /* earlier than the next regular heartbeat */
    EXPECT_STR(look(&shop, job)->checkpoint, "{\"a\": 1}");
    EXPECT_STR(look(&shop, job)->stage, "two");
    touch("go");
    EXPECT_EQ(shift_stop(&shift), 0);
    EXPECT_EQ(state_of(&shop, job), LH_COMPLETED);
    shop_close(&shop);
}

TEST(nothing_is_claimed_from_a_failed_heartbeat_until_the_next_good_one)
{
    struct shop shop = shop_open();
    (void)put(&shop, "q", "x");
    struct shift shift =
        SHIFT("q", "-j", "2", "--",
              SH(": >begun;" UNTIL("talk") "echo progress 1 >&3; echo >>started;" UNTIL("go")));
    EVENTUALLY(exists("begun"));
    sqlite3 *lock = lock_store();
    touch("talk");
    EVENTUALLY(said(&shift, "a heartbeat failed"));
    unlock_store(lock);
    int64_t next = put(&shop, "q", "y");
    EVENTUALLY(lines_of("started") == 2);
    EXPECT(said(&shift, "resolved: a heartbeat failed"));
    EXPECT_EQ(look(&shop, next)->attempt, 1);
    touch("go");
    EXPECT_EQ(shift_stop(&shift), 0);
    EXPECT_EQ(count(&shop, LH_COMPLETED), 2);
    shop_close(&shop);
}

/* Only the heartbeats of this worker are refused. Claims would succeed, as another worker shows. */
TEST(nothing_is_claimed_while_heartbeats_fail_even_if_claims_would_succeed)
{
    struct shop shop = shop_open();
    struct shift shift = SHIFT("q", "--heartbeat", "3s", "--", "true");
    int64_t first = put(&shop, "q", "x");
    EVENTUALLY(state_of(&shop, first) == LH_COMPLETED);
    sqlite3 *db = lock_store();
    run_sql(db, "CREATE TRIGGER obstacle BEFORE UPDATE OF interval_ms ON lh_worker BEGIN "
                "SELECT raise(ABORT, 'not now'); END; COMMIT");
    EVENTUALLY(said(&shift, "not now"));
    struct shift other = SHIFT("other", "--", "true");
    int64_t job = 0;
    int claims = 0;
    do { /* a claim that was waiting when the heartbeat failed may still get a job; a later one may not */
        EXPECT(claims++ < 3);
        job = put(&shop, "q", "y");
        int64_t later = put(&shop, "other", "z");
        EVENTUALLY(state_of(&shop, later) == LH_COMPLETED);
    } while (state_of(&shop, job) != LH_PENDING);
    run_sql(db, "BEGIN IMMEDIATE; DROP TRIGGER obstacle; COMMIT");
    EXPECT_EQ(sqlite3_close(db), SQLITE_OK);
    EVENTUALLY(state_of(&shop, job) == LH_COMPLETED);
    EXPECT(said(&shift, "resolved: a heartbeat failed"));
    EXPECT_EQ(shift_stop(&other), 0);
    EXPECT_EQ(shift_stop(&shift), 0);
    shop_close(&shop);
}

/* The store itself waits five seconds before it reports a failure. */
TEST(a_heartbeat_without_an_answer_for_a_third_of_its_interval_fails)
{
    struct shop shop = shop_open();
    struct shift shift = SHIFT("q", "--heartbeat", "600ms", "--", SH("echo >>started"));
    (void)put(&shop, "q", "x");
    EVENTUALLY(lines_of("started") == 1);
    sqlite3 *lock = lock_store();
    EVENTUALLY(said(&shift, "a heartbeat failed"));
    EXPECT(said(&shift, "a heartbeat failed: no answer after"));
    EXPECT(number_after(&shift, "no answer after ") >= 200);
    unlock_store(lock);
    EVENTUALLY(said(&shift, "resolved: a heartbeat failed"));
    int64_t next = put(&shop, "q", "y");
    EVENTUALLY(state_of(&shop, next) == LH_COMPLETED);
    EXPECT_EQ(shift_stop(&shift), 0);
    shop_close(&shop);
}

/* The claimed job waits for the record, which must not wait for the next heartbeat in half a minute. */
TEST(a_worker_record_that_could_not_be_written_is_retried_soon)
{
    struct shop shop = shop_open();
    struct shift shift = SHIFT("q", "--", "true");
    pid_t guardian = guardian_of(&shift);
    sqlite3 *db = lock_store();
    run_sql(db, "CREATE TRIGGER obstacle BEFORE UPDATE OF sessions ON lh_worker BEGIN "
                "SELECT raise(ABORT, 'not now'); END; COMMIT");
    EXPECT_EQ(kill(guardian, SIGKILL), 0); /* the next guardian must be recorded first */
    int64_t job = put(&shop, "q", "x");
    EVENTUALLY(state_of(&shop, job) == LH_RUNNING);
    EVENTUALLY(said(&shift, "could not update the record of this worker"));
    run_sql(db, "BEGIN IMMEDIATE; DROP TRIGGER obstacle; COMMIT");
    EXPECT_EQ(sqlite3_close(db), SQLITE_OK);
    EVENTUALLY(state_of(&shop, job) == LH_COMPLETED);
    EXPECT(said(&shift, "resolved: could not update the record of this worker"));
    EXPECT_EQ(shift_stop(&shift), 0);
    shop_close(&shop);
}
