"""Ranks that meet at MindSpore's scheduler: it begins with them, is their launcher's to end, and fails by its own name.

A program that speaks to a scheduler as MindSpore's ranks do stands for them; MindSpore itself is in
tests/end_to_end/test_mindspore.py.
"""

import json
import os
import signal
import subprocess
import sys

import pytest

from launcher.core.events import AttemptStarted, Leftovers, SchedulerEnded, SchedulerStarted
from launcher.core.verdict import Confidence, Role
from tests.conftest import free_port

from .conftest import PROGRAMS

SOURCE = "import mindspore as ms\n\nms.communication.init()\n"
CLUSTER = ("--mindspore", "cluster")
PROGRAM = PROGRAMS / "meets_at_scheduler.py"


def through_shell(*words):
    return ("sh", "-c", 'exec "$0" "$@"', sys.executable, PROGRAM, *words)


@pytest.fixture
def met(launcher):
    def run(*words, options=(), **more):
        command = through_shell(*words)
        return launcher.run("run", "--devices", 3, "--grace", 5, *CLUSTER, *options, "--", *command, **more)

    return run


def test_ranks_meet_at_a_scheduler_that_is_no_leftover(launcher, met):
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


def test_its_log_tells_attempts_apart_and_is_shown_alone(launcher, met):
    met("raises-once", options=("--max-restarts", 1), code=0)
    said = "scheduler of 3, node None\n"
    assert launcher.call("logs", "--scheduler", code=0).stdout == f"{said}--- attempt 1 ---\n{said}"
    assert launcher.call("logs", "--scheduler", "--attempt", 0, code=0).stdout == said
    assert launcher.call("logs", "-f", "--scheduler", "--timestamps", "-n", 1, code=0).stdout.endswith(f" {said}")
    assert "scheduler of 3" not in launcher.call("logs", code=0).stdout


def test_it_is_seen_while_it_lives_and_when_it_has_ended(launcher):
    process = launcher.start("run", "--devices", 3, "--grace", 5, *CLUSTER, "--", *through_shell("sleeps"))
    launcher.wait_ready(3, marker="met the others")
    pid = launcher.first(SchedulerStarted).pid
    found = json.loads(launcher.call("status", "--json", code=0).stdout)["scheduler"]
    assert (found["state"], found["pid"], found["status"]) == ("running", pid, None)
    line = f"MindSpore's scheduler: running, process {pid}; "
    log = "runs/latest/scheduler/scheduler.log"
    assert line in launcher.call("status", code=0).stdout
    assert line in launcher.call("top", code=0).stdout
    process.send_signal(signal.SIGTERM)
    process.wait()
    assert f"MindSpore's scheduler: ended, process {pid}; " in launcher.call("status", "latest", code=0).stdout
    assert (launcher.directory / log).samefile(found["log"])


def test_how_it_failed_is_seen_afterwards(launcher, met):
    met("scheduler-killed", code=1)
    found = json.loads(launcher.call("status", "--json", code=0).stdout)["scheduler"]
    assert (found["state"], found["status"]) == ("ended", -signal.SIGKILL)
    assert "MindSpore's scheduler: SIGKILL (signal 9), process " in launcher.call("status", code=0).stdout


@pytest.mark.parametrize(("word", "what"), [
    ("scheduler-raises", "RuntimeError: a node is lost"),
    ("scheduler-killed", "SIGKILL (signal 9)"), ("no-scheduler", "exit code 1"),
])  # fmt: skip
def test_a_scheduler_that_fails_is_to_blame(launcher, met, word, what):
    done = met(word, code=1)
    verdict = launcher.report.verdict
    assert (verdict.culprit, verdict.confidence) == (None, Confidence.CERTAIN)
    assert what in verdict.scheduler
    assert not [failure for failure in verdict.failures if failure.role is Role.CAUSE]
    assert f"error: MindSpore's scheduler: {what}" in done.stderr
    assert "scheduler/scheduler.log" in done.stderr
    assert not launcher.processes()


