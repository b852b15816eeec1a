#!/usr/bin/env python3
"""Run the examples of README.md and docs/, and check what the pages state as facts.

    run.py --program build/leasehold [--list] [--seen] [NAME | GLOB]...

A page is one test. Its fenced blocks are of these kinds:

    ```console      a session. The text after `$ ` is a command; one shell runs all commands of the page,
                    in a new directory that has the folder examples/, with the program on $PATH. `> `
                    continues a command. The other lines are what the command must print, on stdout and
                    stderr together. A command that fails must be followed by `$ echo $?`.
    ```text         a picture: not run
    any other       needs a comment above it that says where it comes from, or why it is not run:
                    <!-- from: examples/hello.c -->     the file has the same lines
                    <!-- not run: needs a terminal -->

A page with a line `<!-- with: postgres -->` gets its own server (tests/postgres/server.py): psql and
postgresql:///app use the database "app", as its owner, or with -U admin as a superuser. Its session is
skipped if the program was built without PostgreSQL. `<!-- with: postgres pg_cron -->` loads that
extension too.

In expected lines `…` matches anything, and a line with only `…` matches any number of lines. Times in
RFC 3339 and ages ("(3s ago)", "last seen 3s ago") match any other.

--seen prints what each session printed, so that you can paste it into the page. After the pages come the
facts (facts.py), which compare tables of the reference with the code.
"""

import argparse
import contextlib
import fnmatch
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import facts  # noqa: E402  (after the line above, so that it leaves nothing in the tree)

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "postgres"))
import server  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SECONDS = 60
MARK = "\x1e"  # printed between commands; no program here prints it itself
FENCE = re.compile(r"^```(\w*)\s*$")
WITH = re.compile(r"^<!-- with: (postgres(?: pg_cron)?) -->$", re.M)
NOTE = re.compile(r"^<!-- (from|not run): (.+?) -->$")
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{3})?Z"
AGE = r"\((?:now|[0-9a-z]+ ago|in [0-9a-z]+)\)|last seen [0-9a-z]+ ago"


class Block:
    def __init__(self, kind, number, note):
        self.kind, self.number, self.note, self.lines = kind, number, note, []


class Command:
    def __init__(self, text, number):
        self.text, self.number, self.expected = text, number, []


def blocks_of(path):
    """The fenced blocks of a page, each with the comment that stands right above it."""
    found, block, note = [], None, None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        fence = FENCE.match(line)
        if block is not None:
            if line.startswith("```"):
                found.append(block)
                block = note = None
            else:
                block.lines.append(line)
        elif fence:
            block = Block(fence[1], number, note)
        elif line.strip():
            matched = NOTE.match(line)
            note = (matched[1], matched[2]) if matched else None
    return found


def commands_of(blocks, complaints, name):
    commands = []
    for block in blocks:
        inside = None  # a block is a piece of its own: no output before its first command
        for number, line in enumerate(block.lines, block.number + 1):
            if line.startswith("$ "):
                inside = Command(line[2:], number)
                commands.append(inside)
            elif inside is None:
                complaints.append(f"{name}:{number}: output before the first command")
            elif line.startswith("> ") and not inside.expected:
                inside.text += "\n" + line[2:]
            else:
                inside.expected.append(line)
        if inside is not None:
            while inside.expected and inside.expected[-1] == "":
                inside.expected.pop()
    return commands


def pattern_of(line):
    """An expected line as a regular expression."""
    pieces = re.split(f"(…|{TIME}|{AGE})", line)
    return "".join(".*?" if piece == "…" else TIME if re.fullmatch(TIME, piece)
                   else f"(?:{AGE})" if re.fullmatch(AGE, piece) else re.escape(piece)
                   for piece in pieces)


def matches(expected, seen):
    """A `…` of its own matches any lines: as in a regular expression over the whole text."""
    pattern = "".join(r"(?:[^\n]*\n)*?" if line.strip() == "…" else pattern_of(line) + r"\n"
                      for line in expected)
    return re.fullmatch(pattern, "".join(line + "\n" for line in seen)) is not None


def script_of(commands):
    """One shell for all, so that variables live on; $? is handed from command to command."""
    lines = ["exec 2>&1", "lh_code=0"]
    for command in commands:
        quoted = "'" + command.text.replace("'", "'\\''") + "'"
        lines += [f"(exit $lh_code); eval {quoted}", "lh_code=$?",
                  f"printf '{MARK}%d{MARK}' \"$lh_code\""]
    return "\n".join(lines) + "\n"


PG_CRON = {"shared_preload_libraries": "pg_cron", "cron.database_name": "app",
           "cron.use_background_workers": "on"}


def knows_postgres(program):
    said = subprocess.run([program, "--store", "postgresql:///", "migrate", "--dry-run"], text=True,
                          capture_output=True, env={"PGHOST": "/nonexistent"}, check=False)
    return "this build does not support" not in said.stderr


@contextlib.contextmanager
def postgres(needs):
    """The environment in which psql and our program find the database of a page."""
    if not needs:
        yield {}
        return
    with server.Folder() as folder, \
            server.Server(folder, settings=PG_CRON if "pg_cron" in needs else None) as of:
        of.psql("postgres", f"CREATE DATABASE app OWNER {server.TESTER}")
        yield {**{name: value for name, value in of.environment().items() if name.startswith("PG")},
               "PGUSER": server.TESTER, "PGDATABASE": "app"}


