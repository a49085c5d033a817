"""The fork server: what it imports, refuses, forks, and how it ends."""

import os
import re
import select
import signal
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from launcher.core.records import Cluster, Layout, RankSpec, RunSpec, Supervision
from launcher.preload import fork_safety
from launcher.program.preload_scan import LIBRARY
from launcher.supervise.event_log import EventLog
from launcher.supervise.fork_server import ForkFailed, Ready, Unusable
from launcher.supervise.spawn import become_subreaper
from launcher.supervise.spawner import Spawner

from .conftest import PATIENCE_S, listen

CLOCK_S = 0.001  # what is lost in sums of floating-point times


@pytest.fixture
def fork_server(ways):
    made = []

    def start(source, *modules, env=None):
        (ways.cwd / "train.py").write_text(source)
        made.append(ways.fork_server([sys.executable, "train.py"], env, modules))
        return made[-1]

    yield start
    for each in made:
        each.close()
        os.kill(each.pid, signal.SIGCONT)
        os.waitpid(each.pid, 0)


@pytest.fixture
def printed(ways, fork_server):
    def run(source, *modules, ranks):
        started = fork_server(source, *modules)
        [ready] = listen(started)
        assert isinstance(ready, Ready), ready
        ended = ways.fork(started, [ways.request(rank) for rank in range(ranks)])
        assert [one.status for one in ended] == [0] * ranks, ended
        return [one.log for one in ended]

    return run


def test_modules_are_imported_once_for_all_ranks(ways, printed):
    """A part of a package that cannot be imported is left out: the program may handle that, or never come to it."""
    (ways.cwd / "heavy").mkdir()
    (ways.cwd / "heavy" / "__init__.py").write_text("import os; print('imported', flush=True); who = os.getpid()")
    (ways.cwd / "heavy" / "bad.py").write_text("1 / 0")
    source = "import os, heavy; print(heavy.who != os.getpid())"
    assert printed(source, "heavy", "heavy.bad", "heavy.missing", ranks=3) == ["True\n"] * 3
    assert ways.preload_log.read_text().splitlines() == [
        "imported",
        "left out: importing heavy.bad: ZeroDivisionError: division by zero",
        "left out: importing heavy.missing: ModuleNotFoundError: No module named 'heavy.missing'",
    ]


def test_it_forks_again(ways, fork_server):
    source = "import os, time; print(os.environ['TRY'], 'GONE' in os.environ, time.tzname[0])"
    started = fork_server(source, env={"GONE": "1"})
    listen(started)
    for number, zone in (("0", "AAA"), ("1", "BBB")):
        [ended] = ways.fork(started, [ways.request(env={"TRY": number, "TZ": f"{zone}0"})])
        assert (ended.status, ended.log) == (0, f"{number} False {zone}\n")


@pytest.mark.parametrize(("source", "reason"), [
    ("import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
     "importing heavy started 1 thread"),
    ("import subprocess\nchild = subprocess.Popen(['sleep', '0.1'])", "importing heavy started a process"),
    ("1 / 0", "importing heavy: ZeroDivisionError: division by zero"),
    ("import missing_thing", "importing heavy: ModuleNotFoundError: No module named 'missing_thing'"),
    ("raise SystemExit(3)", "importing heavy: SystemExit: 3"),
])  # fmt: skip
def test_what_cannot_be_forked_is_refused(ways, fork_server, source, reason):
    (ways.cwd / "heavy.py").write_text(source)
    [unusable] = listen(fork_server("", "json", "heavy"))
    assert unusable == Unusable(reason)


