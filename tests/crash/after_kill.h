/*
 * A session in a child process that is killed at some point, and the checks afterwards: every acknowledged
 * change is there, no call is half done, and the interrupted call is done, or is done once by a repeat with
 * the same request id. Then the session continues to its end.
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
