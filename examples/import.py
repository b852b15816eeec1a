#!/usr/bin/env python3
"""An import that goes on where it was broken off: `leasehold work import -- examples/import.py`.

The payload is {"rows": N}. After every tenth row it says how far it is and where the next attempt
may go on; both are kept in the store, and outlive this process and this machine.
"""

import json
import os
import sys


def tell(line):
    """Send one line to the worker. Without a worker, do nothing."""
    fd = os.environ.get("LEASEHOLD_FD")
    if fd is not None:
        os.write(int(fd), (line + "\n").encode())


def put(row):
    """Stands for the work."""
    if row == int(os.environ.get("TRIP_AT", "-1")):
        sys.exit(f"stumbled over row {row}")


job = json.load(sys.stdin)
before = json.loads(os.environ.get("LEASEHOLD_CHECKPOINT") or '{"next": 0}')

tell("stage importing")
for row in range(before["next"], job["rows"]):
    put(row)
    if row % 10 == 9:
        tell(f"progress {100 * (row + 1) // job['rows']}")
        tell("checkpoint " + json.dumps({"next": row + 1}))
print(json.dumps({"rows": job["rows"], "went_on_at": before["next"]}))
