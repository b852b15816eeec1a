#!/usr/bin/env python3
"""Tests of what the build and the suites rely on: tools/embed_sql.py, tools/layers.py, tools/check.py,
tools/messages.py, tests/cli/run.py, tests/mutants/run.py.

Each makes a small tree in a fresh directory, runs the tool on it, and looks at what it says.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LIMIT_S = 300  # of a busy machine
tests = []


def test(function):
    tests.append(function)


class Tree:
    def __init__(self, files):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name)
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        self.code, self.said = None, ""

    def run(self, tool, *args):
        done = subprocess.run([sys.executable, ROOT / tool, *args], cwd=self.root, text=True,
                              env=dict(os.environ, TMPDIR=self.folder.name),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT_S)
        self.code, self.said = done.returncode, done.stdout
        return self

    def good(self):
        assert self.code == 0, self.said
        return self

    def bad(self, *words):
        assert self.code != 0, f"accepted; said: {self.said}"
        for word in words:
            assert word in self.said, f"does not say: {word}\n{self.said}"
        return self


# ---------------------------------------------------------------- embed_sql.py

MIGRATION = {"sql/migrations/0001_start.sql": "CREATE TABLE t(a); -- kept\n"}
# Prints every text between brackets, as a C program sees it.
READER = r"""
#include "sql_sqlite.h"
#include <stdio.h>
int main(void)
{
    for (int i = 0; i < LHI_SQL_COUNT; i++)
        printf("%s[%s]\n", lhi_sqlite_sql[i].name, lhi_sqlite_sql[i].text);
    for (int i = 0; i < lhi_sqlite_migration_count; i++)
        printf("%d:%s[%s]\n", lhi_sqlite_migrations[i].version, lhi_sqlite_migrations[i].name,
               lhi_sqlite_migrations[i].text);
}
"""


def embed(files, *dialects):
    return Tree({**MIGRATION, **files}).run("tools/embed_sql.py", "--out", ".", "--depfile", "d",
                                            *(dialects or ["sqlite=sql"]))


def read_back(tree):
    (tree.root / "reader.c").write_text(READER, encoding="utf-8")
    subprocess.run(["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-o", "reader", "reader.c",
                    "sql_sqlite.c"], cwd=tree.root, check=True, timeout=LIMIT_S)
    return subprocess.run([tree.root / "reader"], check=True, capture_output=True,
                          timeout=LIMIT_S).stdout.decode()


@test
def embed_keeps_statements_and_drops_their_comments():
    tree = embed({"sql/b.sql": "-- about the file\n-- name: two\n-- why\nSELECT 2 -- it's two\n"
                               " , /* ; */ 3;\n\n",
                  "sql/a.sql": "-- name: one\nSELECT 1;\n"}).good()
    assert read_back(tree) == ("one[SELECT 1;]\ntwo[SELECT 2\n ,   3;]\n"
                               "1:0001_start[CREATE TABLE t(a); -- kept\n]\n"), read_back(tree)


@test
def embed_leaves_literals_alone():
    literal = "'a -- b; ''c''\n\n   /* d */ \\ é'"
    tree = embed({"sql/a.sql": f"-- name: one\nSELECT {literal}, \"x--y\";\n"}).good()
    assert f"one[SELECT {literal}, \"x--y\";]" in read_back(tree), read_back(tree)


@test
def embed_accepts_texts_beyond_the_limit_of_literals():
    long = "SELECT " + ", ".join(str(number) for number in range(3000)) + ";"
    assert long in read_back(embed({"sql/a.sql": f"-- name: one\n{long}\n"}).good())


@test
def embed_accepts_the_body_of_a_trigger():
    embed({"sql/a.sql": "-- name: one\nCREATE TEMP TRIGGER t AFTER INSERT ON a BEGIN\n"
                        " SELECT 1; SELECT 2;\nEND;\n"}).good()


@test
def embed_refuses_a_name_given_twice():
    embed({"sql/a.sql": "-- name: one\nSELECT 1;\n", "sql/b.sql": "\n-- name: one\nSELECT 1;\n"}
          ).bad("sql/b.sql:2: one is already defined at sql/a.sql:1")


@test
def embed_refuses_bad_names():
    for name in ("One", "1x", "a-b", "", "a__b"):
        embed({"sql/a.sql": f"-- name: {name}\nSELECT 1;\n"}).bad("sql/a.sql:1: bad statement name")


@test
def embed_refuses_an_empty_statement():
    for body in ("", "-- nothing\n", ";\n", "/* nothing */ ;\n"):
        embed({"sql/a.sql": f"\n-- name: one\n{body}"}).bad("sql/a.sql:2: one: statement is empty")


@test
def embed_refuses_a_second_statement_under_one_name():
    embed({"sql/a.sql": "-- name: one\nSELECT 1;\n\nSELECT 2;\n"}).bad("sql/a.sql:4: one: text after")


@test
def embed_refuses_an_open_literal():
    embed({"sql/a.sql": "-- name: one\nSELECT\n 'a;\n"}).bad("sql/a.sql:3: one: ' is never closed")


@test
def embed_refuses_sql_without_a_name():
    embed({"sql/a.sql": "-- words\nSELECT 1;\n"}).bad("sql/a.sql:2: SQL before the first")


@test
def embed_refuses_gaps_between_migrations():
    one = {"sql/a.sql": "-- name: one\nSELECT 1;\n"}
    embed({**one, "sql/migrations/0003_more.sql": "SELECT 1;"}).bad(
        "sql/migrations/0003_more.sql:1: migration is number 0003, expected 0002")
    embed({**one, "sql/migrations/0001_twice.sql": "SELECT 1;"}).bad("expected 0002")
    embed({**one, "sql/migrations/2_short.sql": "SELECT 1;"}).bad("2_short.sql:1: name of a migration")
    embed({**one, "sql/migrations/0002_empty.sql": "-- nothing\n"}).bad("migration is empty")


@test
def embed_takes_a_folder_for_one_migration():
    one = {"sql/a.sql": "-- name: one\nSELECT 1;\n"}
    tree = embed({**one, "sql/migrations/0002_more/10_a.sql": "SELECT 1;\n",
                  "sql/migrations/0002_more/20_b.sql": "SELECT 2;\n"}).good()
    assert "2:0002_more[SELECT 1;\n\nSELECT 2;\n]" in read_back(tree), read_back(tree)
    assert "sql/migrations/0002_more/20_b.sql" in (tree.root / "d").read_text()
    embed({**one, "sql/migrations/0003_more/10_a.sql": "SELECT 1;\n"}).bad("expected 0002")
    embed({**one, "sql/migrations/0002_none/10_a.sql": "-- nothing\n"}).bad("migration is empty")
    embed({**one, "sql/migrations/0002_more.sql/a.sql": "SELECT 1;"}).bad("name of a migration")


@test
def embed_gives_every_dialect_its_own_statements():
    files = {"sql/a.sql": "-- name: one\nSELECT 1;\n",
             "pg/a.sql": "-- name: two\nSELECT 2;\n", "pg/migrations/0001_start.sql": "SELECT 1;"}
    tree = embed(files, "sqlite=sql", "postgres=pg").good()
    assert "LHI_SQL_ONE" in (tree.root / "sql_sqlite.h").read_text()
    header = (tree.root / "sql_postgres.h").read_text()
    assert "LHI_POSTGRES_TWO" in header and "ONE" not in header, header


@test
def embed_reports_folders_as_dependencies():
    tree = embed({"sql/a.sql": "-- name: one\nSELECT 1;\n"}).good()
    listed = (tree.root / "d").read_text().split()
    for name in ("sql", "sql/a.sql", "sql/migrations", "sql/migrations/0001_start.sql"):
        assert name in listed, listed


# ---------------------------------------------------------------- messages.py

TALKER = {
    "src/base/status.def": 'LH_STATUS(EINVAL, -3, 2, 400, "invalid", "x")\n',
    "src/base/error.h": "int lhi_fail(struct e *err, int status, const char *fmt, ...)\n"
                        "    __attribute__((format(printf, 3, 4)));\n"
                        "void lhi_log(const struct l *log, int level, const char *fmt, ...)\n"
                        "    __attribute__((format(printf, 3, 4)));\n",
    "src/core/a.c": 'f() { lhi_log(l, LH_LOG_WARN, "job %lld went "\n  "away", id); /* lhi_log(l, 1, "no such line") */\n'
                    '    return lhi_fail(e, LH_EINVAL, bad ? "size is %d" : "name is %s", n); }\n',
    "sql/postgres/1.sql": "CREATE FUNCTION leasehold.say(level text, message text) RETURNS void AS '';\n"
                          "PERFORM leasehold.say('info', format('queue \"%s\" is new', q));\n",
    "docs/reference/messages.toml": '[status]\nLH_EINVAL = "correct it"\n[advice]\n"job … went away" = "Wait."\n'
                                    "'queue \"…\" is new' = 'Nothing.'\n",
}


@test
def the_page_of_messages_has_every_message_of_the_sources():
    tree = Tree(TALKER).run("tools/messages.py", "--update", ".").good()
    page = (tree.root / "docs/reference/messages.md").read_text(encoding="utf-8")
    assert "| `job … went away` | warn | Wait. | `src/core/a.c` |" in page, page
    assert "| `size is …` | `LH_EINVAL` | correct it |" in page and "| `name is …` |" in page, page
    assert '| `queue "…" is new` | info | Nothing. | `sql/postgres/1.sql` |' in page, page
    assert "no such line" not in page, page
    tree.run("tools/messages.py", ".").good()


@test
def a_message_without_advice_and_an_advice_without_a_message_are_refused():
    files = dict(TALKER)
    files["src/core/a.c"] = files["src/core/a.c"].replace("went ", "ran ")
    Tree(files).run("tools/messages.py", "--update", ".").bad('no advice for the log message "job … ran away"',
                                                              'no message "job … went away"')


@test
def a_page_of_messages_that_is_out_of_date_is_refused():
    tree = Tree(TALKER).run("tools/messages.py", "--update", ".").good()
    (tree.root / "src/core/a.c").write_text(TALKER["src/core/a.c"].replace("size is", "length is"), encoding="utf-8")
    tree.run("tools/messages.py", ".").bad("out of date: run tools/messages.py --update")


# ---------------------------------------------------------------- layers.py

def layered(path, include):
    return Tree({path: f"/* words */\n#include {include}\n", "src/core/job.h": "",
                 "src/store/store.h": "", "src/store/sqlite/sqlite.h": "", "src/base/str.h": ""}
                ).run("tools/layers.py", ".")


@test
def layers_accepts_includes_of_lower_layers():
    for path, include in (("src/cli/show.c", '"leasehold.h"'), ("src/cli/show.c", "<leasehold.h>"),
                          ("src/cli/show.c", '"base/str.h"'),
                          ("src/cli/input/config.c", "<yaml.h>"),
                          ("src/core/job.c", '"job.h"'), ("src/core/job.c", '"store/store.h"'),
                          ("src/store/sqlite/claim.c", "<sqlite3.h>"),
                          ("src/store/sqlite/claim.c", '"../store.h"'),
                          ("src/store/sqlite/acts/claim.c", '"store/sqlite/sqlite.h"'),
                          ("src/store/sqlite/acts/claim.c", "<sqlite3.h>")):
        layered(path, include).good()


@test
def layers_refuses_includes_of_higher_layers():
    for path, include in (("src/cli/show.c", '"core/job.h"'), ("src/cli/show.c", "<sqlite3.h>"),
                          ("src/cli/show.c", '"../core/job.h"'),
                          ("src/core/job.c", '"store/sqlite/sqlite.h"'),
                          ("src/core/job.c", "<sqlite3.h>"), ("src/base/str.c", '"core/job.h"'),
                          ("src/store/sqlite/claim.c", '"core/job.h"'),
                          ("src/store/sqlite/acts/claim.c", '"core/job.h"'),
                          ("src/store/open.c", '"store/sqlite/sqlite.h"')):
        layered(path, include).bad(f"{path}:2: ", "may not include")


@test
def layers_refuses_a_folder_it_does_not_know():
    layered("src/misc/all.c", "<stdio.h>").bad("src/misc/all.c:1: folder misc has no place")


def linked(files):
    """A small build folder, and what layers.py says of its object files."""
    tree = Tree({f"src/{name}": text for name, text in files.items()})
    commands = []
    (tree.root / "build").mkdir()
    for name in files:
        out = name.replace("/", "_") + ".o"
        subprocess.run(["cc", "-c", tree.root / "src" / name, "-o", tree.root / "build" / out], check=True,
                       timeout=60)
        commands.append({"directory": str(tree.root / "build"), "file": f"../src/{name}", "output": out})
    (tree.root / "build" / "compile_commands.json").write_text(json.dumps(commands), encoding="utf-8")
    return tree.run("tools/layers.py", ".", "--build", "build", "--map")


CORE = "int core_decides(void); int core_decides(void) { return 1; }"


@test
def links_print_a_map_of_symbols():
    done = linked({"base/text.c": "int text(void); int text(void) { return 1; }",
                   "core/jobs.c": "int text(void); int jobs(void); int jobs(void) { return text(); }"}).good()
    assert "core            -> base               1 symbols" in done.said, done.said


@test
def links_refuse_a_store_that_calls_the_core():
    linked({"core/jobs.c": CORE, "store/sqlite/claim.c":
            "int core_decides(void); int claim(void); int claim(void) { return core_decides(); }"}
           ).bad("src/store/sqlite/claim.c: store/sqlite may not use core_decides of core/jobs.c")


@test
def links_refuse_a_core_that_names_a_database():
    linked({"core/jobs.c": "int sqlite3_step(void); int jobs(void); int jobs(void) { return sqlite3_step(); }"}
           ).bad("src/core/jobs.c: core may not use sqlite3_step of <sqlite3.h>")


@test
def links_let_the_program_use_the_public_header_only():
    for symbol, fine in (("lh_claim", True), ("lhi_claim", False)):
        done = linked({"core/jobs.c": f"int {symbol}(void); int {symbol}(void) {{ return 1; }}",
                       "cli/show.c": f"int {symbol}(void); int show(void); int show(void) {{ return {symbol}(); }}"})
        assert (done.code == 0) == fine, done.said


@test
def links_need_a_build():
    linked({}).bad("has no object files")


# ---------------------------------------------------------------- check.py

def counted(*lines):
    """What tools/check.py makes of a suite that printed this."""
    tree = Tree({"suite.tap": "\n".join(lines) + "\n"})
    program = ("import pathlib, sys; sys.path.insert(0, sys.argv[1]); import check;"
               "print(check.count_tap(pathlib.Path('suite.tap')))")
    return subprocess.run([sys.executable, "-B", "-c", program, ROOT / "tools"], cwd=tree.root,
                          text=True, check=True, capture_output=True, timeout=LIMIT_S).stdout.strip()


@test
def check_counts_a_skipped_test_as_neither_passed_nor_failed():
    said = counted("1..3", "ok 1 - alone # SKIP needs root", "ok 2 - other # 0.1 s", "not ok 3 - bad")
    assert said == "(1, 1, ['alone: needs root'], None)", said


def checked(*steps):
    """What tools/check.py prints for steps, each a name and the expression that is its action."""
    tree = Tree({"build/check/empty": ""})
    program = ("import pathlib, sys; sys.path.insert(0, sys.argv[1]); import check;"
               "check.ROOT = pathlib.Path('.').resolve(); check.CHECK = check.ROOT / 'build' / 'check';"
               f"steps = [{', '.join(f'check.Step({name!r}, {rest})' for name, rest in steps)}];"
               "check.run_all(steps); check.print_failures(steps);"
               "sys.exit(check.print_counts(steps))")
    return subprocess.run([sys.executable, "-B", "-c", program, ROOT / "tools"], cwd=tree.root,
                          text=True, stdout=subprocess.PIPE, timeout=LIMIT_S).stdout


@test
def check_names_the_failed_tests_before_its_last_line():
    suite = "lambda log: (log.say('ok 1 - good\\nnot ok 2 - bad\\n# expected: a == b'), (1, 1))[1]"
    said = checked(("spec", suite))
    assert said.endswith("failed:\n  spec: bad\n      expected: a == b\n1 passed, 1 failed\n"), said


@test
def check_shows_the_errors_of_a_build_that_fails_and_ends_with_the_counts():
    said = checked(("build-gcc", "lambda log: (log.say('[1/2] cc\\na.c:1: error: no such type\\n'"
                                 " + '\\n' * 50), (0, 1))[1]"),
                   ("spec", "None, ['build-gcc']"))
    assert said.endswith("failed:\n  build-gcc\n      a.c:1: error: no such type\n"
                         "  spec\n      not run: it needs build-gcc, which failed\n"
                         "0 passed, 2 failed\n"), said


@test
def check_waits_for_another_check_of_the_same_folder():
    tree = Tree({"build/check/empty": ""})
    program = ("import pathlib, sys; sys.path.insert(0, sys.argv[1]); import check;"
               "check.CHECK = pathlib.Path('build/check').resolve(); lock = check.one_at_a_time();"
               "print('begun', flush=True); sys.stdin.read(); lock.close()")
    first, second = (subprocess.Popen([sys.executable, "-B", "-c", program, ROOT / "tools"], text=True,
                                      cwd=tree.root, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                     for _ in range(2))
    said = sorted(((checker.stdout.readline(), checker) for checker in (first, second)),
                  key=lambda line: line[0])
    assert [line for line, _ in said] == [
        "another check runs in this folder: waiting until it has ended\n", "begun\n"], said
    for _, checker in reversed(said):
        assert checker.communicate(timeout=LIMIT_S)[0] in ("", "begun\n")


@test
def check_fails_a_suite_that_runs_fewer_tests_than_planned():
    said = counted("1..3", "ok 1 - alone # SKIP needs root", "ok 2 - other")
    assert said == "(1, 0, ['alone: needs root'], '3 tests were planned, 2 ran')", said


# ---------------------------------------------------------------- cli/run.py

PROGRAM = """#!/bin/sh
echo "out $1"
[ -z "$2" ] || echo "err $2" >&2
exit ${3:-0}
"""


def session(text, *options, files=None):
    tree = Tree({"fake": PROGRAM, "t/a.test": text, **(files or {})})
    os.chmod(tree.root / "fake", 0o755)
    return tree.run("tests/cli/run.py", "--folder", "t", "--program", "fake", *options)


@test
def cli_accepts_matching_output():
    session("# words\n$ fake a\nout a\n\n$ fake a b 4\nout a\n! err b\n? 4\n").good()


@test
def cli_fails_on_each_kind_of_difference():
    session("$ fake a\nout b\n").bad("not ok 1 - a", "- out b", "+ out a", "a.test:1:")
    session("$ fake a\n").bad("+ out a")
    session("$ fake a\nout a\nmore\n").bad("- more")
    session("$ fake a b\nout a\n").bad("stderr differs", "+ err b")
    session("$ fake a\nout a\n! err b\n").bad("stderr differs", "- err b")
    session("$ fake a '' 4\nout a\n").bad("exit code is 4, expected 0")
    session("$ fake a\nout a\n? 4\n").bad("exit code is 0, expected 4")
    session("$ printf x\nx\n").bad("no newline")


@test
def cli_placeholders_match_varying_output():
    session("$ echo 'at 2024-05-06T07:08:09.123Z, 5 of 1.5, x'; pwd\n"
            "at {{time}}, {{int}} of {{dec}}, {{*}}\n{{dir}}\n").good()
    session("$ echo at 2024-05-06 07:08:09\nat {{time}}\n").bad("- at {{time}}")
    session("$ echo 5x\n{{int}}\n").bad("- {{int}}")
    session("$ echo a\n{{nonsense}}\n").bad("unknown name in {{nonsense}}")


@test
def cli_remembers_named_values():
    session("$ echo token 17\ntoken {{int:token}}\n$ echo $token\n{{token}}\n").good()
    session("$ echo token 17\ntoken {{int:token}}\n$ echo 18\n{{token}}\n").bad("+ 18")


@test
def cli_commands_may_span_lines_and_output_may_look_like_commands():
    session("$ cat <<END\n> $ x\n>\n> END\n| $ x\n|\n").good()


@test
def cli_refuses_files_it_does_not_understand():
    session("words\n$ fake a\n").bad("a.test:1: output before the first command")
    session("# nothing\n").bad("no commands")
    session("$ fake a\n? x\n").bad("exit code is no number")


@test
def cli_ends_a_session_that_hangs():
    session("# timeout: 1\n$ sleep 60\n").bad("out of time")


@test
def cli_gives_each_session_a_directory_of_its_own():
    text = "$ ls; touch trace\n"
    session(text, files={"t/b.test": text}).good()


@test
def cli_refuses_a_name_that_matches_nothing():
    session("$ fake a\nout a\n", "b*").bad("no test matches")


@test
def cli_update_writes_what_it_saw_and_keeps_what_matches():
    text = "# words\n\n$ echo 5; echo 6\n{{int}}\n7\n\n$ fake '' 'b' 3\n# end\n"
    tree = session(text, "--update").good()
    assert (tree.root / "t/a.test").read_text() == (
        "# words\n\n$ echo 5; echo 6\n{{int}}\n6\n\n$ fake '' 'b' 3\nout \n! err b\n? 3\n# end\n")
    again = tree.run("tests/cli/run.py", "--folder", "t", "--program", "fake").good()
    assert "ok 1 - a" in again.said


# ---------------------------------------------------------------- tests/mutants/run.py

UNIT = r"""
#include <stdio.h>
#include <string.h>
#define TEST(name_) static int name_(void)
int answer(void);

