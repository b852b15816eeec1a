/*
 * Replaces screen.c in a build without ncurses.
 */
#include "top.h"

int top_screen(struct top *top)
{
    (void)top;
    return cli_error(EXIT_FAILED, "this program was built without ncurses, so there is no screen: "
                                  "use \"leasehold top --once\"");
}
