#!/usr/bin/env python3
"""The checker: reads the history of one run and reports what is impossible in it.

    tests/torture/history.py FOLDER

The folder has three files of JSON lines:

  history.jsonl  what was done, by whoever did it, by CLOCK_MONOTONIC in nanoseconds. An act of the
                 library is written when it is called, and again when it has returned:
                   {process, op, act, job, token, call_ns}
                   {…, return_ns, result: "ok" | "fail" | "unknown", lease_ms, status}
                 One that never returned is unknown. Acts: enqueue claim beat complete fail release
                 register. A run of a job is told by its `start` and `end`, what was done to the
                 workers by `kill`, `stop`, `continue`; `quiet` and `drained` say when the faults
                 ended and when nothing was left. `overlap` is a run that found another alive.
                 `clock` tells by how much the store's clock is ahead, where that is known.
  rows.jsonl     the jobs in the end, as `leasehold list --json` prints them
  events.jsonl   the events, with `audit: full`, as `leasehold events --json` prints them

Tokens order the leases of a job, so nearly everything is a sort per job. Each rule is a function
below, and what it finds begins with its name.
"""

import bisect
import collections
import datetime
import json
import pathlib
import re
import sys

MS = 1_000_000
TELL = 1000 * MS  # who has claimed something new so long after a loss has noticed the loss
SLACK = 2 * MS  # the store counts in whole milliseconds, and so does the clock it is compared with
HOLDS = ("claim", "beat")
ENDS = ("complete", "fail", "release")
LIVE = ("scheduled", "pending", "running")
ENDED = ("job.completed", "job.failed", "job.released", "job.recovered", "job.poisoned")
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


class Broken(Exception):
    """The history cannot be read: that is no answer."""


def read_lines(path):
    """The lines of a file. One may be cut for each SIGKILL: what it would have said is unknown."""
    out, cut = [], []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            if line:
                out.append(json.loads(line))
        except json.JSONDecodeError as error:
            cut.append(f"{path}:{number}: {error}: {line[:120]}")
    if len(cut) > sum(line.get("act") == "kill" for line in out):
        raise Broken(cut[-1])
    return out


def ms_of(text):
    return round((datetime.datetime.fromisoformat(text) - EPOCH).total_seconds() * 1000)


def process_of(worker):
    """Its label is the process; the library may have made it unique."""
    return re.sub(r"-[0-9a-f]{8}$", "", worker) if worker else worker


