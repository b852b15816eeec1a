/*
 * Hands: one thread for each kind of call on the store.
 *
 * A call may take long (a full disk, a turnstile, a wait for the next job) and the loop must not: a
 * deadline is kept by whoever looks at the clock. A hand does one thing at a time, what it is asked
 * for; everything it needs is laid out before, and not touched until it is done.
 */
#include "worker/worker.h"

#include "base/sys.h"

/* What may get better by itself. Everything else is told, too, and tried again more slowly. */
void hand_fails(struct hand *hand, int rc)
{
    int64_t pause = RETRY_MS;

    hand->rc = rc;
    for (int i = 0; i < hand->failures && pause < RETRY_MOST_MS; i++)
        pause *= 2;
    hand->failures++;
    hand->retry_at = worker_now(hand->worker) + (pause < RETRY_MOST_MS ? pause : RETRY_MOST_MS);
}

static void *hand_main(void *arg)
{
    struct hand *hand = arg;
    struct worker *w = hand->worker;

    pthread_mutex_lock(&w->mutex);
    for (;;) {
        while (!hand->asked && !hand->quit)
            pthread_cond_wait(&hand->cond, &w->mutex);
        if (hand->quit)
            break;
        hand->asked = false;
        pthread_mutex_unlock(&w->mutex);
        hand->act(w);
        pthread_mutex_lock(&w->mutex);
        hand->finished = true;
        ring(w);
    }
    pthread_mutex_unlock(&w->mutex);
    return NULL;
}

bool hand_start(struct worker *w, struct hand *hand)
{
    hand->worker = w;
    if (pthread_cond_init(&hand->cond, NULL) != 0)
        return false;
    hand->alive = lhi_thread_start(&hand->thread, hand_main, hand);
    if (!hand->alive)
        (void)pthread_cond_destroy(&hand->cond);
    return hand->alive;
}

void hand_ask(struct hand *hand)
{
    hand->busy = true;
    hand->rc = LH_OK;
    hand->error[0] = '\0';
    pthread_mutex_lock(&hand->worker->mutex);
    hand->asked = true;
    pthread_cond_signal(&hand->cond);
    pthread_mutex_unlock(&hand->worker->mutex);
}

void hand_stop(struct hand *hand)
{
    if (!hand->alive)
        return;
    pthread_mutex_lock(&hand->worker->mutex);
    hand->quit = true;
    pthread_cond_signal(&hand->cond);
    pthread_mutex_unlock(&hand->worker->mutex);
    pthread_join(hand->thread, NULL);
    (void)pthread_cond_destroy(&hand->cond);
    hand->alive = false;
}

static void hand_done(struct worker *w, struct hand *hand)
{
    pthread_mutex_lock(&w->mutex);
    bool finished = hand->finished;
    hand->finished = false;
    /* Nothing works on this handle any more; another is opened when nobody uses it. */
    if (finished && hand->rc == LH_ESTOPPED && hand != &w->opener)
        w->reopen = true;
    pthread_mutex_unlock(&w->mutex);
    if (!finished)
        return;
    hand->busy = false;
    hand->done(w);
}

void hands_done(struct worker *w)
{
    struct hand *all[HANDS] = {&w->ender,  &w->beater, &w->recorder, &w->claimer,
                               &w->logger, &w->keeper, &w->opener};

    for (size_t i = 0; i < HANDS; i++)
        if (all[i]->busy)
            hand_done(w, all[i]);
}
