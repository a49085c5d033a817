"""A rank of a torture schedule: `python torture_rank.py`. What it does is in the file $TORTURE_PLAN.

The plan is a list per attempt of a list per rank; attempts beyond it end well. Every rank appends what it does, just
before it does it, to $TORTURE_RECORDS: one JSON object a line.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

RANK = int(os.environ["RANK"])
ATTEMPT = int(os.environ.get("TLAUNCH_ATTEMPT", "0"))
OUTPUT_LINE = "x" * 99
ENDS_WELL = {"end": "exit", "code": 0}


def my_part():
    attempts = json.loads(Path(os.environ["TORTURE_PLAN"]).read_text())
    return attempts[ATTEMPT][RANK] if len(attempts) > ATTEMPT else ENDS_WELL


def record(what, **values):
    fields = {"what": what, "rank": RANK, "attempt": ATTEMPT, "pid": os.getpid(), "time_ns": time.time_ns(), **values}
    descriptor = os.open(os.environ["TORTURE_RECORDS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(descriptor, json.dumps(fields).encode() + b"\n")
    os.close(descriptor)


def wait_for_ever():
    while True:
        signal.pause()


def start_children(count, *, new_session=False, double_fork=False):
    """Children that wait for ever; an orphan is reaped by whoever adopts it."""
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            if new_session:
                os.setsid()
            if double_fork and os.fork() != 0:
                os._exit(0)
            wait_for_ever()
        if double_fork:
            os.waitpid(pid, 0)


def set_up(part):
    if part.get("ignores_term"):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
    start_children(part.get("children", 0))
    if family := part.get("grandchild"):
        start_children(1, new_session=family == "new session", double_fork=family == "double fork")
    for _ in range(part.get("output_lines", 0)):
        print(OUTPUT_LINE)


def end(part):
    """Never returns, but for an end that is hoped to happen from outside."""
    how, code = part["end"], part.get("code", 0)
    if how == "exit":
        sys.exit(code)
    if how == "os._exit":
        os._exit(code)
    if how == "raise":
        raise ValueError(f"rank {RANK} raises in attempt {ATTEMPT}")
    if how == "signal":
        os.kill(os.getpid(), code)
    if how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    wait_for_ever()


def main():
    part = my_part()
    record("ready", port=os.environ["MASTER_PORT"])
    set_up(part)
    time.sleep(part.get("after_s", 0))
    print(f"last words of attempt {ATTEMPT}", flush=True)
    record("acts")
    end(part)


main()
