/*
 * lh_enqueue_postgres(): on the user's own connection, within the user's own transaction. It
 * reports what happened to the jobs, and never claims to know what it cannot know.
 */
#include "core/core.h"
#include "postgres/proxy.h"
#include "session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATIENCE = 10000 };

static char why[512];

static int put(PGconn *user, const char *queue, lh_new_job job, lh_enqueued *out)
{
    why[0] = '\0';
    if (job.payload != NULL && job.payload_len == 0)
        job.payload_len = strlen(job.payload);
    return lh_enqueue_postgres(user, queue, &job, 1, out, why, sizeof why);
}

static int put_text(PGconn *user, const char *payload)
{
    lh_enqueued out;
    return put(user, "mail", (lh_new_job){.payload = payload}, &out);
}

static const char *count(PGconn *session)
{
    return said(session, "SELECT count(*) FROM leasehold.job");
}

static long number(const char *text)
{
    return strtol(text, NULL, 10);
}

static lh_jobs *claim_all(size_t n)
{
    lh_store *store = NULL;
    lh_jobs *jobs = NULL;
    lh_findings *findings = NULL;
    const char *queue = "mail";

    EXPECT_OK(lh_open(test_store(), NULL, &store));
    EXPECT_OK(lh_check(store, NULL, &findings));
    EXPECT_EQ(findings->errors, 0);
    lh_findings_free(findings);
    EXPECT_OK(lh_claim(
        store, &(lh_claim_opts){.queues = &queue, .n_queues = 1, .worker = "w1", .n = n}, &jobs));
    EXPECT_EQ(jobs->n, n);
    lh_close(store);
    return jobs;
}

/* ---------------------------------------------------------------- transactions */

TEST(an_enqueue_on_the_users_connection_commits_or_rolls_back_with_the_users_transaction)
{
    PGconn *user = session_to(test_store()), *other = session_to(test_store());

    (void)said(user, "BEGIN");
    EXPECT_OK(put_text(user, "gone"));
    EXPECT_STR(count(user), "1");
    EXPECT_STR(count(other), "0");
    (void)said(user, "ROLLBACK");
    EXPECT_STR(count(other), "0");
    (void)said(user, "BEGIN");
    EXPECT_OK(put_text(user, "Zo\xc3\xab"));
    EXPECT_EQ(PQtransactionStatus(user), PQTRANS_INTRANS);
    EXPECT_STR(count(other), "0");
    (void)said(user, "COMMIT");
    EXPECT_STR(count(other), "1");
    lh_jobs *jobs = claim_all(1);
    EXPECT_MEM(jobs->job[0].payload, jobs->job[0].payload_len, "Zo\xc3\xab", 4);
    EXPECT(jobs->job[0].payload_is_text);
    lh_jobs_free(jobs);
    PQfinish(user);
    PQfinish(other);
}

static const char *counts_of_mail(PGconn *session)
{
    return said(session, "SELECT pending || ' ' || hour_enqueued FROM leasehold.queues()");
}

TEST(an_enqueue_that_commits_after_its_queue_was_deleted_creates_a_new_queue)
{
    PGconn *user = session_to(test_store()), *other = session_to(test_store());

    (void)said(other, "SELECT leasehold.delete((leasehold.enqueue('mail', 'gone')).id)");
    EXPECT_STR(counts_of_mail(other), "0 1");
    (void)said(user, "BEGIN");
    EXPECT_OK(put_text(user, "late"));
    (void)said(other, "SELECT leasehold.queue_delete('mail')");
    EXPECT_STR(said(other, "SELECT count(*) FROM leasehold.queues()"), "0");
    (void)said(user, "COMMIT");
    EXPECT_STR(counts_of_mail(other), "1 1");
    (void)said(other, "SELECT leasehold.maintain()");
    EXPECT_STR(counts_of_mail(other), "1 1");
    lh_jobs_free(claim_all(1));
    PQfinish(user);
    PQfinish(other);
}

