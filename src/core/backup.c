/* backup.c: the public calls that write and restore backups. */
#include "core/core.h"

static int need_path(const char *path, struct lhi_error *err)
{
    if (path == NULL)
        return lhi_fail(err, LH_EMISUSE, "name of the copy is missing");
    if (path[0] == '\0')
        return lhi_fail(err, LH_EINVAL, "name of the copy is empty");
    return LH_OK;
}

int lh_backup(lh_store *store, const char *path, const lh_backup_opts *opts)
{
    static const lh_backup_opts defaults;
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);
    struct lhi_act act = {.verb = LHI_BACKUP,
                          .backup = {.path = path, .opts = opts ? opts : &defaults}};

    if (err == NULL)
        return rc;
    rc = LHI_NEED_RESERVED(act.backup.opts, err);
    if (rc == LH_OK)
        rc = need_path(path, err);
    return rc == LH_OK ? lhi_read(store, &act, err) : rc;
}

int lh_restore(const char *url, const char *path, const lh_open_opts *opts, char *kept,
               size_t keptlen, char *errmsg, size_t errlen)
{
    static const lh_open_opts defaults;
    struct lhi_error err;
    int rc;

    if (opts == NULL)
        opts = &defaults;
    struct lhi_log log = {.fn = opts->log, .arg = opts->log_arg};
    lhi_error_clear(&err);
    if (url == NULL)
        rc = lhi_fail(&err, LH_EMISUSE, "store is missing");
    else if ((rc = LHI_NEED_RESERVED(opts, &err)) != LH_OK)
        ; /* checks the arguments only */
    else if (opts->read_only)
        rc = lhi_fail(&err, LH_EMISUSE, "a store that is only read cannot be restored");
    else if (opts->busy_ms < 0)
        rc = lhi_fail(&err, LH_EINVAL, "busy timeout is negative");
    else if ((rc = need_path(path, &err)) == LH_OK)
        rc = lhi_store_restore(url, path, opts, &log, kept, keptlen, &err);
    if (errmsg != NULL && errlen > 0)
        lhi_format(errmsg, errlen, "%s", err.text);
    return rc;
}
