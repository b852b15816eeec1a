"""PostgreSQL servers for tests, and PgBouncer in front of them.

    with Folder() as folder, Server(folder) as server:
        server.make_template(migrate=["leasehold", "migrate"])
        server.make_database("one")
        print(server.url("one"))

A server lives in a folder of its own, on a Unix socket and a loopback port, as a user without
privileges if this process is root. Nothing of it outlives this process: servers get a signal when the
process that started them dies, and a watchdog in a session of its own then removes the folder. Keep
the thread that starts a server alive: the signal comes when that one ends.

Tests connect as an ordinary role that owns its databases: nothing may need a superuser.
"""

import ctypes
import os
import pathlib
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import sql_template  # noqa: E402

MIGRATIONS = ROOT / "sql" / "postgres" / "migrations"
TEMPLATE = "template_leasehold"
ADMIN, TESTER = "admin", "tester"
START_S, STOP_S = 30, 30

# Tests control the time: ms since 1970, which the library under test passes to the server. Where the time
# stands still, nothing takes time, so results do not depend on how busy the machine is. A test of what
# is done less often because it is slow sets leasehold.test_stopwatch to 'real'.
FROZEN_CLOCK = """
CREATE OR REPLACE FUNCTION leasehold.clock() RETURNS timestamptz LANGUAGE sql VOLATILE
RETURN coalesce(timestamptz 'epoch' + nullif(current_setting('leasehold.test_now', true), '')::bigint
                                      * interval '1 millisecond',
                date_trunc('milliseconds', clock_timestamp()));
CREATE OR REPLACE FUNCTION leasehold.stopwatch() RETURNS timestamptz LANGUAGE sql VOLATILE
RETURN CASE WHEN current_setting('leasehold.test_now', true) <> ''
                 AND coalesce(current_setting('leasehold.test_stopwatch', true), '') <> 'real'
            THEN transaction_timestamp() ELSE clock_timestamp() END;
"""

# Resets a database to the state of the template, with a new identity. Small
# tables are emptied row by row, which is cheaper than new files. True: the schema is unchanged.
RESET = """
CREATE SCHEMA leasehold_test;
CREATE FUNCTION leasehold_test.schema() RETURNS text LANGUAGE sql AS $$
    WITH ours AS MATERIALIZED (SELECT c.oid, c.relname, c.relkind, c.relacl FROM pg_class c
                                WHERE c.relnamespace = 'leasehold'::regnamespace
                                  AND NOT c.relispartition)
    SELECT md5(string_agg(x, ' ' ORDER BY x)) FROM (
        SELECT format('%s %s %s %s', oid, relname, relkind, relacl) FROM ours UNION ALL
        SELECT format('%s %s %s', attrelid, attnum, a.xmin)
          FROM pg_attribute a JOIN ours ON oid = attrelid UNION ALL
        SELECT format('%s %s', k.oid, k.xmin)
          FROM pg_constraint k JOIN ours o ON o.oid = conrelid UNION ALL
        SELECT format('%s %s %s', t.oid, tgname, tgenabled)
          FROM pg_trigger t JOIN ours o ON o.oid = tgrelid UNION ALL
        SELECT format('%s %s', p.oid, p.xmin) FROM pg_proc p
         WHERE pronamespace IN ('leasehold'::regnamespace, 'public'::regnamespace)) s(x)
$$;
DO $$  -- what the migration has put into tables, under their names
DECLARE
    r   record;
    filled boolean;
BEGIN
    FOR r IN SELECT c.relname FROM pg_class c
              WHERE c.relnamespace = 'leasehold'::regnamespace AND c.relkind = 'r' LOOP
        EXECUTE format('SELECT EXISTS (SELECT 1 FROM leasehold.%I)', r.relname) INTO filled;
        IF filled THEN
            EXECUTE format('CREATE TABLE leasehold_test.%I AS SELECT * FROM leasehold.%1$I', r.relname);
        END IF;
    END LOOP;
END $$;
CREATE SCHEMA leasehold_made;
CREATE TABLE leasehold_made.sequence AS
    SELECT schemaname || '.' || sequencename AS name, start_value,
           last_value FROM pg_sequences WHERE schemaname = 'leasehold';
CREATE TABLE leasehold_made.fingerprint AS SELECT leasehold_test.schema() AS schema;
CREATE FUNCTION leasehold_test.reset() RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    r record;
BEGIN
    SET LOCAL session_replication_role = replica;  -- no triggers
    FOR r IN SELECT c.oid::regclass AS name FROM pg_class c JOIN pg_inherits i ON i.inhrelid = c.oid
              WHERE i.inhparent = 'leasehold.event'::regclass AND c.relname <> 'event_default' LOOP
        EXECUTE format('DROP TABLE %s', r.name);
    END LOOP;
    FOR r IN SELECT c.oid::regclass AS name, pg_relation_size(c.oid) > 65536 AS large FROM pg_class c
              WHERE c.relnamespace = 'leasehold'::regnamespace AND c.relkind = 'r' LOOP
        EXECUTE format(CASE WHEN r.large THEN 'TRUNCATE %s' ELSE 'DELETE FROM %s' END, r.name);
    END LOOP;
    FOR r IN SELECT relname FROM pg_class WHERE relnamespace = 'leasehold_test'::regnamespace
                                            AND relkind = 'r' LOOP
        EXECUTE format('INSERT INTO leasehold.%I OVERRIDING SYSTEM VALUE SELECT * FROM leasehold_test.%1$I',
                       r.relname);
    END LOOP;
    UPDATE leasehold.meta SET uuid = gen_random_uuid();
    UPDATE leasehold.crash_marker SET xid = xmin;  -- it is no copy
    PERFORM setval(name, coalesce(last_value, start_value), last_value IS NOT NULL)
       FROM leasehold_made.sequence;
    RETURN leasehold_test.schema() = (SELECT schema FROM leasehold_made.fingerprint);
END $$;
"""

