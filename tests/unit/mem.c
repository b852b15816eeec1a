/* Memory: the arena, failing allocations, and errors in a fixed buffer. */
#include "base/mem.h"
#include "base/error.h"
#include "base/hook.h"
#include "harness/harness.h"

#include <stdalign.h>
#include <string.h>

TEST(memory_of_an_arena_is_aligned_zeroed_and_distinct)
{
    enum { PIECES = 500 };
    struct lhi_arena arena = {0};
    unsigned char *piece[PIECES];
    size_t size[PIECES];
    for (size_t i = 0; i < PIECES; i++) {
        size[i] = i * 7 % 331;
        piece[i] = lhi_arena_alloc(&arena, size[i]);
        EXPECT(piece[i] != NULL);
        EXPECT_EQ((uintptr_t)piece[i] % alignof(max_align_t), 0);
        for (size_t k = 0; k < size[i]; k++)
            EXPECT_EQ(piece[i][k], 0);
        memset(piece[i], (int)(i % 255) + 1, size[i]);
    }
    for (size_t i = 0; i < PIECES; i++)
        for (size_t k = 0; k < size[i]; k++)
            EXPECT_EQ(piece[i][k], i % 255 + 1);
    lhi_arena_clear(&arena);
    EXPECT(arena.head == NULL);
}

TEST(an_arena_can_allocate_more_than_one_block)
{
    struct lhi_arena arena = {0};
    size_t large = (5 << 20) + 3;
    char *a = lhi_arena_alloc(&arena, 10);
    char *b = lhi_arena_alloc(&arena, large);
    char *c = lhi_arena_alloc(&arena, 10);
    EXPECT(a != NULL && b != NULL && c != NULL);
    memset(b, 'b', large);
    EXPECT_EQ(a[0], 0);
    EXPECT_EQ(c[0], 0);
    lhi_arena_clear(&arena);
}

TEST(copies_in_an_arena_end_with_a_zero_byte)
{
    struct lhi_arena arena = {0};
    char *copy = lhi_arena_copy(&arena, "a\0b", 3);
    EXPECT_MEM(copy, 4, "a\0b", 4);
    EXPECT_STR(lhi_arena_strdup(&arena, "text"), "text");
    EXPECT(lhi_arena_strdup(&arena, NULL) == NULL);
    copy = lhi_arena_copy(&arena, NULL, 0);
    EXPECT(copy != NULL);
    EXPECT_EQ(copy[0], 0);
    lhi_arena_clear(&arena);
    lhi_arena_clear(&arena); /* clearing twice is allowed */
}

TEST(an_arena_returns_null_without_memory_and_stays_usable)
{
    struct lhi_arena arena = {0};
    struct lhi_control *control = lhi_control();
    char *first = lhi_arena_strdup(&arena, "first");
    control->fail_at[LHI_FAULT_ALLOC] = control->calls[LHI_FAULT_ALLOC] + 1;
    EXPECT(lhi_arena_alloc(&arena, 1 << 20) == NULL);
    EXPECT_STR(first, "first");
    EXPECT(lhi_arena_alloc(&arena, 1 << 20) != NULL);
    EXPECT(lhi_arena_alloc(&arena, SIZE_MAX - 3) == NULL);
    lhi_arena_clear(&arena);
}

TEST(a_test_can_make_the_nth_allocation_fail)
{
    struct lhi_control *control = lhi_control();
    control->fail_at[LHI_FAULT_ALLOC] = control->calls[LHI_FAULT_ALLOC] + 2;
    void *a = lhi_malloc(1), *b = lhi_calloc(1, 1), *c = lhi_realloc(NULL, 1);
    EXPECT(a != NULL);
    EXPECT(b == NULL);
    EXPECT(c != NULL);
    lhi_free(a);
    lhi_free(b);
    lhi_free(c);
    char *copy = lhi_strdup("copy");
    EXPECT_STR(copy, "copy");
    lhi_free(copy);
    EXPECT(lhi_strdup(NULL) == NULL);
}

/* ---- errors ---- */

TEST(an_error_is_a_status_and_a_sentence)
{
    struct lhi_error err;
    lhi_error_clear(&err);
    EXPECT_OK(err.status);
    EXPECT_STR(err.text, "");
    EXPECT_STR(err.request, "");
    EXPECT_STATUS(lhi_fail(&err, LH_ESTATE, "job %d is %s", 7, "running"), LH_ESTATE);
    EXPECT_STATUS(err.status, LH_ESTATE);
    EXPECT_STR(err.text, "job 7 is running");
}

TEST(an_error_longer_than_its_buffer_is_cut)
{
    struct lhi_error err;
    static char text[2000];
    memset(text, 'x', sizeof text - 1);
    EXPECT_STATUS(lhi_fail(&err, LH_EFAIL, "%s", text), LH_EFAIL);
    EXPECT_EQ(strlen(err.text), sizeof err.text - 1);
}

TEST(lhi_format_returns_the_number_of_bytes_it_wrote)
{
    char buf[6] = "#####";
    EXPECT_EQ(lhi_format(buf, 5, "%s", "abcdefgh"), 4);
    EXPECT_STR(buf, "abcd");
    EXPECT_EQ(lhi_format(buf, 5, "%d", 12), 2);
    EXPECT_STR(buf, "12");
    buf[0] = '#';
    EXPECT_EQ(lhi_format(buf, 0, "x"), 0);
    EXPECT_EQ(buf[0], '#');
}
