#!/usr/bin/env python3
"""What only PostgreSQL has: roles, views, the acts in psql, and --drop-sql.

    tests/postgres/sql.py --program leasehold [--list] [NAME | GLOB]...

Every login is a real one. Each test has a database of its own, in which the time is where the
test sets it (`SET leasehold.test_now`), or real time.
"""

import argparse
import fnmatch
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.parse

import hostile
import replica
import server

WORKER, READER, PRODUCER, STRANGER = "app_worker", "app_reader", "app_producer", "app_stranger"
MINUTE = 60000
START = 1768473000000  # 2026-01-15T10:30:00Z
DENIED = "permission denied"
WAIT_S = 60  # seconds; a busy machine may need them
TESTS = []


class Complaint(Exception):
    """An expectation that was not met."""


def test(function):
    TESTS.append(function)
    return function


def expect(condition, what):
    if not condition:
        raise Complaint(what)


def expect_equal(seen, wanted, what):
    expect(seen == wanted, f"{what}: {seen!r}, expected {wanted!r}")


# ---------------------------------------------------------------- a database of a test

class Database:
    def __init__(self, of, name, program):
        self.server, self.name, self.program = of, name, program
        self.now = None  # ms; None: real time
        self.pooler = None  # the program connects through it

    def ask(self, sql, user=server.TESTER):
        """What the last statement printed; each line is a row, columns are separated by |."""
        before = f"SET leasehold.test_now = '{self.now}';\n" if self.now is not None else ""
        return self.server.psql(self.name, before + sql, user).strip()

    def refused(self, sql, user, part):
        """Expect that the statement is refused with this message."""
        try:
            said = self.ask(sql, user)
        except server.Failed as error:
            expect(part in str(error), f"{user}: {sql}\nwas refused for another reason: {error}")
            return
        raise Complaint(f"{user} was not refused: {sql}\n{said}")

    def url(self, user):
        at = self.pooler or self.server
        where = urllib.parse.quote(str(at.folder), safe="")
        return f"postgresql://{user}:{self.server.password}@{where}:{at.port}/{self.name}"

    def run(self, user, *words, code=0, told=""):
        """Run the program as this login; returns its output. Code None: any exit code."""
        done = subprocess.run([self.program, "--store", self.url(user), *words], text=True,
                              capture_output=True, stdin=subprocess.DEVNULL, timeout=60,
                              check=False)
        expect(code in (None, done.returncode) and told in done.stderr,
               f"{user}: leasehold {' '.join(words)}: exit code {done.returncode}, expected {code}: "
               f"{done.stderr.strip()}")
        return done.stdout


def logins(of):
    of.psql("postgres", "".join(f"CREATE ROLE {name} LOGIN PASSWORD '{of.password}' {more};\n"
                                for name, more in ((WORKER, "IN ROLE leasehold_worker"),
                                                   (READER, "IN ROLE leasehold_reader"),
                                                   (PRODUCER, "IN ROLE leasehold_producer"),
                                                   (STRANGER, ""))))


# ---------------------------------------------------------------- who may do what

@test
def public_has_no_privileges(db):
    seen = db.ask("""
        SELECT 'schema', nspname, nspacl FROM pg_namespace n, aclexplode(nspacl) a
         WHERE nspname = 'leasehold' AND a.grantee = 0
        UNION ALL
        SELECT 'relation', relname, relacl FROM pg_class c, aclexplode(relacl) a
         WHERE relnamespace = 'leasehold'::regnamespace AND a.grantee = 0
        UNION ALL
        SELECT 'function', proname, proacl FROM pg_proc p,
               aclexplode(coalesce(proacl, acldefault('f', proowner))) a
         WHERE pronamespace = 'leasehold'::regnamespace AND a.grantee = 0""")
    expect_equal(seen, "", "granted to PUBLIC")
    db.refused("SELECT count(*) FROM leasehold.job", STRANGER, DENIED)
    db.refused("SELECT leasehold.enqueue('mail')", STRANGER, DENIED)
    db.refused("INSERT INTO leasehold.job(queue) VALUES ('mail')", STRANGER, DENIED)


# Granted functions that run as their caller: they read only what the caller may read.
HARMLESS = {"clock", "closed_words", "due", "ms", "shape", "span", "stream_text"}
# Functions that run as their owner with the caller's search_path: they name everything with its schema.
QUALIFIED = {"enqueue_one"}


@test
def every_function_is_granted_or_internal(db):
    """A function that runs as its owner is for clients: some role must be allowed to call it, unless it
    is a trigger function. All other functions are internal."""
    rows = [line.split("|") for line in db.ask("""
        SELECT proname, prosecdef, prorettype = 'trigger'::regtype,
               has_function_privilege('leasehold_worker', oid, 'EXECUTE'),
               has_function_privilege('leasehold_reader', oid, 'EXECUTE')
               OR has_function_privilege('leasehold_producer', oid, 'EXECUTE') AND proname !~ '^enqueue', provolatile,
               coalesce(array_to_string(proconfig, ','), ''), prolang = 14, prosqlbody IS NOT NULL
          FROM pg_proc WHERE pronamespace = 'leasehold'::regnamespace""").splitlines()]
    called = set(re.findall(r"leasehold\.(\w+)\(", "".join(
        path.read_text(encoding="utf-8") for path in server.MIGRATIONS.parent.glob("*.sql"))))
    expect(len(called) > 50, "the statements of the library were not found")
    for name, definer, trigger, worker, reader, volatile, config, sql, bound in rows:
        expect(sql == bound, f"{name} is in SQL, and its names are looked up in the search_path of its caller")
        if name in called and name not in QUALIFIED:
            expect(bound == "t" or "search_path=" in config, f"the library calls {name}, which has no search_path of its own")
        client = definer == "t" and trigger == "f"
        expect((worker == "t") == (client or name in HARMLESS),
               f"{name}: called by clients is {client}, and a worker may call it: {worker}")
        expect(reader == "f" or volatile != "v" or name in HARMLESS,
               f"{name} may change something, and a reader may call it")
        expect(reader == "f" or worker == "t", f"{name} is for readers, and not for workers")
        if definer == "t" and name not in QUALIFIED:
            expect("search_path=pg_catalog, pg_temp" in config,
                   f"{name} acts as its owner, with the search_path of its caller")
    listed = re.findall(r"'([a-z_]+)'", db.ask(
        "SELECT prosrc FROM pg_proc WHERE oid = 'leasehold.admit'::regproc").split("BEGIN")[0])
    expect_equal(sorted(set(listed) - {row[0] for row in rows}), [], "granted, but not there")


@test
def every_object_belongs_to_the_owner_role(db):
    seen = db.ask("""
        SELECT relname FROM pg_class WHERE relnamespace = 'leasehold'::regnamespace
           AND relowner <> 'leasehold_owner'::regrole
        UNION ALL
        SELECT proname FROM pg_proc WHERE pronamespace = 'leasehold'::regnamespace
           AND proowner <> 'leasehold_owner'::regrole
        UNION ALL
        SELECT typname FROM pg_type WHERE typnamespace = 'leasehold'::regnamespace
           AND typowner <> 'leasehold_owner'::regrole
        UNION ALL
        SELECT rolname FROM pg_roles WHERE rolname ~ '^leasehold_'
           AND (rolsuper OR rolcanlogin OR rolcreaterole OR rolcreatedb OR rolbypassrls
                OR rolreplication)""")
    expect_equal(seen, "", "not the owner's, or more than it needs")
    expect_equal(db.ask("SELECT nspowner::regrole FROM pg_namespace WHERE nspname = 'leasehold'"),
                 "leasehold_owner", "owner of the schema")


@test
def a_worker_does_every_act(db):
    job, token = db.ask("""
        SELECT id FROM leasehold.enqueue('mail', 'hello', priority => 3) \\gset
        INSERT INTO leasehold.job(queue, kind, payload, priority, key, run_at, expires_at,
                                  max_attempts, lease_ms, backoff_ms, backoff_cap_ms)
        VALUES ('mail', 'big', '{}', 1, 'k', NULL, now() + interval '1 h', 5, 1000, 10, 20);
        SELECT id, token FROM leasehold.claim('w', 'mail')""", WORKER).split("|")
    for sql in (f"leasehold.heartbeat({job}, {token}, progress => 5)",
                f"leasehold.complete({job}, {token}, 'done')",
                "leasehold.cancel(2)", "leasehold.retry(2)", "leasehold.reschedule(2, '1 min')",
                "leasehold.queue_set('mail', max_attempts => 4)", "leasehold.queue_pause('mail')",
                "leasehold.queue_resume('mail')", "leasehold.worker_heartbeat('w')",
                "leasehold.worker_stop('w')", "leasehold.lease_acquire('a', 'b', 'me')",
                "leasehold.lease_complete('a', 'b', 'me', rows => 3)", "leasehold.recover()",
                "leasehold.maintain()", "leasehold.recovery_stats()", "leasehold.prune()",
                "leasehold.delete(2)"):
        db.ask(f"SELECT {sql}", WORKER)
    expect_equal(db.ask("SELECT state FROM leasehold.job", WORKER), "completed", "what is left")
    for view in ("stale_monitor", "stale_validation", "recovery_history", "job_state",
                 "worker_health"):
        db.ask(f"SELECT * FROM leasehold.{view}", WORKER)


@test
def a_worker_changes_no_table_and_calls_no_internal_function(db):
    db.ask("SELECT leasehold.enqueue('mail', 'x')", WORKER)
    for sql in ("UPDATE leasehold.job SET state = 'completed'", "DELETE FROM leasehold.job",
                "TRUNCATE leasehold.job", "UPDATE leasehold.meta SET epoch = 5",
                "INSERT INTO leasehold.job(queue, token) VALUES ('mail', 7)",
                "INSERT INTO leasehold.job(queue, state) VALUES ('mail', 'completed')",
                "INSERT INTO leasehold.job(queue, plain) VALUES ('mail', false)",
                "INSERT INTO leasehold.event(at, type, actor) VALUES (now(), 'x', 'me')",
                "SELECT setval('leasehold.job_id_seq', 1)",
                "CREATE TABLE leasehold.mine (x int)",
                "CREATE FUNCTION leasehold.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
                "DROP TABLE leasehold.job", "ALTER TABLE leasehold.job DISABLE TRIGGER ALL",
                "SELECT leasehold.event_put(now(), 'x', NULL, NULL, NULL, NULL, NULL, NULL, 'me',"
                " NULL, NULL)",
                "SELECT leasehold.fold(10)", "SELECT leasehold.next_token(1, 1)",
                "SELECT leasehold.refuse(-3, 'no')", "SELECT leasehold.new_server(now())",
                "SELECT leasehold.admit('app_stranger', 'worker')",
                "SELECT leasehold.move_close('a', 'b', 'c')", "SELECT leasehold.move_triggers(true)",
                "SET ROLE leasehold_owner"):
        db.refused(sql, WORKER, "must be owner" if "DROP" in sql or "ALTER" in sql else DENIED)
    db.refused("INSERT INTO leasehold.job(id, queue) VALUES (900, 'mail')", WORKER, "ERROR")
    db.refused("INSERT INTO leasehold.job(id, queue) OVERRIDING SYSTEM VALUE VALUES (900, 'mail')",
               WORKER, DENIED)
    expect_equal(db.ask("SELECT count(*), min(token) FROM leasehold.job"), "1|0", "jobs")


