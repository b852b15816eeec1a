/* Snapshots of a store, and the reference that runs are compared with. */
#include "session/session.h"

#include "harness/harness.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---------------------------------------------------------------- files */

static void copy_file(const char *from, const char *to)
{
    int in = open(from, O_RDONLY | O_CLOEXEC);
    struct stat st;

    (void)unlink(to);
    if (in < 0)
        return;
    int out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    EXPECT(out >= 0 && fstat(in, &st) == 0);
    for (off_t at = 0; at < st.st_size;)
        EXPECT(sendfile(out, in, &at, (size_t)(st.st_size - at)) > 0);
    close(in);
    close(out);
}

void session_copy(const char *from, const char *to)
{
    /* Without the index, which a crash of all processes ends. */
    static const char *const suffixes[] = {"", "-wal", "-journal", "-lease"};
    char a[256], b[256];

    session_remove(to);
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
        (void)snprintf(a, sizeof a, "%s%s", from, suffixes[i]);
        (void)snprintf(b, sizeof b, "%s%s", to, suffixes[i]);
        copy_file(a, b);
    }
}

void session_remove(const char *path)
{
    static const char *const suffixes[] = {"", "-wal", "-journal", "-shm", "-lease"};
    char name[256];

    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
        (void)snprintf(name, sizeof name, "%s%s", path, suffixes[i]);
        (void)unlink(name);
    }
}

/* ---------------------------------------------------------------- pictures */

/* Values that differ between processes, and say nothing about the queue. */
static bool of_the_process(const char *table, const char *column)
{
    static const char *const columns[] = {"host",    "machine", "boot",         "pid_ns",
                                          "time_ns", "pid",     "process_start"};

    for (size_t i = 0; strcmp(table, "lh_worker") == 0 && i < sizeof columns / sizeof columns[0];
         i++)
        if (strcmp(column, columns[i]) == 0)
            return true;
    return false;
}

/* The status in a report depends on whether the store was closed cleanly. */
static bool of_the_crash(const char *table, const char *column)
{
    return strcmp(table, "lh_report") == 0 &&
           (strcmp(column, "integrity") == 0 || strcmp(column, "wal_frames") == 0);
}

/* Counts calls, not rows; or is a checksum over such a count. */
static bool counts_acts(const char *table, const char *column)
{
    return strcmp(column, "changes") == 0 || strcmp(column, "generation") == 0 ||
           (strcmp(table, "lh_lease") == 0 &&
            (strcmp(column, "token") == 0 || strcmp(column, "row_sum") == 0));
}

static bool tells_the_story(const char *table)
{
    return strcmp(table, "lh_event") == 0 || strcmp(table, "lh_report") == 0;
}

/* Rows that are left out: they differ in every run, or repeating an act may add to them. */
static bool left_out(const char *table, const char *key, enum picture_of what)
{
    bool loose = what == PICTURE_LOOSE;

    if (strcmp(table, "lh_meta") == 0)
        return strcmp(key, "store_uuid") == 0 || strcmp(key, "last_path") == 0 ||
               (loose && (strncmp(key, "epoch", 5) == 0 || strncmp(key, "recovery:", 9) == 0));
    if (strcmp(table, "lh_request") == 0)
        return strncmp(key, "lh:", 3) == 0; /* made by the library, for a repeat */
    if (strcmp(table, "sqlite_sequence") == 0)
        return loose && tells_the_story(key);
    return false;
}

static void draw_value(sqlite3_stmt *stmt, int column, FILE *out)
{
    enum { LONG = 60, TAIL = 40 };
    int type = sqlite3_column_type(stmt, column);
    const unsigned char *bytes = sqlite3_column_blob(stmt, column);
    int len = sqlite3_column_bytes(stmt, column);

    if (type == SQLITE_NULL || type == SQLITE_INTEGER) {
        (void)fputs(type == SQLITE_NULL ? "|-" : "|", out);
        if (type == SQLITE_INTEGER)
            (void)fprintf(out, "%lld", (long long)sqlite3_column_int64(stmt, column));
        return;
    }
    (void)fputs(type == SQLITE_BLOB ? "|x'" : "|'", out);
    if (len > LONG) {
        (void)fprintf(out, "%d bytes, at last: ", len);
        bytes += len - TAIL;
        len = TAIL;
    }
    for (int i = 0; i < len; i++)
        if (bytes[i] >= ' ' && bytes[i] < 127)
            (void)fputc(bytes[i], out);
        else
            (void)fprintf(out, "\\%02x", bytes[i]);
    (void)fputc('\'', out);
}

/* Why a worker was found dead: in a process that took over, because the first one is gone. */
static bool of_a_death(sqlite3_stmt *stmt, int column)
{
    static const char dead[] = "RECLAIMED_DEAD: ";
    const unsigned char *text = sqlite3_column_text(stmt, column);

    return strcmp(sqlite3_column_name(stmt, column), "last_error") == 0 && text != NULL &&
           strncmp((const char *)text, dead, sizeof dead - 1) == 0;
}

