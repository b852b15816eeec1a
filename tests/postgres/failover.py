#!/usr/bin/env python3
"""Failover: what was acknowledged is there, and no token is issued twice.

    tests/postgres/failover.py --build BUILD [--list] [NAME | GLOB]...

Every test has a primary and standbys of its own. A primary is killed with SIGKILL; a standby that must have
lost something was disconnected before.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import server

sys.path.insert(0, str(server.ROOT / "tests" / "torture"))
import history  # noqa: E402
import run as torture  # noqa: E402  (of torture, not ours)

from replica import DATABASE, PATIENCE_S, Origin, url_of  # noqa: E402
from tap import expect, expect_equal, main, test, wait_for  # noqa: E402

UNKNOWN, HELD = 8, 4  # exit codes
FIRST_OF_EPOCH = 1 << 40
GO_ON_S = 15  # time for all clients to find the new primary; one or two seconds on a quiet machine
GROUND = server.MIGRATIONS / "0001_queue" / "20_base.sql"


class Stage:
    def __init__(self, options, folder, origin):
        self.build, self.folder, self.origin = options.build.resolve(), folder, origin
        self.program = self.build / "leasehold"

    def start(self, store, *words):
        return subprocess.Popen([self.program, "--store", store, *map(str, words)], text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)

    def run(self, store, *words, code=0):
        """Run a command; returns its output."""
        process = self.start(store, *words)
        out, err = process.communicate(timeout=PATIENCE_S)
        expect_equal(process.returncode, code, f"leasehold {' '.join(map(str, words))}: {err.strip()}"
                                               ": exit code")
        return out.strip()

    def claim(self, store, queue="q", lease="600s"):
        """(job, token), or None."""
        process = self.start(store, "claim", queue, "--json", "--lease", lease, "--worker", "w")
        out, err = process.communicate(timeout=PATIENCE_S)
        expect(process.returncode in (0, 3), f"claim: exit code {process.returncode}: {err}")
        return (json.loads(out)["id"], json.loads(out)["token"]) if out else None


@contextlib.contextmanager
def stage(options):
    with server.Folder() as folder, Origin(folder, options.build.resolve() / "leasehold") as origin:
        yield Stage(options, folder, origin)


@contextlib.contextmanager
def pair(at, synchronous):
    """A primary, its standby, and the conninfo string that names both."""
    with at.origin.primary("a") as a, a.standby("b") as b:
        try:
            a.wait_for_standby("b")
            if synchronous:
                a.be_synchronous("b")
            yield a, b, url_of(a, b)
        finally:
            for node in (a, b):
                node.kill()
                shutil.rmtree(node.data, ignore_errors=True)


def caught_up(a, b):
    lsn = a.psql("postgres", "SELECT pg_current_wal_flush_lsn()").strip()
    wait_for(lambda: b.has_replayed(lsn), "the standby has replayed all", PATIENCE_S)


# ---------------------------------------------------------------- under load

class Load:
    """Clients of tests/torture that log every call."""

    def __init__(self, at, url, workers=3):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="load-", dir=at.folder.path))
        words = ["--build", at.build, "--by", "client", "--workers", workers, "--jobs", 100000]
        self.options = torture.parse([str(word) for word in words])
        self.options.store = os.environ["TORTURE_STORE"] = url
        self.crew = torture.Clients(self.options, self.folder)

    def __enter__(self):
        self.crew.prepare()
        torture.tell_clock(self.crew)
        for slot in range(self.options.workers):
            self.crew.start(slot)
        return self

    def __exit__(self, *_):
        self.crew.close()
        del os.environ["TORTURE_STORE"]

    def done_since(self, ns):
        """The number of acknowledged completions that were called after this time."""
        lines = (self.folder / "history.jsonl").read_text(encoding="utf-8").splitlines()
        done = (json.loads(line) for line in lines
                if '"act":"complete"' in line and '"result":"ok"' in line and line.endswith("}"))
        return sum(line["call_ns"] > ns for line in done)

    def wait_for_work(self, since, n, seconds=PATIENCE_S):
        def enough():
            self.crew.look()
            return self.done_since(since) >= n
        wait_for(enough, f"{n} jobs were completed", seconds)

    def end(self):
        """Stop everything; returns what was logged and what is wrong with it."""
        # Enqueue nothing more, and wait for the jobs that exist.
        self.crew.quota = lambda: 0
        self.crew.quieten = lambda: self.crew.flag(0, 2)
        torture.drain(self.crew)
        self.crew.finish()
        torture.write_down(self.crew)
        seen = history.History.read(self.folder)
        wrong = [f"{rule}: {text}" for rule, text in history.check(seen)]
        if wrong:
            kept = shutil.copytree(self.folder, pathlib.Path(tempfile.mkdtemp(prefix="failover-")) / "load")
            wrong.insert(0, f"the history is in {kept}")
        return seen, wrong


def tokens_after(seen, ns):
    return [act["token"] for act in seen.acts
            if act["act"] == "claim" and act["result"] == "ok" and act["token"]
            and act["call_ns"] > ns]


def nobody_of_ours(node):
    return node.psql("postgres", "SELECT count(*) FROM pg_stat_activity WHERE usename = "
                                 f"'{server.TESTER}'").strip() == "0"


@test
def a_synchronous_standby_takes_over_under_load_and_the_old_primary_comes_back_in_vain(at):
    with pair(at, True) as (a, b, url), Load(at, url) as load:
        load.wait_for_work(0, 40)
        died = time.monotonic_ns()
        a.kill()
        b.promote()
        promoted = time.monotonic_ns()
        load.wait_for_work(promoted, 1, GO_ON_S)
        load.wait_for_work(promoted, 40)
        # The old primary is a primary again and accepts connections.
        a.start()
        had = a.ask("SELECT max(id) FROM leasehold.job")
        returned = time.monotonic_ns()
        load.wait_for_work(returned, 40)
        expect(nobody_of_ours(a), "a client went back to the old primary")
        expect_equal(a.ask("SELECT max(id) FROM leasehold.job"), had, "jobs of the old primary")
        seen, wrong = load.end()
        expect(not wrong, "\n".join(wrong[:20]))
        expect(any(act["result"] != "ok" and act["call_ns"] < promoted < act["return_ns"] + (1 << 33)
                   for act in seen.acts if act["call_ns"] > died - (1 << 33)) or seen.open,
               "nobody was in the middle of anything: this proves nothing")
        tokens = tokens_after(seen, promoted)
        expect(tokens and min(tokens) > FIRST_OF_EPOCH, f"tokens after it: {sorted(tokens)[:3]}")
        restored = [event for event in seen.events if event["type"] == "store.restored"]
        expect_equal(len(restored), 1, "events that tell of another server")


@test
def whoever_was_led_to_a_standby_waits_until_it_is_a_primary(at):
    with pair(at, False) as (a, b, _):
        caught_up(a, b)
        # One address that leads to one server or the other; no client asks for a primary.
        anybody = url_of(b).split("?", maxsplit=1)[0]
        enqueue = at.start(anybody, "enqueue", "q", "x")
        wait_for(lambda: "STATEMENT:" in server.tail(b.log), "it was refused", PATIENCE_S)
        a.kill()
        b.promote()
        out, err = enqueue.communicate(timeout=PATIENCE_S)
        expect_equal(enqueue.returncode, 0, f"enqueue: {out} {err}: exit code")
        expect_equal(b.ask("SELECT count(*) FROM leasehold.job"), "1", "jobs")


READ_ONLY = 7


@test
def every_act_on_a_standby_waits_for_a_primary_and_then_says_that_nothing_can_be_written(at):
    with pair(at, False) as (a, b, _):
        at.run(url_of(a), "enqueue", "q", "x")
        caught_up(a, b)
        standby = url_of(b).split("?", maxsplit=1)[0]
        acts = [(words, time.monotonic(), at.start(standby, *words)) for words in (
            ("enqueue", "q", "x"), ("claim", "q", "--worker", "w"), ("recover",), ("complete", "1:1"),
            ("lease", "acquire", "a/b", "--owner", "me"), ("worker", "heartbeat", "w"))]
        for words, began, act in acts:
            _, err = act.communicate(timeout=PATIENCE_S)
            expect_equal((act.returncode, "store is not writable" in err), (READ_ONLY, True),
                         f"{' '.join(words)}: {err}: exit code, and what it says")
            expect(time.monotonic() - began > 1, f"{words[0]} did not wait")
        at.run(standby, "list")
        at.run(standby, "recover", "--dry-run")


# ---------------------------------------------------------------- nothing expires

def outlived(a, job):
    return lambda: a.ask(f"SELECT lease_until < clock_timestamp() FROM leasehold.job WHERE id = {job}",
                         server.ADMIN) == "t"


@test
def a_lease_that_ended_while_there_was_no_primary_is_not_taken_back_at_once(at):
    with pair(at, True) as (a, b, url):
        at.run(url, "enqueue", "kept", "x")
        job, token = at.claim(url, "kept", "2s")
        at.run(url, "lease", "acquire", "scope/name", "--owner", "me", "--ttl", "6s")
        a.kill()
        wait_for(outlived(b, job), "its lease is over", PATIENCE_S)
        b.promote()
        at.run(url, "recover")
        b.ask("SELECT leasehold.maintain()")
        expect_equal(at.claim(url, "kept"), None, "claimed")
        at.run(url, "lease", "acquire", "scope/name", "--owner", "other", code=HELD)
        expect_equal(b.ask(f"SELECT state, token FROM leasehold.job WHERE id = {job}"),
                     f"running|{token}", "the job")
        at.run(url, "heartbeat", job, "--token", token, "--lease", "1s")
        # The holder had a whole lease to return: from then on leases expire as usual.
        until = b.ask("SELECT no_expiry_before FROM leasehold.meta")
        _, following = wait_for(lambda: at.claim(url, "kept"), "the job is claimed", PATIENCE_S)
        expect(following > FIRST_OF_EPOCH, f"token {following}")
        early = b.ask(f"SELECT started_at < '{until}' FROM leasehold.job WHERE id = {job}")
        expect_equal(early, "f", "it was taken back before")


# ---------------------------------------------------------------- a tail that is lost

def hand_out(at, store, job, n):
    """Claim the job n times; returns its tokens."""
    tokens = []
    for _ in range(n):
        held = wait_for(lambda: at.claim(store), "the job is claimed", PATIENCE_S)
        expect_equal(held[0], job, "the job")
        tokens.append(held[1])
        at.run(store, "release", job, "--token", held[1])
    return tokens


def without_epoch(node):
    """A mutant: the new server keeps the epoch."""
    text = GROUND.read_text(encoding="utf-8")
    body = re.search(r"CREATE FUNCTION leasehold\.new_server.*?END \$\$;", text, re.S)[0]
    changed = re.sub(r"SET epoch = .*?,\s+system_id", "SET epoch = epoch, system_id", body, flags=re.S)
    expect(changed != body, "new_server does not set the epoch where the mutation looks for it")
    node.ask(changed.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"))


def tokens_over_a_lost_tail(at, mutate):
    """The tokens of one job before and after an asynchronous failover."""
    with pair(at, False) as (a, b, url):
        job = int(at.run(url, "enqueue", "q", "x"))
        before = hand_out(at, url, job, 1)
        caught_up(a, b)
        b.stop_following()
        at.run(url, "enqueue", "other", "acknowledged, and lost")
        before += hand_out(at, url, job, 2)
        a.kill()
        b.promote()
        expect_equal(b.ask("SELECT count(*) FROM leasehold.job WHERE queue = 'other'"), "0",
                     "jobs of the tail, of which nothing was to be left")
        mutate(b)
        return before, hand_out(at, url, job, 3)


@test
def an_asynchronous_standby_that_lost_the_tail_hands_no_token_out_again(at):
    before, after = tokens_over_a_lost_tail(at, lambda b: None)
    expect(min(after) > max(before), f"{before} were handed out, and then {after}")


@test
def a_server_that_keeps_its_epoch_is_caught_by_this(at):
    before, after = tokens_over_a_lost_tail(at, without_epoch)
    expect(set(before) & set(after), f"{before} were handed out, and then {after}: not caught")


@test
def a_second_failover_that_lost_the_first_ones_epoch_hands_no_token_out_again(at):
    with pair(at, False) as (a, b, _):
        job = int(at.run(url_of(a), "enqueue", "q", "x"))
        before = hand_out(at, url_of(a), job, 1)
        caught_up(a, b)
        a.kill()
        b.promote()
        with b.standby("c") as c:
            b.wait_for_standby("c")
            c.stop_following()
            url = url_of(b, c)
            before += hand_out(at, url, job, 2)
            b.kill()
            c.promote()
            after = hand_out(at, url, job, 2)
            expect(min(after) > max(before), f"{before} were handed out, and then {after}")


# ---------------------------------------------------------------- waiting for the standby

def waits_for_standby(node):
    """The backend of ours that waits for the standby, or nothing."""
    return node.psql("postgres", "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' "
                                 f"AND usename = '{server.TESTER}'").strip()


def cancelled(at, a, store, *words):
    """Run a command and cancel its wait for the standby; returns exit code and output."""
    process = at.start(store, *words)
    def cancel():
        pid = waits_for_standby(a)
        if pid:
            a.psql("postgres", f"SELECT pg_cancel_backend({pid.splitlines()[0]})")
        return process.poll() is not None
    wait_for(cancel, f"leasehold {' '.join(map(str, words))} has ended", PATIENCE_S)
    out, err = process.communicate()
    return process.returncode, out.strip(), err.strip()


@test
def a_cancelled_wait_for_the_standby_is_unknown_and_never_done(at):
    with pair(at, True) as (a, b, _):
        url = url_of(a)
        quiet = url + "&options=-c%20client_min_messages%3Derror"  # only a warning reports it
        at.run(url, "enqueue", "q", "x")
        job, token = at.claim(url)
        b.kill()
        for words in (["enqueue", "q", "y", "--request", "r-1"], ["complete", job, "--token", token],
                      ["claim", "q", "--request", "r-2"], ["queue", "pause", "q"]):
            code, out, err = cancelled(at, a, quiet if words[0] == "enqueue" else url, *words)
            expect_equal(code, UNKNOWN, f"{words}: {out} {err}: exit code")
            expect("outcome is unknown" in err, f"{words}: {err}")
            expect_equal(out, "", f"{words}: printed")
        # It is committed here, but a failover would lose it: the outcome is unknown until now.
        b.start()
        wait_for(lambda: a.streams_to("b") == "sync", "the standby is back", PATIENCE_S)
        at.run(url, "enqueue", "q", "y", "--request", "r-1")
        at.run(url, "complete", job, "--token", token)
        expect_equal(a.ask("SELECT count(*) FROM leasehold.job"), "2", "jobs")


# A program with its own connection, outside of a transaction, that enqueues one job of zero bytes.
OWN_CONNECTION = """
import ctypes, sys
pq, lh = ctypes.CDLL("libpq.so.5"), ctypes.CDLL(sys.argv[1])
pq.PQconnectdb.restype = ctypes.c_void_p
conn = ctypes.c_void_p(pq.PQconnectdb(sys.argv[2].encode()))
job, out, why = (ctypes.create_string_buffer(512) for _ in range(3))
print(lh.lh_enqueue_postgres(conn, b"q", job, ctypes.c_size_t(1), out, why, ctypes.c_size_t(512)))
print(why.value.decode())
"""


@test
def an_enqueue_on_the_users_connection_that_did_not_wait_for_the_standby_is_unknown(at):
    with pair(at, True) as (a, b, _):
        b.kill()
        for number, end in enumerate(("pg_cancel_backend", "pg_terminate_backend"), 1):
            process = subprocess.Popen(
                [sys.executable, "-c", OWN_CONNECTION, at.build / "libleasehold.so", url_of(a)],
                text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            wait_for(lambda: waits_for_standby(a), "it waits for the standby", PATIENCE_S)
            a.psql("postgres", f"SELECT {end}({waits_for_standby(a)})")
            out, err = process.communicate(timeout=PATIENCE_S)
            expect(out.startswith("-16\noutcome is unknown: "), f"{end}: {out} {err}")
            if end == "pg_cancel_backend":  # the program's own notices are shown as before
                expect("canceling wait" in err, f"{end}: {err}")
            expect_equal(a.ask("SELECT count(*) FROM leasehold.job"), str(number), "jobs")


@test
def the_new_primary_knows_what_was_done_and_the_old_one_acknowledges_nothing(at):
    with pair(at, True) as (a, b, url):
        at.run(url, "enqueue", "q", "x")
        job, token = at.claim(url)
        at.run(url, "complete", job, "--token", token)
        a.kill()
        b.promote()
        a.start()
        code, out, err = cancelled(at, a, url_of(a), "enqueue", "q", "y")
        expect_equal(code, UNKNOWN, f"enqueue: {out} {err}: exit code")
        # A client that names both hosts finds the new primary, although the old one is named first and accepts connections.
        at.run(url, "complete", job, "--token", token)
        at.run(url, "enqueue", "q", "z")
        expect_equal(a.ask("SELECT count(*) FROM leasehold.job WHERE payload = 'z'"), "0",
                     "jobs that went to the old primary")


def options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=pathlib.Path, required=True, help="a build with the tests")
    return parser


if __name__ == "__main__":
    sys.exit(main(options(), stage))
