/*
 * A session in a child process that dies somewhere on its way, and what is demanded afterwards:
 * everything acknowledged is there, nothing is torn, and the act that was under way is done, or
 * done once by a repeat under its identity. Then the session goes on to its end as if nothing had
 * happened.
 */
#ifndef AFTERMATH_H
#define AFTERMATH_H

#include "session/session.h"

#include <sys/types.h>

/* Shared with the child; survives it. */
struct logbook {
    size_t done; /* this many calls were acknowledged, and returned `notes` */
    struct notes notes;
};

struct logbook *logbook_new(void);

/* In the child: perform the session and record its calls; suspend itself before call `pause_at`. */
enum { NO_PAUSE = 1000000 };
void play(const char *path, struct logbook *book, size_t pause_at);

/* In the parent, after the child has died. `where` is for the message of a failure. */
void aftermath(const struct reference *ref, const char *path, const struct logbook *book,
               const char *where);

#endif
