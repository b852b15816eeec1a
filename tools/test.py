#!/usr/bin/env python3
"""Find tests by name, build what they need, and run them.

    make test T='late_complete*'                 in whatever suite they are
    make test T='late_complete*' ON=postgres     the same tests on PostgreSQL; ON=pgbouncer through PgBouncer
    tools/test [--on SERVER] [--times N] [--busy N] [--jobs N] [--list] NAME | GLOB...

A name is that of a test in C or Python, of a session (tests/cli/NAME.test), or of a page
(docs/guides/workers.md). Tests that exist for every store run on SQLite unless --on says otherwise;
tests that only PostgreSQL has run there. --times and --busy are for programs in C: they repeat the
tests beside busy processes, to find a test that depends on luck.

The build is in build/test. Exits with 0 if all of them passed, 1 if one failed, and 2 if nothing matches
or the build fails.
"""

import argparse
import fnmatch
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "test"
SERVERS = ("postgres", "pgbouncer")
# A test in C: SPEC(name), TEST(name), TEST_TIMEOUT(name, seconds), or a macro that expands to one of them.
C_TEST = re.compile(r"^\w+\(([a-z][a-z0-9_]{5,})(?:, \w+)*\)\s*$", re.M)
PYTHON_TEST = re.compile(r"^@(?:tap\.)?test\ndef (\w+)", re.M)
# Suites whose programs do not choose among their tests: all of them run.
WHOLE = {"harness", "tools", "install", "torture", "torture-postgres"}


class Failed(Exception):
    """What could not be built or asked."""


def run(command, **more):
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, **more)
    if done.returncode != 0:
        raise Failed(f"{done.stdout}{done.stderr}\n{' '.join(map(str, command))}: failed")
    return done.stdout


def configure():
    if not (BUILD / "build.ninja").exists():
        run(["meson", "setup", BUILD, ROOT, "-Dtests=true"], env={**os.environ, "CC": "gcc"})
    run(["ninja", "-C", BUILD, "build.ninja"])


def introspect(what):
    return json.loads(run(["meson", "introspect", what, BUILD]))


class Suite:
    """A test that meson.build declares, with the names of its tests."""

    def __init__(self, declared, targets):
        self.name, self.env = declared["name"], declared["env"]
        self.command = declared["cmd"]
        # A program stands in the command in full, or as seen from the build folder.
        words = {str(BUILD / word) for word in self.command}
        programs = [target for target in targets.values() if words & set(target["filename"])]
        self.needs = sorted({os.path.relpath(name, BUILD)
                             for target in [*programs, *(targets[t] for t in declared["depends"])]
                             for name in target["filename"]})
        self.tests = sorted(set(self.names(programs)))

    def names(self, programs):
        scripts = [pathlib.Path(word) for word in self.command if word.endswith(".py")]
        if self.name == "cli":
            return [path.stem for path in (ROOT / "tests" / "cli").glob("*.test")]
        if self.name == "docs":
            return run([*self.command, "--list"], cwd=BUILD).splitlines()
        if self.name in ("torture", "torture-postgres"):
            return [self.name]
        if scripts and scripts[0].name != "run.py" or self.name in ("install", "model"):
            return PYTHON_TEST.findall(scripts[0].read_text(encoding="utf-8"))
        return [name for program in programs for source in sources_of(program)
                for name in C_TEST.findall(pathlib.Path(source).read_text(encoding="utf-8"))]

    def server(self):
        """The server behind which a suite of all stores runs here, or None."""
        server = self.name.rpartition("-")[2]
        return server if server in SERVERS and "-" in self.name else None

    def chosen(self, patterns):
        return [name for name in self.tests
                if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]

    def run(self, names, options):
        """The exit code. What the suite prints is for the reader."""
        in_c = any("/test-" in word for word in self.command)
        more = [word for option in ("times", "busy", "jobs") if in_c and getattr(options, option)
                for word in (f"--{option}", str(getattr(options, option)))]
        words = [] if self.name in WHOLE else [*more, *names]
        print(f"# {self.name}: {len(names)} test{'s' if len(names) != 1 else ''}"
              + (" (this suite runs as a whole)" if self.name in WHOLE else ""), flush=True)
        return subprocess.run([*self.command, *words], cwd=BUILD,
                              env={**os.environ, **self.env}).returncode


def sources_of(program):
    return [source for group in program["target_sources"] for source in group.get("sources", [])
            if source.endswith(".c") and os.path.exists(source)]


def select(suites, patterns, on):
    """[(suite, names)] to run: of suites for every store, the one for the server that was asked for."""
    alike = {suite.name.rpartition("-")[0] for suite in suites if suite.server()}
    found = []
    for suite in suites:
        if suite.server() != on and (suite.server() or suite.name in alike):
            continue
        if on and not suite.server() and suite.name != "postgres":
            continue  # says nothing about that server
        if names := suite.chosen(patterns):
            found.append((suite, names))
    return found


def missed(suites, patterns):
    """What to say about patterns that match nothing."""
    lines = []
    for pattern in patterns:
        elsewhere = sorted({suite.name for suite in suites if suite.chosen([pattern])})
        lines.append(f'no test matches "{pattern}"'
                     + (f" there; it is in {', '.join(elsewhere)}" if elsewhere else ""))
    return "\n".join(lines)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], prog="tools/test")
    parser.add_argument("--on", choices=SERVERS, help="run the tests of every store there")
    parser.add_argument("--times", type=int, help="run the tests in C so many times")
    parser.add_argument("--busy", type=int, help="beside so many busy processes")
    parser.add_argument("--jobs", type=int, help="so many tests at a time")
    parser.add_argument("--list", action="store_true", help="print the names, and run nothing")
    parser.add_argument("patterns", nargs="*", metavar="NAME | GLOB")
    options = parser.parse_args()
    if not options.patterns:
        parser.error("which tests? For example: make test T='late_complete*'")
    return options


def main():
    options = parse()
    try:
        configure()
        targets = {target["id"]: target for target in introspect("--targets")}
        suites = [Suite(declared, targets) for declared in introspect("--tests")]
        found = select(suites, options.patterns, options.on)
        lost = [pattern for pattern in options.patterns
                if not any(suite.chosen([pattern]) for suite, _ in found)]
        if lost:
            print(missed(suites, lost), file=sys.stderr)
            return 2
        if options.list:
            print("\n".join(f"{suite.name}: {name}" for suite, names in found for name in names))
            return 0
        run(["ninja", "-C", BUILD, *sorted({need for suite, _ in found for need in suite.needs})])
    except Failed as problem:
        print(problem, file=sys.stderr)
        return 2
    failed = [suite.name for suite, names in found if suite.run(names, options) != 0]
    if failed:
        print(f"failed: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
