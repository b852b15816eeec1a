/*
 * move.c: lh_move(): copying everything from one store to another.
 *
 * The source is closed first, so that nothing changes in it; the target is closed until it is complete. Rows
 * are copied in the order of their keys, one batch per transaction, so an interrupted move continues after
 * the last row of the target. At the end every row of both stores is read and compared. Then the source is
 * given up, and after that the target is opened: the two are never writable at once.
 */
#include "core/core.h"

#include "base/checksum.h"
#include "base/hook.h"
#include "base/sys.h"

#include <string.h>

struct move {
    const lh_move_opts *opts;
    lh_store *from, *to;
    struct lhi_standing source, target;
    char from_url[1024], to_url[1024]; /* for messages, without passwords */
    char id[40];
    bool closed_now; /* this call has closed the source */
    bool again;      /* copy everything again, do not continue an earlier call */
    bool differs;    /* the rows of the target differ from those of the source */
    int64_t done, total;
    int64_t moved[LHI_MOVED_TABLES];
};

/* The number of rows of a table, and a checksum over the rows and their order. */
struct digest {
    int64_t n;
    uint64_t sum;
};

/* ---- the state of both stores ---- */

static int read_standing(lh_store *store, struct lhi_standing *out, struct lhi_error *err)
{
    struct lhi_act act = {.verb = LHI_MOVE_LOOK, .standing = out};
    memset(out, 0, sizeof *out);
    return lhi_read(store, &act, err);
}

static int step(lh_store *store, enum lhi_move_step which, const struct move *m,
                const struct lhi_standing *other, const char *url, struct lhi_error *err)
{
    struct lhi_act act = {.verb = LHI_MOVE,
                          .move = {.step = which,
                                   .id = m->id,
                                   .other = other->uuid,
                                   .url = url,
                                   .again = m->again,
                                   .source = &m->source}};
    return lhi_perform(store, &act, err);
}

static int at_source(struct move *m, enum lhi_move_step which, struct lhi_error *err)
{
    return step(m->from, which, m, &m->target, m->to_url, err);
}

static int at_target(struct move *m, enum lhi_move_step which, struct lhi_error *err)
{
    return step(m->to, which, m, &m->source, m->from_url, err);
}

static int read_rows(lh_store *store, enum lhi_moved table, const struct lhi_cell *after, bool last,
                     struct lhi_rows *out, struct lhi_error *err)
{
    struct lhi_act act = {.verb = LHI_MOVE_READ,
                          .rows = {.table = table, .after = after, .last = last, .out = out}};
    *out = (struct lhi_rows){0};
    return lhi_read(store, &act, err);
}

static int interrupted(const struct move *m, struct lhi_error *err)
{
    return lhi_raised(m->opts->cancel)
               ? lhi_fail(err, LH_EINTR, "interrupted: run it again, and it goes on from there")
               : LH_OK;
}

static void report_progress(struct move *m, size_t rows)
{
    m->done += (int64_t)rows;
    if (m->opts->progress != NULL)
        m->opts->progress(m->opts->progress_arg, m->done, m->total);
}

/* ---- rows ---- */

static int put_rows(struct move *m, enum lhi_moved table, const struct lhi_rows *rows,
                    struct lhi_error *err)
{
    struct lhi_act act = {.verb = LHI_MOVE,
                          .move = {.step = LHI_MOVE_PUT,
                                   .id = m->id,
                                   .other = m->source.uuid,
                                   .url = m->from_url,
                                   .table = table,
                                   .rows = rows}};
    int rc = lhi_perform(m->to, &act, err);

    LHI_POINT("move:batch");
    return rc;
}

/* Copy the rows after the last one that the target has. */
static int copy_table(struct move *m, enum lhi_moved table, struct lhi_error *err)
{
    size_t width = lhi_moved[table].n;
    struct lhi_rows rows, last;
    int rc = read_rows(m->to, table, NULL, true, &last, err);
    const struct lhi_cell *after = rc == LH_OK && last.n > 0 ? last.cell : NULL;

    while (rc == LH_OK && (rc = interrupted(m, err)) == LH_OK) {
        rc = read_rows(m->from, table, after, false, &rows, err);
        if (rc == LH_OK && rows.n > 0)
            rc = put_rows(m, table, &rows, err);
        lhi_rows_clear(&last);
        last = rows; /* it has the keys after which to continue */
        if (rc != LH_OK || rows.n == 0)
            break;
        after = rows.cell + (rows.n - 1) * width;
        report_progress(m, rows.n);
    }
    lhi_rows_clear(&last);
    return rc;
}

