#!/usr/bin/env python3
"""Search the model of leases with Spin: with its guards it holds, without each of them it breaks.

    tests/model/run.py [--story] [PATTERN]...

Every test is one search through all orders of steps of a small world: `WORLDS` says how large it is
and what may go wrong in it, `TESTS` which guards are taken out and which property must then break
(None: nothing may). --story prints the shortest way to each break. Works in a directory of its own.
"""

import argparse
import fnmatch
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
SQL = HERE.parent.parent / "sql" / "sqlite"
LIMIT = 240  # seconds, for one search

# Names as in guards.pml. Where nothing is said, there are one job, two workers, two recoverers.
WORLDS = {
    "deaths": "CRASHES=1 FREEZES=1 HANDS=1",
    "hands": "HANDS=1 MAX_ATTEMPTS=3 MAX_RECOVERIES=2",
    "effects": "FREEZES=1 EFFECTS=1",
    "answers": "RELEASES=1 HANDS=1",
    "refunds": "CRASHES=1 ACTION_PENDING=1",
    "clock": "FREEZES=1 JUMPS=1",
    "power": "BOOTS=1 EFFECTS=1 RECOVERERS=1",
    "power twice": "BOOTS=2 CRASHES=1 RECOVERERS=1",
    "exclusive": "EXCLUSIVE=1 JOBS=2 HANDS=1 RECOVERERS=1",
    "recovery off": "EXCLUSIVE=1 JOBS=2 CRASHES=1 FREEZES=1 RECOVERERS=0",
    "fair": "LIVENESS CRASHES=1 FREEZES=1 HANDS=1 RECOVERERS=1",
    "fair power": "LIVENESS BOOTS=1 RECOVERERS=1",
    "nobody recovers": "LIVENESS RECOVERERS=0",
}

# Where claims on PostgreSQL begin to look: front.pml has guards and properties of its own.
FRONT = {"front": "", "front fair": "LIVENESS"}
# How a waiting claim on PostgreSQL learns of a job: wake.pml.
WAKE = {"wake": ""}
WORLDS |= FRONT | WAKE

IN_THE_WRITE = "RECOVER_STATE RECOVER_TOKEN RECOVER_EXPIRY"

