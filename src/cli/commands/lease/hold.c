/*
 * leasehold lease acquire, extend, release, complete: what the owner of a named lease does.
 */
#include <inttypes.h>

#include "lease.h"

/* clang-format off: one a line, as a table */
#define OPTION_OWNER                                 \
    {                                                \
        "owner", 'o', "W", SPEC_NAME, 0, "the owner" \
    }
#define OPTION_TOKEN                                            \
    {                                                           \
        "token", 't', "T", SPEC_ID, 0, "the token of the lease" \
    }
#define OPTION_VALUE                                             \
    {                                                            \
        "value", 'v', "JSON", SPEC_JSON(0), 0,                   \
            "a value, kept with the lease and after its release" \
    }
/* clang-format on */

/** With --json prints the lease as it is after an act. */
static void print_after(const struct cli *cli, const lh_leases *leases)
{
    for (size_t i = 0; cli->json && leases != NULL && i < leases->n; i++)
        lease_print_json(&leases->lease[i]);
}

/** Finds the owner by the token, for a call that needs an owner. Only the owner was given the
 *  token. The call compares the token again, so the lease cannot change hands unnoticed in
 *  between. */
static int find_owner(struct cli *cli, const struct lease_name *name, int64_t token, int nobody,
                      struct buf *owner)
{
    lh_leases *leases = NULL;
    int rc = lh_lease_get(cli->store, name->scope, name->name, &leases);
    int exit = 0;

    if (rc != LH_OK && rc != LH_ENOTFOUND) {
        exit = cli_failed(cli, rc);
    } else if (rc == LH_ENOTFOUND || leases->lease[0].owner == NULL) {
        exit = cli_error(nobody, "lease \"%s/%s\" is held by nobody", name->scope, name->name);
    } else if (leases->lease[0].token != token) {
        exit = cli_error(EXIT_LOST,
                         "lease \"%s/%s\" is no longer held under token %" PRId64
                         ": it is held by \"%s\"",
                         name->scope, name->name, token, leases->lease[0].owner);
    } else {
        buf_text(owner, leases->lease[0].owner);
    }
    lh_leases_free(leases);
    return exit;
}

/* ---- acquire --------------------------------------------------------------------------------- */

enum { ACQUIRE_OWNER, ACQUIRE_TTL, ACQUIRE_VALUE };

static const struct option acquire_options[] = {
    [ACQUIRE_OWNER] = {"owner", 'o', "W", SPEC_NAME, 0,
                       "the owner (default: a name unique to this call)"},
    [ACQUIRE_TTL] = {"ttl", 0, "D", SPEC_LEASE_TIME, 0,
                     "how long to hold it, up to 30d (default: the scope's, else 5m)"},
    [ACQUIRE_VALUE] = OPTION_VALUE,
    {.name = NULL},
};

static int run_acquire(struct cli *cli, const struct args *args)
{
    const struct value *opt = args->option;
    struct lease_name name = lease_name_of(args);
    lh_lease_opts opts = {
        .owner = opt[ACQUIRE_OWNER].text,
        .ttl_ms = opt[ACQUIRE_TTL].num,
        .value = opt[ACQUIRE_VALUE].text,
    };
    lh_leases *leases = NULL;
    int exit = cli_open(cli, ACCESS_WRITE);
    int rc;

    if (exit != 0)
        return exit;
    rc = lh_lease_acquire(cli->store, name.scope, name.name, &opts, &leases);
    if (rc == LH_OK)
        cli_did(cli, "lease \"%.380s\" was acquired under token %" PRId64, args->positional[0].text,
                leases->lease[0].token);
    if (rc != LH_OK)
        exit = cli_failed(cli, rc);
    else if (cli->json)
        print_after(cli, leases);
    else
        printf("%" PRId64 "\n", leases->lease[0].token);
    lh_leases_free(leases);
    return exit;
}

static const struct example acquire_examples[] = {
    {"leasehold lease acquire sync/chunk-7 --owner w-1 --ttl 2m", "hold it for two minutes"},
    {"token=$(leasehold lease acquire deploy/web) && ./deploy && leasehold lease release "
     "deploy/web --token $token",
     "one deployment at a time"},
    {.line = NULL},
};