TEST(a_queue_deleted_together_with_its_last_job_is_not_written_again)
{
    PGconn *session = session_to(test_store());
    lh_store *store = NULL;
    lh_enqueued out;
    int status = LH_OK;
    struct lhi_error err;

    EXPECT_OK(lh_open(test_store(), NULL, &store));
    EXPECT_OK(lh_enqueue(store, "mail", &(lh_new_job){.payload = "x"}, 1, NULL, &out));
    struct lhi_act acts[] = {
        {.verb = LHI_DELETE, .n = 1, .ids = {.ids = &out.id}, .status = &status},
        {.verb = LHI_QUEUE_DELETE, .queue = {.queue = "mail"}},
    };
    lhi_error_clear(&err);
    EXPECT_OK(lhi_perform_all(store, acts, 2, &err));
    EXPECT_OK(acts[0].err.status);
    EXPECT_OK(acts[1].err.status);
    EXPECT_STR(said(session, "SELECT count(*) FROM leasehold.queues()"), "0");
    EXPECT_OK(lh_maintain(store, NULL, NULL));
    EXPECT_STR(said(session, "SELECT count(*) FROM leasehold.queues()"), "0");
    EXPECT_OK(lh_enqueue(store, "mail", &(lh_new_job){.payload = "y"}, 1, NULL, &out));
    EXPECT_STR(counts_of_mail(session), "1 1");
    lh_close(store);
    PQfinish(session);
}

TEST(an_enqueue_on_the_users_connection_outside_of_a_transaction_commits_at_once)
{
    PGconn *user = session_to(test_store()), *other = session_to(test_store());
    lh_enqueued out, again;

    EXPECT_OK(put(user, "mail", (lh_new_job){.payload = "x", .key = "k"}, &out));
    EXPECT_EQ(out.state, LH_PENDING);
    EXPECT(!out.duplicate);
    EXPECT_STR(count(other), "1");
    EXPECT_OK(put(user, "mail", (lh_new_job){.payload = "y", .key = "k"}, &again));
    EXPECT(again.duplicate);
    EXPECT_EQ(again.id, out.id);
    EXPECT_STR(count(other), "1");
    EXPECT_EQ(PQtransactionStatus(user), PQTRANS_IDLE);
    PQfinish(user);
    PQfinish(other);
}

TEST(a_batch_on_the_users_connection_keeps_its_order)
{
    enum { MANY = 1000 };
    static const char bytes[] = {0, (char)0xff, 0, 'x'};
    static lh_new_job jobs[MANY];
    static lh_enqueued made[MANY];
    static char text[MANY][8];
    PGconn *user = session_to(test_store());

    for (int i = 0; i < MANY; i++) {
        (void)snprintf(text[i], sizeof text[i], "%d", i);
        jobs[i] = i % 10 == 0 ? (lh_new_job){.payload = bytes, .payload_len = sizeof bytes}
                              : (lh_new_job){.payload = text[i], .payload_len = strlen(text[i])};
    }
    EXPECT_OK(lh_enqueue_postgres(user, "mail", jobs, MANY, made, NULL, 0));
    lh_jobs *claimed = claim_all(MANY);
    for (int i = 0; i < MANY; i++) {
        const lh_job *job = &claimed->job[i];
        EXPECT_EQ(job->id, made[i].id);
        EXPECT_MEM(job->payload, job->payload_len, jobs[i].payload, jobs[i].payload_len);
        EXPECT_EQ(job->payload_is_text, i % 10 != 0);
    }
    lh_jobs_free(claimed);
    PQfinish(user);
}

/* ---------------------------------------------------------------- refusals */

TEST(a_refused_enqueue_on_the_users_connection_leaves_nothing)
{
    PGconn *user = session_to(test_store());
    static char large[2 << 20];
    lh_enqueued out;

    (void)said(user, "BEGIN");
    EXPECT_STATUS(put(user, "no name", (lh_new_job){.payload = "x"}, &out), LH_EINVAL);
    EXPECT_EQ(PQtransactionStatus(user), PQTRANS_INTRANS); /* nothing was sent */
    memset(large, 'x', sizeof large);
    EXPECT_STATUS(
        put(user, "mail", (lh_new_job){.payload = large, .payload_len = sizeof large}, &out),
        LH_ETOOBIG);
    EXPECT_CONTAINS(why, "too large");
    EXPECT_EQ(PQtransactionStatus(user), PQTRANS_INERROR);
    EXPECT_STATUS(put_text(user, "x"), LH_EFAIL);
    EXPECT_CONTAINS(why, "aborted");
    (void)said(user, "COMMIT");
    EXPECT_STR(count(user), "0");
    EXPECT_STATUS(lh_enqueue_postgres(NULL, "mail", &(lh_new_job){0}, 1, &out, why, sizeof why),
                  LH_EMISUSE);
    PQfinish(user);
}

