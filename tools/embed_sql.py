#!/usr/bin/env python3
"""Embed the .sql files of one or more dialects as C tables.

    embed_sql.py --out DIR [--depfile FILE] DIALECT=FOLDER...

Reads   FOLDER/*.sql                  statements, each under a line `-- name: job_claim`
        FOLDER/migrations/NNNN_*.sql  whole files, numbered from 0001 without a gap; a migration
                                      may be a folder NNNN_words: its files, in order, are one
Writes  DIR/sql_names.h               the types
        DIR/sql_DIALECT.h, .c         enum lhi_DIALECT_sql, lhi_DIALECT_sql[], lhi_DIALECT_migrations[]

Dialects have statements of their own: one store performs an act in many small statements, another
in the call of one function.

$[name] is a built-in value of a policy, $[name(...)] a fragment of FOLDER/fragments.def (sql_template.py).

Comments are left out of the statements (what is inside a literal is never touched); migrations are
embedded as they are, because the engine keeps the text of a CREATE and shows it to whoever looks at
the schema. Texts become arrays of bytes: C11 promises string literals of only 4095 characters.

Every mistake is reported as file:line, and any mistake fails the build.
"""

import argparse
import pathlib
import re
import sys

import sql_template

NAME_LINE = re.compile(r"--\s*name:(.*)")
NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
MIGRATION = re.compile(r"(\d{4})_[a-z][a-z0-9_]*(\.sql)?")
# The alternative that starts first wins: `'--'` is a literal, and `-- it's` is a comment.
TOKEN = re.compile(
    r"""(?P<literal>'(?:[^']|'')*' | "(?:[^"]|"")*" | `[^`]*` | \[[^\]]*\])
      | (?P<comment>--[^\n]* | /\*.*?\*/)
      | (?P<open>['"`] | /\*)
      | (?P<end>;)""",
    re.VERBOSE | re.DOTALL,
)


class Mistakes:
    def __init__(self):
        self.count = 0

    def add(self, path, line, text):
        print(f"{path}:{line}: {text}", file=sys.stderr)
        self.count += 1


class Statement:
    def __init__(self, name, path, line):
        self.name, self.path, self.line = name, path, line
        self.raw = ""
        self.text = ""


def bare(statement, mistakes):
    """Returns the statement without comments; complains unless it is exactly one statement."""
    out, literals, position, ended = [], [], 0, False

    def line_of(offset):
        # raw starts on the line after the name
        return statement.line + 1 + statement.raw.count("\n", 0, offset)

    def plain(text, offset):
        if ended and text.strip():
            skipped = len(text) - len(text.lstrip())
            mistakes.add(statement.path, line_of(offset + skipped),
                         f"{statement.name}: text after the end of the statement")
        return text

    trigger = False
    for token in TOKEN.finditer(statement.raw):
        out.append(plain(statement.raw[position:token.start()], position))
        position = token.end()
        if token["literal"]:
            plain(token["literal"], token.start())
            out.append(f"\0{len(literals)}\0")
            literals.append(token["literal"])
        elif token["comment"]:
            out.append(" ")
        elif token["open"]:
            mistakes.add(statement.path, line_of(token.start()),
                         f"{statement.name}: {token['open']} is never closed")
            return ""
        else:
            # A trigger body contains semicolons, so only SQLite can check it.
            trigger = trigger or re.match(r"\s*CREATE\s+(TEMP\w*\s+)?TRIGGER\b", "".join(out), re.I)
            out.append(";")
            ended = not trigger
    out.append(plain(statement.raw[position:], position))

    # Replace literals by placeholders while blanks are removed.
    text = re.sub(r"[ \t]*\n\s*", lambda blank: "\n" + blank[0].rpartition("\n")[2], "".join(out))
    text = re.sub(r"\0(\d+)\0", lambda mark: literals[int(mark[1])], text.strip())
    if text.strip("; \n\t") == "":
        mistakes.add(statement.path, statement.line, f"{statement.name}: statement is empty")
    return text


# The numbers of a job that its state_sum covers, and their factors, as in the constraint of lh_job.
STATES = "CASE {} WHEN 'pending' THEN 1 WHEN 'running' THEN 2 WHEN 'completed' THEN 3 " \
         "WHEN 'scheduled' THEN 4 WHEN 'failed' THEN 5 ELSE 6 END"
