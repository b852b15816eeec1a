/* The words of a recovery. What is decided is decided by the store's one statement. */
#include "store/store.h"

/* "30 min", as people who set a lease of half an hour say it. */
static void lease_words(int64_t ms, char *buf, size_t len)
{
    if (ms % 60000 == 0)
        lhi_format(buf, len, "%lld min", (long long)(ms / 60000));
    else if (ms % 1000 == 0)
        lhi_format(buf, len, "%lld s", (long long)(ms / 1000));
    else
        lhi_format(buf, len, "%lld ms", (long long)ms);
}

void lhi_death_words(const lh_job *job, int64_t now, char what[64], char who[224])
{
    char lease[32], age[32];
    int64_t seen =
        job->last_heartbeat_at > job->started_at ? job->last_heartbeat_at : job->started_at;

    lease_words(job->lease_ms, lease, sizeof lease);
    lhi_format(what, 64, "Exceeded TTL (%s)", lease);
    lhi_format(who, 224, "worker %s last seen %s ago", job->worker ? job->worker : "?",
               lh_duration_format(now > seen ? now - seen : 0, age, sizeof age));
}
