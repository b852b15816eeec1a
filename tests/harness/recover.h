/* Recovery by an operator, for tests that only need the counts of its report. */
#ifndef HARNESS_RECOVER_H
#define HARNESS_RECOVER_H

#include <leasehold.h>

static inline int recovered_by_hand(lh_store *store, lh_recovered *out)
{
    lh_report *report = NULL;
    int rc = lh_recover(store, NULL, &report);

    *out = (lh_recovered){0};

    if (rc == LH_OK)
        *out = (lh_recovered){.locks_cleaned = report->locks_cleaned,
                              .entries_reclaimed = report->entries_reclaimed,
                              .recovery_timestamp = report->recovery_timestamp};
    lh_report_free(report);
    return rc;
}

#endif