SUMMED = {
    "id": (3, "{}"), "priority": (5, "{}"), "attempt": (7, "{}"),
    "max_attempts": (11, "coalesce({}, -1)"), "recoveries": (13, "{}"), "token": (17, "{}"),
    "lease_until": (19, "coalesce({}, -1)"), "held_ms": (23, "coalesce({}, -1)"),
    "run_at": (29, "coalesce({}, -1)"), "created_at": (31, "{}"),
    "started_at": (37, "coalesce({}, -1)"), "finished_at": (41, "coalesce({}, -1)"),
    "last_heartbeat_at": (43, "coalesce({}, -1)"), "expires_at": (47, "coalesce({}, -1)"),
    "lease_ms": (53, "coalesce({}, -1)"), "backoff_ms": (59, "coalesce({}, -1)"),
    "backoff_cap_ms": (61, "coalesce({}, -1)"), "state": (67, STATES),
    "payload_sum": (71, "({} IS NULL)"), "name_sum": (73, "({} IS NULL)"),
}
WHOLE_SUM = " + ".join(f"{factor} * {form.format(column)}" for column, (factor, form) in SUMMED.items())
JOB_UPDATE = re.compile(r"UPDATE\s+lh_job\s+SET\s+", re.I)


def split_assignments(text):
    """Splits the text after SET into the assignments and the rest."""
    parts, depth, start, position = [], 0, 0, 0
    while position < len(text):
        literal = TOKEN.match(text, position)
        if literal and literal["literal"]:
            position = literal.end()
            continue
        char = text[position]
        depth += (char == "(") - (char == ")")
        if depth == 0 and (char in ",;" or re.match(r"\b(WHERE|FROM|RETURNING)\b", text[position:])):
            parts.append(text[start:position].strip())
            start = position + 1
            if char != ",":
                return parts, text[position:]
        position += 1
    return parts + [text[start:].strip()], ""


STATE_NUMBERS = {"pending": 1, "running": 2, "completed": 3, "scheduled": 4, "failed": 5, "cancelled": 6}


def change_of_sum(column, value, rest):
    """The term that an assignment adds to the sum; constants are computed here and not for every row."""
    factor, form = SUMMED[column]
    step = re.fullmatch(column + r" ([+-]) (\d+)", value)
    if step and form == "{}":
        return f"{step[1]}{factor * int(step[2])}"
    before, after = form.format(column), form.format(f"({value})")
    if value == "NULL" and form == "coalesce({}, -1)":
        after = "-1"
    if column == "state":
        if re.fullmatch(r"'\w+'", value):
            after = str(STATE_NUMBERS[value.strip("'")])
        known = re.findall(r"AND state = '(\w+)'(?! OR)", rest)
        if known:
            before = str(STATE_NUMBERS[known[-1]])
        if after.isdigit() and before.isdigit():
            return str(factor * (int(after) - int(before)))
    return f"{factor} * ({after} - {before})"


def keep_sum(text):
    """An UPDATE of lh_job that also keeps state_sum: it adds what it changes, so that a row that did not
    match its sum before does not match it afterwards either. A statement may set the sum itself; there
    lh_job_sum() is the sum over the whole row."""
    text = text.replace("lh_job_sum()", f"({WHOLE_SUM})")
    update = JOB_UPDATE.match(text)
    if not update:
        return text
    assignments, rest = split_assignments(text[update.end():])
    pairs = [[side.strip() for side in part.split("=", 1)] for part in assignments]
    changes = [change_of_sum(column, value, rest) for column, value in pairs if column in SUMMED]
    if changes and not any(column == "state_sum" for column, _ in pairs):
        assignments.append("state_sum = iif(state_sum = 0, 0, state_sum + " + " + ".join(changes) + ")")
    return text[:update.end()] + ", ".join(assignments) + "\n" + rest


# Tables whose rows have a checksum over all of their columns, in the order of the table (row_sum.c).
ROW_SUM = "row_sum"
CREATE = re.compile(r"CREATE TABLE (lh_\w+) \(\n(.*?)\n\) STRICT", re.S)
INSERT = re.compile(r"INSERT\s+INTO\s+(lh_\w+)\s*\(([^)]*)\)\s*VALUES\s*\(", re.I)
INSERT_SELECT = re.compile(r"INSERT\s+INTO\s+(lh_\w+)\s*\([^)]*\)\s*SELECT\b", re.I)
UPSERT = re.compile(r"\bDO\s+UPDATE\s+SET\s+", re.I)
TABLE_UPDATE = re.compile(r"UPDATE\s+(lh_\w+)\s+SET\s+", re.I)


def summed_tables(migrations):
    """The columns of every table that has a row_sum, without that column."""
    tables = {}
    for _, _, text in migrations:
        for name, body in CREATE.findall(text):
            columns = [line.split()[0] for line in body.split("\n") if re.match(r"    [a-z_]+ +[A-Z]", line)]
            if ROW_SUM in columns:
                tables[name] = [column for column in columns if column != ROW_SUM]
    return tables


def closing(text, start):
    """The position of the parenthesis that closes the one before `start`."""
    depth = 1
    for position in range(start, len(text)):
        depth += (text[position] == "(") - (text[position] == ")")
        if depth == 0:
            return position
    return len(text)


