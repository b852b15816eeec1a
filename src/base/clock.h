/* clock.h: the only clocks in the project, so that tests can control time. */
#ifndef LHI_CLOCK_H
#define LHI_CLOCK_H

#include <stdint.h>

int64_t lhi_wall_ms(void);
int64_t lhi_mono_ms(void);
int64_t lhi_boot_ms(void);     /* like lhi_mono_ms(), but it runs while the machine sleeps */
int64_t lhi_clock_ms(int id);  /* CLOCK_MONOTONIC or CLOCK_BOOTTIME */
int64_t lhi_mono_us(void);     /* to measure durations; tests cannot move it */
void lhi_sleep_ms(int64_t ms); /* for short pauses that no wake-up can end */

#endif
