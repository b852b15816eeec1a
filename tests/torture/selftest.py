#!/usr/bin/env python3
"""Tests of the checker: it accepts a true history, and finds every forgery and every mutant.

    tests/torture/selftest.py --build BUILD [PATTERN]...

A short run of torture (run.py) makes a real history, which must pass. Then single lines of it are forged,
and each forgery must be found by the rule that it breaks. Then the library itself is
broken: a guard is taken out of a copy of its source, a client is linked with that, and its history
must be found impossible. If a mutation no longer fits the source, its test fails.
"""

import argparse
import concurrent.futures
import copy
import fnmatch
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import history
import run

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TRIES = 3  # a race that a mutant loses is lost nearly always


# ---------------------------------------------------------------- forgeries

class Tape:
    """A history as it was read, to be written differently."""

    def __init__(self, folder):
        self.lines, self.rows, self.events = (
            history.read_lines(folder / name)
            for name in ("history.jsonl", "rows.jsonl", "events.jsonl"))

    def act(self, act, **like):
        """The first act that has returned and is `like` this."""
        for line in self.lines:
            if (line["act"] == act and "result" in line and line.get("job")
                    and all(line.get(key) == like[key] for key in like)):
                return line
        raise LookupError(f"no {act} like {like}")

    def passed_on(self):
        """Two claims, one after the other, of a job that was taken back from a living holder."""
        killed = {line["process"] for line in self.lines if line["act"] == "kill"}
        for event in self.events:
            if event["type"] != "job.recovered" or event["worker"] in killed:
                continue
            claims = [line for line in self.lines if line["act"] == "claim" and "result" in line
                      and line["job"] == event["job"]]
            for first, second in zip(claims, claims[1:]):
                if first["token"] == event["token"]:
                    return first, second
        raise LookupError("nobody lost a lease while he lived")

    def lease_events(self, kind):
        return [event for event in self.events if event["type"] == kind]

    def row(self, job):
        return next(row for row in self.rows if row["id"] == job)


def job_lost(tape):
    tape.rows.remove(tape.row(tape.act("enqueue", result="ok")["job"]))


def job_twice(tape):
    tape.rows.append(dict(tape.rows[0], id=len(tape.rows) + 1000))


def job_from_nowhere(tape):
    tape.rows.append(dict(tape.rows[0], id=len(tape.rows) + 1000, payload_text="j-nobody"))


def token_twice(tape):
    first, second = tape.passed_on()
    second["token"] = first["token"]


def tokens_swapped(tape):
    first, second = tape.passed_on()
    first["token"], second["token"] = second["token"], first["token"]


def claim_without_event(tape):
    claim = tape.act("claim", result="ok")
    tape.events = [event for event in tape.events if event["type"] != "job.claimed"
                   or (event["job"], event["token"]) != (claim["job"], claim["token"])]


def claimed_by_another(tape):
    tape.act("claim", result="ok")["process"] = "w9-9"


def taken_too_early(tape):
    first, second = tape.passed_on()
    # Not after its return: a claim that was kept waiting may come back to a lease that is over.
    second["call_ns"], second["return_ns"] = first["call_ns"] + 1, first["call_ns"] + 2


def taken_from_the_living(tape):
    kill = next(line for line in tape.lines if line["act"] == "kill" and any(
        event["type"] == "job.recovered" and f"{line['process']} is gone" in event["reason"]
        for event in tape.events))
    tape.lines.remove(kill)


def beat_in_time_forgotten(tape):
    """Its holder was answered by a beat, just before it was taken for being late."""
    first, second = tape.passed_on()
    event = next(event for event in tape.lease_events("job.recovered")
                 if (event["job"], event["token"]) == (first["job"], first["token"]))
    event["reason"] = event["reason"].replace("RECLAIMED_DEAD", "RECLAIMED_TTL").replace(
        "has been silent", "lost")
    tape.lines.append(dict(first, act="beat", op=10**9, call_ns=second["call_ns"] - 2,
                           return_ns=second["call_ns"] - 1, lease_ms=900))


