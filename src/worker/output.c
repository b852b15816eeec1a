/*
 * output.c: the output of runs, in memory and on its way to the store.
 *
 * The head and the tail of each stream are kept in memory, up to the limit that came with the claim. When
 * a run ends, they are written with its outcome (outcomes.c). While it runs, new output is sent after
 * FLUSH_MS, and less often the more there is, so that a run that writes all the time costs the store
 * little. The call sends a copy, because the run may end meanwhile.
 */
#include "worker/worker.h"

#include <string.h>

enum { FLUSH_MS = 1000, BYTES_A_MS = 8 };

/* ---- collecting ---- */

static void stream_add(struct stream *stream, const char *bytes, size_t len, size_t most)
{
    size_t head_most = most / 4;

    /* Bytes go to the head only if none before them were dropped for lack of memory. */
    if (stream->bytes == (int64_t)stream->head.len && stream->head.len < head_most) {
        size_t part = head_most - stream->head.len < len ? head_most - stream->head.len : len;
        if (bytes_add(&stream->head, bytes, part, head_most)) {
            stream->bytes += (int64_t)part;
            bytes += part;
            len -= part;
        }
    }
    if (len > 0)
        bytes_keep_end(&stream->tail, bytes, len, most - head_most);
    stream->bytes += (int64_t)len;
}

/* The time of the next send, some time after the last one. */
static int64_t flush_at(const struct lh_task *task, int64_t now)
{
    int64_t maintain_done = (int64_t)(task->written[0].head.len + task->written[0].tail.len +
                                      task->written[1].head.len + task->written[1].tail.len);
    int64_t next = task->flushed_at + FLUSH_MS + maintain_done / BYTES_A_MS;

    return next > now + FLUSH_MS ? next : now + FLUSH_MS;
}

/* Add output. True: the loop has to wake up earlier. */
bool output_add(struct lh_task *task, bool err, const void *bytes, size_t len)
{
    if (len == 0 || task->job->max_output <= 0)
        return false;
    pthread_mutex_lock(&task->worker->mutex);
    stream_add(&task->written[err], bytes, len, (size_t)task->job->max_output);
    bool first = task->flush_at == 0;
    if (first)
        task->flush_at = flush_at(task, worker_now(task->worker));
    pthread_mutex_unlock(&task->worker->mutex);
    return first;
}

int lh_task_output(lh_task *task, int stream, const void *bytes, size_t len)
{
    if (task == NULL || (bytes == NULL && len > 0) || (stream != 1 && stream != 2))
        return LH_EMISUSE;
    if (output_add(task, stream == 2, bytes, len))
        loop_wake(task->worker);
    return LH_OK;
}

static lh_stream stream_of(const struct stream *stream)
{
    return (lh_stream){.head = stream->head.at,
                       .head_len = stream->head.len,
                       .tail = stream->tail.at,
                       .tail_len = stream->tail.len,
                       .bytes = stream->bytes};
}

const lh_output *output_of(const struct lh_task *task, lh_output *room)
{
    if (task->written[0].bytes == 0 && task->written[1].bytes == 0)
        return NULL;
    *room = (lh_output){.job = task->job->id,
                        .token = task->job->token,
                        .out = stream_of(&task->written[0]),
                        .err = stream_of(&task->written[1])};
    return room;
}

void output_clear(struct lh_task *task)
{
    for (int i = 0; i < 2; i++) {
        bytes_clear(&task->written[i].head);
        bytes_clear(&task->written[i].tail);
        task->written[i].bytes = 0;
    }
}

/* ---- sending while the job runs ---- */

static bool copy_stream(lh_stream *stream)
{
    char *head = stream->head_len > 0 ? lhi_malloc(stream->head_len) : NULL;
    char *tail = stream->tail_len > 0 ? lhi_malloc(stream->tail_len) : NULL;
    bool ok = (head != NULL || stream->head_len == 0) && (tail != NULL || stream->tail_len == 0);

    if (!ok) {
        lhi_free(head);
        lhi_free(tail);
        *stream = (lh_stream){0};
        return false;
    }
    if (head != NULL)
        memcpy(head, stream->head, stream->head_len);
    if (tail != NULL)
        memcpy(tail, stream->tail, stream->tail_len);
    stream->head = head;
    stream->tail = tail;
    return true;
}

