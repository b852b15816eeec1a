"""Tests in Python: one function each, reported as TAP.

    @tap.test
    def what_must_hold(stage): …

    sys.exit(tap.main(parser, stage))

`stage(options)` is a context manager whose value every test gets. A test that cannot run
here raises Skip with the reason.
"""

import fnmatch
import subprocess
import sys
import time
import traceback

import server

TESTS = []


class Complaint(Exception):
    """An expectation that was not met."""


class Skip(Exception):
    """The test cannot run here; has the reason."""


def test(function):
    TESTS.append(function)
    return function


def expect(condition, what):
    if not condition:
        raise Complaint(what)


def expect_equal(seen, wanted, what):
    expect(seen == wanted, f"{what}: {seen!r}, expected {wanted!r}")


def wait_for(condition, what, seconds):
    """Wait for the first true answer, which may take time on a busy machine."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        expect(time.monotonic() < deadline, f"not in {seconds} s: {what}")
        time.sleep(0.02)
    return answer


def outcome(case, given):
    """ok, skip or not ok, and the details."""
    try:
        case(given)
        return "ok", []
    except Skip as reason:
        return "skip", [str(reason)]
    except (Complaint, server.Failed, subprocess.SubprocessError) as problem:
        return "not ok", str(problem).splitlines() or [repr(problem)]
    except Exception:  # a bug of the test fails it, and not the others
        return "not ok", traceback.format_exc().splitlines()


def tell(number, case, result, lines, seconds):
    directive = f" # SKIP {lines[0]}" if result == "skip" else f" # {seconds:.1f} s"
    print(f"{'not ok' if result == 'not ok' else 'ok'} {number} - {case.__name__}{directive}")
    for line in lines:
        print(f"#   {line}" if result != "skip" else f"# skip: {line}")
    sys.stdout.flush()


def main(parser, stage):
    parser.add_argument("--list", action="store_true", help="print the tests")
    parser.add_argument("patterns", nargs="*", metavar="NAME | GLOB")
    options = parser.parse_args()
    chosen = [case for case in TESTS if not options.patterns
              or any(fnmatch.fnmatchcase(case.__name__, pattern) for pattern in options.patterns)]
    if options.list:
        print("\n".join(case.__name__ for case in chosen))
        return 0
    if not chosen:
        sys.exit(f"{parser.prog}: no test matches")
    failed = 0
    print(f"TAP version 13\n1..{len(chosen)}", flush=True)
    try:
        with stage(options) as given:
            for number, case in enumerate(chosen, 1):
                began = time.monotonic()
                result, lines = outcome(case, given)
                failed += result == "not ok"
                tell(number, case, result, lines, time.monotonic() - began)
    except server.Failed as error:
        print(f"Bail out! {' '.join(str(error).split())}", flush=True)
        return 2
    return failed > 0
