/*
 * command.c: running a job as a command.
 *
 * The payload is a file in memory, so the command may read it or not. Its output goes through pipes that
 * the loop empties: the result up to its limit, the end of standard error, and the lines in which the
 * command reports its progress.
 */
#include "worker/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

/* ---- bytes ---- */

bool bytes_add(struct bytes *bytes, const void *more, size_t len, size_t most)
{
    if (len > most - bytes->len)
        len = most - bytes->len;
    if (bytes->len + len + 1 > bytes->room) {
        size_t room = bytes->room ? bytes->room * 2 : 256;
        while (room < bytes->len + len + 1)
            room *= 2;
        char *grown = lhi_realloc(bytes->at, room);
        if (grown == NULL)
            return false;
        bytes->at = grown;
        bytes->room = room;
    }
    if (len > 0)
        memcpy(bytes->at + bytes->len, more, len);
    bytes->len += len;
    bytes->at[bytes->len] = '\0';
    return true;
}

void bytes_keep_end(struct bytes *bytes, const void *more, size_t len, size_t most)
{
    const char *from = more;

    if (len > most) {
        from += len - most;
        len = most;
    }
    if (bytes->len + len > most) {
        size_t drop = bytes->len + len - most;
        memmove(bytes->at, bytes->at + drop, bytes->len - drop);
        bytes->len -= drop;
    }
    (void)bytes_add(bytes, from, len, most);
}

void bytes_clear(struct bytes *bytes)
{
    lhi_free(bytes->at);
    *bytes = (struct bytes){0};
}

/* ---- progress lines ---- */

static void report_progress(struct lh_task *task)
{
    __atomic_store_n(&task->details, 1, __ATOMIC_RELAXED);
}

/* Replace bytes that are not text, and control characters, by question marks. */
static void make_text(char *bytes, size_t len)
{
    for (size_t i = 0; i < len;) {
        size_t n = 1;
        while (n < 4 && i + n < len && !lh_text_ok(bytes + i, n))
            n++;
        bool ok = lh_text_ok(bytes + i, n) &&
                  ((unsigned char)bytes[i] >= ' ' || bytes[i] == '\n' || bytes[i] == '\t');
        if (!ok)
            bytes[i] = '?';
        i += ok ? n : 1;
    }
}

/* Report only the first such lines: a command that writes its data to this descriptor would fill the log. */
static void not_understood(struct lh_task *task, const char *line)
{
    char text[400], start[101];

    if (task->not_understood++ >= REPORTED_MOST)
        return;
    lhi_format(start, sizeof start, "%.100s", line);
    make_text(start, strlen(start));
    lhi_format(text, sizeof text,
               "job %lld wrote \"%s\": progress 0 … 100, stage WORDS or checkpoint JSON is allowed",
               (long long)task->job->id, start);
    worker_report(task->worker, &(lh_work_event){.what = LH_WORK_TROUBLE, .error = text}, task);
}

static void take_line(struct lh_task *task)
{
    const char *line = task->line.at;
    int rc = LH_EINVAL;
    char *end;

    if (strlen(line) != task->line.len) { /* a zero byte inside the line */
        not_understood(task, line);
        return;
    }
    if (strncmp(line, "progress ", 9) == 0) {
        long percent = strtol(line + 9, &end, 10);
        if (end != line + 9 && *end == '\0' && percent >= 0 && percent <= 100)
            rc = lh_task_progress(task, (int)percent);
    } else if (strncmp(line, "stage ", 6) == 0) {
        rc = lh_task_stage(task, line + 6);
    } else if (strncmp(line, "checkpoint ", 11) == 0 && strlen(line + 11) <= CHECKPOINT_MOST) {
        char **place = task->checkpoint == NULL ? &task->checkpoint : &task->next_checkpoint;
        lhi_free(*place);
        *place = lhi_strdup(line + 11);
        report_progress(task);
        rc = LH_OK;
    }
    if (rc != LH_OK)
        not_understood(task, line);
}

static void hear_lines(struct lh_task *task, const char *bytes, size_t len)
{
    while (len > 0) {
        const char *end = memchr(bytes, '\n', len);
        size_t part = end ? (size_t)(end - bytes) : len;
        (void)bytes_add(&task->line, bytes, part, LINE_MOST);
        if (end == NULL)
            return;
        if (task->line.len > 0)
            take_line(task);
        task->line.len = 0;
        bytes += part + 1;
        len -= part + 1;
    }
}

