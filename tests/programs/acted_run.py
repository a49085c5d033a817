"""A run's directory made by hand, and processes that play its part: `python acted_run.py DIRECTORY [WISH]...`.

Prints `ready` once everything is in place. The process itself plays the agent; its ranks are two that sleep.
`deaf`: only SIGQUIT ends it. `vanish`: it goes away without a last word, its ranks with it. `head`: a child plays the
launcher, and hands SIGTERM on; `deaf-head`: one that does not. `stopped`: rank 1 is stopped.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from launcher.core.events import (
    AgentEnded,
    AgentStarted,
    AttemptStarted,
    Cause,
    RankEnded,
    RankStarted,
    Stopping,
    TimestampedEvent,
    to_line,
)
from launcher.core.machine.proc import identify
from launcher.core.run_dir import RunDir
from launcher.core.run_report import Report

RANKS = 2
HEAD = """
import os, signal, sys
agent = os.getppid()
signal.signal(signal.SIGTERM, lambda *_: os.kill(agent, signal.SIGTERM) if "deaf" not in sys.argv[1] else None)
print("ready", flush=True)
while os.getppid() == agent:
    signal.sigtimedwait([], 0.02)
"""


def me():
    return identify(os.getpid())


def someone_gone():
    """This pid, as it was used before this process."""
    return replace(me(), started=me().started - 1)


def make(directory, events=(), *, ranks=RANKS, per_server=1000, report=None, max_restarts=0, **fields):
    """run.json (with more `fields`), events.jsonl (one second between events, the last one now) and report.json."""
    run_dir = RunDir(Path(directory))
    run_dir.root.mkdir(parents=True)
    for rank in range(ranks):
        run_dir.device(rank).mkdir()
    record = {
        "schema": 2,
        "ranks": [
            {"global_rank": rank, "server_id": "10.0.0.1", "server_index": rank // per_server, "device_id": 4 + rank}
            for rank in range(ranks)
        ],
        "supervision": {"grace_s": 1.0, "max_restarts": max_restarts},
        **fields,
    }
    run_dir.run_json.write_text(json.dumps(record))
    if events:
        first_ns = time.time_ns() - (len(events) - 1) * 10**9
        append(run_dir, *events, first_ns=first_ns)
    if report is not None:
        run_dir.report.write_text(report.to_json())
    return run_dir


def append(run_dir, *events, first_ns=None):
    with run_dir.events.open("a") as file:
        for number, event in enumerate(events):
            time_ns = time.time_ns() if first_ns is None else first_ns + number * 10**9
            file.write(to_line(TimestampedEvent(time_ns, 0, event)))


@contextmanager
def playing(directory, *wishes):
    """A process that plays a run in `directory`; at the end it is killed with all that it started."""
    argv = [sys.executable, __file__, str(directory), *wishes]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.send_signal(signal.SIGQUIT)  # nothing happens if it has gone
        process.communicate(timeout=30)


def play(run_dir, wishes):
    """Be the agent of a run that goes on, until a signal ends it."""
    signals = [signal.SIGTERM, signal.SIGQUIT]
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    head = start_head(wishes) if wishes & {"head", "deaf-head"} else None
    ranks = [subprocess.Popen(["sleep", "1000"], start_new_session=True) for _ in range(RANKS)]
    append(run_dir, AgentStarted(identify(os.getpid()), head and identify(head.pid), RANKS), AttemptStarted(0, 29500))
    for number, rank in enumerate(ranks):
        append(run_dir, RankStarted(number, rank.pid, identify(rank.pid).started))
    if "stopped" in wishes:
        ranks[1].send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, ranks[1].pid, os.WSTOPPED | os.WNOWAIT)  # it does so in its own time
    print("ready", flush=True)
    if "vanish" not in wishes:
        number = signal.sigwait(signals)
        while number == signal.SIGTERM and "deaf" in wishes:
            number = signal.sigwait(signals)
        append(run_dir, Stopping(Cause.STOPPED, 1.0, number))
    for rank in ranks:
        rank.kill()
        rank.wait()
    if "vanish" not in wishes:
        say_last_word(run_dir, number)
    return head


def start_head(wishes):
    wish = "deaf" if "deaf-head" in wishes else "heeds"
    head = subprocess.Popen([sys.executable, "-c", HEAD, wish], stdout=subprocess.PIPE)
    signal.pthread_sigmask(signal.SIG_BLOCK, ())
    head.stdout.readline()
    return head


def say_last_word(run_dir, number):
    now_ns = time.time_ns()
    for rank in range(RANKS):
        append(run_dir, RankEnded(rank, None, -signal.SIGKILL))
    report = Report(run_dir.root.name, 0, Cause.STOPPED, 128 + number, now_ns, now_ns, ())
    run_dir.report.write_text(report.to_json())
    append(run_dir, AgentEnded(Cause.STOPPED, 128 + number))


if __name__ == "__main__":
    the_head = play(make(sys.argv[1]), set(sys.argv[2:]))
    if the_head:
        the_head.kill()
        the_head.wait()