@test
def a_reader_reads_everything_and_changes_nothing(db):
    db.ask("SELECT leasehold.enqueue('mail', 'x'); SELECT leasehold.lease_acquire('a', 'b', 'me')",
           WORKER)
    for sql in ("FROM leasehold.job", "FROM leasehold.event", "FROM leasehold.stale_monitor",
                "FROM leasehold.stale_validation", "FROM leasehold.recovery_history",
                "FROM leasehold.job_state", "FROM leasehold.worker_health", "FROM leasehold.policy",
                "FROM leasehold.queues()", "FROM leasehold.leases()",
                "FROM leasehold.recovery_stats()"):
        db.ask(f"SELECT * {sql}", READER)
    for sql in ("SELECT leasehold.enqueue('mail', 'x')", "SELECT leasehold.claim('w', 'mail')",
                "SELECT leasehold.recover()", "SELECT leasehold.recover(dry_run => true)",
                "SELECT leasehold.queue_pause('mail')", "SELECT leasehold.maintain_round()",
                "INSERT INTO leasehold.job(queue) VALUES ('mail')",
                "UPDATE leasehold.job SET priority = 1", "DELETE FROM leasehold.event",
                "SELECT nextval('leasehold.job_id_seq')",
                "SELECT * FROM leasehold.job FOR UPDATE"):
        db.refused(sql, READER, DENIED)


def run_every_command(db, user):
    call = "pooled" if db.pooler else "direct"
    db.run(user, "enqueue", "mail", "hello", "--key", "k", "--request", f"enqueue-{call}")
    job = json.loads(db.run(user, "claim", "mail", "--worker", "w", "--request", f"claim-{call}"))
    at, token = str(job["id"]), str(job["token"])
    db.run(user, "heartbeat", at, "--token", token, "--progress", "5")
    db.run(user, "release", f"{at}:{token}")
    db.run(user, "work", "mail", "--drain", "--", "true")
    for words in (("show", at), ("list",), ("status",), ("events",), ("queue", "list"),
                  ("queue", "set", "mail", "--max-attempts", "4"), ("queue", "pause", "mail"),
                  ("queue", "resume", "mail"), ("queue", "purge", "mail"),
                  ("retry", at, "--force"), ("reschedule", at, "--delay", "1m"), ("cancel", at),
                  ("schedule", "add", "s", "mail", "x", "--cron", "0 3 * * *"),
                  ("schedule", "list"), ("schedule", "remove", "s"),
                  ("worker", "heartbeat", "w2"), ("worker", "list"), ("worker", "stop", "w2"),
                  ("lease", "acquire", "a/b", "--owner", "me"), ("lease", "list"),
                  ("lease", "extend", "a/b", "--owner", "me"),
                  ("lease", "release", "a/b", "--owner", "me"), ("recover",),
                  ("recovery-status",), ("recovery-report",), ("prune",), ("delete", at),
                  ("check",)):
        db.run(user, *words)


@test
def the_program_works_with_the_rights_of_a_worker(db):
    """Every function that it calls is granted."""
    run_every_command(db, WORKER)


@test
def a_producer_enqueues_and_sees_only_its_own_jobs(db):
    other = "other_producer"
    db.server.psql("postgres", f"CREATE ROLE {other} LOGIN PASSWORD '{db.server.password}' IN ROLE leasehold_producer")
    db.ask("SELECT leasehold.enqueue('mail', 'a'); SELECT leasehold.enqueue_one('mail', 1, 'b', 7);"
           "SELECT leasehold.enqueue_many('mail', '{1}', '{c}'); INSERT INTO leasehold.job(queue, payload) VALUES ('mail', 'd')",
           PRODUCER)
    db.run(PRODUCER, "enqueue", "mail", "e")
    db.ask("SELECT leasehold.enqueue('mail', 'f')", other)
    db.ask("SELECT leasehold.enqueue('mail', 'g')", WORKER)
    expect_equal(db.ask("SELECT string_agg(job || ' ' || name, ', ' ORDER BY job) FROM leasehold.produced"
                        " JOIN leasehold.producer ON id = producer"),
                 ", ".join([*(f"{n} {PRODUCER}" for n in range(1, 6)), f"6 {other}"]), "whose jobs are known")
    db.ask("SELECT leasehold.complete(id, token, 'done ' || id) FROM leasehold.claim('w', 'mail', 10)", WORKER)
    for user, seen in ((PRODUCER, range(1, 6)), (other, (6,)), (WORKER, range(1, 8)), (READER, range(1, 8))):
        for job in range(1, 8):
            ask = f"SELECT state, result FROM leasehold.result({job})"
            if job in seen:
                expect_equal(db.ask(ask, user), f"completed|done {job}", f"job {job} as seen by {user}")
            else:
                db.refused(ask, user, f"there is no job {job}")
    for sql in ("SELECT * FROM leasehold.job", "SELECT * FROM leasehold.event", "SELECT * FROM leasehold.produced",
                "SELECT * FROM leasehold.job_state", "SELECT * FROM leasehold.queues()",
                "SELECT leasehold.claim('w', 'mail')", "SELECT leasehold.complete(1, 1)", "SELECT leasehold.cancel(1)",
                "SELECT leasehold.queue_purge('mail')", "SELECT leasehold.queue_delete('mail')", "SELECT leasehold.queue_pause('mail')", "SELECT leasehold.recover()",
                "SELECT leasehold.jobs_of('{1}')", "INSERT INTO leasehold.job(queue, state) VALUES ('mail', 'completed')",
                "INSERT INTO leasehold.produced VALUES (7, 1)", "SELECT * FROM leasehold.producer",
                "SELECT * FROM leasehold.request", "UPDATE leasehold.job SET priority = 1"):
        db.refused(sql, PRODUCER, DENIED)
    db.run(PRODUCER, "claim", "mail", code=7, told=DENIED)
    db.run(PRODUCER, "list", code=7, told=DENIED)
    db.run(WORKER, "delete", "2")
    expect_equal(db.ask("SELECT count(*) FROM leasehold.produced WHERE job <= 2"), "1",
                 "jobs 1 and 2 whose role is known after one was deleted")


@test
def no_shape_of_a_list_gets_a_large_payload_past_the_limit(db):
    """Reading an element by its number gives NULL in a list that starts at 2 or has two dimensions."""
    db.ask("SELECT leasehold.queue_set('small', max_payload => 10)", WORKER)
    large = "repeat('x', 11)"
    for user in (WORKER, PRODUCER):
        for payloads in (f"ARRAY[{large}]", f"array_fill({large}, ARRAY[1], ARRAY[2])", f"ARRAY[ARRAY[{large}]]",
                         f"ARRAY['x', {large}]", f"ARRAY[{large}], ARRAY['x'::bytea]",
                         f"ARRAY['x'], ARRAY[{large}::bytea]", f"NULL, ARRAY[{large}::bytea]"):
            sums = "'{0,0}'" if "'x', " in payloads else "'{0}'"
            for more in ("", ", priorities => " + sums):
                db.refused(f"SELECT leasehold.enqueue_many('small', {sums}, {payloads}{more})", user, "ERROR")
        db.refused(f"SELECT leasehold.enqueue_one('small', 0, {large}, NULL)", user, "payload of 11 bytes is too large")
        db.refused(f"SELECT leasehold.enqueue('small', 'x', payload_bytes => {large}::bytea)", user, "text or bytes, not both")
    expect_equal(db.ask("SELECT count(*) FROM leasehold.job"), "0", "jobs")


def make_producer(db, name):
    db.server.psql("postgres", f"DROP ROLE IF EXISTS {name}")
    db.server.psql("postgres", f"CREATE ROLE {name} LOGIN PASSWORD '{db.server.password}' IN ROLE leasehold_producer")


@test
def a_request_of_one_producer_never_returns_a_job_of_another(db):
    make_producer(db, "second_producer")
    call = "SELECT id, duplicate FROM leasehold.enqueue('mail', 'x', request => 'r')"
    for user, job in ((PRODUCER, 1), ("second_producer", 2), (WORKER, 3)):
        expect_equal(db.ask(call, user), f"{job}|f", f"the first call of {user}")
        expect_equal(db.ask(call, user), f"{job}|t", f"its repeat by {user}")
    expect_equal(db.ask(call, server.TESTER), "3|t", "roles that read all jobs share their names")
    # Nor is a job found by the nonce of another producer.
    db.ask("SELECT leasehold.enqueue_one('mail', 0, 'y', 77)", PRODUCER)
    found = "SELECT id, duplicate FROM leasehold.enqueue_many('mail', '{0}', '{z}', of_request => 'lh:77:0')"
    expect_equal(db.ask(found, "second_producer"), "5|f", "asked for by another")
    expect_equal(db.ask(found, PRODUCER), "4|t", "asked for by its own")
    # A claim may use the same request id.
    db.ask("SELECT leasehold.enqueue('post', 'x', request => 'c')", PRODUCER)
    expect_equal(db.ask("SELECT count(*) FROM leasehold.claim('w', 'post', request => 'c')", WORKER), "1", "claimed")
    db.ask("UPDATE leasehold.request SET at = now() - interval '1 year'")
    db.ask("SELECT leasehold.prune()", WORKER)
    expect_equal(db.ask("SELECT count(*) FROM leasehold.request"), "0", "requests that are left")


@test
def a_producer_learns_only_that_another_role_has_a_job_with_its_key(db):
    make_producer(db, "second_producer")
    db.ask("SELECT leasehold.enqueue('mail', 'secret', key => 'k')", PRODUCER)
    again = "SELECT id, state, duplicate FROM leasehold.enqueue('mail', 'x', key => 'k'{})"
    expect_equal(db.ask(again.format(""), PRODUCER), "1|pending|t", "its own")
    expect_equal(db.ask(again.format(""), WORKER), "1|pending|t", "seen by a worker")
    for call in (again.format(""), again.format(", request => 'r'"), again.format(", request => 'r'")):
        expect_equal(db.ask(call, "second_producer"), "||t", call)
    expect_equal(db.run("second_producer", "enqueue", "mail", "x", "--key", "k",
                        told="queue mail has a job with this key that belongs to another role"), "", "by our program")
    expect_equal(db.run("second_producer", "--json", "enqueue", "mail", "x", "--key", "k"),
                 '{"id":null,"state":null,"duplicate":true}\n', "as JSON")
    expect_equal(db.ask("SELECT count(*) FROM leasehold.job"), "1", "jobs")


@test
def a_producer_is_identified_by_its_role_and_not_by_its_name(db):
    make_producer(db, "first_name")
    db.ask("SELECT leasehold.enqueue('mail', 'x', request => 'r')", "first_name")
    ask = "SELECT state FROM leasehold.result(1)"
    db.server.psql("postgres", "ALTER ROLE first_name RENAME TO second_name;"
                               f"ALTER ROLE second_name PASSWORD '{db.server.password}'")
    expect_equal(db.ask(ask, "second_name"), "pending", "seen after its role was renamed")
    make_producer(db, "first_name")
    db.refused(ask, "first_name", "there is no job 1")
    expect_equal(db.ask("SELECT id FROM leasehold.enqueue('mail', 'x', request => 'r')", "first_name"), "2",
                 "a request of the role that had the name before")
    db.ask("SELECT leasehold.enqueue('mail', 'z')", "second_name")
    db.refused("SELECT leasehold.result(3)", "first_name", "there is no job 3")
    make_producer(db, "second_name")  # dropped, and another role with that name is created
    db.refused(ask, "second_name", "there is no job 1")
    db.ask("SELECT leasehold.enqueue('mail', 'z')", "second_name")
    expect_equal(db.ask("SELECT string_agg(name || (role IS NOT NULL)::text, ' ' ORDER BY id) FROM leasehold.producer"),
                 "second_namefalse first_nametrue second_nametrue", "what is known of the roles")