static const struct exit_note acquire_exits[] = {
    {"another owner holds it", 4},
    {.when = NULL},
};

const struct command cmd_lease_acquire = {
    .group = "lease",
    .name = "acquire",
    .args = "SCOPE/NAME [--owner W] [--ttl D] [--value JSON]",
    .summary = "acquire a named lease",
    .text = "Acquires the named lease and prints its token. It succeeds if the lease is free or "
            "expired, or if --owner holds it already; then it is extended.",
    .positionals = lease_positionals,
    .options = acquire_options,
    .examples = acquire_examples,
    .exits = acquire_exits,
    .run = run_acquire,
};

/* ---- extend ---------------------------------------------------------------------------------- */

enum { EXTEND_OWNER, EXTEND_TOKEN, EXTEND_TTL, EXTEND_BY, EXTEND_VALUE };

static const struct option extend_options[] = {
    [EXTEND_OWNER] = OPTION_OWNER,
    [EXTEND_TOKEN] = OPTION_TOKEN,
    [EXTEND_TTL] = {"ttl", 0, "D", SPEC_LEASE_TIME, 0, "extend it to now plus this"},
    [EXTEND_BY] = {"by", 0, "D", SPEC_LEASE_TIME, 0, "add this to its expiry"},
    [EXTEND_VALUE] = OPTION_VALUE,
    {.name = NULL},
};

/** Opens the store and determines the owner. `nobody` is the exit code if the lease has no
 *  owner. */
static int holder(struct cli *cli, const struct args *args, const struct lease_name *name,
                  const struct value *owner, const struct value *token, int nobody,
                  lh_lease_opts *opts, struct buf *found)
{
    int exit;

    if (!owner->given && !token->given)
        return usage_error(args->command, "lease %s needs --owner W or --token T",
                           args->command->name);
    exit = cli_open(cli, ACCESS_WRITE | ACCESS_HOLDER);
    if (exit == 0 && !owner->given)
        exit = find_owner(cli, name, token->num, nobody, found);
    opts->owner = owner->given ? owner->text : buf_str(found);
    opts->token = token->num;
    return exit;
}

static int run_extend(struct cli *cli, const struct args *args)
{
    const struct value *opt = args->option;
    struct lease_name name = lease_name_of(args);
    lh_lease_opts opts = {
        .ttl_ms = opt[EXTEND_TTL].num,
        .by_ms = opt[EXTEND_BY].num,
        .value = opt[EXTEND_VALUE].text,
    };
    lh_leases *leases = NULL;
    struct buf owner = {0};
    int exit, rc;

    if (opt[EXTEND_TTL].given && opt[EXTEND_BY].given)
        return usage_error(args->command,
                           "--ttl and --by exclude each other: allowed: one of them");
    exit =
        holder(cli, args, &name, &opt[EXTEND_OWNER], &opt[EXTEND_TOKEN], EXIT_LOST, &opts, &owner);
    if (exit == 0) {
        rc = lh_lease_extend(cli->store, name.scope, name.name, &opts, &leases);
        if (rc != LH_OK)
            exit = cli_failed(cli, rc);
        else
            print_after(cli, leases);
    }
    lh_leases_free(leases);
    buf_clear(&owner);
    return exit;
}

static const struct example extend_examples[] = {
    {"leasehold lease extend sync/chunk-7 --owner w-1 --ttl 2m", "to two minutes from now"},
    {.line = NULL},
};

static const struct exit_note extend_exits[] = {
    {"the lease is lost: it is expired, free, or held by another", 4},
    {.when = NULL},
};

const struct command cmd_lease_extend = {
    .group = "lease",
    .name = "extend",
    .args = "SCOPE/NAME (--owner W | --token T) [--ttl D | --by D] [--value JSON]",
    .summary = "extend a named lease",
    .text = "Extends a held lease: to now plus --ttl, or by --by beyond its expiry. Without "
            "either it extends to now plus the default of the scope. It is refused after the lease "
            "has expired.",
    .positionals = lease_positionals,
    .options = extend_options,
    .examples = extend_examples,
    .exits = extend_exits,
    .run = run_extend,
};

/* ---- release --------------------------------------------------------------------------------- */

enum { RELEASE_OWNER, RELEASE_TOKEN };