# Durable enough for tests of behaviour: a killed server keeps what the kernel has; only a machine
# that loses power would lose it.
QUICK = {"fsync": "off", "full_page_writes": "off"}
SMALL = {"shared_buffers": "64MB", "max_connections": "300", "max_wal_size": "512MB",
         "wal_level": "minimal", "max_wal_senders": "0", "log_min_messages": "warning",
         "log_checkpoints": "off", "jit": "off", "password_encryption": "md5"}


class Failed(Exception):
    """A server or tool that the tests need does not work; has its name and its output."""


# ---------------------------------------------------------------- processes

def _prctl_death(sig):
    libc = ctypes.CDLL(None)  # loaded here: not between fork and exec

    def call():
        libc.prctl(1, sig)  # PR_SET_PDEATHSIG
    return call


def dies_with_us(sig=signal.SIGKILL):
    """For preexec_fn: the process gets this signal when its parent dies."""
    return _prctl_death(sig)


def unprivileged():
    """The user that runs servers: the current one, or an unprivileged one if that is root."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid())
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise Failed("run as root, and there is neither a user postgres nor nobody for the server")


def start(command, log, sig=signal.SIGKILL, **more):
    """Start a server process that dies with this process."""
    who = unprivileged()
    if os.geteuid() == 0:
        more.update(user=who.pw_uid, group=who.pw_gid, extra_groups=[])
    with open(log, "ab") as output:
        # A session of its own, so that Ctrl-C and signals to a process group reach only this process.
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                start_new_session=True, preexec_fn=dies_with_us(sig), **more)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(condition, process, what, log):
    deadline = time.monotonic() + START_S
    while not condition():
        if process.poll() is not None:
            raise Failed(f"{what} ended with {process.returncode}: {tail(log)}")
        if time.monotonic() > deadline:
            raise Failed(f"{what} did not answer in {START_S} s: {tail(log)}")
        time.sleep(0.02)


def tail(log):
    try:
        return pathlib.Path(log).read_text(encoding="utf-8", errors="replace")[-2000:].strip()
    except OSError as error:
        return str(error)


def bindir():
    """The folder of the server's programs, which Debian keeps out of $PATH."""
    try:
        said = subprocess.run(["pg_config", "--bindir"], capture_output=True, text=True, check=True)
        return pathlib.Path(said.stdout.strip())
    except (OSError, subprocess.CalledProcessError) as error:
        raise Failed(f"pg_config does not say where PostgreSQL is: {error}") from error


