/*
 * Measures what each index, CHECK and trigger of lh_job costs: the same inserts and the same drain,
 * with and without it. Also measures what each index gains: the statements that use it, with and
 * without it.
 */
#include "floor.h"

#include "sql_sqlite.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the schema without a part --------------------------------------------------------------- */

static char *whole_schema(void)
{
    size_t len = 0;
    for (int i = 0; i < lhi_sqlite_migration_count; i++)
        len += strlen(lhi_sqlite_migrations[i].text) + 1;
    char *text = calloc(1, len + 1);
    if (text == NULL)
        die("out of memory");
    for (int i = 0, at = 0; i < lhi_sqlite_migration_count; i++)
        at += snprintf(text + at, len + 1 - (size_t)at, "%s\n", lhi_sqlite_migrations[i].text);
    return text;
}

/* Replaces comments by blanks, so that only SQL is left. */
static void blank_comments(char *text)
{
    bool literal = false;
    for (char *p = text; *p != '\0'; p++) {
        if (*p == '\'')
            literal = !literal;
        if (!literal && p[0] == '-' && p[1] == '-')
            while (*p != '\0' && *p != '\n')
                *p++ = ' ';
        if (*p == '\0')
            return;
    }
}

/* The end of the expression in brackets that starts at `p`: the position after the closing
 * bracket. */
static char *behind_bracket(char *p)
{
    int depth = 0;
    bool literal = false;
    do {
        if (*p == '\'')
            literal = !literal;
        else if (!literal && *p == '(')
            depth++;
        else if (!literal && *p == ')')
            depth--;
        p++;
    } while (depth > 0 && *p != '\0');
    return p;
}

/* The CHECKs in groups by subject, to keep the table short. */
static const char *check_group(const char *check, size_t len, bool of_table)
{
    char text[1024];
    snprintf(text, sizeof text, "%.*s", (int)len, check);
    if (of_table)
        return "lease"; /* running ⇔ held, attempts, times: the invariants of a lease */
    if (strstr(text, "GLOB") != NULL)
        return "names";
    if (strstr(text, "typeof") != NULL)
        return "types";
    if (strstr(text, "state") != NULL)
        return "states";
    return "ranges";
}
static const char *const check_groups[] = {"names", "states", "ranges", "types", "lease", "all"};

/* Replaces each CHECK of lh_job in `group` by blanks, with its comma. */
static void cut_checks(char *schema, const char *group)
{
    char *table = strstr(schema, "CREATE TABLE lh_job (");
    if (table == NULL)
        die("the schema has no table lh_job");
    char *end = behind_bracket(strchr(table, '('));
    for (char *p = table; (p = strstr(p, "CHECK (")) != NULL && p < end;) {
        char *stop = behind_bracket(strchr(p, '(')), *line = p;
        while (line > table && isspace((unsigned char)line[-1]))
            line--;
        /* A table CHECK follows a comma; a column CHECK follows the type. */
        bool of_table = line[-1] == ',';
        if (strcmp(group, "all") == 0 ||
            strcmp(group, check_group(p, (size_t)(stop - p), of_table)) == 0) {
            memset(p, ' ', (size_t)(stop - p));
            if (of_table)
                line[-1] = ' ';
        }
        p = stop;
    }
}

static void cut_statement(char *schema, const char *start, const char *name)
{
    char head[256];

    for (char *p = schema; (p = strstr(p, "CREATE ")) != NULL; p++) {
        char *at = p + strlen("CREATE ");
        if (strncmp(at, "UNIQUE ", 7) == 0)
            at += 7;
        int len = snprintf(head, sizeof head, "%s %s ", start, name);
        if (strncmp(at, head, (size_t)len) != 0)
            continue;
        const char *mark = strcmp(start, "TRIGGER") == 0 ? "END;" : ";";
        char *end = strstr(at, mark);
        if (end == NULL)
            die("%s has no end", name);
        memset(p, ' ', (size_t)(end - p) + strlen(mark));
        return;
    }
    die("the schema has no %s %s", start, name);
}

char *schema_without(const char *part)
{
    char *schema = whole_schema();

    if (part == NULL)
        return schema;
    blank_comments(schema);
    if (strncmp(part, "index ", 6) == 0)
        cut_statement(schema, "INDEX", part + 6);
    else if (strncmp(part, "trigger ", 8) == 0)
        cut_statement(schema, "TRIGGER", part + 8);
    else if (strncmp(part, "check ", 6) == 0)
        cut_checks(schema, part + 6);
    else
        die("a part is \"index NAME\", \"trigger NAME\" or \"check GROUP\", not \"%s\"", part);
    return schema;
}