static const struct option release_options[] = {
    [RELEASE_OWNER] = OPTION_OWNER,
    [RELEASE_TOKEN] = OPTION_TOKEN,
    {.name = NULL},
};

static int run_release(struct cli *cli, const struct args *args)
{
    const struct value *opt = args->option;
    struct lease_name name = lease_name_of(args);
    lh_lease_opts opts = {0};
    lh_leases *leases = NULL;
    struct buf owner = {0};
    bool released = false;
    int exit, rc;

    exit = holder(cli, args, &name, &opt[RELEASE_OWNER], &opt[RELEASE_TOKEN], EXIT_NOTHING, &opts,
                  &owner);
    if (exit == 0) {
        rc = lh_lease_release(cli->store, name.scope, name.name, &opts, &released);
        if (rc != LH_OK)
            exit = cli_failed(cli, rc);
        else if (!released)
            exit =
                cli_error(EXIT_NOTHING, "lease \"%s/%s\" is held by nobody", name.scope, name.name);
        else if (cli->json && lh_lease_get(cli->store, name.scope, name.name, &leases) == LH_OK)
            print_after(cli, leases);
        else if (cli->json)
            lease_print_json(&(lh_lease){.scope = name.scope, .name = name.name, .rows = -1});
    }
    lh_leases_free(leases);
    buf_clear(&owner);
    return exit;
}

static const struct example release_examples[] = {
    {"leasehold lease release sync/chunk-7 --owner w-1", "another owner can acquire it now"},
    {.line = NULL},
};

static const struct exit_note release_exits[] = {
    {"the lease is free already", 3},
    {"another owner holds it", 4},
    {.when = NULL},
};

const struct command cmd_lease_release = {
    .group = "lease",
    .name = "release",
    .args = "SCOPE/NAME (--owner W | --token T)",
    .summary = "release a named lease",
    .text = "Releases a lease before it expires. Repeating it is harmless.",
    .positionals = lease_positionals,
    .options = release_options,
    .examples = release_examples,
    .exits = release_exits,
    .run = run_release,
};

/* ---- complete -------------------------------------------------------------------------------- */

enum { COMPLETE_OWNER, COMPLETE_TOKEN, COMPLETE_ROWS, COMPLETE_VALUE };

static const struct option complete_options[] = {
    [COMPLETE_OWNER] = OPTION_OWNER,
    [COMPLETE_TOKEN] = OPTION_TOKEN,
    [COMPLETE_ROWS] = {"rows", 'r', "N", SPEC_INT(0, VALUE_ID_MAX), 0,
                       "the number of processed rows, kept with the lease"},
    [COMPLETE_VALUE] = OPTION_VALUE,
    {.name = NULL},
};

static int run_complete(struct cli *cli, const struct args *args)
{
    const struct value *opt = args->option;
    struct lease_name name = lease_name_of(args);
    lh_lease_opts opts = {
        .rows = opt[COMPLETE_ROWS].num,
        .has_rows = opt[COMPLETE_ROWS].given > 0,
        .value = opt[COMPLETE_VALUE].text,
    };
    lh_leases *leases = NULL;
    struct buf owner = {0};
    int exit, rc;

    exit = holder(cli, args, &name, &opt[COMPLETE_OWNER], &opt[COMPLETE_TOKEN], EXIT_LOST, &opts,
                  &owner);
    if (exit == 0) {
        rc = lh_lease_complete(cli->store, name.scope, name.name, &opts, &leases);
        if (rc != LH_OK)
            exit = cli_failed(cli, rc);
        else
            print_after(cli, leases);
    }
    lh_leases_free(leases);
    buf_clear(&owner);
    return exit;
}

static const struct example complete_examples[] = {
    {"leasehold lease complete sync/chunk-7 --owner w-1 --rows 5000", "the chunk is done"},
    {.line = NULL},
};

const struct command cmd_lease_complete = {
    .group = "lease",
    .name = "complete",
    .args = "SCOPE/NAME (--owner W | --token T) [--rows N] [--value JSON]",
    .summary = "release a named lease after its work is done",
    .text = "Releases a lease whose work is done. Keeps the number of rows, the value and the "
            "time with the lease.",
    .positionals = lease_positionals,
    .options = complete_options,
    .examples = complete_examples,
    .exits = extend_exits,
    .run = run_complete,
};