static void free_copy(const lh_stream *stream)
{
    lhi_free((void *)(uintptr_t)stream->head);
    lhi_free((void *)(uintptr_t)stream->tail);
}

/* Copy the output. False: no memory; it is sent when the run ends. */
static bool copy_output(struct lh_task *task, lh_output *copy)
{
    bool ok = output_of(task, copy) != NULL && copy_stream(&copy->out);

    if (ok && !copy_stream(&copy->err)) {
        free_copy(&copy->out);
        return false;
    }
    return ok;
}

static bool is_due(const struct lh_task *task, int64_t now)
{
    return task->state == TASK_RUNNING && task->flush_at != 0 && now >= task->flush_at;
}

static void log_output(struct worker *w)
{
    w->output_call.rc = lh_output_put(w->store, w->log.outputs, w->log.n, w->log.status);
    /* An answer about a single run is no failure of the store: heartbeats notice a lost lease. */
    bool answered = false;
    for (size_t i = 0; i < w->log.n; i++)
        answered = answered || w->log.status[i] == LH_OK || is_gone(w->log.status[i]);
    if (answered)
        w->output_call.rc = LH_OK;
    if (w->output_call.rc < 0)
        lhi_format(w->output_call.error, sizeof w->output_call.error, "%s", lh_errmsg(w->store));
}

static void logged(struct worker *w)
{
    for (size_t i = 0; i < w->log.n; i++) {
        free_copy(&w->log.outputs[i].out);
        free_copy(&w->log.outputs[i].err);
    }
    w->log.n = 0;
    worker_trouble(w, &w->output_call, "could not store the output of jobs");
    if (w->output_call.rc >= 0)
        return;
    pthread_mutex_lock(&w->mutex);
    for (size_t i = 0; i < w->n_tasks;
         i++) /* sending the output of any of them again does no harm */
        if (w->tasks[i].state == TASK_RUNNING &&
            w->tasks[i].written[0].bytes + w->tasks[i].written[1].bytes > 0)
            w->tasks[i].flush_at = w->output_call.retry_at;
    pthread_mutex_unlock(&w->mutex);
}

void output_step(struct worker *w, int64_t now)
{
    if (w->output_call.busy)
        return;
    pthread_mutex_lock(&w->mutex);
    for (size_t i = 0; i < w->n_tasks; i++) {
        struct lh_task *task = &w->tasks[i];
        if (!is_due(task, now))
            continue;
        if (copy_output(task, &w->log.outputs[w->log.n]))
            w->log.n++;
        task->flush_at = 0;
        task->flushed_at = now;
    }
    pthread_mutex_unlock(&w->mutex);
    if (w->log.n > 0)
        store_call_ask(&w->output_call);
}

int64_t output_next(struct worker *w)
{
    int64_t next = INT64_MAX;

    if (w->output_call.busy)
        return next;
    pthread_mutex_lock(&w->mutex);
    for (size_t i = 0; i < w->n_tasks; i++)
        if (w->tasks[i].state == TASK_RUNNING && w->tasks[i].flush_at != 0 &&
            w->tasks[i].flush_at < next)
            next = w->tasks[i].flush_at;
    pthread_mutex_unlock(&w->mutex);
    return next;
}

bool output_init(struct worker *w)
{
    w->output_call.act = log_output;
    w->output_call.done = logged;
    w->log.outputs = lhi_calloc(w->n_tasks, sizeof *w->log.outputs);
    w->log.status = lhi_calloc(w->n_tasks, sizeof *w->log.status);
    return w->log.outputs != NULL && w->log.status != NULL;
}

void output_end(struct worker *w)
{
    for (size_t i = 0; i < w->log.n; i++) {
        free_copy(&w->log.outputs[i].out);
        free_copy(&w->log.outputs[i].err);
    }
    lhi_free(w->log.outputs);
    lhi_free(w->log.status);
}