static void draw_table(sqlite3 *db, const char *table, enum picture_of what, FILE *out)
{
    sqlite3_stmt *stmt = NULL;
    char query[128];
    int rc;

    if (what == PICTURE_LOOSE && tells_the_story(table))
        return;
    /* Tables have a key, and come in its order. */
    (void)snprintf(query, sizeof query, "SELECT * FROM \"%s\"", table);
    EXPECT_EQ(sqlite3_prepare_v2(db, query, -1, &stmt, NULL), SQLITE_OK);
    while ((rc = sqlite3_step(stmt)) == SQLITE_ROW) {
        if (sqlite3_column_type(stmt, 0) == SQLITE_TEXT &&
            left_out(table, (const char *)sqlite3_column_text(stmt, 0), what))
            continue;
        (void)fputs(table, out);
        for (int i = 0; i < sqlite3_column_count(stmt); i++) {
            const char *column = sqlite3_column_name(stmt, i);
            bool loosely = counts_acts(table, column) || of_a_death(stmt, i);
            if (!of_the_process(table, column) && !of_the_crash(table, column) &&
                !(what == PICTURE_LOOSE && loosely))
                draw_value(stmt, i, out);
        }
        (void)fputc('\n', out);
    }
    if (rc != SQLITE_DONE)
        FAIL("could not read %s: %s", table, sqlite3_errmsg(db));
    EXPECT_EQ(sqlite3_finalize(stmt), SQLITE_OK);
}

static void draw(sqlite3 *db, enum picture_of what, FILE *out)
{
    sqlite3_stmt *stmt = NULL;
    int rc;

    EXPECT_EQ(sqlite3_prepare_v2(db,
                                 "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT "
                                 "LIKE 'sqlite_stat%' ORDER BY name",
                                 -1, &stmt, NULL),
              SQLITE_OK);
    while ((rc = sqlite3_step(stmt)) == SQLITE_ROW)
        draw_table(db, (const char *)sqlite3_column_text(stmt, 0), what, out);
    if (rc != SQLITE_DONE)
        FAIL("could not read the store: %s", sqlite3_errmsg(db));
    EXPECT_EQ(sqlite3_finalize(stmt), SQLITE_OK);
}

char *session_picture(const char *path, enum picture_of what)
{
    char copy[256], *text = NULL;
    size_t len = 0;
    sqlite3 *db = NULL;
    FILE *out = open_memstream(&text, &len);

    EXPECT(out != NULL);
    if (access(path, F_OK) == 0) {
        (void)snprintf(copy, sizeof copy, "%s.copy", path);
        session_copy(path, copy);
        EXPECT_EQ(sqlite3_open_v2(copy, &db, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
        (void)sqlite3_db_config(db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
        draw(db, what, out);
        EXPECT_EQ(sqlite3_close(db), SQLITE_OK);
        session_remove(copy);
    }
    EXPECT_EQ(fclose(out), 0);
    return text;
}

/* The lines that only one of them has. */
static void missing(const char *label, const char *here, const char *there)
{
    int n = 0;

    for (const char *p = here; *p != '\0'; p = strchr(p, '\n') + 1) {
        char line[4096];
        (void)snprintf(line, sizeof line, "%.*s", (int)strcspn(p, "\n") + 1, p);
        if (strstr(there, line) == NULL && ++n <= 8)
            (void)fprintf(stderr, "  %s %.300s", label, line);
    }
    if (n > 8)
        (void)fprintf(stderr, "  %s and %d lines more\n", label, n - 8);
}

void session_compare(const char *title, const char *got, const char *wanted)
{
    (void)fprintf(stderr, "%s\n", title);
    missing("is:       ", got, wanted);
    missing("should be:", wanted, got);
}

/* ---------------------------------------------------------------- the reference */

void session_check(lh_store *store, const char *when)
{
    lh_findings *findings = NULL;
    int rc = lh_check(store, NULL, &findings);

    if (rc != LH_OK)
        FAIL("check %s: %s: %s", when, lh_status_name(rc), lh_errmsg(store));
    for (size_t i = 0; i < findings->n; i++)
        if (strcmp(findings->finding[i].level, "error") == 0)
            FAIL("check %s found: %s: %s", when, findings->finding[i].what,
                 findings->finding[i].text);
    lh_findings_free(findings);
}

void session_reference(struct reference *ref, const lh_open_opts *opts)
{
    struct session s;

    ref->notes = calloc(session_acts_n + 1, sizeof *ref->notes);
    ref->exact = calloc(session_acts_n + 1, sizeof *ref->exact);
    ref->loose = calloc(session_acts_n + 1, sizeof *ref->loose);
    EXPECT(ref->notes != NULL && ref->exact != NULL && ref->loose != NULL);
    session_start(&s, "reference.db", opts);
    for (size_t i = 0;; i++) {
        ref->notes[i] = s.notes;
        ref->exact[i] = session_picture(s.path, PICTURE_EXACT);
        ref->loose[i] = session_picture(s.path, PICTURE_LOOSE);
        if (s.store != NULL)
            session_check(s.store, "in the undisturbed session");
        if (i == session_acts_n)
            break;
        int rc = session_act(&s, i);
        if (rc != session_acts[i].outcome)
            FAIL("%s: %s: %s", session_acts[i].name, lh_status_name(rc), s.why);
    }
    session_end(&s);
    session_remove(s.path);
}

void session_reference_free(struct reference *ref)
{
    for (size_t i = 0; i <= session_acts_n; i++) {
        free(ref->exact[i]);
        free(ref->loose[i]);
    }
    free(ref->exact);
    free(ref->loose);
    free(ref->notes);
}
