/*
 * A grid of characters, independent of the device. All text passes through here, so this file makes
 * control characters harmless: none can move a cursor, hide other text, or fake a line.
 */
#include "top.h"

#include <stdlib.h>
#include <string.h>

void frame_init(struct frame *frame, int rows, int cols, bool ascii)
{
    rows = rows > 0 ? rows : 1;
    cols = cols > 0 ? cols : 1;
    *frame = (struct frame){.rows = rows, .cols = cols, .ascii = ascii};
    frame->spot = mem_array((size_t)rows * (size_t)cols, sizeof *frame->spot);
    for (int i = 0; i < rows * cols; i++)
        frame->spot[i].c = L' ';
}

void frame_clear(struct frame *frame)
{
    free(frame->spot);
    *frame = (struct frame){0};
}

struct spot *frame_spot(const struct frame *frame, int row, int col)
{
    if (row < 0 || row >= frame->rows || col < 0 || col >= frame->cols)
        return NULL;
    return &frame->spot[row * frame->cols + col];
}

/* ---- text ------------------------------------------------------------------------------------ */

/** Decodes the next UTF-8 character; an invalid byte becomes a question mark. */
static wchar_t next_char(const char **text)
{
    const unsigned char *p = (const unsigned char *)*text;
    int more = *p < 0x80 ? 0 : *p >= 0xc2 && *p < 0xe0 ? 1 : *p >= 0xe0 && *p < 0xf0 ? 2 : 3;
    uint32_t c = more == 0 ? *p : *p & (0x3fU >> more);

    if (more == 3 && (*p < 0xf0 || *p > 0xf4))
        more = -1;
    for (int i = 1; i <= more; i++) {
        if ((p[i] & 0xc0) != 0x80) {
            more = -1;
            break;
        }
        c = c << 6 | (p[i] & 0x3f);
    }
    *text += more < 0 ? 1 : more + 1;
    return more < 0 ? L'?' : (wchar_t)c;
}

/** The character to show: itself, or a harmless replacement. Sets its width; 0 for one without
 *  width. */
static int harmless(const struct frame *frame, wchar_t *c)
{
    int width;

    if (*c >= 0x20 && *c < 0x7f)
        return 1;
    /* A terminal without UTF-8 cannot show our ellipsis and bars either: they are drawn
     * differently. */
    width = frame->ascii ? -1 : wcwidth(*c);
    if (width < 0 || *c < 0xa0) {
        *c = L'?';
        return 1;
    }
    return width;
}

/** Control characters in a readable form, as in ^C. */
static void make_visible(struct buf *out, const char *text)
{
    text_visible(out, text, strlen(text));
}

static int visible_width(const struct frame *frame, const char *text)
{
    int width = 0;

    while (*text != '\0') {
        wchar_t c = next_char(&text);
        width += harmless(frame, &c);
    }
    return width;
}

int frame_width(const struct frame *frame, const char *text)
{
    struct buf visible = {0};
    int width;

    make_visible(&visible, text);
    width = visible_width(frame, buf_str(&visible));
    buf_clear(&visible);
    return width;
}

static void put(struct frame *frame, int row, int col, unsigned ink, wchar_t c, int width)
{
    struct spot *spot = frame_spot(frame, row, col);
    struct spot *half = width == 2 ? frame_spot(frame, row, col + 1) : spot;

    if (spot == NULL || half == NULL)
        return;
    half->c = 0;
    half->ink = ink;
    spot->c = c;
    spot->ink = ink;
}

int frame_text(struct frame *frame, int row, int col, int width, unsigned ink, const char *text)
{
    struct buf visible = {0};
    const char *p;
    int used = 0, room;

    make_visible(&visible, text);
    p = buf_str(&visible);
    room = visible_width(frame, p) > width ? width - 1 : width;
    while (*p != '\0') {
        wchar_t c = next_char(&p);
        int w = harmless(frame, &c);
        if (used + w > room)
            break;
        if (w > 0) /* leave out combining marks */
            put(frame, row, col + used, ink, c, w);
        used += w;
    }
    if (room < width && width > 0)
        put(frame, row, col + used++, ink, frame->ascii ? L'~' : L'…', 1);
    buf_clear(&visible);
    return used;
}

void frame_right(struct frame *frame, int row, int col, int width, unsigned ink, const char *text)
{
    int takes = frame_width(frame, text);

    if (takes > width)
        takes = width;
    frame_text(frame, row, col + width - takes, takes, ink, text);
}

void frame_bar(struct frame *frame, int row, int col, int width, unsigned ink, double part)
{
    static const wchar_t eighths[] = L" ▏▎▍▌▋▊▉";
    int units = frame->ascii ? 2 : 8;
    int full;

    part = part < 0 ? 0 : part > 1 ? 1 : part;
    full = (int)(part * width * units + 0.5);
    for (int i = 0; i < width; i++) {
        int here = full - i * units;
        wchar_t c = L' ';
        if (here >= units)
            c = frame->ascii ? L'=' : L'█';
        else if (here > 0)
            c = frame->ascii ? L'-' : eighths[here];
        put(frame, row, col + i, ink, c, 1);
    }
}

void frame_line(struct frame *frame, int row, unsigned ink)
{
    for (int col = 0; col < frame->cols && row >= 0 && row < frame->rows; col++)
        frame_spot(frame, row, col)->ink |= ink;
}

/* ---- printing -------------------------------------------------------------------------------- */

static void add_utf8(struct buf *out, wchar_t wide)
{
    uint32_t c = (uint32_t)wide;

    if (c < 0x80) {
        buf_char(out, (char)c);
        return;
    }
    if (c >= 0x10000)
        buf_char(out, (char)(0xf0 | c >> 18));
    if (c >= 0x800)
        buf_char(out, (char)(c >= 0x10000 ? 0x80 | (c >> 12 & 0x3f) : 0xe0 | c >> 12));
    buf_char(out, (char)(c >= 0x800 ? 0x80 | (c >> 6 & 0x3f) : 0xc0 | c >> 6));
    buf_char(out, (char)(0x80 | (c & 0x3f)));
}

void frame_print(const struct frame *frame)
{
    struct buf line = {0};

    for (int row = 0; row < frame->rows; row++) {
        buf_reset(&line);
        for (int col = 0; col < frame->cols; col++) {
            wchar_t c = frame_spot(frame, row, col)->c;
            if (c != 0)
                add_utf8(&line, c);
        }
        while (line.n > 0 && line.p[line.n - 1] == ' ')
            line.n--;
        buf_char(&line, '\n');
        fwrite(line.p, 1, line.n, stdout);
    }
    buf_clear(&line);
}
