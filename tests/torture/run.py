#!/usr/bin/env python3
"""Torture: kills and suspends the workers of one store at random moments, and records a history.

    tests/torture/run.py --build BUILD [--by client|work] [--postgres] [--seconds N] [--kills N] …

Workers are either `leasehold work` with a command (child.c) that takes a lock while it runs and
writes down when it starts and ends, or processes on the public header (client.c) that write down
every call. With --postgres the store is on a server of our own, which is killed and restarted, too.
When the time is over, or so many were killed, the faults end; the rest of the work is
waited for; and history.py says whether what was seen can have happened. Exits with 0 if so, with 1
if not; the folder then stays.
"""

import argparse
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

import history

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "postgres"))
import server  # noqa: E402

UNREACHABLE, STARTING_S = 5, 2  # the exit code of `work`, and how long it may take to get there
LIMIT_MS = 60_000  # for what is left when the faults end; a busy machine included
CLIENT_THREADS, CLIENT_SLOTS = 4, 32  # as in client.c
SCAN_MS = 1_000    # how long anybody waits at most before he looks for ended leases
# What `work` is told, and what the checker then may count on.
WORK = {"lease_ms": 1_500, "interval_ms": 300, "multiplier": 3}

LOST = re.compile(r"job (\d+) lost after ")  # as `work` logs it
NAMES = {"client": "no_job_is_lost_or_taken_early_while_clients_are_killed",
         "work": "no_job_is_lost_or_run_twice_while_workers_are_killed"}
ON_SERVER = "_and_their_server"


class Failed(Exception):
    pass


