/*
 * store_calls.c: one thread for each kind of call to the store.
 *
 * A call may take long (a full disk, the writer lock, a wait for the next job), and the loop must not wait,
 * because it keeps the deadlines. A thread makes one call at a time. The loop prepares the arguments and does
 * not touch them until the call is done.
 */
#include "worker/worker.h"

#include "base/sys.h"

/* A call failed: try it again after a pause that doubles with each failure. */
void store_call_failed(struct store_call *call, int rc)
{
    int64_t pause = RETRY_MS;

    call->rc = rc;
    for (int i = 0; i < call->failures && pause < RETRY_MOST_MS; i++)
        pause *= 2;
    call->failures++;
    call->retry_at = worker_now(call->worker) + (pause < RETRY_MOST_MS ? pause : RETRY_MOST_MS);
}

static void *store_call_main(void *arg)
{
    struct store_call *call = arg;
    struct worker *w = call->worker;

    pthread_mutex_lock(&w->mutex);
    for (;;) {
        while (!call->asked && !call->quit)
            pthread_cond_wait(&call->cond, &w->mutex);
        if (call->quit)
            break;
        call->asked = false;
        pthread_mutex_unlock(&w->mutex);
        call->act(w);
        pthread_mutex_lock(&w->mutex);
        call->finished = true;
        loop_wake(w);
    }
    pthread_mutex_unlock(&w->mutex);
    return NULL;
}

bool store_call_start(struct worker *w, struct store_call *call)
{
    call->worker = w;
    if (pthread_cond_init(&call->cond, NULL) != 0)
        return false;
    call->alive = lhi_thread_start(&call->thread, store_call_main, call);
    if (!call->alive)
        (void)pthread_cond_destroy(&call->cond);
    return call->alive;
}

void store_call_ask(struct store_call *call)
{
    call->busy = true;
    call->rc = LH_OK;
    call->error[0] = '\0';
    pthread_mutex_lock(&call->worker->mutex);
    call->asked = true;
    pthread_cond_signal(&call->cond);
    pthread_mutex_unlock(&call->worker->mutex);
}

void store_call_stop(struct store_call *call)
{
    if (!call->alive)
        return;
    pthread_mutex_lock(&call->worker->mutex);
    call->quit = true;
    pthread_cond_signal(&call->cond);
    pthread_mutex_unlock(&call->worker->mutex);
    pthread_join(call->thread, NULL);
    (void)pthread_cond_destroy(&call->cond);
    call->alive = false;
}

static void store_call_done(struct worker *w, struct store_call *call)
{
    pthread_mutex_lock(&w->mutex);
    bool finished = call->finished;
    call->finished = false;
    /* The handle is stopped. A new one is opened when no call uses this one. */
    if (finished && call->rc == LH_ESTOPPED && call != &w->open_call)
        w->reopen = true;
    pthread_mutex_unlock(&w->mutex);
    if (!finished)
        return;
    call->busy = false;
    call->done(w);
}

void store_calls_done(struct worker *w)
{
    struct store_call *all[STORE_CALLS] = {&w->outcome_call, &w->heartbeat_call, &w->record_call,
                                           &w->claim_call,   &w->output_call,    &w->maintain_call,
                                           &w->open_call};

    for (size_t i = 0; i < STORE_CALLS; i++)
        if (all[i]->busy)
            store_call_done(w, all[i]);
}
