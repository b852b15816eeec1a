/* store.c: the handle: opening and closing, errors per thread, and calls on the store as a whole. */
#include "core/core.h"

#include "base/clock.h"
#include "base/sys.h"

#include <string.h>
#include <unistd.h>

/* ---- errors per thread ---- */

static void forget_slot(void *arg)
{
    struct lhi_slot *slot = arg;
    lh_store *store = slot->owner;

    pthread_mutex_lock(&store->slots_mutex);
    if (slot->prev != NULL)
        slot->prev->next = slot->next;
    else
        store->slots = slot->next;
    if (slot->next != NULL)
        slot->next->prev = slot->prev;
    pthread_mutex_unlock(&store->slots_mutex);
    lhi_free(slot);
}

static struct lhi_error *thread_error(lh_store *store)
{
    struct lhi_slot *slot = store->has_key ? pthread_getspecific(store->key) : NULL;

    if (slot != NULL)
        return &slot->err;
    if (!store->has_key || (slot = lhi_calloc(1, sizeof *slot)) == NULL)
        return &store->open_err;
    slot->owner = store;
    if (pthread_setspecific(store->key, slot) != 0) {
        lhi_free(slot);
        return &store->open_err;
    }
    pthread_mutex_lock(&store->slots_mutex);
    slot->next = store->slots;
    if (slot->next != NULL)
        slot->next->prev = slot;
    store->slots = slot;
    pthread_mutex_unlock(&store->slots_mutex);
    return &slot->err;
}

struct lhi_error *lhi_enter(lh_store *store, int *status)
{
    if (store == NULL) {
        *status = LH_EMISUSE;
        return NULL;
    }
    if (store->pid != getpid()) {
        *status =
            lhi_fail(&store->open_err, LH_EMISUSE,
                     "store was opened by process %d: a forked child cannot use the handle of "
                     "its parent",
                     (int)store->pid);
        return NULL;
    }
    if (store->store.ops == NULL) {
        *status = LH_EMISUSE; /* keep the reason why opening failed */
        return NULL;
    }
    struct lhi_error *err = thread_error(store);
    lhi_error_clear(err);
    return err;
}

static const struct lhi_error *last_error(const lh_store *store)
{
    if (store->pid != getpid() || store->store.ops == NULL || !store->has_key)
        return &store->open_err;
    const struct lhi_slot *slot = pthread_getspecific(store->key);
    return slot ? &slot->err : &store->open_err;
}

const char *lh_errmsg(const lh_store *store)
{
    return store ? last_error(store)->text : "out of memory";
}

const char *lh_last_request(const lh_store *store)
{
    return store ? last_error(store)->request : "";
}

/* ---- performing ---- */

int lhi_perform_all(lh_store *store, struct lhi_act *acts, size_t n, struct lhi_error *err)
{
    int64_t began = store->trace ? lhi_mono_us() : 0;
    int rc = store->store.ops->perform(store->store.self, acts, n, err);

    if (store->trace)
        lhi_trace(acts, n, rc, began);
    return rc;
}

int lhi_perform(lh_store *store, struct lhi_act *act, struct lhi_error *err)
{
    int rc = lhi_perform_all(store, act, 1, err);
    if (rc < 0)
        return rc;
    if (act->err.status < 0)
        *err = act->err;
    return act->err.status < 0 ? act->err.status : rc;
}

int lhi_read(lh_store *store, struct lhi_act *act, struct lhi_error *err)
{
    int64_t began = store->trace ? lhi_mono_us() : 0;
    int rc = store->store.ops->read(store->store.self, act, err);

    if (store->trace)
        lhi_trace(act, 1, rc, began);
    return rc;
}

int lhi_statuses(struct lhi_act *act, struct lhi_error *err)
{
    act->status = lhi_calloc(act->n, sizeof *act->status);
    return act->status ? LH_OK : lhi_no_memory(err);
}

