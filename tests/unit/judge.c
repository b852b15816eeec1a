/* Whether a worker is dead: what proves a death, and what does not. */
#include "harness/harness.h"

#include "store/store.h"

#include <string.h>

enum {
    INTERVAL_MS = 1000,
    MULTIPLIER = 3,
    MISSED_MS = INTERVAL_MS * 3 / 2,
    SILENCE_MS = INTERVAL_MS * MULTIPLIER
};

/* A worker of machine m and boot b whose process lives: this test. */
static struct lhi_suspect suspect(const struct lhi_identity *self)
{
    return (struct lhi_suspect){.id = "w-1",
                                .process = *self,
                                .interval_ms = INTERVAL_MS,
                                .multiplier = MULTIPLIER,
                                .last_heartbeat_at = 1};
}

static bool dead_after(const struct lhi_suspect *worker, const struct lhi_identity *self,
                       int64_t ms)
{
    struct lhi_death death;
    return lhi_judge_worker(worker, self, 1 + ms, &death) && !death.late;
}

TEST(on_one_machine_another_boot_proves_a_death)
{
    struct lhi_identity self;
    lhi_identify(&self);
    struct lhi_suspect worker = suspect(&self);
    worker.boot_proves = true;
    EXPECT(!dead_after(&worker, &self, 0));
    lhi_format(worker.process.boot, sizeof worker.process.boot, "another");
    EXPECT(dead_after(&worker, &self, 0));
    lhi_format(worker.process.machine, sizeof worker.process.machine, "another");
    EXPECT(dead_after(&worker, &self, 0));
}

TEST(with_several_machines_another_boot_proves_a_death_only_after_a_missed_heartbeat)
{
    struct lhi_identity self;
    struct lhi_death death;
    lhi_identify(&self);
    struct lhi_suspect worker = suspect(&self);
    lhi_format(worker.process.boot, sizeof worker.process.boot, "another");
    EXPECT(!dead_after(&worker, &self, 0));
    EXPECT(!dead_after(&worker, &self, MISSED_MS));
    EXPECT(dead_after(&worker, &self, MISSED_MS + 1));
    EXPECT(lhi_judge_worker(&worker, &self, 1 + MISSED_MS + 1, &death));
    EXPECT(death.proven && !death.silent);
    EXPECT_STR(death.what, "is gone (another boot)");
    lhi_format(worker.process.machine, sizeof worker.process.machine, "another");
    EXPECT(!dead_after(&worker, &self, SILENCE_MS - 1));
    EXPECT(dead_after(&worker, &self, SILENCE_MS));
}

TEST(a_worker_of_an_unknown_machine_is_judged_by_silence_only)
{
    struct lhi_identity self;
    lhi_identify(&self);
    struct lhi_suspect worker = suspect(&self);
    lhi_format(worker.process.boot, sizeof worker.process.boot, "another");
    worker.process.machine[0] = self.machine[0] = '\0';
    EXPECT(!dead_after(&worker, &self, SILENCE_MS - 1));
}
