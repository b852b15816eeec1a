/*
 * hook.h: where tests take control: the clocks, allocations, and named points at which a process is
 * killed.
 *
 * In the library that ships (LHI_TEST is not defined) every hook is a constant. In the test library a
 * control block decides. $LHI_TEST_CONTROL names a file for the block that several processes share,
 * so that one test can move the clock of all of them.
 */
#ifndef LHI_HOOK_H
#define LHI_HOOK_H

#include <stdbool.h>
#include <stdint.h>

#ifdef LHI_UNHOOKED
#error "list a file with hooks in hooked_sources of meson.build: it is compiled again for the tests"
#endif

enum lhi_fault { LHI_FAULT_ALLOC, LHI_FAULT_KINDS };

#ifdef LHI_TEST

struct lhi_control {
    int64_t wall_ms; /* added to the wall clock */
    int64_t mono_ms; /* added to the monotonic clock */
    bool frozen;     /* the clocks stand still; only the two fields above move them */
    int64_t frozen_wall_ms, frozen_mono_ms;
    char boot[40];                    /* non-empty: the boot id */
    int64_t fail_at[LHI_FAULT_KINDS]; /* the Nth call from now fails; 0: none */
    int64_t calls[LHI_FAULT_KINDS];
    char kill_at[64];  /* the name of the point at which the process is killed (SIGKILL) */
    int64_t kill_skip; /* pass that point this many times first */
    bool stop_there;   /* SIGSTOP instead of SIGKILL, so that the test can continue the process */
    int64_t slept_ms;  /* added to the clock that runs while the machine sleeps */
    int64_t poll_ms;   /* non-zero: the poll interval of a waiting call on SQLite */
};

struct lhi_control *lhi_control(void);
bool lhi_fault(enum lhi_fault kind);
void lhi_point(const char *name);
int64_t lhi_poll_ms(int64_t ms);

#define LHI_FAULT(kind) lhi_fault(kind)
#define LHI_POINT(name) lhi_point(name)
#define LHI_POLL_PERIOD(ms) lhi_poll_ms(ms)

#else

#define LHI_FAULT(kind) false
#define LHI_POINT(name) ((void)0)
#define LHI_POLL_PERIOD(ms) (ms)

#endif

#endif
