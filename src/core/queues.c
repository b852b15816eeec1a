/* queues.c: the public calls for queues and policies: checking the arguments, asking the store. */
#include "core/core.h"

#include <string.h>

int lh_queue_list(lh_store *store, lh_queues **out)
{
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);
    if (err == NULL)
        return rc;
    if (lhi_need_out(out, err) != LH_OK)
        return err->status;
    lh_queues *queues = lhi_result_new(sizeof *queues, err);
    if (queues == NULL)
        return err->status;
    struct lhi_act act = {.verb = LHI_QUEUE_LIST, .queues = {.out = queues}};
    rc = lhi_read(store, &act, err);
    if (rc == LH_OK)
        *out = queues;
    else
        lh_queues_free(queues);
    return rc;
}

void lh_queues_free(lh_queues *queues)
{
    if (queues != NULL)
        lhi_result_free(queues, queues->priv, queues->queue);
}

static int queue_act(lh_store *store, struct lhi_act *act)
{
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);
    if (err == NULL)
        return rc;
    rc = lhi_need_name("queue", act->queue.queue, err);
    return rc == LH_OK ? lhi_perform(store, act, err) : rc;
}

int lh_queue_pause(lh_store *store, const char *queue)
{
    struct lhi_act act = {.verb = LHI_QUEUE_PAUSE, .queue = {.queue = queue, .paused = true}};
    return queue_act(store, &act);
}

int lh_queue_resume(lh_store *store, const char *queue)
{
    struct lhi_act act = {.verb = LHI_QUEUE_PAUSE, .queue = {.queue = queue, .paused = false}};
    return queue_act(store, &act);
}

int lh_queue_purge(lh_store *store, const char *queue, int64_t *purged)
{
    struct lhi_act act;
    int64_t count = 0;

    /* In batches, so that other writers get their turn. */
    do {
        act = (struct lhi_act){.verb = LHI_QUEUE_PURGE, .queue = {.queue = queue}};
        int rc = queue_act(store, &act);
        if (rc != LH_OK)
            return rc;
        count += act.queue.count;
    } while (act.queue.more);
    if (purged != NULL)
        *purged = count;
    return LH_OK;
}

int lh_queue_delete(lh_store *store, const char *queue)
{
    struct lhi_act act = {.verb = LHI_QUEUE_DELETE, .queue = {.queue = queue}};
    return queue_act(store, &act);
}

/* ---- policies ---- */

static int check_scope_of_policy(const char *queue, const char *kind, struct lhi_error *err)
{
    int rc = LH_OK;
    if (queue != NULL)
        rc = lhi_need_name("queue", queue, err);
    if (rc == LH_OK && kind != NULL)
        rc = lhi_need_name("kind", kind, err);
    return rc;
}

int lh_policy_set(lh_store *store, const char *queue, const char *kind, const lh_policy *policy,
                  unsigned unset)
{
    static const lh_policy nothing;
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);

    if (err == NULL)
        return rc;
    if (policy == NULL)
        policy = &nothing;
    if ((rc = LHI_NEED_RESERVED(policy, err)) != LH_OK ||
        (rc = check_scope_of_policy(queue, kind, err)) != LH_OK ||
        (rc = lhi_check_policy(queue, kind, policy, err)) != LH_OK)
        return rc;
    if (policy->set == 0 && unset == 0)
        return LH_OK;
    struct lhi_act act = {.verb = LHI_POLICY_SET,
                          .policy = {.queue = queue ? queue : "*",
                                     .kind = kind ? kind : "*",
                                     .policy = policy,
                                     .unset = unset}};
    return lhi_perform(store, &act, err);
}

int lh_policy_list(lh_store *store, lh_policies **out)
{
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);
    if (err == NULL)
        return rc;
    if (lhi_need_out(out, err) != LH_OK)
        return err->status;
    lh_policies *policies = lhi_result_new(sizeof *policies, err);
    if (policies == NULL)
        return err->status;
    struct lhi_act act = {.verb = LHI_POLICY_LIST, .policies = {.out = policies}};
    rc = lhi_read(store, &act, err);
    if (rc == LH_OK)
        *out = policies;
    else
        lh_policies_free(policies);
    return rc;
}

void lh_policies_free(lh_policies *policies)
{
    if (policies != NULL)
        lhi_policies_clear(policies);
    lhi_free(policies);
}

int lh_policy_get(lh_store *store, const char *queue, const char *kind, lh_policy *out)
{
    lh_policies *rows = NULL;
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);

    if (err == NULL)
        return rc;
    if ((rc = lhi_need_out(out, err)) != LH_OK ||
        (rc = check_scope_of_policy(queue, kind, err)) != LH_OK)
        return rc;
    if ((rc = lh_policy_list(store, &rows)) != LH_OK)
        return rc;
    lhi_policy_resolve(rows, queue, kind, out);
    lh_policies_free(rows);
    return LH_OK;
}

int lh_scope_set(lh_store *store, const char *scope, int64_t ttl_ms)
{
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);
    struct lhi_act act = {.verb = LHI_SCOPE_SET, .scope = {.scope = scope, .ttl_ms = ttl_ms}};

    if (err == NULL)
        return rc;
    if ((rc = lhi_need_name("scope", scope, err)) != LH_OK ||
        (rc = lhi_need_duration("ttl", ttl_ms, 0, LHI_MAX_LEASE_MS, err)) != LH_OK)
        return rc;
    return lhi_perform(store, &act, err);
}
