#!/usr/bin/env python3
"""Everything that must pass, on as many cores as there are.

    tools/check [--quick] [--list] [--only STEP]...

Every test and every lint or build counts as one. The last line is `N passed, N failed`, and the exit
code is 0 only if nothing failed; the lines before it name each failed test and what it printed. A
failing step does not stop the others, except those that need what it should have built: these count as
failed too. A test that this machine cannot run (network namespaces without root) is skipped: it counts
as neither, and is named. Logs are in build/check/*.log. A second check of the same folder waits until
the first one has ended.

--quick leaves out sanitizers, valgrind and lints. --only runs one step, with the builds it needs.
"""

import argparse
import fcntl
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parent.parent
CHECK = ROOT / "build" / "check"
CORES = os.cpu_count() or 1
TAIL_LINES = 40
# How much of a failed test is repeated at the end, and of how many of them.
CLOSING_LINES, CLOSING_TESTS = 8, 20
BUILD_LIMIT_S = 1800

# Meson options of each build. Sanitizers leave symbols for the program to resolve, hence b_lundef.
BUILDS = {
    "gcc": ("gcc", []),
    # For its warnings and clang-tidy: nothing of it is run. (The tests are compiled for the sanitizers.)
    "clang": ("clang", ["-Dbuildtype=debug"]),
    # As well optimized as they are, in four fifths of the time.
    "asan": ("clang", ["-Db_sanitize=address,undefined", "-Db_lundef=false", "-Doptimization=1"]),
    "tsan": ("clang", ["-Db_sanitize=thread", "-Db_lundef=false", "-Doptimization=1"]),
}
# Time limits only end what hangs. They are multiplied, so that a test that has to share the machine with
# much other work does not reach them.
ENVIRONMENT = {
    None: {"TEST_TIMEOUT_SCALE": "3"},
    "asan": {"ASAN_OPTIONS": "detect_stack_use_after_return=1:strict_string_checks=1",
             "UBSAN_OPTIONS": "print_stacktrace=1", "TEST_TIMEOUT_SCALE": "6"},
    # Tests fork while they have threads; what they then do is theirs to answer for.
    "tsan": {"TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1:die_after_fork=0",
             "TEST_TIMEOUT_SCALE": "10"},
    "memcheck": {"TEST_TIMEOUT_SCALE": "15"},
}
PRODUCT = ["leasehold", "leasehold-guardian", "libleasehold.a"]
LONG = {"torture", "partition"}  # not with --quick
BESIDE = LONG | {"postgres", "sql"}  # suites that mostly wait, and hardly need a core
# Suites that ten minutes have no room for: `make torture` runs them, or --only.
LATER = {"alloc", "failover", "model", "race-pgbouncer", "spec-pgbouncer", "torture-postgres",
         "build-tsan", "tsan", "clang-tidy-deep", "valgrind"}
# How far the analyzer goes into one function: a fifteenth of its default, in a quarter of the time.
TIDY_SHALLOW = [f"--extra-arg={word}" for word in
                ("-Xclang", "-analyzer-config", "-Xclang", "max-nodes=15000")]
VALGRIND = ["valgrind", "--quiet", "--error-exitcode=99", "--leak-check=full",
            "--errors-for-leak-kinds=definite,indirect,possible", "--num-callers=30"]


class Step:
    """One unit of work. `action` writes to a log and returns (passed, failed)."""

    def __init__(self, name, action, needs=(), quick=False, beside=False):
        self.name, self.action, self.needs, self.quick = name, action, needs, quick
        self.beside = beside  # waits nearly all of its time: it takes no core from the others
        self.started = self.finished = False
        self.passed = self.failed = 0
        self.skipped = []
        self.failures = []  # (name, lines about it) of each failed test, or of the step
        self.log = CHECK / f"{name}.log"


class Log:
    def __init__(self, path):
        self.file = open(path, "w", encoding="utf-8")
        self.path = path
        self.skipped = []

    def say(self, text):
        print(text, file=self.file, flush=True)

    def run(self, command, env=None, limit=BUILD_LIMIT_S, output=None, folder=ROOT):
        """Run a command; its exit code, or None when it had to be killed."""
        self.say("$ " + " ".join(str(word) for word in command))
        process = subprocess.Popen(command, cwd=folder, env=dict(os.environ, **(env or {})),
                                   stdin=subprocess.DEVNULL, stdout=output or self.file,
                                   stderr=self.file, start_new_session=True)
        RUNNING.add(process.pid)
        try:
            return process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self.say(f"killed after {limit} s")
            return None
        finally:
            RUNNING.discard(process.pid)


