/*
 * Output for people: tables, colours on a terminal that wants them, ages instead of dates.
 */
#ifndef LEASEHOLD_CLI_TEXT_H
#define LEASEHOLD_CLI_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <leasehold.h>

#include "cli/mem.h"

enum style { STYLE_NONE, STYLE_DIM, STYLE_BOLD, STYLE_RED, STYLE_GREEN, STYLE_YELLOW, STYLE_CYAN };

/** A terminal, and neither NO_COLOR nor a dumb one? */
bool text_colors(FILE *stream);
const char *style_on(enum style style, bool colors);
const char *style_off(enum style style, bool colors);
enum style style_of_state(lh_state state);

/** The UTF-8 character at the beginning of `text`: its length in bytes, 0 if there is none. */
size_t text_character(const char *text, size_t len, uint32_t *code);
/** Is it a control or format character (Unicode Cc, Cf, Zl, Zp): not shown, or other text is shown
 *  differently for it? */
bool text_is_control(uint32_t code);
/** Appends text with such characters made visible, so that no payload or error message can move the
 *  cursor, forge a line, or show its letters in another order. */
void text_visible(struct buf *out, const char *text, size_t len);
/** The same for text of several lines: ends of lines and tabs stay what they are. */
void text_lines(struct buf *out, const char *text, size_t len);
/** How many columns it takes; good enough for alignment: a character is one. */
size_t text_width(const char *text, size_t len);

/** "12s", "5m", "3h", "4d": short, and only as exact as a glance needs. Returns `buf`. */
char *text_span(int64_t ms, char *buf, size_t len);
/** "5m ago", "in 3h", "now". */
char *text_when(int64_t at, int64_t now, char *buf, size_t len);
/** "1 job", "2 jobs": the ending. */
const char *text_plural(int64_t n);
/** "17, 18 and 3 more": ids as a glance takes them in. */
void text_ids(struct buf *out, const int64_t *ids, size_t n);
/** "1.2 MiB" */
char *text_bytes(int64_t bytes, char *buf, size_t len);

struct table {
    const char *const *heads; /* NULL at the end; a leading '>' aligns the column to the right */
    size_t columns;
    struct cell {
        const char *text;
        enum style style;
    } * cells;
    size_t n, cap;
    struct lhi_arena arena;
};

void table_begin(struct table *table, const char *const *heads);
void table_cell(struct table *table, enum style style, const char *text); /* NULL: a dash */
void table_number(struct table *table, int64_t number);
/** Prints heads and rows (nothing at all without rows) and frees the table. */
void table_end(struct table *table);

/** `  label   text` with the label padded, for a thing told line by line. */
void text_field(const char *label, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
