"""Programs of MindSpore, unchanged, on this machine; on two hosts: test_mindspore_hosts.py.

TLAUNCH_TEST_MINDSPORE_PYTHON names a Python that has MindSpore 2; without it, a program that meets at a scheduler as
MindSpore's ranks do is all that is tested.
"""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from launcher.core.events import AttemptStarted, RankEnded, SchedulerStarted
from launcher.core.run_report import Report

from .conftest import AS_ROOT, PROGRAMS, ROOT, TLAUNCH, environment, pids_in, run_to_end, tlaunch

MEETS = PROGRAMS / "meets_at_scheduler.py"
EXAMPLES = ROOT / "examples" / "mindspore"
PYTHON = os.environ.get("TLAUNCH_TEST_MINDSPORE_PYTHON")
CLUSTER = ("--mindspore", "cluster")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
with_mindspore = pytest.mark.skipif(
    not PYTHON, reason="TLAUNCH_TEST_MINDSPORE_PYTHON names no Python that has MindSpore"
)


def through_shell(*words):
    """A command that starts that program by a shell, so that it is its own scheduler."""
    return ["sh", "-c", 'exec "$0" "$@"', sys.executable, MEETS, *words]


def test_a_scheduler_lives_until_the_last_rank_of_any_server_has_left(servers):
    first, second = servers.both(*CLUSTER, command=through_shell("late"))
    assert servers.end(first, second) == [0, 0], servers.said(first) + servers.said(second)
    assert all(f"rank {rank} left" in servers.log(rank) for rank in range(4))
    assert len(servers.events(SchedulerStarted)) == 1
    assert (servers.latest / "scheduler" / "scheduler.log").read_text() == "scheduler of 4, node None\n"


def test_a_failure_on_one_server_has_the_scheduler_start_again_on_the_other(servers):
    first, second = servers.both(*CLUSTER, "--max-restarts", 1, command=through_shell("raises-once"))
    assert servers.end(first, second) == [0, 0], servers.said(first) + servers.said(second)
    ports = [event.master_port for event in servers.events(AttemptStarted)]
    assert len(set(ports)) == len(servers.events(SchedulerStarted)) == 2


def test_a_scheduler_that_fails_is_named_on_every_server(servers):
    first, second = servers.both(*CLUSTER, command=through_shell("scheduler-raises"))
    assert servers.end(first, second) == [1, 1]
    for process in (first, second):
        assert "error: MindSpore's scheduler: RuntimeError: a node is lost" in servers.said(process)


def test_ranks_of_an_mpirun_of_ones_own_meet_at_a_scheduler(mpirun, wait_until):
    """Which the first of them starts beside itself; it outlives that one until the others have left, and no longer."""
    done = mpirun.exec(3, *CLUSTER, "--", *through_shell("late"))
    assert done.returncode == 0, done.stderr
    assert all(f"rank {rank} left" in log for rank, log in enumerate(mpirun.logs()))
    assert (mpirun.latest / "scheduler" / "scheduler.log").read_text() == "scheduler of 3, node None\n"
    wait_until(lambda: not pids_in(mpirun.directory / "runs"), "the end of the scheduler", 60)


def test_an_mpirun_that_ends_its_ranks_leaves_no_scheduler(mpirun, wait_until):
    done = mpirun.exec(3, *CLUSTER, "--", *through_shell("raises"))
    assert done.returncode != 0
    wait_until(lambda: not pids_in(mpirun.directory / "runs"), "the end of the scheduler", 60)


def test_signals_that_an_engine_forwards_to_ranks_leave_the_scheduler_alone(mpirun, wait_until):
    (mpirun.directory / "ranks.sh").write_text(f"trap '' USR1; exec {sys.executable} {MEETS} sleeps\n")
    argv = [
        mpirun.path,
        "--map-by",
        ":OVERSUBSCRIBE",
        "--bind-to",
        "none",
        "-n",
        "2",
        *TLAUNCH,
        "exec",
        *CLUSTER,
        "--",
        "sh",
        "ranks.sh",
    ]
    process = subprocess.Popen(
        list(map(str, argv)), cwd=mpirun.directory, env=environment(AS_ROOT), start_new_session=True
    )
    try:
        wait_until(
            lambda: len(mpirun.logs()) == 2 and all("met the others" in log for log in mpirun.logs()), "ranks", 60
        )
        count = len(pids_in(mpirun.directory / "runs"))
        process.send_signal(signal.SIGUSR1)
        time.sleep(1)  # what must not happen has no state to wait for
        assert len(pids_in(mpirun.directory / "runs")) == count
    finally:
        process.terminate()
        process.wait(60)
    wait_until(lambda: not pids_in(mpirun.directory / "runs"), "the end of the scheduler", 60)


