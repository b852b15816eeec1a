/*
 * leasehold __gen: for the build, not for people.
 */
#include <string.h>

#include "generate.h"

static const struct positional positionals[] = {
    {"WHAT", SPEC_CHOICE("man bash zsh fish"), false, false},
    {"DIR", SPEC_FILE, true, false},
    {.meta = NULL},
};

static int run(struct cli *cli, const struct args *args)
{
    const char *what = args->positional[0].text;

    (void)cli;
    if ((strcmp(what, "man") == 0) != (args->n > 1))
        return usage_error(args->command, args->n > 1 ? "only man takes a DIR" : "man needs DIR");
    if (strcmp(what, "man") == 0)
        return gen_man(args->positional[1].text);
    if (strcmp(what, "bash") == 0)
        gen_bash();
    else if (strcmp(what, "zsh") == 0)
        gen_zsh();
    else
        gen_fish();
    return EXIT_DONE;
}

const struct command cmd_gen = {
    .name = "__gen",
    .args = "man DIR | bash | zsh | fish",
    .summary = "make manual pages and completions",
    .text = "Writes the manual pages into DIR, or a completion to standard output.",
    .positionals = positionals,
    .run = run,
    .hidden = true,
    .bare = true,
};
