#!/usr/bin/env python3
"""Tests of the harness: runs the misbehaving tests of victim.c and reads the TAP.

    selftest.py VICTIM SANITIZERS        SANITIZERS as in -Db_sanitize

These tests do not use the harness: a harness that passes every test would pass its own, too.
"""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

VICTIM = os.path.abspath(sys.argv[1])
SANITIZERS = sys.argv[2].split(",")
LIMIT_S = 300  # of a busy machine
SLOW_START = {"TEST_TIMEOUT_SCALE": "3"}  # time to write its pid on a busy machine
results = []


def test(function):
    results.append((function.__name__, function))


class Outcome:
    def __init__(self, *args, env=None, jobs=None, before=None):
        self.tmp = tempfile.TemporaryDirectory()
        environment = dict(os.environ, TMPDIR=self.tmp.name, LEASEHOLD_STORE="leaked")
        environment.pop("TEST_TIMEOUT_SCALE", None)
        environment.update(env or {})
        command = [VICTIM, *(["--jobs", str(jobs)] if jobs else []), *args]
        done = subprocess.run(command, env=environment, capture_output=True, text=True,
                              timeout=LIMIT_S, preexec_fn=before)
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr
        self.left = sorted(os.listdir(self.tmp.name))
        self.verdicts = dict(
            (name, word == "ok")
            for word, name in re.findall(r"^((?:not )?ok) \d+ - (\S+)$", self.out, re.M))

    def must(self, condition, text):
        assert condition, f"{text}\n--- exit code {self.code}\n{self.out}{self.err}"

    def passed(self, name):
        self.must(self.code == 0, "exit code is not 0")
        self.must(self.verdicts == {name: True}, "not reported as passed")
        self.must(self.left == [], f"left in the directory: {self.left}")

    def failed(self, name, *words):
        self.must(self.code == 1, "exit code is not 1")
        self.must(self.verdicts == {name: False}, "not reported as failed")
        for word in words:
            self.must(word in self.out, f"output lacks: {word}")
        self.must(len(self.left) == 1, "its directory was not kept")
        self.must(f"# its directory: {self.tmp.name}/{self.left[0]}" in self.out,
                  "its directory is not named")
        for line in self.out.splitlines():
            self.must(re.match(r"(TAP version 13|1\.\.1|not ok 1 - |#)", line), f"not TAP: {line}")


def gone(path):
    """Waits until the process has ended; False if it does not."""
    pid = int(pathlib.Path(path).read_text())
    end = time.monotonic() + LIMIT_S / 5
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


@test
def a_correct_test_passes_silently():
    outcome = Outcome("passes")
    outcome.passed("passes")
    assert outcome.out == "TAP version 13\n1..1\nok 1 - passes\n", outcome.out


def ignore_and_block_signals():
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGUSR1])


@test
def tests_do_not_inherit_ignored_or_blocked_signals():
    Outcome("has_default_signals", before=ignore_and_block_signals).passed("has_default_signals")


@test
def a_skipped_test_prints_the_reason():
    outcome = Outcome("skips_itself")
    outcome.must(outcome.code == 0 and outcome.left == [], "did not pass")
    assert outcome.out == "TAP version 13\n1..1\nok 1 - skips_itself # SKIP no moon\n", outcome.out


@test
def each_test_has_a_directory_of_its_own():
    outcome = Outcome("stands_in_*")
    outcome.must(outcome.code == 0 and len(outcome.verdicts) == 2, "did not pass")
    outcome.must(outcome.left == [], "directories left behind")


@test
def a_failed_expectation_ends_the_test():
    outcome = Outcome("fails_expect")
    outcome.failed("fails_expect", "harness/victim.c:", "expected: zero() == 1")
    outcome.must("not reached" not in outcome.out, "went on after the failure")


@test
def unequal_numbers_are_shown():
    Outcome("fails_expect_eq").failed("fails_expect_eq", "left:  41", "right: 42")


@test
def unequal_texts_are_shown():
    Outcome("fails_expect_str").failed("fails_expect_str", '"left text"', '"right text"')
    Outcome("fails_expect_str_null").failed("fails_expect_str_null", "left:  NULL")


@test
def unequal_bytes_are_shown():
    Outcome("fails_expect_mem").failed("fails_expect_mem", "equal up to 2")


@test
def a_missing_part_is_shown():
    Outcome("fails_expect_contains").failed("fails_expect_contains", "needle", "hay")


@test
def a_status_is_shown_by_name():
    Outcome("fails_expect_status").failed("fails_expect_status", "EMPTY", "OK")


@test
def the_output_of_a_failed_test_is_shown():
    Outcome("fails_with_words").failed(
        "fails_with_words", "#   told on stdout\n", "the number is 7")


@test
def a_fatal_signal_is_a_failure():
    Outcome("aborts").failed("aborts", "killed by signal 6")
    # A sanitizer catches this one and leaves with an exit code of its own.
    Outcome("crashes").failed("crashes", "killed by signal 11" if SANITIZERS == ["none"] else "SEGV")


@test
def an_early_exit_is_a_failure():
    Outcome("exits_early_with_zero").failed("exits_early_with_zero", "before the end of the test")


@test
def an_exit_code_is_a_failure():
    Outcome("exits_with_code").failed("exits_with_code", "exit code 23")


@test
def a_finding_at_exit_is_a_failure():
    Outcome("fails_at_exit").failed("fails_at_exit", "exit code 99")