def test_a_scheduler_that_fails_after_the_ranks_beside_it_have_left_fails_the_run(servers):
    """Rank 3 of the other server still needs it, and would wait in vain."""
    first, second = servers.both(*CLUSTER, command=through_shell("late-for-ever"))
    servers.wait_until(lambda: all(f"rank {rank} left" in servers.log(rank) for rank in range(3)), "the others' leave")
    ended = {event.global_rank for event in servers.events(RankEnded)}
    servers.wait_until(
        lambda: {0, 1, 2} <= {event.global_rank for event in servers.events(RankEnded)}, f"their end, not {ended}"
    )
    os.kill(servers.events(SchedulerStarted)[0].pid, signal.SIGKILL)
    assert servers.end(first, second) == [1, 1]
    for process in (first, second):
        assert "error: MindSpore's scheduler: SIGKILL (signal 9)" in servers.said(process)


# --- with MindSpore itself ---


def sums(run, count):
    logs = [(run / f"device{rank}" / "train.log").read_text().splitlines() for rank in range(count)]
    return [next(line for line in log if "the sum" in line) for log in logs]


def wanted(count):
    return [f"rank {rank} of {count}: the sum over all ranks is {count * (count + 1) // 2}" for rank in range(count)]


@with_mindspore
def test_ranks_of_this_machine_reduce(tmp_path):
    done = tlaunch("run", "--devices", 3, "--", PYTHON, EXAMPLES / "all_reduce.py", cwd=tmp_path, env=environment({}))
    assert done.returncode == 0, done.stderr
    assert sums(tmp_path / "runs" / "latest", 3) == wanted(3)
    assert "left running" not in done.stderr


@with_mindspore
def test_a_rank_that_raises_in_its_own_words(tmp_path):
    """While the others wait in a collective, which MindSpore would for ever."""
    source = (EXAMPLES / "all_reduce.py").read_text()
    broken = source.replace("total = Sum", 'if rank == 1:\n    raise ValueError("boom")\ntotal = Sum')
    (tmp_path / "train.py").write_text(broken)
    done = tlaunch("run", "--devices", 2, "--", PYTHON, "train.py", cwd=tmp_path, env=environment({}))
    assert done.returncode == 1
    assert "error: rank 1: ValueError: boom, at train.py:" in done.stderr


@with_mindspore
def test_a_rank_that_is_stopped_is_to_blame_for_what_mindspore_does_then(tmp_path):
    """MindSpore ends other ranks by SIGTERM once its scheduler has not heard one for long: without the variable, half a minute."""
    source = (EXAMPLES / "all_reduce.py").read_text()
    stops = "import os, signal, time\nif rank == 1:\n    os.kill(os.getpid(), signal.SIGSTOP)\ntotal = Sum"
    (tmp_path / "train.py").write_text(source.replace("total = Sum", stops))
    env = environment({"MS_NODE_TIMEOUT": "15"})
    done = tlaunch("run", "--devices", 3, "--grace", 5, "--", PYTHON, "train.py", cwd=tmp_path, env=env)
    assert done.returncode != 0
    assert "error: rank 1: does not take part" in done.stderr


@with_mindspore
def test_the_first_loss_is_that_of_the_bundled_resnet(tmp_path):
    """From the same weights, on the same images: on two ranks, whose gradients and losses are averaged."""
    pytest.importorskip("torch")
    assert tlaunch("data", "sample", "--recipe", "resnet50", "--output", tmp_path / "cifar").returncode == 0
    train = PROGRAMS / "mindspore_resnet.py"
    prepared = run_to_end(
        (sys.executable, train, "prepare", tmp_path / "cifar", 2, tmp_path / "batches.npz"),
        env=environment({"PYTHONPATH": str(ROOT)}),
    )
    assert prepared.returncode == 0, prepared.stderr
    done = tlaunch(
        "run", "--devices", 2, "--", PYTHON, train, "train", tmp_path / "batches.npz", cwd=tmp_path, env=environment({})
    )
    assert done.returncode == 0, done.stderr
    log = (tmp_path / "runs" / "latest" / "device0" / "train.log").read_text()
    theirs = [json.loads(line)["loss"] for line in log.splitlines() if line.startswith('{"step"')]
    settings = ("train.steps=2", "train.learning_rate=1e-12")
    ours = tlaunch(
        "run", "--devices", 2, "--recipe", "resnet50", "--data", tmp_path / "cifar", "--runs-dir", tmp_path / "ours",
        *(word for setting in settings for word in ("--set", setting)), cwd=tmp_path, env=environment({}),
    )  # fmt: skip
    assert ours.returncode == 0, ours.stderr
    records = map(json.loads, (tmp_path / "ours" / "latest" / "metrics.jsonl").read_text().splitlines())
    losses = [record["loss"] for record in records if "loss" in record]
    assert theirs == pytest.approx(losses, abs=1e-4)
    assert Report.from_json((tmp_path / "runs" / "latest" / "report.json").read_text()).exit_code == 0