TEST(a_database_without_our_schema_is_refused_on_the_users_connection)
{
    PGconn *user = session_to(test_store());

    (void)said(user, "SET client_min_messages = error");
    (void)said(user, "BEGIN");
    EXPECT_STR(said(user, "DROP SCHEMA leasehold CASCADE"), "");
    EXPECT_STATUS(put_text(user, "x"), LH_ENOSTORE);
    EXPECT_CONTAINS(why, "leasehold migrate");
    (void)said(user, "ROLLBACK");
    PQfinish(user);
}

TEST(a_newer_schema_is_refused_on_the_users_connection)
{
    PGconn *user = session_to(test_store());

    (void)said(user, "UPDATE leasehold.meta SET schema_version = 99");
    EXPECT_STATUS(put_text(user, "x"), LH_ENEWER);
    EXPECT_CONTAINS(why, "use a newer leasehold");
    (void)said(user, "UPDATE leasehold.meta SET schema_version = %d", lh_schema_version());
    EXPECT_STR(count(user), "0");
    EXPECT_OK(put_text(user, "x"));
    PQfinish(user);
}

TEST(a_connection_with_another_encoding_is_refused)
{
    PGconn *user = session_to(test_store());

    EXPECT_EQ(PQsetClientEncoding(user, "LATIN1"), 0);
    EXPECT_STATUS(put_text(user, "Zo\xc3\xab"), LH_EINVAL);
    EXPECT_STR(why, "client_encoding of the connection is \"LATIN1\": UTF8 is allowed");
    EXPECT_STR(count(user), "0");
    EXPECT_EQ(PQsetClientEncoding(user, "SQL_ASCII"), 0); /* bytes without conversion */
    EXPECT_OK(put_text(user, "Zo\xc3\xab"));
    lh_jobs *jobs = claim_all(1);
    EXPECT_MEM(jobs->job[0].payload, jobs->job[0].payload_len, "Zo\xc3\xab", 4);
    lh_jobs_free(jobs);
    PQfinish(user);
}

TEST(the_users_search_path_does_not_matter)
{
    PGconn *user = session_to(test_store());

    EXPECT_STR(said(user, "CREATE SCHEMA odd"), "");
    EXPECT_STR(said(user, "CREATE FUNCTION odd.no(integer, bigint) RETURNS boolean LANGUAGE sql"
                          " AS 'SELECT false'"),
               "");
    EXPECT_STR(said(user, "CREATE OPERATOR odd.<= (FUNCTION = odd.no, LEFTARG = integer,"
                          " RIGHTARG = bigint)"),
               "");
    EXPECT_STR(said(user, "SET search_path = odd, pg_catalog"), "");
    EXPECT_OK(put_text(user, "x"));
    PQfinish(user);
}

/* ---------------------------------------------------------------- connections that are in use */

TEST(a_connection_with_a_query_in_progress_is_refused_and_loses_nothing)
{
    PGconn *user = session_to(test_store());

    EXPECT_EQ(PQsendQuery(user, "SELECT 42"), 1);
    EXPECT_STATUS(put_text(user, "x"), LH_EMISUSE);
    EXPECT_CONTAINS(why, "in use");
    PGresult *result = PQgetResult(user);
    EXPECT_STR(PQgetvalue(result, 0, 0), "42");
    PQclear(result);
    EXPECT(PQgetResult(user) == NULL);

    EXPECT_EQ(PQenterPipelineMode(user), 1);
    EXPECT_STATUS(put_text(user, "x"), LH_EMISUSE);
    EXPECT_EQ(PQexitPipelineMode(user), 1);

    PQclear(PQexec(user, "CREATE TEMPORARY TABLE t(x text)"));
    PQclear(PQexec(user, "COPY t FROM STDIN"));
    EXPECT_STATUS(put_text(user, "x"), LH_EMISUSE);
    EXPECT_EQ(PQputCopyEnd(user, NULL), 1);
    while ((result = PQgetResult(user)) != NULL)
        PQclear(result);
    EXPECT_OK(put_text(user, "x"));
    PQfinish(user);
}

TEST(an_enqueue_waits_on_a_nonblocking_connection)
{
    PGconn *user = session_to(test_store());
    static char large[1 << 20];

    memset(large, 'x', sizeof large - 1);
    EXPECT_EQ(PQsetnonblocking(user, 1), 0);
    EXPECT_OK(put_text(user, large));
    EXPECT_EQ(PQisnonblocking(user), 1);
    PQfinish(user);
}

