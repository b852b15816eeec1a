#!/usr/bin/env python3
"""Run the sessions in tests/cli/*.test and compare stdout, stderr and exit codes.

    run.py --program build/leasehold [--update] [--list] [--jobs N] [NAME | GLOB]...

A file is one test: a session in one fresh directory, with the given programs and those of bin/ on
$PATH. There, `at TIME` sets the clock of this session, `lh …` is leasehold by that clock,
`dies POINT …` is the same, killed at that point of its code, and `catches PID NUMBER` waits until a
process has a handler for a signal.

    # Words for the reader. `# timeout: 60` sets the limit for the whole file (30 s).
    $ leasehold enqueue mail hello            a command, run by sh
    1                                         what it must print on stdout
    $ leasehold claim nothing                 the next command
    ! leasehold: ...                          what it must print on stderr
    ? 3                                       its exit code, when it is not 0
    $ leasehold enqueue mail - <<END          a command may go on
    > hello
    > END                                     in lines that start with `> `
    | $ 5                                     stdout that looks like one of the above, or is empty

Empty lines separate, and mean nothing. stdout and stderr are compared separately; each in order,
all lines. Output without a newline at its end is shown with {{no newline}} after it; bytes that are
no text are shown as \\xNN.

In expected lines these stand for what may differ from run to run:

    {{*}} anything   {{int}} a number   {{dec}} a number, perhaps with a fraction
    {{time}} RFC 3339, UTC, milliseconds   {{uuid}}   {{dir}} the directory of the session
    {{int:token}} the same, and remembered: later commands find it in $token, later lines as {{token}}

--update writes what was seen into the files. Lines that still match are kept as they are, and
times, uuids and the directory are recognized; look at the diff all the same.
"""

import argparse
import concurrent.futures
import fnmatch
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
KINDS = {
    "*": r".*?",
    "int": r"-?\d+",
    "dec": r"-?\d+(?:\.\d+)?",
    "time": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z",
    "uuid": r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
}
HOLE = re.compile(r"\{\{([*a-z]+)(?::([a-z][a-z0-9_]*))?\}\}")
NEEDS_BAR = re.compile(r"$|[$>!?|#]( |$)")
NO_NEWLINE = "{{no newline}}"


class Malformed(Exception):
    pass


class Step:
    """One command and its expected output. `lead` has the lines before it in the file."""

    def __init__(self, lead, command, number):
        self.lead, self.command, self.number = lead, command, number
        self.out, self.err, self.code = [], [], 0
        self.order = []  # the lines as written, to keep their order when updated

    def script(self):
        return "\n".join(self.command)


class Session:
    def __init__(self, path):
        self.path, self.name = path, path.stem
        self.timeout, self.steps = 30, []
        lead = []
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            step = self.steps[-1] if self.steps and not lead else None
            if line == "" or re.match(r"#( |$)", line):
                lead.append(line)
                limit = re.fullmatch(r"# timeout: (\d+)", line)
                if limit:
                    self.timeout = int(limit[1])
            elif line.startswith("$ "):
                self.steps.append(Step(lead, [line[2:]], number))
                lead = []
            elif step is None and self.steps:
                # Output after an empty line still belongs to the command above it.
                step, lead = self.steps[-1], []
                self.expect(step, line, number)
            elif step is None:
                raise Malformed(f"{path.name}:{number}: output before the first command")
            else:
                self.expect(step, line, number)
        self.tail = lead
        if not self.steps:
            raise Malformed(f"{path.name}: no commands")

    def expect(self, step, line, number):
        if line.startswith("> ") or line == ">":
            if step.out or step.err:
                raise Malformed(f"{self.path.name}:{number}: a command goes on after its output")
            step.command.append(line[2:])
        elif line.startswith("? "):
            if not line[2:].isdigit():
                raise Malformed(f"{self.path.name}:{number}: exit code is no number")
            step.code = int(line[2:])
        elif line.startswith("! ") or line == "!":
            step.err.append(line[2:])
        elif line.startswith("| ") or line == "|":
            step.out.append(line[2:])
        elif re.match(r"[$?]( |$)", line):
            raise Malformed(f"{self.path.name}:{number}: unclear line: {line}")
        else:
            step.out.append(line)