int lhi_list_outcome(int whole, const struct lhi_act *act, int *status, struct lhi_error *err)
{
    int outcome = whole < 0 ? whole : LH_OK;

    for (size_t i = 0; i < act->n; i++) {
        int rc = whole < 0 ? whole : act->status[i];
        if (outcome == LH_OK)
            outcome = rc;
        if (status != NULL)
            status[i] = rc;
    }
    if (whole >= 0 && act->err.status < 0)
        *err = act->err;
    return outcome;
}

/* ---- results ---- */

void *lhi_result_new(size_t size, struct lhi_error *err)
{
    void *p = lhi_calloc(1, size);
    if (p == NULL)
        (void)lhi_no_memory(err);
    return p;
}

void lhi_result_free(void *result, void *priv, void *array)
{
    lhi_arena_drop(&priv);
    lhi_free(array);
    lhi_free(result);
}

/* ---- opening ---- */

static void make_owner(lh_store *store)
{
    struct lhi_identity self;
    uint32_t nonce = 0;

    lhi_identify(&self);
    (void)lhi_random(&nonce, sizeof nonce);
    for (char *p = self.host; *p != '\0'; p++)
        if (!lh_name_ok((char[]){*p, '\0'}))
            *p = '-';
    lhi_format(store->owner, sizeof store->owner, "%.64s-%lld-%08x", self.host, (long long)self.pid,
               nonce);
}

int lh_open(const char *url, const lh_open_opts *opts, lh_store **out)
{
    static const lh_open_opts defaults;

    if (out == NULL)
        return LH_EMISUSE;
    lh_store *store = lhi_calloc(1, sizeof *store);
    *out = store;
    if (store == NULL)
        return LH_ENOMEM;
    if (opts == NULL)
        opts = &defaults;
    store->pid = getpid();
    store->log = (struct lhi_log){.fn = opts->log, .arg = opts->log_arg};
    pthread_mutex_init(&store->slots_mutex, NULL);
    struct lhi_error *err = &store->open_err;
    if (url == NULL)
        return lhi_fail(err, LH_EMISUSE, "store is missing");
    int rc = LHI_NEED_RESERVED(opts, err);
    if (rc != LH_OK)
        return rc;
    if (opts->busy_ms < 0)
        return lhi_fail(err, LH_EINVAL, "busy timeout is negative");
    if (opts->max_connections != 0 &&
        (rc = lhi_need_range("max_connections", opts->max_connections, 2, 9, err)) != LH_OK)
        return rc;
    store->has_key = pthread_key_create(&store->key, forget_slot) == 0;
    make_owner(store);
    store->no_recovery = opts->no_recovery;
    store->trace = lhi_trace_wanted();
    store->health.wal_frames = -1;
    rc = lhi_store_open(url, opts, &store->log, &store->store, &store->health, err);
    return rc == LH_OK ? lhi_recover_at_startup(store, opts, err) : rc;
}

void lh_close(lh_store *store)
{
    if (store == NULL)
        return;
    /* In a forked child the connections belong to the parent, and a thread that does not exist here may hold
     * the locks. base/forks.h has closed what the child must not keep. */
    if (store->store.ops != NULL && store->pid == getpid())
        store->store.ops->close(store->store.self);
    if (store->has_key)
        pthread_key_delete(store->key);
    while (store->slots != NULL) {
        struct lhi_slot *slot = store->slots;
        store->slots = slot->next;
        lhi_free(slot);
    }
    pthread_mutex_destroy(&store->slots_mutex);
    lhi_free(store->left.process);
    lhi_health_clear(&store->health);
    lhi_free(store);
}

int64_t lh_now(lh_store *store)
{
    if (store == NULL || store->store.ops == NULL || store->pid != getpid())
        return lhi_wall_ms();
    return store->store.ops->now(store->store.self);
}

int lh_store_clock(const lh_store *store)
{
    return store == NULL || store->store.ops == NULL ? CLOCK_MONOTONIC : store->store.ops->clock;
}

const char *lh_default_owner(lh_store *store)
{
    return store ? store->owner : "";
}

const char *lh_version(void)
{
    return LH_VERSION;
}

