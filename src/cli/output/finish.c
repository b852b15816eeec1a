/*
 * The end of a command: whether its output reached the reader, and what to say if it did not.
 */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

bool cli_reader_gone(void)
{
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};

    return poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

void cli_did(struct cli *cli, const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    vsnprintf(cli->did, sizeof cli->did, format, ap);
    va_end(ap);
}

int cli_finish(const struct cli *cli, int exit)
{
    bool failed_before = ferror(stdout) != 0;
    const char *did = cli->did;
    char why[128];

    errno = 0;
    if (fflush(stdout) == 0 && !failed_before)
        return exit;
    if (did[0] == '\0' && cli->writes && exit == EXIT_DONE)
        did = "the command was carried out";
    bool reader_gone = errno == EPIPE || cli_reader_gone();
    /* `leasehold list | head` ends quietly. After a change the user must hear what was done. */
    if (!reader_gone || did[0] != '\0')
        cli_error(EXIT_FAILED, "could not write to standard output: %s%s%s",
                  reader_gone  ? "the reader has closed the pipe"
                  : errno != 0 ? strerror_r(errno, why, sizeof why)
                               : "an earlier write failed",
                  did[0] != '\0' ? "; " : "", did);
    return exit > EXIT_FAILED ? exit : EXIT_FAILED;
}
