/*
 * Draws tables on a screen of any width. On a narrow screen the least important columns are
 * dropped.
 */
#include "table.h"

#include <string.h>

enum {
    COLUMNS_MOST = 12,
    TEXT_LEAST = 12,
    BAR_LEAST = 6, /* a shorter bar is useless */
    BAR_TEXT = 6   /* columns of the number next to it */
};

static void cell(const struct rows *rows, const struct column *column, size_t line,
                 struct shown *out)
{
    out->text[0] = '\0';
    out->ink = INK_PLAIN;
    out->part = -1;
    column->show(rows->picture, rows->order[line], out);
}

/** The width that a column wants, for the visible rows. */
static int wanted(const struct frame *frame, const struct rows *rows, const struct column *column,
                  size_t lines)
{
    int width = (int)strlen(column->head);
    bool empty = true;
    struct shown shown;

    for (size_t i = rows->first; i < rows->n && i < rows->first + lines; i++) {
        int takes;
        cell(rows, column, i, &shown);
        takes = frame_width(frame, shown.text);
        width = takes > width ? takes : width;
        empty = empty && takes == 0;
    }
    if (empty && column->rank > 0 && lines > 0)
        return 0; /* all cells are empty: drop the column */
    if (column->bar)
        width = column->most;
    return column->most > 0 && width > column->most ? column->most : width;
}

/** The least width of a column: names and texts may be cut and bars may be short; numbers stay
 *  whole. */
static int least(const struct column *column, int want)
{
    int enough = column->bar ? BAR_TEXT + BAR_LEAST : column->right ? want : TEXT_LEAST;

    return want < enough ? want : enough;
}

/** The column to drop next: the one with the highest rank; below 0: none may be dropped. */
static int least_needed(const struct column *columns, const int *width)
{
    int found = -1;

    for (int i = 0; columns[i].head != NULL; i++)
        if (width[i] > 0 && columns[i].rank > 0 &&
            (found < 0 || columns[i].rank > columns[found].rank))
            found = i;
    return found;
}

/** Computes the widths of all columns; 0 means dropped. Each column gets its least width, and those
 *  that want more share the rest. */
static void fit(const struct frame *frame, const struct rows *rows, size_t lines, int *width)
{
    int want[COLUMNS_MOST] = {0}, spare = frame->cols + TABLE_GAP, drop;

    for (int i = 0; rows->columns[i].head != NULL; i++) {
        want[i] = wanted(frame, rows, &rows->columns[i], lines);
        width[i] = least(&rows->columns[i], want[i]);
        spare -= width[i] > 0 ? width[i] + TABLE_GAP : 0;
    }
    while (spare < 0 && (drop = least_needed(rows->columns, width)) >= 0) {
        spare += width[drop] + TABLE_GAP;
        width[drop] = 0;
    }
    for (bool grown = true; spare > 0 && grown;) {
        grown = false;
        for (int i = 0; rows->columns[i].head != NULL && spare > 0; i++)
            if (width[i] > 0 && width[i] < want[i]) {
                width[i]++;
                spare--;
                grown = true;
            }
    }
}

static void draw_cell(struct frame *frame, int row, int col, int width, const struct column *column,
                      const struct shown *shown)
{
    if (column->bar && shown->part >= 0 && width > BAR_TEXT) {
        frame_bar(frame, row, col, width - BAR_TEXT, shown->ink, shown->part);
        frame_right(frame, row, col + width - BAR_TEXT, BAR_TEXT, shown->ink, shown->text);
    } else if (column->right || column->bar) {
        frame_right(frame, row, col, width, shown->ink, shown->text);
    } else {
        frame_text(frame, row, col, width, shown->ink, shown->text);
    }
}

static void draw_column(struct frame *frame, int row, int col, int width, const struct rows *rows,
                        const struct column *column, size_t lines)
{
    struct shown shown;

    if (column->right)
        frame_right(frame, row, col, width, INK_BOLD, column->head);
    else
        frame_text(frame, row, col, width, INK_BOLD, column->head);
    for (size_t i = 0; i < lines; i++) {
        cell(rows, column, rows->first + i, &shown);
        draw_cell(frame, row + 1 + (int)i, col, width, column, &shown);
    }
}

int table_rows(const struct rows *rows)
{
    return 1 + (rows->n > 0 ? (int)rows->n : 1) + (rows->more > 0);
}

size_t table_lines(int room, const struct rows *rows)
{
    size_t lines = room > 1 ? (size_t)room - 1 : 0, left = rows->n - rows->first;

    /* The last line says how many more rows there are, unless there is only one line. */
    if ((lines < left || rows->more > 0) && lines > 1 && !rows->open_end)
        lines--;
    return lines < left ? lines : left;
}

size_t table_draw(struct frame *frame, int row, int room, const struct rows *rows)
{
    size_t lines = table_lines(room, rows);
    size_t more = rows->n - rows->first - lines + rows->more;
    int width[COLUMNS_MOST] = {0}, col = 0;
    char text[64];

    fit(frame, rows, lines, width);
    for (int i = 0; rows->columns[i].head != NULL; i++) {
        if (width[i] == 0)
            continue;
        draw_column(frame, row, col, width[i], rows, &rows->columns[i], lines);
        col += width[i] + TABLE_GAP;
    }
    if (rows->n == 0 && room > 1)
        frame_text(frame, row + 1, 0, frame->cols, INK_DIM, rows->none);
    snprintf(text, sizeof text, "%s %zu more", frame->ascii ? "..." : "…", more);
    if (more > 0 && room > 2 && !rows->open_end)
        frame_text(frame, row + 1 + (int)lines, 0, frame->cols, INK_DIM, text);
    return lines;
}