def no_known_reason(tape):
    tape.lease_events("job.recovered")[0]["reason"] = "because"


def late_complete_done(tape):
    first, second = tape.passed_on()
    tape.lines.append(dict(first, act="complete", op=10**9, call_ns=second["return_ns"] + 10**7,
                           return_ns=second["return_ns"] + 2 * 10**7))


def beat_after_the_loss(tape):
    first, second = tape.passed_on()
    tape.lines.append(dict(first, act="beat", op=10**9, call_ns=second["return_ns"] + 10**7,
                           return_ns=second["return_ns"] + 2 * 10**7, lease_ms=120))


def refused_without_cause(tape):
    done = tape.act("complete", result="ok")
    done.update(result="fail", status="ELOST", return_ns=done["call_ns"] - 10**9)


def ended_twice(tape):
    done = tape.act("complete", result="ok")
    tape.lines.append(dict(done, op=10**9, token=done["token"] + 7))


def refused_complete_done(tape):
    """It was refused, and is said to be done: the job then ended twice."""
    tape.act("complete", status="ELOST").update(result="ok", status="OK")


def ended_otherwise(tape):
    tape.row(tape.act("complete", result="ok")["job"])["state"] = "failed"


def completed_by_nobody(tape):
    done = tape.act("complete", result="ok")
    tape.lines = [line for line in tape.lines if line["act"] != "complete"
                  or line["job"] != done["job"]]


def never_ended(tape):
    tape.rows[0]["state"] = "running"


def too_slow(tape):
    next(line for line in tape.lines if line["act"] == "drained")["call_ns"] += 10**12


def nobody_waited(tape):
    tape.lines = [line for line in tape.lines if line["act"] != "drained"]


def left_lying(tape):
    """The lease had been over for long when it was taken back, and there were no faults."""
    next(line for line in tape.lines if line["act"] == "quiet")["call_ns"] = 0
    event = tape.lease_events("job.recovered")[0]
    held = next(line for line in tape.lines if line["act"] == "claim" and "result" in line
                and (line["job"], line["token"]) == (event["job"], event["token"]))
    for line in tape.lines:
        if line["process" if "process" in line else "act"] == held["process"] \
                and line.get("job") == held["job"] and "lease_ms" in line:
            line["call_ns"] -= 10**11


def event_missing(tape):
    tape.events.remove(tape.lease_events("job.recovered")[0])


def event_twice(tape):
    tape.events.append(copy.copy(tape.lease_events("job.completed")[0]))


def attempt_wrong(tape):
    tape.rows[0]["attempt"] += 1


def recoveries_wrong(tape):
    tape.rows[0]["recoveries"] += 1


def token_of_row_wrong(tape):
    tape.rows[0]["token"] += 1


def run_of(tape, claim, start_ns, end_ns):
    run = {"job": claim["job"], "token": claim["token"]}
    tape.lines.append(dict(run, act="start", ns=start_ns))
    tape.lines.append(dict(run, act="end", ns=end_ns, code=0))


def two_runs_at_once(tape):
    first, second = tape.passed_on()
    run_of(tape, first, first["return_ns"], second["return_ns"] + 2)
    run_of(tape, second, second["return_ns"] + 1, second["return_ns"] + 3)


def lock_was_taken(tape):
    tape.lines.append({"act": "overlap", "job": 1, "token": 1, "ns": 1})


def run_twice(tape):
    claim = tape.act("claim", result="ok")
    run_of(tape, claim, 1, 2)
    run_of(tape, claim, 3, 4)


def run_without_a_lease(tape):
    run_of(tape, {"job": 1, "token": 10**6}, 1, 2)


def refusal_untold(tape):
    """A run ended well, too late, and its worker lived: it must have said so."""
    first, _ = tape.passed_on()
    run_of(tape, first, first["return_ns"], first["return_ns"] + 1)