@pytest.mark.parametrize(("words", "code"), [((), 0), (("raises",), 1), (("raises-once",), 0)])
def test_a_script_that_waits_for_its_program_leaves_no_scheduler(launcher, words, code):
    """As scripts do that have more to say: the scheduler is a child of the shell, and its port is free for the next attempt."""
    script = launcher.write("run.sh", 'python3 "$0.py" "$@"; code=$?; echo "it ended with $code"; exit $code\n')
    (launcher.directory / "run.sh.py").symlink_to(PROGRAM)
    options = (
        "--devices",
        3,
        "--grace",
        5,
        "--master-port",
        free_port(),
        "--max-restarts",
        int("raises-once" in words),
    )
    done = launcher.run("run", *CLUSTER, *options, "--", "sh", script, *words, code=code)
    assert "outlived" not in done.stderr
    assert not launcher.events(Leftovers)
    assert not launcher.processes()


def test_a_scheduler_that_fails_once_is_started_again_with_the_ranks(launcher, met):
    met("scheduler-killed", options=("--max-restarts", 3))
    attempts = launcher.report.attempts
    assert len(attempts) > 1
    assert all(attempt.verdict.scheduler for attempt in attempts)


@pytest.mark.parametrize("late_s", [0, 0.5], ids=["", "after its scheduler"])
def test_a_script_that_fails_before_its_program_is_a_ranks_fault(launcher, late_s):
    """It is its own scheduler, which fails of the same, and may be the first."""
    script = launcher.write("train.sh", f'[ "$MS_ROLE" = MS_SCHED ] || sleep {late_s}\ncd /nowhere || exit 3\n')
    done = launcher.run("run", "--devices", 2, *CLUSTER, "--", "sh", script, code=3)
    verdict = launcher.report.verdict
    assert verdict.culprit is not None
    assert verdict.scheduler is None
    assert "/nowhere" in done.stderr
    assert not launcher.processes()


@pytest.mark.parametrize("late_s", [0, 0.5], ids=["", "after its scheduler"])
def test_an_environment_in_which_mindspore_cannot_be_imported_is_the_ranks_fault(launcher, late_s):
    """The scheduler fails of the same, and mostly first; the line of the program that imports it is named."""
    launcher.write("site-packages/mindspore/__init__.py", "raise ImportError('no libgomp')\n")
    launcher.write("train.py", f"import time\ntime.sleep({late_s})\nimport mindspore\n")
    paths = (str(launcher.directory / "site-packages"), os.environ.get("PYTHONPATH", ""))
    env = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = launcher.run("run", "--devices", 2, *CLUSTER, "--", "python", "train.py", env=env, code=1)
    verdict = launcher.report.verdict
    assert (verdict.scheduler, verdict.confidence) == (None, Confidence.CERTAIN)
    assert verdict.failures[0].where == "train.py:3 in <module>"
    assert "MindSpore's scheduler failed in the same way" in done.stderr or not late_s
    assert not launcher.processes()


def test_a_scheduler_without_mindspore_is_to_blame(launcher):
    """Here, where the ranks' Python has none: the scheduler of a Python program is `init()` alone, in that Python."""
    launcher.write("train.py", "import time\ntime.sleep(1000)\n")
    done = launcher.run("run", "--devices", 2, "--mindspore", "cluster", "--", "python", "train.py", code=1)
    assert "error: MindSpore's scheduler: ModuleNotFoundError: No module named 'mindspore'" in done.stderr


