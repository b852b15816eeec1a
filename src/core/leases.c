/* leases.c: the public calls for named leases: checking the arguments, asking the store. */
#include "core/core.h"

#include <string.h>

enum { MAX_LEASE_NAME = 256, MAX_VALUE = 64 << 10 };

static int check_lease_name(const char *scope, const char *name, struct lhi_error *err)
{
    int rc = lhi_need_name("scope", scope, err);
    if (rc != LH_OK)
        return rc;
    size_t len = name ? strnlen(name, MAX_LEASE_NAME + 1) : 0;
    bool ok = len >= 1 && len <= MAX_LEASE_NAME;
    for (size_t i = 0; i < len && ok; i++)
        ok = name[i] > ' ' && name[i] <= '~';
    return ok ? LH_OK
              : lhi_fail(err, LH_EINVAL,
                         "lease name \"%.140s\" is not allowed: 1 to 256 printable ASCII "
                         "characters without a space",
                         name ? name : "");
}

static int check_opts(const lh_lease_opts *opts, enum lhi_lease_verb verb, struct lhi_error *err)
{
    int rc = LHI_NEED_RESERVED(opts, err);

    if (rc == LH_OK && opts->owner != NULL)
        rc = lhi_need_name("owner", opts->owner, err);
    if (rc == LH_OK && opts->ttl_ms != 0)
        rc = lhi_need_duration("ttl", opts->ttl_ms, 1, LHI_MAX_LEASE_MS, err);
    if (rc == LH_OK && opts->by_ms != 0)
        rc = lhi_need_duration("extension", opts->by_ms, 1, LHI_MAX_LEASE_MS, err);
    if (rc == LH_OK && opts->by_ms != 0 && (opts->ttl_ms != 0 || verb != LHI_LEASE_EXTEND))
        rc = lhi_fail(err, LH_EINVAL, "a lease is extended by a time or to a ttl, not both");
    if (rc == LH_OK && opts->token < 0)
        rc = lhi_fail(err, LH_EINVAL, "token %lld is not a token: tokens start at 1",
                      (long long)opts->token);
    if (rc == LH_OK && opts->has_rows)
        rc = lhi_need_range("rows", opts->rows, 0, INT64_MAX, err);
    if (rc == LH_OK && opts->value != NULL)
        rc = lhi_need_text("value", opts->value, MAX_VALUE, err);
    return rc;
}

static int lease_act(lh_store *store, enum lhi_lease_verb verb, const char *scope, const char *name,
                     const lh_lease_opts *opts, lh_leases **out, bool *released)
{
    static const lh_lease_opts defaults;
    lh_leases *leases = NULL;
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);

    if (err == NULL)
        return rc;
    if (opts == NULL)
        opts = &defaults;
    if ((rc = check_lease_name(scope, name, err)) != LH_OK ||
        (rc = check_opts(opts, verb, err)) != LH_OK)
        return rc;
    if (out != NULL && (leases = lhi_result_new(sizeof *leases, err)) == NULL)
        return err->status;
    struct lhi_act act = {.verb = LHI_LEASE_ACT,
                          .lease = {.verb = verb,
                                    .scope = scope,
                                    .name = name,
                                    .opts = opts,
                                    .owner = opts->owner ? opts->owner : store->owner,
                                    .out = leases}};
    rc = lhi_perform(store, &act, err);
    if (released != NULL)
        *released = rc == LH_OK && act.lease.released;
    if (out != NULL && leases->n > 0 && (rc == LH_OK || rc == LH_EHELD))
        *out = leases;
    else
        lh_leases_free(leases);
    return rc;
}

int lh_lease_acquire(lh_store *store, const char *scope, const char *name,
                     const lh_lease_opts *opts, lh_leases **out)
{
    return lease_act(store, LHI_LEASE_ACQUIRE, scope, name, opts, out, NULL);
}

int lh_lease_extend(lh_store *store, const char *scope, const char *name, const lh_lease_opts *opts,
                    lh_leases **out)
{
    return lease_act(store, LHI_LEASE_EXTEND, scope, name, opts, out, NULL);
}

int lh_lease_release(lh_store *store, const char *scope, const char *name,
                     const lh_lease_opts *opts, bool *released)
{
    return lease_act(store, LHI_LEASE_RELEASE, scope, name, opts, NULL, released);
}

int lh_lease_complete(lh_store *store, const char *scope, const char *name,
                      const lh_lease_opts *opts, lh_leases **out)
{
    return lease_act(store, LHI_LEASE_COMPLETE, scope, name, opts, out, NULL);
}

void lh_leases_free(lh_leases *leases)
{
    if (leases != NULL)
        lhi_result_free(leases, leases->priv, leases->lease);
}

static int read_leases(lh_store *store, const char *scope, const char *name, struct lhi_error *err,
                       lh_leases **out)
{
    lh_leases *leases = lhi_result_new(sizeof *leases, err);
    if (leases == NULL)
        return err->status;
    struct lhi_act act = {.verb = LHI_LEASE_LIST,
                          .leases = {.scope = scope, .name = name, .out = leases}};
    int rc = lhi_read(store, &act, err);
    if (rc == LH_OK)
        *out = leases;
    else
        lh_leases_free(leases);
    return rc;
}

int lh_lease_get(lh_store *store, const char *scope, const char *name, lh_leases **out)
{
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);
    if (err == NULL)
        return rc;
    if ((rc = lhi_need_out(out, err)) != LH_OK ||
        (rc = check_lease_name(scope, name, err)) != LH_OK)
        return rc;
    return read_leases(store, scope, name, err, out);
}

int lh_lease_list(lh_store *store, const char *scope, lh_leases **out)
{
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);
    if (err == NULL)
        return rc;
    if ((rc = lhi_need_out(out, err)) != LH_OK ||
        (scope != NULL && (rc = lhi_need_name("scope", scope, err)) != LH_OK))
        return rc;
    return read_leases(store, scope, NULL, err, out);
}

int lh_lease_is_stale(lh_store *store, const char *scope, const char *name, bool *stale)
{
    lh_leases *leases = NULL;
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);

    if (err == NULL)
        return rc;
    if ((rc = lhi_need_out(stale, err)) != LH_OK)
        return rc;
    rc = lh_lease_get(store, scope, name, &leases);

    if (rc == LH_ENOTFOUND) {
        *stale = false;
        return LH_OK;
    }
    if (rc == LH_OK && leases != NULL)
        *stale = leases->lease[0].stale;
    lh_leases_free(leases);
    return rc;
}
