/* clock.c: the clocks. In the test library, the control block of hook.h can move them. */
#include "base/clock.h"

#include "base/hook.h"

#include <errno.h>
#include <time.h>

static int64_t read_ms(clockid_t id)
{
    struct timespec ts;
    (void)clock_gettime(id, &ts); /* cannot fail for these ids with a valid pointer */
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

int64_t lhi_wall_ms(void)
{
#ifdef LHI_TEST
    const struct lhi_control *c = lhi_control();
    return (c->frozen ? c->frozen_wall_ms : read_ms(CLOCK_REALTIME)) +
           __atomic_load_n(&c->wall_ms, __ATOMIC_RELAXED);
#else
    return read_ms(CLOCK_REALTIME);
#endif
}

int64_t lhi_clock_ms(int id)
{
#ifdef LHI_TEST
    const struct lhi_control *c = lhi_control();
    int64_t slept = id == CLOCK_BOOTTIME ? __atomic_load_n(&c->slept_ms, __ATOMIC_RELAXED) : 0;
    return (c->frozen ? c->frozen_mono_ms : read_ms(id)) + slept +
           __atomic_load_n(&c->mono_ms, __ATOMIC_RELAXED);
#else
    return read_ms(id);
#endif
}

int64_t lhi_mono_ms(void)
{
    return lhi_clock_ms(CLOCK_MONOTONIC);
}

int64_t lhi_boot_ms(void)
{
    return lhi_clock_ms(CLOCK_BOOTTIME);
}

int64_t lhi_mono_us(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

void lhi_sleep_ms(int64_t ms)
{
    struct timespec ts = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    while (nanosleep(&ts, &ts) != 0 && errno == EINTR)
        ;
}