/* ---- output ---- */

static void add_output(struct lh_task *task, bool err, const char *bytes, size_t len)
{
    (void)output_add(task, err, bytes, len);
    if (task->worker->opts.tell_output)
        worker_report(
            task->worker,
            &(lh_work_event){
                .what = LH_WORK_OUTPUT, .output = bytes, .output_len = len, .stream = err ? 2 : 1},
            task);
}

/* Read a pipe once. False: there is nothing more to read now. */
static bool drain(struct worker *w, struct pipe_end *end)
{
    struct lh_task *task = end->task;
    char buf[65536];

    if (end->source.fd < 0)
        return false;
    ssize_t n = read(end->source.fd, buf, sizeof buf);
    if (n < 0 && errno == EINTR)
        return true;
    if (n == 0 || (n < 0 && errno != EAGAIN))
        source_close(w, &end->source);
    if (n <= 0)
        return false;
    if (end == &task->out) {
        (void)bytes_add(&task->result, buf, (size_t)n, RESULT_MOST);
        task->result_bytes += n;
        add_output(task, false, buf, (size_t)n);
    } else if (end == &task->err) {
        bytes_keep_end(&task->error, buf, (size_t)n, ERROR_MOST);
        add_output(task, true, buf, (size_t)n);
    } else {
        hear_lines(task, buf, (size_t)n);
    }
    return true;
}

static void on_output(struct worker *w, struct source *source, uint32_t events)
{
    (void)events;
    (void)drain(w, (struct pipe_end *)(void *)((char *)source - offsetof(struct pipe_end, source)));
}

static bool open_pipe(struct lh_task *task, struct pipe_end *end, int *theirs)
{
    int pair[2];

    if (pipe2(pair, O_CLOEXEC) != 0)
        return false;
    *theirs = pair[1];
    *end = (struct pipe_end){.source = {.fd = pair[0], .ready = on_output}, .task = task};
    return fcntl(pair[0], F_SETFL, O_NONBLOCK) == 0 && source_add(task->worker, &end->source);
}

/* ---- starting ---- */

static int payload_file(const lh_job *job)
{
    size_t done = 0;

    if (job->payload_len == 0)
        return open("/dev/null", O_RDONLY | O_CLOEXEC);
    int fd = memfd_create("payload", MFD_CLOEXEC);
    while (fd >= 0 && done < job->payload_len) {
        ssize_t n = write(fd, (const char *)job->payload + done, job->payload_len - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            int error = errno;
            (void)close(fd);
            errno = error;
            return -1;
        }
        done += (size_t)n;
    }
    if (fd >= 0)
        (void)lseek(fd, 0, SEEK_SET);
    return fd;
}

static bool add_variable(struct bytes *all, const char *name, const char *value)
{
    return bytes_add(all, name, strlen(name), GUARDIAN_MOST) &&
           bytes_add(all, value, strlen(value) + 1, GUARDIAN_MOST);
}

static bool add_number(struct bytes *all, const char *name, int64_t value)
{
    char digits[32];
    lhi_format(digits, sizeof digits, "%lld", (long long)value);
    return add_variable(all, name, digits);
}

static bool variables_of(const lh_job *job, struct bytes *all)
{
    bool ok = add_number(all, "LEASEHOLD_JOB_ID=", job->id) &&
              add_number(all, "LEASEHOLD_TOKEN=", job->token) &&
              add_variable(all, "LEASEHOLD_QUEUE=", job->queue) &&
              add_variable(all, "LEASEHOLD_KIND=", job->kind ? job->kind : "") &&
              add_number(all, "LEASEHOLD_ATTEMPT=", job->attempt) &&
              add_variable(all, "LEASEHOLD_FD=", "3") &&
              add_variable(all, "LEASEHOLD_CHECKPOINT=", job->checkpoint ? job->checkpoint : "");

    if (ok && job->max_attempts == LH_UNLIMITED)
        return add_variable(all, "LEASEHOLD_MAX_ATTEMPTS=", "unlimited");
    return ok && add_number(all, "LEASEHOLD_MAX_ATTEMPTS=", job->max_attempts);
}