class History:
    """The lines, sorted out."""

    def __init__(self, lines, rows, events):
        self.lines, self.rows = lines, rows
        self.events = [dict(event, worker=process_of(event["worker"])) for event in events]
        self.acts = []                               # those of the library, one each
        self.of_kind = collections.defaultdict(list)  # start, end, kill …: lines by `act`
        opened, closed = {}, set()
        for line in lines:
            if "op" not in line:
                self.of_kind[line["act"]].append(line)
            elif "result" in line:
                self.acts.append(line)
                closed.add((line["process"], line["op"]))
            else:
                opened[line["process"], line["op"]] = line
        self.open = [dict(line, result="unknown") for key, line in opened.items()
                     if key not in closed]
        self.settings = {}                           # of a process, as it registered
        for act in self.acts:
            if act["act"] == "register":
                self.settings[act["process"]] = act
        self.by_job = collections.defaultdict(list)
        for act in self.acts + self.open:
            if act.get("job"):
                self.by_job[act["job"]].append(act)
        self.events_of = collections.defaultdict(list)
        for event in self.events:
            if event["job"]:
                self.events_of[event["job"]].append(event)
        self.last_claim = {}
        self.row_of = {row["id"]: row for row in rows}
        self.killed = {line["process"]: line for line in self.of_kind["kill"]}
        self.clock = self.clock_offset()
        for event in self.events:
            if event["type"] == "job.claimed":
                self.last_claim[event["worker"]] = self.mono(event)
        self.signs = self.signs_of_life()

    @classmethod
    def read(cls, folder):
        folder = pathlib.Path(folder)
        return cls(*(read_lines(folder / name)
                     for name in ("history.jsonl", "rows.jsonl", "events.jsonl")))

    def clock_offset(self):
        """Nanoseconds of store time at monotonic time 0; as one who registered saw it, or better."""
        told = [line["offset_ns"] for line in self.of_kind["clock"]]
        seen = told or [line["store_ms"] * MS - line["return_ns"] for line in self.lines
                        if "store_ms" in line]
        if not seen:
            raise Broken("nobody has said what time it is in the store")
        return sorted(seen)[len(seen) // 2]

    def mono(self, event):
        """When an event happened: somewhere in the millisecond from here on."""
        return ms_of(event["at"]) * MS - self.clock

    def silence_ns(self, act):
        """For how long its process may be silent after it."""
        limits = self.settings.get(act["process"])
        if limits is None:
            return 1 << 62
        # A claim is no sign of life where there was a beat half an interval ago.
        less = limits["interval_ms"] * MS // 2 if act["act"] == "claim" else 0
        return limits["interval_ms"] * limits["multiplier"] * MS - less

    def signs_of_life(self):
        """Of each process: (returned, silent from then on if nothing follows), sorted."""
        signs = collections.defaultdict(list)
        for act in self.acts:
            if act["result"] == "ok" and act["act"] in HOLDS + ("register",):
                signs[act["process"]].append((act["return_ns"],
                                              act["call_ns"] + self.silence_ns(act)))
        for process in signs:
            signs[process].sort()
        return signs

    def silent_from(self, process, before):
        """When `process` had been silent for too long, by what it was answered until `before`."""
        signs = self.signs.get(process, [])
        return max((until for _, until in signs[:bisect.bisect_right(signs, (before, 1 << 80))]),
                   default=None)


class Lease:
    """One lease of a job: what its holder was told under this token."""

    def __init__(self, job, token):
        self.job, self.token = job, token
        self.claims, self.acts = [], []
        self.claimed_event = self.end_event = None

    @property
    def process(self):
        if self.claims:
            return self.claims[0]["process"]
        return self.claimed_event["worker"] if self.claimed_event else None

    def returned(self, history):
        """The latest moment at which it began."""
        if self.claims:
            return min(claim["return_ns"] for claim in self.claims)
        return history.mono(self.claimed_event) + MS

    def called(self, history):
        """The earliest moment at which it began."""
        if self.claims:
            return min(claim["call_ns"] for claim in self.claims)
        return history.mono(self.claimed_event)

    def held_until(self, history, silence=True):
        """Nobody may take it before: all its ok beats were in time. Not by its lease, nor, with
        `silence`, by the silence of its holder."""
        ends = [act["call_ns"] + (min(act["lease_ms"] * MS, history.silence_ns(act)) if silence
                                  else act["lease_ms"] * MS)
                for act in self.claims + self.acts
                if act["act"] in HOLDS and act["result"] == "ok" and act.get("lease_ms")]
        if not ends and self.claimed_event:  # of a worker that writes no history of its own
            limits = history.settings.get(self.process) or history.settings.get("", {})
            if "lease_ms" in limits:
                length = min(limits["lease_ms"], limits["interval_ms"] * limits["multiplier"]
                             - limits["interval_ms"] // 2)
                ends = [self.called(history) + length * MS]
        return max(ends, default=None)


def leases_of(history, job):
    found = {}

    def lease(token):
        return found.setdefault(token, Lease(job, token))
    for act in history.by_job[job]:
        if act["act"] == "claim" and act["result"] == "ok":
            lease(act["token"]).claims.append(act)
        elif act["act"] != "enqueue" and act.get("token"):
            lease(act["token"]).acts.append(act)
    for event in history.events_of[job]:
        if event["type"] == "job.claimed":
            lease(event["token"]).claimed_event = event
        elif event["type"] in ENDED and event["from"] == "running":
            lease(event["token"]).end_event = event
    return [found[token] for token in sorted(found)]


# ---------------------------------------------------------------- the rules

def lost(history):
    """Every enqueue that was answered is there once; one whose outcome is unknown, at most once."""
    of_payload = collections.defaultdict(list)
    for row in history.rows:
        of_payload[row["payload_text"]].append(row["id"])
    for payload, ids in of_payload.items():
        if len(ids) > 1:
            yield f"{payload} was enqueued once, and is there as jobs {ids}"
    tried = set()
    for act in history.acts + history.open:
        if act["act"] != "enqueue":
            continue
        tried.add(act["payload"])
        if act["result"] == "ok" and of_payload[act["payload"]] != [act["job"]]:
            yield (f"{act['payload']} was enqueued as job {act['job']}, and is there as "
                   f"{of_payload[act['payload']] or 'nothing'}")
    for payload in sorted(set(map(str, of_payload)) - tried):
        if of_payload[payload]:
            yield f"job {of_payload[payload]} ({payload}) was enqueued by nobody"


def token(history):
    """Each (job, token) is handed out once, and of two claims one after the other the later has the
    higher token."""
    for job in history.by_job.keys() | history.events_of.keys():
        leases = [lease for lease in leases_of(history, job)
                  if lease.claims or lease.claimed_event]
        for lease in leases:
            if len(lease.claims) > 1:
                yield f"job {job} was handed out {len(lease.claims)} times under {lease.token}"
            event = lease.claimed_event
            if event is None and history.events:
                yield f"job {job} was handed out under {lease.token}, and no event tells of it"
            elif event and lease.claims and event["worker"] != lease.claims[0]["process"]:
                yield (f"job {job} went to {lease.claims[0]['process']} under {lease.token}, and "
                       f"the event says {event['worker']}")
        latest = None
        for lease in sorted(leases, key=lambda lease: lease.token, reverse=True):
            if latest is not None and latest.returned(history) + SLACK < lease.called(history):
                yield (f"job {job}: {latest.token} was handed out before {lease.token}")
            if latest is None or lease.returned(history) < latest.returned(history):
                latest = lease
        row = history.row_of.get(job)
        if row is not None and leases and leases[-1].token > row["token"]:
            yield f"job {job} was handed out under {leases[-1].token}, its row has {row['token']}"


def ended_by_holder(lease, before):
    return any(act["act"] in ENDS and act["result"] != "fail" and act["call_ns"] <= before
               for act in lease.acts)


def early(history):
    """No lease passes on before it has ended, by its holder, by the clock, or by a proven death."""
    for job in history.by_job.keys() | history.events_of.keys():
        leases = leases_of(history, job)
        held = [lease for lease in leases if lease.claims or lease.claimed_event]
        for lease, following in zip(held, held[1:]):
            taken = following.returned(history)
            kill = history.killed.get(lease.process)
            if ended_by_holder(lease, taken) or (kill and kill["call_ns"] <= taken):
                continue
            end = lease.end_event
            if not lease.claims and end and end["type"] in ("job.failed", "job.released"):
                continue  # it is known by its events only
            free = lease.held_until(history)
            if free is not None and taken + SLACK < free:
                yield (f"job {job}: {following.token} was handed out {(free - taken) / MS:.1f} ms "
                       f"before the lease of {lease.token} was over")
        for lease in held:
            yield from unproven(history, lease)


def unproven(history, lease):
    """The reason for which it was taken back is true."""
    event = lease.end_event
    if event is None or event["type"] not in ("job.recovered", "job.poisoned"):
        return
    at, why = history.mono(event) + MS, event["reason"]
    gone = re.search(r"RECLAIMED_DEAD: worker (\S+) is gone", why)
    if gone:
        kill = history.killed.get(process_of(gone[1]))
        if kill is None or at + SLACK < kill["call_ns"]:
            yield f"job {lease.job}: {lease.token} was taken from {gone[1]}, which lived"
    elif "has been silent for" in why:
        silent = history.silent_from(lease.process, at - SLACK)
        if silent is not None and at + SLACK < silent:
            yield (f"job {lease.job}: {lease.token} was taken for silence "
                   f"{(silent - at) / MS:.1f} ms too early")
    elif "RECLAIMED_TTL" in why:
        until = lease.held_until(history, silence=False)
        if until is not None and at + SLACK < until:
            yield f"job {lease.job}: {lease.token} was taken {(until - at) / MS:.1f} ms too early"
    else:
        yield f"job {lease.job}: {lease.token} was taken for no known reason: {why}"


def late(history):
    """Nothing is done under a token once a later claim has been answered, nor refused before."""
    for job in history.by_job:
        leases = leases_of(history, job)
        for number, lease in enumerate(leases):
            later = [other.returned(history) for other in leases[number + 1:]
                     if other.claims or other.claimed_event]
            taken = min(later, default=None)
            for act in lease.acts:
                if act["result"] == "ok" and taken is not None and act["call_ns"] > taken + SLACK:
                    yield (f"job {job}: {act['act']} under {lease.token} was done "
                           f"{(act['call_ns'] - taken) / MS:.1f} ms after it had passed on")
                if act.get("status") == "ELOST" and not lost_by(history, lease, act):
                    yield f"job {job}: {act['act']} under {lease.token} was refused without a cause"


def lost_by(history, lease, act):
    """Had the lease been lost when `act` was refused?"""
    event = lease.end_event
    if event and history.mono(event) <= act["return_ns"] + SLACK:
        return True
    if act["act"] != "beat":
        return not history.events
    until = max((other["call_ns"] + other["lease_ms"] * MS for other in lease.claims + lease.acts
                 if other["act"] in HOLDS and other["result"] == "ok"
                 and other["return_ns"] <= act["call_ns"] and other.get("lease_ms")), default=None)
    return until is None or act["return_ns"] + SLACK >= until


def ends(history):
    """A job ends once, as its row says, and never goes on after that."""
    for row in history.rows:
        job = row["id"]
        leases = leases_of(history, job)
        done = [lease for lease in leases
                if any(act["act"] == "complete" and act["result"] == "ok" for act in lease.acts)]
        if len(done) > 1:
            yield f"job {job} was completed under each of {[lease.token for lease in done]}"
        for lease in done:
            if row["state"] != "completed" or row["token"] != lease.token:
                yield (f"job {job} was completed under {lease.token}, and is {row['state']} "
                       f"under {row['token']} in the end")
        tried = [act for lease in leases if lease.token == row["token"] for act in lease.acts
                 if act["act"] == "complete"]
        if row["state"] == "completed" and history.acts_tell_ends and not tried:
            yield f"job {job} is completed under {row['token']}, and nobody did that"


def stuck(history):
    """After the faults have ended everything is finished, in time."""
    for row in history.rows:
        if row["state"] in LIVE:
            yield f"job {row['id']} is {row['state']} in the end"
    quiet, drained = history.of_kind["quiet"], history.of_kind["drained"]
    if not quiet or not drained:
        yield "nobody saw that nothing was left to do"
        return
    took, limit = drained[0]["call_ns"] - quiet[0]["call_ns"], quiet[0]["limit_ms"] * MS
    if took > limit:
        yield f"it took {took / MS:.0f} ms to finish, {limit / MS:.0f} ms are allowed"
    for job, events in history.events_of.items():
        for lease in leases_of(history, job):
            yield from slow(history, lease, quiet[0])


def slow(history, lease, quiet):
    """A lease that ended after the faults did comes back within two scans."""
    event = lease.end_event
    if event is None or event["type"] not in ("job.recovered", "job.poisoned"):
        return
    until = lease.held_until(history, silence=False)
    if until is None or until < quiet["call_ns"]:
        return
    wait = history.mono(event) - until
    if wait > 2 * quiet["scan_ms"] * MS + SLACK:
        yield (f"job {lease.job}: the lease of {lease.token} was over, and taken back only "
               f"{wait / MS:.0f} ms later")


def fold(history):
    """The events, one after the other, make the rows."""
    for job, events in history.events_of.items():
        folded = Folded()
        for event in events:
            wrong = folded.take(event)
            if wrong:
                yield f"job {job}: event {event['id']} ({event['type']}): {wrong}"
                break
        else:
            wrong = folded.differs(history.row_of.get(job))
            if wrong:
                yield f"job {job}: {wrong}"
    for row in history.rows:
        if history.events and row["id"] not in history.events_of:
            yield f"job {row['id']}: no event tells of it"


class Folded:
    """What the events of a job make of it."""

    def __init__(self):
        self.state, self.token, self.attempt, self.recoveries = None, 0, 0, 0
        self.raised = (0,)  # by how much the token may be above the last lease's

    def take(self, event):
        kind, was = event["type"], event["from"]
        if kind == "job.enqueued":
            if self.state is not None:
                return "enqueued twice"
            self.state = event["to"]
            return None
        if was != self.state and (self.state, was) != ("scheduled", "pending"):
            return f"the job was {self.state}, the event says {was}"
        if kind == "job.claimed":
            if event["token"] <= self.token:
                return f"token {event['token']} after {self.token}"
            self.token, self.raised = event["token"], (0,)
            self.attempt += 1
        elif was == "running" and event["token"] != self.token:
            return f"token {event['token']} while {self.token} is held"
        elif kind == "job.released":
            self.attempt -= 1
            self.raised = (0, 1)  # by another hand it rises
        elif kind in ("job.recovered", "job.poisoned"):
            self.attempt -= event["action"] in ("released", "pending")
            self.recoveries += event["action"] in ("retry", "pending")
            self.raised = (1,)
        elif kind not in ("job.completed", "job.failed"):
            return "not known"
        self.state = event["to"]
        return None

    def differs(self, row):
        if row is None:
            return f"{self.state} by its events, and not there"
        promoted = (self.state, row["state"]) == ("scheduled", "pending")
        if row["state"] != self.state and not promoted:
            return f"{self.state} by its events, {row['state']} in its row"
        for name in ("attempt", "recoveries"):
            if row[name] != getattr(self, name):
                return f"{name} {getattr(self, name)} by its events, {row[name]} in its row"
        if row["token"] - self.token not in self.raised:
            return f"token {self.token} by its events, {row['token']} in its row"
        return None


def apart(history):
    """Never do two runs of one job live at a time, each lease is run once, and a completed job was
    run to its end under the token it was completed with."""
    for line in history.of_kind["overlap"]:
        yield f"job {line['job']}: a run under {line['token']} found another alive"
    ended = {(line["job"], line["token"]): line for line in history.of_kind["end"]}
    for job, starts in group(history.of_kind["start"], "job").items():
        starts.sort(key=lambda line: line["ns"])
        handed = {lease.token for lease in leases_of(history, job)
                  if lease.claims or lease.claimed_event}
        for line, following in zip(starts, starts[1:] + [None]):
            if line["token"] not in handed:
                yield f"job {job}: a run under {line['token']}, which was never handed out"
            if following is None:
                continue
            if following["token"] <= line["token"]:
                yield f"job {job}: a run under {following['token']} began after {line['token']}"
            end = ended.get((job, line["token"]))
            if end and end["ns"] > following["ns"]:
                yield (f"job {job}: the run under {line['token']} ended after that under "
                       f"{following['token']} had begun")
    for row in history.rows:
        if history.of_kind["start"] and row["state"] == "completed":
            end = ended.get((row["id"], row["token"]))
            if end is None or end["code"] != 0:
                yield f"job {row['id']} is completed under {row['token']}, and no run ended so"


def late_ends(history, job, ended):
    """Leases of `job` whose run ended well, and which were not completed."""
    done = {event["token"] for event in history.events_of[job] if event["type"] == "job.completed"}
    well = {line["token"] for line in ended if line["code"] == 0}
    return [lease for lease in leases_of(history, job) if lease.token in well - done]


def lived_on(history, lease):
    """Has its holder had the time to tell that it lost it?"""
    if lease.process not in history.killed:
        return True
    end = lease.end_event
    return end is not None and history.last_claim.get(lease.process, 0) > history.mono(end) + TELL


def counted(history):
    """A run that ended well under a worker that lived on was completed, or was told as lost."""
    told = collections.Counter(line["job"] for line in history.of_kind["refused"])
    for job, ended in group(history.of_kind["end"], "job").items():
        missed = [lease.token for lease in late_ends(history, job, ended)
                  if lived_on(history, lease) and lease.end_event
                  and lease.end_event["type"] == "job.recovered"]
        if len(missed) > told[job]:
            yield (f"job {job}: runs under {missed} ended too late, and {told[job]} of them were "
                   f"told as lost")
    for job, n in told.items():
        undone = sum(event["type"] != "job.completed" for event in history.events_of[job])
        if n > undone:
            yield f"job {job}: {n} runs were told as lost, and there were none"


def group(lines, key):
    out = collections.defaultdict(list)
    for line in lines:
        out[line[key]].append(line)
    return out


RULES = {"LOST": lost, "TOKEN": token, "EARLY": early, "LATE": late, "ENDS": ends, "STUCK": stuck,
         "FOLD": fold, "APART": apart, "COUNTED": counted}


def check(history):
    """All that is wrong: (rule, sentence)."""
    history.acts_tell_ends = any(act["act"] == "complete" for act in history.acts)
    return [(name, text) for name, rule in RULES.items() for text in rule(history)]


# ---------------------------------------------------------------- the tally

def percentile(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * part))] if values else None