def visible(data):
    """Formats output as lines of a .test file."""
    text = data.decode("utf-8", "backslashreplace")
    text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", lambda c: f"\\x{ord(c[0]):02x}", text)
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    else:
        lines[-1] += NO_NEWLINE
    return lines


def line_matches(expected, actual, known):
    """Whether the output matches; then named values are stored in `known`."""
    pattern, position, names = "", 0, {}
    for hole in HOLE.finditer(expected):
        kind, name = hole[1], hole[2]
        pattern += re.escape(expected[position:hole.start()])
        position = hole.end()
        if kind in KINDS and name:
            pattern += f"(?P<{name}>{KINDS[kind]})"
            names[name] = True
        elif kind in KINDS:
            pattern += KINDS[kind]
        elif kind in known and not name:
            pattern += re.escape(known[kind])
        else:
            raise Malformed(f"unknown name in {hole[0]}")
    pattern += re.escape(expected[position:])
    matched = re.fullmatch(pattern, actual)
    if matched:
        known.update({name: matched[name] for name in names})
    return matched is not None


def compare(what, expected, actual, known):
    """The complaint about one stream, or None."""
    wrong = len(expected) != len(actual)
    shown = []
    for index in range(max(len(expected), len(actual))):
        want = expected[index] if index < len(expected) else None
        have = actual[index] if index < len(actual) else None
        if want is not None and have is not None and line_matches(want, have, known):
            shown.append(f"  {have}")
            continue
        wrong = True
        if want is not None:
            shown.append(f"- {want}")
        if have is not None:
            shown.append(f"+ {have}")
    return f"{what} differs (- expected, + seen):\n" + "\n".join(shown) if wrong else None


def update_lines(expected, actual, known):
    """The new output, with the placeholders of the old lines that still match."""
    result, start = [], 0
    for line in actual:
        for index in range(start, len(expected)):
            try:
                if line_matches(expected[index], line, known):
                    result.append(expected[index])
                    start = index + 1
                    break
            except Malformed:
                continue
        else:
            line = line.replace(known["dir"], "{{dir}}")
            line = re.sub(KINDS["time"], "{{time}}", line)
            result.append(re.sub(KINDS["uuid"], "{{uuid}}", line))
    return result