TEST(the_answer_is_forty_two)
{
    return answer() == 42;
}

TEST(nothing_is_asked)
{
    return 1;
}

TEST(nothing_is_right)
{
    return 0;
}

int main(int argc, char **argv)
{
    int failed = 0;
    printf("TAP version 13\n1..%d\n", argc - 1);
    for (int i = 1; i < argc; i++) {
        int ok = strcmp(argv[i], "nothing_is_asked") == 0   ? nothing_is_asked()
                 : strcmp(argv[i], "nothing_is_right") == 0 ? nothing_is_right()
                                                            : the_answer_is_forty_two();
        printf("%s %d - %s\n", ok ? "ok" : "not ok", i, argv[i]);
        failed |= !ok;
    }
    return failed;
}
"""
ANSWER = "int answer(void)\n{\n    return 42; /* 42 */\n}\n"
MUTABLE = {
    "meson.build": "project('t', 'c')\ntest('unit', executable('test-unit', 'answer.c', 'unit.c'),"
                   " suite : ['unit'], protocol : 'tap')\n",
    "meson_options.txt": "option('tests', type : 'boolean')\n",
    "answer.c": ANSWER, "unit.c": UNIT}
WRONG = 'file = "answer.c"\nold = "return 42"\nnew = "return 41"\n'


class Mutable:
    """A project with one function, and requirements about it."""

    def __init__(self):
        self.tree = Tree(MUTABLE)

    def run(self, proof, mutant, *options):
        for name, text in (("docs/requirements.md", f"| FR-001 | it is 42 | done | `{proof}` |\n"),
                           ("tests/mutants/a.toml", mutant)):
            path = self.tree.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return self.tree.run("tests/mutants/run.py", "--root", ".", "--work", "work", *options)


def mutant(change, rows='["FR-001"]'):
    return f'[[mutant]]\nrows = {rows}\nwhat = "it is another"\n{change}'


@test
def mutants_are_killed_by_the_tests_that_their_rows_cite():
    project = Mutable()
    project.run("the_answer_is_forty_two", mutant(WRONG)).good()
    assert project.tree.said.endswith("1 killed, 0 survived\n"), project.tree.said
    assert "FR-001: the_answer_is_forty_two fails on unit" in project.tree.said
    assert (project.tree.root / "answer.c").read_text() == ANSWER, "the tree itself was changed"
    project.run("nothing_is_asked", mutant(WRONG)).bad("FR-001: SURVIVES nothing_is_asked",
                                                       "0 killed, 1 survived")
    project.run("nothing_is_right", mutant(WRONG)).bad("nothing_is_right fails on unit without any")
    broken = mutant(WRONG.replace("return 41", "return forty"))
    project.run("the_answer_is_forty_two", broken).bad("does not build")
    project.run("the_answer_is_forty_two", mutant(WRONG)).good()  # what came before is undone


@test
def mutants_must_fit_the_requirements_and_the_sources():
    project = Mutable()
    known = "the_answer_is_forty_two"
    project.run(known, "").bad("FR-001: has neither a mutant nor a reason")
    project.run(known, mutant(WRONG.replace("return 42", "42"))).bad("answer.c has 2 times: 42")
    project.run(known, mutant(WRONG.replace("return 42", "return 43"))).bad("answer.c has 0 times")
    project.run(known, mutant(WRONG.replace("answer.c", "b.c"))).bad("there is no file b.c")
    project.run(known, mutant(WRONG.replace("41", "42"))).bad("changes nothing")
    project.run(known, mutant('file = "answer.c"\n')).bad("needed are file, new, old, rows, what")
    project.run(known, mutant(WRONG, '["FR-001", "FR-002"]')).bad("FR-002: has a mutant, but is no")
    reason = '[[exempt]]\nrows = ["FR-001"]\nreason = "it is measured"\n'
    project.run(known, reason + mutant(WRONG)).bad("has a mutant and a reason")
    project.run(known, reason, "--list").good()
    assert "no mutant: it is measured" in project.tree.said
    project.run(known, mutant(WRONG), "--list").good()
    assert "FR-001: it is 42\n  answer.c: it is another\n" in project.tree.said
    project.run(known, mutant(WRONG), "--only", "FR-009").bad("FR-009: no requirement that is done")


def main():
    failed = 0
    print(f"TAP version 13\n1..{len(tests)}")
    for number, function in enumerate(tests, 1):
        try:
            function()
            print(f"ok {number} - {function.__name__}", flush=True)
        except (AssertionError, OSError, subprocess.SubprocessError) as error:
            failed += 1
            print(f"not ok {number} - {function.__name__}")
            print("".join(f"# {line}\n" for line in str(error).splitlines()), end="", flush=True)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
