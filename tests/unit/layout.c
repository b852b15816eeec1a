/* What programs built for this version rely on: the sizes of structs, their reserved fields, and flags. */
#include "harness/harness.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>

/* A new field takes its space from `reserved`. A changed size would break programs that were built before. */
TEST(sizes_of_structs_are_the_pinned_ones)
{
#if defined(__LP64__)
    EXPECT_EQ(sizeof(lh_open_opts), 104);
    EXPECT_EQ(sizeof(lh_claim_opts), 152);
    EXPECT_EQ(sizeof(lh_new_job), 160);
    EXPECT_EQ(sizeof(lh_enqueued), 48);
    EXPECT_EQ(sizeof(lh_beat), 80);
    EXPECT_EQ(sizeof(lh_done), 80);
    EXPECT_EQ(sizeof(lh_failure), 80);
    EXPECT_EQ(sizeof(lh_job_filter), 120);
    EXPECT_EQ(sizeof(lh_output_filter), 88);
    EXPECT_EQ(sizeof(lh_event_filter), 136);
    EXPECT_EQ(sizeof(lh_policy), 208);
    EXPECT_EQ(sizeof(lh_schedule), 304);
    EXPECT_EQ(sizeof(lh_lease_opts), 128);
    EXPECT_EQ(sizeof(lh_worker_opts), 128);
    EXPECT_EQ(sizeof(lh_work_opts), 296);
    EXPECT_EQ(sizeof(lh_work_tally), 240);
    EXPECT_EQ(sizeof(lh_lease_run_opts), 136);
    EXPECT_EQ(sizeof(lh_recover_opts), 120);
    EXPECT_EQ(sizeof(lh_maintain_opts), 88);
    EXPECT_EQ(sizeof(lh_maintained), 96);
    EXPECT_EQ(sizeof(lh_backup_opts), 96);
    EXPECT_EQ(sizeof(lh_move_opts), 104);
    EXPECT_EQ(sizeof(lh_moved), 80);
    EXPECT_EQ(sizeof(lh_store_info), 1616);
    EXPECT_EQ(sizeof(lh_job), 336);
    EXPECT_EQ(sizeof(lh_queue), 224);
    EXPECT_EQ(sizeof(lh_worker), 200);
    EXPECT_EQ(sizeof(lh_lease), 152);
    EXPECT_EQ(sizeof(lh_event), 200);
    EXPECT_EQ(sizeof(lh_report), 240);
#endif
}

TEST(options_of_a_later_version_are_refused_and_not_ignored)
{
    lh_store *store = NULL;
    lh_jobs *jobs = NULL;
    const char *queue = "q";
    char id[160], why[480];
    lh_open_opts open_opts = {.create = true, .reserved = {[6] = 1}};

    EXPECT_STATUS(lh_open("s.db", &open_opts, &store), LH_EMISUSE);
    EXPECT_CONTAINS(lh_errmsg(store), "reserved fields");
    lh_close(store);
    EXPECT_OK(lh_open("s.db", &(lh_open_opts){.create = true}, &store));
    lh_claim_opts claim = {.queues = &queue, .n_queues = 1, .worker = "w", .reserved = {1}};
    EXPECT_STATUS(lh_claim(store, &claim, &jobs), LH_EMISUSE);
    EXPECT_STATUS(lh_maintain(store, &(lh_maintain_opts){.reserved = {1}}, NULL), LH_EMISUSE);
    EXPECT_STATUS(lh_recover(store, &(lh_recover_opts){.reserved = {1}}, NULL), LH_EMISUSE);
    lh_worker_opts worker = {.reserved = {[7] = 1}};
    EXPECT_STATUS(lh_worker_register(store, &worker, id, sizeof id), LH_EMISUSE);
    char *const command[] = {(char[]){"true"}, NULL};
    lh_work_opts work = {.queues = &queue, .n_queues = 1, .command = command, .reserved = {1}};
    EXPECT_STATUS(lh_worker_run(store, &work, NULL, why, sizeof why), LH_EMISUSE);
    EXPECT_CONTAINS(why, "reserved fields");
    lh_lease_run_opts run_opts = {.reserved = {1}};
    EXPECT_STATUS(lh_lease_run(store, "a", "b", command, &run_opts, NULL, why, sizeof why),
                  LH_EMISUSE);
    EXPECT_CONTAINS(why, "reserved fields");
    lh_close(store);
}