def run_shell(script, directory, environment, seconds):
    """Exit code (128 + N for signal N, as in sh), stdout, stderr; None as code: out of time."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        # Use files: a daemon that keeps a pipe open would block us.
        process = subprocess.Popen(["sh", "-c", script], cwd=directory, env=environment,
                                   stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                   process_group=0)
        try:
            code = process.wait(timeout=max(seconds, 0.01))
            code = 128 - code if code < 0 else code
        except subprocess.TimeoutExpired:
            code = None
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        err.seek(0)
        return code, visible(out.read()), visible(err.read()), process.pid


def end_group(group):
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def play(session, programs, scale, update):
    """Run one session. Returns the complaints; with `update`, changes its steps instead."""
    directory = os.path.realpath(tempfile.mkdtemp(prefix="lhc-"))
    work, binaries = os.path.join(directory, "work"), os.path.join(directory, "bin")
    os.mkdir(work)
    os.mkdir(binaries)
    for program in programs:
        os.symlink(os.path.abspath(program), os.path.join(binaries, os.path.basename(program)))
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith("LEASEHOLD_")}
    environment.update(PATH=f"{binaries}:{HERE / 'bin'}:{environment['PATH']}",
                       HOME=work, TMPDIR=work, LC_ALL="C.UTF-8", TZ="UTC", TERM="dumb")
    known = {"dir": work}
    complaints, groups = [], []
    deadline = time.monotonic() + session.timeout * scale
    try:
        for step in session.steps:
            code, out, err, group = run_shell(step.script(), work, environment,
                                              deadline - time.monotonic())
            groups.append(group)
            if code is None:
                complaints.append(f"{session.path.name}:{step.number}: $ {step.script()}\n"
                                  f"out of time ({session.timeout} s for the file)")
                break
            if update:
                step.out = update_lines(step.out, out, known)
                step.err = update_lines(step.err, err, known)
                step.code = code
            else:
                found = [compare("stdout", step.out, out, known),
                         compare("stderr", step.err, err, known)]
                if code != step.code:
                    found.append(f"exit code is {code}, expected {step.code}")
                found = [text for text in found if text]
                if found:
                    # Later steps depend on this one, so their complaints would be noise.
                    complaints.append(f"{session.path.name}:{step.number}: $ {step.script()}\n"
                                      + "\n".join(found))
                    break
            environment.update({name: value for name, value in known.items() if name != "dir"})
    except Malformed as problem:
        complaints.append(f"{session.path.name}: {problem}")
    finally:
        for group in groups:
            end_group(group)
    if complaints:
        complaints.append(f"its directory: {work}")
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return complaints


def write_back(session):
    lines = []
    for step in session.steps:
        lines += step.lead
        lines.append(f"$ {step.command[0]}")
        lines += [f"> {line}".rstrip() if line == "" else f"> {line}" for line in step.command[1:]]
        for line in step.out:
            lines.append((f"| {line}" if line else "|") if NEEDS_BAR.match(line) else line)
        lines += [f"! {line}" if line else "!" for line in step.err]
        if step.code != 0:
            lines.append(f"? {step.code}")
    lines += session.tail
    text = "\n".join(lines) + "\n"
    if text != session.path.read_text(encoding="utf-8"):
        session.path.write_text(text, encoding="utf-8")
        return True
    return False


def select(folder, patterns):
    """The chosen files. A pattern that matches no file is an error, because it would always pass."""
    paths = sorted(folder.glob("*.test"))
    if not patterns:
        return paths
    chosen = []
    for pattern in patterns:
        matching = [path for path in paths if fnmatch.fnmatchcase(path.stem, pattern)]
        if not matching:
            sys.exit(f'run.py: no test matches "{pattern}"')
        chosen += [path for path in matching if path not in chosen]
    return chosen


def judge(path, args, scale):
    try:
        session = Session(path)
    except Malformed as problem:
        return [str(problem)], False
    complaints = play(session, args.program, scale, args.update)
    changed = args.update and not complaints and write_back(session)
    return complaints, changed


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", action="append", required=True,
                        help="program to put on $PATH; may be repeated")
    parser.add_argument("--folder", type=pathlib.Path, default=HERE)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("patterns", nargs="*", metavar="NAME | GLOB")
    args = parser.parse_args()

    for program in args.program:
        if not os.access(program, os.X_OK):
            sys.exit(f"run.py: {program} is no program")  # --update would record that it is missing
    for ignored in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(ignored) == signal.SIG_IGN:  # started in the background, or with nohup
            signal.signal(ignored, signal.SIG_DFL)
    paths = select(args.folder, args.patterns)
    if args.list:
        print("\n".join(path.stem for path in paths))
        return 0
    if not paths:
        sys.exit(f"run.py: no tests in {args.folder}")
    scale = int(os.environ.get("TEST_TIMEOUT_SCALE", "1"))
    failed = 0
    print(f"TAP version 13\n1..{len(paths)}", flush=True)
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        outcomes = pool.map(lambda path: judge(path, args, scale), paths)
        for number, (path, (complaints, changed)) in enumerate(zip(paths, outcomes), 1):
            failed += bool(complaints)
            print(f"{'not ok' if complaints else 'ok'} {number} - {path.stem}")
            if changed:
                print(f"# {path.name} was updated")
            for line in "\n".join(complaints).splitlines():
                print(f"#   {line}")
            sys.stdout.flush()
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