def test_a_rank_is_a_process_as_if_it_had_been_started_alone(ways, fork_server):
    source = (
        "import logging, os, threading, time\n"
        "record = logging.LogRecord('', 0, '', 0, '', (), None)\n"
        "print(threading.main_thread().native_id == threading.get_native_id() == os.getsid(0), os.getppid())\n"
        "print(os.sched_getaffinity(0))\n"
        "print(record.created - record.relativeCreated / 1000)"
    )
    core = min(os.sched_getaffinity(0))
    started = fork_server(source, "threading", "logging")
    listen(started)
    before_s = time.time()  # the modules have been imported by now
    [ended] = ways.fork(started, [ways.request(cpus=(core,))])
    ids, cores, logging_began_s = ended.log.splitlines()
    assert (ids, cores) == (f"True {os.getpid()}", f"{{{core}}}")
    assert before_s - CLOCK_S <= float(logging_began_s) <= time.time() + CLOCK_S


@pytest.mark.parametrize(
    "options", ["", "-W error", "-X dev -W error -I", "-P -bb -OO -E -s", "-S"], ids=lambda options: options or "none"
)
def test_the_library_can_be_preloaded(ways, options):
    (ways.cwd / "train.py").write_text(
        f"import {', '.join(sorted(LIBRARY))}\n"
        "import gc, sys, warnings\n"
        "print(signal.getsignal(signal.SIGINT), decimal.getcontext(), tempfile.tempdir, socket.getdefaulttimeout())\n"
        "print(threading.enumerate(), threading.main_thread().ident == threading.get_ident(), sys.path, gc.isenabled())\n"
        "print(logging.root.handlers, logging.root.level, warnings.filters, asyncio.get_event_loop_policy.__name__)\n"
    )
    argv = [sys.executable, *options.split(), "train.py"]
    expected = re.sub(r"started \d+", "started", ways.plain(argv).log)
    found = ways.preload(argv, modules=sorted(LIBRARY))
    assert (found.status, re.sub(r"started \d+", "started", found.log)) == (0, expected)


@pytest.mark.parametrize(("name", "preloads"), [
    ("OMP_NUM_THREADS", False), ("PYTHONHASHSEED", False), ("LD_LIBRARY_PATH", False), ("TORCH_LOGS", False),
    ("TMPDIR", False), ("RANK", True), ("TORCHELASTIC_ERROR_FILE", True), ("CUDA_VISIBLE_DEVICES", True),
])  # fmt: skip
def test_a_variable_that_imports_read_must_be_the_same_for_all_ranks(tmp_path, name, preloads):
    argv, events = (sys.executable, "-c", ""), tmp_path / "events.jsonl"
    ranks = tuple(RankSpec(rank, rank, "here", 0, rank, argv, {name: str(rank)}) for rank in range(2))
    preload = Supervision(preload=("json",))
    spec = RunSpec("x", tmp_path, Cluster.local(2), Layout(dp=2), ranks, tmp_path, "", 0, preload)
    with closing(EventLog(events, 0)) as event_log, closing(Spawner(spec, ranks, os.environ, event_log)) as spawner:
        pid = spawner.preloading and spawner.preloading.pid
    if pid:
        os.waitpid(pid, 0)
    assert bool(pid) == preloads
    assert (f"ranks start one by one: they have different values of {name}" in events.read_text()) != preloads


def test_threads_that_end_before_a_fork_are_no_danger(ways, fork_server):
    """As those of OpenBLAS, which numpy starts."""
    (ways.cwd / "heavy.py").write_text(
        "import os, threading\n"
        "end = threading.Event()\nthread = threading.Thread(target=end.wait)\nthread.start()\n"
        "os.register_at_fork(before=lambda: (end.set(), thread.join()))\n"
    )
    [ready] = listen(fork_server("", "heavy"))
    assert isinstance(ready, Ready)


def test_a_thread_on_its_way_out_is_waited_for(monkeypatch):
    """It was joined before the fork, and is in the system's list for a moment more."""
    threads = iter([2, 2, 2, 1, 1])
    for name, found in (("_threads", lambda: next(threads)), ("_others_run", lambda: True), ("_has_children", bool)):
        monkeypatch.setattr(fork_safety, name, found)
    assert fork_safety.why_unsafe() is None


