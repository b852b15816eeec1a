/* state.c: the names of the states of a job. */
#include <leasehold.h>

#include <string.h>

static const char *const state_names[] = {
    [LH_SCHEDULED] = "scheduled", [LH_PENDING] = "pending", [LH_RUNNING] = "running",
    [LH_COMPLETED] = "completed", [LH_FAILED] = "failed",   [LH_CANCELLED] = "cancelled",
};

const char *lh_state_name(lh_state state)
{
    return state >= LH_SCHEDULED && state <= LH_CANCELLED ? state_names[state] : "?";
}

lh_state lh_state_parse(const char *name)
{
    for (int i = LH_SCHEDULED; name != NULL && i <= LH_CANCELLED; i++)
        if (strcmp(state_names[i], name) == 0)
            return (lh_state)i;
    return 0;
}
