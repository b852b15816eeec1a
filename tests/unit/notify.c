/* Messages to the service manager, received at a real socket. */
#include "base/notify.h"
#include "harness/harness.h"

#include <dirent.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Open a socket like that of a service manager: a path, or @NAME for an abstract socket. */
static int listen_at(const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    EXPECT(strlen(name) < sizeof address.sun_path);
    memcpy(address.sun_path, name, strlen(name));
    if (name[0] == '@')
        address.sun_path[0] = '\0';
    if (bind(fd, (struct sockaddr *)&address,
             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name))) != 0)
        FAIL("could not listen at %s: %s", name, strerror(errno));
    setenv("NOTIFY_SOCKET", name, 1);
    return fd;
}

/* The next message; "": there is none. */
static const char *heard(int fd, char *buf, size_t len)
{
    ssize_t n = recv(fd, buf, len - 1, 0);

    buf[n > 0 ? n : 0] = '\0';
    return buf;
}

static int open_files(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;

    EXPECT(dir != NULL);
    while (readdir(dir) != NULL)
        n++;
    closedir(dir);
    return n;
}

TEST(a_message_to_the_service_manager_arrives_at_a_path)
{
    char path[200], text[100];
    snprintf(path, sizeof path, "%s/manager", test_tmpdir());
    int fd = listen_at(path);
    int before = open_files();

    lhi_notify("READY=1\nSTATUS=waiting");
    EXPECT_STR(heard(fd, text, sizeof text), "READY=1\nSTATUS=waiting");
    lhi_notify("WATCHDOG=1");
    EXPECT_STR(heard(fd, text, sizeof text), "WATCHDOG=1");
    EXPECT_STR(heard(fd, text, sizeof text), "");
    EXPECT_EQ(open_files(), before);
}

TEST(a_message_to_the_service_manager_arrives_at_an_abstract_socket)
{
    char name[64], text[100];
    snprintf(name, sizeof name, "@leasehold-test-%ld", (long)getpid());
    int fd = listen_at(name);

    lhi_notify("STOPPING=1");
    EXPECT_STR(heard(fd, text, sizeof text), "STOPPING=1");
}

TEST(a_service_manager_that_does_not_read_blocks_no_caller)
{
    char path[200], text[100];
    snprintf(path, sizeof path, "%s/manager", test_tmpdir());
    int fd = listen_at(path);
    int kept = 0;

    for (int i = 0; i < 5000; i++)
        lhi_notify("WATCHDOG=1");
    while (heard(fd, text, sizeof text)[0] != '\0')
        kept++;
    EXPECT(kept > 0);
    EXPECT(kept <
           5000); /* otherwise the queue of the socket was never full, and the test shows nothing */
}

TEST(without_a_service_manager_a_message_is_dropped)
{
    static const char *const names[] = {
        "", "/", "@", "relative", "vsock:2:1234", "/no/such/socket"};
    char path[200], most[400], text[100];
    snprintf(path, sizeof path, "%s/manager", test_tmpdir());
    int fd = listen_at(path);
    int before = open_files();

    unsetenv("NOTIFY_SOCKET");
    errno = EXDEV;
    lhi_notify("READY=1");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        setenv("NOTIFY_SOCKET", names[i], 1);
        lhi_notify("READY=1");
    }
    memset(most, 'x', sizeof most - 1);
    most[0] = '/';
    most[sizeof most - 1] = '\0';
    setenv("NOTIFY_SOCKET", most, 1);
    lhi_notify("READY=1");
    EXPECT_EQ(errno, EXDEV);
    EXPECT_STR(heard(fd, text, sizeof text), "");
    EXPECT_EQ(open_files(), before);
}

static int64_t watchdog(const char *us, const char *pid)
{
    setenv("WATCHDOG_USEC", us, 1);
    if (pid != NULL)
        setenv("WATCHDOG_PID", pid, 1);
    else
        unsetenv("WATCHDOG_PID");
    return lhi_notify_watchdog_ms();
}

TEST(the_watchdog_belongs_to_the_pid_that_it_names)
{
    char me[24], parent[24];
    snprintf(me, sizeof me, "%ld", (long)getpid());
    snprintf(parent, sizeof parent, "%ld", (long)getppid());

    EXPECT_EQ(lhi_notify_watchdog_ms(), 0);
    EXPECT_EQ(watchdog("30000000", NULL), 30000);
    EXPECT_EQ(watchdog("30000000", me), 30000);
    EXPECT_EQ(watchdog("30000000", parent), 0);
    EXPECT_EQ(watchdog("30000000", ""), 0);
    EXPECT_EQ(watchdog("1", NULL), 1);
    EXPECT_EQ(watchdog("9223372036854775807", NULL), INT64_C(9223372036854775));
}

TEST(a_watchdog_interval_that_is_no_number_is_ignored)
{
    static const char *const bad[] = {
        "", "0", "-5", "+5", " 5", "5s", "0x10", "1e6", "9223372036854775808"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        EXPECT_EQ(watchdog(bad[i], NULL), 0);
}
