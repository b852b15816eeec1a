/*
 * Settings of a role, a database or the environment that affect sessions: the acts must work all
 * the same. A session of the server is changed as needed; a session of a pooler is shared with
 * others.
 */
#include "postgres/proxy.h"
#include "postgres/session.h"

#include "core/core.h"
#include "store/postgres/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct heard {
    bool told; /* what the database was asked to log */
};

static void hear(void *arg, const lh_log_entry *entry)
{
    struct heard *heard = arg;
    heard->told = heard->told || strcmp(entry->line, "took job 7 back") == 0;
}

static lh_store *open_at(const char *url, const char *settings, struct heard *heard)
{
    char text[2000];
    lh_store *store = NULL;

    (void)snprintf(text, sizeof text, "%s%coptions=%s", url, strchr(url, '?') ? '&' : '?',
                   settings);
    if (lh_open(text, &(lh_open_opts){.log = hear, .log_arg = heard}, &store) != LH_OK)
        FAIL("%s", lh_errmsg(store));
    return store;
}

/* ---------------------------------------------------------------- notices */

#define QUIET "-c%20client_min_messages%3Derror"

static void expect_tells(lh_store *store, const struct heard *heard)
{
    struct txn txn = {.pg = store->store.self, .deadline = pg_real_ms() + 10000};
    struct lhi_error err;

    lhi_error_clear(&err);
    EXPECT_OK(pg_pool_take(txn.pg, txn.deadline, &txn.conn, &err));
    EXPECT_OK(pg_call_text(&txn, "SELECT leasehold.log_message('warn', 'took job 7 back')", NULL,
                           NULL, &err));
    pg_notices_log(&txn.conn->notices, &txn.pg->log);
    EXPECT(heard->told);
    pg_pool_give(txn.pg, txn.conn);
}

/* One such warning says that a commit was not confirmed: failover.py. */
TEST(notices_arrive_even_if_the_role_hides_them)
{
    struct heard heard = {0};
    lh_store *store = open_at(test_store(), QUIET, &heard);

    expect_tells(store, &heard);
    lh_close(store);
}

TEST(notices_arrive_through_a_pooler_whose_sessions_hide_them)
{
    struct proxy *proxy = proxy_start();
    struct heard heard = {0};

    proxy_renumber(proxy);
    lh_store *store = open_at(proxy->url, QUIET, &heard);
    expect_tells(store, &heard);
    const struct conn *conn = ((struct pg *)store->store.self)->idle;
    EXPECT(conn->pooled && conn->quiet);
    lh_close(store);
    proxy_stop(proxy);
}

/* ---------------------------------------------------------------- isolation */

#define SERIALIZABLE "-c%20default_transaction_isolation%3Dserializable"

static void refuse_other_isolation(void)
{
    PGconn *session = session_at(START_MS);

    EXPECT_STR(
        said(session,
             "CREATE FUNCTION look_at_isolation() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
             " IF current_setting('transaction_isolation') <> 'read committed' THEN"
             " RAISE 'isolation is %%', current_setting('transaction_isolation');"
             " END IF; RETURN NULL; END $$"),
        "");
    EXPECT_STR(said(session, "CREATE TRIGGER isolation AFTER INSERT OR UPDATE ON leasehold.job"
                             " EXECUTE FUNCTION look_at_isolation()"),
               "");
    PQfinish(session);
}

static void expect_acts(lh_store *store)
{
    const char *queue = "q";
    lh_new_job job = {.payload = "x", .payload_len = 1};
    lh_enqueued out;
    lh_jobs *jobs = NULL;
    int rc = lh_enqueue(store, queue, &job, 1, NULL, &out);

    if (rc != LH_OK)
        FAIL("%s", lh_errmsg(store));
    EXPECT_OK(
        lh_claim(store, &(lh_claim_opts){.queues = &queue, .n_queues = 1, .worker = "w"}, &jobs));
    EXPECT_OK(lh_complete(store, &(lh_done){.job = jobs->job[0].id, .token = jobs->job[0].token}, 1,
                          NULL, NULL));
    EXPECT_OK(lh_retry(store, &jobs->job[0].id, 1, LH_RETRY_FORCE, NULL, NULL));
    lh_jobs_free(jobs);
}

TEST(acts_see_commits_even_if_the_role_defaults_to_serializable)
{
    struct heard heard = {0};

    refuse_other_isolation();
    lh_store *store = open_at(test_store(), SERIALIZABLE, &heard);
    expect_acts(store);
    lh_close(store);
}

TEST(acts_see_commits_through_a_pooler_that_defaults_to_serializable)
{
    struct proxy *proxy = proxy_start();
    struct heard heard = {0};

    refuse_other_isolation();
    proxy_renumber(proxy);
    lh_store *store = open_at(proxy->url, SERIALIZABLE, &heard);
    expect_acts(store);
    const struct conn *conn = ((struct pg *)store->store.self)->idle;
    EXPECT(conn->pooled && conn->isolated);
    lh_close(store);
    proxy_stop(proxy);
}

/* ---------------------------------------------------------------- rights */

TEST(a_read_only_role_is_refused_at_once)
{
    struct heard heard = {0};
    lh_store *store = open_at(test_store(), "-c%20default_transaction_read_only%3Don", &heard);
    lh_enqueued out;
    int64_t begun = pg_real_ms();

    EXPECT_STATUS(
        lh_enqueue(store, "q", &(lh_new_job){.payload = "x", .payload_len = 1}, 1, NULL, &out),
        LH_EREADONLY);
    EXPECT(pg_real_ms() - begun < ACT_MS / 2);
    lh_close(store);
}

/* ---------------------------------------------------------------- services */

/* As in libpq: the file takes precedence over the environment. */
TEST(a_service_file_overrides_the_host_of_the_environment)
{
    struct target target = {0};
    struct lhi_error err;

    EXPECT_EQ(setenv("PGHOST", "elsewhere", 1), 0);
    EXPECT_EQ(setenv("PGPORT", "1", 1), 0);
    EXPECT_OK(pg_target_parse(&target, "service=queue", &err));
    EXPECT(target.hosts[0].host == NULL && target.hosts[0].port == NULL);
    pg_target_clear(&target);
    target = (struct target){0};
    EXPECT_OK(pg_target_parse(&target, "dbname=queue", &err));
    EXPECT_STR(target.hosts[0].host, "elsewhere");
    pg_target_clear(&target);
}