def test_an_engine_waits_for_no_scheduler_of_a_rank_that_has_ended(launcher):
    """The pipe to the engine, on which failures are announced, is the rank's alone."""
    stands_for = "import pathlib, signal\ndef init():\n    pathlib.Path('began').touch()\n    signal.pause()\n"
    launcher.write("packages/mindspore/communication.py", stands_for)
    launcher.write("train.py", "import os, time\nwhile not os.path.exists('began'):\n    time.sleep(0.01)\n")
    paths = (str(launcher.directory / "packages"), os.environ.get("PYTHONPATH", ""))
    env = {"PMI_RANK": "0", "PMI_SIZE": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    words = ("exec", "--name", "one", *CLUSTER, "--", "python", "train.py")
    process = launcher.start(*words, env=env, stderr=subprocess.PIPE)
    said = process.stderr.read()
    [scheduler] = launcher.processes()
    os.kill(scheduler, signal.SIGKILL)
    assert process.wait() == 0, said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("waits", [False, True], ids=["", "as a child of a shell"])
def test_a_launcher_that_is_ended_leaves_no_scheduler(launcher, wait_until, number, waits):
    command = through_shell("sleeps")
    if waits:
        command = ("sh", "-c", '"$0" "$@"; exit $?', *command[3:])
    process = launcher.start("run", "--devices", 3, "--grace", 5, *CLUSTER, "--", *command)
    launcher.wait_ready(3, marker="met the others")
    os.kill(process.pid, number)
    process.wait()
    wait_until(lambda: not launcher.processes(), "the end of ranks and scheduler")


# --- who gets one ---


def variables(launcher, *options, files=(), command=("python", "train.py"), code=0, env=None):
    for name, text in files:
        launcher.write(name, text)
    return launcher.call("run", "--dry-run", "--json", "--devices", 2, *options, "--", *command, code=code, env=env)


@pytest.mark.parametrize(("files", "options", "meets"), [
    ((("train.py", "from mindspore.communication import init\ninit()\n"),), (), True),
    ((("train.py", "def main():\n    import mindspore as ms\n    ms.communication.init()\n"),), (), True),
    ((("train.py", "import net\n"), ("net.py", SOURCE)), (), True),
    ((("train.py", "from mindspore.mint.distributed import init_process_group as f\nimport net\n"),
    ("net.py", "def begin(group): group.init_process_group()\n")), (), True),
  ((("train.py", "from mindspore.communication import init as ms_init\nms_init()\n"),), (), True),
    ((("train.py", "from meet import ms_init\nms_init()\n"),
    ("meet.py", "from mindspore.communication import init as ms_init\n")), (), True),
  ((("train.py", "from mindspore.communication import get_rank as ms_init\nms_init()\n"),), (), False),
    ((("train.py", "import mindspore\nfrom colorama import init as start\nstart()\n"),), (), False),
    ((("train.py", "import mindspore.dataset\n"),), (), False),
    ((("train.py", "import torch  # instead of mindspore\n"),), (), False),
    ((("train.py", "print('mindspore')\n"),), (), False),
    ((("train.py", SOURCE),), ("--mindspore", "off"), False),
    ((("train.py", SOURCE),), ("--env", "MS_ROLE=MS_WORKER"), False),
    ((("train.py", "import torch\n"),), ("--mindspore", "cluster"), True),
])  # fmt: skip
def test_a_program_that_imports_mindspore_gets_a_scheduler(launcher, files, options, meets):
    launcher.write("packages/mindspore/__init__.py")
    done = variables(launcher, *options, files=files, env={"PYTHONPATH": str(launcher.directory / "packages")})
    names = "MS_WORKER_NUM", "MS_SCHED_HOST", "MS_SCHED_PORT", "MS_NODE_ID"
    assert [f'"{name}"' in done.stdout for name in names] == [meets] * 4
    said = "--mindspore cluster" in done.stderr
    assert said == (meets and "--mindspore" not in options)


def test_a_python_without_mindspore_gets_none(launcher):
    """A program may import what is there, and do without what is not."""
    source = "try:\n    import mindspore\nexcept ImportError:\n    pass\ninit()\n"
    done = variables(launcher, files=[("train.py", source)])
    assert "MS_ROLE" not in done.stdout.replace('"MS_ROLE": null', "")


def test_its_command_stands_in_a_dry_run_and_holds_no_secret(launcher):
    command = ("sh", "-c", "true", "--password=hunter2")
    shown = launcher.call("run", "--dry-run", "-v", "--devices", 2, *CLUSTER, "--", *command, code=0).stdout
    assert "# MindSpore's scheduler" in shown
    assert "MS_ROLE=MS_SCHED" in shown
    launcher.run("run", "--devices", 1, *CLUSTER, "--", *command)
    assert "hunter2" not in shown + (launcher.latest / "run.json").read_text()


@pytest.mark.parametrize(("options", "command"), [
    (("--mindspore", "rank-table"), ("python", "train.py")),
    (("--mindspore", "cluster", "--env", "MS_SCHED_PORT=1"), ("python", "train.py")),
    (("--mindspore", "sometimes"), ("python", "train.py")),
    (("--mindspore", "cluster"), ()),
])  # fmt: skip
def test_what_is_refused(launcher, options, command, snapshot):
    launcher.write("train.py", SOURCE)
    words = ("--", *command) if command else ()
    assert launcher.refused(2, ("run", "--devices", "2", *options, *words)) == snapshot


def test_a_program_that_was_not_seen_to_need_one_is_told_of_it(launcher):
    words = "Maybe you are trying to call 'mindspore.communication.init()' without using 'mpirun', which"
    launcher.write("train.py", f"raise RuntimeError({words!r})\n")
    done = launcher.run("run", "--devices", 2, "--", "sh", "-c", "python train.py; exit $?", code=1)
    assert "hint: add --mindspore cluster to start " in done.stderr


# --- job files ---


@pytest.mark.parametrize(("words", "code"), [(("late",), 0), (("raises",), 1), (("scheduler-killed",), 137)])
def test_a_rendered_script_has_a_scheduler_of_its_own(launcher, words, code):
    command = through_shell(*words)
    launcher.call("render", "bash", "--devices", 3, "--grace", 5, *CLUSTER, "-o", "run.sh", "--", *command, code=0)
    done = launcher.ended(["bash", "run.sh"], start_new_session=True, code=code)
    assert ("MindSpore's scheduler failed with exit code 137" in done.stderr) == (code == 137)
    log = (launcher.latest / "scheduler" / "scheduler.log").read_text()
    assert log == "scheduler of 3, node None\n"
    assert not launcher.processes()


def test_rendered_scripts_of_two_servers_share_a_scheduler(launcher, table_of):
    table = table_of({"127.0.0.1": range(2), "127.0.0.2": range(2, 4)})
    command = through_shell("late")
    options = ("--rank-table", table, *CLUSTER, "--master-port", free_port(), "-o", "run.sh")
    launcher.call("render", "bash", *options, "--", *command, code=0)
    processes = [launcher.begin(["bash", "run.sh", str(server), "run"]) for server in (0, 1)]
    assert [process.wait(60) for process in processes] == [0, 0]
    logs = [(launcher.runs / "run" / f"device{rank}" / "train.log").read_text() for rank in range(4)]
    assert all(f"rank {rank} left" in log for rank, log in enumerate(logs))


@pytest.mark.parametrize("kind", ["mpirun", "slurm"])
def test_other_job_files_hand_on_what_is_chosen(launcher, kind):
    launcher.write("train.py", SOURCE)
    options = ("--devices", 2, "--nodes", 1) if kind == "slurm" else ("--devices", 2)
    for chosen in ((), ("--mindspore", "off")):
        text = launcher.call("render", kind, *options, *chosen, "--", "python", "train.py", code=0).stdout
        assert ("--mindspore off" in text) == bool(chosen)


def test_msrun_is_rendered_with_its_own_options(launcher, table_of, snapshot):
    launcher.write("train.py", SOURCE)
    table = table_of({"10.0.0.1": range(2), "10.0.0.2": range(2, 4)})
    words = ("--rank-table", table.name, "--env", "A=b c", "--master-port", 9000, "--", "python", "train.py", "x y")
    done = launcher.call("render", "msrun", *words, code=0)
    assert launcher.transcript(done) == snapshot


@pytest.mark.parametrize(("ranks", "command"), [
    ({"10.0.0.1": (1, 0)}, ("python", "train.py")),
    ({"10.0.0.1": range(2), "10.0.0.2": range(2, 3)}, ("python", "train.py")),
    ({"10.0.0.1": range(2)}, ("./train.sh",)),
])  # fmt: skip
def test_what_msrun_cannot_start_is_refused(launcher, table_of, ranks, command):
    launcher.write("train.py", SOURCE)
    launcher.write("train.sh", "#!/bin/sh\n").chmod(0o755)
    done = launcher.call("render", "msrun", "--rank-table", table_of(ranks), "--", *command)
    assert done.returncode in {2, 3}
    assert "msrun would" in done.stderr