def producers_elsewhere(bare, saved, program):
    """Another server, on which the oids of roles mean other roles."""
    bare.psql("postgres", "".join(f"CREATE ROLE leasehold_{role} NOLOGIN;" for role in ("owner", "worker", "reader", "producer")))
    bare.psql("postgres", f"GRANT leasehold_owner TO {server.TESTER}")
    bare.psql("postgres", "CREATE DATABASE copy")
    bare.psql("copy", saved)
    of = Database(bare, "copy", program)
    for name in ("dropped", "kept", "new_name", "old_name"):
        make_producer(of, name)
    # On that server the oid of one role is the oid of another.
    bare.psql("copy", "UPDATE leasehold.producer SET role = (SELECT oid FROM pg_roles WHERE rolname = 'dropped')"
                      " WHERE name = 'kept'")
    for _ in range(2):  # before its first enqueue there, and after
        for name, jobs in (("dropped", ()), ("kept", (1,)), ("new_name", (2,)), ("old_name", ())):
            for job in (1, 2, 3):
                if job in jobs:
                    expect_equal(of.ask(f"SELECT state FROM leasehold.result({job})", name), "pending", f"{job} seen by {name}")
                else:
                    of.refused(f"SELECT leasehold.result({job})", name, f"there is no job {job}")
        for name in ("dropped", "kept", "new_name", "old_name"):
            of.ask("SELECT leasehold.enqueue('mail', 'x')", name)


@test
def a_restored_dump_identifies_producers_by_name(db):
    for job, name in ((1, "kept"), (2, "old_name"), (3, "dropped")):
        make_producer(db, name)
        expect_equal(db.ask("SELECT id FROM leasehold.enqueue('mail', 'x')", name), str(job), name)
    db.server.psql("postgres", "ALTER ROLE old_name RENAME TO new_name; DROP ROLE dropped")
    db.ask("SELECT leasehold.prune()", WORKER)  # maintenance stores it
    saved = subprocess.run([db.server.bin / "pg_dump", "--schema=leasehold", db.name], text=True, check=True,
                           capture_output=True, env=db.server.environment()).stdout
    with_bare_server(db, lambda bare, program: producers_elsewhere(bare, saved, program))


@test
def the_program_works_with_the_rights_of_a_reader(db):
    db.run(WORKER, "enqueue", "mail", "hello")
    db.run(WORKER, "recover")
    for words in (("show", "1"), ("list",), ("status",), ("status", "--metrics"), ("events",),
                  ("queue", "list"), ("schedule", "list"), ("worker", "list"), ("lease", "list"),
                  ("recovery-status",), ("recovery-report",), ("check",),
                  ("migrate", "--drop-sql")):
        db.run(READER, *words)
    db.run(READER, "enqueue", "mail", "x", code=7, told=DENIED)
    db.run(READER, "claim", "mail", code=7, told=DENIED)
    expect_equal(db.ask("SELECT count(*) FROM leasehold.job"), "1", "jobs")


@test
def no_function_takes_an_advisory_lock(db):
    expect_equal(db.ask("SELECT proname FROM pg_proc WHERE pronamespace = 'leasehold'::regnamespace"
                        " AND coalesce(pg_get_function_sqlbody(oid), prosrc) ~ 'advisory'"), "", "functions")


def fill_with_everything(db):
    """Insert rows into every table, so that every expression of a view or an act is evaluated."""
    db.now = START
    db.ask("""
        SELECT leasehold.queue_set('mail', audit => 'full', concurrency => 100, rate => 1000, rate_per => '1 s');
        SELECT leasehold.queue_set('alone', exclusive => true);
        SELECT leasehold.scope_set('mail', '1 min');
        SELECT leasehold.worker_heartbeat('mail', every => '1 s');
        SELECT leasehold.worker_heartbeat('lost', every => '1 s');
        SELECT leasehold.enqueue('mail', 'x', kind => 'big', lease => '1 h') FROM generate_series(1, 4);
        SELECT leasehold.enqueue('post', 'x', priority => 3, expires => '1 s');
        SELECT leasehold.enqueue('post', 'x', delay => '1 s');
        SELECT leasehold.enqueue('alone', 'x');
        SELECT leasehold.claim('mail', 'mail');
        SELECT leasehold.claim('lost', '{mail,alone}'::text[], 2, '1 s');
        SELECT leasehold.lease_acquire('mail', 'mail', 'mail', '1 h');
        SELECT leasehold.lease_acquire('mail', 'ended', 'mail', '1 s');
        SELECT leasehold.schedule_put('mail', 'mail', '0 3 * * *', 'UTC', 0, leasehold.clock(), leasehold.clock(), NULL, 0,
                                      NULL, NULL, NULL, NULL, NULL, NULL, 0, 'x', NULL);
        UPDATE leasehold.worker SET pid = 1, process_start = 1, started = '[[1,1]]', sessions = '[[1,1]]';
        SELECT leasehold.cancel(3); SELECT leasehold.recover(); SELECT leasehold.subscribe('{mail}')""")
    db.now = START + MINUTE


def set_traps(db):
    db.ask("CREATE SCHEMA trap; GRANT ALL ON SCHEMA trap TO PUBLIC", server.ADMIN)
    db.ask(hostile.make_traps(), STRANGER)


@test
def the_program_calls_nothing_of_another_role_with_any_search_path(db):
    set_traps(db)
    db.ask(f"ALTER DATABASE {db.name} SET search_path = {hostile.PATHS[0]}", server.ADMIN)
    with server.Folder() as folder, server.Pooler(folder, db.server) as pooler:
        for db.pooler in (None, pooler):
            run_every_command(db, server.TESTER)
    db.pooler = None
    db.ask(db.run(server.TESTER, "migrate", "--drop-sql"), server.ADMIN)
    db.run(server.TESTER, "migrate")
    expect_equal(db.ask("SELECT pg_catalog.pg_sequence_last_value('trap.sprung')"), "", "traps that were sprung")


@test
def every_view_and_function_works_alike_with_any_search_path(db):
    """Also for a superuser, who may use the objects of every role."""
    fill_with_everything(db)
    set_traps(db)
    db.ask(hostile.DRIVE, server.ADMIN)
    statements = list(hostile.calls(db.ask))
    expect(len(statements) > 150, f"{len(statements)} statements are too few: what is granted was not found")
    asked = "".join(
        f"SELECT drive.outcome($s${statement}$s$, '{path}') || '|' || coalesce(pg_sequence_last_value('trap.sprung'), 0);\n"
        for statement in statements for path in ("pg_catalog", *hostile.PATHS))
    lines = db.ask(hostile.SHADOW + "SET client_min_messages = error;\n" + asked, server.ADMIN).splitlines()
    expect_equal(len(lines), 3 * len(statements), "outcomes")
    wrong, sprung = [], 0
    for i, line in enumerate(lines):
        outcome, count = line.rsplit("|", 1)
        usual = lines[i - i % 3].rsplit("|", 1)[0]
        if outcome != usual or int(count) > sprung:
            wrong.append(f"{statements[i // 3]}: under {hostile.PATHS[i % 3 - 1]}: {outcome}, usually {usual}")
        sprung = int(count)
    expect(not wrong, "\n".join(wrong))


# Each would do too much if NULL meant "all", "any" or "no".
NEVER_NULL = {("claim", "worker"), ("claim", "queue"), ("claim", "queues"), ("claim", "n"), ("claim_many", "want"),
              ("claim_many", "of_worker"), ("claim_many", "queues"), ("claim_one", "of_worker"), ("claim_one", "of_queue"),
              ("enqueue", "queue"), ("enqueue_one", "of_queue"), ("enqueue_many", "of_queue"), ("enqueue_many", "sums"),
              ("heartbeat", "job"), ("heartbeat", "token"), ("complete", "token"), ("fail", "token"),
              ("release", "token"), ("release_worker", "worker"), ("release_worker_all", "of_worker"),
              ("release_worker_all", "at_once"), ("release_worker_many", "at_once"), ("release_worker_many", "jobs"),
              ("complete_many", "jobs"), ("complete_many", "tokens"), ("fail_many", "tokens"), ("fail_many", "errors"),
              ("release_many", "tokens"), ("heartbeat_many", "tokens"), ("worker_heartbeat_put", "tokens"), ("cancel", "job"),
              ("cancel_many", "jobs"), ("retry_many", "jobs"), ("delete", "job"), ("delete_many", "jobs"),
              ("reschedule_many", "jobs"), ("queue_switch", "to_paused"), ("queue_switch", "of_queue"),
              ("queue_purge", "queue"), ("queue_delete", "queue"), ("purge_batch", "of_queue"), ("policy_set", "of_queue"), ("policy_set", "of_kind"),
              ("scope_put", "of_scope"), ("schedule_put", "of_queue"), ("lease_acquire", "owner"),
              ("worker_heartbeat", "worker"), ("worker_started", "tokens")}


@test
def a_null_argument_means_not_given_or_is_refused_by_name(db):
    """NULL never means "all", and never causes an error of the server's own."""
    fill_with_everything(db)
    db.ask(hostile.DRIVE, server.ADMIN)
    calls = list(hostile.calls_with_null(db.ask))
    expect_equal(sorted(NEVER_NULL - {(name, argument) for name, argument, _ in calls}), [], "not there")
    said = db.ask("SET client_min_messages = error;\n"
                  + "".join(f"SELECT drive.outcome($s${sql}$s$, 'pg_catalog');\n" for _, _, sql in calls), server.ADMIN).splitlines()
    wrong = []
    for (name, argument, sql), outcome in zip(calls, said):
        if (name, argument) in NEVER_NULL and not outcome.endswith(" is missing"):
            wrong.append(f"{sql}: {outcome}, expected: … is missing")
        elif not outcome.startswith(("done", "LHN ")) or '""' in outcome:
            wrong.append(f"{sql}: {outcome}")
    expect(not wrong, "\n".join(wrong))


@test
def a_value_out_of_range_is_refused_with_our_message(db):
    """By every granted function and by a plain INSERT, for every argument: no message shows the name of a
    constraint or an error of the server's own."""
    fill_with_everything(db)
    db.ask(hostile.DRIVE, server.ADMIN)
    calls = [*hostile.calls_out_of_range(db.ask), *hostile.inserts_out_of_range()]
    expect(len(calls) > 1500, f"{len(calls)} statements are too few: what is granted was not found")
    constraints = db.ask("SELECT conname FROM pg_constraint WHERE connamespace = 'leasehold'::regnamespace"
                         " UNION SELECT relname FROM pg_class WHERE relnamespace = 'leasehold'::regnamespace"
                         " AND relkind = 'i'").split()
    said = db.ask("SET client_min_messages = error;\n" + "".join(
        f"SELECT replace(drive.outcome($s${sql}$s$, 'pg_catalog'), chr(10), ' ');\n" for _, sql in calls), server.ADMIN).splitlines()
    expect_equal(len(said), len(calls), "outcomes")
    wrong = [f"{odd}: {outcome}" for (odd, _), outcome in zip(calls, said)
             if not (outcome == "done" or outcome.startswith("LHN "))
             or any(re.search(rf"\b{name}\b", outcome) for name in constraints)
             or len(outcome) > 1000]
    expect(not wrong, "\n".join(wrong))


