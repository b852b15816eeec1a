#!/usr/bin/env python3
"""Break each requirement once, and see the tests that its row cites fail.

    tests/mutants/run.py [--only ROW]... [--list] [--jobs N] [--root FOLDER] [--work FOLDER]

tests/mutants/*.toml lists mutants: small substitutions in the sources, each with the rows of
docs/requirements.md that it breaks. Every mutant is built in a copy of the tree, never in the tree
itself, and is killed if for every one of its rows a cited test fails with it. The same tests must pass
without it. A row without a mutant, an old text that does not stand in its file exactly once, a copy
that does not build, and a mutant that survives are failures.

What a mutant of the PostgreSQL store breaks is tested on PostgreSQL; a mutant of anything else on
SQLite, where a suite runs on both. The last line is `N killed, N survived`.
"""

import argparse
import json
import os
import pathlib
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
import catalogue  # noqa: E402  (after the line above, so that it leaves nothing in the tree)

HERE = pathlib.Path(__file__).resolve().parent
AT_ONCE = 20  # tests for which the time limit of their suite is meant
BUILD_S = 900
END_S = 2  # from SIGTERM to SIGKILL
ON_POSTGRES = ("sql/postgres/", "src/store/postgres/")
# Suites that take long to start come last; those before are not asked again about a row that is dead.
CHEAP_FIRST = ("unit", "spec", "store", "work", "cli", "docs")
# What says that a change of SQL is still SQL: else any test would fail with it.
CANARY = ("unit", "every_embedded_statement_prepares_on_a_fresh_store")
# Facts of the reference that are compared with the code (tests/docs/facts.py), by page.
FACTS = {"docs/reference/c-api.md": "facts: the C reference has every function",
         "docs/reference/config.md": "facts: every setting is explained",
         "docs/reference/commands.md": "facts: every command is listed"}
SERVERS = ("postgres", "sql", "partition", "failover")  # suites that run on PostgreSQL alone
MODELS = ("model",)  # what Spin searches is a model: no change of the code can break it
NOT_COPIED = re.compile(r"build.*|\..*|__pycache__")


RUNNING = set()  # commands, each the leader of its session


class Broken(Exception):
    """Why a mutant or a baseline could not be judged."""


def run(command, log, limit, env=None, cwd=None):
    """Run a command into a log. Its exit code, or None when it took too long and was killed."""
    with open(log, "w", encoding="utf-8") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                   env=dict(os.environ, **(env or {})), cwd=cwd,
                                   start_new_session=True)
        RUNNING.add(process.pid)
        try:
            return process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            end(process.pid)
            process.wait()
            return None
        finally:
            RUNNING.discard(process.pid)