/* ---- comparing ---- */

static void mix(struct digest *d, uint64_t value)
{
    d->sum = (d->sum ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    d->sum ^= d->sum >> 32;
}

static void mix_cell(struct digest *d, enum lhi_cell_type type, const struct lhi_cell *cell)
{
    mix(d, cell->null ? 1 : 2);
    if (cell->null)
        return;
    if (type == LHI_CELL_TEXT || type == LHI_CELL_ANY || type == LHI_CELL_BYTES ||
        type == LHI_CELL_REFS) {
        mix(d, cell->len);
        mix(d, (uint64_t)lhi_checksum(cell->bytes, cell->len));
    } else {
        mix(d, (uint64_t)cell->number);
    }
}

static void mix_rows(struct digest *d, enum lhi_moved table, const struct lhi_rows *rows)
{
    size_t width = lhi_moved[table].n;

    for (size_t i = 0; i < rows->n * width; i++)
        mix_cell(d, lhi_moved[table].column[i % width].type, &rows->cell[i]);
    d->n += (int64_t)rows->n;
}

static int digest(struct move *m, lh_store *store, enum lhi_moved table, struct digest *out,
                  struct lhi_error *err)
{
    size_t width = lhi_moved[table].n;
    struct lhi_rows rows, last = {0};
    const struct lhi_cell *after = NULL;
    int rc = LH_OK;

    *out = (struct digest){0};
    while (rc == LH_OK && (rc = interrupted(m, err)) == LH_OK) {
        rc = read_rows(store, table, after, false, &rows, err);
        lhi_rows_clear(&last);
        last = rows;
        if (rc != LH_OK || rows.n == 0)
            break;
        mix_rows(out, table, &rows);
        after = rows.cell + (rows.n - 1) * width;
        report_progress(m, rows.n);
    }
    lhi_rows_clear(&last);
    return rc;
}

static int compare_table(struct move *m, enum lhi_moved table, struct lhi_error *err)
{
    struct digest here, there;
    int rc = digest(m, m->from, table, &here, err);

    if (rc != LH_OK || (rc = digest(m, m->to, table, &there, err)) != LH_OK)
        return rc;
    m->moved[table] = here.n;
    if (here.n == there.n && here.sum == there.sum)
        return LH_OK;
    m->differs = true;
    return lhi_fail(
        err, LH_EFAIL,
        "%lld rows of \"%s\" with checksum %016llx became %lld with %016llx: the source "
        "is whole, and closed; \"leasehold move --abandon\" opens it",
        (long long)here.n, lhi_moved[table].name, (unsigned long long)here.sum, (long long)there.n,
        (unsigned long long)there.sum);
}

/* ---- the steps ---- */

/* Recover jobs whose leases have expired: a running job prevents the move. */
static int recover_source(struct move *m, struct lhi_error *err)
{
    lh_maintained ignored;
    int rc = lh_maintain(m->from, &(lh_maintain_opts){0}, &ignored);
    return rc < 0 ? lhi_fail(err, rc, "%s", lh_errmsg(m->from)) : LH_OK;
}

static int refuse_source(const struct move *m, struct lhi_error *err)
{
    if (strcmp(m->source.uuid, m->target.uuid) == 0)
        return lhi_fail(err, LH_EINVAL, "\"%.200s\" and \"%.200s\" are the same store", m->from_url,
                        m->to_url);
    if (m->source.part == LHI_PART_TARGET)
        return lhi_fail(err, LH_ESTATE,
                        "store \"%.200s\" is itself being filled: that move comes first",
                        m->from_url);
    bool bound = m->source.part == LHI_PART_SOURCE || m->source.part == LHI_PART_GONE;
    if (!bound || strcmp(m->source.other, m->target.uuid) == 0)
        return LH_OK;
    if (m->source.part == LHI_PART_GONE)
        return lhi_fail(err, LH_ESTATE, "store \"%.200s\" was moved to another store already",
                        m->from_url);
    return lhi_fail(err, LH_ESTATE,
                    "store \"%.200s\" is being moved to another store: finish that, or give it up "
                    "by \"leasehold move --abandon\"",
                    m->from_url);
}

static int refuse_target(const struct move *m, struct lhi_error *err)
{
    if (m->target.part == LHI_PART_TARGET)
        return strcmp(m->target.other, m->source.uuid) == 0
                   ? LH_OK
                   : lhi_fail(err, LH_ESTATE,
                              "store \"%.200s\" is being filled from another store: a new one is "
                              "needed",
                              m->to_url);
    if (m->target.part == LHI_PART_SOURCE || m->target.part == LHI_PART_GONE || !m->target.empty)
        return lhi_fail(err, LH_ESTATE,
                        "store \"%.200s\" is not empty: a store is moved into a new one",
                        m->to_url);
    return LH_OK;
}

static int close_source(struct move *m, struct lhi_error *err)
{
    int rc;

    if (m->source.part == LHI_PART_SOURCE) {
        lhi_format(m->id, sizeof m->id, "%s", m->source.move);
        return LH_OK;
    }
    lhi_uuid(m->id);
    if ((rc = recover_source(m, err)) != LH_OK || (rc = at_source(m, LHI_MOVE_CLOSE, err)) != LH_OK)
        return rc;
    m->closed_now = true;
    LHI_POINT("move:closed");
    return read_standing(m->from, &m->source, err);
}

static int prepare_target(struct move *m, struct lhi_error *err)
{
    struct lhi_error ignored;
    int rc = at_target(m, LHI_MOVE_PREPARE, err);

    /* The move failed at once: open the source again if this call closed it. */
    if (rc != LH_OK && m->closed_now)
        (void)at_source(m, LHI_MOVE_REOPEN, &ignored);
    LHI_POINT("move:prepared");
    return rc;
}

static int transfer(struct move *m, struct lhi_error *err)
{
    int rc = LH_OK;

    m->done = 0;
    m->total = 3 * m->source.rows;
    for (int i = 0; i < LHI_MOVED_TABLES && rc == LH_OK; i++)
        rc = copy_table(m, (enum lhi_moved)i, err);
    m->done = m->source.rows; /* including the rows of an earlier call */
    for (int i = 0; i < LHI_MOVED_TABLES && rc == LH_OK; i++)
        rc = compare_table(m, (enum lhi_moved)i, err);
    return rc;
}

/* Copy everything once more. After a new boot or a jump of the clock the source has changed its deadlines, so
 * the rows that an earlier call copied may differ. */
static int transfer_again(struct move *m, struct lhi_error *err)
{
    int rc;

    m->again = true;
    lhi_error_clear(err);
    if ((rc = at_target(m, LHI_MOVE_PREPARE, err)) != LH_OK)
        return rc;
    return transfer(m, err);
}

/* Give up the source, then open the target. In between neither is writable. */
static int hand_over(struct move *m, struct lhi_error *err)
{
    int rc = LH_OK;

    if (m->source.part != LHI_PART_GONE)
        rc = at_source(m, LHI_MOVE_LEAVE, err);
    LHI_POINT("move:left");
    if (rc == LH_OK)
        rc = at_target(m, LHI_MOVE_FINISH, err);
    LHI_POINT("move:finished");
    return rc;
}

/* The source is given up, so everything was compared: only the last step may be missing. */
static int finish(struct move *m, bool *already, struct lhi_error *err)
{
    lhi_format(m->id, sizeof m->id, "%s", m->source.move);
    *already = m->target.part == LHI_PART_FILLED && strcmp(m->target.move, m->id) == 0;
    if (*already)
        return LH_OK;
    if (m->target.part != LHI_PART_TARGET || strcmp(m->target.move, m->id) != 0)
        return lhi_fail(err, LH_ESTATE, "store \"%.200s\" was moved to another store already",
                        m->from_url);
    return hand_over(m, err);
}

static int run(struct move *m, bool *already, struct lhi_error *err)
{
    int rc;

    *already = false;
    if ((rc = refuse_source(m, err)) != LH_OK)
        return rc;
    if (m->source.part == LHI_PART_GONE)
        return finish(m, already, err);
    if ((rc = refuse_target(m, err)) != LH_OK || (rc = close_source(m, err)) != LH_OK ||
        (rc = prepare_target(m, err)) != LH_OK)
        return rc;
    rc = transfer(m, err);
    if (m->differs && !m->closed_now)
        rc = transfer_again(m, err);
    return rc == LH_OK ? hand_over(m, err) : rc;
}

/* ---- the call ---- */

static int open_one(const char *url, const lh_open_opts *how, bool target, lh_store **out,
                    char name[1024], struct lhi_error *err)
{
    lh_open_opts opts = *how;
    lh_store_info info;

    opts.read_only = false;
    opts.create = opts.adopt = target;
    opts.startup = false;
    opts.recover_later = true; /* a closed store is not recovered; recover_source() does the rest */
    int rc = lh_open(url, &opts, out);
    if (rc == LH_OK && (rc = lh_store_status(*out, &info)) == LH_OK)
        lhi_format(name, 1024, "%s", info.url);
    return rc == LH_OK ? LH_OK : lhi_fail(err, rc, "%s", lh_errmsg(*out));
}

static void fill_in(const struct move *m, bool already, lh_moved *out)
{
    if (out == NULL)
        return;
    *out = (lh_moved){.already = already,
                      .jobs = m->moved[LHI_MOVED_JOB],
                      .events = m->moved[LHI_MOVED_EVENT],
                      .leases = m->moved[LHI_MOVED_LEASE],
                      .policies = m->moved[LHI_MOVED_POLICY] + m->moved[LHI_MOVED_SCOPE],
                      .schedules = m->moved[LHI_MOVED_SCHEDULE]};
}

static int move_all(struct move *m, const char *from, const char *to, const lh_open_opts *open,
                    lh_moved *out, struct lhi_error *err)
{
    bool already;
    int rc;

    if ((rc = open_one(from, open, false, &m->from, m->from_url, err)) != LH_OK ||
        (rc = open_one(to, open, true, &m->to, m->to_url, err)) != LH_OK ||
        (rc = read_standing(m->from, &m->source, err)) != LH_OK ||
        (rc = read_standing(m->to, &m->target, err)) != LH_OK ||
        (rc = run(m, &already, err)) != LH_OK)
        return rc;
    fill_in(m, already, out);
    return LH_OK;
}

static int abandon(struct move *m, const char *from, const lh_open_opts *open,
                   struct lhi_error *err)
{
    int rc;

    if ((rc = open_one(from, open, false, &m->from, m->from_url, err)) != LH_OK ||
        (rc = read_standing(m->from, &m->source, err)) != LH_OK)
        return rc;
    if (m->source.part == LHI_PART_GONE)
        return lhi_fail(err, LH_ESTATE, "store \"%.200s\" was moved: there is nothing to give up",
                        m->from_url);
    if (m->source.part != LHI_PART_SOURCE)
        return lhi_fail(err, LH_ESTATE, "store \"%.200s\" is not being moved", m->from_url);
    lhi_format(m->id, sizeof m->id, "%s", m->source.move);
    return at_source(m, LHI_MOVE_REOPEN, err);
}

int lh_move(const char *from, const char *to, const lh_move_opts *opts, lh_moved *out, char *errmsg,
            size_t errlen)
{
    static const lh_move_opts defaults;
    static const lh_open_opts open_defaults;
    struct lhi_error err;
    struct move m = {.opts = opts ? opts : &defaults};
    const lh_open_opts *open = m.opts->open ? m.opts->open : &open_defaults;
    int rc;

    lhi_error_clear(&err);
    if (from == NULL || (to == NULL && !m.opts->abandon))
        rc = lhi_fail(&err, LH_EMISUSE, "store is missing");
    else if ((rc = LHI_NEED_RESERVED(m.opts, &err)) != LH_OK)
        ; /* this checks the address without opening anything */
    else if (m.opts->abandon)
        rc = abandon(&m, from, open, &err);
    else
        rc = move_all(&m, from, to, open, out, &err);
    lh_close(m.to);
    lh_close(m.from);
    if (errmsg != NULL && errlen > 0)
        lhi_format(errmsg, errlen, "%s", err.text);
    return rc;
}
