/* Several hosts: some do not answer, some were replaced. */
#include "postgres/proxy.h"

#include "core/core.h"
#include "store/postgres/wire.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* A server that accepts connections and never answers. */
struct silent {
    int fd, port;
};

static struct silent listen_silently(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    struct silent silent = {.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};

    EXPECT(silent.fd >= 0 && bind(silent.fd, (const struct sockaddr *)&address, len) == 0);
    EXPECT(listen(silent.fd, 16) == 0);
    EXPECT(getsockname(silent.fd, (struct sockaddr *)&address, &len) == 0);
    silent.port = ntohs(address.sin_port);
    return silent;
}

/* Our server, with some silent hosts before and after it. */
static void name_hosts(char *url, size_t room, const struct proxy *proxy, int port, int before,
                       int behind)
{
    const char *host = strchr(proxy->url, '@') + 1, *database = strchr(host, '/');
    size_t n = (size_t)snprintf(url, room, "%.*s", (int)(host - proxy->url), proxy->url);

    for (int i = 0; i < before; i++)
        n += (size_t)snprintf(url + n, room - n, "127.0.0.1:%d,", port);
    n += (size_t)snprintf(url + n, room - n, "%.*s", (int)(database - host), host);
    for (int i = 0; i < behind; i++)
        n += (size_t)snprintf(url + n, room - n, ",127.0.0.1:%d", port);
    EXPECT((size_t)snprintf(url + n, room - n, "%s", database) < room - n);
}

static lh_store *open_hosts(const char *url)
{
    lh_store *store = NULL;
    int rc = lh_open(url, NULL, &store);

    if (rc != LH_OK)
        FAIL("%s: %s", lh_status_name(rc), lh_errmsg(store));
    return store;
}

static void expect_works(const char *url)
{
    lh_store *store = open_hosts(url);
    lh_enqueued out;

    EXPECT_OK(
        lh_enqueue(store, "q", &(lh_new_job){.payload = "x", .payload_len = 1}, 1, NULL, &out));
    lh_close(store);
}

TEST_TIMEOUT(hosts_that_do_not_answer_leave_time_for_the_host_that_does, 60)
{
    struct proxy *proxy = proxy_start();
    struct silent silent = listen_silently();
    char url[2000];

    name_hosts(url, sizeof url, proxy, silent.port, 3, 0);
    expect_works(url);
    name_hosts(url, sizeof url, proxy, silent.port, 1, 6);
    expect_works(url);
    close(silent.fd);
    proxy_stop(proxy);
}

/* ---------------------------------------------------------------- a race for the newest */

struct look {
    struct pg *pg;
    struct conn *conn;
    struct lhi_error err;
    int rc;
};

static void *look_for_server(void *arg)
{
    struct look *look = arg;

    look->rc = pg_conn_open(look->pg, pg_real_ms() + ACT_MS, &look->conn, &look->err);
    return NULL;
}

static void hang_up(const struct silent *silent)
{
    int client = accept(silent->fd, NULL, NULL);

    EXPECT(client >= 0);
    close(client);
}

static void *hang_up_at_once(void *arg)
{
    hang_up(arg);
    return NULL;
}

static lh_store *open_beside(struct silent *silent, const char *url)
{
    pthread_t thread;

    EXPECT_EQ(pthread_create(&thread, NULL, hang_up_at_once, silent), 0);
    lh_store *store = open_hosts(url);
    EXPECT_EQ(pthread_join(thread, NULL), 0);
    return store;
}

/* While one thread still asks the other hosts, another thread has found the new primary. */
TEST(a_server_that_is_replaced_during_the_connect_is_not_used)
{
    struct proxy *proxy = proxy_start();
    struct silent silent = listen_silently();
    struct look look = {0};
    pthread_t thread;
    char url[2000];

    name_hosts(url, sizeof url, proxy, silent.port, 0, 1);
    lh_store *store = open_beside(&silent, url);
    look.pg = store->store.self;
    int64_t newer = look.pg->timeline + 1;
    pg_hosts_recheck(look.pg);
    EXPECT_EQ(pthread_create(&thread, NULL, look_for_server, &look), 0);
    int client =
        accept(silent.fd, NULL, NULL); /* it has connected to one host and asks the other */
    EXPECT(client >= 0);
    pthread_mutex_lock(&look.pg->mutex);
    look.pg->timeline = newer;
    pthread_mutex_unlock(&look.pg->mutex);
    close(client);
    EXPECT_EQ(pthread_join(thread, NULL), 0);
    EXPECT_STATUS(look.rc, LH_EUNREACH);
    EXPECT_CONTAINS(look.err.text, "it was replaced");
    EXPECT(look.conn == NULL);
    EXPECT_EQ(look.pg->timeline, newer);
    close(silent.fd);
    lh_close(store);
    proxy_stop(proxy);
}

/* ---------------------------------------------------------------- an answer without an end */

TEST(an_answer_without_an_end_is_cut_off_at_the_deadline)
{
    lh_store *store = open_hosts(test_store());
    struct pg *pg = store->store.self;
    int ends[2];

    EXPECT(pipe(ends) == 0 && write(ends[1], "x", 1) == 1);
    EXPECT(pg_await_fd(pg, ends[0], POLLIN, pg_real_ms()));
    EXPECT(!pg_await_fd(pg, ends[0], POLLIN, pg_real_ms() - 2000));
    close(ends[0]);
    close(ends[1]);
    lh_close(store);
}
