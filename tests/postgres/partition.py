#!/usr/bin/env python3
"""A worker that is cut off from the server has stopped its child before another one starts.

    tests/postgres/partition.py --program leasehold [--list] [NAME | GLOB]...

Three machines, as network namespaces: the server, worker A, worker B. Children hold a lock while they
run, and log their start and repeatedly that they are alive, by CLOCK_BOOTTIME; they
ignore SIGTERM. Nothing listens outside of the namespaces, which end with the tests. Needs root.
"""

import argparse
import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile

import server
from tap import Skip, expect, expect_equal, main, test, wait_for

PATIENCE_S = 60  # seconds; a busy machine may need them
DATABASE = "queue"
LOST = 4  # exit code
CHILD = r"""
import fcntl, os, signal, sys, time
folder, token = sys.argv[1], os.environ["LEASEHOLD_TOKEN"]
log = os.open(f"{folder}/lines", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
def tell(what):
    now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    os.write(log, f"{what} {os.environ['LEASEHOLD_JOB_ID']} {token} {now}\n".encode())
signal.signal(signal.SIGTERM, signal.SIG_IGN)
lock = os.open(f"{folder}/lock", os.O_RDWR | os.O_CREAT, 0o600)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    tell("overlap")
tell("start")
while not os.path.exists(f"{folder}/go-{token}") and not os.path.exists(f"{folder}/go"):
    tell("alive")
    time.sleep(0.01)
tell("end")
"""


# ---------------------------------------------------------------- machines

class Machine:
    """A network namespace; it exists as long as a process runs in it."""

    def __init__(self):
        self.holder = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                       preexec_fn=server.dies_with_us())
        self.holder.stdin.write(b"\n")
        self.holder.stdin.flush()
        if self.holder.stdout.readline() != b"\n":
            raise Skip("network namespaces cannot be made here: "
                       + self.holder.stderr.read().decode(errors="replace").strip())
        self.run("ip", "link", "set", "lo", "up")

    def inside(self, *command):
        return ["nsenter", "--target", str(self.holder.pid), "--net", *map(str, command)]

    def run(self, *command):
        done = subprocess.run(self.inside(*command), capture_output=True, text=True, check=False)
        expect_equal(done.returncode, 0, f"{' '.join(command)}: {done.stderr.strip()}: exit code")

    def cable(self, name, address, other, of_other):
        """A virtual network cable to another machine."""
        self.run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns",
                 str(other.holder.pid))
        self.run("ip", "address", "add", f"{address}/30", "dev", name)
        self.run("ip", "link", "set", name, "up")
        other.run("ip", "address", "add", f"{of_other}/30", "dev", "eth0")
        other.run("ip", "link", "set", "eth0", "up")

    def close(self):
        self.holder.kill()
        self.holder.wait()


class Site:
    """The three machines. The server has a cable to each worker."""

    def __init__(self):
        self.machines = []
        try:
            for _ in range(3):
                self.machines.append(Machine())
            self.db, self.a, self.b = self.machines
            self.db.cable("to-a", "10.231.1.1", self.a, "10.231.1.2")
            self.db.cable("to-b", "10.231.2.1", self.b, "10.231.2.2")
        except BaseException:
            self.close()
            raise

    def close(self):
        for machine in self.machines:
            machine.close()


class ServerAt(server.Server):
    """PostgreSQL on one of the machines. The test reaches it by its Unix socket."""

    def __init__(self, folder, machine):
        super().__init__(folder, "pg", {"listen_addresses": "10.231.1.1,10.231.2.1"})
        self.machine = machine

    def create(self):
        super().create()
        with open(self.data / "pg_hba.conf", "a", encoding="ascii") as rules:
            rules.write("host all all 10.231.0.0/16 md5\n")

    def launch(self, command):
        # Root enters the namespace and then drops its privileges.
        who = server.unprivileged()
        with open(self.log, "ab") as log:
            return subprocess.Popen(
                self.machine.inside("setpriv", "--reuid", who.pw_uid, "--regid", who.pw_gid,
                                    "--clear-groups", "--pdeathsig", "QUIT", "--", *command),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)


# ---------------------------------------------------------------- a scene

