/*
 * A proxy between the store's clients and their server that cuts connections on request.
 *
 *     struct proxy *proxy = proxy_start();
 *     lh_open(proxy->url, ...);
 *     proxy_cut(proxy, TO_SERVER, 17, true);    after 17 more bytes
 *
 * Every failure of the proxy itself fails the test.
 */
#ifndef POSTGRES_PROXY_H
#define POSTGRES_PROXY_H

#include "harness/harness.h"

enum way { TO_SERVER, TO_CLIENT };

struct proxy {
    char url[1024]; /* URL of the test's database through the proxy */
    pid_t pid;
    /* Shared with the process of the proxy: */
    struct line *line;
};

struct proxy *proxy_start(void);
void proxy_stop(struct proxy *proxy);

/* Cut every connection after this many more bytes in this direction, counted over all
 * connections. Later connections work, or, if the server is `gone`, none does before
 * proxy_mend(). */
void proxy_cut(struct proxy *proxy, enum way way, int64_t after, bool gone);
/* From now on clients get a message before the cut, as from a pooler that has lost its server. */
void proxy_tell(struct proxy *proxy);
/* From now on sessions show other pids than the server's, which is the sign of a pooler. */
void proxy_renumber(struct proxy *proxy);
/* Offsets at which messages in this direction have ended since proxy_cut(), for one connection
 * that was open before. Returns their number. */
enum { MOST_STEPS = 256 };
size_t proxy_steps(const struct proxy *proxy, enum way way, int64_t ends[MOST_STEPS]);
/* Was a connection cut since proxy_cut()? */
bool proxy_has_cut(const struct proxy *proxy);
/* Stop cutting, and accept all connections again. Was a connection cut since proxy_cut()? */
bool proxy_mend(struct proxy *proxy);

#endif
