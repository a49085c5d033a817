"""Ranks that meet at MindSpore's scheduler: it begins with them, is their launcher's to end, and fails by its own name.

A program that speaks to a scheduler as MindSpore's ranks do stands for them; MindSpore itself is in
tests/end_to_end/test_mindspore.py.
"""

import os
import signal
import sys

import pytest

from launcher.core.events import AttemptStarted, Leftovers, SchedulerEnded, SchedulerStarted
from launcher.core.verdict import Confidence, Role

SOURCE = "import mindspore\n"


@pytest.fixture
def met(launcher, programs):
    """Run ranks that meet at a scheduler, to the end."""

    def run(*words, options=(), **more):
        # By a shell: the program itself is started once more as its scheduler.
        command = ("sh", "-c", 'exec "$0" "$@"', sys.executable, programs / "meets_at_scheduler.py", *words)
        return launcher.run(
            "run", "--devices", 3, "--grace", 5, "--mindspore", "cluster", *options, "--", *command, **more
        )

    return run


def test_ranks_meet_at_a_scheduler_that_is_no_leftover(launcher, met):
    """It has a log and an environment of its own, and none of it is left."""
    done = met("late", code=0)
    port = launcher.events(AttemptStarted)[0].master_port
    log = (launcher.latest / "scheduler" / "scheduler.log").read_text()
    assert log == "scheduler of 3, node None\n"
    for rank in range(3):
        said = (launcher.latest / f"device{rank}" / "train.log").read_text()
        assert said == f"rank {rank} of 3 met the others at port {port}\nrank {rank} left\n"
    environment = (launcher.latest / "scheduler" / "env.log").read_text().splitlines()
    assert {"MS_ROLE=MS_SCHED", "MS_WORKER_NUM=3", f"MS_SCHED_PORT={port}", "RANK=0"} <= set(environment)
    assert not [event for event in launcher.events() if isinstance(event, Leftovers | SchedulerEnded)]
    assert "left running" not in done.stderr
    assert not launcher.processes()


def test_a_rank_that_raises_is_named_and_the_scheduler_ends_with_the_others(launcher, met):
    met("raises", code=1)
    verdict = launcher.report.verdict
    assert (verdict.culprit, verdict.confidence, verdict.scheduler) == (1, Confidence.CERTAIN, None)
    assert "ValueError: boom" in verdict.failures[0].what
    assert not launcher.processes()


def test_every_attempt_has_a_scheduler_of_its_own_at_a_port_of_its_own(launcher, met):
    met("raises-once", options=("--max-restarts", 1), code=0)
    ports = [event.master_port for event in launcher.events(AttemptStarted)]
    assert len(set(ports)) == 2
    assert len({event.pid for event in launcher.events(SchedulerStarted)}) == 2
    log = (launcher.latest / "device0" / "train.log").read_text()
    assert [f"at port {port}\n" in log for port in ports] == [True, True]
    assert not launcher.processes()


@pytest.mark.parametrize(
    ("word", "what"),
    [
        ("scheduler-raises", "RuntimeError: a node is lost"),
        ("scheduler-killed", "SIGKILL (signal 9)"),
        ("no-scheduler", "exit code 1"),
    ],
)
def test_a_scheduler_that_fails_is_to_blame(launcher, met, word, what):
    """As itself, not as a rank's: those that suffer from it are ended, and the message says where its log is."""
    done = met(word, code=1)
    verdict = launcher.report.verdict
    assert (verdict.culprit, verdict.confidence) == (None, Confidence.CERTAIN)
    assert what in verdict.scheduler
    assert not [failure for failure in verdict.failures if failure.role is Role.CAUSE]
    assert f"error: MindSpore's scheduler: {what}" in done.stderr
    assert "scheduler/scheduler.log" in done.stderr
    assert not launcher.processes()


def test_a_scheduler_that_fails_once_is_started_again_with_the_ranks(launcher, met):
    met("scheduler-killed", options=("--max-restarts", 3))
    attempts = launcher.report.attempts
    assert len(attempts) > 1
    assert all(attempt.verdict.scheduler for attempt in attempts)


def test_a_scheduler_without_mindspore_is_to_blame(launcher):
    """Here, where the ranks' Python has none: the scheduler of a Python program is `init()` alone, in that Python."""
    launcher.write("train.py", "import time\ntime.sleep(1000)\n")
    done = launcher.run("run", "--devices", 2, "--mindspore", "cluster", "--", "python", "train.py", code=1)
    assert "error: MindSpore's scheduler: ModuleNotFoundError: No module named 'mindspore'" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_launcher_that_is_ended_leaves_no_scheduler(launcher, programs, wait_until, number):
    command = ("sh", "-c", 'exec "$0" "$@"', sys.executable, programs / "meets_at_scheduler.py", "sleeps")
    process = launcher.start("run", "--devices", 3, "--grace", 5, "--mindspore", "cluster", "--", *command)
    launcher.wait_ready(3, marker="met the others")
    os.kill(process.pid, number)
    process.wait()
    wait_until(lambda: not launcher.processes(), "the end of ranks and scheduler")


# --- who gets one ---


def variables(launcher, *options, files=(), command=("python", "train.py"), code=0, env=None):
    """Of rank 1, as a dry run shows them, and what is said beside."""
    for name, text in files:
        launcher.write(name, text)
    return launcher.call("run", "--dry-run", "--json", "--devices", 2, *options, "--", *command, code=code, env=env)


@pytest.mark.parametrize(
    ("files", "options", "meets"),
    [
        ((("train.py", "from mindspore.communication import init\n"),), (), True),
        ((("train.py", "def main():\n    import mindspore as ms\n"),), (), True),
        ((("train.py", "import net  # for mindspore\n"), ("net.py", "import mindspore.nn as nn\n")), (), True),
        ((("train.py", "import torch  # instead of mindspore\n"),), (), False),
        ((("train.py", "print('mindspore')\n"),), (), False),
        ((("train.py", SOURCE),), ("--mindspore", "off"), False),
        ((("train.py", SOURCE),), ("--env", "MS_ROLE=MS_WORKER"), False),
        ((("train.py", "import torch\n"),), ("--mindspore", "cluster"), True),
    ],
)  # fmt: skip
def test_a_program_that_imports_mindspore_gets_a_scheduler(launcher, files, options, meets):
    """Wherever it does so; unless a person says otherwise, or has a scheduler already."""
    done = variables(launcher, *options, files=files)
    names = "MS_WORKER_NUM", "MS_SCHED_HOST", "MS_SCHED_PORT", "MS_NODE_ID"
    assert [f'"{name}"' in done.stdout for name in names] == [meets] * 4
    said = "--mindspore cluster" in done.stderr
    assert said == (meets and "--mindspore" not in options)


@pytest.mark.parametrize(
    ("options", "command"),
    [
        (("--mindspore", "rank-table"), ("python", "train.py")),
        (("--mindspore", "cluster", "--env", "MS_SCHED_PORT=1"), ("python", "train.py")),
        (("--mindspore", "sometimes"), ("python", "train.py")),
        (("--mindspore", "cluster"), ()),
    ],
)
def test_what_is_refused(launcher, options, command, snapshot):
    launcher.write("train.py", SOURCE)
    words = ("--", *command) if command else ()
    assert launcher.refused(2, ("run", "--devices", "2", *options, *words)) == snapshot
