/*
 * Prints what the commands of a worker write, with the job in front of each line.
 */
#include "work_output.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "work_lines.h"

/* A longer line is printed in pieces of this size. */
enum { LINE_MOST = 3800 };

/* The last line of a stream, while it is incomplete. */
struct open_line {
    int64_t job;
    int stream;
    struct buf text;
};

struct work_output {
    struct cli *cli;
    bool terminal[2]; /* whether standard output and standard error are terminals */
    struct open_line *line;
    size_t n;
    long left_out;
};

static void write_all(int fd, const char *text, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, text, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return;
        text += n;
        len -= (size_t)n;
    }
}

static bool is_ready(struct work_output *output, int fd)
{
    struct pollfd out = {.fd = fd, .events = POLLOUT};

    if (poll(&out, 1, 0) == 0) {
        output->left_out++;
        return false;
    }
    if (output->left_out > 0)
        cli_note("%ld lines of output were not printed: nobody read", output->left_out);
    output->left_out = 0;
    return true;
}

/** Prints a line, as JSON if the log is JSON, else with the job in front. */
static void render(const struct work_output *output, const struct open_line *line, const char *text,
                   size_t len, struct js *json)
{
    struct buf *out = &json->buf;

    if (output->cli->log_json) {
        struct buf plain = {0};
        if (lh_text_ok(text, len))
            buf_add(&plain, text, len);
        else
            text_visible(&plain, text, len);
        js_open(json, '{');
        js_key_time(json, "time", lhi_wall_ms());
        js_key_int(json, "job", line->job);
        js_key_text(json, "stream", line->stream == 2 ? "stderr" : "stdout");
        js_key_text(json, "text", buf_str(&plain));
        js_close(json, '}');
        js_end_line(json);
        buf_clear(&plain);
    } else {
        buf_format(out, "job %" PRId64 " | ", line->job);
        if (output->terminal[line->stream - 1])
            text_lines(out, text, len);
        else
            buf_add(out, text, len);
        buf_char(out, '\n');
    }
}

/* Finds a place to cut near the middle, between two characters. */
static size_t middle_of(const char *text, size_t len)
{
    size_t middle = len / 2;

    for (int i = 0; i < 3 && middle > 1 && ((unsigned char)text[middle] & 0xc0U) == 0x80; i++)
        middle--;
    return middle;
}

/* A pipe that is ready takes PIPE_BUF bytes without blocking. JSON escapes can make a line six
 * times longer; such a line is printed as two. */
static void put_text(struct work_output *output, const struct open_line *line, const char *text,
                     size_t len)
{
    int fd = line->stream == 2 ? STDERR_FILENO : STDOUT_FILENO;
    struct js json = {0};

    render(output, line, text, len, &json);
    if (json.buf.n > PIPE_BUF && len > 1) {
        size_t middle = middle_of(text, len);
        put_text(output, line, text, middle);
        put_text(output, line, text + middle, len - middle);
    } else if (is_ready(output, fd)) {
        work_lines_hide(output->cli->lines);
        write_all(fd, json.buf.p, json.buf.n);
        work_lines_show(output->cli->lines);
    }
    js_clear(&json);
}

static void put_line(struct work_output *output, const struct open_line *line)
{
    put_text(output, line, line->text.p, line->text.n);
}

static struct open_line *line_of(struct work_output *output, int64_t job, int stream)
{
    for (size_t i = 0; i < output->n; i++)
        if (output->line[i].job == job && output->line[i].stream == stream)
            return &output->line[i];
    output->line = mem_grow(output->line, output->n + 1, sizeof *output->line);
    output->line[output->n] = (struct open_line){.job = job, .stream = stream};
    return &output->line[output->n++];
}

static void add(struct work_output *output, const lh_work_event *event)
{
    struct open_line *line = line_of(output, event->job->id, event->stream);
    const char *at = event->output, *end = at + event->output_len;

    while (at < end) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        size_t n = (size_t)((stop ? stop : end) - at), room = LINE_MOST - line->text.n;
        bool whole = stop != NULL && n <= room;
        n = n < room ? n : room;
        buf_add(&line->text, at, n);
        at += n + whole;
        if (whole || line->text.n == LINE_MOST) {
            put_line(output, line);
            buf_reset(&line->text);
        }
    }
}

static void end(struct work_output *output, int64_t job)
{
    size_t kept = 0;

    for (size_t i = 0; i < output->n; i++) {
        struct open_line *line = &output->line[i];
        if (line->job != job) {
            output->line[kept++] = *line;
            continue;
        }
        if (line->text.n > 0)
            put_line(output, line);
        buf_clear(&line->text);
    }
    output->n = kept;
}

void work_output_event(struct work_output *output, const lh_work_event *event)
{
    if (output == NULL)
        return;
    if (event->what == LH_WORK_OUTPUT)
        add(output, event);
    else if (event->what == LH_WORK_ENDED)
        end(output, event->job->id);
}

struct work_output *work_output_new(struct cli *cli)
{
    struct work_output *output = mem_alloc(sizeof *output);

    output->cli = cli;
    output->terminal[0] = isatty(STDOUT_FILENO);
    output->terminal[1] = isatty(STDERR_FILENO);
    return output;
}

void work_output_free(struct work_output *output)
{
    if (output == NULL)
        return;
    for (size_t i = 0; i < output->n; i++)
        buf_clear(&output->line[i].text);
    free(output->line);
    free(output);
}
