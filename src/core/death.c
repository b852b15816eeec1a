/*
 * death.c: who is dead, and what a death makes of a job.
 *
 * Both are decided here, from what the store knows at that moment, and written by the store behind a
 * guard: a worker that has beaten since is not dead, a job that has changed since is not touched.
 */
#include "store/store.h"

#include <stdlib.h>
#include <string.h>

/* ---- the fate of a job ---- */

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

/* What happened to the lease, with its machine-readable prefix. */
static void cause_words(const lh_job *job, const lh_recover_opts *opts, enum lhi_cause cause,
                        const char *what, char *buf, size_t len)
{
    char span[32];

    switch (cause) {
    case LHI_CAUSE_DEAD:
        lhi_format(buf, len, "RECLAIMED_DEAD: worker %s %s", job->worker ? job->worker : "?", what);
        break;
    case LHI_CAUSE_MANUAL:
        lhi_format(buf, len, "RECLAIMED_MANUAL: taken back by hand, silent for at least %s",
                   opts && opts->threshold_ms > 0
                       ? lh_duration_format(opts->threshold_ms, span, sizeof span)
                       : "0s");
        break;
    case LHI_CAUSE_TTL:
        lease_words(job->lease_ms, span, sizeof span);
        lhi_format(buf, len, "RECLAIMED_TTL: Exceeded TTL (%s)", span);
        break;
    }
}

static void attempt_words(const lh_job *job, char *buf, size_t len)
{
    if (job->max_attempts == LH_UNLIMITED)
        lhi_format(buf, len, "%lld/unlimited", (long long)job->attempt);
    else
        lhi_format(buf, len, "%lld/%lld", (long long)job->attempt, (long long)job->max_attempts);
}

/* The words of a dead worker name it themselves. */
static bool cause_of_worker(const char *cause)
{
    return strncmp(cause, "RECLAIMED_DEAD", 14) == 0;
}

static void explain(const lh_job *job, const lh_policy *policy, const char *cause, int64_t now,
                    bool unstarted, struct lhi_fate *fate)
{
    char attempt[64], who[224], age[32];
    bool names_worker = cause_of_worker(cause);
    int64_t seen =
        job->last_heartbeat_at > job->started_at ? job->last_heartbeat_at : job->started_at;
    int64_t deaths = job->recoveries + 1;
    const char *colon = strstr(cause, ": ");
    int prefix = colon ? (int)(colon - cause) : 0;

    attempt_words(job, attempt, sizeof attempt);
    lhi_format(who, sizeof who, "%s%s%slast seen %s ago", names_worker ? "" : "worker ",
               names_worker  ? ""
               : job->worker ? job->worker
                             : "?",
               names_worker ? "" : " ",
               lh_duration_format(now > seen ? now - seen : 0, age, sizeof age));
    if (fate->poison)
        lhi_format(fate->reason, sizeof fate->reason,
                   "POISON: %lld workers died under this job (max %lld), %s, %s", (long long)deaths,
                   (long long)policy->max_recoveries, cause, who);
    else if (unstarted)
        lhi_format(fate->reason, sizeof fate->reason, "%s before it started the job, %s", cause,
                   who);
    else if (fate->state == LH_FAILED && job->max_attempts != LH_UNLIMITED &&
             job->attempt >= job->max_attempts)
        lhi_format(fate->reason, sizeof fate->reason, "%.*s: Max attempts reached (%lld), %s, %s",
                   prefix, cause, (long long)job->max_attempts, colon ? colon + 2 : cause, who);
    else
        lhi_format(fate->reason, sizeof fate->reason, "%s%s attempt %s, %s", cause,
                   names_worker ? "," : " at", attempt, who);
}

void lhi_decide_death(const lh_job *job, const lh_policy *policy, const lh_recover_opts *opts,
                      enum lhi_cause cause, const char *what, bool unstarted, int64_t now,
                      struct lhi_fate *out)
{
    lh_action action = opts && opts->action ? opts->action : policy->action;
    bool spent = job->max_attempts != LH_UNLIMITED && job->attempt >= job->max_attempts;
    char words[320];

    *out = (struct lhi_fate){.state = LH_PENDING,
                             .attempt = job->attempt,
                             .recoveries = job->recoveries,
                             .shown_attempt = job->attempt};
    /* A worker that had not begun the job did it no harm: as if it had released it. */
    if (unstarted) {
        out->action = "released";
        out->attempt = job->attempt > 0 ? job->attempt - 1 : 0;
    } else if (policy->max_recoveries != LH_UNLIMITED &&
               job->recoveries >= policy->max_recoveries) {
        out->poison = true; /* judged first: whatever the action, this job kills */
        out->state = LH_FAILED;
    } else if (action == LH_ACTION_FAIL || (action == LH_ACTION_RETRY && spent)) {
        out->state = LH_FAILED;
    } else {
        out->recoveries = job->recoveries + 1;
        out->action = action == LH_ACTION_PENDING ? "pending" : "retry";
        if (action == LH_ACTION_PENDING)
            out->attempt = job->attempt > 0 ? job->attempt - 1 : 0;
        else
            out->shown_attempt = job->attempt + 1;
    }
    if (out->state == LH_FAILED)
        out->action = "failed";
    cause_words(job, opts, cause, what, words, sizeof words);
    explain(job, policy, words, now, unstarted, out);
}

