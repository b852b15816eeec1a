/*
 * Standard input, read whole: for a payload or result given as `-`.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

bool cli_read_stdin(struct buf *out, size_t most, const char *what)
{
    char chunk[65536];

    for (;;) {
        ssize_t n = read(STDIN_FILENO, chunk, sizeof chunk);
        if (n == 0)
            return true;
        if (n < 0 && errno == EINTR && !cli_interrupted())
            continue;
        if (n < 0) {
            char why[128];
            const char *text = strerror_r(errno, why, sizeof why);
            cli_error(EXIT_FAILED, "could not read standard input: %s", text);
            return false;
        }
        buf_add(out, chunk, (size_t)n);
        if (out->n > most) {
            cli_error(EXIT_USAGE, "%s on standard input is too large: allowed: at most %zu bytes",
                      what, most);
            return false;
        }
    }
}
