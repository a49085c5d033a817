"""The rank that is to blame is named, not those that suffered. TLAUNCH_TEST_REPEATS=20 repeats each experiment."""

import os
import signal
import sys
import time

import pytest

from launcher.core.events import AgentStarted
from launcher.core.verdict import Confidence, Role

pytestmark = pytest.mark.distributed
REPEATS = int(os.environ.get("TLAUNCH_TEST_REPEATS", "1"))


def run(launcher, programs, *wishes):
    done = launcher.run("run", "--devices", 4, "--grace", 5, "--", sys.executable, programs / "culprit.py", *wishes)
    return launcher.report.verdict, done.returncode


@pytest.mark.parametrize("_time", range(REPEATS))
@pytest.mark.parametrize(
    ("wish", "culprit", "what", "code"),
    [("raises", 3, "ValueError: the cause", 1), ("sleeps", 1, "does not take part", 1), ("killed", 2, "SIGKILL", 137)],
)
def test_the_rank_that_is_to_blame_is_named(launcher, programs, wish, culprit, what, code, _time):  # noqa: PLR0917
    verdict, exit_code = run(launcher, programs, wish)
    cause = verdict.failures[0]
    assert (verdict.culprit, cause.global_rank, cause.role) == (culprit, culprit, Role.CAUSE)
    assert what in cause.what
    assert exit_code == code


@pytest.mark.parametrize("memory_group", [200 << 20], indirect=True, ids=["200 MiB"])
@pytest.mark.parametrize("_time", range(REPEATS))
def test_a_rank_that_took_too_much_memory_is_named_with_the_reason(launcher, programs, memory_group, _time):
    """The kernel's own count tells the out-of-memory killer from anybody else's SIGKILL."""
    verdict, exit_code = run(launcher, programs, "memory", memory_group)
    assert verdict.culprit == 1
    assert "memory" in verdict.failures[0].what
    assert exit_code == 137


LEAVING = """
import atexit, os, signal, sys, time, traceback
rank = os.environ["RANK"]
open("begun" + rank, "w").close()
while len([name for name in os.listdir() if name.startswith("begun")]) < 2: time.sleep(0.01)
if rank == "1": os.kill(os.getpid(), signal.SIGKILL)
try:
    raise ConnectionResetError("[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4242")
except ConnectionResetError:
    traceback.print_exc()
atexit.register(time.sleep, 1000)
sys.exit(1)
"""


def test_a_rank_that_has_said_why_it_leaves_and_is_not_gone_yet_follows(launcher):
    """It is on its way out when the evidence is taken; its record says no more than that it exits."""
    (launcher.directory / "program.py").write_text(LEAVING)
    launcher.run("run", "--devices", 2, "--grace", 1, "--", sys.executable, "program.py")
    verdict = launcher.report.verdict
    assert verdict.culprit == 1
    [_, follower] = verdict.failures
    assert follower.role is Role.CONSEQUENCE
    assert "Connection closed by peer" in follower.what


LATE = """
import os, time
rank = os.environ["RANK"]
open("begun" + rank, "w").close()
while not os.path.exists("go"): time.sleep(0.01)
if rank == "0": os.abort()
time.sleep(0.5)
raise ValueError("no cause")
"""


def test_a_held_up_agent_does_not_take_the_second_failure_for_the_first(launcher, suspend, wait_until):
    """It only notices that rank 0 has crashed; rank 1 has noted when it raised, which was earlier than that."""
    (launcher.directory / "program.py").write_text(LATE)
    process = launcher.start("run", "--devices", 2, "--", sys.executable, "program.py")
    wait_until(lambda: all((launcher.directory / f"begun{rank}").exists() for rank in range(2)), "two ranks")
    agent = launcher.first(AgentStarted).agent.pid
    suspend(agent)
    (launcher.directory / "go").touch()
    wait_until((launcher.latest / "device1" / "failure.json").exists, "the second failure")
    time.sleep(1.5)  # more than is always allowed for
    os.kill(agent, signal.SIGCONT)
    assert process.wait(60) != 0
    verdict = launcher.report.verdict
    assert verdict.confidence is not Confidence.CERTAIN, verdict.reason


def test_a_full_disk_is_named_as_what_ranks_failed_of(launcher):
    launcher.runs.mkdir()
    mount = f'mount -t tmpfs -o size=1m none {launcher.runs} && exec "$@"'
    source = "while True: print('step' * 20, flush=True)"
    command = launcher.argv("run", "--devices", 2, "--console", "none", "--", sys.executable, "-c", source)
    done = launcher.ended(["unshare", "--mount", "sh", "-c", mount, "sh", *command])
    if "error: rank" not in done.stderr and ("unshare: " in done.stderr or "mount: " in done.stderr):
        pytest.skip(f"nothing can be mounted here: {done.stderr}")
    assert done.returncode == 1, done.stderr
    assert "disk" in done.stderr.partition("  certain: ")[0]
