/*
 * Reading and writing JSON.
 *
 * A payload or result that is JSON is printed byte for byte as it was stored, except for white
 * space between tokens: 1.10 stays 1.10, a number beyond 2^63 stays exact, and the order and number
 * of keys stay the same. A library that parses into a tree would change all of these, so this code
 * works on the text.
 */
#ifndef LEASEHOLD_CLI_JSON_H
#define LEASEHOLD_CLI_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <leasehold.h>

#include "cli/mem.h"

/* ---- scan.c: is it JSON? --------------------------------------------------------------------- */

#define JSON_DEPTH 64

struct js_error {
    const char *what; /* "a value was expected" */
    size_t at;        /* byte, from 0 */
};

/** Whether the text is one JSON value (RFC 8259), nested at most JSON_DEPTH deep. The same value without white
 *  space is appended to `compact` (NULL: not wanted); after a failure its content is undefined. */
bool js_valid(const char *text, size_t len, struct buf *compact, struct js_error *error);

/* ---- read.c: values out of valid text -------------------------------------------------------- */

/** Walks over the members of an object. Start with `at` on the opening brace of compact text from js_valid().
 *  Key and value are as written, with quotes and escapes. */
struct js_member {
    const char *at;
    const char *key, *value;
    size_t key_len, value_len;
};

bool js_next_member(struct js_member *member);

/** Finds the whole number under `key` in an object. False: the text is no object, or has no such number. */
bool js_find_int(const char *text, const char *key, int64_t *out);

/** Appends the characters of a valid JSON string, given with its quotes. False: it contains half of a surrogate
 *  pair, which is no character. */
bool js_decode_string(struct buf *out, const char *text, size_t len);

/* ---- write.c --------------------------------------------------------------------------------- */

/* The last character written tells whether a comma is needed. */
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
/** The text as a JSON value if it is valid JSON, else as a string. */
void js_key_value(struct js *json, const char *key, const char *text);

/** Ends the line. Control characters (text_is_control()) are escaped as \uXXXX: the value stays the same, and a
 *  terminal does not obey them. */
void js_end_line(struct js *json);
/** Prints the line on standard output; the writer is empty afterwards. */
void js_line(struct js *json);
void js_clear(struct js *json);

/* ---- nouns.c --------------------------------------------------------------------------------- */

/** A limit of attempts: a number, "unlimited", null for 0. */
void js_attempts(struct js *json, int64_t most);
void js_job(struct js *json, const lh_job *job, const lh_events *events, bool claimed);
void js_job_line(const lh_job *job);
void js_event(struct js *json, const lh_event *event);
void js_lease(struct js *json, const lh_lease *lease);
void js_schedule(struct js *json, const lh_schedule *schedule);
/** `stale` is the worker's entry in lh_workers_stale(); NULL: it has none. `asked` is false if the caller did not
 *  call that function. */
void js_worker(struct js *json, const lh_worker *worker, bool asked, const lh_worker *stale);
void js_queue(struct js *json, const lh_queue *queue, bool all);
/** Adds the fields in `policy->set` to the open object. */
void js_policy(struct js *json, const lh_policy *policy);

/* ---- base64.c -------------------------------------------------------------------------------- */

void base64_encode(struct buf *out, const void *bytes, size_t len);
bool base64_decode(struct buf *out, const char *text, size_t len);

#endif
