/* The layer below the acts: parameters and results, refusals, log lines, connections. */
#include "postgres/session.h"

#include "core/core.h"
#include "store/postgres/wire.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST_LINES = 8 };

struct heard {
    size_t n;
    int level[MOST_LINES];
    char line[MOST_LINES][200], queue[MOST_LINES][40], reason[MOST_LINES][100];
    int64_t job[MOST_LINES], token[MOST_LINES], attempt[MOST_LINES];
};

static void hear(void *arg, const lh_log_entry *entry)
{
    struct heard *heard = arg;

    if (heard->n == MOST_LINES)
        return;
    size_t i = heard->n++;
    heard->level[i] = entry->level;
    heard->job[i] = entry->job;
    heard->token[i] = entry->token;
    heard->attempt[i] = entry->attempt;
    (void)snprintf(heard->line[i], sizeof heard->line[i], "%s", entry->line);
    (void)snprintf(heard->queue[i], sizeof heard->queue[i], "%s", entry->queue ? entry->queue : "");
    (void)snprintf(heard->reason[i], sizeof heard->reason[i], "%s",
                   entry->reason ? entry->reason : "");
}

static lh_store *open_with(lh_open_opts opts)
{
    lh_store *store = NULL;
    if (lh_open(test_store(), &opts, &store) != LH_OK)
        FAIL("%s", lh_errmsg(store));
    return store;
}

static lh_store *open_store(void)
{
    return open_with((lh_open_opts){0});
}

static struct pg *pg_of(lh_store *store)
{
    return store->store.self;
}

/* One call outside of any act. */
static int ask(lh_store *store, const char *sql, struct args *args, struct rows *rows,
               struct lhi_error *err)
{
    struct txn txn = {.pg = pg_of(store), .deadline = pg_real_ms() + 10000};

    lhi_error_clear(err);
    EXPECT_OK(pg_pool_take(txn.pg, txn.deadline, &txn.conn, err));
    int rc = pg_call_text(&txn, sql, args, rows, err);
    if (rc == LH_OK)
        pg_notices_log(&txn.conn->notices, &txn.pg->log);
    pg_pool_give(txn.pg, txn.conn);
    return rc;
}

/* ---------------------------------------------------------------- values */

TEST(single_values_survive_a_round_trip)
{
    lh_store *store = open_store();
    struct args args = {0};
    struct rows rows;
    struct lhi_error err;
    size_t len;

    pg_arg_text(&args, "zw\xc3\xb6lf");
    pg_arg_text(&args, NULL);
    pg_arg_int(&args, INT64_MIN);
    pg_arg_opt(&args, 0);
    pg_arg_ref(&args, &(int64_t){0});
    pg_arg_bool(&args, true);
    pg_arg_time(&args, INT64_C(1700000000123));
    pg_arg_time(&args, 0);
    pg_arg_bytes(&args, "a\0b", 3);
    pg_arg_bytes(&args, "", 0);
    pg_arg_bytes(&args, NULL, 0);
    EXPECT_OK(ask(store, "SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, '-5'::int2", &args,
                  &rows, &err));
    EXPECT_STR(pg_row_text(&rows, 0, 0), "zw\xc3\xb6lf");
    EXPECT(pg_row_null(&rows, 0, 1) && pg_row_text(&rows, 0, 1) == NULL);
    EXPECT_EQ(pg_row_int(&rows, 0, 2), INT64_MIN);
    EXPECT(pg_row_null(&rows, 0, 3));
    EXPECT(!pg_row_null(&rows, 0, 4) && pg_row_int(&rows, 0, 4) == 0);
    EXPECT(pg_row_bool(&rows, 0, 5));
    EXPECT_EQ(pg_row_time(&rows, 0, 6), INT64_C(1700000000123));
    EXPECT_EQ(pg_row_time(&rows, 0, 7), 0);
    const void *bytes = pg_row_bytes(&rows, 0, 8, &len);
    EXPECT_MEM(bytes, len, "a\0b", 3);
    EXPECT(pg_row_bytes(&rows, 0, 9, &len) != NULL && len == 0);
    EXPECT(pg_row_null(&rows, 0, 10));
    EXPECT_EQ(pg_row_int(&rows, 0, 11), -5);
    pg_rows_free(&rows);
    lh_close(store);
}

