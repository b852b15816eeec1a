/* See proxy.h. The proxy is one process with one loop, and shares counters with the test. */
#include "postgres/proxy.h"

#include <errno.h>
#include <libpq-fe.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { MOST_PAIRS = 64, CHUNK = 8192 };

/* A message has a type, a length of four bytes (included in the length), and a body. */
struct reader {
    unsigned char head[5];
    int have;
    int64_t body, at;
    size_t n;
    int64_t ends[MOST_STEPS];
};

struct line {
    bool armed, gone, was_cut;
    bool gone_then; /* after the cut */
    bool tells, renumbers;
    enum way way;
    int64_t left; /* bytes until the cut */
    struct reader reader[2];
};

struct pair {
    int fd[2]; /* the server's and the client's socket: where bytes of that direction go */
};

struct switchboard {
    struct line *line;
    const char *server; /* path of the server's socket */
    int listener;
    size_t n;
    struct pair pair[MOST_PAIRS];
};

/* ---------------------------------------------------------------- in the process of the proxy */

static bool raised(const bool *flag)
{
    return __atomic_load_n(flag, __ATOMIC_SEQ_CST);
}

static void drop(struct switchboard *board, size_t i)
{
    close(board->pair[i].fd[TO_SERVER]);
    close(board->pair[i].fd[TO_CLIENT]);
    board->pair[i] = board->pair[--board->n];
}

static void drop_all(struct switchboard *board)
{
    while (board->n > 0)
        drop(board, board->n - 1);
}

static int reach_server(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof address) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static void admit(struct switchboard *board)
{
    int client = accept4(board->listener, NULL, NULL, SOCK_CLOEXEC);

    if (client < 0)
        return;
    int server = raised(&board->line->gone) ? -1 : reach_server(board->server);
    if (server < 0 || board->n == MOST_PAIRS) {
        close(client);
        if (server >= 0)
            close(server);
        return;
    }
    (void)setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    board->pair[board->n++] = (struct pair){{server, client}};
}

