/*
 * leasehold: the program. Reads the command line, the environment and the config file, runs one
 * command, and makes sure that what it printed got out.
 */
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "cli.h"

/**
 * Standard streams that the caller closed are taken by something harmless, of the wrong direction:
 * using them still fails, but the store's files cannot come to stand where our words would go.
 */
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
    /* A reader that goes away is noticed where we write, not by a signal in mid-act. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error to tell, not a death */
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
