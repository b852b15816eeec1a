#!/usr/bin/env python3
"""Repeated failovers by Patroni: the leader is killed under load, and nothing is lost.

    tests/postgres/patroni.py --build BUILD [--kills N]

Patroni and etcd are Debian's, started here in a temporary folder on loopback ports, as a user without
privileges. The leader is killed with all its processes, the other node takes over, the killed one
returns as its standby; when that is synchronous, the new leader is killed. Clients (tests/torture) log
every call, and history.py checks the log. Exits with 0 if the log is possible.
"""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import types
import urllib.parse
import urllib.request

import failover
import server
import tap

PATIENCE_S = 120
LOAD = 60  # jobs between two kills
CONFIG = """
scope: torture
name: {name}
restapi: {{listen: "127.0.0.1:{rest}", connect_address: "127.0.0.1:{rest}"}}
etcd3: {{host: "127.0.0.1:{etcd}"}}
bootstrap:
  dcs:
    ttl: 8
    loop_wait: 1
    retry_timeout: 3
    maximum_lag_on_failover: 0
    synchronous_mode: true
    postgresql:
      use_pg_rewind: true
      parameters: {{wal_log_hints: "on", max_connections: 200, synchronous_commit: "on",
                    wal_keep_size: "256MB"}}
  initdb: [{{encoding: UTF8}}, {{locale: C.UTF-8}}, no-sync, data-checksums]
postgresql:
  listen: "127.0.0.1:{port}"
  connect_address: "127.0.0.1:{port}"
  data_dir: {data}
  bin_dir: {bin}
  pgpass: {folder}/{name}.pgpass
  pg_hba: ["local all all trust", "host all all 127.0.0.1/32 md5",
           "host replication all 127.0.0.1/32 md5"]
  parameters: {{unix_socket_directories: {folder}, fsync: "off", shared_buffers: 64MB,
                password_encryption: md5}}
  authentication:
    superuser: {{username: {admin}, password: {password}}}
    replication: {{username: replicator, password: {password}}}
    rewind: {{username: {admin}, password: {password}}}
"""


class Etcd:
    """The store in which Patroni keeps who leads."""

    def __init__(self, folder):
        self.folder, self.log = folder, folder.path / "etcd.log"
        self.port, self.process = server.free_port(), None

    def __enter__(self):
        peer = f"http://127.0.0.1:{server.free_port()}"
        client = f"http://127.0.0.1:{self.port}"
        self.process = server.start(
            ["etcd", "--name", "one", "--data-dir", self.folder.path / "etcd",
             "--listen-client-urls", client, "--advertise-client-urls", client,
             "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
             "--initial-cluster", f"one={peer}", "--log-level", "error"], self.log)
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


class Node(server.Server):
    """Patroni and the server that it manages."""

    def __init__(self, folder, name, etcd, password):
        super().__init__(folder, name)
        self.password, self.port, self.rest = password, server.free_port(), server.free_port()
        self.config = folder.path / f"{name}.yaml"
        self.config.touch(0o600)
        self.config.write_text(CONFIG.format(
            name=name, rest=self.rest, etcd=etcd.port, port=self.port, data=self.data,
            bin=self.bin, folder=folder.path, admin=server.ADMIN, password=password),
            encoding="utf-8")
        if os.geteuid() == 0:
            os.chown(self.config, server.unprivileged().pw_uid, -1)

    def __enter__(self):
        self.start()
        return self

    def start(self):
        # On SIGTERM it stops its server, too.
        self.process = server.start(["patroni", self.config], self.log, signal.SIGTERM)

    def kill(self):
        """Kill it with its server, as if the machine had died."""
        if self.process is None:
            return
        for pid in [self.process.pid, *self.backends()]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        super().kill()

    def says(self, sql):
        """The answer, or None."""
        try:
            return self.psql("postgres", sql).strip()
        except server.Failed:
            return ""

    def leads(self):
        return self.says("SELECT pg_is_in_recovery()") == "f"

    def is_followed(self):
        """Is there a synchronous standby that Patroni would promote?"""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.rest}/cluster", timeout=5) as answer:
                members = json.load(answer)["members"]
        except (OSError, ValueError, KeyError):
            return False
        return [member["state"] for member in members if member["role"] == "sync_standby"] in (
            ["running"], ["streaming"])


class Cluster:
    def __init__(self, nodes):
        self.nodes = nodes

    def leader(self):
        return next((node for node in self.nodes if node.leads()), None)

    def ready(self):
        """The leader, once its death would lose nothing."""
        leader = self.leader()
        return leader if leader and leader.is_followed() else None

    def url(self, database):
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return (f"postgresql://{server.TESTER}:{urllib.parse.quote(self.nodes[0].password)}@{hosts}"
                f"/{database}?target_session_attrs=read-write")


def prepare(cluster, program):
    leader = tap.wait_for(cluster.ready, "there is a leader, and it is followed", PATIENCE_S)
    leader.psql("postgres", f"CREATE ROLE {server.TESTER} LOGIN CREATEROLE PASSWORD "
                            f"'{leader.password}'")
    leader.psql("postgres", f"CREATE DATABASE queue OWNER {server.TESTER}")
    done = subprocess.run([program, "migrate", "--store", cluster.url("queue")], text=True,
                          check=False, capture_output=True)
    if done.returncode != 0:
        raise server.Failed(f"leasehold migrate: {done.stderr.strip()}")


def kill_leader(cluster, load):
    """Kill the leader, wait for the new one, and for the old one to follow; returns the downtime in s."""
    leader = tap.wait_for(cluster.ready, "the leader is followed", PATIENCE_S)
    load.wait_for_work(time.monotonic_ns(), LOAD, PATIENCE_S)
    died = time.monotonic_ns()
    leader.kill()
    load.wait_for_work(died + 1_000_000_000, 1, PATIENCE_S)
    away = time.monotonic_ns() - died
    leader.start()
    return away / 1e9


def torture(options, folder):
    password = os.urandom(16).hex()
    with Etcd(folder) as etcd, Node(folder, "one", etcd, password) as one, \
            Node(folder, "two", etcd, password) as two:
        cluster = Cluster([one, two])
        prepare(cluster, options.build / "leasehold")
        at = types.SimpleNamespace(folder=folder, build=options.build)
        with failover.Load(at, cluster.url("queue")) as load:
            for number in range(1, options.kills + 1):
                away = kill_leader(cluster, load)
                print(f"kill {number}: jobs went on after {away:.1f} s", flush=True)
            tap.wait_for(cluster.ready, "the leader is followed", PATIENCE_S)
            seen, wrong = load.end()
            epoch = cluster.leader().psql("queue", "SELECT epoch FROM leasehold.meta").strip()
            if int(epoch) < options.kills:
                wrong.append(f"the epoch is {epoch} after {options.kills} failovers")
    return seen, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=pathlib.Path, required=True, help="a build with the tests")
    parser.add_argument("--kills", type=int, default=5)
    options = parser.parse_args()
    options.build = options.build.resolve()
    try:
        with server.Folder() as folder:
            try:
                seen, wrong = torture(options, folder)
                print(failover.history.tally(seen))
            except BaseException:
                for log in sorted(folder.path.glob("*.log")):
                    print(f"---- {log.name}\n{server.tail(log)}", file=sys.stderr)
                raise
    except (tap.Complaint, server.Failed, subprocess.SubprocessError) as error:
        wrong = [str(error)]
    print("\n".join([*wrong[:20], f"{options.kills} failovers, {len(wrong)} findings"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
