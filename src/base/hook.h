/* Where tests take hold: the clock, allocations, and named points at which a process may be killed.
 *
 * In the library that ships (LHI_TEST not defined) every hook is a constant and costs nothing. In
 * the test library the control block decides; a block in a file shared by several processes is
 * named by $LHI_TEST_CONTROL, so that one test moves the clock of all of them. */
#ifndef LHI_HOOK_H
#define LHI_HOOK_H

#include <stdbool.h>
#include <stdint.h>

#ifdef LHI_UNHOOKED
#error "a file with hooks belongs in hooked_sources of meson.build: the tests have it compiled anew"
#endif

enum lhi_fault { LHI_FAULT_ALLOC, LHI_FAULT_KINDS };

#ifdef LHI_TEST

struct lhi_control {
    int64_t wall_ms; /* added to the wall clock */
    int64_t mono_ms; /* added to the monotonic clock */
    bool frozen;     /* real time stands still: only the two above move it */
    int64_t frozen_wall_ms, frozen_mono_ms;
    char boot[40];                    /* non-empty: the boot id */
    int64_t fail_at[LHI_FAULT_KINDS]; /* the Nth call from now fails; 0: none */
    int64_t calls[LHI_FAULT_KINDS];
    char kill_at[64];  /* SIGKILL at this point … */
    int64_t kill_skip; /* … after passing it so often */
    bool
        stop_there; /* SIGSTOP instead of SIGKILL: the process goes on when the test continues it */
    int64_t slept_ms; /* added to the clock that goes on while the machine sleeps */
    int64_t poll_ms;  /* non-zero: a waiting call on SQLite polls this rarely */
};

struct lhi_control *lhi_control(void);
bool lhi_fault(enum lhi_fault kind);
void lhi_point(const char *name);
int64_t lhi_poll_ms(int64_t ms);

#define LHI_FAULT(kind) lhi_fault(kind)
#define LHI_POINT(name) lhi_point(name)
#define LHI_POLL(ms) lhi_poll_ms(ms)

#else

#define LHI_FAULT(kind) false
#define LHI_POINT(name) ((void)0)
#define LHI_POLL(ms) (ms)

#endif

#endif