def run_session(commands, program, more):
    """What each command printed and its exit code; fewer than commands when the time was up."""
    directory = os.path.realpath(tempfile.mkdtemp(prefix="lhd-"))
    work, binaries = os.path.join(directory, "work"), os.path.join(directory, "bin")
    os.mkdir(work)
    os.mkdir(binaries)
    os.symlink(os.path.abspath(program), os.path.join(binaries, "leasehold"))
    shutil.copytree(ROOT / "examples", os.path.join(work, "examples"))
    build = os.path.dirname(os.path.abspath(program))
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith("LEASEHOLD_")}
    environment.update(PATH=f"{binaries}:{environment['PATH']}", HOME=work, TMPDIR=work,
                       LC_ALL="C.UTF-8", TZ="UTC", TERM="dumb", USER="ada",
                       PKG_CONFIG_PATH=os.path.join(build, "meson-uninstalled"),
                       LD_LIBRARY_PATH=build, PAGER="cat", **more)
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(["sh", "-c", script_of(commands)], cwd=work, env=environment,
                                   stdin=subprocess.DEVNULL, stdout=out, process_group=0)
        try:
            process.wait(SECONDS * int(os.environ.get("TEST_TIMEOUT_SCALE", "1")))
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        out.seek(0)
        text = out.read().decode("utf-8", "backslashreplace")
    shutil.rmtree(directory, ignore_errors=True)
    parts = text.split(MARK)[:-1]
    return [(parts[i], int(parts[i + 1])) for i in range(0, len(parts) - 1, 2)]


def lines_of(text):
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def judge_session(commands, outcomes, name):
    for index, command in enumerate(commands):
        where = f"{name}:{command.number}: $ {command.text}"
        if index >= len(outcomes):
            return [f"{where}\nwas not reached: out of time, or the shell ended"]
        text, code = outcomes[index]
        seen = lines_of(text)
        # In a page nobody sees blank lines at the end of a block.
        while seen and seen[-1] == "":
            seen.pop()
        if not matches(command.expected, seen):
            return [f"{where}\nprinted something else (- expected, + seen):\n"
                    + "\n".join([f"- {line}" for line in command.expected]
                                + [f"+ {line}" for line in seen])]
        answered = index + 1 < len(commands) and commands[index + 1].text == "echo $?"
        if code != 0 and not answered:
            return [f"{where}\nfailed with exit code {code}, and no `$ echo $?` follows"]
    return []


def judge_block(block, name):
    """Blocks that are not sessions."""
    where = f"{name}:{block.number}"
    if block.kind == "text" or (block.note and block.note[0] == "not run"):
        return []
    if block.note is None:
        return [f"{where}: a block of kind \"{block.kind}\" is neither run nor from a file"]
    source = ROOT / block.note[1]
    if not source.is_file():
        return [f"{where}: there is no file {block.note[1]}"]
    text = "\n".join(block.lines) + "\n"
    if text not in source.read_text(encoding="utf-8"):
        return [f"{where}: the block does not stand in {block.note[1]} as it is here"]
    return []


def judge_page(path, args):
    name = str(path.relative_to(ROOT))
    complaints = []
    blocks = blocks_of(path)
    for block in blocks:
        if block.kind != "console":
            complaints += judge_block(block, name)
    commands = commands_of([b for b in blocks if b.kind == "console"], complaints, name)
    needs = WITH.search(path.read_text(encoding="utf-8"))
    if needs and not knows_postgres(args.program):
        commands = []
    if commands and not complaints:
        with postgres(needs and needs[1]) as more:
            outcomes = run_session(commands, args.program, more)
        if args.seen:
            for command, (text, _) in zip(commands, outcomes):
                print("# " + "\n# > ".join(("$ " + command.text).split("\n")))
                print("".join(f"# {line}\n" for line in lines_of(text)), end="")
        complaints += judge_session(commands, outcomes, name)
    return complaints


def pages():
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md",
             ROOT / "tests" / "README.md", ROOT / "tests" / "model" / "README.md",
             ROOT / "src" / "core" / "README.md", ROOT / "src" / "store" / "sqlite" / "README.md"]
    return found + sorted((ROOT / "docs").rglob("*.md"))


def tests(args):
    """(name, action) of everything there is; an action returns complaints."""
    for path in pages():
        yield str(path.relative_to(ROOT)), lambda path=path: judge_page(path, args)
    for name, check in facts.checks():
        yield name, lambda check=check: check(ROOT, args.program)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", required=True, help="the program that the pages call leasehold")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--seen", action="store_true", help="print what the sessions print")
    parser.add_argument("patterns", nargs="*", metavar="NAME | GLOB")
    args = parser.parse_args()

    chosen = list(tests(args))
    if args.patterns:
        chosen = [(name, action) for name, action in chosen
                  if any(fnmatch.fnmatchcase(name, pattern) for pattern in args.patterns)]
        if not chosen:
            sys.exit("run.py: no test matches")
    if args.list:
        print("\n".join(name for name, _ in chosen))
        return 0
    if not os.access(args.program, os.X_OK):
        sys.exit(f"run.py: {args.program} is no program")
    for ignored in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(ignored) == signal.SIG_IGN:  # started in the background, or below nohup
            signal.signal(ignored, signal.SIG_DFL)
    failed = 0
    print(f"TAP version 13\n1..{len(chosen)}", flush=True)
    for number, (name, action) in enumerate(chosen, 1):
        try:
            complaints = action()
        except (OSError, ValueError, KeyError, TypeError, AttributeError,
                server.Failed) as problem:
            complaints = [f"{type(problem).__name__}: {problem}"]
        failed += bool(complaints)
        print(f"{'not ok' if complaints else 'ok'} {number} - {name}")
        for line in "\n".join(complaints).splitlines():
            print(f"#   {line}")
        sys.stdout.flush()
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