/* ---- judging workers ---- */

bool lhi_same_place(const struct lhi_identity *a, const struct lhi_identity *b)
{
    return a->boot[0] != '\0' && strcmp(a->boot, b->boot) == 0 &&
           strcmp(a->machine, b->machine) == 0 && a->pid_ns != 0 && a->pid_ns == b->pid_ns &&
           a->time_ns == b->time_ns; /* start times of processes are shifted in each */
}

/* [[pid, start], …], as the store has it on record. False: no memory. */
bool lhi_leaders_parse(const char *json, struct lhi_arena *arena, struct lhi_suspect *worker)
{
    size_t room = strlen(json) / 5 + 1; /* [1,0], */
    struct lhi_leader *leaders = lhi_arena_alloc(arena, room * sizeof *leaders);
    const char *p = json;

    if (leaders == NULL)
        return false;
    for (; worker->n_leaders < room && *p == (worker->n_leaders == 0 ? '[' : ',') && p[1] == '[';
         worker->n_leaders++) {
        struct lhi_leader *leader = &leaders[worker->n_leaders];
        char *comma, *end;
        leader->pid = strtoll(p + 2, &comma, 10);
        if (*comma != ',')
            break;
        leader->start = strtoll(comma + 1, &end, 10);
        if (*end != ']')
            break;
        p = end + 1;
    }
    worker->has_sessions = true;
    worker->leaders = leaders;
    worker->unreadable = strcmp(p, "]") != 0 && strcmp(json, "[]") != 0;
    return true;
}

/* A beat comes every interval, give or take a tenth: half an interval more, and one was missed. */
static bool missed_a_beat(const struct lhi_suspect *worker, int64_t now)
{
    return now - worker->last_heartbeat_at > worker->interval_ms + worker->interval_ms / 2;
}

/* Of another boot. Where the holders are on many machines, it must be one of this machine; and because
 * the ids of machines may be cloned, a beat must be missing as well. */
static bool booted_anew(const struct lhi_suspect *worker, const struct lhi_identity *self,
                        int64_t now)
{
    const struct lhi_identity *id = &worker->process;

    if (strcmp(id->boot, self->boot) == 0)
        return false;
    return worker->boot_proves ||
           (self->machine[0] != '\0' && strcmp(id->machine, self->machine) == 0 &&
            missed_a_beat(worker, now));
}

/* Proven, not guessed: same machine, same boot, same namespaces of pids and time, and the process is gone with all
 * that it started. */
static bool proven_gone(const struct lhi_suspect *worker, const struct lhi_identity *self,
                        int64_t now, char what[96])
{
    const struct lhi_identity *id = &worker->process;

    if (id->pid == 0 || self->boot[0] == '\0' || id->boot[0] == '\0')
        return false;
    if (booted_anew(worker, self, now)) {
        lhi_format(what, 96, "is gone (another boot)");
        return true;
    }
    /* With sessions, only what was looked at after it was gone counts: it may have died just now. */
    if ((worker->has_sessions && !worker->nothing_left) || !lhi_same_place(id, self) ||
        !lhi_process_gone(id->pid, id->start))
        return false;
    lhi_format(what, 96, "is gone (pid %lld)", (long long)id->pid);
    return true;
}

static bool too_silent(const struct lhi_suspect *worker, int64_t now, char what[96])
{
    char silence[32], interval[32];
    int64_t silent = now - worker->last_heartbeat_at;

    if (silent < worker->interval_ms * worker->multiplier)
        return false;
    lhi_format(what, 96, "has been silent for %s (%lld × %s)",
               lh_duration_format(silent, silence, sizeof silence), (long long)worker->multiplier,
               lh_duration_format(worker->interval_ms, interval, sizeof interval));
    return true;
}

bool lhi_judge_worker(const struct lhi_suspect *worker, const struct lhi_identity *self,
                      int64_t now, struct lhi_death *out)
{
    int64_t silence = now - worker->last_heartbeat_at;

    *out = (struct lhi_death){.worker = worker->id,
                              .last_heartbeat_at = worker->last_heartbeat_at,
                              .sessions = worker->sessions,
                              .process = worker->process.pid != 0,
                              .beat_missed = silence > worker->interval_ms};
    out->silent = too_silent(worker, now, out->what);
    out->proven = proven_gone(worker, self, now, out->what);
    if (out->silent || out->proven)
        return true;
    out->late = !worker->late && missed_a_beat(worker, now);
    return out->late;
}
