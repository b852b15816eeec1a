/*
 * Settings from the command line, the environment and the config file, in this order of precedence.
 */
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"

/** An environment variable; NULL if it is unset or empty. */
static const char *variable(const char *name)
{
    const char *text = getenv(name);

    return text != NULL && text[0] != '\0' ? text : NULL;
}

/** Reads a variable by its spec. False: the reason was printed. */
static bool read_variable(const char *name, const struct value_spec *spec, struct value *value)
{
    const char *text = variable(name);
    char why[VALUE_WHY];
    char shown[128];

    if (text == NULL)
        return true;
    if (!value_parse(spec, text, value, why)) {
        cli_error(EXIT_USAGE, "environment variable %s: value %s %s", name,
                  value_quote(text, shown, sizeof shown), why);
        return false;
    }
    value->given = 1;
    return true;
}

static const struct value_spec log_levels = SPEC_CHOICE("error warn info debug");
static const struct value_spec log_formats = SPEC_CHOICE("text json");
static const struct value_spec intervals = SPEC_INT(0, VALUE_DAY);

static const char DEFAULT_STORE[] = "leasehold.db";

int cli_refuse_planted_store(const struct cli *cli)
{
    struct stat file;

    if (cli->url != DEFAULT_STORE || lstat(cli->url, &file) != 0 || !config_is_planted(&file))
        return 0;
    return cli_error(EXIT_USAGE,
                     "store \"%s\" belongs to user %lu, who may have put it there: remove it, or "
                     "name it with --store",
                     cli->url, (unsigned long)file.st_uid);
}

int cli_settings(struct cli *cli, const struct args *args)
{
    struct value log = {0}, format = {0}, interval = {0};
    const char *named = args->global[GLOBAL_CONFIG].text;
    const char *path;

    cli->command = args->command;
    cli->json = args->global[GLOBAL_JSON].given > 0;
    cli->force_network = args->global[GLOBAL_NETWORK].given > 0;
    cli->log_level = LH_LOG_WARN;
    cli->recovery_interval_ms = -1;
    if (!read_variable("LEASEHOLD_LOG", &log_levels, &log) ||
        !read_variable("LEASEHOLD_LOG_FORMAT", &log_formats, &format) ||
        !read_variable("LEASEHOLD_RECOVERY_INTERVAL", &intervals, &interval))
        return EXIT_USAGE;
    if (args->global[GLOBAL_LOG].given)
        log = args->global[GLOBAL_LOG];
    cli->log_given = log.given > 0;
    if (log.given)
        cli->log_level = (int)log.num - 1;
    cli->log_json = format.given ? format.num == 2 : cli->json;
    if (interval.given)
        cli->recovery_interval_ms = interval.num;

    if (named == NULL)
        named = variable("LEASEHOLD_CONFIG");
    path = named ? named : "leasehold.yaml";
    if (!config_load(&cli->config, path, named != NULL))
        return EXIT_USAGE;

    cli->url = args->global[GLOBAL_STORE].text;
    if (cli->url == NULL)
        cli->url = variable("LEASEHOLD_STORE");
    if (cli->url == NULL)
        cli->url = cli->config.store;
    if (cli->url == NULL)
        cli->url = DEFAULT_STORE;
    return cli_refuse_planted_store(cli);
}

const char *cli_default_worker(char *buf, size_t len)
{
    const char *user = variable("USER");
    char host[65] = "";
    char room[1024];
    char uid[24];
    struct passwd entry, *found = NULL;
    size_t most =
        len < 129 ? len : 129; /* a name has at most 128 bytes, plus the terminating zero */

    if (user == NULL && getpwuid_r(geteuid(), &entry, room, sizeof room, &found) == 0 &&
        found != NULL)
        user = found->pw_name;
    if (user == NULL || user[0] == '\0') {
        snprintf(uid, sizeof uid, "%ld", (long)geteuid());
        user = uid;
    }
    if (gethostname(host, sizeof host - 1) != 0 || host[0] == '\0')
        snprintf(host, sizeof host, "localhost");
    snprintf(buf, most, "%.60s@%s", user, host);
    for (char *p = buf; *p != '\0'; p++) {
        char one[2] = {*p, '\0'};
        if (!lh_name_ok(one))
            *p = '-';
    }
    return buf;
}
