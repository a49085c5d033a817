"""What /proc shows of processes, what they use with all that they started, and how a process gets room for files."""

import os
import signal
import subprocess
import sys
import time
import timeit
from pathlib import Path

import psutil

from launcher.core.machine.proc import SPARE, ProcessId, catches, every_process, identify, mounts, stat, usage_of

# A leader that sleeps; its child in another session, and an orphan in its own, hold 50 MB each and burn 0.1 s of CPU.
TREE = """
import os, sys, time
def burn():
    held = b"x" * 50_000_000
    end = time.process_time() + 0.1
    while time.process_time() < end: pass
    print(".", end="", flush=True)
    time.sleep(1000)
if os.fork() == 0:
    os.setsid()
    burn()
if os.fork() == 0:
    if os.fork() == 0: burn()
    os._exit(0)
os.wait()
time.sleep(1000)
"""


def test_a_process_is_known_by_its_start_and_not_by_its_number():
    me = identify(os.getpid())
    assert me.lives
    assert not ProcessId(me.pid, me.started + 1, me.host, me.boot).lives
    assert not ProcessId(me.pid, me.started, "elsewhere", me.boot).is_local
    assert not ProcessId(me.pid, me.started, me.host, "another boot").lives


def test_a_zombie_does_not_live():
    child = os.posix_spawnp("sleep", ["sleep", "1000"], os.environ)
    identity = identify(child)
    assert identity.lives
    os.kill(child, signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert (stat(child).state, identity.lives) == ("Z", False)
    os.waitpid(child, 0)
    assert (stat(child), identify(child)) == (None, None)


def test_a_process_of_any_name_and_the_signals_that_it_handles(wait_until):
    program = (
        "import signal; signal.signal(10, print); signal.signal(12, signal.SIG_IGN); signal.signal(40, print);"
        "open('/proc/self/comm','w').write('a) Z 1 (b'); print(flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        wait_until(lambda: stat(child.pid).state == "S", "that it waits")
        found = stat(child.pid)
        assert (found.parent, found.living) == (os.getpid(), True)
        assert found in list(every_process())
        assert [number for number in (10, 12, 15, 40, 41) if catches(child.pid, number)] == [10, 40]
        child.communicate(b"\n")
    assert not catches(child.pid, 10)


def test_children_and_orphans_of_a_session_count():
    process = subprocess.Popen([sys.executable, "-c", TREE], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout.read(2) == b".."
        above, both = usage_of([os.getpid()]), usage_of([os.getpid(), process.pid])
    finally:
        (stray,) = psutil.Process(process.pid).children()
        stray.kill()
        os.killpg(process.pid, 9)
        process.communicate()
    assert both[process.pid].cpu_s >= 0.2
    assert both[process.pid].rss_bytes > 100_000_000
    assert above[os.getpid()].rss_bytes - both[os.getpid()].rss_bytes > 50_000_000


def test_time_of_children_that_were_reaped_is_kept():
    before = usage_of([os.getpid()])[os.getpid()].cpu_s
    burn = "import time\nend = time.process_time() + 0.1\nwhile time.process_time() < end: pass"
    ended = subprocess.Popen([sys.executable, "-c", burn])
    assert ended.wait() == 0
    assert usage_of([os.getpid()])[os.getpid()].cpu_s >= before + 0.1
    assert usage_of([ended.pid, 0]) == {}


def test_hundreds_of_leaders_cost_one_scan():
    everyone = [int(path.name) for path in Path("/proc").glob("[0-9]*")]

    def fastest(leaders):
        # By CPU time: others may have the cores.
        return min(timeit.repeat(lambda: usage_of(leaders), time.process_time, number=1, repeat=5))

    assert fastest(everyone) < 5 * fastest(everyone[:1])


LIMITED = """
import resource
from launcher.core.machine.proc import make_room

hard = 400
for soft, files, opened in {cases}:
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    room = make_room(files)
    held = [open("/dev/null") for _ in range(opened)]
    print(int(room), *resource.getrlimit(resource.RLIMIT_NOFILE))
    del held
"""


def test_a_limit_is_raised_as_far_as_is_needed_and_allowed():
    expected = {
        # High enough: nothing is raised without need, nor ever lowered.
        **{(200, files): (1, 200) for files in (0, 100, 200 - SPARE)},
        # Raised as far as needed.
        **{(200, files): (1, files + SPARE) for files in (201 - SPARE, 300, 400 - SPARE)},
        # More than is allowed: what is allowed is taken.
        **{(200, files): (0, 400) for files in (401 - SPARE, 10_000)},
        (400, 10_000): (0, 400),
    }
    cases = [(soft, files, min(files, 400 - SPARE)) for soft, files in expected]
    command = [sys.executable, "-c", LIMITED.format(cases=cases)]
    told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    assert told == [f"{room} {soft} 400" for room, soft in expected.values()]


def test_mounts_are_those_of_the_system():
    found = {mount.point: mount.kind for mount in mounts()}
    assert found["/proc"] == "proc"
    assert all(Path(point).exists() or "\\" not in point for point in found)
