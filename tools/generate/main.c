/*
 * The build runs this program to make manual pages and shell completions:
 *
 *     generate man DIR | bash | zsh | fish
 */
#include <string.h>

#include "generate.h"

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";

    if (argc == 3 && strcmp(what, "man") == 0)
        return generate_manual(argv[2]);
    if (argc == 2 && strcmp(what, "bash") == 0)
        generate_bash();
    else if (argc == 2 && strcmp(what, "zsh") == 0)
        generate_zsh();
    else if (argc == 2 && strcmp(what, "fish") == 0)
        generate_fish();
    else
        return cli_error(EXIT_USAGE, "usage: generate man DIR | bash | zsh | fish");
    return fflush(stdout) == 0 ? EXIT_DONE : EXIT_FAILED;
}
