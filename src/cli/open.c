/*
 * Opening the store for a command.
 */
#include "cli.h"

lh_open_opts cli_opts(struct cli *cli, unsigned access)
{
    bool by_hand = (access & ACCESS_RECOVER) != 0;
    bool startup = (access & ACCESS_STARTUP) != 0;
    int64_t heartbeat_ms, multiplier, detection_ms;
    bool recovery;

    cli_worker_settings(cli, &heartbeat_ms, &multiplier, &detection_ms, &recovery);
    /* The interval of the config file is for long-running commands only; the variable's is for all. */
    if (!startup)
        recovery = cli->recovery_interval_ms != 0;
    return (lh_open_opts){
        .read_only = access == ACCESS_READ,
        .create = (access & ACCESS_WRITE) != 0,
        .adopt = (access & ACCESS_ADOPT) == ACCESS_ADOPT,
        .accept_loss = (access & ACCESS_ACCEPT_LOSS) != 0,
        .force_network = cli->force_network,
        .startup = by_hand || startup,
        /* `leasehold recover` runs the recovery itself: its report includes the check of the store. */
        .recover_later = by_hand || (access & ACCESS_HOLDER) != 0,
        /* An explicit `leasehold recover` runs even if automatic recovery is off. */
        .no_recovery = !recovery && !by_hand,
        .no_integrity_check = !cli->config.integrity_check,
        .repair = (access & ACCESS_REPAIR) != 0,
        .max_connections = PROGRAM_CONNECTIONS,
        .durability = cli->config.relaxed ? LH_DURABLE_RELAXED : LH_DURABLE_FULL,
        .log = cli_log_line,
        .log_arg = cli,
    };
}

int cli_open(struct cli *cli, unsigned access)
{
    lh_open_opts opts = cli_opts(cli, access);
    int rc = lh_open(cli->url, &opts, &cli->store);

    cli->writes = (access & ACCESS_WRITE) != 0;
    if (rc == LH_OK)
        return cli_refuse_planted_store(cli); /* it may have appeared since the first check */
    if (cli->store == NULL)
        return cli_error(EXIT_FAILED, "out of memory");
    return cli_failed(cli, rc);
}