def healing_ms(history):
    """From the SIGKILL of a worker to the next claim, or run, of each job it held."""
    took = []
    started = {(line["job"], line["token"]): line["ns"] for line in history.of_kind["start"]}
    for job in history.events_of:
        held = [lease for lease in leases_of(history, job)
                if lease.claims or lease.claimed_event]
        for lease, following in zip(held, held[1:]):
            kill, event = history.killed.get(lease.process), lease.end_event
            if kill is None or event is None or event["type"] != "job.recovered":
                continue
            again = started.get((job, following.token), following.returned(history))
            if lease.returned(history) <= kill["call_ns"] <= again:
                took.append((again - kill["call_ns"]) / MS)
    return took


def tally(history):
    took = healing_ms(history)
    count = collections.Counter(event["type"] for event in history.events)
    refused = [act for act in history.acts if act["result"] == "fail" and act["act"] in ENDS]
    words = [f"{len(history.rows)} jobs", f"{count['job.claimed']} leases"]
    words += [f"{len(history.of_kind[act])} {what}"
              for act, what in (("kill", "kills"), ("kill_guardian", "kills of guardians"),
                                ("stop", "stops")) if history.of_kind[act]]
    words.append(f"{count['job.recovered'] + count['job.poisoned']} taken back")
    words.append(f"{len(took)} healed after a kill"
                 + (f" (p50 {percentile(took, 0.5):.0f} ms, p99 {percentile(took, 0.99):.0f} ms)"
                    if took else ""))
    told = collections.Counter(line["job"] for line in history.of_kind["refused"])
    came = {job: len(late_ends(history, job, ended))
            for job, ended in group(history.of_kind["end"], "job").items()}
    late_told = sum(min(n, came.get(job, 0)) for job, n in told.items())
    words.append(f"{len(refused) + late_told} late ends refused")
    words.append(f"{len(history.open)} calls cut off")
    return ", ".join(words)


def main():
    if len(sys.argv) != 2:
        print("usage: history.py FOLDER", file=sys.stderr)
        return 2
    try:
        history = History.read(sys.argv[1])
    except (Broken, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    wrong = check(history)
    for rule, text in wrong:
        print(f"{rule}: {text}")
    print(tally(history))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
