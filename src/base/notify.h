/* The service manager's wish to know: the protocol of sd_notify(3), without its library.
 *
 * Nothing here fails: a worker does its work whether or not somebody listens. The environment is read
 * at each call, so that nothing is kept and a forked child is judged by its own pid. */
#ifndef LHI_NOTIFY_H
#define LHI_NOTIFY_H

#include <stdint.h>

/* Send assignments, one a line ("READY=1\nSTATUS=…"), to $NOTIFY_SOCKET; never blocks. */
void lhi_notify(const char *state);

/* So long may this process be without "WATCHDOG=1" before it is killed; 0: no limit. */
int64_t lhi_notify_watchdog_ms(void);

#endif
