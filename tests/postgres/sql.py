#!/usr/bin/env python3
"""What PostgreSQL alone gives: roles, views, the acts by psql, and the way back.

    tests/postgres/sql.py --program leasehold [--list] [NAME | GLOB]...

Every login here is a real one. Each test has a database of its own, in which time stands where the
test sets it (`SET leasehold.test_now`), or goes on.
"""

import argparse
import fnmatch
import json
import re
import subprocess
import sys
import time
import urllib.parse

import server

WORKER, READER, STRANGER = "app_worker", "app_reader", "app_stranger"
MINUTE = 60000
START = 1768473000000  # 2026-01-15T10:30:00Z
DENIED = "permission denied"
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

    def ask(self, sql, user=server.TESTER):
        """What the last statement printed; each line is a row, columns are separated by |."""
        before = f"SET leasehold.test_now = '{self.now}';\n" if self.now is not None else ""
        return self.server.psql(self.name, before + sql, user).strip()

    def refused(self, sql, user, part):
        """It must be refused, for this reason."""
        try:
            said = self.ask(sql, user)
        except server.Failed as error:
            expect(part in str(error), f"{user}: {sql}\nwas refused for another reason: {error}")
            return
        raise Complaint(f"{user} was not refused: {sql}\n{said}")

    def url(self, user):
        where = urllib.parse.quote(str(self.server.folder), safe="")
        return (f"postgresql://{user}:{self.server.password}@{where}:{self.server.port}"
                f"/{self.name}")

    def run(self, user, *words, code=0, told=""):
        """Our own program as this login; what it printed."""
        done = subprocess.run([self.program, "--store", self.url(user), *words], text=True,
                              capture_output=True, stdin=subprocess.DEVNULL, timeout=60,
                              check=False)
        expect(done.returncode == code and told in done.stderr,
               f"{user}: leasehold {' '.join(words)}: exit code {done.returncode}, expected {code}: "
               f"{done.stderr.strip()}")
        return done.stdout


def logins(of):
    of.psql("postgres", "".join(f"CREATE ROLE {name} LOGIN PASSWORD '{of.password}' {more};\n"
                                for name, more in ((WORKER, "IN ROLE leasehold_worker"),
                                                   (READER, "IN ROLE leasehold_reader"),
                                                   (STRANGER, ""))))


# ---------------------------------------------------------------- who may do what

@test
def nothing_here_is_for_everybody(db):
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


# What is granted though it does not change its user: it reads nothing but what its caller may read.
HARMLESS = {"clock", "closed_words", "due", "ms", "span"}


@test
def every_function_for_clients_was_decided_about(db):
    """A function that acts as its owner is for clients: somebody must be named who may call it, unless it
    is a trigger's. All others are our own, and nobody's."""
    rows = [line.split("|") for line in db.ask("""
        SELECT proname, prosecdef, prorettype = 'trigger'::regtype,
               has_function_privilege('leasehold_worker', oid, 'EXECUTE'),
               has_function_privilege('leasehold_reader', oid, 'EXECUTE'), provolatile,
               coalesce(array_to_string(proconfig, ','), '')
          FROM pg_proc WHERE pronamespace = 'leasehold'::regnamespace""").splitlines()]
    for name, definer, trigger, worker, reader, volatile, config in rows:
        client = definer == "t" and trigger == "f"
        expect((worker == "t") == (client or name in HARMLESS),
               f"{name}: called by clients is {client}, and a worker may call it: {worker}")
        expect(reader == "f" or volatile != "v" or name in HARMLESS,
               f"{name} may change something, and a reader may call it")
        expect(reader == "f" or worker == "t", f"{name} is for readers, and not for workers")
        if definer == "t":
            expect("search_path=pg_catalog, pg_temp" in config,
                   f"{name} acts as its owner, with the search_path of its caller")
    listed = re.findall(r"'([a-z_]+)'", db.ask(
        "SELECT prosrc FROM pg_proc WHERE oid = 'leasehold.admit'::regproc").split("BEGIN")[0])
    expect_equal(sorted(set(listed) - {row[0] for row in rows}), [], "granted, but not there")


@test
def everything_belongs_to_a_role_that_can_do_nothing_else(db):
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
def a_worker_changes_no_table_and_calls_nothing_that_is_ours(db):
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
                "SELECT leasehold.move_close('a', 'b', 'c')", "SELECT leasehold.move_doors(true)",
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
                "SELECT leasehold.queue_pause('mail')", "SELECT leasehold.upkeep()",
                "INSERT INTO leasehold.job(queue) VALUES ('mail')",
                "UPDATE leasehold.job SET priority = 1", "DELETE FROM leasehold.event",
                "SELECT nextval('leasehold.job_id_seq')",
                "SELECT * FROM leasehold.job FOR UPDATE"):
        db.refused(sql, READER, DENIED)


@test
def our_program_works_with_the_rights_of_a_worker(db):
    """Nothing that it calls was forgotten."""
    db.run(WORKER, "enqueue", "mail", "hello", "--key", "k", "--request", "r1")
    job = json.loads(db.run(WORKER, "claim", "mail", "--worker", "w", "--request", "r2"))
    at, token = str(job["id"]), str(job["token"])
    db.run(WORKER, "heartbeat", at, "--token", token, "--progress", "5")
    db.run(WORKER, "release", f"{at}:{token}")
    db.run(WORKER, "work", "mail", "--drain", "--", "true")
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
        db.run(WORKER, *words)


