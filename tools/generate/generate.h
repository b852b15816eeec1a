/*
 * What the build makes from the tables of commands: manual pages and shell completions.
 */
#ifndef LEASEHOLD_CLI_GEN_H
#define LEASEHOLD_CLI_GEN_H

#include "cli/cli.h"

/** Writes leasehold.1 and a page for each command and group into the folder. The exit code. */
int gen_man(const char *folder);

void gen_bash(void);
void gen_zsh(void);
void gen_fish(void);

#endif
