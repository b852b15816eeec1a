/* flag.c: flags that cancel calls, raised by any thread and by signal handlers. */
#include <leasehold.h>

#include <stddef.h>

_Static_assert(__GCC_ATOMIC_INT_LOCK_FREE == 2, "a signal handler must not take a lock");

/* NOLINTBEGIN(readability-non-const-parameter): clang-tidy does not see that the builtins write. */
void lh_flag_raise(lh_flag *flag)
{
    (void)__atomic_add_fetch(flag, 1, __ATOMIC_RELEASE);
}

void lh_flag_lower(lh_flag *flag)
{
    __atomic_store_n(flag, 0, __ATOMIC_RELEASE);
}
/* NOLINTEND(readability-non-const-parameter) */

int lh_flag_raised(const lh_flag *flag)
{
    return flag != NULL ? __atomic_load_n(flag, __ATOMIC_ACQUIRE) : 0;
}
