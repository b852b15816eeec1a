#!/usr/bin/env python3
"""Run a test program on PostgreSQL: every test gets a fresh database.

    tests/postgres/run.py [--pgbouncer] [--migrate PROGRAM] TEST-PROGRAM [ARGUMENT]...

The server runs in a temporary folder (server.py) and ends with this process. The harness of the test
program asks for a store over the Unix socket that $TEST_STORES names: it gets a line with a URL, and
the database lives until that connection is closed, which is when the last process of the test has
ended. With --migrate, `PROGRAM migrate` creates the schema, else sql/postgres/migrations does.
Exits with the code of the test program; or with 1 if the server took a statement of ours for so
expensive that it compiled it (WATCHED).
"""

import argparse
import os
import queue
import signal
import socket
import subprocess
import sys
import threading

import server

AHEAD = 4  # databases: for two tests at a time, while others are reset
PATIENCE_S = 1
# JIT compilation takes a fifth of a second each time. A query that expensive has a plan that it
# should not have: the planner had no path but one that is turned off.
WATCHED = {"jit": "on", "shared_preload_libraries": "pg_stat_statements",
           "pg_stat_statements.track": "all", "pg_stat_statements.max": "20000"}
COMPILED = f"""
SELECT calls, jit_functions, left(query, 200) FROM pg_stat_statements
 WHERE jit_functions > 0 AND userid <> '{server.ADMIN}'::regrole ORDER BY calls DESC"""


class Session:
    """One psql that runs one statement at a time as the server's administrator. It ends with this process,
    by the end of its input."""

    END = "-- done --"

    def __init__(self, of, database):
        self.process = subprocess.Popen(
            ["psql", "-X", "-q", "-At", "-d", database], env=of.environment(), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def run(self, statement):
        """Run a statement; returns the output."""
        said = []
        try:
            self.process.stdin.write(f"{statement};\n\\echo '{self.END}'\n")
            self.process.stdin.flush()
            for line in self.process.stdout:
                if line.rstrip("\n") == self.END:
                    return "".join(said).strip()
                said.append(line)
        except (BrokenPipeError, ValueError):
            pass
        return "psql has ended: " + "".join(said).strip()

    def close(self):
        self.process.kill()
        self.process.wait()


class Stores:
    """Provides fresh databases: used ones after a reset, if that is possible;
    otherwise copies of the template."""

    def __init__(self, of, pooler):
        self.server, self.url = of, (pooler or of).url
        # Idle connections of a pooler may stay: their backends are warm.
        self.others = "pid <> pg_backend_pid()" + (" AND state <> 'idle'" if pooler else "")
        self.ready, self.made = queue.Queue(), 0
        self.sessions = {}  # of each used database, to reset it
        self.path = of.folder / "stores"
        self.admin, self.lock = Session(of, "postgres"), threading.Lock()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.path))
        self.path.chmod(0o777)
        self.listener.listen(64)
        for _ in range(AHEAD):
            self.make()
        threading.Thread(target=self.accept, daemon=True).start()

    def make(self):
        with self.lock:
            self.made += 1
            name = f"test_{self.made}"
            complaint = self.admin.run(self.server.copy_of_template(name))
        self.ready.put((name, complaint))

    def drop(self, name):
        self.sessions.pop(name).close()
        with self.lock:
            self.admin.run(f"DROP DATABASE {name} WITH (FORCE)")

    def take(self):
        try:
            return self.ready.get(timeout=PATIENCE_S)
        except queue.Empty:  # a test may use many
            self.make()
            return self.ready.get()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        name, complaint = self.take()
        with client:
            try:
                # An answer that is not a URL is the reason why there is none.
                client.sendall((complaint.splitlines()[0] if complaint else self.url(name)).encode()
                               + b"\n")
                client.recv(1)
            except OSError:
                pass  # the test has ended
        if self.reset(name):
            self.ready.put((name, ""))
        else:
            self.drop(name)

    def reset(self, name):
        if name not in self.sessions:
            self.sessions[name] = Session(self.server, name)
        session = self.sessions[name]
        session.run(f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                    f" WHERE datname = '{name}' AND {self.others}")
        fresh = session.run("SELECT leasehold_test.reset() FROM pg_stat_force_next_flush()")
        session.run("SELECT pg_stat_reset()")  # as if nothing was ever deleted
        return fresh == "t"

    def close(self):
        for session in (self.admin, *self.sessions.values()):
            session.close()


def run(options, on):
    with server.Server(on, settings=WATCHED) as postgres:
        postgres.psql("postgres", "CREATE EXTENSION pg_stat_statements")
        if postgres.psql("postgres", "SELECT pg_jit_available()").strip() != "t":
            raise server.Failed("this PostgreSQL cannot compile: nobody would see that a statement is")
        postgres.make_template([options.migrate, "migrate"] if options.migrate else None)
        if not options.pgbouncer:
            return run_program(options, postgres, None)
        with server.Pooler(on, postgres) as pooler:
            return run_program(options, postgres, pooler)


def run_program(options, postgres, pooler):
    stores = Stores(postgres, pooler)
    program = subprocess.Popen([options.program, *options.arguments],
                               env={**os.environ, "TEST_STORES": str(stores.path)},
                               preexec_fn=server.dies_with_us(signal.SIGTERM))
    for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(sig, lambda number, _: program.send_signal(number))
    try:
        code = program.wait()
        compiled = postgres.psql("postgres", COMPILED).strip()
        if compiled:
            print(f"# compiled by the server (calls|functions|statement):\n{compiled}", file=sys.stderr)
    finally:
        stores.close()
    return (code or bool(compiled)) if code >= 0 else 128 - code


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pgbouncer", action="store_true", help="through PgBouncer")
    parser.add_argument("--migrate", metavar="PROGRAM", help="leasehold, to make the schema")
    parser.add_argument("program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    try:
        with server.Folder() as folder:
            return run(options, folder)
    except server.Failed as error:
        print(f"Bail out! {' '.join(str(error).split())}", flush=True)
        return 2


if __name__ == "__main__":
    # A signal before the program runs raises an exception, so that everything is cleaned up.
    for early in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(early, lambda number, _: sys.exit(128 + number))
    sys.exit(main())
