/*
 * JSON in and out.
 *
 * Output is written by hand, not through a tree: a payload or result that is JSON appears byte for
 * byte as it was stored (1.10 stays 1.10, a number beyond 2^63 stays itself, the order and the
 * number of keys stay), only without the white space between its tokens. A tree of values would
 * change all of these. For the same reason text is judged by a scanner of ours, which also bounds
 * the nesting; jansson decodes the strings that we need the meaning of (bulk.c).
 */
#ifndef LEASEHOLD_CLI_JSON_H
#define LEASEHOLD_CLI_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <leasehold.h>

#include "cli/mem.h"

/* ---- judging text ---------------------------------------------------------------------------- */

#define JSON_DEPTH 64

struct js_error {
    const char *what; /* "a value was expected" */
    size_t at;        /* byte, from 0 */
};

/** Is it one JSON value (RFC 8259), nested at most JSON_DEPTH deep? `compact` (NULL: not wanted) is
 *  appended the same value without white space; after a failure its new content is of no use. */
bool js_valid(const char *text, size_t len, struct buf *compact, struct js_error *error);

/** Walks over the members of an object: start with `at` on the text of one that js_valid() has
 *  made compact, at its opening brace. Key and value come as written, the key with its quotes. */
struct js_member {
    const char *at;
    const char *key, *value;
    size_t key_len, value_len;
};

bool js_next_member(struct js_member *member);

/* ---- writing --------------------------------------------------------------------------------- */

/* Commas are put where they belong by looking at what was written last. */
struct js {
    struct buf buf;
};

void js_open(struct js *json, char bracket); /* '{' or '[' */
void js_close(struct js *json, char bracket);
void js_key(struct js *json, const char *key);
void js_null(struct js *json);
void js_int(struct js *json, int64_t value);
void js_int_or_null(struct js *json, int64_t value, int64_t none);
void js_bool(struct js *json, bool value);
void js_text(struct js *json, const char *text); /* NULL: null */
void js_time(struct js *json, int64_t ms);       /* 0: null */
void js_raw(struct js *json, const char *text, size_t len);

void js_key_int(struct js *json, const char *key, int64_t value);
void js_key_bool(struct js *json, const char *key, bool value);
void js_key_text(struct js *json, const char *key, const char *text);
void js_key_time(struct js *json, const char *key, int64_t ms);
/** Text that should be JSON, as that value; what is none appears as a string. */
void js_key_value(struct js *json, const char *key, const char *text);

/** Ends the line. Characters that a terminal would obey (text_is_control()) are written by their
 *  numbers: the same JSON. */
void js_end_line(struct js *json);
/** One line on standard output; the writer is empty afterwards. */
void js_line(struct js *json);
void js_clear(struct js *json);

/* ---- our nouns ------------------------------------------------------------------------------- */

/** A limit of attempts: a number, "unlimited", null for 0. */
void js_attempts(struct js *json, int64_t most);
void js_job(struct js *json, const lh_job *job, const lh_events *events, bool claimed);
void js_job_line(const lh_job *job);
void js_event(struct js *json, const lh_event *event);
void js_lease(struct js *json, const lh_lease *lease);
void js_schedule(struct js *json, const lh_schedule *schedule);
/** `stale`: the same worker as lh_workers_stale() has it; NULL: it is none of them. `asked`: whether
 *  anybody looked. */
void js_worker(struct js *json, const lh_worker *worker, bool asked, const lh_worker *stale);
void js_queue(struct js *json, const lh_queue *queue, bool all);
/** The fields in `policy->set`, as keys of the object that is open. */
void js_policy(struct js *json, const lh_policy *policy);

/* ---- base64 ---------------------------------------------------------------------------------- */

void base64_encode(struct buf *out, const void *bytes, size_t len);
bool base64_decode(struct buf *out, const char *text, size_t len);

#endif