/* The other structs that a caller fills in: elements of lists, filters, policies, schedules, backups. */
TEST(elements_and_filters_of_a_later_version_are_refused_and_not_ignored)
{
    lh_store *store = NULL;
    lh_jobs *jobs = NULL;
    lh_enqueued made;
    lh_events *events = NULL;
    lh_outputs *outputs = NULL;
    lh_leases *leases = NULL;
    char why[480] = "", kept[64];

    EXPECT_OK(lh_open("s.db", &(lh_open_opts){.create = true}, &store));
    lh_new_job job = {.payload = "x", .payload_len = 1, .reserved = {[7] = 1}};
    EXPECT_STATUS(lh_enqueue(store, "q", &job, 1, NULL, &made), LH_EMISUSE);
    EXPECT_CONTAINS(lh_errmsg(store), "reserved fields");
    lh_beat beat = {.job = 1, .token = 1, .reserved = {[3] = 1}};
    EXPECT_STATUS(lh_heartbeat(store, &beat, 1, NULL, NULL), LH_EMISUSE);
    EXPECT_STATUS(lh_worker_heartbeat(store, "w", 0, &beat, 1, NULL), LH_EMISUSE);
    lh_done done = {.job = 1, .token = 1, .reserved = {[3] = 1}};
    EXPECT_STATUS(lh_complete(store, &done, 1, NULL, NULL), LH_EMISUSE);
    lh_failure failure = {.job = 1, .token = 1, .error = "e", .reserved = {[3] = 1}};
    EXPECT_STATUS(lh_fail(store, &failure, 1, NULL, NULL), LH_EMISUSE);
    EXPECT_STATUS(lh_job_list(store, &(lh_job_filter){.reserved = {[7] = 1}}, &jobs), LH_EMISUSE);
    lh_output_filter of = {.job = 1, .reserved = {[7] = 1}};
    EXPECT_STATUS(lh_output_list(store, &of, &outputs), LH_EMISUSE);
    lh_event_filter ef = {.reserved = {[7] = 1}};
    EXPECT_STATUS(lh_event_list(store, &ef, &events), LH_EMISUSE);
    lh_policy policy = {.set = LH_POLICY_LEASE, .lease_ms = 1000, .reserved = {[7] = 1}};
    EXPECT_STATUS(lh_policy_set(store, "q", NULL, &policy, 0), LH_EMISUSE);
    lh_schedule schedule = {.name = "s", .queue = "q", .cron = "* * * * *", .reserved = {[7] = 1}};
    EXPECT_STATUS(lh_schedule_set(store, &schedule), LH_EMISUSE);
    lh_lease_opts lease = {.reserved = {[7] = 1}};
    EXPECT_STATUS(lh_lease_acquire(store, "a", "b", &lease, &leases), LH_EMISUSE);
    EXPECT_STATUS(lh_backup(store, "copy.db", &(lh_backup_opts){.reserved = {[7] = 1}}),
                  LH_EMISUSE);
    EXPECT_CONTAINS(lh_errmsg(store), "reserved fields");
    lh_close(store);
    lh_move_opts move = {.reserved = {[7] = 1}};
    EXPECT_STATUS(lh_move("s.db", "t.db", &move, NULL, why, sizeof why), LH_EMISUSE);
    EXPECT_CONTAINS(why, "reserved fields");
    lh_open_opts open = {.reserved = {1}};
    EXPECT_STATUS(lh_restore("s.db", "copy.db", &open, kept, sizeof kept, why, sizeof why),
                  LH_EMISUSE);
    EXPECT_CONTAINS(why, "reserved fields");
}

/* ---- flags ---- */

static lh_flag stop;
static volatile sig_atomic_t caught;

static void on_signal(int sig)
{
    lh_flag_raise(&stop);
    caught = sig;
}

static void *raise_it(void *arg)
{
    lh_flag_raise(arg);
    return NULL;
}

TEST(flag_is_raised_by_threads_and_signal_handlers)
{
    pthread_t thread;

    EXPECT_EQ(lh_flag_raised(NULL), 0);
    EXPECT_EQ(lh_flag_raised(&stop), 0);
    EXPECT(signal(SIGUSR1, on_signal) != SIG_ERR);
    EXPECT_EQ(raise(SIGUSR1), 0);
    EXPECT_EQ(lh_flag_raised(&stop), 1);
    EXPECT(lh_flag_raised(&caught) !=
           0); /* a sig_atomic_t that a signal handler sets is a flag, too */
    EXPECT_EQ(pthread_create(&thread, NULL, raise_it, (void *)(uintptr_t)&stop), 0);
    EXPECT_EQ(pthread_join(thread, NULL), 0);
    EXPECT_EQ(lh_flag_raised(&stop), 2);
    lh_flag_lower(&stop);
    EXPECT_EQ(lh_flag_raised(&stop), 0);
}