TEST(lists_survive_a_round_trip)
{
    lh_store *store = open_store();
    struct args args = {0};
    struct rows rows;
    struct lhi_error err;

    pg_arg_array(&args, OID_INT8, 3);
    pg_put_int(&args, -7);
    pg_put_opt(&args, 0);
    pg_put_int(&args, INT64_MAX);
    pg_arg_array(&args, OID_TEXT, 3);
    pg_put_text(&args, "");
    pg_put_text(&args, NULL);
    pg_put_bytes(&args, "NULL", 4);
    pg_arg_array(&args, OID_BYTEA, 2);
    pg_put_bytes(&args, "\0\xff", 2);
    pg_put_null(&args);
    pg_arg_array(&args, OID_BOOL, 2);
    pg_put_bool(&args, false);
    pg_put_bool(&args, true);
    pg_arg_array(&args, OID_TIMESTAMPTZ, 2);
    pg_put_time(&args, 1);
    pg_put_time(&args, 0);
    pg_arg_array(&args, OID_TEXT, 0);
    EXPECT_OK(ask(store,
                  "SELECT to_json($1)::text, to_json($2)::text, to_json($3)::text,"
                  " to_json($4)::text, extract(epoch FROM $5[1])::text || ($5[2] IS NULL),"
                  " to_json($6)::text",
                  &args, &rows, &err));
    EXPECT_STR(pg_row_text(&rows, 0, 0), "[-7,null,9223372036854775807]");
    EXPECT_STR(pg_row_text(&rows, 0, 1), "[\"\",null,\"NULL\"]");
    EXPECT_STR(pg_row_text(&rows, 0, 2), "[\"\\\\x00ff\",null]");
    EXPECT_STR(pg_row_text(&rows, 0, 3), "[false,true]");
    EXPECT_STR(pg_row_text(&rows, 0, 4), "0.001000true");
    EXPECT_STR(pg_row_text(&rows, 0, 5), "[]");
    pg_rows_free(&rows);
    lh_close(store);
}

TEST(times_before_2000_and_at_both_infinities_are_converted)
{
    lh_store *store = open_store();
    struct rows rows;
    struct lhi_error err;

    EXPECT_OK(ask(store,
                  "SELECT '1973-03-03T00:00:00.0019Z'::timestamptz, 'infinity'::timestamptz, "
                  "'-infinity'::timestamptz",
                  NULL, &rows, &err));
    EXPECT_EQ(pg_row_time(&rows, 0, 0), INT64_C(99964800001));
    EXPECT_EQ(pg_row_time(&rows, 0, 1), 0);
    EXPECT_EQ(pg_row_time(&rows, 0, 2), 0);
    pg_rows_free(&rows);
    lh_close(store);
}

/* ---------------------------------------------------------------- refusals */

TEST(a_refusal_of_an_act_has_its_status_and_message)
{
    lh_store *store = open_store();
    struct lhi_error err;

    EXPECT_STATUS(
        ask(store, "SELECT leasehold.refuse(-8, 'lease of job 7 is gone')", NULL, NULL, &err),
        LH_ELOST);
    EXPECT_STR(err.text, "lease of job 7 is gone");
    lh_close(store);
}

TEST(a_refusal_of_the_server_is_reported_by_its_sqlstate)
{
    static const struct {
        const char *sql;
        int status;
    } refused[] = {
        {"SELECT 1/0", LH_EINVAL},
        {"INSERT INTO leasehold.job(queue) VALUES ('no name')", LH_EINVAL},
        {"SELECT * FROM nowhere.job", LH_ENOSTORE},
        {"SELECT leasehold.no_such_function()", LH_EFAIL},
    };
    lh_store *store = open_store();
    struct lhi_error err;

    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        EXPECT_STATUS(ask(store, refused[i].sql, NULL, NULL, &err), refused[i].status);
    /* A refusal does not cost the connection. */
    EXPECT_EQ(pg_of(store)->n_conns, 1);
    lh_close(store);
}

