/* The table of outcomes: complete, unique, and in line with the pinned exit codes. */
#include "harness/harness.h"

#include <string.h>

enum { FIRST = LH_EINTR, LAST = LH_EMPTY };

TEST(every_outcome_has_a_name_a_text_an_exit_code_and_an_http_status)
{
    for (int s = FIRST; s <= LAST; s++) {
        EXPECT(strcmp(lh_status_name(s), "?") != 0);
        EXPECT(strlen(lh_status_text(s)) > 2);
        EXPECT(lh_status_exit(s) >= 0 && lh_status_exit(s) <= 8);
        EXPECT(lh_status_http(s) >= 200 && lh_status_http(s) < 600);
        if (s < 0) {
            EXPECT_EQ(lh_status_name(s)[0], 'E');
            EXPECT(lh_status_exit(s) != 0);
            EXPECT(lh_status_http(s) >= 400);
        }
        for (int t = FIRST; t < s; t++) {
            EXPECT(strcmp(lh_status_name(s), lh_status_name(t)) != 0);
            EXPECT(strcmp(lh_status_code(s), lh_status_code(t)) != 0);
        }
    }
}

TEST(an_unknown_status_counts_as_a_failure)
{
    EXPECT_STR(lh_status_name(FIRST - 1), "?");
    EXPECT_STR(lh_status_code(FIRST - 1), "failed");
    EXPECT_STR(lh_status_code(LH_ELOST), "lease_lost");
    EXPECT_STR(lh_status_name(LAST + 1), "?");
    EXPECT_EQ(lh_status_exit(-1000), 1);
    EXPECT_EQ(lh_status_http(-1000), 500);
    EXPECT(lh_status_text(-1000) != NULL);
}

TEST(the_exit_codes_are_the_pinned_ones)
{
    static const struct {
        int status, code;
    } pinned[] = {{LH_OK, 0},       {LH_EFAIL, 1},    {LH_EMISUSE, 2},    {LH_EINVAL, 2},
                  {LH_ETOOBIG, 2},  {LH_EMPTY, 3},    {LH_ENOTFOUND, 3},  {LH_ESTATE, 3},
                  {LH_ENOSTORE, 3}, {LH_ELOST, 4},    {LH_ECANCELLED, 4}, {LH_EHELD, 4},
                  {LH_EBUSY, 5},    {LH_EUNREACH, 5}, {LH_ECORRUPT, 6},   {LH_EREADONLY, 7},
                  {LH_EUNKNOWN, 8}};
    for (size_t i = 0; i < sizeof pinned / sizeof pinned[0]; i++)
        EXPECT_EQ(lh_status_exit(pinned[i].status), pinned[i].code);
}

TEST(the_http_statuses_are_the_pinned_ones)
{
    EXPECT_EQ(lh_status_http(LH_OK), 200);
    EXPECT_EQ(lh_status_http(LH_EMPTY), 200);
    EXPECT_EQ(lh_status_http(LH_EINVAL), 400);
    EXPECT_EQ(lh_status_http(LH_ENOTFOUND), 404);
    EXPECT_EQ(lh_status_http(LH_ELOST), 409);
    EXPECT_EQ(lh_status_http(LH_ETOOBIG), 413);
    EXPECT_EQ(lh_status_http(LH_EUNREACH), 503);
    EXPECT_EQ(lh_status_http(LH_EUNKNOWN), 503);
    EXPECT_EQ(lh_status_http(LH_ENOSPC), 507);
}

TEST(the_library_returns_its_version)
{
    EXPECT_STR(lh_version(), LH_VERSION);
    EXPECT(strlen(lh_engine_version()) > 3);
    EXPECT(lh_schema_version() >= 1);
}
