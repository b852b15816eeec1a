/* forks.c: the list of what a forked child must close. There is one list per process. */
#include "base/forks.h"

#include <pthread.h>
#include <stddef.h>

static struct {
    pthread_mutex_t mutex;
    pthread_once_t once;
    struct lhi_fork_entry *first;
} forks = {.mutex = PTHREAD_MUTEX_INITIALIZER, .once = PTHREAD_ONCE_INIT};

static void before_fork(void)
{
    pthread_mutex_lock(&forks.mutex);
}

static void after_fork_parent(void)
{
    pthread_mutex_unlock(&forks.mutex);
}

static void after_fork_child(void)
{
    while (forks.first != NULL) {
        struct lhi_fork_entry *entry = forks.first;
        entry->let_go(entry->arg);
        lhi_forks_remove(entry);
    }
    pthread_mutex_unlock(&forks.mutex);
}

static void register_handlers(void)
{
    (void)pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

void lhi_forks_hold(void)
{
    (void)pthread_once(&forks.once, register_handlers);
    pthread_mutex_lock(&forks.mutex);
}

void lhi_forks_resume(void)
{
    pthread_mutex_unlock(&forks.mutex);
}

void lhi_forks_add(struct lhi_fork_entry *entry, void (*let_go)(void *arg), void *arg)
{
    *entry = (struct lhi_fork_entry){.let_go = let_go, .arg = arg, .next = forks.first};
    if (entry->next != NULL)
        entry->next->prev = entry;
    forks.first = entry;
}

void lhi_forks_remove(struct lhi_fork_entry *entry)
{
    if (entry->let_go == NULL)
        return;
    if (entry->prev != NULL)
        entry->prev->next = entry->next;
    else
        forks.first = entry->next;
    if (entry->next != NULL)
        entry->next->prev = entry->prev;
    *entry = (struct lhi_fork_entry){0};
}
