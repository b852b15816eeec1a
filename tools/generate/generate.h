/*
 * The documents that the build makes from the tables of commands: manual pages and shell completions.
 */
#ifndef LEASEHOLD_GENERATE_H
#define LEASEHOLD_GENERATE_H

#include "cli/cli.h"

/** Writes leasehold.1 and a page for each command and group into the folder. Returns the exit code. */
int generate_manual(const char *folder);

/* Write a completion to standard output. */
void generate_bash(void);
void generate_zsh(void);
void generate_fish(void);

#endif
