/*
 * notify.h: messages to the service manager: the protocol of sd_notify(3), without its library.
 *
 * Nothing here fails: a worker works whether or not a service manager listens. The environment is read
 * at each call, so a forked child is recognized by its own pid.
 */
#ifndef LHI_NOTIFY_H
#define LHI_NOTIFY_H

#include <stdint.h>

/* Send assignments, one per line ("READY=1\nSTATUS=…"), to $NOTIFY_SOCKET. Never blocks. */
void lhi_notify(const char *state);

/* The interval of the watchdog: the service manager kills this process if it sends no "WATCHDOG=1" for this
 * long; 0: there is none. */
int64_t lhi_notify_watchdog_ms(void);

#endif