class Crew:
    """What both kinds of workers have in common: a slot each, a name for each start."""

    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.log = os.open(folder / "history.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.said = open(folder / "said.log", "ab")
        self.dice = random.Random(options.seed)
        self.process, self.name, self.starts = {}, {}, {}
        self.stopped = {}  # slot → when it goes on
        self.orphaned = {}  # slot → when a guardian of it was killed
        self.enqueued, self.feeder = 0, None
        self.begun, self.server_killed = {}, 0.0  # when; the first by slot
        self.kills = 0

    def tell(self, act, **more):
        line = "\n" + json.dumps({"act": act, **more})
        os.write(self.log, line.encode())

    def run(self, *command):
        """A program to its end; what it printed."""
        done = subprocess.run(list(map(str, command)), cwd=self.folder, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=120)
        if done.returncode != 0:
            raise Failed(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
        return done.stdout

    def leasehold(self, *words):
        return self.run(self.options.program, "--store", self.options.store, *words)

    def start(self, slot):
        self.starts[slot] = self.starts.get(slot, -1) + 1
        self.name[slot] = f"w{slot}-{self.starts[slot]}"
        self.begun[slot] = time.monotonic()
        self.process[slot] = subprocess.Popen(
            self.command(slot), cwd=self.folder, stdin=subprocess.DEVNULL, stdout=self.said,
            stderr=self.said, env=self.environment(slot), start_new_session=True)

    def environment(self, _slot):
        return dict(os.environ)

    def kill(self, slot):
        called = time.monotonic_ns()
        self.process[slot].kill()
        self.bury(slot, called)

    def bury(self, slot, called):
        """It was killed, or follows one that was."""
        self.process[slot].wait(timeout=30)
        self.tell("kill", process=self.name[slot], call_ns=called, return_ns=time.monotonic_ns())
        self.kills += 1
        self.stopped.pop(slot, None)
        self.start(slot)

    def stop(self, slot):
        """Stop it, for longer or shorter than its lease."""
        if slot in self.stopped:
            return
        self.tell("stop", process=self.name[slot], ns=time.monotonic_ns())
        os.kill(self.process[slot].pid, signal.SIGSTOP)
        self.stopped[slot] = time.monotonic() + self.dice.uniform(0.02, self.longest_stop)

    def go_on(self, now):
        for slot, until in list(self.stopped.items()):
            if until <= now:
                del self.stopped[slot]
                os.kill(self.process[slot].pid, signal.SIGCONT)
                self.tell("continue", process=self.name[slot], ns=time.monotonic_ns())

    def look(self):
        """Whoever ended by himself has failed; and nobody stays stopped."""
        self.go_on(time.monotonic())
        for slot, process in list(self.process.items()):
            if process.poll() is not None:
                self.ended(slot, process.returncode)

    def feed(self):
        """More jobs, where workers do not enqueue."""

    def ended(self, slot, code):
        raise Failed(f"{self.name[slot]} ended by itself with {code}")

    def live_jobs(self):
        queues = json.loads(self.leasehold("status", "--json"))["queues"]
        return sum(queue[state] for queue in queues for state in history.LIVE)

    def close(self):
        for slot, process in self.process.items():
            if process.poll() is None:
                process.kill()
                process.wait()
        self.said.close()


class Clients(Crew):
    """Workers that live on the public header."""
    longest_stop = 0.7

    def prepare(self):
        self.run(self.options.client, self.folder, "prepare")

    def command(self, slot):
        seed = self.dice.getrandbits(32)
        return [str(self.options.client), str(self.folder), "work", self.name[slot], str(slot),
                str(seed), str(self.quota())]

    def quota(self):
        """Jobs that each thread enqueues."""
        return self.options.jobs // (CLIENT_THREADS * self.options.workers)

    def environment(self, slot):
        if not self.options.skew_ms or slot != 0:
            return dict(os.environ)
        # For a proof of the checker: a worker that judges by a clock of its own. The place of the
        # clocks is struct lhi_control of src/base/hook.h.
        path = self.folder / "skewed"
        path.write_bytes(struct.pack("=qq", self.options.skew_ms, self.options.skew_ms).ljust(4096,
                                                                                            b"\0"))
        return dict(os.environ, LHI_TEST_CONTROL=str(path))

    def flag(self, number, value=1):
        with open(self.folder / "control", "r+b") as control:
            control.seek(4 * number)
            control.write(struct.pack("=i", value))

    def quieten(self):
        self.flag(0)

    def finish(self):
        self.flag(1)
        for slot, process in self.process.items():
            if process.wait(timeout=30) != 0:
                raise Failed(f"{self.name[slot]} ended with {process.returncode}")

    def left(self):
        counts = struct.unpack_from(f"={CLIENT_THREADS * CLIENT_SLOTS}q",
                                    (self.folder / "control").read_bytes(), 8)
        wanted = self.quota() * CLIENT_THREADS * self.options.workers
        return sum(counts) < wanted or self.live_jobs() > 0


class Work(Crew):
    """Workers that are `leasehold work`, with children."""
    longest_stop = 2.5

    def prepare(self):
        (self.folder / "locks").mkdir()
        self.run(self.options.client, self.folder, "prepare")
        self.feed()
        # What holds for all of them: the lines of history.py's settings.
        self.tell("register", process="", op=0, result="ok", call_ns=0, return_ns=0, **WORK)

    def command(self, slot):
        return [str(self.options.program), "--store", self.options.store, "work", "q", "-j", "2",
                "--lease", f"{WORK['lease_ms']}ms", "--heartbeat", f"{WORK['interval_ms']}ms",
                "--worker", self.name[slot], "--", str(self.options.child), str(self.folder)]

    def kill(self, slot):
        """The worker, or what stands between it and a job."""
        guardians = children_of(self.process[slot].pid)
        # One of the two is always there to end the run: with the guardian killed and the worker
        # stopped nobody is, and nothing but the token fences (docs/guides/workers.md).
        if not guardians or slot in self.stopped or self.dice.random() < 0.8:
            super().kill(slot)
            return
        self.orphaned[slot] = time.monotonic_ns()
        try:
            os.kill(self.dice.choice(guardians), signal.SIGKILL)
        except ProcessLookupError:
            return
        self.tell("kill_guardian", process=self.name[slot], call_ns=self.orphaned[slot])
        self.kills += 1

    def stop(self, slot):
        if time.monotonic_ns() - self.orphaned.get(slot, 0) > 500_000_000:
            super().stop(slot)

    def ended(self, slot, code):
        """A worker may go when its guardian has gone, or when it finds no server at its start."""
        if code == UNREACHABLE and self.begun[slot] > self.server_killed - STARTING_S:
            self.start(slot)
            return
        if slot not in self.orphaned:
            super().ended(slot, code)
        self.bury(slot, self.orphaned.pop(slot))

    def start(self, slot):
        self.orphaned.pop(slot, None)
        super().start(slot)

    def feed(self):
        """There is always something to do, and never much. Not waited for: whoever is stopped may
        have what it waits for."""
        if self.feeder is not None and self.feeder.poll() is None:
            return
        if self.feeder is not None and self.feeder.returncode != 0:
            raise Failed(f"jobs could not be enqueued: exit code {self.feeder.returncode}")
        if self.feeder is not None and self.live_jobs() > 4 * self.options.workers:
            return
        n = 16 * self.options.workers
        self.feeder = subprocess.Popen(
            [str(self.options.client), str(self.folder), "enqueue", f"e-{self.enqueued}",
             str(self.enqueued), str(n)], stdin=subprocess.DEVNULL, stdout=self.said,
            stderr=self.said)
        self.enqueued += n

    def quieten(self):
        (self.folder / "sober").touch()

    def finish(self):
        for process in self.process.values():
            process.terminate()
        for slot, process in self.process.items():
            # One that was started a moment ago may not listen yet: it has claimed nothing.
            if process.wait(timeout=60) not in (0, -signal.SIGTERM):
                raise Failed(f"{self.name[slot]} ended with {process.returncode}")
        for job in LOST.findall((self.folder / "said.log").read_text(encoding="utf-8")):
            self.tell("refused", job=int(job))

    def left(self):
        return self.feeder.poll() is None or self.live_jobs() > 0

    def close(self):
        super().close()
        if self.feeder is not None and self.feeder.poll() is None:
            self.feeder.kill()
            self.feeder.wait()


def children_of(pid):
    """The processes that `pid` started and that live."""
    try:
        text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    except OSError:
        return []
    return [int(word) for word in text.split()]


# ---------------------------------------------------------------- one run

def torment(crew, options):
    """Faults, until the time is over or enough were killed."""
    end = time.monotonic() + options.seconds
    pause = options.pause or options.seconds / max(options.kills, 1)
    upcoming = fed = time.monotonic()
    while crew.kills < options.kills and time.monotonic() < end:
        upcoming += crew.dice.expovariate(1 / pause)
        while (now := time.monotonic()) < min(upcoming, end):
            time.sleep(max(0.0, min([upcoming, end, *crew.stopped.values()]) - now))
            crew.look()
        if now > fed + 1:
            crew.feed()
            fed = now
        slot = crew.dice.randrange(options.workers)
        if options.server and crew.dice.random() < 0.1:
            kill_server(crew, options.server)
        elif crew.dice.random() < 0.15:
            crew.stop(slot)
        else:
            crew.kill(slot)


def tell_clock(crew):
    """The server has the clock of this machine: no client can find that out as well by asking."""
    crew.tell("clock", offset_ns=time.time_ns() - time.monotonic_ns())


def kill_server(crew, postgres):
    """It dies in the middle of everything, and comes back after a while."""
    called, crew.server_killed = time.monotonic_ns(), time.monotonic()
    postgres.kill()
    time.sleep(crew.dice.uniform(0, 0.5))
    postgres.start()
    crew.tell("kill_server", call_ns=called, return_ns=time.monotonic_ns())


def drain(crew):
    """The faults are over: everything there is must come to its end."""
    while crew.stopped:
        crew.look()
        time.sleep(0.01)
    crew.quieten()
    crew.tell("quiet", call_ns=time.monotonic_ns(), limit_ms=LIMIT_MS, scan_ms=SCAN_MS)
    end = time.monotonic() + LIMIT_MS / 1000
    while crew.left() and time.monotonic() < end:
        crew.look()
        time.sleep(0.1)
    crew.tell("drained", call_ns=time.monotonic_ns())


def write_down(crew):
    """The rows and the events, as the program tells them."""
    rows = crew.leasehold("list", "--json", "--limit", "1000000000")
    (crew.folder / "rows.jsonl").write_text(rows, encoding="utf-8")
    last, page = 0, "-"
    with open(crew.folder / "events.jsonl", "w", encoding="utf-8") as out:
        while page:
            page = crew.leasehold("events", "--json", "--after", last, "--limit", "10000")
            out.write(page)
            if page:
                last = json.loads(page.splitlines()[-1])["id"]


def torture(options, folder):
    """A run in `folder`: the history it left."""
    crew = {"client": Clients, "work": Work}[options.by](options, folder)
    try:
        crew.prepare()
        if options.server:
            tell_clock(crew)
        for slot in range(options.workers):
            crew.start(slot)
        torment(crew, options)
        drain(crew)
        crew.finish()
        write_down(crew)
        crew.leasehold("check")
    finally:
        crew.close()
    return history.History.read(folder)


def torture_on_server(options, folder):
    """The same on PostgreSQL. What it has acknowledged it keeps when it is killed: written, though not
    on the disk."""
    # Beside the folder of the history, which is ours alone.
    with server.Folder() as place, server.Server(place) as postgres:
        postgres.make_template([options.program, "migrate"])
        postgres.make_database("torture")
        options.server, options.store = postgres, postgres.url("torture")
        os.environ["TORTURE_STORE"] = options.store
        return torture(options, folder)


def cpu_seconds():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def parse(words):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, required=True, help="a build with the tests")
    parser.add_argument("--by", choices=["client", "work"], default="work")
    parser.add_argument("--postgres", action="store_true", help="on a server, which is killed, too")
    parser.add_argument("--seconds", type=float, default=60, help="of faults")
    parser.add_argument("--kills", type=int, default=100, help="no more than this many")
    parser.add_argument("--pause", type=float, default=0,
                        help="seconds between two faults, on average; else spread over the time")
    parser.add_argument("--jobs", type=int, default=400, help="that clients enqueue")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--keep", action="store_true", help="keep the history of a good run, too")
    parser.add_argument("--tap", action="store_true", help="say it as a test")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--skew-ms", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    options.build = options.build.resolve()
    options.program = options.build / "leasehold"
    options.client = options.build / "tests" / "torture-client"
    options.child = options.build / "tests" / "torture-child"
    options.store, options.server = "store.db", None
    if options.seed is None:
        options.seed = random.SystemRandom().getrandbits(32)
    return options


def main():
    options = parse(sys.argv[1:])
    folder = pathlib.Path(tempfile.mkdtemp(prefix="torture-"))
    began, lines = time.monotonic(), []
    try:
        seen = torture_on_server(options, folder) if options.postgres else torture(options, folder)
        wrong = history.check(seen)
        killed = sum(line["act"] in ("kill", "kill_guardian") for line in seen.lines)
        if options.pause and killed < options.kills:
            wrong.append(("FAILED", f"{killed} of {options.kills} kills in the time"))
        lines.append(history.tally(seen))
        servers = sum(line["act"] == "kill_server" for line in seen.lines)
        if options.postgres:
            lines.append(f"the server was killed {servers} times")
    except (Failed, server.Failed, history.Broken, subprocess.SubprocessError, OSError) as error:
        wrong = [("FAILED", str(error))]
    lines += [f"{rule}: {text}" for rule, text in wrong[:20]]
    took = time.monotonic() - began
    lines.append(f"seed {options.seed}, {took:.0f} s, {100 * cpu_seconds() / took:.0f} % of a core")
    if wrong:
        lines.append(f"{len(wrong)} findings")
    if wrong or options.keep:
        lines.append(f"the history is in {folder}")
    else:
        shutil.rmtree(folder)
    if options.tap:
        print(f"TAP version 13\n1..1\n{'not ok' if wrong else 'ok'} 1 - {NAMES[options.by]}"
              f"{ON_SERVER if options.postgres else ''}")
    print("\n".join(f"{'# ' if options.tap else ''}{line}" for line in lines))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
