/*
 * Text for people: colours, visible control characters, ages, tables.
 */
#include "text.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* ---- colours --------------------------------------------------------------------------------- */

bool text_colors(FILE *stream)
{
    const char *no = getenv("NO_COLOR");
    const char *term = getenv("TERM");

    return isatty(fileno(stream)) && (no == NULL || no[0] == '\0') && term != NULL &&
           strcmp(term, "dumb") != 0;
}

const char *style_on(enum style style, bool colors)
{
    static const char *const codes[] = {"",         "\033[2m",  "\033[1m", "\033[31m",
                                        "\033[32m", "\033[33m", "\033[36m"};

    return colors ? codes[style] : "";
}

const char *style_off(enum style style, bool colors)
{
    return colors && style != STYLE_NONE ? "\033[0m" : "";
}

enum style style_of_state(lh_state state)
{
    switch (state) {
    case LH_RUNNING:
        return STYLE_CYAN;
    case LH_COMPLETED:
        return STYLE_GREEN;
    case LH_FAILED:
        return STYLE_RED;
    case LH_CANCELLED:
        return STYLE_DIM;
    case LH_SCHEDULED:
        return STYLE_YELLOW;
    case LH_PENDING:
        break;
    }
    return STYLE_NONE;
}

/* ---- text ------------------------------------------------------------------------------------ */

size_t text_character(const char *text, size_t len, uint32_t *code)
{
    unsigned char c = len > 0 ? (unsigned char)text[0] : 0;
    size_t n = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;

    if (len < n || !lh_text_ok(text, n))
        return 0;
    *code = n == 1 ? c : c & (0xffU >> (n + 1));
    for (size_t i = 1; i < n; i++)
        *code = *code << 6 | ((unsigned char)text[i] & 0x3f);
    return n;
}

bool text_is_control(uint32_t code)
{
    static const struct {
        uint32_t first, last;
    } ranges[] = {
        {0x00, 0x1f},
        {0x7f, 0x9f},     /* C0, DEL and C1: these begin escape sequences */
        {0x2028, 0x2029}, /* Zl and Zp: line and paragraph separators */
        /* Cf of Unicode 15: invisible, or they change the order in which the text after them is
         * shown. */
        {0xad, 0xad},
        {0x600, 0x605},
        {0x61c, 0x61c},
        {0x6dd, 0x6dd},
        {0x70f, 0x70f},
        {0x890, 0x891},
        {0x8e2, 0x8e2},
        {0x180e, 0x180e},
        {0x200b, 0x200f},
        {0x202a, 0x202e},
        {0x2060, 0x206f},
        {0xfeff, 0xfeff},
        {0xfff9, 0xfffb},
        {0x110bd, 0x110bd},
        {0x110cd, 0x110cd},
        {0x13430, 0x1343f},
        {0x1bca0, 0x1bca3},
        {0x1d173, 0x1d17a},
        {0xe0000, 0xe007f},
    };

    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
        if (code >= ranges[i].first && code <= ranges[i].last)
            return true;
    return false;
}

void text_visible(struct buf *out, const char *text, size_t len)
{
    static const char special[] = "\n\r\t", letter[] = "nrt";
    uint32_t code = 0;

    for (size_t i = 0, n; i < len; i += n) {
        n = text_character(text + i, len - i, &code);
        const char *known = n == 1 && code != 0 ? strchr(special, (int)code) : NULL;
        if (n == 0) /* not UTF-8: a terminal with another encoding might obey the byte */
            buf_format(out, "\\x%02x", (unsigned)(unsigned char)text[i]);
        else if (known != NULL)
            buf_format(out, "\\%c", letter[known - special]);
        else if (text_is_control(code))
            buf_format(out,
                       code < 0x100     ? "\\x%02x"
                       : code < 0x10000 ? "\\u%04x"
                                        : "\\U%08x",
                       (unsigned)code);
        else
            buf_add(out, text + i, n);
        n = n == 0 ? 1 : n;
    }
}

void text_lines(struct buf *out, const char *text, size_t len)
{
    for (size_t i = 0; i < len;) {
        size_t n = 0;
        while (i + n < len && text[i + n] != '\n' && text[i + n] != '\t')
            n++;
        text_visible(out, text + i, n);
        i += n;
        if (i < len)
            buf_char(out, text[i++]);
    }
}

size_t text_width(const char *text, size_t len)
{
    size_t n = 0;

    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

char *text_span(int64_t ms, char *buf, size_t len)
{
    int64_t s = ms / 1000;

    if (s < 60)
        snprintf(buf, len, "%" PRId64 "s", s);
    else if (s < 3600)
        snprintf(buf, len, "%" PRId64 "m", s / 60);
    else if (s < INT64_C(172800))
        snprintf(buf, len, "%" PRId64 "h", s / 3600);
    else
        snprintf(buf, len, "%" PRId64 "d", s / 86400);
    return buf;
}

char *text_when(int64_t at, int64_t now, char *buf, size_t len)
{
    char span[32];

    if (at == 0)
        snprintf(buf, len, "-");
    else if (at > now + 999)
        snprintf(buf, len, "in %s", text_span(at - now, span, sizeof span));
    else if (now - at < 1000)
        snprintf(buf, len, "now");
    else
        snprintf(buf, len, "%s ago", text_span(now - at, span, sizeof span));
    return buf;
}

const char *text_plural(int64_t n)
{
    return n == 1 ? "" : "s";
}

void text_ids(struct buf *out, const int64_t *ids, size_t n)
{
    enum { MOST = 10 };

    for (size_t i = 0; i < n && i < MOST; i++)
        buf_format(out, "%s%" PRId64, i > 0 ? ", " : "", ids[i]);
    if (n > MOST)
        buf_format(out, " and %zu more", n - MOST);
}

char *text_bytes(int64_t bytes, char *buf, size_t len)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double n = (double)bytes;
    size_t u = 0;

    while (n >= 1024 && u + 1 < sizeof units / sizeof units[0]) {
        n /= 1024;
        u++;
    }
    snprintf(buf, len, u == 0 ? "%.0f %s" : "%.1f %s", n, units[u]);
    return buf;
}