def end(pid):
    """End a command and what it started: first by SIGTERM, so that a test program ends its tests."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            return
        time.sleep(END_S)


def stop(number, _frame):
    """Ended by a signal: what runs now in sessions of its own is ended, too."""
    for pid in list(RUNNING):
        end(pid)
    os._exit(128 + number)


class Copy:
    """A copy of the tree with a build of its own, in which one mutant at a time lives."""

    def __init__(self, root, folder):
        self.root, self.tree, self.build = root, folder / "tree", folder / "build"
        self.log = folder / "log"
        self.sync()
        if not (self.build / "build.ninja").exists():
            shutil.rmtree(self.build, ignore_errors=True)
            setup = ["meson", "setup", self.build, self.tree, "-Dtests=true", "-Dbuildtype=debug",
                     "-Dwerror=false"]
            if run(setup, self.log, BUILD_S) != 0:
                raise Broken(f"the copy cannot be configured: see {self.log}")
        # Configured again where meson.build has changed since, before it is asked about its suites.
        if run(["ninja", "-C", self.build, "build.ninja"], self.log, BUILD_S) != 0:
            raise Broken(f"the copy cannot be configured again: see {self.log}")
        self.suites, self.suite_of = self.declared()

    def sync(self):
        """Make the copy equal to the tree; files that are equal keep their time, for ninja."""
        wanted = set()
        for folder, names, files in os.walk(self.root):
            names[:] = [name for name in names if not NOT_COPIED.fullmatch(name)]
            wanted |= {pathlib.Path(folder, name).relative_to(self.root) for name in files}
        for path in [path for path in self.tree.rglob("*") if path.is_file()]:
            if path.relative_to(self.tree) not in wanted and "__pycache__" not in path.parts:
                path.unlink()
        for name in wanted:
            source, target = self.root / name, self.tree / name
            if not target.exists() or source.read_bytes() != target.read_bytes():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)

    def introspect(self, what):
        return json.loads(subprocess.run(["meson", "introspect", what, self.build], check=True,
                                         capture_output=True, text=True).stdout)

    def declared(self):
        """The suites as meson.build declares them, and the suite of every test of a C program."""
        targets = {target["id"]: target for target in self.introspect("--targets")}
        built = {self.relative(name): target for target in targets.values()
                 for name in target["filename"] if pathlib.Path(name).is_relative_to(self.build)}
        suites, suite_of = {}, {}
        for test in self.introspect("--tests"):
            # A program stands in the command in full, or as seen from the build folder.
            words = [self.relative(word) for word in test["cmd"]]
            needed = {self.relative(name) for target in test["depends"]
                      for name in targets[target]["filename"]}
            needed |= {word for word in words if word in built}
            suites[test["name"]] = (test["cmd"], test["env"], sorted(needed), test["timeout"])
            for word in needed & set(words):
                for name in tests_of(built[word]):
                    suite_of.setdefault(name, set()).add(test["name"])
        return suites, suite_of

    def relative(self, name):
        path = pathlib.Path(name)
        return str(path.relative_to(self.build) if path.is_relative_to(self.build) else path)

    def place_of(self, test, on_postgres):
        """(suite, name to give it) of a cited test, or None if it says nothing about the mutant."""
        if test.startswith("cli/"):
            return None if on_postgres else ("cli", test[len("cli/"):])
        if test.endswith(".md"):
            return "docs", test
        suites = self.suite_of.get(test) or {self.suite_of_script(test)}
        servers = [suite for suite in sorted(suites) if suite in SERVERS]
        if on_postgres:
            chosen = servers + [suite for suite in suites if suite.endswith("-postgres")]
        else:
            chosen = sorted(suites - {*SERVERS, *MODELS} - {s for s in suites if "-" in s}) + servers
        return (chosen[0], test) if chosen else None

    def suite_of_script(self, test):
        for suite in ("sql", "partition", "failover", "model"):
            folder = "model/run" if suite == "model" else f"postgres/{suite}"
            path = self.tree / "tests" / f"{folder}.py"
            if path.exists() and re.search(rf"\b{re.escape(test)}\b", path.read_text("utf-8")):
                return suite
        raise Broken(f"no suite has a test {test}")

    def make(self, suites):
        targets = sorted({name for suite in suites for name in self.suites[suite][2]})
        return run(["ninja", "-C", self.build, "-j", str(os.cpu_count() or 1), *targets], self.log,
                   BUILD_S) == 0

    def failures(self, suite, names):
        """Those of these tests of a suite that do not pass; a test that is skipped does."""
        command, env, _, limit = self.suites[suite]
        code = run([*command, *names], self.log, limit * (1 + len(names) // AT_ONCE), env, self.build)
        said = self.log.read_text("utf-8", "replace")
        if "Bail out!" in said:
            raise Broken(f"{suite} cannot start: see {self.log}")
        passed = set(re.findall(r"^ok \d+ - (.*?)(?: # .*)?$", said, re.M))
        if code not in (0, None) and set(names) <= passed:
            raise Broken(f"{suite} fails with exit code {code}, but every test passes")
        return set(names) - passed

    def apply(self, mutant):
        """Make the copy this mutant; what stood there before."""
        before = {edit.file: (self.tree / edit.file).read_text("utf-8") for edit in mutant.edits}
        for edit in mutant.edits:
            path = self.tree / edit.file
            path.write_text(path.read_text("utf-8").replace(edit.old, edit.new), encoding="utf-8")
        return before

    def restore(self, before):
        # Written again and not put back with its old time: objects of the mutant are newer than that.
        for name, text in before.items():
            (self.tree / name).write_text(text, encoding="utf-8")


def tests_of(program):
    """The names of the tests in the sources of a test program."""
    for group in program["target_sources"]:
        for source in group.get("sources", []):
            if source.endswith(".c") and os.path.exists(source):
                text = pathlib.Path(source).read_text(encoding="utf-8")
                yield from re.findall(r"^\w+\(([a-z][a-z0-9_]{7,})(?:, \w+)?\)\s*$", text, re.M)


def cost(suite):
    return CHEAP_FIRST.index(suite) if suite in CHEAP_FIRST else len(CHEAP_FIRST)


def places_of(copy, mutant, rows):
    """For each row of a mutant, where its cited tests run."""
    on_postgres = mutant.file.startswith(ON_POSTGRES)
    found = {}
    for number in mutant.rows:
        places = [place for test in rows[number].tests
                  if (place := copy.place_of(test, on_postgres))]
        places += [("docs", FACTS[test]) for test in rows[number].tests if test in FACTS]
        if not places:
            raise Broken(f"{number} cites no test that runs on the store of the mutant")
        found[number] = places
    return found


def judge(copy, mutant, rows):
    """(killed, lines) of one mutant: every row needs a cited test that fails."""
    places = places_of(copy, mutant, rows)
    killers = {}
    before = copy.apply(mutant)
    try:
        suites = {suite for row in places.values() for suite, _ in row}
        is_sql = mutant.file.startswith("sql/sqlite/")
        if not copy.make(suites | ({CANARY[0]} if is_sql else set())):
            raise Broken(f"does not build: see {copy.log}")
        if is_sql and copy.failures(CANARY[0], [CANARY[1]]):
            raise Broken("is not valid SQL")
        for suite in sorted(suites, key=cost):
            names = {name for number, row in places.items() if number not in killers
                     for of, name in row if of == suite}
            failed = copy.failures(suite, sorted(names)) if names else set()
            for number, row in places.items():
                for of, name in row:
                    if of == suite and name in failed:
                        killers.setdefault(number, f"{name} fails on {suite}")
    finally:
        copy.restore(before)
    return (len(killers) == len(places),
            [f"  {number}: " + killers.get(number, "SURVIVES " + ", ".join(name for _, name in row))
             for number, row in places.items()])


def check_baseline(copy, mutants, rows):
    """Complaints about cited tests that fail without any mutant."""
    wanted = {}
    for mutant in mutants:
        try:
            for row in places_of(copy, mutant, rows).values():
                for suite, name in row:
                    wanted.setdefault(suite, set()).add(name)
        except Broken as problem:
            yield f"{mutant.source}: {problem}"
    if not copy.make(wanted):
        yield f"the tree itself does not build: see {copy.log}"
        return
    for suite, names in sorted(wanted.items()):
        failed = copy.failures(suite, sorted(names))
        # Once more by itself: beside others on a busy machine a test may run out of time.
        for name in sorted(failed):
            if copy.failures(suite, [name]):
                yield f"{name} fails on {suite} without any mutant"


class Tally:
    """What became of the mutants, told line by line by all threads."""

    def __init__(self):
        self.killed = self.survived = 0
        self.broken, self.lock = 0, threading.Lock()

    def add(self, mutant, verdict, lines, seconds):
        with self.lock:
            self.killed += verdict == "killed"
            self.survived += verdict == "SURVIVED"
            self.broken += verdict == "BROKEN"
            print(f"{verdict:8}  {mutant.file}: {mutant.what} ({seconds:.1f} s)")
            print("\n".join(lines), flush=True)


def work(copy, waiting, rows, tally):
    while True:
        try:
            mutant = waiting.get_nowait()
        except queue.Empty:
            return
        began = time.monotonic()
        try:
            killed, lines = judge(copy, mutant, rows)
            verdict = "killed" if killed else "SURVIVED"
        except Broken as problem:
            verdict, lines = "BROKEN", [f"  {mutant.source}: {problem}"]
        tally.add(mutant, verdict, lines, time.monotonic() - began)


def run_mutants(options, mutants, rows):
    """0 if all were killed."""
    copies = [Copy(options.root, options.work / str(number))
              for number in range(max(1, min(options.jobs, len(mutants))))]
    complaints = [] if options.no_baseline else list(check_baseline(copies[0], mutants, rows))
    if complaints:
        print("\n".join(complaints))
        return 1
    waiting, tally = queue.Queue(), Tally()
    for mutant in mutants:
        waiting.put(mutant)
    threads = [threading.Thread(target=work, args=(copy, waiting, rows, tally)) for copy in copies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if tally.broken:
        print(f"{tally.broken} could not be judged")
    print(f"{tally.killed} killed, {tally.survived} survived")
    return int(tally.survived + tally.broken > 0)


def list_rows(known):
    for number, row in known.rows.items():
        print(f"{number}: {row.text}")
        for mutant in known.mutants:
            if number in mutant.rows:
                print(f"  {mutant.file}: {mutant.what}")
        if number in known.exempt:
            print(f"  no mutant: {known.exempt[number]}")


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", action="append", metavar="ROW", help="only mutants of this row")
    parser.add_argument("--list", action="store_true", help="print rows and mutants, run nothing")
    parser.add_argument("--jobs", type=int, default=1, help="copies of the tree that work at once")
    parser.add_argument("--no-baseline", action="store_true",
                        help="trust that the tests pass without a mutant")
    parser.add_argument("--root", type=pathlib.Path, default=HERE.parent.parent,
                        help="the tree (this one)")
    parser.add_argument("--work", type=pathlib.Path, help="where copies are built (build/mutants)")
    options = parser.parse_args()
    options.root = options.root.resolve()
    options.work = (options.work or options.root / "build" / "mutants").resolve()
    return options


def choose(known, only):
    """(mutants, complaints) of these rows; None: of all."""
    if not only:
        return known.mutants, known.complaints
    complaints = [text for text in known.complaints if any(row in text for row in only)]
    complaints += [f"{row}: no requirement that is done has this number" for row in only
                   if row not in known.rows]
    mutants = [mutant for mutant in known.mutants if set(mutant.rows) & set(only)]
    for mutant in mutants:  # which other rows may share
        mutant.rows = [row for row in mutant.rows if row in only]
    return mutants, complaints


def main():
    options = parse_options()
    known = catalogue.Catalogue(options.root)
    if options.list:
        list_rows(known)
    mutants, complaints = choose(known, options.only)
    if complaints:
        print("\n".join(complaints))
        return 1
    if options.list:
        return 0
    options.work.mkdir(parents=True, exist_ok=True)
    try:
        return run_mutants(options, mutants, known.rows)
    except Broken as problem:
        print(problem)
        return 1


if __name__ == "__main__":
    for ending in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(ending, stop)
    sys.exit(main())
