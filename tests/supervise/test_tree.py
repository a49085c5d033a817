"""What is below a process."""

import os
import subprocess
import sys

import pytest

from launcher.supervise.tree import descendants, forget_bystanders


@pytest.fixture(autouse=True)
def _no_bystanders():
    """Another test may have started an agent from this process, and spared what was below it then."""
    forget_bystanders()


def test_descendants_are_found_by_the_kernels_own_account():
    """Children and grandchildren of any session and with any name are found, zombies are not."""
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
    """An orphan of a command comes to the tests' own process, where the check for processes left behind sees it."""
    orphan = int(subprocess.check_output(["sh", "-c", "sleep 1000 >&- & echo $!"]))
    found = descendants()
    os.kill(orphan, 9)
    assert orphan in found
    os.waitpid(orphan, 0)
