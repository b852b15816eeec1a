/*
 * Output for people: tables, colours on a terminal, ages instead of dates.
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

/** Whether to use colours: the stream is a terminal, TERM is not "dumb", and NO_COLOR is not
 *  set. */
bool text_colors(FILE *stream);
const char *style_on(enum style style, bool colors);
const char *style_off(enum style style, bool colors);
enum style style_of_state(lh_state state);

/** Decodes the UTF-8 character at the beginning of `text`. Returns its length in bytes; 0:
 *  invalid. */
size_t text_character(const char *text, size_t len, uint32_t *code);
/** Whether the character is a control or format character (Unicode Cc, Cf, Zl, Zp): invisible, or
 *  it changes how other text is shown. */
bool text_is_control(uint32_t code);
/** Appends text with such characters made visible, so that a payload or error message cannot move
 *  the cursor, fake a line, or reorder its letters. */
void text_visible(struct buf *out, const char *text, size_t len);
/** The same for text with several lines: line breaks and tabs are kept. */
void text_lines(struct buf *out, const char *text, size_t len);
/** The number of columns of a text, one for each character: good enough for alignment. */
size_t text_width(const char *text, size_t len);

/** Formats a duration in one rounded unit: "12s", "5m", "3h", "4d". Returns `buf`. */
char *text_span(int64_t ms, char *buf, size_t len);
/** Formats a time relative to now: "5m ago", "in 3h", "now". Returns `buf`. */
char *text_when(int64_t at, int64_t now, char *buf, size_t len);
/** The plural ending: "" for 1, else "s". */
const char *text_plural(int64_t n);
/** Appends a short list of ids: "17, 18 and 3 more". */
void text_ids(struct buf *out, const int64_t *ids, size_t n);
/** Formats a size, as in "1.2 MiB". Returns `buf`. */
char *text_bytes(int64_t bytes, char *buf, size_t len);

struct table {
    const char *const *heads; /* NULL at the end; a leading '>' means right-aligned */
    size_t columns;
    struct cell {
        const char *text;
        enum style style;
    } * cells;
    size_t n, cap;
    struct lhi_arena arena;
};

void table_begin(struct table *table, const char *const *heads);
void table_cell(struct table *table, enum style style, const char *text); /* NULL prints a dash */
void table_number(struct table *table, int64_t number);
/** Prints the head and the rows and frees the table. Without rows it prints nothing. */
void table_end(struct table *table);

/** `  label   text` with the label padded, for an item shown line by line. */
void text_field(const char *label, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