@test
def lists_with_holes_or_of_different_lengths_are_refused(db):
    fill_with_everything(db)
    for sql, told in (
            ("leasehold.complete_many('{1,NULL}', '{1,1}', '{}', '{}')", "job is missing"),
            ("leasehold.complete_many('{1}', '{NULL}', '{}', '{}')", "token is missing"),
            ("leasehold.complete_many('{1,2}', '{1}', '{}', '{}')", "there are 2 jobs and 1 tokens: one token a job"),
            ("leasehold.complete_many('{1}', '{1}', '{a,b}', '{}')", "there are 1 items and 2 values for them: one value per item"),
            ("leasehold.complete_many('[2:2]={1}', '{1}', '{}', '{}')", "is not one list that starts at 1"),
            ("leasehold.fail_many('{1}', '{1}', '{NULL}', '{}', '{}')", "error is missing"),
            ("leasehold.heartbeat_many('{1}', '{1}', '{0}', '{}', '{}', '{}')", "lease is 0 ms: 1ms to 30d is allowed"),
            ("leasehold.enqueue_many('mail', '{0}', '{a,b}')", "there are 1 items and 2 values for them: one value per item"),
            ("leasehold.enqueue_many('mail', '{0,0}', '{a,b}', kinds => '{a}')", "there are 2 items and 1 values"),
            ("leasehold.enqueue_many('mail', '{}', '{}')", "number of jobs is missing"),
            ("leasehold.enqueue_many('mail', '{0}', '{a}', ARRAY['b'::bytea])", "a payload is text or bytes, not both"),
            ("leasehold.enqueue_many('mail', '{0}', '[2:2]={a}')", "bounds [2:2] is not one list that starts at 1"),
            ("leasehold.enqueue_many('mail', '{0}', '{{a}}', priorities => '{1}')", "bounds [1:1][1:1] is not one list"),
            ("leasehold.enqueue_many('mail', '{{0}}', '{a}')", "bounds [1:1][1:1] is not one list that starts at 1"),
            ("leasehold.enqueue_many('mail', '{0}', '{a}', run_ats => ARRAY[now()], delays_ms => '{1}')", "a delay or a time"),
            ("leasehold.enqueue_many('mail', '{0}', '{a}', of_request => '')", "request id has 0 bytes: 1 to 256 bytes"),
            ("leasehold.enqueue_many('mail', '{0}', '{a}', of_actor => 'system/recovery')", 'actor "system/recovery" is not known'),
            ("leasehold.complete_many('{1}', '{1}', '{a}', ARRAY['b'::bytea])", "a result is text or bytes, not both"),
            ("leasehold.worker_sessions('mail', '{1}', '{}')", "there are 1 pids and 0 starts"),
            ("leasehold.enqueue_one('no name', 0, 'x', 1)", 'queue "no name" is not a name'),
            ("leasehold.claim_one('no name', 'mail', NULL, true)", 'worker "no name" is not a name'),
            ("leasehold.claim_one('w', 'mail', 0, true)", "lease is 0 ms: 1ms to 30d is allowed"),
            ("leasehold.claim_many('w', '{mail,NULL}', NULL, 1, NULL, NULL, true)", "queue is missing"),
            ("leasehold.claim_many('w', '{mail}', NULL, 1001, NULL, NULL, true)", "number of jobs is 1001: 1 to 1000"),
            ("leasehold.cancel_many('{NULL}')", "job is missing"),
            ("leasehold.subscribe('{no name}')", 'queue "no name" is not a name')):
        db.refused(f"SELECT * FROM {sql}", WORKER, told)
    expect_equal(db.ask("SELECT count(*) FROM leasehold.job WHERE queue = 'no name'"), "0", "jobs")


@test
def a_claim_from_a_queue_that_was_never_used_says_so(db):
    """Most likely worker and queue were swapped."""
    db.ask("SELECT leasehold.enqueue('mail', 'x')", WORKER)
    for sql, told in (("leasehold.claim('mail', 'w1')", 'queue "w1" has never been used'),
                      ("leasehold.claim('w1', '{mail,w1}'::text[])", ""), ("leasehold.claim('w1', 'mail')", "")):
        done = subprocess.run(["psql", "-X", "-At", "-d", db.name, "-c", f"SELECT id FROM {sql}"], text=True, check=True,
                              capture_output=True, env={**db.server.environment(), "PGUSER": WORKER})
        expect(told in done.stderr if told else "never" not in done.stderr, f"{sql}: {done.stderr}")


@test
def a_plain_insert_obeys_the_max_payload_of_its_queue(db):
    db.ask("SELECT leasehold.queue_set('small', max_payload => 10), leasehold.queue_set('small', 'big', max_payload => 20),"
           " leasehold.queue_set('large', max_payload => 2000000)", WORKER)
    for queue, kind, column, most in (("small", "NULL", "payload", 10), ("small", "'big'", "payload", 20),
                                      ("small", "NULL", "payload_bytes", 10), ("mail", "NULL", "payload", 1048576),
                                      ("large", "NULL", "payload", 2000000)):
        insert = f"INSERT INTO leasehold.job(queue, kind, {column}) VALUES ('{queue}', {kind}, repeat('x', %d)::"
        insert += "bytea)" if column == "payload_bytes" else "text)"
        db.ask(insert % most, WORKER)
        db.refused(insert % (most + 1), WORKER,
                   f'payload of {most + 1} bytes is too large: queue "{queue}" takes at most {most} bytes')


@test
def the_program_prints_a_refusal_in_one_line(db):
    db.ask("SELECT leasehold.queue_set('mail', max_payload => 10)", WORKER)
    for words in (("complete", "7:7"), ("enqueue", "mail", "x" * 20), ("cancel", "9"), ("lease", "extend", "a/b", "--owner", "me")):
        done = subprocess.run([db.program, "--store", db.url(WORKER), *words], text=True, capture_output=True,
                              stdin=subprocess.DEVNULL, timeout=60, check=False)
        expect(done.returncode > 0 and len(done.stderr.splitlines()) == 1
               and not any(part in done.stderr for part in ("CONTEXT", "PL/pgSQL", "SQL statement")),
               f"{' '.join(words)}: exit code {done.returncode}: {done.stderr}")


@test
def a_deleted_queue_is_not_listed_again_after_a_lost_call(db):
    """The nonce is kept for a day, so that a call that arrives late is refused."""
    db.now = START
    db.ask("SELECT leasehold.enqueue_many('mail', '{0}', '{x}', of_request => 'lh:77:0'); SELECT leasehold.delete(1);"
           "SELECT leasehold.queue_delete('mail')", WORKER)
    numbers = "SELECT count(*) FROM leasehold.delta WHERE nonce = 77"
    for hours, kept in ((0, "1"), (23, "1"), (25, "0")):
        db.now = START + hours * 60 * MINUTE
        db.ask("SELECT leasehold.maintain(); SELECT leasehold.enqueue('post', 'y'); SELECT leasehold.maintain()", WORKER)
        expect_equal(db.ask("SELECT string_agg(queue, ' ') FROM leasehold.queues()"), "post", f"queues after {hours} h")
        expect_equal(db.ask(numbers), kept, f"numbers kept after {hours} h")
    expect_equal(db.ask("SELECT pending FROM leasehold.queue WHERE queue = 'post'"), "3", "counted")


@test
def array_nulls_of_a_role_change_nothing(db):
    db.ask("SET array_nulls = off; SELECT leasehold.enqueue('mail', 'x'); SELECT leasehold.claim('w', 'mail');"
           "SELECT leasehold.heartbeat(1, 1); SELECT leasehold.complete(1, 1); SELECT leasehold.recover();"
           "SELECT leasehold.maintain()", WORKER)
    expect_equal(db.ask("SELECT state FROM leasehold.job"), "completed", "the job")


@test
def a_temporary_table_of_the_caller_is_never_used(db):
    said = db.ask("""
        CREATE TEMP TABLE job (LIKE leasehold.job);
        CREATE TEMP TABLE delta (LIKE leasehold.delta);
        CREATE TEMP TABLE meta (one boolean, epoch bigint);
        SET search_path = pg_temp, public, pg_catalog;
        SELECT leasehold.enqueue_one('mail', 1, 'x', 77);
        SELECT count(*) FROM leasehold.enqueue('mail', 'x');
        SELECT count(*) FROM leasehold.claim('w', 'mail') \\gset
        SELECT count(*) FROM leasehold.claim_one('w', 'mail', 1000, true) \\gset
        SELECT leasehold.complete(id, token) IS NOT NULL FROM leasehold.job;
        SELECT count(*) FROM pg_temp.job""", WORKER).splitlines()
    expect_equal(said[-1], "0", "rows in the table of the caller")
    expect_equal(db.ask("SELECT DISTINCT state FROM leasehold.job"), "completed", "the jobs")


# ---------------------------------------------------------------- where roles cannot be had

def migrations():
    return "".join(path.read_text(encoding="utf-8") + "\n"
                   for path in sorted(server.MIGRATIONS.glob("*/*.sql")))


def with_bare_server(db, body):
    """A server without our roles."""
    with server.Folder() as folder, server.Server(folder, "bare") as bare:
        body(bare, db.program)


def make_database(bare, name, owner, program):
    bare.psql("postgres", f"CREATE DATABASE {name} OWNER {owner}")
    of = Database(bare, name, program)
    of.run(owner, "migrate")
    return of


def without_roles(bare, program):
    bare.psql("postgres", "".join(f"CREATE ROLE {name} LOGIN PASSWORD '{bare.password}';\n"
                                  for name in ("plain", WORKER, READER)))
    of = make_database(bare, "one", "plain", program)
    expect_equal(of.ask("SELECT count(*) FROM pg_roles WHERE rolname ~ '^leasehold_'", "plain"),
                 "0", "roles")
    of.refused("SELECT leasehold.enqueue('mail')", WORKER, DENIED)
    of.ask(f"SELECT leasehold.admit('{WORKER}', 'worker'), leasehold.admit('{READER}', 'reader')",
           "plain")
    of.ask("SELECT leasehold.enqueue('mail', 'x')", WORKER)
    of.ask("SELECT * FROM leasehold.job_state", READER)
    of.refused("SELECT leasehold.enqueue('mail')", READER, DENIED)
    of.refused(f"SELECT leasehold.admit('{WORKER}', 'owner')", "plain",
               'access is "owner": worker, reader or producer is allowed')
    of.refused("UPDATE leasehold.job SET priority = 1", WORKER, DENIED)


@test
def without_the_right_to_create_roles_the_user_owns_everything(db):
    with_bare_server(db, without_roles)


def in_another_encoding(bare, program):
    bare.psql("postgres", f"CREATE DATABASE bytes OWNER {server.TESTER} TEMPLATE template0"
                          " ENCODING 'SQL_ASCII' LOCALE 'C'")
    of = Database(bare, "bytes", program)
    of.run(server.TESTER, "migrate", code=2, told="has the encoding SQL_ASCII: UTF8 is allowed")
    expect_equal(of.ask("SELECT count(*) FROM pg_namespace WHERE nspname = 'leasehold'"), "0", "schemas")


@test
def a_database_whose_encoding_is_not_utf8_is_refused(db):
    with_bare_server(db, in_another_encoding)


