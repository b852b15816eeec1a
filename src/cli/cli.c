#include "cli.h"
#include "cli/output/work_lines.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"

/* ---- words on standard error ----------------------------------------------------------------- */

/* One write for a whole line: lines of several threads or processes do not mix. */
static void put_line(const struct buf *line)
{
    fwrite(line->p, 1, line->n, stderr);
    fflush(stderr);
}

/* With --json. An error may have to be told before there is anything to hang this from. */
static bool told_as_json;

void cli_tell_as_json(char *const *argv)
{
    for (; *argv != NULL && strcmp(*argv, "--") != 0; argv++)
        told_as_json = told_as_json || strcmp(*argv, "--json") == 0;
}

static void say(const char *prefix, const char *text)
{
    struct buf line = {0};

    buf_text(&line, prefix);
    text_visible(&line, text, strlen(text));
    buf_char(&line, '\n');
    put_line(&line);
    buf_clear(&line);
}

/** A refusal or failure, and what helps. */
struct error {
    const char *code, *text;
    int64_t job;         /* 0: it is not about one of several */
    const char *request; /* to repeat with; NULL: none */
    const char *hint;    /* NULL: none */
};

static void put_error_json(const struct error *error)
{
    struct js json = {0};

    js_open(&json, '{');
    js_key(&json, "error");
    js_open(&json, '{');
    js_key_text(&json, "code", error->code);
    js_key_text(&json, "message", error->text);
    if (error->job != 0)
        js_key_int(&json, "job", error->job);
    if (error->request != NULL)
        js_key_text(&json, "request", error->request);
    if (error->hint != NULL)
        js_key_text(&json, "hint", error->hint);
    js_close(&json, '}');
    js_close(&json, '}');
    js_end_line(&json);
    put_line(&json.buf);
    js_clear(&json);
}

static void put_error(const struct error *error)
{
    char request[160];

    /* What was printed before the failure comes before its message when both go to one place. */
    fflush(stdout);
    if (told_as_json) {
        put_error_json(error);
        return;
    }
    say("leasehold: ", error->text);
    if (error->request != NULL) {
        snprintf(request, sizeof request, "request id to repeat with: %s", error->request);
        say("leasehold: ", request);
    }
    if (error->hint != NULL)
        say("leasehold: ", error->hint);
}

/** The code of an error of which only the exit code is known. */
static const char *code_of_exit(int exit)
{
    switch (exit) {
    case EXIT_USAGE:
        return "usage";
    case EXIT_NOTHING:
        return lh_status_code(LH_ENOTFOUND);
    case EXIT_LOST:
        return lh_status_code(LH_ELOST);
    case EXIT_CORRUPT:
        return lh_status_code(LH_ECORRUPT);
    default:
        return lh_status_code(exit > 128 ? LH_EINTR : LH_EFAIL);
    }
}

int cli_error(int exit, const char *format, ...)
{
    char text[4096];
    va_list ap;

    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    put_error(&(struct error){.code = code_of_exit(exit), .text = text});
    return exit;
}

int cli_refused(int status, const char *format, ...)
{
    char text[4096];
    va_list ap;

    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    put_error(&(struct error){.code = lh_status_code(status), .text = text});
    return lh_status_exit(status);
}

void cli_note(const char *format, ...)
{
    char text[4096];
    struct js json = {0};
    va_list ap;

    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    fflush(stdout);
    if (!told_as_json) {
        say("", text);
        return;
    }
    js_open(&json, '{');
    js_key_text(&json, "note", text);
    js_close(&json, '}');
    js_end_line(&json);
    put_line(&json.buf);
    js_clear(&json);
}

bool cli_is_file(const struct cli *cli)
{
    return strcmp(lh_store_kind(cli->url), "sqlite") == 0;
}

int cli_failed(struct cli *cli, int status)
{
    const char *text = lh_errmsg(cli->store), *request = lh_last_request(cli->store);
    struct error error = {.code = lh_status_code(status),
                          .text = text[0] != '\0' ? text : lh_status_text(status)};

    if (status == LH_EINTR)
        return cli_interrupted_exit();
    if (status == LH_EUNKNOWN && request[0] != '\0')
        error.request = request;
    /* Where the library knows what helps, it has said so; what is a server's is not ours to repair. */
    if (status == LH_ECORRUPT && cli_is_file(cli) && strstr(text, "\"leasehold ") == NULL)
        error.hint = "\"leasehold check --repair\" repairs it";
    put_error(&error);
    return lh_status_exit(status);
}