@test
def a_finding_of_a_sanitizer_is_a_failure():
    for name, sanitizer, words in (("leaks_memory", "address", "LeakSanitizer"),
                                   ("overflows", "undefined", "signed integer overflow"),
                                   ("races", "thread", "data race")):
        if sanitizer in SANITIZERS:
            Outcome(name).failed(name, words)
        else:
            Outcome(name).passed(name)


@test
def a_hanging_test_is_killed_in_time():
    with tempfile.NamedTemporaryFile() as pid:
        Outcome("hangs", env={"VICTIM_PID": pid.name, **SLOW_START}).failed("hangs", "timed out")
        assert gone(pid.name)


@test
def time_limits_can_be_stretched():
    started = time.monotonic()
    Outcome("hangs", env={"TEST_TIMEOUT_SCALE": "2"}).failed("hangs", "timed out")
    assert time.monotonic() - started >= 2


@test
def the_children_of_a_hanging_test_are_killed():
    with tempfile.NamedTemporaryFile() as pid:
        name = "hangs_with_a_stubborn_child"
        Outcome(name, env={"VICTIM_PID": pid.name, **SLOW_START}).failed(name, "timed out")
        assert gone(pid.name)


@test
def processes_left_by_a_test_are_killed():
    for name in ("leaves_a_process_behind", "leaves_a_daemon_behind"):
        with tempfile.NamedTemporaryFile() as pid:
            Outcome(name, env={"VICTIM_PID": pid.name}).passed(name)
            assert gone(pid.name), name


@test
def an_interrupted_run_leaves_nothing_behind():
    with tempfile.TemporaryDirectory() as tmp:
        path = pathlib.Path(tmp, "pid")
        env = dict(os.environ, TMPDIR=tmp, VICTIM_PID=str(path), TEST_TIMEOUT_SCALE="60")
        runner = subprocess.Popen([VICTIM, "hangs_with_a_stubborn_child"], env=env,
                                  stdout=subprocess.PIPE, text=True)
        while not (path.exists() and path.read_text().endswith("\n")):
            time.sleep(0.01)
        runner.terminate()
        out, _ = runner.communicate(timeout=LIMIT_S)
        assert runner.returncode == 2 and "Bail out! interrupted" in out, out
        assert gone(path)


@test
def a_child_reports_its_failure_by_exit_code():
    Outcome("child_fails").passed("child_fails")


@test
def a_closed_directory_is_removed_too():
    Outcome("makes_its_directory_unreadable").passed("makes_its_directory_unreadable")


@test
def a_test_can_run_a_program_and_read_its_output():
    Outcome("runs_a_program").passed("runs_a_program")


@test
def a_mixed_run_counts_right_and_fails():
    for jobs in (1, 2, 5):
        outcome = Outcome("passes", "aborts", "fails_expect", "runs_a_program", jobs=jobs)
        outcome.must(outcome.code == 1, "exit code is not 1")
        outcome.must(outcome.verdicts == {"passes": True, "aborts": False, "fails_expect": False,
                                          "runs_a_program": True}, "wrong verdicts")
        outcome.must("1..4\n" in outcome.out and "# 2 of 4 failed" in outcome.out, "wrong plan")


@test
def a_filter_that_matches_nothing_is_an_error():
    for args in (["no_such_test"], ["passes", "nothing_*"]):
        outcome = Outcome(*args)
        outcome.must(outcome.code == 2 and outcome.verdicts == {}, "was accepted")
        outcome.must("no test matches" in outcome.err, "no reason given")


@test
def a_bad_option_is_an_error():
    for args in (["--nonsense"], ["--jobs", "0"], ["--jobs"], ["--times", "0"], ["--busy", "65"]):
        outcome = Outcome(*args)
        outcome.must(outcome.code == 2 and "usage:" in outcome.err, "was accepted")


@test
def times_runs_each_chosen_test_n_times():
    outcome = Outcome("--times", "3", "passes", "fails_expect", jobs=2)
    lines = outcome.out.splitlines()
    outcome.must(outcome.code == 1 and "1..6" in lines, "wrong plan")
    outcome.must(sum(line.endswith("- passes") for line in lines) == 3, "not three times")
    outcome.must("# 3 of 6 failed" in lines, "failures are not counted")


@test
def busy_processes_run_beside_the_tests_and_end_with_them():
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/siblings"
        Outcome("--busy", "2", "lists_its_siblings", env={"SIBLINGS": path}).passed("lists_its_siblings")
        itself, *children = pathlib.Path(path).read_text().split()
        busy = [pid for pid in children if pid != itself]
        assert len(busy) == 2, f"not two: {busy}"
        for pid in busy:
            pathlib.Path(path).write_text(pid)
            assert gone(path), f"busy process {pid} is left behind"


@test
def list_prints_the_names_only():
    outcome = Outcome("--list")
    outcome.must(outcome.code == 0 and "passes" in outcome.out.splitlines(), "no list")
    outcome.must(outcome.verdicts == {}, "ran something")


def main():
    print(f"TAP version 13\n1..{len(results)}")
    failed = 0
    for number, (name, function) in enumerate(results, 1):
        try:
            function()
            print(f"ok {number} - {name}", flush=True)
        except (AssertionError, subprocess.TimeoutExpired, OSError, ValueError) as error:
            failed += 1
            print(f"not ok {number} - {name}")
            print("".join(f"# {line}\n" for line in str(error).splitlines()), end="", flush=True)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
