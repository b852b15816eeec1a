/* Threads of one handle share transactions: sixteen acts at once cost little more than one. */
#include "store/sqlite.h"

#include <pthread.h>

enum { THREADS = 16, EACH = 40 };

static void *add_some(void *arg)
{
    for (int i = 0; i < EACH; i++)
        add(arg, "q", "x");
    return NULL;
}

TEST(threads_of_one_handle_share_their_transactions)
{
    lh_store *store = store_new();
    pthread_t threads[THREADS];
    lh_store_info before, after;

    EXPECT_OK(lh_store_status(store, &before));
    for (int i = 0; i < THREADS; i++)
        EXPECT_EQ(pthread_create(&threads[i], NULL, add_some, store), 0);
    for (int i = 0; i < THREADS; i++)
        EXPECT_EQ(pthread_join(threads[i], NULL), 0);
    EXPECT_OK(lh_store_status(store, &after));
    EXPECT_EQ(counts_of(store, "q").pending, THREADS * EACH);
    EXPECT(after.changes - before.changes < THREADS * EACH);
    store_check(store);
    lh_close(store);
}