/** What is said of one of several jobs. The handle has one sentence, that of the first failure. */
static void put_job_error(const char *verb, int64_t id, int status, const char *sentence)
{
    char text[160];

    snprintf(text, sizeof text, "could not %s job %" PRId64 ": %s", verb, id,
             status == LH_ENOTFOUND ? "there is no such job" : lh_status_text(status));
    put_error(&(struct error){
        .code = lh_status_code(status), .text = sentence ? sentence : text, .job = id});
}

int cli_failed_jobs(struct cli *cli, const char *verb, const int64_t *ids, const int *status,
                    size_t n, int rc)
{
    struct buf first = {0};
    bool told = false;
    int worst = 0;

    buf_text(&first, lh_errmsg(cli->store));
    for (size_t i = 0; i < n; i++) {
        int code = lh_status_exit(status[i]);
        if (status[i] == LH_OK)
            continue;
        bool is_first = !told && first.n > 0 && status[i] == rc;
        put_job_error(verb, ids[i], status[i], is_first ? buf_str(&first) : NULL);
        told = true;
        if (code > worst)
            worst = code;
    }
    buf_clear(&first);
    /* The act failed as a whole, before any job was judged. */
    return told ? worst : cli_failed(cli, rc);
}

static const char *level_name(int level)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};

    return level >= 0 && level <= LH_LOG_DEBUG ? names[level] : "debug";
}

/** What a line is about, as far as it says. */
static void log_fields(struct js *json, const lh_log_entry *entry)
{
    if (entry->job != 0)
        js_key_int(json, "job", entry->job);
    if (entry->queue != NULL)
        js_key_text(json, "queue", entry->queue);
    if (entry->worker != NULL)
        js_key_text(json, "worker", entry->worker);
    if (entry->token != 0)
        js_key_int(json, "token", entry->token);
    if (entry->attempt != 0)
        js_key_int(json, "attempt", entry->attempt);
    if (entry->reason != NULL)
        js_key_text(json, "reason", entry->reason);
}

/** Thousands of jobs recovered before the eyes of a person: the bar counts them and the report lists
 *  them, a line each would drown both. Whoever wants the lines says --log info. */
static bool told_by_bar(const struct cli *cli, const lh_log_entry *entry)
{
    return cli->progress.on && !cli->log_json && entry->job != 0 && entry->level == LH_LOG_WARN &&
           cli->log_level == LH_LOG_WARN;
}

/** Nobody reads what we say (a stopped terminal, a stuck collector of logs): then it is not said, and
 *  how much of it, when somebody does again. */
static bool may_write(struct cli *cli)
{
    struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
    char note[80];

    if (poll(&out, 1, 0) == 0) {
        __atomic_add_fetch(&cli->unsaid, 1, __ATOMIC_RELAXED);
        return false;
    }
    long unsaid = __atomic_exchange_n(&cli->unsaid, 0, __ATOMIC_RELAXED);
    if (unsaid > 0) {
        int n = snprintf(note, sizeof note, "leasehold: %ld lines were not written: nobody read\n",
                         unsaid);
        (void)!write(STDERR_FILENO, note, (size_t)n);
    }
    return true;
}

static void log_line(void *arg, const lh_log_entry *entry)
{
    struct cli *cli = arg;
    struct js json = {0};

    if (entry->level > cli->log_level || told_by_bar(cli, entry))
        return;
    if (!cli->log_json) {
        buf_format(&json.buf, "leasehold: %s: ", level_name(entry->level));
        text_visible(&json.buf, entry->line, strlen(entry->line));
        buf_char(&json.buf, '\n');
    } else {
        js_open(&json, '{');
        js_key_time(&json, "time", lhi_wall_ms());
        js_key_text(&json, "level", level_name(entry->level));
        js_key_text(&json, "message", entry->line);
        log_fields(&json, entry);
        js_close(&json, '}');
        js_end_line(&json);
    }
    if (cli->never_wait && !may_write(cli)) {
        js_clear(&json);
        return;
    }
    work_lines_make_way(cli->lines);
    progress_wipe(&cli->progress);
    put_line(&json.buf);
    work_lines_come_back(cli->lines);
    js_clear(&json);
}

void cli_log(struct cli *cli, const lh_log_entry *entry)
{
    log_line(cli, entry);
}

/* ---- settings -------------------------------------------------------------------------------- */

/** A variable of the environment; empty is as good as unset. */
static const char *variable(const char *name)
{
    const char *text = getenv(name);

    return text != NULL && text[0] != '\0' ? text : NULL;
}

/** Reads a variable by its spec. False: told why. */
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

/** A store that nobody named is not used if another user may have put it here: it would choose the jobs
 *  that we run. */
static int refuse_planted_store(const struct cli *cli)
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
    return refuse_planted_store(cli);
}