def sum_after(columns, pairs):
    new = dict(pairs)
    return "lh_sum(" + ", ".join(f"({new[column]})" if column in new else column for column in columns) + ")"


def keep_row_sum(text, tables):
    """An INSERT or UPDATE of a table with a row_sum that also keeps it. A row that did not match its sum
    before does not match it afterwards either, unless the statement says row_sum = lh_row_sum()."""
    table = None
    inserted = INSERT.match(text)
    if inserted and inserted[1] in tables:
        table = inserted[1]
        end = closing(text, inserted.end())
        values, _ = split_assignments(text[inserted.end():end])
        given = dict(zip([name.strip() for name in inserted[2].split(",")], values))
        total = "lh_sum(" + ", ".join(given.get(column, "NULL") for column in tables[table]) + ")"
        text = (text[:inserted.end(2)] + ", " + ROW_SUM + text[inserted.end(2):end] + ", " + total
                + text[end:])
    selected = INSERT_SELECT.match(text)
    if selected and selected[1] in tables:
        table = selected[1]  # a new row gets its sum at its first UPDATE
    update = UPSERT.search(text) if table else TABLE_UPDATE.match(text)
    if not update or (not table and update[1] not in tables):
        return text
    columns = tables[table or update[1]]
    assignments, rest = split_assignments(text[update.end():])
    pairs = [[side.strip() for side in part.split("=", 1)] for part in assignments]
    after = sum_after(columns, [pair for pair in pairs if pair[0] != ROW_SUM])
    if any(column == ROW_SUM for column, _ in pairs):
        assignments = [part.replace("lh_row_sum()", after) for part in assignments]
    else:
        assignments.append(f"{ROW_SUM} = iif({ROW_SUM} IS NULL OR {ROW_SUM} = lh_sum({', '.join(columns)}),"
                           f" {after}, {ROW_SUM})")
    return text[:update.end()] + ", ".join(assignments) + "\n" + rest


def read_text(path, mistakes):
    text = path.read_text(encoding="utf-8")
    if "\0" in text:
        mistakes.add(path, text[:text.index("\0")].count("\n") + 1, "zero byte")
        text = text.replace("\0", "")
    return text


def read_statements(folder, mistakes):
    found = {}
    for path in sorted(folder.glob("*.sql")):
        current = None
        for number, line in enumerate(read_text(path, mistakes).split("\n"), 1):
            named = NAME_LINE.match(line)
            if named:
                name = named[1].strip()
                current = Statement(name, path, number)
                if not NAME.fullmatch(name):
                    mistakes.add(path, number, f'bad statement name "{name}"')
                elif name in found:
                    first = found[name]
                    mistakes.add(path, number, f"{name} is already defined at "
                                               f"{first.path}:{first.line}")
                else:
                    found[name] = current
            elif current is not None:
                current.raw += line + "\n"
            elif line.strip() and not line.lstrip().startswith("--"):
                mistakes.add(path, number, "SQL before the first `-- name:` line")
    for statement in found.values():
        statement.text = bare(statement, mistakes)
    return found


def migration_files(place):
    """The files that make up one migration."""
    return sorted(place.glob("*.sql")) if place.is_dir() else [place]


def read_migrations(folder, mistakes):
    migrations = []
    for place in sorted((folder / "migrations").glob("*")):
        if not place.is_dir() and place.suffix != ".sql":
            continue
        matched = MIGRATION.fullmatch(place.name)
        expected = len(migrations) + 1
        if not matched or place.is_dir() == bool(matched[2]):
            mistakes.add(place, 1, "name of a migration is not NNNN_words_in_lower_case.sql")
            continue
        if int(matched[1]) != expected:
            mistakes.add(place, 1, f"migration is number {int(matched[1]):04}, expected {expected:04}")
        text = "\n".join(read_text(path, mistakes) for path in migration_files(place))
        if not re.sub(r"--[^\n]*", "", text).strip():
            mistakes.add(place, 1, "migration is empty")
        migrations.append((expected, place.stem, text))
    return migrations


def c_bytes(identifier, text):
    # Character constants fit a char, signed or not; numbers above 127 do not.
    data = text.encode("utf-8") + b"\0"
    rows = []
    for start in range(0, len(data), 16):
        rows.append("    " + ",".join(c_char(byte) for byte in data[start:start + 16]) + ",")
    return f"static const char {identifier}[] = {{\n" + "\n".join(rows) + "\n};\n"


def c_char(byte):
    char = chr(byte)
    if 32 <= byte < 127 and char not in "'\\":
        return f"'{char}'"
    return f"'\\x{byte:02x}'"