class Folder:
    """A folder that the server's user may write to; it is removed at the end."""

    WATCHDOG = 'trap "" INT TERM HUP; cat; while ! rm -rf "$0"; do sleep 0.1; done'

    def __init__(self, parent=None):
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="lhpg-", dir=parent)).resolve()
        who = unprivileged()
        if os.geteuid() == 0:
            os.chown(self.path, who.pw_uid, who.pw_gid)
        self.path.chmod(0o755)  # every user may connect to its sockets; the data folder is private
        self.watchdog = subprocess.Popen(["/bin/sh", "-c", self.WATCHDOG, str(self.path)],
                                         stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                         stderr=subprocess.DEVNULL, start_new_session=True)

    def close(self):
        shutil.rmtree(self.path, ignore_errors=True)
        self.watchdog.stdin.close()
        self.watchdog.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


# ---------------------------------------------------------------- the server

class Server:
    """A PostgreSQL server that is small and quick; `settings` are added."""

    def __init__(self, folder, name="pg", settings=None, quick=True):
        self.folder, self.name = folder.path, name
        self.data, self.log = folder.path / f"{name}-data", folder.path / f"{name}.log"
        self.settings = {**SMALL, **(QUICK if quick else {}), **(settings or {})}
        self.password = secrets.token_hex(16)
        self.bin = bindir()
        self.port = self.process = None

    def __enter__(self):
        try:
            self.create()
            self.start()
            self.psql("postgres", f"CREATE ROLE {TESTER} LOGIN CREATEROLE"
                                  f" PASSWORD '{self.password}'")
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_):
        self.kill()  # nothing in it needs an orderly shutdown

    def create(self):
        secret = self.folder / "secret"
        secret.write_text(self.password + "\n", encoding="ascii")
        secret.chmod(0o600)
        if os.geteuid() == 0:
            os.chown(secret, unprivileged().pw_uid, -1)
        made = start([self.bin / "initdb", "-N", "-A", "md5", "-U", ADMIN, "-E", "UTF8",
                      "--locale=C.UTF-8", f"--pwfile={secret}", "-D", self.data], self.log)
        if made.wait() != 0:
            raise Failed(f"initdb failed: {tail(self.log)}")
        secret.unlink()

    def start(self):
        """Start it; a restart uses the same port."""
        chosen = self.port is not None
        for _ in range(5):
            self.port = self.port if chosen else free_port()
            settings = {"listen_addresses": "127.0.0.1", **self.settings, "port": self.port,
                        "unix_socket_directories": self.folder}
            words = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
            self.process = self.launch([self.bin / "postgres", "-D", self.data, *words])
            try:
                wait_until(self.answers, self.process, "PostgreSQL", self.log)
                return
            except Failed:
                self.kill()
                if chosen or "Address already in use" not in tail(self.log):
                    raise
        raise Failed("there is no free port on the loopback interface")

    def launch(self, command):
        # SIGQUIT: exit at once, with all backends.
        return start(command, self.log, signal.SIGQUIT)

    def answers(self):
        ready = subprocess.run([self.bin / "pg_isready", "-q", "-h", self.folder, "-p",
                                str(self.port)], check=False)
        return ready.returncode == 0

    def stop(self):
        """A fast shutdown that does not wait for clients."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(STOP_S)
        self.process = None

    def kill(self):
        """SIGKILL the server, and wait for its backends to notice and exit."""
        if self.process is None:
            return
        self.process.kill()
        self.process.wait()
        self.process = None
        deadline = time.monotonic() + STOP_S
        while self.backends() and time.monotonic() < deadline:
            time.sleep(0.02)

    def backends(self):
        """Processes that still use the data folder."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.path.samefile(f"/proc/{pid}/cwd", self.data):
                    found.append(int(pid))
            except OSError:
                continue
        return found

    # ---- clients

    def environment(self):
        return {**os.environ, "PGHOST": str(self.folder), "PGPORT": str(self.port),
                "PGUSER": ADMIN, "PGPASSWORD": self.password, "PGOPTIONS": ""}

    def psql(self, database, sql, user=ADMIN, options=()):
        """Run SQL with one transaction per statement; returns the output."""
        done = subprocess.run(
            ["psql", "-X", "-q", "-At", "-v", "ON_ERROR_STOP=1", "-d", database, *options],
            input=sql, env={**self.environment(), "PGUSER": user}, capture_output=True, text=True,
            check=False)
        if done.returncode != 0:
            raise Failed(f"psql: {done.stderr.strip()}")
        return done.stdout

    def url(self, database, host=None, port=None):
        """For the tester; by the socket unless another host and port are named."""
        where = urllib.parse.quote(str(host or self.folder), safe="")
        return (f"postgresql://{TESTER}:{self.password}@{where}:{port or self.port}"
                f"/{database}")

    # ---- databases

    def make_template(self, migrate=None):
        """The database from which others are copied: our schema, and a clock that tests can stop."""
        self.psql("postgres", f"CREATE DATABASE {TEMPLATE} OWNER {TESTER}")
        if migrate:
            done = subprocess.run([*migrate, "--store", self.url(TEMPLATE)], text=True, check=False,
                                  capture_output=True)
            if done.returncode != 0:
                raise Failed(f"{' '.join(map(str, migrate))}: exit code {done.returncode}: "
                             f"{done.stderr.strip()}")
        else:
            text = sql_template.Template(MIGRATIONS.parent).expand(
                "".join(path.read_text(encoding="utf-8") for path in sorted(MIGRATIONS.glob("*/*.sql"))))
            self.psql(TEMPLATE, text, TESTER, ["--single-transaction"])
        self.psql(TEMPLATE, FROZEN_CLOCK, TESTER)
        self.psql(TEMPLATE, RESET)
        # A session that ends normally writes the catalog's cache file, which copies then have.
        self.psql(TEMPLATE, "SELECT 1")
        self.psql("postgres", f"ALTER DATABASE {TEMPLATE} WITH ALLOW_CONNECTIONS false")

    def make_database(self, name):
        self.psql("postgres", self.copy_of_template(name))

    @staticmethod
    def copy_of_template(name):
        # Copying files is twice as fast as writing the copy to the log, for a template as small.
        return f"CREATE DATABASE {name} TEMPLATE {TEMPLATE} STRATEGY file_copy OWNER {TESTER}"


