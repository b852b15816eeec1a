/* Random damage. Either the store opens and is sound, with the damaged file kept, or the open is
 * refused and the file is unchanged. $DAMAGE_ROUNDS and $DAMAGE_SEED run more of it. */
#include "store/damage.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { JOBS = 700, PAGE = 4096, ROUNDS = 40 };

static uint64_t state;

static size_t dice(size_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (size_t)(state % below);
}

static size_t some_page(size_t len)
{
    return dice(len / PAGE) * PAGE;
}

static void hurt(unsigned char *bytes, size_t *len)
{
    size_t page = some_page(*len), at = dice(*len);

    switch (dice(7)) {
    case 0:
        memset(bytes + page, 0, PAGE);
        break;
    case 1:
        for (int i = 0; i < PAGE; i++)
            bytes[page + (size_t)i] = (unsigned char)dice(256);
        break;
    case 2:
        bytes[at] ^= (unsigned char)(1 << dice(8));
        break;
    case 3: /* a write to the wrong place */
        memmove(bytes + page, bytes + some_page(*len), PAGE);
        break;
    case 4: /* the positions of the cells of a page */
        for (size_t i = 0; i < 8; i++)
            bytes[page + dice(60)] = (unsigned char)dice(256);
        break;
    case 5: /* half a page */
        memset(bytes + page + dice(PAGE / 512) * 512, (int)dice(256), 512);
        break;
    default:
        if (dice(4) == 0)
            *len = *len - dice(*len / 2);
        break;
    }
}

static const char *const files[] = {"store.db", "store.db-wal"};

static void damage_files(unsigned times)
{
    for (unsigned i = 0; i < times; i++) {
        const char *file = files[dice(8) == 0];
        size_t len;
        unsigned char *bytes = file_bytes(file, &len);
        if (len > PAGE)
            hurt(bytes, &len);
        file_write(file, bytes, len);
        free(bytes);
    }
}

static void judge(uint64_t seed)
{
    lh_store *store = NULL;
    int rc = lh_open(
        "store.db",
        &(lh_open_opts){.startup = true, .repair = true, .create = true, .accept_loss = true},
        &store);

    if (rc == LH_OK) {
        lh_findings *findings = NULL;
        EXPECT_OK(lh_check(store, NULL, &findings));
        for (size_t i = 0; i < findings->n; i++)
            if (strcmp(findings->finding[i].level, "error") == 0 &&
                strcmp(findings->finding[i].what, "payload") != 0)
                FAIL("seed %llu: %s: %s", (unsigned long long)seed, findings->finding[i].what,
                     findings->finding[i].text);
        lh_findings_free(findings);
        (void)add(store, "mail", "it goes on");
    } else if (rc != LH_ECORRUPT && rc != LH_EINVAL) {
        FAIL("seed %llu: %s: %s", (unsigned long long)seed, lh_status_name(rc), lh_errmsg(store));
    }
    lh_close(store);
    if (rc != LH_OK)
        expect_nothing_left();
}

TEST_TIMEOUT(whatever_the_damage_a_store_opens_sound_or_is_as_it_was, 600)
{
    const char *rounds = getenv("DAMAGE_ROUNDS"), *first = getenv("DAMAGE_SEED");
    uint64_t seed = first ? strtoull(first, NULL, 10) : 1;

    full_store_build_crashed(JOBS, 100);
    EXPECT_EQ(system("mkdir sound && cp -p store.db* sound"), 0);
    for (int i = 0; i < (rounds ? (int)strtol(rounds, NULL, 10) : ROUNDS); i++, seed++) {
        state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
        EXPECT_EQ(system("rm -f store.db* ruined*; cp -p sound/* ."), 0);
        damage_files(1 + (unsigned)dice(6));
        note_damaged_file();
        judge(seed);
    }
}

/* ---- the losses ---- */

/* The page of each job, and the contents of its overflow pages. */
struct place {
    int64_t page;
    int n;
    int64_t ids[100];
};

static struct place places[500];
static int n_places;

static void note_places(void)
{
    n_places = pages_of("lh_job", "leaf");
    EXPECT(n_places < 500);
    for (int i = 0; i < n_places; i++) {
        places[i].page = page_of("lh_job", "leaf", i);
        places[i].n = jobs_on(places[i].page, places[i].ids, 100);
    }
}

static bool unhurt(const unsigned char *was, size_t was_len, const unsigned char *now,
                   size_t now_len, int64_t page)
{
    size_t at = (size_t)(page - 1) * PAGE;
    return at + PAGE <= was_len && at + PAGE <= now_len && memcmp(was + at, now + at, PAGE) == 0;
}

/* Every job on an undamaged page is still there. */
static void expect_unhurt(uint64_t seed)
{
    size_t was_len, now_len;
    unsigned char *was = file_bytes("before.db", &was_len), *now = file_bytes("ruined", &now_len);
    sqlite3_stmt *stmt = NULL;
    sqlite3 *db = db_open("store.db");

    EXPECT_EQ(sqlite3_prepare_v2(db, "SELECT 1 FROM lh_job WHERE id = ?1", -1, &stmt, NULL),
              SQLITE_OK);
    for (int i = 0; i < n_places; i++)
        for (int k = 0; unhurt(was, was_len, now, now_len, places[i].page) && k < places[i].n;
             k++) {
            sqlite3_bind_int64(stmt, 1, places[i].ids[k]);
            if (sqlite3_step(stmt) != SQLITE_ROW)
                FAIL("seed %llu: job %lld stood on page %lld, which was not hurt, and is lost",
                     (unsigned long long)seed, (long long)places[i].ids[k],
                     (long long)places[i].page);
            sqlite3_reset(stmt);
        }
    sqlite3_finalize(stmt);
    sqlite3_close(db);
    free(was);
    free(now);
}

TEST_TIMEOUT(whatever_the_damage_a_job_on_a_page_that_was_not_hurt_is_there, 600)
{
    const char *rounds = getenv("DAMAGE_ROUNDS"), *first = getenv("DAMAGE_SEED");
    uint64_t seed = first ? strtoull(first, NULL, 10) : 1;

    full_store_build(JOBS);
    note_places();
    EXPECT_EQ(system("mkdir sound && cp -p store.db* sound"), 0);
    for (int i = 0; i < (rounds ? (int)strtol(rounds, NULL, 10) : ROUNDS); i++, seed++) {
        lh_store *store = NULL;
        int rc;
        state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
        EXPECT_EQ(system("rm -f store.db* ruined*; cp -p sound/* ."), 0);
        damage_files(1 + (unsigned)dice(4));
        note_damaged_file();
        rc = lh_open("store.db",
                     &(lh_open_opts){.startup = true, .repair = true, .accept_loss = true}, &store);
        /* If the first page is overwritten, the file is no longer the one that the coordination
         * file names. */
        if (rc != LH_OK && rc != LH_EINVAL)
            FAIL("seed %llu: %s", (unsigned long long)seed, lh_errmsg(store));
        lh_close(store);
        if (rc == LH_OK)
            expect_unhurt(seed);
    }
}