def drop_one_after_another(bare, program):
    one = make_database(bare, "one", server.TESTER, program)
    two = make_database(bare, "two", server.TESTER, program)
    roles = "SELECT count(*) FROM pg_roles WHERE rolname ~ '^leasehold_'"
    for of, left in ((one, "4"), (two, "0")):
        of.ask("CREATE TABLE public.mine (x int); INSERT INTO public.mine VALUES (1);"
               "SELECT leasehold.enqueue('mail', 'x')")
        of.ask(of.run(server.TESTER, "migrate", "--drop-sql"))
        expect_equal(of.ask("SELECT count(*) FROM pg_namespace WHERE nspname = 'leasehold'"), "0",
                     "our schema")
        expect_equal(of.ask("SELECT x FROM public.mine"), "1", "tables of others")
        expect_equal(of.ask(roles), left, f"roles after {of.name}")
    two.run(server.TESTER, "migrate")  # and it can be created again
    two.run(server.TESTER, "enqueue", "mail", "x")


@test
def drop_sql_removes_everything_and_the_roles_with_the_last_database(db):
    with_bare_server(db, drop_one_after_another)


# ---------------------------------------------------------------- migrations

def bare_database(db, name):
    """A database on the same server without our schema."""
    db.server.psql("postgres", f"CREATE DATABASE {name} OWNER {server.TESTER}")
    return Database(db.server, name, db.program)


def our_schemas(of):
    return of.ask("SELECT count(*) FROM pg_namespace WHERE nspname = 'leasehold'")


@test
def a_database_without_our_schema_is_not_changed_before_migrate(db):
    of = bare_database(db, "unmigrated")
    for words in (("list",), ("status",), ("check",), ("recover",), ("enqueue", "mail", "x"),
                  ("work", "mail", "--drain", "--", "true"), ("migrate", "--drop-sql")):
        of.run(server.TESTER, *words, code=3,
               told='database "unmigrated" has no leasehold schema: "leasehold migrate" adds it')
    expect_equal(of.run(server.TESTER, "migrate", "--dry-run"), "schema 0 would become 1\n", "dry")
    expect_equal(our_schemas(of), "0", "schemas of ours")
    expect_equal(of.run(server.TESTER, "migrate"), "schema 0 became 1\n", "migrate")
    expect_equal(of.run(server.TESTER, "migrate"), "schema 1, nothing to do\n", "once more")
    of.run(server.TESTER, "enqueue", "mail", "x")


