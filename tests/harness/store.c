/*
 * The store of a test: a file in its directory, or a fresh database of a server.
 *
 * $TEST_STORES names a socket of tests/postgres/run.py. Each connection to it gets the URL of a database. The
 * connection is closed when the last process of the test has ended, and the database is then made fresh again.
 * The runner asks for it before the test starts, because all processes of the test share it.
 */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static char this_store[1024];

static int ask(const char *where)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (strlen(where) >= sizeof address.sun_path)
        FAIL("TEST_STORES is too long: %s", where);
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", where);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&address, sizeof address) != 0)
        FAIL("nobody hands out stores at %s", where);
    return fd; /* not closed: see above */
}

static void take_database(const char *where)
{
    int fd = ask(where);
    size_t len = 0;
    ssize_t n;

    while ((n = read(fd, this_store + len, sizeof this_store - 1 - len)) > 0) {
        len += (size_t)n;
        this_store[len] = '\0';
        if (this_store[len - 1] == '\n')
            break;
    }
    if (len == 0 || this_store[len - 1] != '\n')
        FAIL("no store was handed out");
    this_store[len - 1] = '\0';
    if (!test_store_is_postgres())
        FAIL("no store was handed out: %s", this_store);
}

void test_store_renew(void)
{
    static int files;
    const char *where = getenv("TEST_STORES");

    if (where != NULL)
        take_database(where);
    else
        (void)snprintf(this_store, sizeof this_store, "s%.0d.db", files++); /* s.db, s1.db … */
}

const char *test_store(void)
{
    if (this_store[0] == '\0')
        FAIL("no store was taken before the test");
    return this_store;
}

bool test_store_is_postgres(void)
{
    return strncmp(this_store, "postgresql://", 13) == 0;
}