RUNNING = set()


def one(good):
    return (1, 0) if good else (0, 1)


# ---------------------------------------------------------------- builds

def build(variant, tag=None, only=()):
    """Configure and build: what the suites of a tag run, or these targets, or all of it."""
    compiler, options = BUILDS[variant]

    def action(log):
        folder = CHECK / variant
        if not (folder / "build.ninja").exists():
            # What a broken-off configure left behind would stand in the way for ever.
            shutil.rmtree(folder, ignore_errors=True)
            if log.run(["meson", "setup", folder, ROOT, "-Dtests=true", *options],
                       env={"CC": compiler}) != 0:
                return one(False)
        targets = only if tag is None else programs_of(variant, tag)
        return one(log.run(["ninja", "-C", folder, "-j", str(CORES), *targets]) == 0)
    return action


def programs_of(variant, tag):
    """The programs of this build that the suites tagged `tag` start: named in full, or from there."""
    folder = str(CHECK / variant) + os.sep
    words = {word.removeprefix(folder) for test in declared_tests(variant) if has_tag(test, tag)
             for word in test["cmd"]}
    return sorted(word for word in words if "/" in word and not os.path.isabs(word))


# ---------------------------------------------------------------- suites

def declared_tests(variant):
    """The tests as meson.build declares them."""
    listing = subprocess.run(["meson", "introspect", "--tests", CHECK / variant], check=True,
                             capture_output=True, text=True).stdout
    return json.loads(listing)


def has_tag(test, tag):
    return tag in [suite.split(":")[-1] for suite in test["suite"]]  # Meson writes PROJECT:SUITE.


def count_tap(path):
    """(passed, failed, skipped, complaint) of a TAP file; a plan that was not kept is a complaint."""
    passed = failed = 0
    skipped = []
    plan = complaint = None
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if skip := re.match(r"ok \d+ - (\S+) # SKIP (.*)", line):
            skipped.append(f"{skip[1]}: {skip[2]}")
        elif re.match(r"ok\b", line):
            passed += 1
        elif re.match(r"not ok\b", line):
            failed += 1
        elif re.fullmatch(r"1\.\.\d+", line):
            plan = int(line[3:])
        elif line.startswith("Bail out!"):
            complaint = line
    if complaint is None and plan is None:
        complaint = "no plan: the suite did not start, or died"
    elif complaint is None and plan != passed + failed + len(skipped):
        complaint = f"{plan} tests were planned, {passed + failed + len(skipped)} ran"
    return passed, failed, skipped, complaint


def run_suite(log, test, folder, env, wrapper, scale):
    tap = log.path.with_suffix(f".{test['name']}.tap")
    with open(tap, "w", encoding="utf-8") as output:
        code = log.run([*wrapper, *test["cmd"]], env={**test["env"], **env},
                       limit=test["timeout"] * scale, output=output,
                       folder=test["workdir"] or folder)
    passed, failed, skipped, complaint = count_tap(tap)
    log.skipped += skipped
    log.say(tap.read_text(encoding="utf-8", errors="replace"))
    if complaint is None and code != 0 and failed == 0:
        complaint = f"all passed, but the exit code is {code}"
    if complaint:
        log.say(f"not ok - {test['name']}: {complaint}")
        failed += 1
    return passed, failed


def suites(variant, tag, flavour=None, wrapper=()):
    """Run the tests of a build that carry `tag` as a suite."""
    def action(log):
        env = ENVIRONMENT[flavour]
        scale = int(env["TEST_TIMEOUT_SCALE"])
        passed = failed = 0
        for test in declared_tests(variant):
            if has_tag(test, tag):
                more_passed, more_failed = run_suite(log, test, CHECK / variant, env,
                                                     list(wrapper), scale)
                passed, failed = passed + more_passed, failed + more_failed
        if passed + failed == 0 and not log.skipped:
            log.say(f"no suite of this build is tagged {tag}")
            return one(False)
        return passed, failed
    return action