void text_field(const char *label, const char *format, ...)
{
    bool colors = text_colors(stdout);
    va_list ap;

    printf("  %s%-14s%s ", style_on(STYLE_DIM, colors), label, style_off(STYLE_DIM, colors));
    va_start(ap, format);
    vprintf(format, ap);
    va_end(ap);
    putchar('\n');
}

/* ---- tables ---------------------------------------------------------------------------------- */

void table_begin(struct table *table, const char *const *heads)
{
    *table = (struct table){.heads = heads};
    while (heads[table->columns] != NULL)
        table->columns++;
}

void table_cell(struct table *table, enum style style, const char *text)
{
    struct buf visible = {0};

    if (table->n == table->cap) {
        table->cap = table->cap ? table->cap * 2 : 64;
        table->cells = mem_grow(table->cells, table->cap, sizeof *table->cells);
    }
    if (text == NULL || text[0] == '\0') {
        text = "-";
        style = STYLE_DIM;
    }
    text_visible(&visible, text, strlen(text));
    table->cells[table->n++] =
        (struct cell){arena_copy(&table->arena, visible.p, visible.n), style};
    buf_clear(&visible);
}

void table_number(struct table *table, int64_t number)
{
    char text[32];

    snprintf(text, sizeof text, "%" PRId64, number);
    table_cell(table, number == 0 ? STYLE_DIM : STYLE_NONE, text);
}

/** The width of the terminal; 0: standard output is no terminal, so nothing is cut. */
static size_t terminal_width(void)
{
    struct winsize size;

    if (!isatty(STDOUT_FILENO) || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0)
        return 0;
    return size.ws_col;
}

static void print_cell(struct buf *out, const char *text, size_t width, bool right, bool last,
                       enum style style, bool colors)
{
    size_t have = text_width(text, strlen(text));
    size_t pad = width > have ? width - have : 0;

    for (size_t i = 0; right && i < pad; i++)
        buf_char(out, ' ');
    buf_text(out, style_on(style, colors));
    buf_text(out, text);
    buf_text(out, style_off(style, colors));
    for (size_t i = 0; !right && !last && i < pad; i++)
        buf_char(out, ' ');
    if (!last)
        buf_text(out, "  ");
}

/** Removes trailing blanks, which an empty last column would leave. */
static void end_row(struct buf *out)
{
    while (out->n > 0 && out->p[out->n - 1] == ' ')
        out->n--;
    buf_char(out, '\n');
}

/** Cuts the last column, which holds long texts, so that a row fits on one line of the terminal. */
static const char *cut(struct lhi_arena *arena, const char *text, size_t room)
{
    const char *p = text;

    if (room == 0 || text_width(text, strlen(text)) <= room)
        return text;
    for (size_t n = 0; *p != '\0' && n + 1 < room; n++)
        do
            p++;
        while (((unsigned char)*p & 0xc0) == 0x80);
    {
        size_t len = (size_t)(p - text);
        char *copy = arena_alloc(arena, len + 4);
        memcpy(copy, text, len);
        memcpy(copy + len, "…", 4);
        return copy;
    }
}

void table_end(struct table *table)
{
    bool colors = text_colors(stdout);
    size_t *width = mem_array(table->columns, sizeof *width);
    size_t screen = terminal_width();
    size_t before_last = 0;
    struct buf out = {0};

    for (size_t c = 0; c < table->columns; c++)
        width[c] = strlen(table->heads[c]) - (table->heads[c][0] == '>');
    assert(table->columns > 0);
    for (size_t i = 0; i < table->n; i++) {
        size_t w = text_width(table->cells[i].text, strlen(table->cells[i].text));
        if (w > width[i % table->columns])
            width[i % table->columns] = w;
    }
    for (size_t c = 0; c + 1 < table->columns; c++)
        before_last += width[c] + 2;
    for (size_t c = 0; table->n > 0 && c < table->columns; c++) {
        const char *head = table->heads[c];
        print_cell(&out, head + (head[0] == '>'), width[c], head[0] == '>', c + 1 == table->columns,
                   STYLE_BOLD, colors);
    }
    if (table->n > 0)
        end_row(&out);
    for (size_t i = 0; i < table->n; i++) {
        size_t c = i % table->columns;
        bool last = c + 1 == table->columns;
        const char *text = table->cells[i].text;
        if (last && screen > before_last + 8)
            text = cut(&table->arena, text, screen - before_last);
        print_cell(&out, text, width[c], table->heads[c][0] == '>', last, table->cells[i].style,
                   colors);
        if (last)
            end_row(&out);
    }
    fwrite(buf_str(&out), 1, out.n, stdout);
    buf_clear(&out);
    free(width);
    free(table->cells);
    lhi_arena_clear(&table->arena);
}