FORGERIES = [
    ("a_job_that_was_enqueued_and_is_not_there_is_found", job_lost, "LOST"),
    ("a_job_that_is_there_twice_is_found", job_twice, "LOST"),
    ("a_job_that_nobody_enqueued_is_found", job_from_nowhere, "LOST"),
    ("a_token_handed_out_twice_is_found", token_twice, "TOKEN"),
    ("a_token_that_fell_is_found", tokens_swapped, "TOKEN"),
    ("a_claim_that_no_event_tells_of_is_found", claim_without_event, "TOKEN"),
    ("a_claim_that_went_to_another_is_found", claimed_by_another, "TOKEN"),
    ("a_lease_taken_before_its_time_is_found", taken_too_early, "EARLY"),
    ("a_lease_taken_from_a_living_worker_is_found", taken_from_the_living, "EARLY"),
    ("a_lease_taken_in_spite_of_a_beat_is_found", beat_in_time_forgotten, "EARLY"),
    ("a_lease_taken_for_no_reason_is_found", no_known_reason, "EARLY"),
    ("a_late_complete_that_was_accepted_is_found", late_complete_done, "LATE"),
    ("a_beat_that_was_accepted_after_the_loss_is_found", beat_after_the_loss, "LATE"),
    ("a_refusal_without_a_cause_is_found", refused_without_cause, "LATE"),
    ("a_job_that_ended_twice_is_found", ended_twice, "ENDS"),
    ("a_refused_complete_that_is_told_done_is_found", refused_complete_done, "ENDS"),
    ("a_job_that_ended_other_than_its_row_says_is_found", ended_otherwise, "ENDS"),
    ("a_job_that_nobody_completed_is_found", completed_by_nobody, "ENDS"),
    ("a_job_that_never_ends_is_found", never_ended, "STUCK"),
    ("work_that_takes_too_long_is_found", too_slow, "STUCK"),
    ("a_history_without_an_end_is_found", nobody_waited, "STUCK"),
    ("a_lease_that_nobody_takes_back_is_found", left_lying, "STUCK"),
    ("an_event_that_is_missing_is_found", event_missing, "FOLD"),
    ("an_event_that_is_there_twice_is_found", event_twice, "FOLD"),
    ("an_attempt_that_was_not_counted_is_found", attempt_wrong, "FOLD"),
    ("a_recovery_that_was_not_counted_is_found", recoveries_wrong, "FOLD"),
    ("a_token_in_the_row_that_no_event_tells_of_is_found", token_of_row_wrong, "FOLD"),
    ("two_runs_at_once_are_found", two_runs_at_once, "APART"),
    ("a_run_that_found_another_alive_is_found", lock_was_taken, "APART"),
    ("a_lease_that_was_run_twice_is_found", run_twice, "APART"),
    ("a_run_without_a_lease_is_found", run_without_a_lease, "APART"),
    ("a_refusal_that_nobody_told_is_found", refusal_untold, "COUNTED"),
]


def forged(folder, forge, rule):
    tape = Tape(folder)
    forge(tape)
    found = history.check(history.History(tape.lines, tape.rows, tape.events))
    if any(name == rule for name, _ in found):
        return []
    return [f"expected {rule}, found: {found[:5] or 'nothing'}"]


# ---------------------------------------------------------------- mutants

class Stale(Exception):
    """The source has moved on from under a mutation."""