void floor_parts(void)
{
    sqlite3 *db = NULL;
    char *schema = whole_schema();

    if (sqlite3_open(":memory:", &db) != SQLITE_OK)
        die("could not open a database in memory");
    run(db, schema);
    sqlite3_stmt *stmt = prepare(db, "SELECT type || ' ' || name FROM sqlite_schema WHERE "
                                     "tbl_name = 'lh_job' AND type IN ('index', 'trigger') "
                                     "ORDER BY rowid");
    while (sqlite3_step(stmt) == SQLITE_ROW)
        puts((const char *)sqlite3_column_text(stmt, 0));
    for (size_t i = 0; i < sizeof check_groups / sizeof check_groups[0]; i++)
        printf("check %s\n", check_groups[i]);
    db_close(db);
    free(schema);
}

/* ---- cost ------------------------------------------------------------------------------------ */

void floor_part(const struct floor_opts *opts, struct floor_result *result)
{
    struct floor_result insert = {0}, drained = {0};

    floor_insert_and_drain(opts, &insert, &drained);
    result->jobs = drained.jobs;
    result->insert_ns = insert.cpu_ns / insert.jobs;
    result->insert_bytes = insert.written_bytes / insert.jobs;
    result->drain_ns = drained.cpu_ns / (drained.jobs ? drained.jobs : 1);
    result->drain_bytes = drained.written_bytes / (drained.jobs ? drained.jobs : 1);
}

/* ---- use: the statements of the product ------------------------------------------------------ */

enum { RUNS = 21 };

/* Values for the parameters of the product's statements, by name. They match little and change
 * nothing. */
static void bind_by_name(sqlite3_stmt *stmt)
{
    static const struct {
        const char *name, *text;
        int64_t number;
    } values[] = {
        {":queue", QUEUE, 0},  {":worker", WORKER, 0}, {":kinds", "[\"none\"]", 0},
        {":kind", "none", 0},  {":key", "none", 0},    {":n", NULL, 100},
        {":limit", NULL, 100}, {":skip", NULL, 0},     {":after", NULL, 0},
    };

    for (int i = 1; i <= sqlite3_bind_parameter_count(stmt); i++) {
        const char *name = sqlite3_bind_parameter_name(stmt, i);
        if (name == NULL)
            continue;
        sqlite3_bind_int64(stmt, i, wall_ms()); /* the remaining parameters are times */
        for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
            if (strcmp(name, values[v].name) != 0)
                continue;
            if (values[v].text != NULL)
                sqlite3_bind_text(stmt, i, values[v].text, -1, SQLITE_STATIC);
            else
                sqlite3_bind_int64(stmt, i, values[v].number);
        }
    }
}

/* Copies the name of the index of lh_job that the query plan uses into `index`. False: none. */
static bool plan_index(sqlite3 *db, const char *text, char *index, size_t len)
{
    char *explain = sqlite3_mprintf("EXPLAIN QUERY PLAN %s", text);
    sqlite3_stmt *stmt = prepare(db, explain);
    bool found = false;

    while (sqlite3_step(stmt) == SQLITE_ROW && !found) {
        const char *detail = (const char *)sqlite3_column_text(stmt, 3);
        const char *name = strstr(detail, "INDEX lh_job");
        if (name == NULL)
            continue;
        snprintf(index, len, "%.*s", (int)strcspn(name + 6, " "), name + 6);
        found = true;
    }
    (void)sqlite3_finalize(stmt);
    sqlite3_free(explain);
    return found;
}

static int64_t median_run(sqlite3 *db, const char *text)
{
    sqlite3_stmt *stmt = prepare(db, text);
    int64_t took[RUNS];

    bind_by_name(stmt);
    for (int i = 0; i < RUNS; i++) {
        int64_t start = now_ns();
        finish(stmt);
        took[i] = now_ns() - start;
    }
    (void)sqlite3_finalize(stmt);
    qsort(took, RUNS, sizeof took[0], compare_int64);
    return took[RUNS / 2];
}

/* Times each SELECT of the product that uses an index of lh_job, with all indexes and without that
 * one, on a table of completed jobs with some pending and running ones. */
void floor_uses(const struct floor_opts *opts, struct floor_result *result)
{
    struct floor_result ignored = {0};
    sqlite3 *whole = NULL;
    char *schema = whole_schema();
    char index[128];

    if (sqlite3_open(":memory:", &whole) != SQLITE_OK)
        die("could not open a database in memory");
    run(whole, schema);
    floor_leave_some(opts, &ignored);
    sqlite3 *db = db_open(db_path(opts));
    for (int i = 0; i < LHI_SQL_COUNT; i++) {
        const char *text = lhi_sqlite_sql[i].text;
        sqlite3_stmt *stmt = prepare(whole, text);
        bool reads = sqlite3_stmt_readonly(stmt) != 0;
        (void)sqlite3_finalize(stmt);
        if (!reads || !plan_index(whole, text, index, sizeof index))
            continue;
        if (opts->without != NULL && strcmp(opts->without + strlen("index "), index) != 0)
            continue;
        printf("{\"statement\":\"%s\",\"index\":\"%s\",\"ns\":%lld}\n", lhi_sqlite_sql[i].name,
               index, (long long)median_run(db, text));
    }
    db_close(db);
    db_close(whole);
    free(schema);
    db_remove(opts);
    result->jobs = opts->jobs;
}
