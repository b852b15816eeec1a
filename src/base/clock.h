/* The only clocks in the project, so that tests own time. */
#ifndef LHI_CLOCK_H
#define LHI_CLOCK_H

#include <stdint.h>

int64_t lhi_wall_ms(void);
int64_t lhi_mono_ms(void);
int64_t lhi_boot_ms(void);     /* the same, but it goes on while the machine sleeps */
int64_t lhi_clock_ms(int id);  /* one of the two: CLOCK_MONOTONIC, CLOCK_BOOTTIME */
int64_t lhi_mono_us(void);     /* real time, whatever a test says: to measure */
void lhi_sleep_ms(int64_t ms); /* for waits against foreign writers only */

#endif
