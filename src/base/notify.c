/* notify.c: messages to the service manager (sd_notify). */
#include "base/notify.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Parse $NOTIFY_SOCKET: a path, or @NAME for an abstract socket. Returns the length; 0: invalid or too long. */
static socklen_t notify_address(struct sockaddr_un *address)
{
    const char *name = getenv("NOTIFY_SOCKET");
    size_t len = name != NULL ? strlen(name) : 0;

    if (len < 2 || len >= sizeof address->sun_path || (name[0] != '/' && name[0] != '@'))
        return 0;
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(address->sun_path, name, len);
    if (name[0] == '@')
        address->sun_path[0] = '\0';
    /* Do not count a final zero: in the name of an abstract socket it would be part of the name. */
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
}

void lhi_notify(const char *state)
{
    struct sockaddr_un address;
    socklen_t len = notify_address(&address);
    int before = errno;
    int fd = len > 0 ? socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0) : -1;

    if (fd >= 0) {
        sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&address, len);
        close(fd);
    }
    errno = before;
}

/* Parse a positive decimal number; 0: the text is something else. */
static int64_t positive(const char *text)
{
    char *end;
    long long number;
    bool digits = text != NULL && text[0] >= '0' && text[0] <= '9';
    int before = errno;

    if (!digits)
        return 0;
    errno = 0;
    number = strtoll(text, &end, 10);
    if (*end != '\0' || errno != 0)
        number = 0;
    errno = before;
    return number;
}

int64_t lhi_notify_watchdog_ms(void)
{
    const char *whose = getenv("WATCHDOG_PID");
    int64_t us = positive(getenv("WATCHDOG_USEC"));

    /* The watchdog is that of a parent process, which passed on its environment. */
    if (us == 0 || (whose != NULL && positive(whose) != (int64_t)getpid()))
        return 0;
    return us < 1000 ? 1 : us / 1000;
}
