"""The part of tools/bench that measures on PostgreSQL.

One server is started for it (tests/postgres/server.py), with every commit on the disk. The floor is
pgbench with the bare statements of bench/postgres/ on the product's own tables; the product is `leasehold
bench --on URL`. Each run gets a database of its own, a copy of one that `leasehold migrate` made; what
fills it is not measured, and is vacuumed and written out before the clock runs.
"""

import contextlib
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "postgres"))
# pylint: disable-next=wrong-import-position
import server as postgres  # noqa: E402

SCRIPTS = ROOT / "bench" / "postgres"
SECTIONS = "rates held wake idle idle_held claim".split()
MADE = "bench_made"
SHAPES = ((1, 16), (100, 4))  # jobs per call, number of connections
# Settings for a dedicated machine; everything else is the default.
SETTINGS = {"shared_buffers": "256MB", "max_wal_size": "4GB", "fsync": "on",
            "synchronous_commit": "on", "max_connections": "800", "wal_level": "replica",
            "max_wal_senders": "10", "jit": "on"}


def server_found():
    try:
        return (postgres.bindir() / "postgres").exists()
    except postgres.Failed:
        return False


def cpu_seconds(server):
    """CPU time of all processes of the server so far, including processes that have ended."""
    ticks = 0
    for pid in server.backends():
        with contextlib.suppress(OSError):
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text("utf-8").rsplit(")", 1)[1].split()
            ticks += sum(map(int, fields[11:15] if pid == server.process.pid else fields[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


class Postgres:
    """The sections on PostgreSQL; `bench` runs the product and collects the rows."""

    def __init__(self, bench, build, server, payload, folder):
        self.bench, self.build, self.server, self.payload = bench, build, server, payload
        self.folder = folder
        self.number = 0

    def prepare(self):
        self.server.psql("postgres", f"CREATE DATABASE {MADE} OWNER {postgres.TESTER}")
        self.bench.run([self.build / "leasehold", "migrate", "--store", self.server.url(MADE)])

    def version(self):
        return "PostgreSQL " + self.server.psql("postgres", "SHOW server_version").split()[0]

    # ---- databases

    @contextlib.contextmanager
    def database(self, jobs=0):
        """Makes a new database with `pending` jobs."""
        self.number += 1
        name = f"bench_{self.number}"
        self.server.psql("postgres", f"CREATE DATABASE {name} TEMPLATE {MADE} STRATEGY file_copy "
                                     f"OWNER {postgres.TESTER}")
        try:
            self.fill(name, jobs)
            yield name
        finally:
            self.server.psql("postgres", f"DROP DATABASE {name} WITH (FORCE)")

    def fill(self, name, jobs):
        if jobs:
            self.product(name, "bulk", "--batch", 1000, "--jobs", jobs)
        self.settle(name)

    def settle(self, name):
        self.server.psql(name, "VACUUM (ANALYZE) leasehold.job")
        self.server.psql(name, "CHECKPOINT")

    # ---- both sides

    def product(self, name, *words, url=None):
        return self.bench.product(*words, "--on", url or self.server.url(name), "--payload", self.payload)

    def describe_machine(self):
        """Runs any measurement of the product: its output describes the machine for the page."""
        if not self.bench.machine:
            with self.database(1000):
                pass

    def floor(self, name, scripts, batch, connections, *until):
        """Runs the scripts repeatedly as one transaction script; returns jobs per second."""
        path = self.bench.folder / "script.sql"
        path.write_text("".join((SCRIPTS / f"{script}.sql").read_text("utf-8") for script in scripts),
                        encoding="utf-8")
        body = "p" * self.payload
        # One thread per connection, as the product has one process per connection.
        command = ["pgbench", "-n", "-M", "prepared", "-f", path, "-c", connections, "-j", connections,
                   "-D", f"payload={body}", "-D", f"batch={batch}",
                   "-D", f"payloads={{{','.join([body] * batch)}}}", *until, name]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False,
                              env={**self.server.environment(), "PGUSER": postgres.TESTER})
        rate = re.search(r"^tps = ([0-9.]+)", done.stdout, re.MULTILINE)
        if done.returncode != 0 or rate is None:
            sys.exit(f"tools/bench: pgbench failed: {done.stderr.strip()}")
        calls = re.search(r"actually processed: ([0-9]+)", done.stdout)
        value = {"measure": "floor", "scripts": scripts, "batch": batch, "processes": connections,
                 "jobs": int(calls[1]) * batch, "jobs_per_s": float(rate[1]) * batch}
        self.bench.values.append({"command": ["pgbench", *map(str, until)], "slow_us": 0, **value})
        return value

    # ---- enqueue, drain, cycle

    def compare(self, what, floor, product, least, absolute=None):
        by_floor, by_product = self.bench.turns(floor, product)
        low, ours = (statistics.median(v["jobs_per_s"] for v in side) for side in (by_floor, by_product))
        ratio = statistics.median(p["jobs_per_s"] / f["jobs_per_s"] for p, f in zip(by_product, by_floor))
        target, reached = f"≥ {least:.0%} of the floor", ratio >= least
        if absolute is not None:
            rate, of_floor = absolute
            target += f", ≥ {rate / 1000:.0f} k/s where the floor is {of_floor / 1000:.0f} k/s"
            reached = reached and (ours >= rate or ratio >= rate / of_floor)
        self.bench.row(what, self.bench.rate(low), self.bench.rate(ours), f"{ratio:.2f}", target, reached)
        cpu = [statistics.median(v["server_cpu_s"] * 1e9 / v["jobs"] for v in side)
               for side in (by_floor, by_product)]
        self.bench.row("… CPU of the server a job", *map(self.bench.span, cpu), f"{cpu[1] / cpu[0]:.2f}")

    def rates(self):
        for batch, connections in SHAPES:
            kind = "_one" if batch == 1 else ""
            where = f"batch {batch}, {connections} connections"
            seconds = self.bench.short(5, 1)
            words = ("--batch", batch, "--processes", connections)
            self.compare(f"enqueue, {where}",
                         lambda k=kind, b=batch, c=connections: self.on(
                             0, self.floor, ["enqueue" + k], b, c, "-T", seconds),
                         lambda w=words: self.on(0, self.product, "enqueue", *w, "--seconds", seconds),
                         least=0.70)
            calls = self.bench.short(1500 if batch == 1 else 250, 20)
            jobs = calls * connections * batch
            # More jobs than are claimed, so that no claim finds nothing.
            for name, scripts, ahead in (("drain", ["drain"], jobs + 2000),
                                         ("cycle", ["enqueue", "drain"], 10000)):
                goal = {"absolute": (40000, 47000)} if name == "drain" and batch > 1 else {}
                self.compare(
                    f"{name}, {where}",
                    lambda s=scripts, k=kind, a=ahead, b=batch, c=connections, n=calls: self.on(
                        a, self.floor, [script + k for script in s], b, c, "-t", n),
                    lambda m=name, a=ahead, w=words, j=jobs: self.on(a, self.product, m, *w, "--jobs", j),
                    least=0.70, **goal)

    def on(self, jobs, side, *words):
        """Measures one side on its own database, and the CPU time of the server."""
        with self.database(jobs) as name:
            before = cpu_seconds(self.server)
            value = side(name, *words)
            self.await_end_of_clients(name)
            value["server_cpu_s"] = cpu_seconds(self.server) - before
            return value

    def await_end_of_clients(self, name):
        """Waits until the sessions have ended: the CPU time of a session is added up when it ends."""
        others = (f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}' "
                  f"AND usename = '{postgres.TESTER}'")
        while self.server.psql("postgres", others).strip() != "0":
            time.sleep(0.02)

    # ---- a transaction that stays open

    @contextlib.contextmanager
    def snapshot_held(self, name):
        """Opens a transaction and leaves it open: vacuum cannot remove rows that are deleted from now on."""
        with subprocess.Popen(["psql", "-X", "-q", "-At", "-d", name], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True, env=self.server.environment()) as psql:
            psql.stdin.write("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT txid_current();\n")
            psql.stdin.flush()
            psql.stdout.readline()
            yield
            psql.stdin.close()

    def last_of(self, jobs, last, few, held):
        """Measures the last of all jobs with many per call, and a few more with one per call."""
        words = {100: ("--batch", 100, "--processes", 4), 1: ("--batch", 1, "--processes", 16)}
        with self.database() as name, self.snapshot_held(name) if held else contextlib.nullcontext():
            self.fill(name, jobs + few)
            self.product(name, "drain", *words[100], "--jobs", jobs - last)
            return {100: self.product(name, "drain", *words[100], "--jobs", last),
                    1: self.product(name, "drain", *words[1], "--jobs", few)}

    def held(self):
        jobs, last, few = (self.bench.short(*n) for n in ((200_000, 4000), (20_000, 500), (2000, 100)))
        free, held = self.bench.turns(lambda: self.last_of(jobs, last, few, False),
                                      lambda: self.last_of(jobs, last, few, True))
        for batch, what in ((100, f"the last {last:,} of {jobs:,} jobs, batch 100, 4 connections: without a "
                                  "transaction open all the time, and with it"),
                            (1, f"… {few:,} more, batch 1, 16 connections")):
            rates = [[v[batch]["jobs_per_s"] for v in side] for side in (free, held)]
            ratio = statistics.median(h / f for f, h in zip(*rates))
            self.bench.row(what, *(self.bench.rate(statistics.median(side)) for side in rates),
                           f"{ratio:.2f}", "≥ 70% of without", ratio >= 0.70)

    # ---- idle workers

    def wake(self):
        jobs = self.bench.short(500, 20)
        found, = self.bench.turns(lambda: self.on(0, self.product, "wake", "--jobs", jobs))
        p50, p99 = (statistics.median(v[key] for v in found) for key in ("p50_ns", "p99_ns"))
        self.bench.row("from an enqueue to its claim by an idle worker in another process, p50", "",
                       self.bench.span(p50), "", "< 3 ms", p50 < 3_000_000)
        self.bench.row("… p99", "", self.bench.span(p99))

    @contextlib.contextmanager
    def workers(self, name, count, url=None):
        command = [self.build / "leasehold", "--store", url or self.server.url(name), "work", "bench"]
        with contextlib.ExitStack() as stack:
            for number in range(count):
                worker = stack.enter_context(subprocess.Popen(
                    [*command, "--worker", f"idle-{number}", "--", "true"], cwd=self.bench.folder,
                    env=self.bench.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                    preexec_fn=postgres.dies_with_us()))
                stack.callback(worker.kill)
            there = f"SELECT count(*) >= {count} FROM leasehold.worker WHERE state <> 'stopped'"
            deadline = time.monotonic() + 120
            while self.server.psql(name, there).strip() != "t":
                if time.monotonic() > deadline:
                    sys.exit(f"tools/bench: of {count} workers not all have registered after 2 minutes")
                time.sleep(0.2)
            yield

    def idle(self):
        count, seconds = self.bench.short(200, 5), self.bench.short(10, 1)
        with self.database(1) as name, self.workers(name, count):
            # By now each worker has sent heartbeats, and closed the connections of its start.
            time.sleep(self.bench.short(90, 1))
            # Count only the workers: not this session, nor sessions of other databases.
            connections = self.server.psql(name, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                                                 f" AND usename = '{postgres.TESTER}' AND pid <> pg_backend_pid()").strip()
            shares = []
            for _ in range(min(self.bench.rounds, 3)):
                shares.append(self.share(seconds))
        share = statistics.median(shares)
        self.bench.values.append({"measure": "postgres-idle", "workers": count, "shares": shares})
        self.bench.row(f"{count} idle `leasehold work` ({connections} connections): CPU of the server", "",
                       f"{share * 100:.2f} % of a core", "", "< 5 %", share < 0.05)

    def bury(self, name, jobs):
        """Adds `jobs` jobs by plain SQL, claimed and completed: each leaves dead index entries. Their leases end
        soon; until then, a search for the next lease that ends must pass these entries."""
        self.server.psql(name, f"""
            INSERT INTO leasehold.job(queue, max_attempts, plain) SELECT 'bench', 3, false
              FROM generate_series(1, {jobs});
            UPDATE leasehold.job SET state = 'running', token = 1, attempt = 1, worker = 'w', again = true,
                   held_ms = 10000, lease_until = now() + random() * interval '10 seconds', started_at = now(),
                   state_changed_at = now()
             WHERE state = 'pending';
            UPDATE leasehold.job SET state = 'completed', worker = NULL, lease_until = NULL, finished_at = now(),
                   state_changed_at = now()
             WHERE state = 'running';
            INSERT INTO leasehold.delta VALUES ('bench', now(), 'e', NULL, 'completed', {jobs});""")

    def share(self, seconds):
        """The part of a core that the server used in `seconds`."""
        before, start = cpu_seconds(self.server), time.monotonic()
        time.sleep(seconds)
        return (cpu_seconds(self.server) - before) / (time.monotonic() - start)

    def idle_figures(self, name, url, count):
        """The CPU use of the server with idle workers, and the delay until one of them claims a job."""
        with self.workers(name, count, url):
            start = time.monotonic()
            time.sleep(self.bench.short(30, 1))
            self.await_end_of_looks(name)
            self.bench.say(f"  all that ended was looked through after {time.monotonic() - start:.0f} s")
            time.sleep(self.bench.short(30, 1))
            share = self.share(self.bench.short(20, 1))
        woken = self.product(name, "wake", "--jobs", self.bench.short(300, 20), url=url)
        return {"share": share, "p50_ns": woken["p50_ns"], "p95_ns": woken["p95_ns"]}

    def await_end_of_looks(self, name):
        """Idle workers on a store that they have not scanned yet: they scan it once, in bounded pieces."""
        owed = "SELECT owed_to > owed_from FROM leasehold.scan_bound ORDER BY id DESC LIMIT 1"
        deadline = time.monotonic() + 600
        while self.server.psql(name, owed).strip() != "f":
            if time.monotonic() > deadline:
                sys.exit("tools/bench: idle workers have not looked through the store after 10 minutes")
            time.sleep(1)

    def idle_held(self):
        """An open transaction keeps dead entries of all later jobs: idle workers must not read them repeatedly."""
        count = self.bench.short(20, 3)
        dead = self.bench.short(int(os.environ.get("BENCH_PG_DEAD", "2000000")), 2000)
        with contextlib.ExitStack() as stack:
            pooler = stack.enter_context(postgres.Pooler(self.folder, self.server))
            name = stack.enter_context(self.database())
            # Autovacuum is off; vacuum runs below.
            self.server.psql(name, "ALTER TABLE leasehold.job SET (autovacuum_enabled = off)")
            ways = {"": self.server.url(name), ", behind PgBouncer": pooler.url(name)}
            with self.snapshot_held(name):
                start = time.monotonic()
                self.bury(name, dead)
                self.bench.say(f"  {dead:,} jobs that came and went: {time.monotonic() - start:.0f} s")
                held = {way: self.idle_figures(name, url, count) for way, url in ways.items()}
            self.settle(name)
            free = {way: self.idle_figures(name, url, count) for way, url in ways.items()}
        for way in ways:
            self.bench.values.append({"measure": "postgres-idle-held", "way": way, "workers": count, "dead": dead,
                                      "held": held[way], "free": free[way]})
            what = (f"{count} idle `leasehold work`{way}: after vacuum, and while a transaction holds {dead:,} "
                    "finished jobs")
            for title, key, show in ((f"{what}: CPU of the server", "share", lambda share: f"{share * 100:.2f} %"),
                                     ("… from an enqueue to its claim, p50", "p50_ns", self.bench.span),
                                     ("… p95", "p95_ns", self.bench.span)):
                before, after = free[way][key], held[way][key]
                ratio = after / max(before, 1e-9)
                self.bench.row(title, show(before), show(after), f"{ratio:.2f}", "≤ 1.5 ×", ratio <= 1.5)

    # ---- large tables

    def claim(self):
        finished = self.bench.short(int(os.environ.get("BENCH_PG_FINISHED", "10000000")), 5000)
        pending = self.bench.short(int(os.environ.get("BENCH_PG_PENDING", "1000000")), 2000)
        with self.database(1000) as small, self.database(1000) as large:
            self.enlarge(large, pending - 1000, finished)
            few, many = self.bench.turns(*[
                lambda name=name: self.product(name, "claim", "--jobs", self.bench.short(5000, 50))
                for name in (small, large)])
        for what, key, most in (("p50", "p50_ns", None), ("p99", "p99_ns", 1.5)):
            times = [statistics.median(v[key] for v in side) for side in (few, many)]
            ratio = statistics.median(m[key] / f[key] for m, f in zip(many, few))
            self.bench.row(f"one claim with 1,000 jobs pending, and with {pending:,} beside {finished:,} "
                           f"finished: {what}", *map(self.bench.span, times), f"{ratio:.2f}",
                           "" if most is None else f"≤ {most} ×", None if most is None else ratio <= most)

    def enlarge(self, name, pending, finished):
        """Fills the tables by plain SQL, because only their size matters."""
        start = time.monotonic()
        columns = "queue, payload, payload_sum, max_attempts, plain"
        values = f"'bench', repeat('p', {self.payload}), NULL::bigint, 3, false"
        self.server.psql(name, f"""
            INSERT INTO leasehold.job({columns}, state, token, attempt, again, created_at, started_at,
                                      finished_at, state_changed_at)
            SELECT {values}, 'completed', 1, 1, true, now() - interval '1 hour', now() - interval '1 hour',
                   now(), now() FROM generate_series(1, {finished});
            INSERT INTO leasehold.job({columns}) SELECT {values} FROM generate_series(1, {pending});
            INSERT INTO leasehold.delta VALUES ('bench', now(), 'e', NULL, 'pending', {pending}),
                                               ('bench', now(), 'e', NULL, 'completed', {finished});""")
        self.settle(name)
        self.bench.say(f"  tables with {pending + 1000:,} pending and {finished:,} finished jobs: "
                       f"{time.monotonic() - start:.0f} s")


@contextlib.contextmanager
def start(bench, build, base, payload):
    """Starts a server in `base`, with the schema of the product."""
    with postgres.Folder(base) as folder, postgres.Server(folder, "pg", SETTINGS, quick=False) as server:
        found = Postgres(bench, build, server, payload, folder)
        try:
            found.prepare()
            yield found
        except postgres.Failed as error:
            sys.exit(f"tools/bench: {error}\nthe server's log ends with:\n{postgres.tail(server.log)}")
