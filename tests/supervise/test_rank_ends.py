"""The ends of children: in which order they came, and whether the out-of-memory killer caused one."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from launcher.supervise.rank_ends import ExitOrder, OomWatch


@pytest.fixture
def order():
    with closing(ExitOrder()) as made:
        yield made


@pytest.fixture
def pids():
    made = [os.posix_spawnp("sleep", ["sleep", "1000"], os.environ) for _ in range(5)]
    yield made
    for pid in made:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def end(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.parametrize(("happens", "asked"), [
    # Neither fork order nor the order in which they are asked for decides; unwatched ones come last, unknown.
    ("watch1 watch2 watch3 watch4 end3 end0 end1 end4 end2", [("01234", "31420", False)]),
    # One that had ended before it was asked for comes before one that ended after.
    ("watch0 watch1 watch2 end2 end1 end0", [("1", "1", True), ("02", "20", True)]),
    # One that had ended before it was watched may have ended before all others: agents learn of ranks late.
    ("watch0 end0 end1 watch1", [("01", "01", False)]),
    ("watch1 end1 end0 watch0", [("01", "10", False)]),
    ("end1 watch1 end0 watch0", [("01", "10", False)]),
])  # fmt: skip
def test_children_come_in_the_order_in_which_they_ended(order, pids, happens, asked):
    for each in happens.split():
        (order.watch if each.startswith("watch") else end)(pids[int(each[-1])])
    for given, ended, known in asked:
        assert order.sort([pids[int(index)] for index in given]) == ([pids[int(index)] for index in ended], known)


def test_whoever_ends_after_a_late_one_was_watched_has_a_known_place(order, pids):
    late, other, *_ = pids
    order.watch(other)
    end(late)
    order.watch(late)
    end(other)
    assert (order.collect(), order.sort([other, late])) == ([late, other], ([late, other], True))
    assert order.collect() == []


# --- whether the kernel's out-of-memory killer ended a process ---


RANK = Path(__file__).parents[1] / "programs" / "blame_memory.py"
NOWHERE = Path("/nonexistent/kmsg")


def kernel_log_readable():
    try:
        os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK))
        return Path("/proc/self/ns/pid").stat().st_ino == 0xEFFFFFFC
    except OSError:
        return False


needs_kernel_log = pytest.mark.skipif(not kernel_log_readable(), reason="the kernel's log cannot be read here")


@contextmanager
def started():
    rank = subprocess.Popen([sys.executable, RANK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with rank:
        try:
            assert rank.stdout.readline() == "ready\n"
            yield rank
        finally:
            rank.kill()


def tell(rank, order):
    rank.stdin.write(f"{order}\n")
    rank.stdin.flush()
    return rank.stdout.readline()


def wait_for_end(rank):
    return os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOWAIT)


BY_LOG = pytest.param(Path("/dev/kmsg"), marks=needs_kernel_log)
limited_to_48_mib = pytest.mark.parametrize("memory_group", [48 << 20], indirect=True, ids=["48 MiB"])


@limited_to_48_mib
@pytest.mark.parametrize("kernel_log", [BY_LOG, NOWHERE])
def test_a_rank_that_took_too_much_memory_was_killed_for_it(memory_group, kernel_log):
    """By the kernel's log although the rank moved into the group after its start, else by the counter of its group."""
    with closing(OomWatch(kernel_log=kernel_log)) as watch, started() as rank:
        if kernel_log != NOWHERE:
            watch.note(rank.pid)
        assert tell(rank, f"join {memory_group}") == "done\n"
        if kernel_log == NOWHERE:
            watch.note(rank.pid)
        assert not tell(rank, "take 200")
        assert wait_for_end(rank).si_status == signal.SIGKILL
        before = watch.killed(rank.pid)
        rank.wait()
        memory_group.rmdir()
        assert (before, watch.killed(rank.pid)) == (True, True)


@limited_to_48_mib
@pytest.mark.parametrize("kernel_log", [BY_LOG, NOWHERE])
def test_a_kill_in_a_shared_group_is_ascribed_to_one_rank_only(memory_group, kernel_log):
    """By the kernel's log not even if it is asked for first: the group's counter alone would have it both ways."""
    with ExitStack() as stack:
        watch = stack.enter_context(closing(OomWatch(kernel_log=kernel_log)))
        greedy, modest, content = (stack.enter_context(started()) for _ in range(3))
        for rank in (greedy, modest, content):
            tell(rank, f"join {memory_group}")
            watch.note(rank.pid)
        tell(greedy, "take 200")
        content.stdin.close()
        modest.kill()
        for rank in (greedy, modest, content):
            wait_for_end(rank)
        if kernel_log != NOWHERE:
            assert watch.killed(modest.pid) is False
        assert (watch.killed(content.pid), watch.killed(greedy.pid)) == (False, True)
        assert not watch.killed(modest.pid)


# --- version 2, and systems that tell less: the kernel's files as they are there, written by the test ---


class System:
    """A /proc and a mounted hierarchy of version 2 that say what the test wants: a group named job counts two kills."""

    def __init__(self, root):
        self.proc, self.groups = root / "proc", root / "groups"
        (self.proc / "self").mkdir(parents=True)
        mount = f"30 23 0:26 / {self.groups} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
        (self.proc / "self/mountinfo").write_text(f"22 28 0:21 / /sys rw - sysfs sysfs rw\n{mount}")
        self.total(5)
        self.group("job", 2)

    def total(self, kills):
        (self.proc / "vmstat").write_text(f"nr_free_pages 12\noom_kill {kills}\n")

    def group(self, path, kills):
        (self.groups / path).mkdir(parents=True, exist_ok=True)
        (self.groups / path / "memory.events").write_text(f"low 0\nhigh 0\noom 9\noom_kill {kills}\n")

    def process(self, pid, path):
        (self.proc / str(pid)).mkdir(exist_ok=True)
        (self.proc / str(pid) / "cgroup").write_text(f"0::/{path}\n")


UNUSED = range(4_200_000, 4_200_010)  # beyond the highest pid that Linux gives


@pytest.mark.parametrize(("noted_in", "later_in", "counts"), [
    ("job", "step", ("step", 1)), ("job/rank0", "job/rank0 (deleted)", ("job", 3)),
], ids=["moved into another group", "its group is gone: the one above counts"])  # fmt: skip
def test_version_2_tells_by_the_group_that_a_dead_process_still_names(tmp_path, noted_in, later_in, counts):
    system = System(tmp_path)
    system.process(UNUSED[0], noted_in)
    watch = OomWatch(system.proc, NOWHERE)
    watch.note(UNUSED[0])
    system.process(UNUSED[0], later_in)
    system.group(*counts)
    system.total(6)
    assert watch.killed(UNUSED[0]) is True


def test_each_kill_is_told_once(tmp_path):
    system = System(tmp_path)
    watch = OomWatch(system.proc, NOWHERE)
    for pid in UNUSED[:3]:
        system.process(pid, "job")
        watch.note(pid)
    assert watch.killed(UNUSED[0]) is False
    system.total(6)
    assert watch.killed(UNUSED[0]) is False
    system.group("job", 4)
    system.total(8)
    for _ in range(2):
        assert [watch.killed(pid) for pid in UNUSED[:3]] == [True, True, False]
    watch.note(UNUSED[0])  # the next process of that pid inherits nothing from a victim
    assert watch.killed(UNUSED[0]) is False


def test_a_system_that_tells_nothing_gets_no_answer(tmp_path):
    watch = OomWatch(tmp_path, NOWHERE)
    watch.note(UNUSED[0])
    assert watch.killed(UNUSED[0]) is None