class Source:
    """Some files of the tree, as a mutant wants them; files in sql/ are one generated file."""

    def __init__(self, folder):
        self.folder, self.files = folder, set()

    def change(self, name, old, new):
        path = self.folder / name
        if name not in self.files:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, path)
            self.files.add(name)
        text = path.read_text(encoding="utf-8")
        if old not in text:
            raise Stale(f"{name} no longer says: {old}")
        path.write_text(text.replace(old, new, 1), encoding="utf-8")

    def change_statement(self, name, statement, old, new):
        """`old` → `new` in one statement of a .sql file."""
        target = self.folder / "sql"
        if not target.exists():
            shutil.copytree(ROOT / "sql", target)
        path = self.folder / name
        text = path.read_text(encoding="utf-8")
        found = re.search(rf"^-- name: {statement}\n(?:(?!^-- name:).*\n)*", text, re.M)
        if found is None or old not in found[0]:
            raise Stale(f"{statement} of {name} no longer says: {old}")
        path.write_text(text.replace(found[0], found[0].replace(old, new)), encoding="utf-8")

    def client(self, build):
        """The torture client, with these files in place of the library's own."""
        sources = [self.folder / name for name in sorted(self.files)]
        include = [build]
        if (self.folder / "sql").exists():
            compiled([sys.executable, ROOT / "tools" / "embed_sql.py", "--out", self.folder,
                      "--depfile", self.folder / "sql.d", f"sqlite={self.folder / 'sql/sqlite'}"])
            sources.append(self.folder / "sql_sqlite.c")
            include.insert(0, self.folder)
        program = self.folder / "client"
        # Whatever the program brings along is not taken from the archive.
        compiled(["cc", "-std=c11", "-O1", "-w", "-D_GNU_SOURCE", "-DLHI_TEST=1",
                  '-DLEASEHOLD_VERSION="0"', *(f"-I{path}" for path in include),
                  f"-I{ROOT / 'include'}", f"-I{ROOT / 'src'}", "-o", program,
                  HERE / "client.c", *sources, build / "libleasehold_test.a",
                  "-lsqlite3", "-lpq", "-lpthread"])
        return program


def compiled(command):
    done = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
    if done.returncode != 0:
        raise Stale(done.stdout)


def guard_dropped(source):
    """A complete looks at the job, not at the token."""
    for statement in ("job_held", "job_complete"):
        source.change_statement("sql/sqlite/job.sql", statement, "token = :token",
                                "(token = :token OR 1)")


def beat_guard_dropped(source):
    """A beat looks at the job, not at the token."""
    source.change_statement("sql/sqlite/job.sql", "job_heartbeat", "token = :token",
                            "(token = :token OR 1)")


def recheck_dropped(source):
    """Recovery takes what it has read, whatever has become of it since then."""
    name = "src/store/sqlite/acts/recover.c"
    source.change(name, "if (job.state != LH_RUNNING || (", "if ((")
    source.change(name, "    if (job->worker == NULL)\n        return LH_OK;\n", "")
    source.change(name, "reclaimable = cause == LHI_CAUSE_DEAD || job->lease_until <= txn->now;",
                  "reclaimable = true;")
    source.change(name, "sq_holder_look_up(txn->conn, job->worker,",
                  'sq_holder_look_up(txn->conn, job->worker ? job->worker : "",')
    source.change("src/core/recovery.c", "        rc = take_back(store, run, opts, work, err);\n",
                  "        { lhi_sleep_ms(5); rc = take_back(store, run, opts, work, err); }\n")
    for guard in ("token = :token", "state = 'running'", "lease_until = :lease_until"):
        source.change_statement("sql/sqlite/recovery.sql", "job_recover", f"AND {guard}",
                                f"AND ({guard} OR 1)")


def answered_before_commit(source):
    """Whoever leads tells the others first, and commits a little later."""
    name = "src/store/sqlite/group_commit.c"
    source.change(name, "/* Everything between taking",
                  "static void return_results(struct call *calls);\n/* Everything between taking")
    source.change(name, "    rc = sq_txn_commit(txn, err);\n",
                  "    return_results(calls->next);\n    calls->next = NULL;\n"
                  "    lhi_sleep_ms(10);\n    rc = sq_txn_commit(txn, err);\n")
    source.change(name, "#include <assert.h>", '#include "base/clock.h"\n#include <assert.h>')


def client_clock(_source):
    """See --skew-ms: one worker judges by its own clock, which is ahead."""


