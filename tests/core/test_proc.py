"""What /proc tells about processes."""

import os
import signal
import subprocess
import sys

from launcher.core.proc import ProcessId, catches, every_process, identify, stat


def test_a_process_is_known_by_its_start_and_not_by_its_number():
    """The same pid with another start, host or boot is another process."""
    me = identify(os.getpid())
    assert me.lives
    assert not ProcessId(me.pid, me.started + 1, me.host, me.boot).lives
    assert not ProcessId(me.pid, me.started, "elsewhere", me.boot).here
    assert not ProcessId(me.pid, me.started, me.host, "another boot").lives


def test_a_zombie_does_not_live():
    """It has ended, and only waits to be reaped; afterwards nothing is known of it."""
    child = os.posix_spawnp("sleep", ["sleep", "1000"], os.environ)
    identity = identify(child)
    assert identity.lives
    os.kill(child, signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert (stat(child).state, identity.lives) == ("Z", False)
    os.waitpid(child, 0)
    assert (stat(child), identify(child)) == (None, None)


def test_a_name_may_hold_anything(wait_until):
    """Blanks and parentheses in a process's name do not shift the fields behind it."""
    program = "open('/proc/self/comm','w').write('a) Z 1 (b'); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        wait_until(lambda: stat(child.pid).state == "S", "that it waits")
        found = stat(child.pid)
        assert (found.parent, found.living) == (os.getpid(), True)
        assert found in list(every_process())
        child.communicate(b"\n")


def test_only_handled_signals_are_caught():
    """A handler of one's own counts; ignoring and the default action do not."""
    program = (
        "import signal; signal.signal(10, print); signal.signal(12, signal.SIG_IGN);"
        "signal.signal(40, print); print(flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        assert [number for number in (10, 12, 15, 40, 41) if catches(child.pid, number)] == [10, 40]
        child.communicate(b"\n")
    assert not catches(child.pid, 10)
