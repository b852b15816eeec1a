#!/usr/bin/env python3
"""Who may include whom: the arrows between the folders below src/ point down only.

    layers.py [ROOT]

The program and the server are customers of the public header: what they cannot do through it, nobody
can. This keeps the back door shut. Prints file:line for every include that breaks the table.
"""

import pathlib
import re
import sys

# folder, with the folders below it that are not listed: what its files may include besides each other,
# libc and leasehold.h
LAYERS = {
    "base": [],
    "rules": ["base/"],
    "core": ["base/", "rules/", "store/open.h", "store/store.h"],
    "store": ["base/", "rules/"],
    "store/sqlite": ["base/", "rules/", "store/store.h", "store/death_watch.h", "store/open.h", "sql_names.h", "sql_sqlite.h", "<sqlite3.h>"],
    "store/postgres": ["base/", "rules/", "store/store.h", "store/death_watch.h", "store/open.h", "sql_names.h", "sql_postgres.h", "<libpq-fe.h>"],
    "store/postgres/acts": ["base/", "rules/", "store/store.h", "store/postgres/", "<libpq-fe.h>"],
    "store/postgres/reads": ["base/", "rules/", "store/store.h", "store/postgres/"],
    "worker": ["base/"],
    "heal": ["base/", "<sqlite3.h>", "<libpq-fe.h>"],
    "server": ["base/", "<jansson.h>", "<microhttpd.h>"],
    "cli": ["base/", "cli/input/", "cli/json/", "cli/output/"],
    "cli/commands": ["base/", "cli/", "cli/input/", "cli/json/", "cli/output/", "<jansson.h>"],
    "cli/input": ["base/", "cli/", "cli/json/", "<yaml.h>"],
    "cli/json": ["base/", "cli/", "cli/input/", "cli/output/"],
    "cli/output": ["base/", "cli/", "cli/input/", "cli/json/"],
    "cli/top": ["base/", "cli/", "cli/input/", "cli/json/", "cli/output/", "<curses.h>",
                "<jansson.h>"],
}
# Headers of other projects: whoever includes one depends on it. The rest in <> is libc's.
FOREIGN = {"<sqlite3.h>", "<libpq-fe.h>", "<jansson.h>", "<yaml.h>", "<microhttpd.h>", "<curses.h>",
           "<ncurses.h>"}
INCLUDE = re.compile(r'\s*#\s*include\s+(?:"([^"]+)"|(<[^>]+>))')


def resolve(source, path, quoted):
    """The included file as the table names it."""
    beside = path.parent / quoted
    if beside.exists() and source in beside.resolve().parents:
        return str(beside.resolve().relative_to(source))
    return quoted


def part(folder):
    """The listed folder that this folder is or lies in, or None."""
    while folder not in LAYERS and "/" in folder:
        folder = folder.rpartition("/")[0]
    return folder if folder in LAYERS else None


def main():
    source = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve() / "src"
    wrong = 0
    for path in sorted([*source.rglob("*.c"), *source.rglob("*.h")]):
        folder = part(str(path.parent.relative_to(source)))
        shown = path.relative_to(source.parent)
        if not folder:
            print(f"{shown}:1: folder {path.parent.relative_to(source)} has no place in tools/layers.py")
            wrong += 1
            continue
        allowed = LAYERS[folder]
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            found = INCLUDE.match(line)
            if not found:
                continue
            if found[1]:
                name = resolve(source, path, found[1])
                # store/sqlite/ is listed, so it is no part of store/.
                owner = part(name.rpartition("/")[0])
                fine = name == "leasehold.h" or name in allowed or (
                    owner is not None and (owner == folder or owner + "/" in allowed))
            else:
                name = found[2]
                fine = name not in FOREIGN or name in allowed
            if not fine:
                print(f"{shown}:{number}: {folder} may not include {name}")
                wrong += 1
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