static void note_notice(void *arg, const PGresult *result)
{
    (void)snprintf(arg, 100, "received: %s", PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY));
}

static void note_message(void *arg, const char *message)
{
    (void)snprintf(arg, 100, "processed: %.*s", (int)strcspn(message, "\n"), message);
}

/* Before, during and after the enqueue. */
TEST(the_users_notice_receiver_still_gets_notices)
{
    PGconn *user = session_to(test_store());
    char heard[100] = "";

    (void)said(user, "CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS"
                     " $$ BEGIN RAISE NOTICE 'from within'; RETURN NEW; END $$");
    (void)said(user, "CREATE TRIGGER tell BEFORE INSERT ON leasehold.job FOR EACH ROW"
                     " EXECUTE FUNCTION tell()");
    (void)PQsetNoticeProcessor(user, note_message, heard);
    PQnoticeReceiver receiver = PQsetNoticeReceiver(user, NULL, NULL);
    EXPECT_OK(put_text(user, "x"));
    EXPECT(PQsetNoticeReceiver(user, NULL, NULL) == receiver);
    EXPECT_STR(heard, "processed: NOTICE:  from within");
    (void)said(user, "DO $$ BEGIN RAISE NOTICE 'afterwards'; END $$");
    EXPECT_STR(heard, "processed: NOTICE:  afterwards");
    (void)PQsetNoticeReceiver(user, note_notice, heard);
    EXPECT_OK(put_text(user, "x"));
    EXPECT_STR(heard, "received: from within");
    (void)said(user, "DO $$ BEGIN RAISE NOTICE 'at last'; END $$");
    EXPECT_STR(heard, "received: at last");
    PQfinish(user);
}

/* ---------------------------------------------------------------- connections that are lost */

TEST(a_connection_lost_before_the_enqueue_is_reported_as_unreachable)
{
    PGconn *user = session_to(test_store()), *other = session_to(test_store());

    EXPECT_STR(said(other, "SELECT pg_terminate_backend(%d, 5000)", PQbackendPID(user)), "t");
    EXPECT_STATUS(put_text(user, "x"), LH_EUNREACH);
    EXPECT_CONTAINS(why, "terminating connection");
    EXPECT_STATUS(put_text(user, "x"),
                  LH_EUNREACH); /* and the connection is known to be lost from then on */
    EXPECT_CONTAINS(why, "connection is lost: ");
    EXPECT(why[strlen("connection is lost: ")] != '\0');
    EXPECT_STR(count(other), "0");
    PQfinish(user);
    PQfinish(other);
}

TEST(a_session_that_ends_in_mid_statement_has_done_nothing)
{
    PGconn *user = session_to(test_store()), *other = session_to(test_store());

    (void)said(other, "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql"
                      " SECURITY DEFINER AS $$ BEGIN"
                      " PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(10);"
                      " RETURN NEW; END $$");
    (void)said(other, "CREATE TRIGGER die BEFORE INSERT ON leasehold.job FOR EACH ROW"
                      " EXECUTE FUNCTION die()");
    EXPECT_STATUS(put_text(user, "x"), LH_EUNREACH);
    EXPECT_CONTAINS(why, "terminating connection");
    EXPECT_STR(count(other), "0");
    PQfinish(user);
    PQfinish(other);
}

TEST(an_enqueue_refused_at_the_users_commit_was_not_done)
{
    PGconn *user = session_to(test_store());

    (void)said(user, "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS"
                     " $$ BEGIN RAISE check_violation USING MESSAGE = 'not today'; END $$");
    (void)said(user, "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON leasehold.job"
                     " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION no()");
    EXPECT_STATUS(put_text(user, "x"), LH_EINVAL);
    EXPECT_CONTAINS(why, "not today");
    EXPECT_STR(count(user), "0");
    PQfinish(user);
}

struct told {
    int done, unknown, undone;
};

/* The server may not have noticed yet that its client is gone. */
static void expect_left_alone(PGconn *near)
{
    static const char others[] = "SELECT count(*) FROM pg_stat_activity WHERE datname ="
                                 " current_database() AND usename = current_user"
                                 " AND pid <> pg_backend_pid()";

    for (int i = 0; i < PATIENCE && number(said(near, others)) > 0; i++)
        (void)usleep(1000);
    EXPECT_STR(said(near, others), "0");
}

/* One enqueue that is cut after N bytes; false: it ended before the cut. */
static bool cut_once(struct proxy *proxy, PGconn *near, enum way way, int64_t after, bool in_block,
                     struct told *told)
{
    PGconn *user = session_to(proxy->url);
    long before = number(count(near));

