/*
 * The log on standard error: the store's lines and a worker's, as text or as JSON.
 */
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/cli.h"
#include "work_lines.h"

static const char *level_name(int level)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};

    return level >= 0 && level <= LH_LOG_DEBUG ? names[level] : "debug";
}

/** Adds the fields of the entry that are set. */
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

/** A recovery may log thousands of jobs. On a terminal the progress bar counts them and the report
 *  lists them, so a line for each is left out. With --log info they are all printed. */
static bool covered_by_progress(const struct cli *cli, const lh_log_entry *entry)
{
    return cli->progress.on && !cli->log_json && entry->job != 0 && entry->level == LH_LOG_WARN &&
           cli->log_level == LH_LOG_WARN;
}

/** Whether standard error takes a line now. If nothing reads it (a stopped terminal, a stuck log
 *  collector), the line is dropped and counted. The count is written as soon as writing works again. */
static bool can_write(struct cli *cli)
{
    struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
    char note[80];

    if (poll(&out, 1, 0) == 0) {
        __atomic_add_fetch(&cli->dropped_lines, 1, __ATOMIC_RELAXED);
        return false;
    }
    long dropped = __atomic_exchange_n(&cli->dropped_lines, 0, __ATOMIC_RELAXED);
    if (dropped > 0) {
        int n = snprintf(note, sizeof note, "leasehold: %ld lines were not written: nobody read\n",
                         dropped);
        (void)!write(STDERR_FILENO, note, (size_t)n);
    }
    return true;
}

void cli_log_line(void *arg, const lh_log_entry *entry)
{
    struct cli *cli = arg;
    struct js json = {0};

    if (entry->level > cli->log_level || covered_by_progress(cli, entry))
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
    if (cli->never_wait && !can_write(cli)) {
        js_clear(&json);
        return;
    }
    work_lines_hide(cli->lines);
    progress_wipe(&cli->progress);
    put_stderr_line(&json.buf);
    work_lines_show(cli->lines);
    js_clear(&json);
}