MUTANTS = [
    ("a_complete_without_its_guard_is_found", guard_dropped, {}, {"LATE", "ENDS"}),
    ("a_beat_without_its_guard_is_found", beat_guard_dropped, {}, {"LATE", "EARLY"}),
    ("a_recovery_that_does_not_look_again_is_found", recheck_dropped, {},
     {"ENDS", "EARLY", "FOLD"}),
    ("an_answer_before_the_commit_is_found", answered_before_commit, {}, {"LOST", "ENDS", "TOKEN"}),
    ("a_worker_that_judges_by_its_own_clock_is_found", client_clock, {"skew_ms": 2000}, {"EARLY"}),
]


def rich_run(build):
    """A history in which everything happened that the forgeries start from."""
    for number in range(TRIES):
        seen, folder = short_run(build, build / "tests" / "torture-client", number, seconds=4,
                                 jobs=240, kills=40)
        try:
            tape = Tape(folder)
            tape.passed_on()
            tape.act("complete", status="ELOST")
            return seen, folder
        except LookupError:
            wrong = history.check(seen)
            if wrong:
                return seen, folder
            shutil.rmtree(folder)
    raise run.Failed("nobody came too late, in several runs")


def short_run(build, client, number, **more):
    """The history of a run of a few seconds, and its folder."""
    options = run.parse(["--build", str(build), "--by", "client", "--seconds", "2.5",
                         "--kills", "35", "--jobs", "160", "--workers", "3", "--seed", str(number)])
    options.client = client
    for name, value in more.items():
        setattr(options, name, value)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="selftest-"))
    return run.torture(options, folder), folder


def mutated(build, mutate, more, rules):
    """The mutant is caught, by one of the rules that it breaks."""
    said = []
    with tempfile.TemporaryDirectory() as folder:
        source = Source(pathlib.Path(folder))
        mutate(source)
        client = source.client(build)
        for number in range(TRIES):
            try:
                seen, place = short_run(build, client, number, **more)
            except run.Failed as error:  # it broke down before it could be judged
                said.append(str(error))
                continue
            shutil.rmtree(place)
            found = {name for name, _ in history.check(seen)}
            if found & rules:
                return []
            said.append(f"expected one of {sorted(rules)}, found: {sorted(found) or 'nothing'}")
    return said


# ---------------------------------------------------------------- all of it

def guarded(function, *args):
    try:
        return function(*args)
    except (Stale, LookupError, StopIteration, history.Broken, run.Failed, OSError,
            subprocess.SubprocessError) as error:
        return [f"{type(error).__name__}: {error}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("pattern", nargs="*", help="names of tests")
    options = parser.parse_args()
    build = options.build.resolve()

    def chosen(name):
        return not options.pattern or any(fnmatch.fnmatch(name, p) for p in options.pattern)
    true_name = "a_true_history_passes"
    mutants = [mutant for mutant in MUTANTS if chosen(mutant[0])]
    forgeries = [forgery for forgery in FORGERIES if chosen(forgery[0])]
    print(f"TAP version 13\n1..{1 + len(mutants) + len(forgeries)}", flush=True)
    number = failed = 0

    def tell(name, wrong):
        nonlocal number, failed
        number, failed = number + 1, failed + bool(wrong)
        print(f"{'not ok' if wrong else 'ok'} {number} - {name}")
        print("".join(f"# {line}\n" for text in wrong for line in str(text).splitlines()),
              end="", flush=True)
    # They sleep most of the time.
    with concurrent.futures.ThreadPoolExecutor(max_workers=6) as pool:
        true = pool.submit(rich_run, build)
        caught = [pool.submit(guarded, mutated, build, *mutant[1:]) for mutant in mutants]
        try:
            seen, folder = true.result()
            tell(true_name, history.check(seen))
            for name, forge, rule in forgeries:
                tell(name, guarded(forged, folder, forge, rule))
            shutil.rmtree(folder)
        except (run.Failed, history.Broken, OSError, subprocess.SubprocessError) as error:
            tell(true_name, [error])
        for mutant, result in zip(mutants, caught):
            tell(mutant[0], result.result())
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