const char *lh_engine_version(void)
{
    return lhi_engine_version();
}

int lh_schema_version(void)
{
    return lhi_schema_version();
}

/* ---- the store as a whole ---- */

void lhi_set_degraded(lh_store *store, const char *why)
{
    pthread_mutex_lock(&store->slots_mutex);
    lhi_format(store->degraded, sizeof store->degraded, "%s%s",
               why ? "recovery at startup failed: " : "", why ? why : "");
    pthread_mutex_unlock(&store->slots_mutex);
}

/* Count workers as dead whose processes are gone, although the store has not recorded that yet. */
static int count_workers(lh_store *store, lh_store_info *out, struct lhi_error *err)
{
    struct lhi_suspects suspects = {0};
    struct lhi_death *deaths = NULL;
    size_t n = 0;
    int rc = lhi_judge_workers(store, &suspects, &deaths, &n, err);

    for (size_t i = 0; i < n; i++) {
        if (!deaths[i].proven || deaths[i].silent)
            continue;
        out->workers_dead++;
        int64_t *counted = deaths[i].beat_missed ? &out->workers_late : &out->workers_alive;
        *counted -= *counted > 0; /* the worker may have registered after the count */
        out->next_due_at = lh_now(store);
    }
    lhi_free(deaths);
    lhi_suspects_clear(&suspects);
    return rc;
}

int lh_store_status(lh_store *store, lh_store_info *out)
{
    struct lhi_act act = {.verb = LHI_STATS, .info = out};
    lh_recovered stale;
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);

    if (err == NULL)
        return rc;
    if ((rc = lhi_need_out(out, err)) != LH_OK || (rc = lhi_read(store, &act, err)) != LH_OK ||
        (rc = lhi_count_stale(store, NULL, &stale, err)) != LH_OK ||
        (rc = count_workers(store, out, err)) != LH_OK)
        return rc;
    out->stale_jobs = stale.entries_reclaimed;
    out->stale_leases = stale.locks_cleaned;
    pthread_mutex_lock(&store->slots_mutex);
    if (out->degraded[0] == '\0')
        lhi_format(out->degraded, sizeof out->degraded, "%s", store->degraded);
    pthread_mutex_unlock(&store->slots_mutex);
    return LH_OK;
}

int lh_check(lh_store *store, const lh_flag *cancel, lh_findings **out)
{
    int status;
    struct lhi_error *err = lhi_enter(store, &status);
    if (err == NULL)
        return status;
    if (lhi_need_out(out, err) != LH_OK)
        return err->status;
    lh_findings *findings = lhi_result_new(sizeof *findings, err);
    if (findings == NULL)
        return err->status;
    struct lhi_act act = {.verb = LHI_CHECK, .check = {.cancel = cancel, .out = findings}};
    int rc = lhi_read(store, &act, err);
    if (rc < 0)
        lh_findings_free(findings);
    else
        *out = findings;
    return rc;
}

void lh_findings_free(lh_findings *findings)
{
    if (findings != NULL)
        lhi_result_free(findings, findings->priv, findings->finding);
}

int lh_drop_sql(lh_store *store, char **out)
{
    struct lhi_act act = {.verb = LHI_DROP_SQL, .drop_sql = out};
    int status;
    struct lhi_error *err = lhi_enter(store, &status);

    if (err == NULL)
        return status;
    return lhi_need_out(out, err) == LH_OK ? lhi_read(store, &act, err) : err->status;
}

const char *lh_store_kind(const char *url)
{
    return url ? lhi_store_kind(url) : "";
}

int lh_schema_of(const char *url, int *version, char *errmsg, size_t errlen)
{
    struct lhi_error err;
    if (url == NULL || version == NULL)
        return LH_EMISUSE;
    lhi_error_clear(&err);
    int rc = lhi_schema_of(url, version, &err);
    if (rc < 0 && errmsg != NULL && errlen > 0)
        lhi_format(errmsg, errlen, "%s", err.text);
    return rc;
}
