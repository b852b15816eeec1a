/*
 * A network that breaks: a process between the store's clients and its server, which cuts connections
 * where it is told to.
 *
 *     struct proxy *proxy = proxy_start();
 *     lh_open(proxy->url, …);
 *     proxy_cut(proxy, TO_SERVER, 17, true);    after 17 more bytes
 *
 * Whatever of this cannot be done fails the test.
 */
#ifndef POSTGRES_PROXY_H
#define POSTGRES_PROXY_H

#include "harness/harness.h"

enum way { TO_SERVER, TO_CLIENT };

struct proxy {
    char url[1024]; /* of the test's database, through here */
    pid_t pid;
    /* Shared with the process: */
    struct line *line;
};

struct proxy *proxy_start(void);
void proxy_stop(struct proxy *proxy);

/* Every connection is cut when so many more bytes have passed this way, those of all together. Later
 * ones get through, or, if the server is `gone`, none before proxy_mend(). */
void proxy_cut(struct proxy *proxy, enum way way, int64_t after, bool gone);
/* From here on whoever is cut is told so before, as by a pooler that has lost its server. */
void proxy_tell(struct proxy *proxy);
/* From here on sessions have numbers that are not the server's: the sign of a pooler. */
void proxy_renumber(struct proxy *proxy);
/* Where messages of the protocol have ended that passed this way since proxy_cut(), counted in bytes; for
 * one connection that was open before. How many there were. */
enum { MOST_STEPS = 256 };
size_t proxy_steps(const struct proxy *proxy, enum way way, int64_t ends[MOST_STEPS]);
/* Has there been a cut since proxy_cut()? */
bool proxy_has_cut(const struct proxy *proxy);
/* Cut no more, and let everybody through again. Has there been a cut since proxy_cut()? */
bool proxy_mend(struct proxy *proxy);

#endif