static void close_fds(int fds[GUARDIAN_FDS])
{
    for (int i = 0; i < GUARDIAN_FDS; i++)
        if (fds[i] >= 0)
            (void)close(fds[i]);
}

/* Resources were missing, which is not the job's fault: release it. */
static void not_started(struct lh_task *task, int error)
{
    struct worker *w = task->worker;

    out_of_resources(w, task, "could not start a command", error);
    w->tokens += w->opts.rate_n > 0; /* the start did not happen */
    command_forget(task);
    task_ended(task, LH_RAN_RELEASED);
}

bool command_start(struct lh_task *task)
{
    struct worker *w = task->worker;
    struct guard *guard = guard_idle(w);
    struct bytes variables = {0};
    int fds[GUARDIAN_FDS] = {-1, -1, -1, -1};

    errno = 0;
    bool ready = guard != NULL && (fds[0] = payload_file(task->job)) >= 0 &&
                 open_pipe(task, &task->out, &fds[1]) && open_pipe(task, &task->err, &fds[2]) &&
                 open_pipe(task, &task->talk, &fds[3]) && variables_of(task->job, &variables) &&
                 guard_run(guard, task, variables.at, variables.len, fds);
    int error = errno;
    close_fds(fds);
    bytes_clear(&variables);
    if (!ready)
        not_started(task, error ? error : ENOMEM);
    return ready;
}

void command_started(struct lh_task *task)
{
    task->state = TASK_RUNNING;
    worker_report(task->worker, &(lh_work_event){.what = LH_WORK_STARTED}, task);
}

void command_forget(struct lh_task *task)
{
    source_close(task->worker, &task->out.source);
    source_close(task->worker, &task->err.source);
    source_close(task->worker, &task->talk.source);
}

/* The guardian could not run the program, which existed when the worker started. */
void command_refused(struct lh_task *task, int error)
{
    char text[400], words[80];

    if (error == ETIME) {
        command_forget(task);
        task_ended(task, LH_RAN_LOST);
        return;
    }
    if (error == EAGAIN || error == ENOMEM || error == EMFILE || error == ENFILE ||
        error == ETXTBSY) {
        not_started(task, error);
        return;
    }
    lhi_format(text, sizeof text, "command \"%.200s\" cannot be run: %s",
               task->worker->command_path, strerror_r(error, words, sizeof words));
    bytes_clear(&task->error);
    (void)bytes_add(&task->error, text, strlen(text), ERROR_MOST);
    command_forget(task);
    task_ended(task, LH_RAN_CRITICAL);
}

/* ---- the end of a run ---- */

/* Set the error: how the command ended, then the end of its standard error. */
static void explain(struct lh_task *task, const char *how)
{
    struct bytes said = task->error;
    char *start = said.at;
    size_t len = said.len;

    task->error = (struct bytes){0};
    (void)bytes_add(&task->error, how, strlen(how), ERROR_MOST + 200);
    while (len > 0 && (start[len - 1] == '\n' || start[len - 1] == ' '))
        len--;
    if (len > 0) {
        make_text(start, len);
        (void)bytes_add(&task->error, ": ", 2, ERROR_MOST + 200);
        (void)bytes_add(&task->error, start, len, ERROR_MOST + 200);
    }
    bytes_clear(&said);
}

static lh_outcome by_exit_code(struct lh_task *task, int code)
{
    char how[80];

    if (code == EX_OK)
        return LH_RAN_OK;
    lhi_format(how, sizeof how, "exit code %d", code);
    explain(task, how);
    switch (code) {
    case EX_TEMPFAIL:
        return LH_RAN_NOT_NOW;
    case EX_DATAERR:
        return LH_RAN_PERMANENT;
    case EX_CONFIG:
        return LH_RAN_CRITICAL;
    default:
        return LH_RAN_FAILED;
    }
}

static lh_outcome by_signal(struct lh_task *task, int sig)
{
    char how[80];
    const char *name = sigabbrev_np(sig);

    lhi_format(how, sizeof how, "killed by signal %d%s%s", sig, name ? ", SIG" : "",
               name ? name : "");
    explain(task, how);
    return LH_RAN_FAILED;
}

