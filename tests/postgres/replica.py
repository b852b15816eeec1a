"""A primary and its standbys, copied from one data folder, so that a pair takes only a second.

    with Origin(folder, program) as origin, origin.primary("a") as a, a.standby("b") as b:
        a.wait_for_standby("b")
        a.be_synchronous()
        a.kill()
        b.promote()
"""

import os
import subprocess

import server
import tap

DATABASE = "queue"
PATIENCE_S = 60  # seconds; a busy machine may need them
REPLICATED = {"wal_level": "replica", "max_wal_senders": "8", "wal_retrieve_retry_interval": "200ms",
              "hot_standby": "on", "checkpoint_timeout": "30min"}


class Node(server.Server):
    """One server of a cluster: a copy of `of`, or a standby of it."""

    def __init__(self, folder, name, of, follows):
        super().__init__(folder, name, REPLICATED)
        self.place, self.of, self.follows, self.password = folder, of, follows, of.password

    def __enter__(self):
        try:
            self.create()
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def create(self):
        if self.follows:
            where = (f"host={self.folder} port={self.of.port} user={server.ADMIN} "
                     f"application_name={self.name}")
            command = [self.bin / "pg_basebackup", "-R", "-X", "stream", "-c", "fast", "--no-sync",
                       "-D", self.data, "-d", where]
        else:
            command = ["cp", "-a", "--reflink=auto", self.of.data, self.data]
        made = server.start(command, self.log, env={**os.environ, "PGPASSWORD": self.password})
        if made.wait() != 0:
            raise server.Failed(f"{command[0]} failed: {server.tail(self.log)}")

    def standby(self, name):
        return Node(self.place, name, self, True)

    # ---- what is done to it

    def ask(self, sql, user=server.TESTER):
        return self.psql(DATABASE, sql, user).strip()

    def settle(self, name, value):
        """A setting, for this server and for its next start."""
        self.psql("postgres", f"ALTER SYSTEM SET {name} = '{value}'")
        self.psql("postgres", "SELECT pg_reload_conf()")

    def streams_to(self, name):
        return self.psql("postgres", "SELECT sync_state FROM pg_stat_replication WHERE state = "
                                     f"'streaming' AND application_name = '{name}'").strip()

    def wait_for_standby(self, name):
        tap.wait_for(lambda: self.streams_to(name), f"{name} follows", PATIENCE_S)

    def be_synchronous(self, name):
        """From now on a commit is acknowledged only when the standby has it."""
        self.wait_for_standby(name)
        self.settle("synchronous_standby_names", name)
        tap.wait_for(lambda: self.streams_to(name) == "sync", f"{name} is synchronous", PATIENCE_S)

    def has_replayed(self, lsn):
        return self.psql("postgres", f"SELECT pg_last_wal_replay_lsn() >= '{lsn}'").strip() == "t"

    def stop_following(self):
        """The standby receives nothing of what the primary does from now on."""
        self.settle("primary_conninfo", "")
        tap.wait_for(lambda: self.psql("postgres",
                                       "SELECT count(*) FROM pg_stat_wal_receiver").strip() == "0",
                     f"{self.name} has stopped following", PATIENCE_S)

    def promote(self):
        self.psql("postgres", "SELECT pg_promote(true, 60)")
        expected = self.psql("postgres", "SELECT pg_is_in_recovery()").strip()
        tap.expect_equal(expected, "f", f"{self.name} is in recovery")


class Origin:
    """The data folder from which primaries are copied: it has one database with an empty store."""

    def __init__(self, folder, program):
        self.folder, self.program = folder, program
        self.server = server.Server(folder, "origin", REPLICATED)

    def __enter__(self):
        with self.server as origin:
            origin.psql("postgres", f"CREATE DATABASE {DATABASE} OWNER {server.TESTER}")
            done = subprocess.run([self.program, "migrate", "--store", origin.url(DATABASE)],
                                  text=True, check=False, capture_output=True)
            if done.returncode != 0:
                raise server.Failed(f"leasehold migrate: {done.stderr.strip()}")
            origin.stop()
        return self

    def __exit__(self, *_):
        pass

    def primary(self, name):
        return Node(self.folder, name, self.server, False)


def url_of(*nodes):
    """A URL of all hosts that leads to the primary."""
    first = nodes[0]
    where = str(first.folder).replace("/", "%2F")
    hosts = ",".join(f"{where}:{node.port}" for node in nodes)
    return (f"postgresql://{server.TESTER}:{first.password}@{hosts}/{DATABASE}"
            "?target_session_attrs=read-write")
