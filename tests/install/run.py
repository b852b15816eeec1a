#!/usr/bin/env python3
"""What is installed, seen by whoever uses it: symbols, sizes, header, pkg-config, man pages.

    run.py BUILD_FOLDER CC

Installs the build into a fresh directory and looks at what is there. Prints TAP.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

BUILD, CC = sys.argv[1], sys.argv[2]
MOST_BYTES = 5 << 18  # a third of it is the SQL of the PostgreSQL store
SOURCE = pathlib.Path(__file__).resolve().parents[2]
tests = []


class Skip(Exception):
    """This machine has no means to look."""


def test(function):
    tests.append(function)


def run(*command, **more):
    done = subprocess.run([str(word) for word in command], text=True, timeout=120,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more)
    assert done.returncode == 0, f"{command[0]}: {done.stdout}"
    return done.stdout


HELLO = r"""
#include <leasehold.h>
#include <stdio.h>
int main(void)
{
    lh_open_opts opts = lh_open_opts();
    lh_store *store = NULL;
    opts.create = true;
    if (lh_open("hello.db", &opts, &store) != LH_OK) {
        puts(lh_errmsg(store));
        return 1;
    }
    lh_new_job job = lh_new_job();
    lh_enqueued out;
    job.payload = "hello";
    job.payload_len = 5;
    int rc = lh_enqueue(store, "mail", &job, 1, NULL, &out);
    printf("job %d\n", (int)out.id);
    lh_close(store);
    return rc;
}
"""


def pkg_config(root, *words):
    env = dict(os.environ, PKG_CONFIG_PATH=str(next(root.rglob("pkgconfig"))))
    return run("pkg-config", *words, "leasehold", env=env).split()


def compile_and_run(root, language, text, compiler):
    folder = root / language
    folder.mkdir()
    source = folder / ("hello." + ("c" if language == "c" else "cc"))
    source.write_text(text, encoding="utf-8")
    run(compiler, "-Wall", "-Wextra", "-Werror", source, "-o", folder / "hello",
        *pkg_config(root, "--cflags", "--libs"))
    library = next(root.rglob("libleasehold.so")).parent
    said = run(folder / "hello", cwd=folder, env=dict(os.environ, LD_LIBRARY_PATH=str(library)))
    assert said == "job 1\n", said


@test
def the_library_exports_nothing_but_the_interface(root):
    listing = run("nm", "-D", "--defined-only", next(root.rglob("libleasehold.so")))
    names = [line.split()[-1] for line in listing.splitlines()]
    header = next(root.rglob("leasehold.h")).read_text(encoding="utf-8")
    assert names, "no symbols at all"
    foreign = [name for name in names if not name.startswith("lh_")]
    assert not foreign, f"exported, but not of the interface: {foreign}"
    missing = [name for name in names if name + "(" not in header]
    assert not missing, f"exported, but not in the header: {missing}"


@test
def every_function_of_the_header_is_there(root):
    header = next(root.rglob("leasehold.h")).read_text(encoding="utf-8")
    listing = run("nm", "-D", "--defined-only", next(root.rglob("libleasehold.so")))
    names = {line.split()[-1] for line in listing.splitlines()}
    declared = {part.split("(")[0].split()[-1].lstrip("*")
                for part in header.split("\nLH_API ")[1:]}
    assert declared - names == set(), f"declared, but not there: {declared - names}"


@test
def the_library_has_a_soname_and_is_small(root):
    library = next(root.rglob("libleasehold.so"))
    dynamic = run("readelf", "-d", library)
    assert "Library soname: [libleasehold.so.0]" in dynamic, dynamic
    needed = [line.split("[")[1].rstrip("]") for line in dynamic.splitlines() if "NEEDED" in line]
    strange = [name for name in needed if not name.startswith(("libc.", "libsqlite3.", "libpq.", "ld-"))]
    assert not strange, f"needs more than libc, SQLite and libpq: {strange}"
    stripped = root / "stripped.so"
    run("strip", "-o", stripped, library)
    assert stripped.stat().st_size < MOST_BYTES, f"{stripped.stat().st_size} bytes"


@test
def the_library_is_hardened(root):
    library = next(root.rglob("libleasehold.so"))
    assert "BIND_NOW" in run("readelf", "-d", library), "not bound at start"
    headers = run("readelf", "-lW", library)
    assert "GNU_RELRO" in headers
    stack = [line for line in headers.splitlines() if "GNU_STACK" in line]
    assert stack and "RWE" not in stack[0], stack


@test
def a_c_program_builds_with_pkg_config_alone(root):
    text = HELLO.replace("lh_open_opts()", "{0}").replace("lh_new_job()", "{0}")
    compile_and_run(root, "c", text, CC)


@test
def a_cxx_program_builds_with_the_same_header(root):
    compile_and_run(root, "cxx", HELLO, "g++")


FLAGS = r"""
#include <leasehold.h>
#include <signal.h>
static lh_flag stop;
static volatile sig_atomic_t caught;
static void on_signal(int sig) { lh_flag_raise(&stop); caught = sig; }
int main(void)
{
    lh_maintain_opts first = lh_maintain_opts(), second = lh_maintain_opts();
    first.cancel = &stop;
    second.cancel = &caught;
    signal(SIGUSR1, on_signal);
    raise(SIGUSR1);
    return lh_flag_raised(first.cancel) == 1 && lh_flag_raised(second.cancel) != 0 ? 0 : 1;
}
"""


@test
def flags_of_signal_handlers_need_no_cast_in_c_and_in_cxx(root):
    for suffix, compiler, text in (("c", CC, FLAGS.replace("lh_maintain_opts()", "{0}")), ("cc", "g++", FLAGS)):
        source, program = root / f"flags.{suffix}", root / f"flags-{suffix}"
        source.write_text(text, encoding="utf-8")
        run(compiler, "-Wall", "-Wextra", "-Wpedantic", "-Wcast-qual", "-Werror", source, "-o", program,
            *pkg_config(root, "--cflags", "--libs"))
        run(program, env=dict(os.environ, LD_LIBRARY_PATH=str(next(root.rglob("libleasehold.so")).parent)))


def sizes(root, header, name):
    """The size of every struct of the interface, as a program sees it that is built with this header."""
    folder = root / name
    folder.mkdir()
    (folder / "leasehold.h").write_text(header, encoding="utf-8")
    structs = re.findall(r"^} (lh_\w+);$", header, re.M)
    lines = "".join(f'printf("{one} %zu\\n", sizeof({one}));' for one in structs)
    (folder / "sizes.c").write_text(
        f"#include <leasehold.h>\n#include <stdio.h>\nint main(void) {{ {lines} }}\n", encoding="utf-8")
    run(CC, "-I", folder, folder / "sizes.c", "-o", folder / "sizes")
    return run(folder / "sizes")


@test
def programs_built_before_an_option_was_added_hand_over_the_same_structs(root):
    header = next(root.rglob("include/leasehold.h")).read_text(encoding="utf-8")
    later, n = re.subn(r"uint64_t reserved\[(\d+)\];",
                       lambda m: f"int64_t added; uint64_t reserved[{int(m[1]) - 1}];", header)
    assert n >= 25, f"{n} structs have room for later fields"
    options = re.findall(r"typedef struct (lh_\w*(?:opts|filter)) \{(.*?)^\}", header, re.M | re.S)
    tight = [name for name, body in options if "reserved[" not in body]
    assert options and not tight, f"no room for later fields: {tight}"
    assert sizes(root, header, "now") == sizes(root, later, "later")


# Fields that took the place of reserved words: as they stand now, and what stood there before.
ADDED = ((r"    void \(\*claimed\)\(.*?void \*claimed_arg;\n    uint64_t reserved\[6\];", "    uint64_t reserved[8];"),)
OLD_PROGRAM = r"""
#include <leasehold.h>
#include <stdio.h>
#define NEED(call, wanted) do { int rc = (call); if (rc != (wanted)) { \
    printf("%s: %d, %s\n", #call, rc, lh_errmsg(store)); return 1; } } while (0)
int main(void)
{
    lh_store *store = NULL;
    lh_jobs *first = NULL, *second = NULL, *none = NULL;
    lh_enqueued made[2];
    lh_new_job jobs[2] = {{.payload = "a", .payload_len = 1}, {.payload = "b", .payload_len = 1}};
    const char *queue = "q";
    lh_claim_opts claim = {.queues = &queue, .n_queues = 1, .worker = "w"};
    NEED(lh_open("old.db", &(lh_open_opts){.create = true}, &store), LH_OK);
    NEED(lh_enqueue(store, queue, jobs, 2, NULL, made), LH_OK);
    NEED(lh_claim(store, &claim, &first), LH_OK);
    lh_done done = {.job = first->job[0].id, .token = first->job[0].token};
    NEED(lh_complete_claim(store, &done, 1, NULL, &claim, &second), LH_OK);
    done = (lh_done){.job = second->job[0].id, .token = second->job[0].token};
    NEED(lh_complete_claim(store, &done, 1, NULL, &claim, &none), LH_EMPTY);
    lh_jobs_free(first);
    lh_jobs_free(second);
    lh_close(store);
    printf("done\n");
    return 0;
}
"""


def run_with(root, header, source, name):
    """What a program prints that was built with this header and meets the installed library."""
    folder = root / name
    folder.mkdir()
    (folder / "leasehold.h").write_text(header, encoding="utf-8")
    (folder / "program.c").write_text(source, encoding="utf-8")
    library = next(root.rglob("libleasehold.so")).parent
    run(CC, "-Wall", "-Werror", "-I", folder, folder / "program.c", "-L", library, "-lleasehold",
        "-o", folder / "program")
    return run(folder / "program", cwd=folder, env=dict(os.environ, LD_LIBRARY_PATH=str(library)))


@test
def a_program_built_before_fields_were_added_runs_with_this_library(root):
    before = next(root.rglob("include/leasehold.h")).read_text(encoding="utf-8")
    for now, then in ADDED:
        before, n = re.subn(now, then, before, flags=re.S)
        assert n == 1, f"{n} places look like {now}"
    assert "claimed_arg" not in before
    assert run_with(root, before, OLD_PROGRAM, "before") == "done\n"


@test
def a_program_that_sets_a_field_of_a_later_version_is_refused_by_this_library(root):
    header = next(root.rglob("include/leasehold.h")).read_text(encoding="utf-8")
    later, n = re.subn(r"uint64_t reserved\[6\];\n} lh_claim_opts",
                       "int64_t later; uint64_t reserved[5];\n} lh_claim_opts", header)
    assert n == 1
    asks = OLD_PROGRAM.replace('.worker = "w"}', '.worker = "w", .later = 1}')
    asks = asks.replace("lh_claim(store, &claim, &first), LH_OK);",
                        'lh_claim(store, &claim, &first), LH_EMISUSE); printf("refused\\n"); return 0;')
    assert run_with(root, later, asks, "asks") == "refused\n"


@test
def make_installs_stripped_and_removes_what_it_installed(root):
    place, tools = root / "made", root / "tools"
    for folder in (place, tools):
        folder.mkdir()
    marker = root / "ldconfig-ran"
    (tools / "ldconfig").write_text(f"#!/bin/sh\ntouch {marker}\n", encoding="utf-8")
    (tools / "ldconfig").chmod(0o755)
    options = json.loads((pathlib.Path(BUILD) / "meson-info" / "intro-buildoptions.json").read_text(encoding="utf-8"))
    prefix = next(option["value"] for option in options if option["name"] == "prefix")
    make = ["make", "-C", SOURCE, f"BUILD={pathlib.Path(BUILD).resolve()}", f"PREFIX={prefix}", f"DESTDIR={place}"]
    env = dict(os.environ, PATH=f"{tools}:{os.environ['PATH']}")
    env.pop("MAKEFLAGS", None)
    run(*make, "install", env=env)
    for name in ("libleasehold.so.0", "leasehold", "leasehold-guardian"):
        sections = run("readelf", "-SW", next(place.rglob(name)))
        assert ".debug_info" not in sections and ".symtab" not in sections, f"{name} is not stripped"
    kept = next(place.rglob("include/leasehold.h")).parent / "of-the-user.h"
    kept.touch()
    run(*make, "uninstall", env=env)
    left = [path for path in place.rglob("*") if not path.is_dir()]
    assert left == [kept], f"left behind: {left}"
    assert not marker.exists(), "the linker's cache of this machine is not that of DESTDIR"


@test
def the_static_library_is_there(root):
    assert list(root.rglob("libleasehold.a")), "no libleasehold.a"


@test
def every_command_has_its_man_page_and_it_is_clean(root):
    program = next(root.rglob("bin/leasehold"))
    pages = {page.name for page in root.rglob("*.1")}
    usage = run(program, "--help")
    commands = [line.split()[0] for line in usage.splitlines()
                if line.startswith("  ") and not line.startswith("   ") and line.split()[0].isalpha()]
    assert "enqueue" in commands, usage
    for command in commands:
        assert f"leasehold-{command}.1" in pages, f"no man page of {command}"
    for page in root.rglob("*.1"):
        run("mandoc", "-Tlint", "-W", "error", page)


@test
def the_shells_can_read_their_completions(root):
    run("bash", "-n", next(root.rglob("bash-completion/completions/*")))
    assert list(root.rglob("_leasehold")), "no completion for zsh"
    assert list(root.rglob("leasehold.fish")), "no completion for fish"


@test
def systemd_finds_no_fault_in_the_service_of_a_worker(root):
    unit = next(root.rglob("leasehold-work@.service"))
    assert unit.parent.parts[-3:] == ("lib", "systemd", "system"), unit
    program = next(root.rglob("bin/leasehold"))
    text = unit.read_text(encoding="utf-8")
    started = text.split("\nExecStart=")[1].split()[0]
    assert pathlib.Path(str(root) + started) == program, f"{started} is not where it is installed"
    assert next(root.rglob("sysusers.d/leasehold.conf")), "nobody makes its user"
    if shutil.which("systemd-analyze") is None:
        raise Skip("no systemd-analyze")
    # It looks whether the program is there; a queue's name may have all of this in it.
    tried = root / "leasehold-work@mail.v2@b-1_x.service"
    tried.write_text(text.replace(started, str(program)), encoding="utf-8")
    said = run("systemd-analyze", "verify", "--man=no", tried)
    assert said == "", said


def main():
    failed = 0
    with tempfile.TemporaryDirectory() as place:
        root = pathlib.Path(place)
        run("meson", "install", "-C", BUILD, "--no-rebuild", "--quiet",
            env=dict(os.environ, DESTDIR=place))
        # The .pc names the prefix; point it at where things really are.
        for pc in root.rglob("leasehold.pc"):
            text = pc.read_text(encoding="utf-8")
            pc.write_text(text.replace("prefix=/", f"prefix={place}/", 1), encoding="utf-8")
        print(f"TAP version 13\n1..{len(tests)}", flush=True)
        for number, function in enumerate(tests, 1):
            try:
                function(root)
                print(f"ok {number} - {function.__name__}", flush=True)
            except Skip as reason:
                print(f"ok {number} - {function.__name__} # SKIP {reason}", flush=True)
            except Exception as reason:  # whatever it is, it is a failure of this test alone
                failed += 1
                said = str(reason).replace("\n", "\n#   ")
                print(f"not ok {number} - {function.__name__}\n#   {said}", flush=True)
    return 1 if failed else 0


sys.exit(main())
