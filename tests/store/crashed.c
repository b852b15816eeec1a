/* See crashed.h. */
#include "store/crashed.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static void keep_line(void *arg, const lh_log_entry *entry)
{
    struct lines *lines = arg;
    size_t used = strlen(lines->text);

    (void)snprintf(lines->text + used, sizeof lines->text - used, "%s\n", entry->line);
}

lh_store *open_logged(struct lines *lines, lh_open_opts opts)
{
    lines->text[0] = '\0';
    opts.log = keep_line;
    opts.log_arg = lines;
    return store_open("store.db", opts);
}

lh_report *last_report(lh_store *store)
{
    lh_report *report = NULL;

    if (lh_report_get(store, 0, &report) != LH_OK)
        FAIL("there is no report: %s", lh_errmsg(store));
    return report;
}

size_t reports(lh_store *store)
{
    lh_reports *list = NULL;

    EXPECT_OK(lh_report_list(store, 1000, &list));
    size_t n = list->n;
    lh_reports_free(list);
    return n;
}

bool tells_of(const lh_report *report, const char *part)
{
    for (size_t i = 0; i < report->n_inconsistencies; i++)
        if (strstr(report->inconsistencies[i], part) != NULL)
            return true;
    return false;
}

void crash(void (*doing)(lh_store *store))
{
    pid_t child = test_fork();
    if (child == 0) {
        lh_store *store = store_new();
        doing(store);
        (void)kill(getpid(), SIGKILL);
    }
    EXPECT_EQ(test_wait(child).sig, SIGKILL);
}

void hold_a_job(lh_store *store)
{
    add(store, "mail", "x");
    lh_jobs_free(take(store, "mail", "w1", 1000));
}

void write_a_little(lh_store *store)
{
    for (int i = 0; i < 5; i++)
        add(store, "mail", "x");
}