def test_threads_that_sleep_stay(wait_until):
    over = threading.Event()
    sleeper = threading.Thread(target=over.wait)
    sleeper.start()
    try:
        wait_until(lambda: not fork_safety._others_run(), "that it sleeps")
    finally:
        over.set()
        sleeper.join()


def test_an_open_device_is_refused(monkeypatch):
    monkeypatch.setattr(fork_safety, "_DEVICES", ("/dev/null",))
    with Path(os.devnull).open():
        assert fork_safety._open_device() == "/dev/null"


def test_random_numbers_differ_between_ranks(printed):
    pytest.importorskip("numpy")
    source = "import random, multiprocessing as m, numpy.random\n"
    source += "print(random.random(), numpy.random.random(), bytes(m.current_process().authkey))"
    logs = printed(source, "random", "multiprocessing", "numpy", "numpy.random", ranks=3)
    columns = zip(*(log.split(maxsplit=2) for log in logs), strict=True)
    assert [len(set(column)) for column in columns] == [3, 3, 3]


def test_a_log_that_cannot_be_written_is_reported(ways, fork_server, tmp_path, reap):
    started = fork_server("print()")
    listen(started)
    started.fork([ways.request(log=tmp_path / "gone" / "train.log")])
    forked, failed = listen(started, 2)
    assert failed == ForkFailed(0, f"cannot use {tmp_path}/gone/train.log: No such file or directory")
    assert reap(forked.pid) == 126


def test_ranks_live_on_when_the_preload_process_ends(ways, fork_server, tmp_path, reap):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    started = fork_server(f"print(open({str(fifo)!r}).read())")
    listen(started)
    started.fork([request := ways.request()])
    [forked] = listen(started)
    os.kill(started.pid, signal.SIGKILL)
    [unusable] = listen(started)
    assert unusable == Unusable("the fork server ended", died=True)
    fifo.write_text("read")
    assert reap(forked.pid) == 0
    assert request.log.read_text() == "read\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_signals_of_a_terminal_do_not_end_it(ways, fork_server, number):
    started = fork_server(f"import os, time; os.kill(os.getpid(), {int(number)}); time.sleep(60)")
    listen(started)
    os.kill(started.pid, number)
    [ended] = ways.fork(started, [ways.request()])
    assert ended.status == -number


@pytest.mark.parametrize("how", ["closed", "SIGTERM"])
def test_it_ends_silently(ways, fork_server, how):
    started = fork_server("")
    listen(started)
    started.close() if how == "closed" else os.kill(started.pid, signal.SIGTERM)
    os.waitid(os.P_PID, started.pid, os.WEXITED | os.WNOWAIT)
    assert ways.preload_log.read_text() == ""


def test_it_dies_with_the_agent(ways, reap, wait_until):
    (ways.cwd / "train.py").write_text("import time; print('up', flush=True); time.sleep(600)")
    request = ways.request()
    reader, writer = os.pipe()
    agent = os.fork()
    if agent == 0:
        become_subreaper()
        started = ways.fork_server([sys.executable, "train.py"])
        listen(started)
        started.fork([request])
        [forked] = listen(started)
        os.write(writer, f"{started.pid} {forked.pid}".encode())
        signal.pause()
    os.close(writer)
    pids = [int(word) for word in os.read(reader, 100).split()]
    os.close(reader)
    watched = [os.pidfd_open(pid) for pid in pids]
    wait_until(lambda: request.log.is_file() and request.log.read_text(), "the rank's first word")
    os.kill(agent, signal.SIGKILL)
    os.waitpid(agent, 0)
    for descriptor in watched:
        assert select.select([descriptor], [], [], PATIENCE_S)[0], "still alive"
        os.close(descriptor)
    preloading, rank = pids
    assert reap(preloading) in {0, -signal.SIGKILL}  # its socket may be closed before the signal comes
    assert reap(rank) == -signal.SIGKILL
