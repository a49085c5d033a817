"""What is below a process, and the control group of a run, on the system's own control groups."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher.core.machine.proc import own_directory
from launcher.supervise.tree import RunGroup, descendants, forget_bystanders

LONG_AGO_S = 3600


@pytest.fixture(autouse=True)
def _no_bystanders():
    """Another test may have started an agent from this process, and spared what was below it then."""
    forget_bystanders()


def test_descendants_are_found_by_the_kernels_own_account():
    before = set(descendants())
    program = (
        "import os,time; open('/proc/self/comm','w').write('a) R 1 ('); print(os.getpid(),flush=True); time.sleep(1000)"
    )
    script = 'setsid "$0" -c "$1" & wait'
    parent = subprocess.Popen(["sh", "-c", script, sys.executable, program], stdout=subprocess.PIPE)
    dead = os.posix_spawnp("true", ["true"], os.environ)
    os.waitid(os.P_PID, dead, os.WEXITED | os.WNOWAIT)
    grandchild = int(parent.stdout.readline())
    try:
        assert set(descendants()) - before == {parent.pid, grandchild}
    finally:
        os.kill(grandchild, 9)
        os.waitpid(dead, 0)
        parent.communicate()


def test_an_orphan_stays_below_the_test():
    orphan = int(subprocess.check_output(["sh", "-c", "sleep 1000 >&- & echo $!"]))
    found = descendants()
    os.kill(orphan, 9)
    assert orphan in found
    os.waitpid(orphan, 0)


# --- the control group ---


@pytest.fixture(name="parent", scope="module")
def _parent():
    parent = own_directory()
    if parent is None or not os.access(parent / "cgroup.procs", os.W_OK):
        pytest.skip("no control group of version 2 can be made here")
    return parent


@pytest.fixture
def member(parent):
    process = subprocess.Popen(["sh", "-c", "read line; sleep 1000"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def group_name(agent_pid):
    """With the number of this container's namespace of pids: another container may have an agent of the same pid."""
    return f"tlaunch-{Path('/proc/self/ns/pid').stat().st_ino}-{agent_pid}"


def members(directory):
    return [int(pid) for pid in (directory / "cgroup.procs").read_text().split()]


def test_all_that_a_member_starts_is_killed_at_once(parent, member, wait_until):
    group = RunGroup(member.pid)
    directory = parent / group_name(member.pid)
    other = subprocess.Popen(["sleep", "1000"])
    try:
        group.take_in(member.pid)
        group.take_in(other.pid)
        member.stdin.write(b"go\n")
        member.stdin.flush()
        wait_until(lambda: len(members(directory)) == 3, "the member's child")
        group.remove()
        assert len(members(directory)) == 3
        assert group.let_out(other.pid)
        group.kill()
        assert member.wait(30) == -signal.SIGKILL
        wait_until(lambda: members(directory) == [], "an empty group")
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
        group.remove()
    assert not directory.exists()


@pytest.mark.parametrize("age_s", [0, LONG_AGO_S])
def test_a_forgotten_group_is_removed_by_a_later_run(parent, member, age_s):
    with subprocess.Popen(["true"]) as ended:
        forgotten = parent / group_name(ended.pid)
    inside = forgotten / forgotten.name / "of a rank"
    inside.mkdir(parents=True)
    then = time.time() - age_s
    os.utime(forgotten, (then, then))
    try:
        RunGroup(member.pid).remove()
        assert forgotten.exists() == (age_s == 0)
    finally:
        for group in (inside, inside.parent, forgotten):
            if group.exists():
                group.rmdir()
