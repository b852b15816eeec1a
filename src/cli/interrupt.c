/*
 * Interruption by SIGINT, SIGTERM or SIGHUP: the signal sets a flag that long calls check.
 */
#include <signal.h>
#include <stddef.h>

#include "cli.h"

/* The signal that arrived; 0: none. A signal handler can only reach a global. */
static int caught;

static void on_signal(int signal)
{
    __atomic_store_n(&caught, signal, __ATOMIC_SEQ_CST);
}

const lh_flag *cli_cancel(void)
{
    /* SA_RESETHAND: a second Ctrl-C ends the program at once. No SA_RESTART: a blocked read returns, so
     * that the flag is checked. */
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    struct sigaction before;

    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        /* A signal that the parent process set to be ignored (nohup, background jobs) stays ignored. */
        if (sigaction(signals[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(signals[i], &action, NULL);
    return &caught;
}

bool cli_interrupted(void)
{
    return __atomic_load_n(&caught, __ATOMIC_SEQ_CST) != 0;
}

int cli_interrupted_exit(void)
{
    return 128 + __atomic_load_n(&caught, __ATOMIC_SEQ_CST);
}