# name, world, guards taken out, property that must break
TESTS = [
    ("nothing_breaks_when_workers_are_killed_suspended_and_revoked", "deaths", "", None),
    ("nothing_breaks_when_a_job_is_revoked_after_it_was_recovered", "hands", "", None),
    ("nothing_breaks_when_writes_to_the_resource_arrive_late", "effects", "", None),
    ("nothing_breaks_when_jobs_are_given_back_and_answers_get_lost", "answers", "", None),
    ("nothing_breaks_when_recovery_refunds_the_attempt", "refunds", "", None),
    ("nothing_breaks_when_the_wall_clock_jumps", "clock", "", None),
    ("nothing_breaks_when_the_power_fails", "power", "", None),
    ("nothing_breaks_when_the_power_fails_twice", "power twice", "", None),
    ("nothing_breaks_in_an_exclusive_queue", "exclusive", "", None),
    ("nothing_breaks_in_an_exclusive_queue_that_nobody_recovers", "recovery off", "", None),
    ("every_job_ends", "fair", "", None),
    ("every_job_ends_though_the_power_fails", "fair power", "", None),
    ("without_recovery_a_job_never_ends", "nobody recovers", "", "ENDS"),

    # Recovery is judged again inside the transaction, and guarded in the write. While clocks run
    # evenly either will do …
    ("judging_again_in_the_transaction_is_enough", "deaths", IN_THE_WRITE, None),
    ("the_guard_in_the_write_is_enough_while_clocks_run_evenly", "deaths", "JUDGED_AGAIN", None),
    ("the_expiry_in_the_write_stands_for_the_state", "deaths", "JUDGED_AGAIN RECOVER_STATE", None),
    # … but one must be there, and whole.
    ("without_judging_again_a_jump_of_the_clock_fools_the_guard_in_the_write", "clock",
     "JUDGED_AGAIN", "APART"),
    ("without_any_guard_recovery_undoes_a_complete", "deaths",
     "JUDGED_AGAIN " + IN_THE_WRITE, "STAYS"),
    ("without_any_guard_two_recoveries_count_a_job_twice", "deaths",
     "JUDGED_AGAIN " + IN_THE_WRITE, "ONCE"),
    ("without_state_and_expiry_in_the_write_recovery_undoes_a_complete", "deaths",
     "JUDGED_AGAIN RECOVER_STATE RECOVER_EXPIRY", "STAYS"),
    ("without_the_token_in_the_write_recovery_takes_the_next_holders_job", "deaths",
     "JUDGED_AGAIN RECOVER_TOKEN", "ONCE"),
    ("without_the_token_in_the_write_the_token_of_a_job_falls", "deaths",
     "JUDGED_AGAIN RECOVER_TOKEN", "TOKEN"),
    ("without_the_expiry_in_the_write_recovery_overtakes_a_heartbeat", "deaths",
     "JUDGED_AGAIN RECOVER_EXPIRY", "FORFEIT"),
    ("without_the_expiry_in_the_write_two_run_the_job", "deaths",
     "JUDGED_AGAIN RECOVER_EXPIRY", "APART"),
    ("without_a_new_token_at_recovery_a_release_that_came_too_late_is_told_done", "answers",
     "RECOVER_RAISES", "ANSWER"),
    ("without_the_limit_of_recoveries_a_poison_job_goes_on_for_ever", "refunds",
     "RECOVER_POISON", "LIMITS"),
    ("without_the_limit_of_attempts_a_death_grants_one_more", "deaths", "RECOVER_LAST", "LIMITS"),
    ("without_the_heartbeat_check_in_the_death_a_live_worker_loses_its_job", "deaths",
     "BURY_BEAT", "APART"),
    ("if_its_processes_live_the_job_of_a_dead_worker_runs_twice", "deaths", "WHOLE_DEATH", "APART"),

    ("without_the_token_in_the_heartbeat_the_loser_is_told_that_it_holds", "deaths",
     "BEAT_TOKEN", "ANSWER"),
    ("without_the_token_in_the_heartbeat_two_run_the_job", "deaths", "BEAT_TOKEN", "APART"),
    ("the_expiry_in_the_heartbeat_is_not_needed_where_jobs_are_alone", "deaths",
     "BEAT_EXPIRY", None),
    ("without_the_expiry_in_the_heartbeat_two_jobs_of_an_exclusive_queue_run", "recovery off",
     "BEAT_EXPIRY", "APART"),
    ("without_the_token_in_the_complete_the_loser_completes_the_next_holders_job", "deaths",
     "END_TOKEN", "ANSWER"),
    ("without_a_sync_before_the_answer_a_completed_job_comes_back", "power", "END_SYNCED", "STAYS"),

    ("without_quarantine_a_job_revoked_by_an_operator_runs_twice", "deaths", "HOLD_KEPT", "APART"),
    ("without_quarantine_two_jobs_of_an_exclusive_queue_run", "exclusive", "HOLD_KEPT", "APART"),
    ("without_the_token_in_the_quarantine_an_old_holder_ends_it", "hands", "HOLD_TOKEN", "APART"),

    ("without_self_fencing_two_run_the_job", "deaths", "SELF_FENCING", "APART"),
    ("without_the_silence_limit_in_the_fence_two_run_the_job", "deaths", "FENCE_EARLIER", "APART"),
    ("without_the_sending_time_in_the_fence_two_run_the_job", "deaths", "FENCE_SENDING", "APART"),
    ("without_a_beat_before_the_claim_a_silent_worker_loses_what_it_claims", "deaths",
     "CLAIM_BEATS", "APART"),

    ("without_a_new_epoch_a_token_is_handed_out_twice", "power", "EPOCH_RAISED", "TOKEN"),
    ("without_a_new_epoch_a_write_of_before_the_power_loss_is_taken", "power",
     "EPOCH_RAISED", "FENCED"),
    ("without_a_sync_of_the_epoch_a_token_is_handed_out_twice", "power twice",
     "EPOCH_SYNCED", "TOKEN"),
    ("without_the_shift_of_deadlines_two_run_the_job_after_a_jump", "clock",
     "CLOCK_SHIFTED", "APART"),
    ("without_the_token_at_the_resource_an_old_write_covers_a_newer", "effects",
     "RESOURCE_GUARD", "FENCED"),

    ("no_prompt_job_is_overlooked_at_the_front_of_a_queue", "front", "", None),
    ("every_job_is_taken_however_late_it_commits", "front fair", "", None),
    ("without_seeking_above_the_floor_a_prompt_job_is_overlooked", "front", "SEEK_FLOOR", "PROMPT"),
    ("without_its_age_the_floor_passes_a_prompt_job", "front", "FLOOR_AGED", "PROMPT"),
    ("without_lowering_the_front_what_was_seen_is_overlooked", "front", "LOOK_LOWERS", "SEEN"),
    ("without_looks_at_all_of_it_a_late_job_is_never_taken", "front fair", "LOOKS", "ENDS"),
    ("without_a_record_of_its_own_a_look_waits_for_a_transaction_that_stays_open", "front fair",
     "OWN_RECORD", "ENDS"),
    ("without_the_order_of_looks_a_late_commit_hides_what_was_seen", "front", "LATEST", "SEEN"),
    ("without_counting_what_is_held_a_rollback_hides_a_prompt_job", "front", "HELD_COUNTS", "PROMPT"),

    ("no_job_waits_while_every_waiter_sleeps", "wake", "", None),
    ("without_the_ticket_a_wake_up_before_the_sleep_is_missed", "wake", "OLD_TICKET", "FOUND"),
    ("without_the_poll_a_job_committed_before_the_subscription_waits_for_the_leader", "wake",
     "POLL_ONCE", "SOON"),
    ("without_the_leader_a_job_whose_producer_saw_no_subscription_is_missed", "wake", "LEADER_NOTIFIES",
     "FOUND"),
    ("without_subscribing_again_the_next_job_is_missed", "wake", "SUBSCRIBE_AGAIN", "FOUND"),
]


