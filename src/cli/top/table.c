/* Tables on a screen of any width: the least needed columns are dropped where it is narrow. */
#include "table.h"

#include <string.h>

enum {
    COLUMNS_MOST = 12,
    TEXT_LEAST = 12,
    BAR_LEAST = 6, /* a bar with fewer columns says nothing */
    BAR_TEXT = 6   /* the columns of the number beside it */
};

static void cell(const struct rows *rows, const struct column *column, size_t line,
                 struct shown *out)
{
    out->text[0] = '\0';
    out->ink = INK_PLAIN;
    out->part = -1;
    column->show(rows->picture, rows->order[line], out);
}

/** How wide a column would like to be, for the lines that are shown. */
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
        return 0; /* nobody has any: no reason to take room */
    if (column->bar)
        width = column->most;
    return column->most > 0 && width > column->most ? column->most : width;
}

/** What a column can do with: names and texts may be cut, bars be short, numbers stay whole. */
static int least(const struct column *column, int want)
{
    int enough = column->bar ? BAR_TEXT + BAR_LEAST : column->right ? want : TEXT_LEAST;

    return want < enough ? want : enough;
}

/** The one to do without: of the highest rank; below 0: all must stay. */
static int least_needed(const struct column *columns, const int *width)
{
    int found = -1;

    for (int i = 0; columns[i].head != NULL; i++)
        if (width[i] > 0 && columns[i].rank > 0 &&
            (found < 0 || columns[i].rank > columns[found].rank))
            found = i;
    return found;
}

/** The widths of all columns, 0 for those that are dropped: each gets its least, and what is left is
 *  shared by those that want more. */
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

    /* The last line tells how many there are besides, unless it is the only one. */
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