lh_open_opts cli_opts(struct cli *cli, unsigned access)
{
    bool by_hand = (access & ACCESS_RECOVER) != 0;
    bool startup = (access & ACCESS_STARTUP) != 0;
    int64_t heartbeat_ms, multiplier, detection_ms;
    bool recovery;

    cli_worker_settings(cli, &heartbeat_ms, &multiplier, &detection_ms, &recovery);
    /* The config file's interval is for long-running programs, the variable's for all. */
    if (!startup)
        recovery = cli->recovery_interval_ms != 0;
    return (lh_open_opts){
        .read_only = access == ACCESS_READ,
        .create = (access & ACCESS_WRITE) != 0,
        .adopt = (access & ACCESS_ADOPT) == ACCESS_ADOPT,
        .accept_loss = (access & ACCESS_ACCEPT_LOSS) != 0,
        .force_network = cli->force_network,
        .startup = by_hand || startup,
        /* `recover` does it itself, and its report then tells of the store's health too. */
        .recover_later = by_hand || (access & ACCESS_HOLDER) != 0,
        /* Whoever asks for a recovery gets it. */
        .no_recovery = !recovery && !by_hand,
        .no_integrity_check = !cli->config.integrity_check,
        .repair = (access & ACCESS_REPAIR) != 0,
        .max_connections = PROGRAM_CONNECTIONS,
        .durability = cli->config.relaxed ? LH_DURABLE_RELAXED : LH_DURABLE_FULL,
        .log = log_line,
        .log_arg = cli,
    };
}

int cli_open(struct cli *cli, unsigned access)
{
    lh_open_opts opts = cli_opts(cli, access);
    int rc = lh_open(cli->url, &opts, &cli->store);

    cli->writes = (access & ACCESS_WRITE) != 0;
    if (rc == LH_OK)
        return refuse_planted_store(cli); /* once more: it may have been put there meanwhile */
    if (cli->store == NULL)
        return cli_error(EXIT_FAILED, "out of memory");
    return cli_failed(cli, rc);
}

const char *cli_default_worker(char *buf, size_t len)
{
    const char *user = variable("USER");
    char host[65] = "";
    char room[1024];
    char uid[24];
    struct passwd entry, *found = NULL;
    size_t most = len < 129 ? len : 129; /* a name has at most 128 bytes */

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

/* ---- interruption ---------------------------------------------------------------------------- */

/* A signal handler has nothing to hang its state from: the one mutable global of the program. */
static int caught;

static void on_signal(int signal)
{
    __atomic_store_n(&caught, signal, __ATOMIC_SEQ_CST);
}

const lh_flag *cli_cancel(void)
{
    /* Reset after the first: a second Ctrl-C always ends the program. No restart: a read from the
     * terminal comes back, so that the flag is looked at. */
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    struct sigaction before;

    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        /* What the caller told us to ignore (nohup, a job in the background) stays ignored. */
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

/* ---- standard input and output --------------------------------------------------------------- */

bool cli_read_stdin(struct buf *out, size_t most, const char *what)
{
    char chunk[65536];

    for (;;) {
        ssize_t n = read(STDIN_FILENO, chunk, sizeof chunk);
        if (n == 0)
            return true;
        if (n < 0 && errno == EINTR && !cli_interrupted())
            continue;
        if (n < 0) {
            char why[128];
            const char *text = strerror_r(errno, why, sizeof why);
            cli_error(EXIT_FAILED, "could not read standard input: %s", text);
            return false;
        }
        buf_add(out, chunk, (size_t)n);
        if (out->n > most) {
            cli_error(EXIT_USAGE, "%s on standard input is too large: allowed: at most %zu bytes",
                      what, most);
            return false;
        }
    }
}

bool cli_reader_gone(void)
{
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};

    return poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

void cli_did(struct cli *cli, const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    vsnprintf(cli->did, sizeof cli->did, format, ap);
    va_end(ap);
}

int cli_finish(const struct cli *cli, int exit)
{
    bool failed_before = ferror(stdout) != 0;
    const char *did = cli->did;
    char why[128];

    errno = 0;
    if (fflush(stdout) == 0 && !failed_before)
        return exit;
    if (did[0] == '\0' && cli->writes && exit == EXIT_DONE)
        did = "the command was carried out";
    bool reader_gone = errno == EPIPE || cli_reader_gone();
    /* Whoever reads no more wants no more words, unless something was done. */
    if (!reader_gone || did[0] != '\0')
        cli_error(EXIT_FAILED, "could not write to standard output: %s%s%s",
                  reader_gone  ? "the reader is gone"
                  : errno != 0 ? strerror_r(errno, why, sizeof why)
                               : "an earlier write failed",
                  did[0] != '\0' ? "; " : "", did);
    return exit > EXIT_FAILED ? exit : EXIT_FAILED;
}