class Failed(Exception):
    pass


def run(command, folder, good=(0,)):
    done = subprocess.run(command, cwd=folder, text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT)
    if done.returncode not in good:
        raise Failed(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


class Search:
    """One world without some guards, searched for what breaks `wanted` (None: for anything)."""

    def __init__(self, folder, world, without, wanted):
        self.folder, self.fair = folder, "LIVENESS" in WORLDS[world]
        self.model = ("front.pml" if world in FRONT else "wake.pml" if world in WAKE
                      else "lease.pml")
        for source in HERE.glob("*.pml"):
            shutil.copy(source, folder)
        self.defines = [f"-D{word}" for word in WORLDS[world].split()]
        if without:
            self.defines.append("-DWITHOUT=" + "+".join(without.split()))
        if (wanted or self.fair) and not (self.fair and world in FRONT):
            self.defines.append(f"-DONLY={wanted or 'ENDS'}")
        # The shortest way to what breaks is the story worth telling; it is soon found.
        if wanted and not self.fair:
            self.defines.append("-DSHORTEST")
            how = ["-O0", "-DBFS", "-DSAFETY"]
        else:
            how = ["-O1", "-DNFAIR=3"] if self.fair else ["-O1", "-DSAFETY"]
        run(["spin", "-a", *self.defines, self.model], folder)
        run(["cc", "-w", *how, "-DNOREDUCE", "-o", "pan", "pan.c"], folder)
        self.said = run(["./pan", "-m20000", "-w22", *(["-a", "-f"] if self.fair else [])], folder)

    def number(self, pattern):
        found = re.search(pattern, self.said)
        if not found:
            raise Failed(f"the search did not say how it ended:\n{self.said}")
        return int(found[1])

    def story(self):
        lines = run(["spin", "-t", *self.defines, self.model], self.folder, good=(0, 1))
        told = re.compile(r"\s*((worker|recoverer|job|the|all|a|what) .*|<<<<<START OF CYCLE.*)")
        return [match[1].strip() for match in map(told.fullmatch, lines.splitlines()) if match]

    def broken(self):
        """What broke: the name of a property, or None. All of the world must have been seen."""
        if re.search(r"max search depth too small|out of memory|reached -DMEMLIM", self.said):
            raise Failed(f"the search was cut short:\n{self.said}")
        if self.number(r"errors: (\d+)") == 0:
            return None
        if "acceptance cycle" in self.said:
            return "ENDS"
        tested = re.search(r"assertion violated \(\((\d+)(?:!=\1|==0)\)\|\|", self.said)
        where = "guards.pml" if self.model == "lease.pml" else self.model
        properties = re.findall(r"#define ([A-Z]+) (\d+)(?: +/\*|$)", (HERE / where).read_text(), re.M)
        names = [name for name, value in properties if tested and value == tested[1]]
        return names[0] if names else "a property"


def check(name, world, without, wanted, tell):
    """(passed, lines to print below the result)"""
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        try:
            search = Search(folder, world, without, wanted)
            broken = search.broken()
            states = search.number(r"(\d+) states, stored")
            lines = [f"{states} states, {time.monotonic() - began:.1f} s"] if tell else []
            if broken != wanted:
                lines.append(f"{broken or 'nothing'} broke, expected: {wanted or 'nothing'}")
            if broken and (tell or broken != wanted):
                lines += search.story()
            return broken == wanted, lines
        except (Failed, OSError, subprocess.SubprocessError) as error:
            return False, str(error).splitlines()


def every_world_has_a_guard_that_it_needs():
    """A world in which nothing can break proves nothing."""
    held = {world for _, world, without, wanted in TESTS if wanted is None and not without}
    broken = {world for _, world, _, wanted in TESTS if wanted}
    fair = {world for world in held if "LIVENESS" in WORLDS[world]}
    if "nobody recovers" in broken:
        broken |= fair
    return [f"nothing breaks in world: {world}" for world in sorted(held - broken)]


def every_guard_is_taken_out():
    guards = (re.findall(r"#define (\w+) \(1 << \d+\)", (HERE / "guards.pml").read_text())
              + [word for model in ("front.pml", "wake.pml")
                 for word in re.findall(r"#define (\w+) \d+ +/\*", (HERE / model).read_text())])
    taken = {word for _, _, without, wanted in TESTS if wanted for word in without.split()}
    return ([f"nothing breaks without: {guard}" for guard in guards if guard not in taken]
            + [f"no such guard: {word}" for word in sorted(taken - set(guards))])


def the_guards_of_the_model_stand_in_the_sql():
    """Comments of guards.pml of the form `statement, statement: AND …` are looked up."""
    statements = {}
    for path in SQL.glob("*.sql"):
        for part in re.split(r"^-- name: ", path.read_text(encoding="utf-8"), flags=re.M)[1:]:
            name, _, text = part.partition("\n")
            statements[name.strip()] = " ".join(re.sub(r"--.*", "", text).split())
    wrong = []
    cited = re.findall(r"/\* ([a-z_, ]+): ((?:AND|token =) .*?) \*/",
                       (HERE / "guards.pml").read_text())
    for names, guard in cited:
        for name in names.split(", "):
            if guard not in statements.get(name, ""):
                wrong.append(f"{name} does not say: {guard}")
    return wrong or ([] if len(cited) >= 7 else ["guards.pml cites too few statements"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--story", action="store_true", help="print sizes, and how it breaks")
    parser.add_argument("pattern", nargs="*", help="names of tests")
    options = parser.parse_args()
    for tool in ("spin", "cc"):
        if shutil.which(tool) is None:
            print(f"Bail out! {tool} is missing: install it with tools/deps check")
            return 1
    about = [every_world_has_a_guard_that_it_needs, every_guard_is_taken_out,
             the_guards_of_the_model_stand_in_the_sql]
    work = [(function.__name__, lambda function=function: (not (w := function()), w))
            for function in about]
    work += [(test[0], lambda test=test: check(*test, options.story)) for test in TESTS]
    if options.pattern:
        work = [item for item in work
                if any(fnmatch.fnmatch(item[0], pattern) for pattern in options.pattern)]
    if not work:
        print("no test matches", file=sys.stderr)
        return 2
    print(f"TAP version 13\n1..{len(work)}", flush=True)
    failed = 0
    for number, (name, action) in enumerate(work, 1):
        good, lines = action()
        failed += not good
        print(f"{'ok' if good else 'not ok'} {number} - {name}")
        print("".join(f"# {line}\n" for line in lines), end="", flush=True)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