def migrate_at_once(of, n=3):
    """All of them wait for a lock of the test, so that none is done before the others have begun."""
    gate = Psql(of, server.TESTER)
    # The advisory lock key of every migration.
    gate.tell("BEGIN; SELECT pg_advisory_xact_lock(7810758949120829292)")
    runs = [subprocess.Popen([of.program, "--store", of.url(server.TESTER), "migrate"], text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(n)]
    deadline = time.monotonic() + WAIT_S
    waiting = ("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
               " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())")
    while of.ask(waiting) != str(n):
        expect(time.monotonic() < deadline, "the migrations did not come to the lock")
        time.sleep(0.02)
    gate.close("COMMIT")
    return [(*run.communicate(timeout=60), run.returncode) for run in runs]


@test
def of_several_migrations_at_once_one_creates_the_schema(db):
    for number, isolation in enumerate(("read committed", "repeatable read", "serializable")):
        of = bare_database(db, f"at_once_{number}")
        db.server.psql("postgres", f"ALTER DATABASE {of.name}"
                                   f" SET default_transaction_isolation = '{isolation}'")
        for _, err, code in migrate_at_once(of):
            expect_equal((err, code), ("", 0), isolation)
        expect_equal(of.ask("SELECT count(*), min(schema_version) FROM leasehold.meta"), "1|1", "meta")
        expect_equal(about_schema(of, server.TESTER), [], isolation)


PLANT = """
    CREATE TABLE public.caught (who text);
    GRANT INSERT ON public.caught TO PUBLIC;
    CREATE FUNCTION public.planted(text, anyelement) RETURNS text LANGUAGE plpgsql
    AS $$ BEGIN INSERT INTO public.caught VALUES (current_user); RETURN $1 || $2::text; END $$;
    CREATE FUNCTION public.planted(text, boolean) RETURNS text LANGUAGE plpgsql
    AS $$ BEGIN INSERT INTO public.caught VALUES (current_user); RETURN $1 || $2::text; END $$;
    CREATE OPERATOR public.|| (LEFTARG = text, RIGHTARG = boolean, FUNCTION = public.planted)"""


@test
def an_operator_planted_by_another_role_is_not_used(db):
    """It would run with the rights of the user who migrates or checks, often a superuser."""
    of = bare_database(db, "planted")
    of.ask("GRANT CREATE ON SCHEMA public TO PUBLIC", server.ADMIN)
    of.ask(PLANT, STRANGER)
    expect_equal(of.run(server.ADMIN, "migrate"), "schema 0 became 1\n", "migrate")
    of.run(server.ADMIN, "check")
    of.run(server.ADMIN, "status")
    expect_equal(of.ask("SELECT count(*) FROM public.caught", server.ADMIN), "0", "rights lent")


@test
def a_foreign_schema_with_our_name_is_not_changed(db):
    of = bare_database(db, "taken")
    of.ask("CREATE SCHEMA leasehold; CREATE TABLE leasehold.theirs (a integer)")
    of.run(server.TESTER, "migrate", code=3, told="schema leasehold is there, is not ours and not empty")
    expect_equal(of.ask("SELECT count(*) FROM pg_class WHERE relnamespace = 'leasehold'::regnamespace"),
                 "1", "what is in it")
    of.ask("DROP TABLE leasehold.theirs")
    expect_equal(of.run(server.TESTER, "migrate"), "schema 0 became 1\n", "migrate")


@test
def a_newer_schema_is_refused_by_every_command(db):
    db.ask("SELECT leasehold.enqueue('mail', 'x'); UPDATE leasehold.meta SET schema_version = 99")
    for words in (("list",), ("status",), ("check",), ("recover",), ("enqueue", "mail", "x"),
                  ("claim", "mail"), ("work", "mail", "--drain", "--", "true"), ("migrate",),
                  ("migrate", "--dry-run"), ("migrate", "--drop-sql")):
        db.run(server.TESTER, *words, code=1,
               told="has schema version 99, this program knows up to 1: use a newer leasehold")
    expect_equal(db.ask("SELECT count(*), min(token), min(schema_version)"
                        " FROM leasehold.job, leasehold.meta"), "1|0|99", "what is there")


@test
def a_schema_without_a_version_asks_for_a_restore(db):
    """The program does not repair a server."""
    db.ask("DELETE FROM leasehold.meta")
    done = subprocess.run([db.program, "--store", db.url(server.TESTER), "list"], text=True,
                          capture_output=True, check=False)
    expect_equal(done.returncode, 6, "exit code")
    expect("has no version: restore a backup" in done.stderr, done.stderr)
    expect("--repair" not in done.stderr, done.stderr)


# ---------------------------------------------------------------- dump and restore

def restored(db, name, custom):
    """Dump this database and restore it into a new one, as the docs describe it."""
    of, environment = bare_database(db, name), db.server.environment()
    dump = subprocess.run([db.server.bin / "pg_dump", "--schema=leasehold", db.name,
                           *(["--format=custom"] if custom else [])],
                          env=environment, capture_output=True, check=True).stdout
    back = ["pg_restore", "--exit-on-error"] if custom else ["psql", "-Xq", "-v", "ON_ERROR_STOP=1"]
    subprocess.run([db.server.bin / back[0], *back[1:], "-d", name], input=dump, env=environment,
                   capture_output=True, check=True)
    return of


@test
def a_restored_dump_is_complete_and_refuses_its_old_holders(db):
    db.ask("""SELECT leasehold.queue_set('mail', max_attempts => 7);
              SELECT leasehold.enqueue('mail', 'held'); SELECT leasehold.enqueue('mail', 'free');
              SELECT leasehold.enqueue('mail', 'gone'); SELECT leasehold.lease_acquire('s', 'n', 'me');
              SELECT leasehold.claim('old', 'mail', lease => '1 hour');
              SELECT leasehold.cancel(3)""", WORKER)
    before = about_schema(db, WORKER)  # (the tests replace the clock)
    for custom in (False, True):
        of = restored(db, "by_pg_restore" if custom else "by_psql", custom)
        expect_equal(about_schema(of, WORKER), before, "schema")
        of.run(WORKER, "recover", told="the store is on another server now")
        # No worker died: the attempt is refunded.
        expect_equal(of.ask("SELECT id, state, attempt, token > 1 << 30 FROM leasehold.job ORDER BY id"),
                     "1|scheduled|0|t\n2|pending|0|f\n3|cancelled|0|f", "jobs")
        of.run(WORKER, "heartbeat", "1", "--token", "1", code=4)
        of.run(WORKER, "lease", "extend", "s/n", "--owner", "me", "--token", "1", code=4)
        of.run(WORKER, "complete", "1", "--token", "1", code=4, told="lease of job 1 is lost")
        # It has answered, so the quarantine is over; the job gets a token of this epoch.
        job = json.loads(of.run(WORKER, "claim", "mail", "--worker", "new"))
        expect((job["id"], job["max_attempts"]) == (1, 7) and job["token"] > 1 << 40, str(job))
        of.run(WORKER, "enqueue", "mail", "goes on")
        expect_equal(of.ask("SELECT max(id) FROM leasehold.job"), "4", "the next id")


@test
def the_first_claim_in_a_restored_dump_ends_all_its_leases(db):
    db.ask("SELECT leasehold.enqueue('mail', 'a'); SELECT leasehold.enqueue('mail', 'b');"
           "SELECT leasehold.claim('old', 'mail')", WORKER)
    of = restored(db, "unannounced", False)
    expect_equal(of.ask("SELECT id, token > 1::bigint << 40 FROM leasehold.claim('new', 'mail')", WORKER),
                 "2|t", "the claim")
    of.refused("SELECT leasehold.complete(1, 1)", WORKER, "lease of job 1 is lost")


@test
def a_dump_restored_twice_issues_different_tokens(db):
    db.ask("SELECT leasehold.enqueue('mail', 'a'); SELECT leasehold.lease_acquire('s', 'n', 'me');"
           "SELECT leasehold.lease_release('s', 'n', 'me')", WORKER)
    tokens, leases = set(), set()
    for name in ("once", "twice", "thrice"):
        of = restored(db, name, False)
        tokens.add(of.ask("SELECT token FROM leasehold.claim('new', 'mail')", WORKER))
        leases.add(of.ask("SELECT token FROM leasehold.lease_acquire('s', 'n', 'me')", WORKER))
        expect_equal(of.ask("SELECT epoch FROM leasehold.meta"), "1", "epoch")
    expect(len(tokens) == 3 and min(map(int, tokens)) > 1 << 40, f"tokens of jobs: {tokens}")
    expect(len(leases) == 3 and min(map(int, leases)) > 1 << 40, f"tokens of leases: {leases}")
    expect(max(map(int, tokens | leases)) < 2 << 40, f"tokens above their epoch: {tokens | leases}")


# ---------------------------------------------------------------- a crash of the server

RELAXED = "SET synchronous_commit = off;"


def stop_wal_writer(of):
    """From now on only commits write the log: what a commit did not wait for is lost in a crash."""
    pid = of.psql("one", "CHECKPOINT; SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")
    os.kill(int(pid), signal.SIGSTOP)
    return int(pid)


def crash(of, wal_writer):
    of.process.kill()
    os.kill(wal_writer, signal.SIGKILL)
    of.kill()
    of.start()


@test
def a_token_lost_in_a_crash_is_never_issued_again(db):
    with server.Folder() as at, server.Server(at, "crash", {"autovacuum": "off"}) as of:
        of.make_template([db.program, "migrate"])
        of.make_database("one")
        of.psql("one", "SELECT leasehold.enqueue('mail', 'a');"
                       "SELECT leasehold.lease_acquire('s', 'held', 'me')")
        of.stop()
        of.start()
        of.psql("one", "SELECT leasehold.maintain()")
        expect_equal(of.psql("one", "SELECT epoch FROM leasehold.meta").strip(), "0", "epoch")
        seen = []
        for number in range(2):
            stopped = stop_wal_writer(of)
            seen += of.psql("one", RELAXED + "SELECT token FROM leasehold.claim('w', 'mail');"
                            "SELECT 'lease ' || token FROM leasehold.lease_acquire('s', 'n', 'me')").splitlines()
            crash(of, stopped)
            if number == 0:
                expect_equal(of.psql("one", "SELECT state, token FROM leasehold.job").strip(), "pending|0",
                             "the job, whose claim was to be lost")
            # Nothing else follows from a crash: holders keep their leases.
            of.psql("one", "SELECT leasehold.lease_extend('s', 'held', 'me')")
            of.psql("one", "SELECT leasehold.release_worker('w')")
        expect_equal(len(set(seen)), len(seen), f"different tokens of {seen}")
        last = of.psql("one", "SELECT token FROM leasehold.claim('w', 'mail')").strip()
        for token in seen[::2]:
            told = of.psql("one", "SELECT status FROM leasehold.complete_many('{1}', "
                                  f"'{{{token}}}', '{{}}', '{{}}')").strip()
            expect_equal(told, "-8", f"the complete under a lost token {token}, held under {last}")


# ---------------------------------------------------------------- what a check says

def findings(of, user, code=0, told=""):
    """As "level what text"."""
    said = json.loads(of.run(user, "check", "--json", code=code, told=told))
    return [f"{one['level']} {one['what']} {one['text']}" for one in said["findings"]]


def about_schema(of, user):
    return [one for one in findings(of, user) if one.split(" ")[1] == "schema"]


def expect_finding(found, pattern):
    expect(any(re.fullmatch(pattern, one) for one in found),
           f"no finding is like {pattern}:\n" + "\n".join(found))


@test
def workers_that_start_together_hold_at_most_two_sessions_each(db, n=6):
    """Counted from before the first connects until all are connected and had a job."""
    seen = ("SELECT count(*), (SELECT count(*) FROM leasehold.worker WHERE state = 'alive'),"
            " (SELECT count(*) FROM leasehold.job WHERE state = 'completed') FROM pg_stat_activity"
            f" WHERE datname = current_database() AND usename = '{WORKER}'")
    watch = Psql(db, server.ADMIN)
    db.ask(f"SELECT leasehold.enqueue('mail', 'x') FROM generate_series(1, {n})")
    workers = [subprocess.Popen([db.program, "--store", db.url(WORKER), "work", "mail", "--", "true"],
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(n)]
    try:
        most, sessions, alive, completed = 0, 0, 0, 0
        deadline = time.monotonic() + WAIT_S
        while sessions < 2 * n or alive < n or completed < n:
            expect(time.monotonic() < deadline, f"{sessions} sessions, {alive} workers, {completed} jobs")
            sessions, alive, completed = map(int, watch.answer(seen).split("|"))
            most = max(most, sessions)
        expect(most <= 2 * n, f"{n} workers held {most} sessions")
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait(timeout=60)
        watch.close("")


@test
def commands_that_wait_for_a_lease_hold_at_most_two_sessions_each(db, n=4):
    """One command holds the lease and extends it, the others wait for it; then each gets it in turn."""
    watch = Psql(db, server.ADMIN)
    seen = ("SELECT count(*), (SELECT count(*) FROM leasehold.event WHERE type = 'lease.released') FROM pg_stat_activity"
            f" WHERE datname = current_database() AND usename = '{WORKER}'")
    runs = [subprocess.Popen([db.program, "--store", db.url(WORKER), "lease", "run", "a/b", "--ttl", "3s", "--wait=60s", "--",
                              "sleep", "0.5"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(n)]
    try:
        most, released = 0, 0
        deadline = time.monotonic() + WAIT_S
        while released < n:
            expect(time.monotonic() < deadline, f"{released} of {n} have given the lease back")
            sessions, released = map(int, watch.answer(seen).split("|"))
            most = max(most, sessions)
        expect(most <= 2 * n, f"{n} commands held {most} sessions")
    finally:
        for run in runs:
            run.terminate()
        for run in runs:
            run.wait(timeout=60)
        watch.close("")


class Psql:
    """A psql session that stays open."""

    def __init__(self, of, user, database=None):
        self.process = subprocess.Popen(
            ["psql", "-X", "-q", "-At", "-v", "ON_ERROR_STOP=1", "-d", database or of.name], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**of.server.environment(), "PGUSER": user})

    def tell(self, sql):
        """Run a statement to its end; returns the pid of the session."""
        self.process.stdin.write(f"{sql};\n\\echo done\nSELECT pg_backend_pid();\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line == "done\n":
                return self.process.stdout.readline().strip()
        raise Complaint(f"psql ended: {sql}")

    def answer(self, sql):
        """Returns its only row."""
        self.process.stdin.write(f"{sql};\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def close(self, sql="ROLLBACK"):
        self.process.communicate(f"{sql};\n")


@test
def a_check_names_the_oldest_transaction_to_every_role(db):
    holder, newer = Psql(db, server.ADMIN), Psql(db, WORKER)
    pid = holder.tell("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM leasehold.job")
    db.ask("SELECT leasehold.enqueue('mail', 'x')", WORKER)  # others can still write
    newer.tell("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM leasehold.job")
    who = f"pid {pid}, user {server.ADMIN}, application psql"
    for user in (WORKER, READER, server.TESTER):
        expect_finding(findings(db, user),
                       f"info transactions oldest is [1-9][0-9]* transactions behind: {who}; dead rows "
                       "cannot be vacuumed while it lasts; only members of "
                       "pg_monitor see for how long")
    db.server.psql("postgres", f"GRANT pg_monitor TO {READER}")
    try:
        expect_finding(findings(db, READER), f"info transactions oldest is .* old: {who}, idle in "
                                             "transaction; dead rows cannot be vacuumed while it lasts")
    finally:
        db.server.psql("postgres", f"REVOKE pg_monitor FROM {READER}")
    holder.close()
    newer.close()
    # A transaction that has read nothing does not hold up vacuum.
    idle = Psql(db, WORKER)
    idle.tell("BEGIN")
    expect_equal([one for one in findings(db, WORKER) if " transactions " in one], [], "holders")
    idle.close()


CHECKED = {"max_prepared_transactions": "2", "autovacuum": "off"}
AHEAD = """CREATE OR REPLACE FUNCTION leasehold.clock() RETURNS timestamptz LANGUAGE sql VOLATILE
           AS $$ SELECT pg_catalog.clock_timestamp() + interval '10 minutes' $$"""
RIGHT = AHEAD.replace("10 minutes", "0")
WITHOUT_TRIGGERS = "SET session_replication_role = replica"
# A change of the server, its undo, and the findings in between; exit code 0 unless given.
DEEDS = (
    ("SELECT 1", "SELECT 1",
     "warning server fsync is off: acknowledged commits may be lost when the machine fails", 0),
    ("SELECT 1", "SELECT 1",
     "warning server full_page_writes is off: pages may be torn when the machine fails", 0),
    (f"ALTER ROLE {WORKER} SET synchronous_commit = off", f"ALTER ROLE {WORKER} RESET ALL",
     "warning server synchronous_commit is off: acknowledged commits may be lost when the server "
     "fails", 0),
    (f"ALTER ROLE {WORKER} SET default_transaction_isolation = 'repeatable read'",
     f"ALTER ROLE {WORKER} RESET ALL",
     'warning server default_transaction_isolation is "repeatable read": .* read committed', 0),
    ("ALTER TABLE leasehold.rollup SET UNLOGGED", "ALTER TABLE leasehold.rollup SET LOGGED",
     "warning server tables are unlogged, and lost when the server fails: rollup", 0),
    (AHEAD, RIGHT, r"warning clock clock of the server is (599|600)\d{3} ms ahead of this machine's",
     0),
    ("BEGIN; CREATE TABLE public.mine (x int); PREPARE TRANSACTION 'mine'",
     "ROLLBACK PREPARED 'mine'",
     f"info transactions oldest is .* old: prepared transaction mine, user {server.ADMIN}; dead "
     "rows cannot be vacuumed while it lasts", 0),
    (f"{AHEAD}; BEGIN; CREATE TABLE public.mine (x int); PREPARE TRANSACTION 'mine'",
     f"ROLLBACK PREPARED 'mine'; {RIGHT}",
     "warning transactions oldest is 10m.* old: prepared transaction mine, .*", 0),
    (f"{WITHOUT_TRIGGERS}; BEGIN; INSERT INTO leasehold.job(queue) SELECT 'q' FROM"
     " generate_series(1, 50001); DELETE FROM leasehold.job WHERE queue = 'q'; COMMIT",
     "VACUUM leasehold.job",
     "warning vacuum leasehold.job has about 0 rows and 50001 dead ones, never vacuumed", 0),
    ("SELECT 1", "SELECT 1",
     "info vacuum leasehold.job has about 0 rows and 0 dead ones, last vacuumed at .*Z", 0),
    ("INSERT INTO leasehold.delta(queue, at, act, n) SELECT 'q', now(), 'e', 0"
     " FROM generate_series(1, 1000001)", "TRUNCATE leasehold.delta",
     "warning upkeep leasehold.delta has about 1000001 rows: no process runs maintenance on this store", 0),
    ("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'leasehold.job_ended'::regclass",
     "REINDEX INDEX leasehold.job_ended",
     "error integrity index leasehold.job_ended is not valid: REINDEX it", 6),
    ("INSERT INTO leasehold.lease(scope, name, token) VALUES ('sync', 'a', -7)",
     "DELETE FROM leasehold.lease", 'error leases lease "sync/a": token -7 is outside .*', 1),
    ("ALTER TABLE leasehold.lease DROP CONSTRAINT lease_check; INSERT INTO leasehold.lease(scope, name,"
     " owner, token) VALUES ('sync', 'a', 'w-1', 1)",
     "DELETE FROM leasehold.lease; ALTER TABLE leasehold.lease ADD CONSTRAINT lease_check"
     " CHECK ((owner IS NULL) = (expires_at IS NULL))",
     'error leases lease "sync/a": it has an owner and no expiry', 1),
    (f"{WITHOUT_TRIGGERS}; INSERT INTO leasehold.job(queue, token) VALUES ('q', -1)",
     f"{WITHOUT_TRIGGERS}; DELETE FROM leasehold.job",
     "error invariant 2 job .*: token -1 is outside 0 to 9007199254740991", 1),
    ("UPDATE leasehold.schedule SET payload = 'other'", "DELETE FROM leasehold.schedule",
     "error payload schedule s: payload does not match its checksum", 1),
)


def check_after_each_deed(of):
    of.run(WORKER, "schedule", "add", "s", "mail", "x", "--cron", "0 3 * * *")
    of.ask("SELECT leasehold.maintain()", WORKER)
    for deed, undo, finding, code in DEEDS:
        of.ask(deed, server.ADMIN)
        expect_finding(findings(of, WORKER, code), finding)
        of.ask(undo, server.ADMIN)
        if deed != undo:
            left = [one for one in findings(of, WORKER, code=None) if re.fullmatch(finding, one)]
            expect_equal(left, [], "found although it is undone")


@test
def a_check_finds_settings_that_lose_data_or_slow_the_store(db):
    with server.Folder() as folder, server.Server(folder, "checked", CHECKED) as bare:
        of = make_database(bare, "one", server.TESTER, db.program)
        logins(bare)
        check_after_each_deed(of)


@test
def a_check_does_not_offer_a_repair_of_the_server(db):
    db.ask("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'leasehold.job_ended'::regclass",
           server.ADMIN)
    done = subprocess.run([db.program, "--store", db.url(WORKER), "check"], text=True,
                          capture_output=True, check=False)
    expect_equal((done.returncode, done.stderr), (6, "leasehold: 1 error was found\n"), "check")
    for option in ("--repair", "--accept-loss"):
        db.run(WORKER, "check", option, code=2, told=f"{option} is for SQLite files")
    db.run(WORKER, "backup", "copy", code=2, told="pg_dump --schema=leasehold")
    db.run(WORKER, "restore", "copy", code=2, told="pg_restore puts back what pg_dump has saved")


def rot(bare, program):
    bare.stop()
    server.start([bare.bin / "pg_checksums", "--enable", "-D", bare.data], bare.log).wait()
    bare.start()
    of = make_database(bare, "one", server.TESTER, program)
    of.ask("CREATE TABLE public.rotten AS SELECT generate_series(1, 1000)")
    path = bare.data / of.ask("SELECT pg_relation_filepath('public.rotten')")
    bare.stop()
    with open(path, "r+b") as file:
        file.seek(8000)
        file.write(b"rotten")
    bare.start()
    of.refused("SELECT count(*) FROM public.rotten", server.TESTER, "invalid page")
    expect_finding(findings(of, server.TESTER, code=6), "error integrity [1-9] pages of this database "
                                                        "did not match their checksum, the last at .*")


@test
def a_check_reports_pages_that_the_server_found_damaged(db):
    with_bare_server(db, rot)


def check_a_pair(primary, program):
    name = replica.DATABASE
    of = Database(primary, name, program)
    primary.psql("postgres", f"CREATE ROLE {WORKER} LOGIN PASSWORD '{primary.password}'"
                             " IN ROLE leasehold_worker, pg_monitor")
    with primary.standby("b") as standby:
        primary.wait_for_standby("b")
        expect_finding(findings(of, server.TESTER), "info replication standbys connected: 1; only "
                                                    "members of pg_monitor see how far behind they are")
        expect_finding(findings(of, WORKER), "info replication standbys connected: 1, synchronous: 0; "
                                             "the last is [0-9]+ bytes and [0-9]+ ms behind")
        expect_finding(findings(Database(standby, name, program), server.TESTER),
                       "warning server the server is a standby: nothing can be written to it")
        primary.be_synchronous("b")
        expect_finding(findings(of, WORKER), "info replication standbys connected: 1, synchronous: 1; .*")
        standby.settle("hot_standby_feedback", "on")
        reader = Psql(Database(standby, name, program), server.ADMIN)
        reader.tell("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM leasehold.job")
        replica.tap.wait_for(lambda: any("standby b, by its hot_standby_feedback" in one
                                         for one in findings(of, WORKER)), "feedback is told", WAIT_S)
        reader.process.kill()
        reader.process.wait()
        standby.kill()
        replica.tap.wait_for(lambda: not primary.streams_to("b"), "it is missed", WAIT_S)
        expect_finding(findings(of, server.TESTER),
                       'warning replication synchronous_standby_names is "b" and none of these is '
                       "connected: every commit waits for one")


@test
def a_check_reports_the_lag_of_standbys(db):
    with server.Folder() as folder, replica.Origin(folder, db.program) as origin, \
            origin.primary("a") as primary:
        check_a_pair(primary, db.program)


@test
def a_status_omits_what_the_server_does_not_report(db):
    text = db.run(WORKER, "status")
    expect("free on the device" not in text and re.search(r"size +\S+ \S+\n", text), text)
    store = json.loads(db.run(WORKER, "status", "--json"))["store"]
    expect_equal((store["free_bytes"], store["wal_bytes"]), (None, None), "not known")
    expect("store_free_bytes" not in db.run(WORKER, "status", "--metrics"), "a metric")


@test
def an_unreachable_server_is_reported_without_a_wait(db):
    port = server.free_port()
    for words in (("list",), ("enqueue", "mail", "x"), ("check",), ("migrate",)):
        done = subprocess.run([db.program, "--store", f"postgresql://127.0.0.1:{port}/x", *words],
                              text=True, capture_output=True, timeout=60, check=False)
        expect(done.returncode == 5 and "could not reach" in done.stderr,
               f"{words}: {done.returncode}: {done.stderr}")


# ---------------------------------------------------------------- views

@test
def stale_monitor_shows_how_close_a_job_is_to_recovery(db):
    db.now = START
    db.ask("SELECT leasehold.enqueue('mail', 'x'); SELECT leasehold.claim('w', 'mail',"
           " lease => '1000 s')", WORKER)
    for age_s, health in ((0, "OK"), (799, "OK"), (800, "WARNING"), (999, "WARNING"),
                          (1000, "STALE")):
        db.now = START + 1000 * age_s
        expect_equal(db.ask("SELECT health, age_s, lease_s, ratio FROM leasehold.stale_monitor",
                            READER), f"{health}|{age_s}|1000|{age_s / 1000:g}", f"after {age_s} s")
    db.now = START + 900 * 1000
    db.ask("SELECT leasehold.heartbeat(1, 1)", WORKER)
    expect_equal(db.ask("SELECT health, age_s FROM leasehold.stale_monitor", READER), "OK|0",
                 "after a heartbeat")


@test
def job_state_is_derived_from_the_columns_at_this_moment(db):
    db.now = START
    db.ask("""SELECT leasehold.enqueue('a', 'waits'); SELECT leasehold.enqueue('b', 'later',
              delay => '1 min'); SELECT leasehold.enqueue('c', 'gone'); SELECT leasehold.cancel(3);
              SELECT leasehold.enqueue('d', 'held'); SELECT leasehold.claim('w', 'd',
              lease => '2 min')""", WORKER)
    states = "SELECT string_agg(derived_state, ' ' ORDER BY job_id) FROM leasehold.job_state"
    for minutes, expected in ((0, "AVAILABLE SCHEDULED CANCELLED RUNNING"),
                              (1, "AVAILABLE AVAILABLE CANCELLED RUNNING"),
                              (2, "AVAILABLE AVAILABLE CANCELLED EXPIRED")):
        db.now = START + minutes * MINUTE
        expect_equal(db.ask(states, READER), expected, f"after {minutes} min")
    # While expiry is suspended, nothing expires.
    db.ask("UPDATE leasehold.meta SET no_expiry_before = leasehold.clock() + interval '1 min'")
    expect_equal(db.ask(states, READER), "AVAILABLE AVAILABLE CANCELLED RUNNING", "held back")


@test
def worker_health_uses_the_workers_own_interval(db):
    db.now = START
    db.ask("SELECT leasehold.worker_heartbeat('w'), leasehold.worker_heartbeat('left');"
           "SELECT leasehold.worker_stop('left'); SELECT leasehold.enqueue('mail', 'x');"
           "SELECT leasehold.claim('w', 'mail')", WORKER)
    health = ("SELECT string_agg(worker || ' ' || state || ' ' || running, ', ' ORDER BY worker)"
              " FROM leasehold.worker_health")
    for seconds, state in ((30, "alive"), (31, "late"), (89, "late"), (90, "dead")):
        db.now = START + 1000 * seconds
        expect_equal(db.ask(health, READER), f"left stopped 0, w {state} 1", f"after {seconds} s")


# ---------------------------------------------------------------- reclaim by time to live (S002)

def claim_tsa(db, attempts=1):
    """A job with a lease of half an hour, at its Nth attempt, whose worker is dead by now."""
    db.now = START
    db.ask("SELECT leasehold.queue_set('executor', kind => 'run_tsa', lease => '30 min',"
           " max_attempts => 10, backoff => '1 ms', max_recoveries => 100)", WORKER)
    db.ask("INSERT INTO leasehold.job(queue, kind, payload, key)"
           " VALUES ('executor', 'run_tsa', '{}', 'test-ttl')", WORKER)
    for attempt in range(1, attempts + 1):
        job, token, number = db.ask("SELECT id, token, attempt FROM leasehold.claim("
                                    "'test-worker-dead', 'executor')", WORKER).split("|")
        expect_equal(number, str(attempt), "attempt")
        if attempt < attempts:
            db.ask(f"SELECT leasehold.fail({job}, {token}, 'no', retry_in => '0')", WORKER)
    db.now += 35 * MINUTE
    return job


@test
def a_job_of_a_dead_worker_is_pending_again_after_its_lease(db):
    """Test 1."""
    job = claim_tsa(db)
    expect_equal(db.ask("SELECT job_id, kind, worker, health FROM leasehold.stale_monitor", READER),
                 f"{job}|run_tsa|test-worker-dead|STALE", "the monitor")
    expect_equal(db.ask("SELECT derived_state FROM leasehold.job_state", READER), "EXPIRED", "state")
    report = json.loads(db.ask("SELECT leasehold.recover()", WORKER))
    recovered = report["recovered"][0]
    expect_equal((recovered["action"], recovered["attempt"], recovered["max_attempts"],
                  recovered["previous_worker"]), ("retry", 2, 10, "test-worker-dead"), "the report")
    state, attempt, recoveries, error = db.ask(
        "SELECT state, attempt, recoveries, last_error FROM leasehold.job", READER).split("|")
    expect_equal((state, attempt, recoveries), ("pending", "1", "1"), "the job")
    expect(error.startswith("RECLAIMED_TTL: Exceeded TTL (30 min)"), error)
    expect_equal(db.ask("SELECT job_id, action, attempt, previous_worker"
                        " FROM leasehold.recovery_history", READER),
                 f"{job}|retry|2|test-worker-dead", "the history")
    expect_equal(db.ask("SELECT attempt FROM leasehold.claim('w2', 'executor')", WORKER), "2",
                 "the next attempt")


@test
def after_a_reclaim_nothing_runs_beyond_twice_its_time(db):
    """Test 2."""
    job = claim_tsa(db)
    expect_equal(db.ask("SELECT count(*) FROM leasehold.stale_validation", READER), "0", "at 35 min")
    db.now += 30 * MINUTE
    expect_equal(db.ask("SELECT job_id FROM leasehold.stale_validation", READER), job, "at 65 min")
    db.ask("SELECT leasehold.maintain()", WORKER)
    expect_equal(db.ask("SELECT count(*) FROM leasehold.stale_validation", READER), "0", "after it")


@test
def the_validation_shows_only_what_claims_and_recoveries_should_have_taken(db):
    """A heartbeat that asked for a longer lease, and a policy that keeps a queue from recovery."""
    db.now = START
    job = db.ask("SELECT id FROM leasehold.enqueue('mail', 'x')", WORKER)
    token = db.ask("SELECT token FROM leasehold.claim('w1', 'mail', 1, '1 s')", WORKER)
    db.ask(f"SELECT leasehold.heartbeat({job}, {token}, '1 h')", WORKER)
    db.now += 10 * MINUTE
    expect_equal(db.ask("SELECT lease_s, health FROM leasehold.stale_monitor", READER), "3600|OK",
                 "the present lease counts")
    validation = "SELECT count(*) FROM leasehold.stale_validation"
    expect_equal(db.ask(validation, READER), "0", "a healthy job")
    db.now += 120 * MINUTE
    expect_equal(db.ask(validation, READER), "1", "beyond twice its lease")
    db.ask("SELECT leasehold.queue_set('mail', recovery => false)", WORKER)
    expect_equal(db.ask(validation, READER), "0", "kept from recovery on purpose")
    db.ask("UPDATE leasehold.policy SET recovery = true")
    db.ask("UPDATE leasehold.meta SET no_expiry_before = 'infinity'")
    expect_equal(db.ask(validation, READER), "0", "expiry is held back")


@test
def at_the_tenth_attempt_a_reclaimed_job_is_dead(db):
    """Test 3."""
    claim_tsa(db, attempts=10)
    db.ask("SELECT leasehold.recover()", WORKER)
    state, attempt, error = db.ask("SELECT state, attempt, last_error FROM leasehold.job",
                                   READER).split("|")
    expect_equal((state, attempt), ("failed", "10"), "the job")
    expect("Max attempts reached (10)" in error, error)


# ---------------------------------------------------------------- leases that expire (S004)

@test
def a_claim_takes_the_best_and_skips_what_another_is_taking(db):
    """By priority, then age; in two transactions at once."""
    db.ask("INSERT INTO leasehold.job(queue, priority, payload) VALUES ('sync', 0, 'old'),"
           " ('sync', 5, 'high'), ('sync', 0, 'new')", WORKER)
    first = subprocess.Popen(["psql", "-X", "-q", "-At", "-d", db.name], text=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             env={**db.server.environment(), "PGUSER": WORKER})
    first.stdin.write("BEGIN;\nSELECT payload FROM leasehold.claim('a', 'sync');\n")
    first.stdin.flush()
    expect_equal(first.stdout.readline().strip(), "high", "the first")
    expect_equal(db.ask("SELECT payload FROM leasehold.claim('b', 'sync')", WORKER), "old",
                 "the second, while the first is not committed")
    first.communicate("ROLLBACK;\n")
    expect_equal(db.ask("SELECT payload FROM leasehold.claim('c', 'sync')", WORKER), "high",
                 "after the rollback")


@test
def only_its_holder_beats_for_a_job_and_only_before_the_lease_has_ended(db):
    db.now = START
    job, token = db.ask("SELECT leasehold.enqueue('sync', 'x') \\gset\n"
                        "SELECT id, token FROM leasehold.claim('a', 'sync', lease => '5 min')",
                        WORKER).split("|")
    beat = f"SELECT lease_until FROM leasehold.heartbeat({job}, {token})"
    db.now += 4 * MINUTE
    db.ask(beat, WORKER)
    db.refused(f"SELECT leasehold.heartbeat({job}, {int(token) + 1})", WORKER, "ERROR")
    db.now += 5 * MINUTE - 1
    expect_equal(db.ask("SELECT derived_state FROM leasehold.job_state", READER), "RUNNING",
                 "in its last millisecond")
    db.now += 1
    expect_equal(db.ask("SELECT derived_state FROM leasehold.job_state", READER), "EXPIRED",
                 "at its deadline")
    db.refused(beat, WORKER, "ERROR")
    # No cleanup is needed: the next worker has it.
    expect_equal(db.ask("SELECT id FROM leasehold.claim('b', 'sync')", WORKER), job, "the next")
    db.refused(f"SELECT leasehold.complete({job}, {token})", WORKER, "ERROR")


@test
def completed_and_failed_are_final(db):
    db.ask("SELECT leasehold.enqueue('sync', 'x'); SELECT leasehold.enqueue('sync', 'y')", WORKER)
    (done, one), (lost, two) = (line.split("|") for line in db.ask(
        "SELECT id, token FROM leasehold.claim('a', 'sync', 2)", WORKER).splitlines())
    db.ask(f"SELECT leasehold.complete({done}, {one}, 'ok')", WORKER)
    db.ask(f"SELECT leasehold.fail({lost}, {two}, 'broken', permanent => true)", WORKER)
    expect_equal(db.ask("SELECT derived_state FROM leasehold.job_state ORDER BY job_id", READER),
                 "COMPLETED\nFAILED", "states")
    expect_equal(db.ask("SELECT result, worker IS NULL, lease_until IS NULL FROM leasehold.job"
                        f" WHERE id = {done}", READER), "ok|t|t", "what is left of the lease")
    expect_equal(db.ask(f"SELECT last_error FROM leasehold.job WHERE id = {lost}", READER), "broken",
                 "the error")
    db.ask(f"SELECT leasehold.complete({done}, {one}, 'ok')", WORKER)  # a repeat succeeds
    for sql in (f"leasehold.fail({done}, {one}, 'no')", f"leasehold.complete({lost}, {two})",
                f"leasehold.cancel({done})"):
        db.refused(f"SELECT {sql}", WORKER, "ERROR")


@test
def a_chunk_is_claimed_extended_and_completed_with_its_rows(db):
    db.now = START
    take = "SELECT owner, token FROM leasehold.lease_acquire('sync', 'm1:abc', '{}', '2 min')"
    owner, token = db.ask(take.format("w1"), WORKER).split("|")
    expect_equal(owner, "w1", "the holder")
    db.refused(take.format("w2"), WORKER, "ERROR")
    db.now += MINUTE
    db.ask("SELECT leasehold.lease_extend('sync', 'm1:abc', 'w1', ttl => '2 min')", WORKER)
    db.now += 2 * MINUTE  # w1 has crashed
    owner, later = db.ask(take.format("w2"), WORKER).split("|")
    expect(int(later) > int(token), "the token has risen")
    db.refused("SELECT leasehold.lease_extend('sync', 'm1:abc', 'w1')", WORKER, "ERROR")
    db.ask("SELECT leasehold.lease_complete('sync', 'm1:abc', 'w2', rows => 500)", WORKER)
    expect_equal(db.ask("SELECT owner IS NULL, rows, last_completed_at = 'epoch'::timestamptz"
                        f" + {db.now} * interval '1 ms' FROM leasehold.lease", READER), "t|500|t",
                 "what is left")


@test
def an_enqueue_stands_or_falls_with_the_transaction_of_its_caller(db):
    db.ask("CREATE TABLE public.orders (id int); GRANT INSERT ON public.orders TO PUBLIC")
    for end, left in (("ROLLBACK", "0|0"), ("COMMIT", "1|2")):
        db.ask("BEGIN; INSERT INTO public.orders VALUES (1);"
               "INSERT INTO leasehold.job(queue, payload) VALUES ('mail', 'plain');"
               f"SELECT leasehold.enqueue('mail', 'by function'); {end}", WORKER)
        expect_equal(db.ask("SELECT (SELECT count(*) FROM public.orders),"
                            " (SELECT count(*) FROM leasehold.job)"), left, end)


# ---------------------------------------------------------------- pg_cron

CRON = {"shared_preload_libraries": "pg_cron", "cron.database_name": "app",
        "cron.use_background_workers": "on"}
CRON_S = 90  # it starts jobs at full minutes


def stick(of):
    """A job whose worker is gone and whose lease has expired."""
    of.ask("SELECT leasehold.enqueue('mail', 'x');"
           "SELECT leasehold.claim('dead', 'mail', lease => '1 ms')")
    expect_equal(of.ask("SELECT derived_state FROM leasehold.job_state"), "EXPIRED", "the job")


def cron_recovers(bare, program):
    of = make_database(bare, "app", server.TESTER, program)
    bare.psql("app", f"CREATE EXTENSION pg_cron; GRANT USAGE ON SCHEMA cron TO {server.TESTER}")
    stick(of)
    of.ask((server.ROOT / "examples" / "pg_cron.sql").read_text(encoding="utf-8"))
    deadline = time.monotonic() + CRON_S
    runs = "SELECT string_agg(DISTINCT status || return_message, ', ') FROM cron.job_run_details"
    while of.ask("SELECT state FROM leasehold.job") != "pending":
        expect(time.monotonic() < deadline, f"pg_cron recovered nothing: {bare.psql('app', runs)}")
        time.sleep(0.2)
    # The other one was started with it, and waits.
    expect_equal(of.ask("SELECT count(DISTINCT jobid) FROM cron.job_run_details"), "2", "started")


@test
def the_recipe_for_pg_cron_recovers_a_stuck_job(db):
    with server.Folder() as folder, server.Server(folder, "cron", CRON) as bare:
        cron_recovers(bare, db.program)


@test
def what_pg_cron_cannot_do_is_a_warning_and_not_a_failure(db):
    """Both cron entries, run by hand, with and without a failing recovery."""
    text = (server.ROOT / "examples" / "pg_cron.sql").read_text(encoding="utf-8")
    commands = re.findall(r"\$cron\$(.*?)\$cron\$", text, re.S)
    expect_equal(["pg_sleep(30)" in command for command in commands], [False, True], "who waits")
    for command in commands:
        at_once = command.replace("pg_sleep(30)", "pg_sleep(0)")
        stick(db)
        db.ask("ALTER FUNCTION leasehold.maintain() RENAME TO elsewhere")
        db.ask(at_once)
        expect_equal(db.ask("SELECT state FROM leasehold.job"), "running", "the job")
        db.ask("ALTER FUNCTION leasehold.elsewhere() RENAME TO maintain")
        db.ask(at_once)
        expect_equal(db.ask("SELECT state FROM leasehold.job"), "pending", "the job")
        db.ask("SELECT leasehold.delete(max(id)) FROM leasehold.job")


# ---------------------------------------------------------------- running

class Cases:
    """A fresh database for each."""

    def __init__(self, postgres, program):
        self.postgres, self.program, self.count = postgres, program, 0

    def run(self, case):
        self.count += 1
        name = f"case_{self.count}"
        self.postgres.make_database(name)
        began = time.monotonic()
        try:
            case(Database(self.postgres, name, self.program))
            return [], time.monotonic() - began
        except (Complaint, replica.tap.Complaint, server.Failed, ValueError, KeyError, IndexError,
                subprocess.SubprocessError) as problem:
            return str(problem).splitlines() or [repr(problem)], time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("patterns", nargs="*", metavar="NAME | GLOB")
    options = parser.parse_args()
    chosen = [case for case in TESTS if not options.patterns
              or any(fnmatch.fnmatchcase(case.__name__, pattern) for pattern in options.patterns)]
    if options.list:
        print("\n".join(case.__name__ for case in chosen))
        return 0
    if not chosen:
        sys.exit("sql.py: no test matches")
    failed = 0
    print(f"TAP version 13\n1..{len(chosen)}", flush=True)
    try:
        with server.Folder() as folder, server.Server(folder) as postgres:
            postgres.make_template([options.program, "migrate"])
            logins(postgres)
            cases = Cases(postgres, options.program)
            for number, case in enumerate(chosen, 1):
                complaints, seconds = cases.run(case)
                failed += bool(complaints)
                print(f"{'not ok' if complaints else 'ok'} {number} - {case.__name__}"
                      + (f" # {seconds:.1f} s" if seconds > 2 else ""))
                for line in complaints:
                    print(f"#   {line}")
                sys.stdout.flush()
    except server.Failed as error:
        print(f"Bail out! {' '.join(str(error).split())}", flush=True)
        return 2
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