def tsan_wrapper():
    """ThreadSanitizer wants its shadow memory where a strongly randomized layout may put us."""
    plain = ["setarch", "-R"]
    works = subprocess.run([*plain, "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return plain if works.returncode == 0 else []


# ---------------------------------------------------------------- lints

def tracked(*patterns):
    """Files of the tree by pattern, those not yet added included."""
    listing = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "--", *patterns],
                             cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [name for name in sorted(set(listing.splitlines())) if (ROOT / name).exists()]


def layout(log):
    return one(log.run(["clang-format", "--dry-run", "-Werror", *tracked("*.c", "*.h")]) == 0)


def layers(log):
    return one(log.run([sys.executable, ROOT / "tools" / "layers.py", ROOT]) == 0)


def links(log):
    return one(log.run([sys.executable, ROOT / "tools" / "layers.py", ROOT, "--build", CHECK / "gcc",
                        "--map"]) == 0)


def is_listed(name, lists):
    """Does a meson.build name this file, relative to its own folder?"""
    path = pathlib.PurePath(name)
    return any(path.is_relative_to(folder) and f"'{path.relative_to(folder)}'" in text
               for folder, text in lists)


def sources(log):
    """A file nobody compiles rots; one that only the tests compile is not in the product."""
    commands = json.loads((CHECK / "gcc" / "compile_commands.json").read_text(encoding="utf-8"))
    compiled = {os.path.realpath(os.path.join(c["directory"], c["file"])) for c in commands}
    # One of two files, by what is installed here, is compiled on another machine only: a list names it.
    lists = [(pathlib.PurePath(name).parent, (ROOT / name).read_text(encoding="utf-8"))
             for name in tracked("meson.build", "*/meson.build")]
    forgotten = [name for name in tracked("src/*.c", "tests/*.c")
                 if os.path.realpath(ROOT / name) not in compiled and not is_listed(name, lists)]
    for name in forgotten:
        log.say(f"{name}: in no list of meson.build")
    return one(not forgotten)


def tidy(log, *how):
    # The clang build describes the flags: clang-tidy does not know all of gcc's. Each file once: what
    # has hooks is compiled for the product and for the tests, and would be looked at as often.
    database = {}
    for entry in json.loads((CHECK / "clang" / "compile_commands.json").read_text(encoding="utf-8")):
        path = os.path.realpath(os.path.join(entry["directory"], entry["file"]))
        database.setdefault(path, entry)
    folder = CHECK / "tidy"
    folder.mkdir(exist_ok=True)
    (folder / "compile_commands.json").write_text(json.dumps(list(database.values())),
                                                  encoding="utf-8")
    names, failed = tracked("src/*.c"), []
    lock = threading.Lock()

    def work():
        while True:
            with lock:
                if not names:
                    return
                name = names.pop()
            done = subprocess.run(["clang-tidy", "--quiet", "-p", folder, *how, name], cwd=ROOT,
                                  capture_output=True, text=True)
            with lock:
                if done.returncode != 0:
                    failed.append(name)
                    log.say(done.stdout + done.stderr)
    threads = [threading.Thread(target=work) for _ in range(CORES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return one(not failed)


def cppcheck(log):
    cache = CHECK / "cppcheck"
    cache.mkdir(exist_ok=True)
    return one(log.run([
        "cppcheck", "--quiet", "--std=c11", "--language=c", "--inline-suppr", "-j", str(CORES),
        "--enable=warning,performance,portability", "--error-exitcode=1",
        "--suppressions-list=tools/cppcheck.supp", f"--cppcheck-build-dir={cache}",
        "-D_GNU_SOURCE", "-D__GNUC__=12", "-I", "include", "-I", "src", "-I", CHECK / "gcc", "src"
    ]) == 0)


def python(log):
    # Compiling is all: a syntax error in a tool nobody ran today.
    scripts = [ROOT / name for name in tracked("*.py")]
    good = True
    for script in scripts:
        try:
            compile(script.read_text(encoding="utf-8"), str(script), "exec")
        except SyntaxError as error:
            log.say(f"{script}: {error}")
            good = False
    return one(good)


# ---------------------------------------------------------------- the plan

def plan():
    """In the order they are started: long ones early, so that no core waits at the end."""
    steps = [
        Step("format", layout, quick=True),
        Step("layers", layers, quick=True),
        Step("python", python, quick=True),
        Step("build-gcc", build("gcc"), quick=True),
        Step("build-clang", build("clang", only=PRODUCT), quick=True),
        Step("sources", sources, ["build-gcc"], quick=True),
        Step("links", links, ["build-gcc"], quick=True),
        Step("clang-tidy", lambda log: tidy(log, *TIDY_SHALLOW), ["build-clang"]),
        Step("build-asan", build("asan", "sanitized")),
        Step("asan", suites("asan", "sanitized", "asan"), ["build-asan"]),
    ]
    steps += [Step(tag, suites("gcc", tag), ["build-gcc"], quick=tag not in LONG,
                   beside=tag in BESIDE) for tag in suite_tags()]
    steps += [
        Step("clang-tidy-deep", tidy, ["build-clang"]),
        Step("build-tsan", build("tsan", "sanitized")),
        Step("tsan", suites("tsan", "sanitized", "tsan", tsan_wrapper()), ["build-tsan"]),
        Step("valgrind", suites("gcc", "memchecked", "memcheck", VALGRIND), ["build-gcc"]),
        Step("cppcheck", cppcheck, ["build-gcc"]),
    ]
    return steps


def suite_tags():
    """The suites, read from tests/meson.build: the plan is made before anything is built."""
    text = (ROOT / "tests" / "meson.build").read_text(encoding="utf-8")
    table = re.search(r"^suites = \{(.*?)^\}", text, re.M | re.S)
    named = re.findall(r"^  '(\w+)'", table[1], re.M)
    return named + servers_tags(text) + re.findall(r"^ *test\('([\w-]+)'", text, re.M)


def servers_tags(text):
    """The suites of every store, on each server."""
    everywhere = re.findall(r"'(\w+)'", re.search(r"^conformance = \[(.*?)\]", text, re.M)[1])
    table = re.search(r"^servers = \{(.*?)^\}", text, re.M | re.S)
    return [f"{suite}-{server}" for suite in everywhere
            for server in re.findall(r"^  '(\w+)'", table[1], re.M)]


def with_needs(steps, names):
    chosen = set(names)
    for step in reversed(steps):
        if step.name in chosen:
            chosen |= set(step.needs)
    return [step for step in steps if step.name in chosen]


def run_step(step, steps):
    log = Log(step.log)
    started = time.monotonic()
    broken = [other.name for other in steps if other.name in step.needs and other.failed]
    try:
        if broken:
            log.say(f"not run: it needs {', '.join(broken)}, which failed")
            step.failed = 1
        else:
            step.passed, step.failed = step.action(log)
            step.skipped = log.skipped
    except Exception as error:  # a bug in this file must not look like success
        log.say("".join(traceback.format_exception(error)))
        step.failed += 1
    took = time.monotonic() - started
    count = f"{step.passed} passed" + (f", {step.failed} FAILED" if step.failed else "")
    count += f", {len(step.skipped)} SKIPPED" if step.skipped else ""
    text = f"{'FAIL' if step.failed else 'ok':4}  {step.name:16} {took:6.1f} s   {count}"
    text += "".join(f"\n      skipped: {line}" for line in step.skipped)
    if step.failed:
        lines = step.log.read_text(encoding="utf-8", errors="replace").splitlines()
        text += "\n" + "\n".join(f"      | {line}" for line in interesting(lines))
        text += f"\n      see {step.log.relative_to(ROOT)}"
        step.failures = failures_of(lines) or [(step.name, complaints_in(lines))]
    return text


def failures_of(lines):
    """[(name, its diagnostics)] of the failed tests in a TAP log."""
    found, diagnostics = [], None
    for line in lines:
        if failure := re.match(r"not ok\b(?: \d+)?(?: - )?(.*)", line):
            diagnostics = []
            found.append((failure[1], diagnostics))
        elif not line.startswith("#"):
            diagnostics = None
        elif diagnostics is not None:
            diagnostics.append(line.lstrip("# "))
    return found


def complaints_in(lines):
    """Lines of a compiler or a lint that name an error; else the end of the log."""
    errors = [line for line in lines if re.search(r"\b(error|warning|ERROR|FAILED)\b", line)]
    return errors or lines[-CLOSING_LINES:]


def interesting(lines):
    """The end of a log; of TAP, what failed with its diagnostics."""
    failures = [line for name, diagnostics in failures_of(lines)
                for line in (f"not ok - {name}", *(f"# {line}" for line in diagnostics))]
    return failures[:2 * TAIL_LINES] if failures else lines[-TAIL_LINES:]


def print_failures(steps):
    """What failed, by name, for a reader who sees only the end of the output."""
    failures = [(step.name, name, lines) for step in steps for name, lines in step.failures]
    if not failures:
        return
    print("failed:")
    for number, (step, name, lines) in enumerate(failures):
        print(f"  {step}" if name == step else f"  {step}: {name}")
        if number < CLOSING_TESTS:
            print("".join(f"      {line[:300]}\n" for line in lines[:CLOSING_LINES]), end="")


def print_counts(steps):
    passed = sum(step.passed for step in steps)
    failed = sum(step.failed for step in steps)
    print(f"{passed} passed, {failed} failed", flush=True)
    return failed > 0 or passed == 0


def run_all(steps):
    """Start steps in order as soon as what they need is there, as many at a time as cores."""
    news = threading.Condition()

    def next_step(beside):
        finished = {step.name for step in steps if step.finished}
        for step in steps:
            if (step.beside == beside and not step.started
                    and all(name in finished for name in step.needs)):
                return step
        return None

    def work(beside):
        while True:
            with news:
                while (step := next_step(beside)) is None:
                    if all(other.started for other in steps if other.beside == beside):
                        return
                    news.wait()
                step.started = True
            text = run_step(step, steps)
            with news:
                step.finished = True
                print(text, flush=True)
                news.notify_all()

    lanes = [False] * max(2, min(CORES, 4)) + [True]
    workers = [threading.Thread(target=work, args=(beside,), daemon=True) for beside in lanes]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def one_at_a_time():
    """The lock on build/check: two checks would build and log into the same files."""
    lock = open(CHECK / "lock", "w", encoding="utf-8")  # closed when this process ends
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("another check runs in this folder: waiting until it has ended", flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def stop_on_signals(steps):
    """End the running steps, name them, and exit with what has been counted."""
    def stop(_signal, _frame):
        for group in list(RUNNING):
            try:
                os.killpg(group, signal.SIGTERM)
            except ProcessLookupError:
                pass
        for step in steps:
            if step.started and not step.finished:
                step.failed, step.failures = 1, [(step.name, ["interrupted"])]
        print_failures(steps)
        print("interrupted", flush=True)
        print_counts(steps)
        os._exit(130)

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # nohup: for us, and not for what tests start
        signal.signal(signal.SIGHUP, lambda _signal, _frame: None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], prog="tools/check")
    parser.add_argument("--quick", action="store_true",
                        help="leave out sanitizers, valgrind and lints")
    parser.add_argument("--list", action="store_true", help="print the steps")
    parser.add_argument("--only", action="append", metavar="STEP",
                        help="run this step and the builds it needs; may be repeated")
    args = parser.parse_args()

    steps = plan()
    if args.list:
        print("\n".join(step.name for step in steps))
        return 0
    if args.only:
        unknown = set(args.only) - {step.name for step in steps}
        if unknown:
            parser.error(f"unknown step {', '.join(sorted(unknown))}; see --list")
        steps = with_needs(steps, args.only)
    else:
        steps = [step for step in steps if step.name not in LATER and (step.quick or not args.quick)]

    CHECK.mkdir(parents=True, exist_ok=True)
    lock = one_at_a_time()
    stop_on_signals(steps)
    started = time.monotonic()
    run_all(steps)
    lock.close()
    print(f"{len(steps)} steps in {time.monotonic() - started:.1f} s")
    if skipped := sum(len(step.skipped) for step in steps):
        print(f"{skipped} skipped: see above what cannot be tested on this machine")
    print_failures(steps)
    return print_counts(steps)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Exception:  # a bug in this file
        traceback.print_exc()
        print("0 passed, 1 failed")
        sys.exit(1)
