/*
 * Words: lists of allowed words, the nearest word to a misspelt one, and values quoted for messages.
 */
#include <stdio.h>
#include <string.h>

#include "value.h"

bool value_word_at(const char *words, size_t place, char *buf, size_t len)
{
    const char *p = words;

    for (size_t i = 1; *p != '\0'; i++) {
        size_t n = strcspn(p, " ");
        if (i == place) {
            snprintf(buf, len, "%.*s", (int)n, p);
            return true;
        }
        p += n;
        p += strspn(p, " ");
    }
    return false;
}

size_t value_word_place(const char *words, const char *word)
{
    char one[64];

    for (size_t i = 1; value_word_at(words, i, one, sizeof one); i++)
        if (strcmp(one, word) == 0)
            return i;
    return 0;
}

char *value_quote(const char *text, char *buf, size_t len)
{
    enum { MOST = 60 };
    size_t n = strlen(text);

    if (n <= MOST) {
        snprintf(buf, len, "\"%s\"", text);
        return buf;
    }
    n = MOST;
    while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80) /* do not cut a UTF-8 character */
        n--;
    snprintf(buf, len, "\"%.*s…\"", (int)n, text);
    return buf;
}

/** The number of edits (insert, delete, replace, swap of neighbours) that turn `a` into `b`. */
static size_t distance(const char *a, const char *b)
{
    enum { LONGEST = 40 };
    size_t row[3][LONGEST + 1];
    size_t la = strlen(a), lb = strlen(b);

    if (la > LONGEST || lb > LONGEST)
        return LONGEST;
    for (size_t j = 0; j <= lb; j++)
        row[0][j] = j;
    for (size_t i = 1; i <= la; i++) {
        size_t *now = row[i % 3], *up = row[(i + 2) % 3], *upup = row[(i + 1) % 3];
        now[0] = i;
        for (size_t j = 1; j <= lb; j++) {
            size_t best = up[j - 1] + (a[i - 1] != b[j - 1]);
            if (up[j] + 1 < best)
                best = up[j] + 1;
            if (now[j - 1] + 1 < best)
                best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                upup[j - 2] + 1 < best)
                best = upup[j - 2] + 1;
            now[j] = best;
        }
    }
    return row[la % 3][lb];
}

const char *value_nearest(const char *word, const char *const *known, size_t n)
{
    const char *nearest = NULL;
    /* Up to a third of the letters may be wrong, and one letter in a short word. */
    size_t best = strlen(word) < 6 ? 1 : strlen(word) / 3;

    for (size_t i = 0; i < n; i++) {
        size_t d = distance(word, known[i]);
        /* A prefix ("prio") counts as similar, however long the full word is. */
        if (strlen(word) >= 3 && strncmp(word, known[i], strlen(word)) == 0)
            d = 1;
        if (d <= best && d < strlen(known[i]) && (nearest == NULL || d < best)) {
            best = d;
            nearest = known[i];
        }
    }
    return nearest;
}