class Scene:
    def __init__(self, program, site, postgres, folder):
        self.program, self.site, self.postgres, self.folder = program, site, postgres, folder
        self.child = folder / "child.py"
        self.child.write_text(CHILD, encoding="utf-8")
        self.workers, self.logs = {}, {}

    def url(self, machine):
        host = {self.site.a: "10.231.1.1", self.site.b: "10.231.2.1"}[machine]
        return self.postgres.url(DATABASE, host)

    def leasehold(self, machine, *words):
        done = subprocess.run(machine.inside(self.program, "--store", self.url(machine), *words),
                              capture_output=True, text=True, timeout=PATIENCE_S, check=False,
                              stdin=subprocess.DEVNULL)
        return done.returncode, done.stdout.strip() + done.stderr.strip()

    def enqueue(self):
        return int(self.postgres.psql(DATABASE, "SELECT id FROM leasehold.enqueue('q', 'x')",
                                      server.TESTER))

    def start(self, label, machine):
        self.logs[label] = self.folder / f"{label}.log"
        with open(self.logs[label], "ab") as log:
            self.workers[label] = subprocess.Popen(
                machine.inside(self.program, "--store", self.url(machine), "work", "q", "-j", "1",
                               "--lease", "4s", "--heartbeat", "1s", "--kill-after", "100ms",
                               "--worker", label, "--log", "info", "--",
                               sys.executable, self.child, self.folder),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder,
                preexec_fn=server.dies_with_us())

    def close(self):
        (self.folder / "go").touch()
        for worker in self.workers.values():
            worker.kill()
            worker.wait()

    # ---- what was seen

    def lines(self, what):
        """(job, token, time) of all lines with this text."""
        path = self.folder / "lines"
        text = path.read_text(encoding="ascii") if path.exists() else ""
        told = [line.split() for line in text.splitlines()]
        return [tuple(map(int, line[1:])) for line in told if len(line) == 4 and line[0] == what]

    def holder_of(self, job):
        """The label of the worker that holds the job, and the token."""
        said = self.postgres.psql(DATABASE, "SELECT worker, token FROM leasehold.job WHERE "
                                            f"id = {job} AND state = 'running'").strip()
        if not said:
            return None
        worker, token = said.split("|")
        return worker.split("-")[0], int(token)

    def runs_at(self, job, label):
        """Wait until the child of this worker is alive; returns its token."""
        held = self.holder_of(job)
        if held is None or held[0] != label:
            return 0
        return held[1] if any(line[1] == held[1] for line in self.lines("alive")) else 0

    def state(self, job):
        return self.postgres.psql(DATABASE, f"SELECT state FROM leasehold.job WHERE id = {job}").strip()


@contextlib.contextmanager
def stage(options):
    """The machines; if they cannot be set up, every test is skipped with the reason."""
    if os.geteuid() != 0:
        yield lambda: skip("network namespaces need root")
        return
    try:
        site = Site()
    except (Skip, OSError) as reason:
        why = str(reason)
        yield lambda: skip(why)
        return
    try:
        with server.Folder() as folder, ServerAt(folder, site.db) as postgres:
            prepare(options.program, postgres)
            yield lambda: scene(options.program, site, postgres)
    finally:
        site.close()


def skip(reason):
    raise Skip(reason)


def prepare(program, postgres):
    postgres.psql("postgres", f"CREATE DATABASE {DATABASE} OWNER {server.TESTER}")
    done = subprocess.run([program, "migrate", "--store", postgres.url(DATABASE)], text=True,
                          check=False, capture_output=True)
    if done.returncode != 0:
        raise server.Failed(f"leasehold migrate: {done.stderr.strip()}")


@contextlib.contextmanager
def scene(program, site, postgres):
    with tempfile.TemporaryDirectory(prefix="partition-") as name:
        given = Scene(pathlib.Path(program).resolve(), site, postgres, pathlib.Path(name))
        try:
            yield given
        except BaseException:
            for label, log in given.logs.items():
                print("\n".join(f"# {label}: {line}" for line in server.tail(log).splitlines()))
            raise
        finally:
            given.close()


# ---------------------------------------------------------------- the tests

def cut_off(given, cut, mend):
    job = given.enqueue()
    given.start("A", given.site.a)
    token = wait_for(lambda: given.runs_at(job, "A"), "the child of A runs", PATIENCE_S)
    cut()
    given.start("B", given.site.b)
    following = wait_for(lambda: given.runs_at(job, "B"), "the job runs at B", PATIENCE_S)
    expect(following > token, f"token {following} after {token}")
    expect_equal(given.lines("overlap"), [], "children that found another alive")
    ended = max(line[2] for line in given.lines("alive") if line[1] == token)
    began = min(line[2] for line in given.lines("start") if line[1] == following)
    expect(ended < began, f"the child of A lived for {(ended - began) / 1e6:.1f} ms beside the other")
    expect_equal(given.lines("end"), [], "children that came to their end")

    mend()
    # Too late, with the old token: another worker has the job.
    code, said = wait_for(lambda: reached(given, job, token), "A reaches the server", PATIENCE_S)
    expect_equal(code, LOST, f"the late complete: {said}: exit code")
    expect_equal(given.holder_of(job), ("B", following), "who has the job")
    (given.folder / f"go-{following}").touch()
    wait_for(lambda: given.state(job) == "completed", "B has completed it", PATIENCE_S)
    given.workers["B"].kill()
    given.workers["B"].wait()

    expect(given.workers["A"].poll() is None, "worker A has ended")
    (given.folder / "go").touch()
    another = given.enqueue()
    wait_for(lambda: given.state(another) == "completed", "A goes on working", PATIENCE_S)
    print(f"# the child of A was last alive {(began - ended) / 1e6:.0f} ms before the other began")


def reached(given, job, token):
    code, said = given.leasehold(given.site.a, "complete", str(job), "--token", str(token))
    return (code, said) if code != 5 else None


@test
def a_worker_whose_cable_is_cut_has_stopped_its_child_before_the_job_starts_elsewhere(stage_of):
    with stage_of() as given:
        db = given.site.db
        cut_off(given, lambda: db.run("ip", "link", "set", "to-a", "down"),
                lambda: db.run("ip", "link", "set", "to-a", "up"))


@test
def a_worker_that_is_heard_and_not_answered_has_stopped_its_child_before_the_job_starts_elsewhere(
        stage_of):
    """Its heartbeats arrive and renew the lease, but the answers do not come back."""
    with stage_of() as given:
        db = given.site.db
        route = ("blackhole", "10.231.1.2/32")
        cut_off(given, lambda: db.run("ip", "route", "add", *route),
                lambda: db.run("ip", "route", "del", *route))


def options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", required=True)
    return parser


if __name__ == "__main__":
    sys.exit(main(options(), stage))