# ---------------------------------------------------------------- the pooler

class Pooler:
    """PgBouncer in transaction mode: each transaction on whatever connection is free."""

    def __init__(self, folder, server):
        self.folder, self.server = folder.path, server
        self.log = folder.path / "pgbouncer.log"
        self.port = self.process = None

    def __enter__(self):
        program = shutil.which("pgbouncer", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
        if program is None:
            raise Failed("pgbouncer is not installed")
        self.port = free_port()
        config, users = self.folder / "pgbouncer.ini", self.folder / "users.txt"
        for path, text in ((users, f'"{TESTER}" "{self.server.password}"\n'),
                           (config, self.config(users))):
            path.touch(0o600)
            path.write_text(text, encoding="utf-8")
            if os.geteuid() == 0:
                os.chown(path, unprivileged().pw_uid, -1)
        self.process = start([program, "-q", config], self.log)
        wait_until(self.answers, self.process, "PgBouncer", self.log)
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def config(self, users):
        # Small pools whose connections change clients: a client that relies on session state fails.
        return "\n".join([
            "[databases]",
            f"* = host={self.server.folder} port={self.server.port}",
            "[pgbouncer]", "pool_mode = transaction", "listen_addr = 127.0.0.1",
            f"listen_port = {self.port}", f"unix_socket_dir = {self.folder}",
            "auth_type = md5", f"auth_file = {users}", "max_client_conn = 1000",
            "default_pool_size = 8", "server_idle_timeout = 10", "log_connections = 0",
            "log_disconnections = 0", "log_stats = 0", "server_round_robin = 1", ""])

    def answers(self):
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1):
                return True
        except OSError:
            return False

    def url(self, database):
        return self.server.url(database, self.folder, self.port)