    if (in_block)
        (void)said(user, "BEGIN");
    proxy_cut(proxy, way, after, false);
    int rc = put_text(user, "x");
    bool was_cut = proxy_mend(proxy);
    PQfinish(user);
    expect_left_alone(near);
    bool stands = number(count(near)) > before;
    told->done += rc == LH_OK;
    told->unknown += rc == LH_EUNKNOWN;
    told->undone += rc == LH_EUNREACH;
    EXPECT(rc == LH_OK || rc == LH_EUNKNOWN || rc == LH_EUNREACH);
    if (rc == LH_OK && !in_block)
        EXPECT(stands);
    if (rc == LH_EUNREACH || in_block)
        EXPECT(!stands);
    EXPECT(rc == LH_OK || strchr(why, ':') != NULL);
    return was_cut;
}

static size_t rehearse(struct proxy *proxy, enum way way, int64_t ends[MOST_STEPS])
{
    PGconn *user = session_to(proxy->url);

    proxy_cut(proxy, way, INT64_MAX, false);
    EXPECT_OK(put_text(user, "x"));
    EXPECT(!proxy_mend(proxy));
    size_t n = proxy_steps(proxy, way, ends);
    EXPECT(n > 2 && n < MOST_STEPS);
    PQfinish(user);
    return n;
}

static struct told cut_everywhere(bool in_block)
{
    struct proxy *proxy = proxy_start();
    PGconn *near = session_to(test_store());
    struct told told = {0};
    int64_t ends[MOST_STEPS];

    for (int way = TO_SERVER; way <= TO_CLIENT; way++) {
        size_t n = rehearse(proxy, (enum way)way, ends);
        for (size_t i = 0; i < n; i++) /* each message passes, except for its last byte */
            EXPECT(cut_once(proxy, near, (enum way)way, ends[i] - 1, in_block, &told));
    }
    PQfinish(near);
    proxy_stop(proxy);
    return told;
}

TEST(a_cut_of_the_users_connection_is_reported_as_unknown_and_never_as_failed)
{
    struct told told = cut_everywhere(false);

    EXPECT(told.unknown > 5);
    EXPECT_EQ(told.done, 0);
    EXPECT_EQ(told.undone, 0);
}

TEST(a_cut_of_the_users_connection_within_a_transaction_undoes_everything)
{
    struct told told = cut_everywhere(true);

    EXPECT(told.undone > 5);
    EXPECT_EQ(told.unknown, 0);
}

/* Workers may call the function as the library does: values that no claim can handle must be
 * refused. */
TEST(no_value_in_a_batch_stops_its_queue)
{
    static const struct {
        const char *given, *refused;
    } bad[] = {
        {"leases_ms => '{NULL,9223372036854775807}'",
         "lease is 9223372036854775807 ms: 1ms to 30d"},
        {"leases_ms => '{-1,1}'", "lease is -1 ms: 1ms to 30d is allowed"},
        {"priorities => '{0,99999}'", "priority is 99999: -32768 to 32767 is allowed"},
        {"max_attempts => '{-1,0}'", "max attempts is 0: 1 to 1000000 is allowed"},
        {"expires_ms => '{-1,0}'", "expiry is -1 ms: 0 to 3650d is allowed"},
        {"backoffs_ms => '{0,-5}'", "backoff is -5 ms: 0 to 3650d is allowed"},
        {"backoff_caps_ms => '{0,-5}'", "backoff cap is -5 ms: 0 to 3650d is allowed"},
        {"delays_ms => '{0,-5}'", "delay is -5 ms: 0 to 3650d is allowed"},
        {"kinds => '{NULL,\"a b\"}'", "kind \"a b\" is not a name"},
        {"keys => '{NULL,\"\"}'", "key has 0 bytes: 1 to 256 bytes are allowed"},
    };
    PGconn *c = session_at(START_MS);

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        EXPECT_CONTAINS(
            said(c, "SELECT leasehold.enqueue_many('q', '{0,0}', '{x,y}', %s)", bad[i].given),
            bad[i].refused);
    EXPECT_CONTAINS(said(c, "SELECT leasehold.enqueue_many(E'a\nb', '{0}', '{x}')"),
                    "is not a name");
    EXPECT_STR(said(c, "SELECT count(*) FROM leasehold.job"), "0");
    PQfinish(c);
}