static bool send_all(int fd, const char *bytes, size_t len)
{
    while (len > 0) {
        ssize_t n = send(fd, bytes, len, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        bytes += n;
        len -= (size_t)n;
    }
    return true;
}

/* How many of these bytes pass; if fewer than all, the line is cut there. */
static size_t allowed(struct line *line, enum way way, size_t len)
{
    if (!raised(&line->armed) || line->way != way || (int64_t)len <= line->left) {
        if (raised(&line->armed) && line->way == way)
            line->left -= (int64_t)len;
        return len;
    }
    return (size_t)line->left;
}

/* The session's number comes first in its message. */
static bool in_number(const struct reader *r)
{
    enum { BODY = 8 };
    return r->have == 5 && r->head[0] == 'K' && r->body == BODY;
}

static void read_messages(struct line *line, enum way way, char *bytes, size_t len)
{
    struct reader *r = &line->reader[way];

    for (size_t i = 0; i < len; i++) {
        r->at++;
        if (way == TO_CLIENT && raised(&line->renumbers) && in_number(r))
            bytes[i] ^= 1;
        if (r->have == 5) {
            r->body--;
        } else {
            r->head[r->have++] = (unsigned char)bytes[i];
            r->body =
                ((int64_t)r->head[1] << 24 | r->head[2] << 16 | r->head[3] << 8 | r->head[4]) - 4;
        }
        if (r->have == 5 && r->body == 0) {
            r->have = 0;
            if (r->n < MOST_STEPS)
                r->ends[r->n++] = r->at;
        }
    }
}

/* PgBouncer's message; a server's own message would also name its source function. */
static const char farewell[] = "E\0\0\0\x29"
                               "SFATAL\0"
                               "C08P01\0"
                               "Mserver conn crashed?\0";

/* False: this connection is closed, or all are. */
static bool carry(struct switchboard *board, size_t i, enum way way)
{
    struct line *line = board->line;
    char bytes[CHUNK];
    ssize_t len = recv(board->pair[i].fd[!way], bytes, sizeof bytes, 0);

    if (len <= 0)
        return false;
    size_t passes = allowed(line, way, (size_t)len);
    read_messages(line, way, bytes, passes); /* before anyone has received and checked them */
    bool whole = send_all(board->pair[i].fd[way], bytes, passes);
    if (passes == (size_t)len)
        return whole;
    if (raised(&line->tells))
        (void)send_all(board->pair[i].fd[TO_CLIENT], farewell, sizeof farewell);
    __atomic_store_n(&line->gone, line->gone_then, __ATOMIC_SEQ_CST);
    __atomic_store_n(&line->was_cut, true, __ATOMIC_SEQ_CST);
    __atomic_store_n(&line->armed, false, __ATOMIC_SEQ_CST);
    drop_all(board);
    return true; /* nothing is left to close */
}

static _Noreturn void serve(struct switchboard *board)
{
    for (;;) {
        struct pollfd fds[1 + 2 * MOST_PAIRS] = {{.fd = board->listener, .events = POLLIN}};
        size_t n = board->n;

        for (size_t i = 0; i < n; i++)
            for (int way = 0; way < 2; way++)
                fds[1 + 2 * i + (size_t)way] =
                    (struct pollfd){.fd = board->pair[i].fd[!way], .events = POLLIN};
        (void)poll(fds, (nfds_t)(1 + 2 * n), -1);
        /* From the end, because a closed line is replaced by a later one, which was handled
         * already. */
        for (size_t i = n; i-- > 0;)
            for (int way = 0; way < 2 && i < board->n; way++)
                if (fds[1 + 2 * i + (size_t)way].revents != 0 && !carry(board, i, (enum way)way)) {
                    drop(board, i);
                    break;
                }
        if (fds[0].revents != 0)
            admit(board);
    }
}

/* ---------------------------------------------------------------- in the test */

/* The socket of the server, and a URL of the same database through the proxy. */
static void read_url(char *server, size_t room, struct proxy *proxy, int port)
{
    PQconninfoOption *options = PQconninfoParse(test_store(), NULL);
    const char *host = "", *there = "", *user = "", *password = "", *database = "";

    EXPECT(options != NULL);
    for (PQconninfoOption *option = options; option->keyword != NULL; option++) {
        const char *value = option->val ? option->val : "";
        host = strcmp(option->keyword, "host") == 0 ? value : host;
        there = strcmp(option->keyword, "port") == 0 ? value : there;
        user = strcmp(option->keyword, "user") == 0 ? value : user;
        password = strcmp(option->keyword, "password") == 0 ? value : password;
        database = strcmp(option->keyword, "dbname") == 0 ? value : database;
    }
    (void)snprintf(server, room, "%s/.s.PGSQL.%s", host, there);
    (void)snprintf(proxy->url, sizeof proxy->url,
                   "postgresql://%s:%s@127.0.0.1:%d/%s?sslmode=disable&gssencmode=disable", user,
                   password, port, database);
    PQconninfoFree(options);
}

static int listen_anywhere(int *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    EXPECT(fd >= 0 && bind(fd, (const struct sockaddr *)&address, len) == 0);
    EXPECT(listen(fd, 64) == 0 && getsockname(fd, (struct sockaddr *)&address, &len) == 0);
    *port = ntohs(address.sin_port);
    return fd;
}

struct proxy *proxy_start(void)
{
    static struct switchboard board;
    static char server[1024];
    struct proxy *proxy = calloc(1, sizeof *proxy);
    int port;

    EXPECT(proxy != NULL);
    proxy->line =
        mmap(NULL, sizeof *proxy->line, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(proxy->line != MAP_FAILED);
    board = (struct switchboard){.line = proxy->line, .server = server};
    board.listener = listen_anywhere(&port);
    read_url(server, sizeof server, proxy, port);
    proxy->pid = test_fork();
    if (proxy->pid == 0)
        serve(&board);
    close(board.listener);
    return proxy;
}

void proxy_stop(struct proxy *proxy)
{
    EXPECT_EQ(kill(proxy->pid, SIGKILL), 0);
    (void)test_wait(proxy->pid);
    (void)munmap(proxy->line, sizeof *proxy->line);
    free(proxy);
}

void proxy_cut(struct proxy *proxy, enum way way, int64_t after, bool gone)
{
    struct line *line = proxy->line;

    line->way = way;
    line->left = after;
    memset(line->reader, 0, sizeof line->reader);
    line->was_cut = false;
    line->gone_then = gone;
    __atomic_store_n(&line->armed, true, __ATOMIC_SEQ_CST);
}

void proxy_tell(struct proxy *proxy)
{
    __atomic_store_n(&proxy->line->tells, true, __ATOMIC_SEQ_CST);
}

void proxy_renumber(struct proxy *proxy)
{
    __atomic_store_n(&proxy->line->renumbers, true, __ATOMIC_SEQ_CST);
}

bool proxy_has_cut(const struct proxy *proxy)
{
    return raised(&proxy->line->was_cut);
}

bool proxy_mend(struct proxy *proxy)
{
    __atomic_store_n(&proxy->line->armed, false, __ATOMIC_SEQ_CST);
    __atomic_store_n(&proxy->line->gone, false, __ATOMIC_SEQ_CST);
    return raised(&proxy->line->was_cut);
}

size_t proxy_steps(const struct proxy *proxy, enum way way, int64_t ends[MOST_STEPS])
{
    const struct reader *r = &proxy->line->reader[way];

    memcpy(ends, r->ends, r->n * sizeof *ends);
    return r->n;
}