lh_outcome stop_outcome(struct lh_task *task)
{
    char how[120], span[32];

    switch (task->stop) {
    case STOP_TIMEOUT:
        lhi_format(how, sizeof how, "TIMEOUT: stopped after %s",
                   lh_duration_format(task->timeout_ms, span, sizeof span));
        explain(task, how);
        return LH_RAN_FAILED;
    case STOP_SHUTDOWN:
        bytes_clear(&task->error);
        return LH_RAN_RELEASED;
    default:
        bytes_clear(&task->error);
        return LH_RAN_LOST;
    }
}

void command_ended(struct lh_task *task, const struct guardian_answer *answer)
{
    struct worker *w = task->worker;
    lh_outcome outcome;

    while (drain(w, &task->out) || drain(w, &task->err) || drain(w, &task->talk))
        continue;
    if (task->line.len > 0 && !answer->stopped)
        take_line(task); /* the last line may lack its newline */
    if (task->not_understood > REPORTED_MOST) {
        char text[120];
        lhi_format(text, sizeof text, "job %lld wrote %lld more lines that are not understood",
                   (long long)task->job->id, (long long)task->not_understood - REPORTED_MOST);
        worker_report(w, &(lh_work_event){.what = LH_WORK_TROUBLE, .error = text}, task);
    }
    command_forget(task);
    if (answer->stopped && task->stop == STOP_NONE)
        task->stop = STOP_FENCE; /* the guardian stopped it, because this process did not in time */
    /* A command that exits with 0 although it was stopped has done its work, unless the lease was lost. */
    bool well = WIFEXITED(answer->status) && WEXITSTATUS(answer->status) == 0;
    if (answer->stopped && !(well && task->stop == STOP_SHUTDOWN))
        outcome = stop_outcome(task);
    else if (WIFEXITED(answer->status))
        outcome = by_exit_code(task, WEXITSTATUS(answer->status));
    else
        outcome = by_signal(task, WTERMSIG(answer->status));
    task_ended(task, outcome);
}

void command_unguarded(struct lh_task *task)
{
    command_forget(task);
    if (task->stop != STOP_NONE) {
        task_ended(task, stop_outcome(task));
        return;
    }
    explain(task, "its guardian was killed");
    task_ended(task, LH_RAN_FAILED);
}

/* ---- setting up ---- */

int command_locate(const lh_work_opts *opts, char **command, char **guardian, struct lhi_error *err)
{
    *command = find_command(opts->command[0], err);
    *guardian = *command ? find_guardian(opts->guardian, err) : NULL;
    if (*guardian != NULL)
        return LH_OK;
    return err->status != LH_OK ? err->status : lhi_no_memory(err);
}

int command_init(struct worker *w, struct lhi_error *err)
{
    /* Variables of a job come with the job. The worker, not the command, talks to the service manager. */
    static const char *const not_passed_on[] = {"LEASEHOLD_JOB_ID=",
                                                "LEASEHOLD_TOKEN=",
                                                "LEASEHOLD_QUEUE=",
                                                "LEASEHOLD_KIND=",
                                                "LEASEHOLD_ATTEMPT=",
                                                "LEASEHOLD_CHECKPOINT=",
                                                "LEASEHOLD_MAX_ATTEMPTS=",
                                                "LEASEHOLD_FD=",
                                                "LEASEHOLD_STORE=",
                                                "NOTIFY_SOCKET=",
                                                "WATCHDOG_USEC=",
                                                "WATCHDOG_PID=",
                                                NULL};

    w->environment = make_environment(not_passed_on, w->id, w->opts.store_url);
    w->guards = lhi_calloc(w->opts.jobs, sizeof *w->guards);
    if (w->environment == NULL || w->guards == NULL)
        return lhi_no_memory(err);
    w->n_guards = w->opts.jobs;
    for (size_t i = 0; i < w->n_guards; i++)
        w->guards[i].socket.fd = w->guards[i].death.fd = -1;
    return LH_OK;
}

void command_clear(struct worker *w)
{
    guards_close(w);
    free_environment(w->environment, w->opts.store_url != NULL);
    lhi_free(w->command_path);
    lhi_free(w->guardian_path);
}
