"""What the pages state as facts, compared with the code. Each check returns a list of complaints."""

import pathlib
import re
import sqlite3
import subprocess
import sys
import tempfile
import urllib.parse

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "mutants"))
import catalogue  # noqa: E402

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent.parent / "tools"))
import messages  # noqa: E402


def read(root, name):
    return (root / name).read_text(encoding="utf-8")


def pages(root):
    return [path for path in sorted(root.rglob("*.md"))
            if not any(part.startswith((".", "build")) for part in path.relative_to(root).parts)]


def without_blocks(text):
    """The text of a page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)


def rows(text):
    """The rows of all tables of a page, as lists of cells; headings and rules left out."""
    found = []
    lines = without_blocks(text).splitlines()
    for index, line in enumerate(lines):
        is_rule = re.fullmatch(r"\|[\s:|-]+\|", line) is not None
        is_head = index + 1 < len(lines) and re.fullmatch(r"\|[\s:|-]+\|", lines[index + 1])
        if line.startswith("|") and not is_rule and not is_head:
            found.append([cell.strip().replace("\\|", "|")
                          for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return found


def differ(what, expected, documented):
    """Complaints about two sets that should be one."""
    return ([f"{what} {name} is not documented" for name in sorted(expected - documented)]
            + [f"{what} {name} is documented but does not exist" for name in sorted(documented - expected)])


# ---------------------------------------------------------------- all pages

def slug(heading):
    """The anchor of a heading, as the usual renderers make it."""
    text = re.sub(r"[`*]", "", heading.strip().lower())
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def links(root, _program):
    """Every link leads to a file of the tree and, where it names one, to a heading there."""
    complaints = []
    for path in pages(root):
        text = without_blocks(path.read_text(encoding="utf-8"))
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"[a-z]+:", target):
                complaints.append(f"{path.relative_to(root)}: {target} leads out of the repository")
                continue
            name, _, anchor = target.partition("#")
            other = (path.parent / urllib.parse.unquote(name)).resolve() if name else path
            if not other.exists():
                complaints.append(f"{path.relative_to(root)}: there is no {target}")
            elif anchor and other.suffix == ".md":
                there = without_blocks(other.read_text(encoding="utf-8"))
                known = {slug(h) for h in re.findall(r"^#+ (.*)$", there, re.M)}
                if anchor not in known:
                    complaints.append(f"{path.relative_to(root)}: no heading for {target}")
    return complaints


def indexed(root, _program):
    """Every page of docs/ can be reached from docs/README.md, every example from some page."""
    start = root / "docs" / "README.md"
    seen, waiting = set(), [start]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md" or not page.is_file():
            continue
        seen.add(page)
        for target in re.findall(r"\]\(([^)\s#]+)", page.read_text(encoding="utf-8")):
            if not re.match(r"[a-z]+:", target):
                waiting.append((page.parent / target).resolve())
    complaints = [f"{path.relative_to(root)} cannot be reached from docs/README.md"
                  for path in sorted((root / "docs").rglob("*.md")) if path.resolve() not in seen]
    text = "".join(path.read_text(encoding="utf-8") for path in pages(root))
    return complaints + [f"{path.relative_to(root)} is named by no page"
                         for path in sorted((root / "examples").iterdir())
                         if f"examples/{path.name}" not in text]


# ---------------------------------------------------------------- requirements

def test_names(root):
    """Every test of the tree under the name by which a page may cite it."""
    names = set()
    for path in (root / "tests").rglob("*.c"):
        if path.name == "victim.c":
            continue
        text = path.read_text(encoding="utf-8")
        names |= set(re.findall(r"^\w+\(([a-z][a-z0-9_]{7,})(?:, \w+)?\)\s*$", text, re.M))
    for path in (root / "tests" / "cli").glob("*.test"):
        names.add("cli/" + path.stem)
    names |= set(re.findall(r'^    \("([a-z_]{8,})", "', read(root, "tests/model/run.py"), re.M))
    for path in (root / "tests" / "postgres").glob("*.py"):
        names |= set(re.findall(r"^@test\ndef (\w+)\(", path.read_text(encoding="utf-8"), re.M))
    names |= {str(path.relative_to(root)) for path in pages(root)}  # their examples are run
    return names


STATES = {"done", "part", "planned"}


def requirements(root, _program):
    """Each requirement stands once, in a known state; every test it cites exists."""
    known = test_names(root)
    complaints, seen = [], set()
    for row in rows(read(root, "docs/requirements.md")):
        if len(row) != 4 or not re.match(r"(S\d{3}|FR|NFR|AC|UT|IT)-", row[0]):
            continue
        number, _, state, proof = row
        if number in seen:
            complaints.append(f"{number} stands twice")
        seen.add(number)
        if state.split(":")[0] not in STATES:
            complaints.append(f"{number}: state \"{state}\" is unknown")
        cited = re.findall(r"`([^`]+)`", proof)
        complaints += [f"{number}: there is no test {name}" for name in cited if name not in known]
        if state.startswith("planned") and cited:
            complaints.append(f"{number}: planned, but a test is named")
    numbered = {f"FR-{n:03}" for n in range(1, 71)} | {f"NFR-{n:03}" for n in range(1, 11)}
    numbered |= {f"AC-{n:03}" for n in range(1, 16)} | {f"UT-{n:03}" for n in range(1, 6)}
    numbered |= {f"IT-{n:03}" for n in range(1, 5)}
    return complaints + [f"{number} is missing" for number in sorted(numbered - seen)]


def mutants(root, _program):
    """Each requirement that is done has a mutant, and each mutant its place in the sources."""
    return catalogue.Catalogue(root).complaints


# ---------------------------------------------------------------- reference

def c_api(root, _program):
    """Every function of the header, and no other."""
    header = read(root, "include/leasehold.h")
    exported = set(re.findall(r"^LH_API [^;(]*?\b(lh_\w+)\(", header, re.M))
    documented = set(re.findall(r"`(lh_\w+)\(\)`", read(root, "docs/reference/c-api.md")))
    return differ("function", exported, documented)


def statuses(root, _program):
    """Name, value, exit code, HTTP status and code of every outcome."""
    table = read(root, "src/base/status.def")
    defined = {(f"LH_{name}", *rest) for name, *rest in
               re.findall(r'LH_STATUS\((\w+),\s*(-?\d+),\s*(\d+),\s*(\d+), "(\w+)",', table)}
    documented = {(row[0].strip("`"), *row[1:4], row[4].strip("`")) for row in
            rows(read(root, "docs/reference/statuses.md")) if row[0].startswith("`LH_")}
    return differ("outcome", {" ".join(x) for x in defined}, {" ".join(x) for x in documented})


def alerts(root, _program):
    """The alert rules name metrics that the program prints."""
    source = read(root, "src/cli/output/metrics.c")
    printed = set(re.findall(r'"([a-z_]+)"|leasehold_([a-z_]+)\{', source))
    printed = {quoted or labelled for quoted, labelled in printed}
    named = set(re.findall(r"\bleasehold_(\w+)", read(root, "examples/leasehold.rules.yml")))
    return [f"metric leasehold_{name} is not printed" for name in sorted(named - printed)]


EVENT = re.compile(r"[\"']((?:job|worker|lease|recovery|clock|policy|queue|store|schedule)"
                   r"\.[a-z]+)[\"']")


def events(root, _program):
    """Every type that the stores write."""
    written = set()
    for folder, pattern in (("src/store", "*.c"), ("src/core", "*.c"), ("sql", "*.sql")):
        for path in (root / folder).rglob(pattern):
            written |= set(EVENT.findall(path.read_text(encoding="utf-8")))
    documented = {row[0].strip("`") for row in rows(read(root, "docs/reference/events.md"))
            if re.fullmatch(r"`[a-z]+\.[a-z]+`", row[0])}
    return differ("event", written, documented)


def columns(root, _program):
    """Tables and columns, from the migrations themselves."""
    database = sqlite3.connect(":memory:")
    sys.path.insert(0, str(root / "tools"))
    import sql_template  # fills in the built-in policy values
    template = sql_template.Template(root / "sql" / "sqlite")
    for path in sorted((root / "sql" / "sqlite" / "migrations").glob("*.sql")):
        database.executescript(template.expand(path.read_text(encoding="utf-8")))
    tables = [name for name, in database.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'lh\\_%' ESCAPE '\\'")]
    there = {f"{table}.{row[1]}" for table in tables
             for row in database.execute(f"PRAGMA table_info({table})")}
    page = read(root, "docs/reference/sql.md")
    views = [name for name, in database.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'view' AND name NOT IN ('lh_inserted', "
        "'lh_inserting')")]
    for view in views:
        part = re.search(rf"^### `{view}`\n(.*?)(?=^#|\Z)", page, re.M | re.S)
        text = part[1] if part else ""
        if not part or "The same rows" not in text:
            words = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", text, re.S))))
            there |= {f"{view}.{row[1]}" for row in database.execute(f"PRAGMA table_info({view})")
                      if row[1] not in words}
    documented, table = set(), None
    for line in read(root, "docs/reference/sql.md").splitlines():
        heading = re.match(r"#+ `?(lh_\w+)`?", line)
        if line.startswith("#"):
            table = heading[1] if heading else None
        elif table and line.startswith("| `"):
            first = line.split("|")[1]
            documented |= {f"{table}.{name}" for name in re.findall(r"`(\w+)`", first)}
    complaints = differ("column", there, documented)
    schema = read(root, "docs/internals/schema.md")
    indexes = [name for name, in database.execute(
        "SELECT name FROM sqlite_schema WHERE type IN ('index', 'trigger') AND name LIKE 'lh%'")]
    return complaints + [f"docs/internals/schema.md does not explain {name}"
                         for name in tables + indexes if f"`{name}`" not in schema]


def functions(root, _program):
    """Every function that people may call on PostgreSQL, with its parameters, and no other."""
    folder = root / "sql" / "postgres" / "migrations"
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.sql")))
    lists = re.search(r"reads constant(.*?)acts constant(.*?)-- The library calls", text, re.S)
    inner = {"clock", "closed_words", "due", "ms", "falls_due", "shape", "span", "stream_text", "about",
             "stale_jobs", "stale_rest"}
    public = set(re.findall(r"'(\w+)'", lists[1] + lists[2])) - inner
    page = read(root, "docs/reference/sql-functions.md")
    documented = {row[0].strip("`"): row for row in rows(page)
            if len(row) == 3 and re.fullmatch(r"`[a-z_]+`", row[0])}
    complaints = differ("function", public, set(documented))
    for name in sorted(public & set(documented)):
        heads = re.findall(rf"^CREATE FUNCTION leasehold\.{name}\((.*?)\)\s*(?:RETURNS|LANGUAGE)", text,
                           re.M | re.S)
        given = {word for head in heads for word in
                 re.findall(r"(?:^|,)\s*(?!OUT\b)(\w+) ", re.sub(r"'[^']*'", "", head))}
        complaints += differ(f"parameter of {name},", given,
                             set(re.findall(r"\w+", documented[name][1])) - {"or"})
    return complaints


def settings(root, _program):
    """Every setting of a policy, as a key and as an option; every environment variable."""
    page = read(root, "docs/reference/config.md")
    defined = set(re.findall(r'^POLICY_KEY\("(\w+)", "([\w-]+)"',
                             read(root, "src/cli/input/policy_keys.def"), re.M))
    documented = {(row[0].strip("`"), row[1].strip("`").removeprefix("--")) for row in rows(page)
            if len(row) > 2 and row[1].startswith("`--")}
    complaints = differ("setting", {" --".join(x) for x in defined}, {" --".join(x) for x in documented})
    variables = set()
    for folder, pattern in (("src/cli", r'"(LEASEHOLD_[A-Z_]+)"'), ("src/core", r'getenv\("(LEASEHOLD_[A-Z_]+)"\)')):
        for path in (root / folder).rglob("*.c"):
            variables |= set(re.findall(pattern, path.read_text(encoding="utf-8")))
    return complaints + [f"variable {name} is not documented" for name in sorted(variables)
                         if f"`{name}`" not in page]


def defaults(root, program):
    """The built-in value of every setting is the one that a new store shows."""
    with tempfile.TemporaryDirectory() as folder:
        store = ["--store", str(pathlib.Path(folder) / "s.db")]
        subprocess.run([program, "enqueue", "q", "x", *store], capture_output=True, check=True)
        shown = subprocess.run([program, "queue", "show", "q", *store], capture_output=True, text=True,
                               check=True).stdout
    there = {tuple(line.split()) for line in shown.splitlines()}
    documented = {(row[1].strip("`").removeprefix("--"), row[2])
            for row in rows(read(root, "docs/reference/config.md"))
            if len(row) > 2 and row[1].startswith("`--")}
    return differ("built-in value", {" ".join(x) for x in there}, {" ".join(x) for x in documented})


# A limit in the code, and the words of a page that state it.
LIMITS = (("src/worker/worker.h", "RESULT_MOST = 1 << 20", "docs/guides/workers.md", "standard output, up to 1 MiB"),
          ("src/worker/worker.h", "CHECKPOINT_MOST = 64 << 10", "docs/guides/workers.md", "JSON, up to 64 KiB"),
          ("src/core/jobs.c", "MAX_CHECKPOINT = 64 << 10", "docs/reference/config.md", "JSON of at most 64 KiB"),
          ("src/rules/limits.h", "LHI_MAX_PAYLOAD = 64 << 20", "docs/guides/more-than-one-machine.md",
           "A payload has at most 64 MiB, by policy 1 MiB"),
          ("src/rules/limits.h", "LHI_MAX_OUTPUT = 16 << 20", "docs/reference/config.md", "up to 16MiB, or `none`"),
          ("src/cli/settings.c", "cli->log_level = LH_LOG_WARN", "docs/reference/config.md",
           "`LEASEHOLD_LOG` › `warn`, for `work` `info`"),
          ("src/cli/commands/work.c", "cli->log_level = LH_LOG_INFO", "docs/reference/config.md",
           "`LEASEHOLD_LOG` › `warn`, for `work` `info`"))


def limits(root, _program):
    """Limits and defaults that pages state are those of the code."""
    return [f"{name} has no {text!r}: code and page go together" for source, code, page, words in LIMITS
            for name, text in ((source, code), (page, words)) if text not in read(root, name)]


def commands(root, program):
    """Every command that the program has, and no other."""
    def listed(*words):
        out = subprocess.run([program, *words, "--help"], capture_output=True, text=True).stdout
        body = out.split("General options")[0]
        return re.findall(r"^  ([a-z-]+) {2,}\S", body, re.M)
    there = set()
    for name in listed():
        inner = listed(name) if name in ("queue", "schedule", "worker", "lease") else []
        there |= {f"{name} {word}" for word in inner} if inner else {name}
    documented = {match[1] for row in rows(read(root, "docs/reference/commands.md"))
            if (match := re.match(r"`leasehold ([a-z-]+(?: [a-z-]+)?)", row[0]))}
    return differ("command", there, documented)


def every_message(root, _program):
    """The page of messages is what tools/messages.py makes of the sources, and no log line or finding lacks advice."""
    return messages.complaints(root)


FILE = re.compile(r"(?<![\w./-])((?:[\w.-]+/)*[\w-]+\.(?:c|h|sql|py|def|toml|build|pml))\b(?!/)")
FOLDER = re.compile(r"`((?:[\w.-]+/)+)`")


def paths(root, _program):
    """Every file and folder that the pages for engineers name is there, under that name or as the end of a path."""
    files = [str(path.relative_to(root)) for top in ("src", "sql", "include", "tests", "tools", "bench", "docs", "examples")
             for path in (root / top).rglob("*") if path.is_file()]
    files.append("meson.build")
    ends = {name for path in files for name in ("/".join(path.split("/")[at:]) for at in range(path.count("/") + 1))}
    complaints = []
    for path in [root / "CONTRIBUTING.md", *sorted((root / "docs" / "internals").glob("*.md"))]:
        text = path.read_text(encoding="utf-8")
        missing = [name for name in FILE.findall(text) if name not in ends and "NAME" not in name]
        missing += [name for name in FOLDER.findall(text) if not (root / name).is_dir() and not any(f"/{name}" in f"/{file}" for file in files)]
        complaints += [f"{path.relative_to(root)}: there is no {name}" for name in sorted(set(missing))]
    return complaints


def suites(root, _program):
    """tests/README.md has a row for every suite."""
    build = read(root, "tests/meson.build")
    table = re.search(r"^suites = \{(.*?)^\}", build, re.M | re.S)
    names = re.findall(r"^  '(\w+)'", table[1], re.M) + re.findall(r"^test\('(\w+)'", build, re.M)
    documented = {row[0].strip("`") for row in rows(read(root, "tests/README.md"))}
    return [f"suite {name} has no row" for name in names if name not in documented]


def protocol(root, _program):
    """The protocol page of the SQLite store names every file of its folder."""
    folder = root / "src" / "store" / "sqlite"
    text = (folder / "README.md").read_text(encoding="utf-8")
    return [f"{path.name} is not named" for path in sorted(folder.glob("*.c"))
            if f"`{path.name}`" not in text and not path.name.startswith("act_")]


def decisions(root, _program):
    """Each page is dated, says whether it is in force, has its four parts, and is in the list."""
    complaints = []
    index = read(root, "docs/decisions/README.md")
    for path in sorted((root / "docs" / "decisions").glob("0*.md")):
        text = path.read_text(encoding="utf-8")
        if not re.search(r"^Date: \d{4}-\d\d-\d\d\b", text, re.M):
            complaints.append(f"{path.name} has no date")
        for part in ("Context", "Decision", "Consequences", "Rejected"):
            if f"\n## {part}\n" not in text:
                complaints.append(f"{path.name} has no part \"{part}\"")
        status = re.search(r"^Date: .*? Status: (in force|superseded)", text, re.M)
        row = next((line for line in index.splitlines() if re.match(rf"\| \[\d+\]\({path.name}\)", line)), None)
        if row is None:
            complaints.append(f"{path.name} is not in the list")
        elif status is None:
            complaints.append(f"{path.name} does not say whether it is in force or superseded")
        elif f"| {status[1]}" not in row:
            complaints.append(f"{path.name} has another status in the list")
    return complaints


def checks():
    return [("facts: links lead somewhere", links),
            ("facts: every page and example can be found", indexed),
            ("facts: requirements cite tests that exist", requirements),
            ("facts: every requirement has a mutant", mutants),
            ("facts: the C reference has every function", c_api),
            ("facts: the table of outcomes is status.def", statuses),
            ("facts: the alert rules name metrics that there are", alerts),
            ("facts: every event is explained", events),
            ("facts: every table, column and index is explained", columns),
            ("facts: every function of PostgreSQL is explained", functions),
            ("facts: every setting is explained", settings),
            ("facts: the built-in values are those of the program", defaults),
            ("facts: limits in pages are those of the code", limits),
            ("facts: every command is listed", commands),
            ("facts: every message is listed and explained", every_message),
            ("facts: files that pages for engineers name exist", paths),
            ("facts: every suite is listed", suites),
            ("facts: the protocol names every file", protocol),
            ("facts: decisions are dated and complete", decisions)]
