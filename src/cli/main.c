/*
 * leasehold: reads the command line, the environment and the config file, runs one command, and
 * checks that its output was written.
 */
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "cli.h"

/** Opens /dev/null for each standard stream that the caller has closed, in the wrong direction, so
 *  that using the stream still fails. Otherwise a file of the store could get descriptor 1 or 2,
 *  and our output would be written into it. */
static void keep_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            (void)!open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

int main(int argc, char **argv)
{
    struct cli cli = {0};
    struct args args = {0};
    int exit;

    keep_standard_streams();
    /* Ignore SIGPIPE: a failed write is reported, and a signal could interrupt a change. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* report a file size limit as an error */
    cli_errors_as_json(argv);
    exit = args_parse(argc, argv, &args);
    if (exit < 0 && !args.command->bare)
        exit = cli_settings(&cli, &args) != 0 ? EXIT_USAGE : -1;
    if (exit < 0)
        exit = args.command->run(&cli, &args);
    exit = cli_finish(&cli, exit);
    lh_close(cli.store);
    config_clear(&cli.config);
    args_clear(&args);
    return exit;
}