TEST(a_statement_without_an_answer_in_time_is_cancelled_and_reported_busy)
{
    lh_store *store = open_with((lh_open_opts){.busy_ms = 300});
    PGconn *other = session_to(test_store());
    lh_enqueued out;
    lh_new_job job = {.payload = "x", .payload_len = 1};

    done(other, "BEGIN");
    done(other, "LOCK TABLE leasehold.job IN ACCESS EXCLUSIVE MODE");
    EXPECT_STATUS(lh_enqueue(store, "mail", &job, 1, NULL, &out), LH_EBUSY);
    EXPECT_CONTAINS(lh_errmsg(store), "busy");
    done(other, "COMMIT");
    PGresult *result = PQexec(other, "SELECT count(*) FROM leasehold.job");
    EXPECT_STR(PQgetvalue(result, 0, 0), "0");
    PQclear(result);
    EXPECT_OK(lh_enqueue(store, "mail", &job, 1, NULL, &out));
    PQfinish(other);
    lh_close(store);
}

TEST(a_call_that_is_too_large_is_refused_before_it_is_sent)
{
    const size_t len = (size_t)1 << 30;
    void *bytes = mmap(NULL, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    lh_store *store = open_store();
    struct args args = {0};
    struct lhi_error err;

    EXPECT(bytes != MAP_FAILED);
    pg_arg_array(&args, OID_BYTEA, 2);
    pg_put_bytes(&args, bytes, len); /* which is never read */
    pg_put_null(&args);
    EXPECT_STATUS(ask(store, "SELECT $1", &args, NULL, &err), LH_ETOOBIG);
    EXPECT_CONTAINS(err.text, "1000 MiB");
    EXPECT_EQ(pg_of(store)->n_conns, 1);
    lh_close(store);
}

/* ---------------------------------------------------------------- log lines */

TEST(a_notice_of_the_database_becomes_a_log_line_with_its_fields)
{
    struct heard heard = {0};
    lh_store *store = open_with((lh_open_opts){.log = hear, .log_arg = &heard});
    struct lhi_error err;

    EXPECT_OK(ask(store,
                  "SELECT leasehold.log_message('warn', 'took job 7 back', 7, 3, 2, 'mail', NULL,"
                  " E'he said \"no\",\\n\\ttwice: \\u00fc \\U0001F600 \\x01 \\\\')",
                  NULL, NULL, &err));
    EXPECT_EQ(heard.n, 1);
    EXPECT_EQ(heard.level[0], LH_LOG_WARN);
    EXPECT_STR(heard.line[0], "took job 7 back");
    EXPECT_EQ(heard.job[0], 7);
    EXPECT_EQ(heard.token[0], 3);
    EXPECT_EQ(heard.attempt[0], 2);
    EXPECT_STR(heard.queue[0], "mail");
    EXPECT_STR(heard.reason[0], "he said \"no\",\n\ttwice: \xc3\xbc \xf0\x9f\x98\x80 \x01 \\");
    lh_close(store);
}

TEST(notices_of_a_rolled_back_transaction_are_not_logged)
{
    struct heard heard = {0};
    lh_store *store = open_with((lh_open_opts){.log = hear, .log_arg = &heard});
    struct lhi_error err;

    EXPECT_STATUS(ask(store,
                      "SELECT leasehold.log_message('error', 'gone'), leasehold.refuse(-8, 'no')",
                      NULL, NULL, &err),
                  LH_ELOST);
    for (size_t i = 0; i < heard.n; i++)
        EXPECT(strcmp(heard.line[i], "gone") != 0);
    lh_close(store);
}

/* ---------------------------------------------------------------- connections */

static void *enqueue_some(void *arg)
{
    for (int i = 0; i < 20; i++) {
        lh_enqueued out;
        lh_new_job job = {.payload = "x", .payload_len = 1};
        EXPECT_OK(lh_enqueue(arg, "mail", &job, 1, NULL, &out));
    }
    return NULL;
}

TEST(many_threads_share_few_connections)
{
    enum { THREADS = 20 };
    lh_store *store = open_store();
    pthread_t threads[THREADS];
    lh_store_info info;

    for (int i = 0; i < THREADS; i++)
        EXPECT(pthread_create(&threads[i], NULL, enqueue_some, store) == 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    EXPECT(pg_of(store)->n_conns <= MOST_CONNS);
    EXPECT_OK(lh_store_status(store, &info));
    lh_jobs *jobs = NULL;
    EXPECT_OK(lh_job_list(store, &(lh_job_filter){.limit = 1000}, &jobs));
    EXPECT_EQ(jobs->n, THREADS * 20);
    lh_jobs_free(jobs);
    lh_close(store);
}

TEST(a_call_without_a_free_connection_waits_until_its_deadline)
{
    lh_store *store = open_with((lh_open_opts){.busy_ms = 200});
    struct pg *pg = pg_of(store);
    struct conn *taken[MOST_CONNS], *one;
    struct lhi_error err;

    for (int i = 0; i < MOST_CONNS; i++)
        EXPECT_OK(pg_pool_take(pg, pg_real_ms() + 10000, &taken[i], &err));
    EXPECT_STATUS(pg_pool_take(pg, pg_real_ms() + 100, &one, &err), LH_EBUSY);
    EXPECT_CONTAINS(err.text, "8 connections");
    pg_pool_give(pg, taken[0]);
    EXPECT_OK(pg_pool_take(pg, pg_real_ms() + 100, &taken[0], &err));
    for (int i = 0; i < MOST_CONNS; i++)
        pg_pool_give(pg, taken[i]);
    lh_close(store);
}

struct comer {
    struct pg *pg;
    int64_t since; /* when it asked for a connection; 0: not yet; atomic */
};

static void *take_and_give(void *arg)
{
    struct comer *comer = arg;
    struct lhi_error err;
    struct conn *conn;

    __atomic_store_n(&comer->since, pg_real_ms(), __ATOMIC_SEQ_CST);
    EXPECT_OK(pg_pool_take(comer->pg, pg_real_ms() + 10000, &conn, &err));
    pg_pool_give(comer->pg, conn);
    return NULL;
}

/* False: the connection was returned too late, so the test proves nothing. */
static bool expect_shared(void)
{
    enum { MOMENT_MS = 50 }; /* as in pool.c */
    lh_store *store = open_store();
    struct comer comer = {.pg = pg_of(store)};
    struct lhi_error err;
    struct conn *conn;
    pthread_t thread;

    EXPECT_OK(pg_pool_take(comer.pg, pg_real_ms() + 10000, &conn, &err));
    EXPECT(pthread_create(&thread, NULL, take_and_give, &comer) == 0);
    EXPECT(test_thread_sleeps(thread));
    pg_pool_give(comer.pg, conn);
    bool in_time = pg_real_ms() < comer.since + MOMENT_MS;
    pthread_join(thread, NULL);
    if (in_time)
        EXPECT_EQ(comer.pg->n_conns, 1);
    lh_close(store);
    return in_time;
}

TEST(a_call_waits_a_moment_before_it_opens_another_connection)
{
    int in_time = 0;

    for (int try = 0; try < 50 && in_time < 5; try++)
        in_time += expect_shared();
    EXPECT_EQ(in_time, 5);
}

/* Ends the sessions of the handle, as a restart of the server would. */
static void end_sessions(void)
{
    PGconn *other = session_to(test_store());
    done(other, "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND usename = current_user"
                " AND pid <> pg_backend_pid()");
    PQfinish(other);
}

TEST(a_handle_survives_the_loss_of_its_connections)
{
    lh_store *store = open_store();
    lh_enqueued out;
    lh_new_job job = {.payload = "x", .payload_len = 1};

    for (int i = 0; i < 3; i++) {
        EXPECT_OK(lh_enqueue(store, "mail", &job, 1, NULL, &out));
        EXPECT_EQ(out.id, i + 1);
        end_sessions();
    }
    lh_close(store);
}

TEST(a_forked_child_that_closes_its_copy_leaves_the_parents_sessions_alone)
{
    lh_store *store = open_store();
    lh_enqueued out;
    lh_new_job job = {.payload = "x", .payload_len = 1};

    pid_t pid = test_fork();
    if (pid == 0) {
        EXPECT_STATUS(lh_enqueue(store, "mail", &job, 1, NULL, &out), LH_EMISUSE);
        lh_close(store);
        test_child_done();
    }
    EXPECT_EQ(test_wait(pid).code, 0);
    struct pg *pg = pg_of(store);
    const struct conn *before = pg->idle;
    EXPECT_OK(lh_enqueue(store, "mail", &job, 1, NULL, &out));
    EXPECT(pg->idle == before && pg->n_conns == 1); /* the same connection as before */
    lh_close(store);
}

TEST(forked_child_opens_its_own_handle_while_the_parent_has_one)
{
    lh_store *store = open_store();
    lh_enqueued out;
    lh_new_job job = {.payload = "x", .payload_len = 1};

    pid_t pid = test_fork();
    if (pid == 0) {
        lh_close(store);
        lh_store *own = open_store();
        for (int i = 0; i < 20; i++)
            EXPECT_OK(lh_enqueue(own, "mail", &job, 1, NULL, &out));
        lh_close(own);
        test_child_done();
    }
    for (int i = 0; i < 20; i++)
        EXPECT_OK(lh_enqueue(store, "mail", &job, 1, NULL, &out));
    EXPECT_EQ(test_wait(pid).code, 0);
    lh_close(store);
}

/* The clock is read over a connection if it was not read for a minute. */
TEST(forked_child_does_not_ask_for_the_time_over_its_parents_connection)
{
    lh_store *store = open_store();
    pid_t pid = test_fork();

    if (pid == 0) {
        pg_of(store)->clock_at = INT64_MIN / 2;
        EXPECT(lh_now(store) > 0);
        EXPECT_EQ(pg_of(store)->clock_at, INT64_MIN / 2);
        test_child_done();
    }
    EXPECT_EQ(test_wait(pid).code, 0);
    lh_close(store);
}

static void *wait_for_a_job(void *arg)
{
    const char *queue = "mail";
    lh_jobs *jobs = NULL;
    lh_claim_opts opts = {.queues = &queue, .n_queues = 1, .worker = "w1", .wait_ms = -1};

    EXPECT_OK(lh_claim(arg, &opts, &jobs));
    lh_jobs_free(jobs);
    return NULL;
}

static int sessions(PGconn *session)
{
    return atoi(said(session,
                     "SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                     " AND datname = current_database() AND backend_type = 'client backend'"));
}

/* A copy of a socket would keep its session alive, with every lock that the session holds. */
TEST(sessions_end_with_their_process_even_if_a_forked_child_survives)
{
    PGconn *other = session_to(test_store());
    int hold[2], ready[2];
    char byte;

    EXPECT(pipe(hold) == 0 && pipe(ready) == 0);
    pid_t parent = test_fork();
    if (parent == 0) {
        (void)open_store();
        if (test_fork() == 0) {
            close(hold[1]);
            EXPECT_EQ(write(ready[1], "", 1), 1);
            (void)!read(hold[0], &byte, 1);
            test_child_done();
        }
        EXPECT_EQ(read(ready[0], &byte, 1), 1);
        EXPECT_EQ(write(ready[1], "", 1), 1);
        (void)pause();
    }
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    EXPECT(sessions(other) >= 1);
    EXPECT_EQ(kill(parent, SIGKILL), 0);
    (void)test_wait(parent);
    while (sessions(other) > 0)
        (void)usleep(1000);
    close(hold[1]);
    close(hold[0]);
    PQfinish(other);
}

TEST(close_does_not_wait_for_a_forked_child_to_exit)
{
    lh_store *store = open_store();
    PGconn *other = session_to(test_store());
    lh_enqueued out;
    pthread_t waiter;
    int hold[2];
    char byte;

    EXPECT_EQ(pipe(hold), 0);
    EXPECT_EQ(pthread_create(&waiter, NULL, wait_for_a_job, store), 0);
    while (sessions(other) < 2) /* the pool's session and the listener's */
        (void)usleep(1000);
    pid_t child = test_fork();
    if (child == 0) {
        close(hold[1]);
        EXPECT_EQ(read(hold[0], &byte, 1), 0);
        test_child_done();
    }
    close(hold[0]);
    EXPECT_OK(lh_enqueue(store, "mail", &(lh_new_job){0}, 1, NULL, &out));
    pthread_join(waiter, NULL);
    lh_close(store);
    close(hold[1]);
    EXPECT_EQ(test_wait(child).code, 0);
    PQfinish(other);
}

TEST(a_statement_whose_tables_have_changed_is_prepared_again)
{
    lh_store *store = open_store();
    PGconn *other = session_to(test_store());
    lh_jobs *jobs = NULL;
    lh_enqueued out;
    lh_new_job job = {.payload = "x", .payload_len = 1};

    EXPECT_OK(lh_enqueue(store, "mail", &job, 1, NULL, &out));
    EXPECT_OK(lh_job_list(store, &(lh_job_filter){.limit = 10}, &jobs));
    lh_jobs_free(jobs);
    done(other, "ALTER TABLE leasehold.job ADD COLUMN extra text");
    EXPECT_OK(lh_job_list(store, &(lh_job_filter){.limit = 10}, &jobs));
    EXPECT_EQ(jobs->n, 1);
    lh_jobs_free(jobs);
    PQfinish(other);
    lh_close(store);
}

/* ---------------------------------------------------------------- names of stores */

static void expect_open_fails(const char *url, int status, const char *says)
{
    lh_store *store = NULL;

    EXPECT_STATUS(lh_open(url, NULL, &store), status);
    EXPECT_CONTAINS(lh_errmsg(store), says);
    EXPECT(strstr(lh_errmsg(store), "s3cret") == NULL);
    lh_close(store);
}

TEST(a_password_is_never_shown)
{
    expect_open_fails("postgresql://me:s3cret@127.0.0.1:1/db", LH_EUNREACH, "127.0.0.1");
    expect_open_fails("host=127.0.0.1 port=1 password=s3cret dbname=db", LH_EUNREACH, "127.0.0.1");
    expect_open_fails("host=127.0.0.1 s3cret", LH_EINVAL, "connection string");
    expect_open_fails("postgresql://me:s3cret@127.0.0.1:1/db?nonsense=1", LH_EINVAL,
                      "connection string");
}

TEST(one_answering_host_of_several_is_enough)
{
    struct target target = {0};
    struct lhi_error err;

    EXPECT_OK(pg_target_parse(&target, "postgresql://a:1,b:2,c/db", &err));
    EXPECT_EQ(target.n_hosts, 3);
    EXPECT_STR(target.hosts[1].host, "b");
    EXPECT_STR(target.hosts[1].port, "2");
    bool read_write = false;
    for (size_t i = 0; i < target.n; i++)
        read_write = read_write || (strcmp(target.keys[i], "target_session_attrs") == 0 &&
                                    strcmp(target.values[i], "read-write") == 0);
    EXPECT(read_write);
    pg_target_clear(&target);
}

/* ---------------------------------------------------------------- the commit */

/* The server answers a statement before it commits; a refusal at the commit still counts. */
TEST(an_act_refused_at_the_commit_was_not_done)
{
    lh_store *store = open_store();
    PGconn *other = session_to(test_store());
    lh_enqueued out;
    lh_new_job job = {.payload = "x", .payload_len = 1};

    done(other, "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS"
                " 'BEGIN RAISE check_violation USING MESSAGE = ''not today''; END'");
    done(other, "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON leasehold.job"
                " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION no()");
    EXPECT_STATUS(lh_enqueue(store, "mail", &job, 1, NULL, &out), LH_EINVAL);
    EXPECT_CONTAINS(lh_errmsg(store), "not today");
    EXPECT_EQ(pg_of(store)->n_conns, 1);
    done(other, "DROP TRIGGER late ON leasehold.job");
    EXPECT_OK(lh_enqueue(store, "mail", &job, 1, NULL, &out));
    lh_jobs *jobs = NULL;
    EXPECT_OK(lh_job_list(store, &(lh_job_filter){.limit = 10}, &jobs));
    EXPECT_EQ(jobs->n, 1);
    lh_jobs_free(jobs);
    PQfinish(other);
    lh_close(store);
}

/* Only a call that was cut off and arrives after its repeat meets this. */
TEST(a_call_with_a_used_nonce_is_reported_busy)
{
    PGconn *c = session_at(START_MS);
    struct lhi_error err;

    done(c, "SELECT leasehold.enqueue_one('q', 0, 'x', 78)");
    PGresult *refusal = PQexec(c, "SELECT leasehold.enqueue_one('q', 0, 'x', 78)");
    EXPECT_EQ(pg_refusal_status(refusal, "db", &err), LH_EBUSY);
    EXPECT_STR(err.text, "store is busy: another call has used this nonce");
    EXPECT_STR(said(c, "SELECT count(*) FROM leasehold.job"), "1");
    PQclear(refusal);
    PQfinish(c);
}