@test
def our_program_works_with_the_rights_of_a_reader(db):
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
def no_search_path_of_a_caller_leads_an_act_astray(db):
    db.ask("CREATE SCHEMA trap; GRANT ALL ON SCHEMA trap TO PUBLIC")
    said = db.ask("""
        CREATE FUNCTION trap.format(text, text) RETURNS text LANGUAGE plpgsql
            AS $$ BEGIN RAISE EXCEPTION 'trapped as %', current_user; END $$;
        CREATE FUNCTION trap.cardinality(anyarray) RETURNS integer LANGUAGE plpgsql
            AS $$ BEGIN RAISE EXCEPTION 'trapped as %', current_user; END $$;
        CREATE FUNCTION trap.octet_length(text) RETURNS integer LANGUAGE plpgsql
            AS $$ BEGIN RAISE EXCEPTION 'trapped as %', current_user; END $$;
        CREATE TEMP TABLE job (LIKE leasehold.job);
        CREATE TEMP TABLE meta (one boolean, epoch bigint);
        SET search_path = trap, pg_temp, public, pg_catalog;
        SELECT count(*) FROM leasehold.enqueue('mail', 'x');
        SELECT count(*) FROM leasehold.claim('w', 'mail') \\gset
        SELECT leasehold.complete(id, token) IS NOT NULL FROM leasehold.job;
        SELECT count(*) FROM pg_temp.job""", WORKER).splitlines()
    expect_equal(said[-1], "0", "rows in the table of the caller")
    expect_equal(db.ask("SELECT state FROM leasehold.job"), "completed", "the job")


# ---------------------------------------------------------------- where roles cannot be had

def migrations():
    return "".join(path.read_text(encoding="utf-8") + "\n"
                   for path in sorted(server.MIGRATIONS.glob("*/*.sql")))


def with_bare_server(db, body):
    """A server on which nobody has made our roles."""
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
               'access is "owner": worker or reader is allowed')
    of.refused("UPDATE leasehold.job SET priority = 1", WORKER, DENIED)


@test
def where_no_role_can_be_made_everything_stays_with_the_user(db):
    with_bare_server(db, without_roles)


def drop_one_after_another(bare, program):
    one = make_database(bare, "one", server.TESTER, program)
    two = make_database(bare, "two", server.TESTER, program)
    roles = "SELECT count(*) FROM pg_roles WHERE rolname ~ '^leasehold_'"
    for of, left in ((one, "3"), (two, "0")):
        of.ask("CREATE TABLE public.mine (x int); INSERT INTO public.mine VALUES (1);"
               "SELECT leasehold.enqueue('mail', 'x')")
        of.ask(of.run(server.TESTER, "migrate", "--drop-sql"))
        expect_equal(of.ask("SELECT count(*) FROM pg_namespace WHERE nspname = 'leasehold'"), "0",
                     "our schema")
        expect_equal(of.ask("SELECT x FROM public.mine"), "1", "tables of others")
        expect_equal(of.ask(roles), left, f"roles after {of.name}")
    two.run(server.TESTER, "migrate")  # and it can be had again
    two.run(server.TESTER, "enqueue", "mail", "x")


@test
def what_drop_sql_prints_removes_everything_and_the_roles_with_the_last_database(db):
    with_bare_server(db, drop_one_after_another)


# ---------------------------------------------------------------- reclaim by time to live (S002)

def claim_tsa(db, attempts=1):
    """A job of half an hour, at its Nth attempt, with a worker that is dead by now."""
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
def a_job_of_a_dead_worker_is_waiting_again_after_its_half_hour(db):
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
    """By priority, then age; in two transactions at once, each its own."""
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
    # Nothing has to be cleaned up: the next one has it.
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
    db.ask(f"SELECT leasehold.complete({done}, {one}, 'ok')", WORKER)  # a repeat is done
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
CRON_S = 90  # it starts what is due at full minutes


def stick(of):
    """A job whose worker is gone, and whose lease has ended."""
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
    # The other one has been started with it, and waits.
    expect_equal(of.ask("SELECT count(DISTINCT jobid) FROM cron.job_run_details"), "2", "started")


@test
def the_recipe_for_pg_cron_recovers_a_stuck_job(db):
    with server.Folder() as folder, server.Server(folder, "cron", CRON) as bare:
        cron_recovers(bare, db.program)


@test
def what_pg_cron_cannot_do_is_a_warning_and_not_a_failure(db):
    """The first entry, by hand, where recovery fails."""
    text = (server.ROOT / "examples" / "pg_cron.sql").read_text(encoding="utf-8")
    command = re.search(r"\$cron\$(.*?)\$cron\$", text, re.S)[1]
    stick(db)
    db.ask("ALTER FUNCTION leasehold.maintain() RENAME TO elsewhere")
    db.ask(command)
    expect_equal(db.ask("SELECT state FROM leasehold.job"), "running", "the job")
    db.ask("ALTER FUNCTION leasehold.elsewhere() RENAME TO maintain")
    db.ask(command)
    expect_equal(db.ask("SELECT state FROM leasehold.job"), "pending", "the job")


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
        except (Complaint, server.Failed, ValueError, KeyError, IndexError,
                subprocess.TimeoutExpired) as problem:
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