def names_header():
    return "\n".join([
        "/* Generated by tools/embed_sql.py; do not edit. */",
        "#ifndef LHI_SQL_NAMES_H", "#define LHI_SQL_NAMES_H", "",
        "struct lhi_sql_text {", "    const char *name;", "    const char *text;", "};", "",
        "struct lhi_migration {", "    int version;", "    const char *name;",
        "    const char *text;", "};", "", "#endif", ""])


def prefix(dialect):
    """The prefix of the constants: LHI_SQL_ for SQLite, LHI_POSTGRES_ for PostgreSQL."""
    return "LHI_SQL" if dialect == "sqlite" else f"LHI_{dialect.upper()}"


def enum_name(dialect):
    return "lhi_sql" if dialect == "sqlite" else f"lhi_{dialect}_call"


def dialect_header(dialect, names):
    guard = f"LHI_SQL_{dialect.upper()}_H"
    return "\n".join([
        "/* Generated by tools/embed_sql.py from the .sql files; do not edit. */",
        f"#ifndef {guard}", f"#define {guard}", "", '#include "sql_names.h"', "",
        f"enum {enum_name(dialect)} {{",
        *[f"    {prefix(dialect)}_{name.upper()}," for name in names],
        f"    {prefix(dialect)}_COUNT", "};", "",
        f"extern const struct lhi_sql_text lhi_{dialect}_sql[{prefix(dialect)}_COUNT];",
        f"extern const struct lhi_migration lhi_{dialect}_migrations[];",
        f"extern const int lhi_{dialect}_migration_count;", "", "#endif", ""])


def dialect_source(dialect, names, statements, migrations):
    parts = ["/* Generated by tools/embed_sql.py from the .sql files; do not edit. */\n"
             f'#include "sql_{dialect}.h"\n']
    parts += [c_bytes(f"sql_{name}", statements[name].text) for name in names]
    parts += [c_bytes(f"migration_{version}", text) for version, _, text in migrations]
    parts.append(f"const struct lhi_sql_text lhi_{dialect}_sql[{prefix(dialect)}_COUNT] = {{\n"
                 + "".join(f'    [{prefix(dialect)}_{n.upper()}] = {{"{n}", sql_{n}}},\n' for n in names)
                 + "};\n")
    parts.append(f"const struct lhi_migration lhi_{dialect}_migrations[] = {{\n"
                 + "".join(f'    {{{v}, "{name}", migration_{v}}},\n' for v, name, _ in migrations)
                 + "};\n")
    parts.append(f"const int lhi_{dialect}_migration_count = {len(migrations)};\n")
    return "\n".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--depfile", type=pathlib.Path)
    parser.add_argument("dialects", nargs="+", metavar="DIALECT=FOLDER")
    args = parser.parse_args()

    mistakes = Mistakes()
    dialects = []
    for pair in args.dialects:
        dialect, _, folder = pair.partition("=")
        folder = pathlib.Path(folder)
        template = sql_template.Template(folder)
        statements = read_statements(folder, mistakes)
        migrations = read_migrations(folder, mistakes)
        try:
            for statement in statements.values():
                statement.text = template.expand(statement.text)
            migrations = [(*rest, template.expand(text)) for *rest, text in migrations]
        except sql_template.Unknown as unknown:
            mistakes.add(folder, 1, str(unknown))
        if not statements:
            mistakes.add(folder, 1, "no statements here")
        if not migrations:
            mistakes.add(folder / "migrations", 1, "no migrations here")
        if dialect == "sqlite":
            for statement in statements.values():
                statement.text = keep_row_sum(keep_sum(statement.text), summed_tables(migrations))
        dialects.append((dialect, folder, statements, migrations, template.files))
    if mistakes.count:
        return 1

    outputs = {"sql_names.h": names_header()}
    for dialect, _, statements, migrations, _ in dialects:
        names = sorted(statements)
        outputs[f"sql_{dialect}.h"] = dialect_header(dialect, names)
        outputs[f"sql_{dialect}.c"] = dialect_source(dialect, names, statements, migrations)
    for name, text in outputs.items():
        (args.out / name).write_text(text, encoding="utf-8")

    if args.depfile:
        # List the folders too: a new file changes its folder, but no existing file.
        needed = [pathlib.Path(sql_template.__file__)]
        for _, folder, _, _, used in dialects:
            needed += used
            places = [folder, folder / "migrations", *(folder / "migrations").glob("*/")]
            for place in sorted(set(path for path in places if path.is_dir())):
                needed += [place, *sorted(place.glob("*.sql"))]
        escaped = " ".join(str(path).replace(" ", "\\ ") for path in needed)
        targets = " ".join(str(args.out / name) for name in outputs)
        args.depfile.write_text(f"{targets}: {escaped}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
