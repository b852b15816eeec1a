/*
 * What the commands on named leases share.
 */
#ifndef LEASEHOLD_CLI_LEASE_H
#define LEASEHOLD_CLI_LEASE_H

#include "cli/cli.h"

/* The two parts of SCOPE/NAME. */
struct lease_name {
    char scope[129];
    const char *name;
};

/** Splits the first argument, which the parser has checked. */
struct lease_name lease_name_of(const struct args *args);

/** Prints a lease as a line of JSON. */
void lease_print_json(const lh_lease *lease);

/* The first argument: SCOPE/NAME. */
extern const struct positional lease_positionals[];

#endif
