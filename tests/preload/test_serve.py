"""The preload process: what it imports, refuses, forks, and how it ends."""

import os
import re
import select
import signal
import sys
import threading
import time

import pytest

from launcher.core.records import Cluster, Layout, RankSpec, RunSpec, Supervision
from launcher.program.command import parse_python
from launcher.supervise.event_log import EventLog
from launcher.supervise.fork_server import ForkFailed, ForkRequest, ForkResult, ForkServer, Ready, Unusable
from launcher.supervise.spawner import Spawner

PATIENCE_S = 240  # torch may be imported meanwhile
CLOCK_S = 0.001  # what is lost in sums of floating-point times


@pytest.fixture
def fork_server(ways, tmp_path):
    """Start a preload process; whatever happens it is ended and reaped."""
    made = []

    def start(source, modules=(), env=None):
        (ways.cwd / "train.py").write_text(source)
        argv = [sys.executable, "train.py"]
        command = parse_python(argv, os.environ["PATH"], ways.cwd)
        environment = {**os.environ, **(env or {})}
        log = tmp_path / "preload.log"
        made.append(
            ForkServer(command, modules, argv_shown=argv, common_environment=environment, cwd=ways.cwd, log=log)
        )
        return made[-1]

    yield start
    for each in made:
        each.close()
        os.kill(each.pid, signal.SIGCONT)
        os.waitpid(each.pid, 0)


def listen(fork_server, count=1):
    """The next messages, at least `count`."""
    told = []
    deadline = time.monotonic() + PATIENCE_S
    while len(told) < count:
        assert time.monotonic() < deadline, told
        select.select([fork_server], [fork_server] if fork_server.wants_write else [], [], 1)
        fork_server.send()
        told += fork_server.take()
    return told


def request(tmp_path, rank=0, env=None, **fields):
    device_dir = tmp_path / f"device{rank}"
    device_dir.mkdir(exist_ok=True)
    log = fields.pop("log", device_dir / "train.log")
    return ForkRequest(rank, {**os.environ, **(env or {})}, log, device_dir, **fields)


def ends(tmp_path, rank=0):
    return (tmp_path / f"device{rank}" / "train.log").read_text()


def test_modules_are_imported_once_for_all_ranks(ways, fork_server, tmp_path, reap):
    """Every rank finds them loaded; what they print goes to the preload process's own log."""
    (ways.cwd / "heavy.py").write_text("import os; print('imported', flush=True); who = os.getpid()")
    started = fork_server("import os, heavy; print(heavy.who != os.getpid())", ("heavy",))
    [ready] = listen(started)
    assert isinstance(ready, Ready)
    started.fork([request(tmp_path, rank) for rank in range(3)])
    told = listen(started, 3)
    assert [type(each) for each in told] == [ForkResult] * 3
    assert [reap(each.pid) for each in told] == [0, 0, 0]
    assert [ends(tmp_path, rank) for rank in range(3)] == ["True\n"] * 3
    assert (tmp_path / "preload.log").read_text() == "imported\n"


def test_it_forks_again(fork_server, tmp_path, reap):
    """For another attempt, with another environment; the log goes on."""
    started = fork_server(
        "import os, time; print(os.environ['TRY'], 'GONE' in os.environ, time.tzname[0])", env={"GONE": "1"}
    )
    listen(started)
    for number in ("0", "1"):
        made = request(tmp_path, env={"TRY": number, "TZ": "AB"[int(number)] * 3 + "0"})
        started.fork([made])
        [forked] = listen(started)
        assert reap(forked.pid) == 0
    assert ends(tmp_path) == "0 False AAA\n1 False BBB\n"


@pytest.mark.parametrize(("source", "reason"), [
    ("import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
     "importing heavy started 1 thread"),
    ("import subprocess\nchild = subprocess.Popen(['sleep', '0.1'])", "importing heavy started a process"),
    ("1 / 0", "importing heavy: ZeroDivisionError: division by zero"),
    ("import missing_thing", "importing heavy: ModuleNotFoundError: No module named 'missing_thing'"),
    ("raise SystemExit(3)", "importing heavy: SystemExit: 3"),
])  # fmt: skip
def test_what_cannot_be_forked_is_refused(ways, fork_server, source, reason):
    """The module and the reason are named, and the process ends."""
    (ways.cwd / "heavy.py").write_text(source)
    [unusable] = listen(fork_server("", ("json", "heavy")))
    assert unusable == Unusable(reason)


def test_a_part_of_a_package_that_cannot_be_imported_is_left_out(ways, fork_server, tmp_path, reap):
    """The program may handle that, or never come to it; the log tells."""
    (ways.cwd / "heavy").mkdir()
    (ways.cwd / "heavy" / "__init__.py").write_text("import os\nwho = os.getpid()")
    (ways.cwd / "heavy" / "bad.py").write_text("1 / 0")
    started = fork_server("import os, heavy; print(heavy.who != os.getpid())", ("heavy", "heavy.bad", "heavy.missing"))
    [ready] = listen(started)
    assert isinstance(ready, Ready)
    started.fork([request(tmp_path)])
    [forked] = listen(started)
    assert reap(forked.pid) == 0
    assert ends(tmp_path) == "True\n"
    assert (tmp_path / "preload.log").read_text().splitlines() == [
        "left out: importing heavy.bad: ZeroDivisionError: division by zero",
        "left out: importing heavy.missing: ModuleNotFoundError: No module named 'heavy.missing'",
    ]


def test_what_modules_note_when_they_are_imported_is_the_rank_s(fork_server, tmp_path, reap):
    """The number of its thread, and the time at which logging began."""
    source = (
        "import logging, threading, time\n"
        "record = logging.LogRecord('', 0, '', 0, '', (), None)\n"
        "print(threading.main_thread().native_id == threading.get_native_id())\n"
        "print(record.created - record.relativeCreated / 1000)"
    )
    started = fork_server(source, ("threading", "logging"))
    [ready] = listen(started)
    assert isinstance(ready, Ready)
    before_s = time.time()
    started.fork([request(tmp_path)])
    [forked] = listen(started)
    assert reap(forked.pid) == 0
    is_main_thread, logging_began_s = ends(tmp_path).split()
    assert is_main_thread == "True"
    assert before_s - CLOCK_S <= float(logging_began_s) <= time.time() + CLOCK_S


@pytest.mark.parametrize("options", [
    (), ("-W", "error"), ("-I",), ("-P",), ("-X", "dev", "-W", "error"), ("-E", "-s"), ("-bb", "-OO"), ("-S",),
])  # fmt: skip
def test_the_library_can_be_preloaded(ways, options):
    """All that is ever imported ahead of it, with every option; the program notices nothing."""
    from launcher.program.import_scan import LIBRARY

    (ways.cwd / "train.py").write_text(
        f"import {', '.join(sorted(LIBRARY))}\n"
        "import gc, sys, warnings\n"
        "print(signal.getsignal(signal.SIGINT), decimal.getcontext(), tempfile.tempdir, socket.getdefaulttimeout())\n"
        "print(threading.enumerate(), threading.main_thread().ident == threading.get_ident(), sys.path, gc.isenabled())\n"
        "print(logging.root.handlers, logging.root.level, warnings.filters, asyncio.get_event_loop_policy.__name__)\n"
    )
    argv = [sys.executable, *options, "train.py"]
    expected = re.sub(r"started \d+", "started", ways.plain(argv).log)
    found = ways.preload(argv, modules=sorted(LIBRARY))
    assert (found.status, re.sub(r"started \d+", "started", found.log)) == (0, expected)


@pytest.mark.parametrize(("name", "preloads"), [
    ("OMP_NUM_THREADS", False), ("PYTHONHASHSEED", False), ("LD_LIBRARY_PATH", False), ("TORCH_LOGS", False),
    ("TMPDIR", False), ("RANK", True), ("TORCHELASTIC_ERROR_FILE", True), ("CUDA_VISIBLE_DEVICES", True),
])  # fmt: skip
def test_a_variable_that_imports_read_must_be_the_same_for_all_ranks(tmp_path, name, preloads):
    """Else they would read no value of it at all; one line says which it is."""
    argv = (sys.executable, "-c", "")
    ranks = tuple(RankSpec(i, i, "here", 0, i, argv, {name: str(i)}) for i in range(2))
    spec = RunSpec(
        "x", tmp_path, Cluster.local(2), Layout(dp=2), ranks, tmp_path, "", 0, Supervision(preload=("json",))
    )
    event_log = EventLog(tmp_path / "events.jsonl", 0)
    spawner = Spawner(spec, ranks, os.environ, event_log)
    started = spawner.preloading
    pid = started and started.pid
    spawner.close()
    event_log.close()
    if pid:
        os.waitpid(pid, 0)
    events = (tmp_path / "events.jsonl").read_text()
    assert (started is not None) == preloads
    assert (f"ranks start one by one: {name} differs between them" in events) != preloads


def test_threads_that_end_before_a_fork_are_no_danger(ways, fork_server):
    """As those of OpenBLAS, which numpy starts."""
    (ways.cwd / "heavy.py").write_text(
        "import os, threading\n"
        "end = threading.Event()\nthread = threading.Thread(target=end.wait)\nthread.start()\n"
        "os.register_at_fork(before=lambda: (end.set(), thread.join()))\n"
    )
    [ready] = listen(fork_server("", ("heavy",)))
    assert isinstance(ready, Ready)


@pytest.fixture
def unsafe():
    """The module that tells whether this process may be forked, anew."""
    import importlib.util

    from launcher import preload

    path = os.path.join(os.path.dirname(preload.__file__), "fork_safety.py")  # noqa: PTH118, PTH120
    spec = importlib.util.spec_from_file_location("fork_safety", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_thread_on_its_way_out_is_waited_for(unsafe):
    """It was joined before the fork, and is in the system's list for a moment more."""
    threads = iter([2, 2, 2, 1, 1])
    unsafe._threads, unsafe._others_run, unsafe._has_children = lambda: next(threads), lambda: True, lambda: False
    assert unsafe.why_unsafe() is None


def test_threads_that_sleep_stay(unsafe, wait_until):
    """Nobody waits for their end."""
    over = threading.Event()
    sleeper = threading.Thread(target=over.wait)
    sleeper.start()
    try:
        wait_until(lambda: not unsafe._others_run(), "that it sleeps")
    finally:
        over.set()
        sleeper.join()


def test_an_open_device_is_refused(unsafe):
    """By the path of its file; a link's name would not do, so this looks at the table of names."""
    unsafe._DEVICES = ("/dev/null",)
    descriptor = os.open("/dev/null", os.O_RDONLY)
    assert unsafe._open_device() == "/dev/null"
    os.close(descriptor)


def test_random_numbers_differ_between_ranks(fork_server, tmp_path, reap):
    """As they do between programs that are started one by one; keys of multiprocessing too."""
    pytest.importorskip("numpy")
    source = (
        "import random, multiprocessing, numpy.random\n"
        "print(random.random(), numpy.random.random(), bytes(multiprocessing.current_process().authkey))"
    )
    started = fork_server(source, ("random", "multiprocessing", "numpy", "numpy.random"))
    [ready] = listen(started)
    assert isinstance(ready, Ready)
    started.fork([request(tmp_path, rank) for rank in range(3)])
    assert [reap(each.pid) for each in listen(started, 3)] == [0, 0, 0]
    columns = zip(*(ends(tmp_path, rank).split(maxsplit=2) for rank in range(3)), strict=True)
    assert [len(set(column)) for column in columns] == [3, 3, 3]


def test_a_rank_has_its_cores(fork_server, tmp_path, reap):
    """Before the program begins."""
    core = min(os.sched_getaffinity(0))
    started = fork_server("import os; print(os.sched_getaffinity(0))")
    listen(started)
    started.fork([request(tmp_path, cpus=(core,))])
    [forked] = listen(started)
    assert reap(forked.pid) == 0
    assert ends(tmp_path) == f"{{{core}}}\n"


def test_a_log_that_cannot_be_written_is_told(fork_server, tmp_path, reap):
    """The rank ends with 126 before its program begins."""
    started = fork_server("print()")
    listen(started)
    started.fork([request(tmp_path, log=tmp_path / "gone" / "train.log")])
    forked, failed = listen(started, 2)
    assert failed == ForkFailed(0, f"cannot use {tmp_path}/gone/train.log: No such file or directory")
    assert reap(forked.pid) == 126


def test_a_rank_leads_its_own_session_below_this_process(fork_server, tmp_path, reap):
    """It is a child of whoever asked, in a session of its own."""
    started = fork_server("import os; print(os.getsid(0) == os.getpid(), os.getppid())")
    listen(started)
    started.fork([request(tmp_path)])
    [forked] = listen(started)
    assert reap(forked.pid) == 0
    assert ends(tmp_path) == f"True {os.getpid()}\n"


def test_ranks_live_on_when_the_preload_process_ends(fork_server, tmp_path, reap):
    """It is no parent of theirs."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    started = fork_server(f"print(open({str(fifo)!r}).read())")
    listen(started)
    started.fork([request(tmp_path)])
    [forked] = listen(started)
    os.kill(started.pid, signal.SIGKILL)
    [unusable] = listen(started)
    assert unusable == Unusable("the preload process ended", died=True)
    fifo.write_text("told")
    assert reap(forked.pid) == 0
    assert ends(tmp_path) == "told\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_signals_of_a_terminal_do_not_end_it(fork_server, tmp_path, number, reap):
    """And leave nothing behind in ranks, where they do what they always do."""
    started = fork_server(f"import os, time; os.kill(os.getpid(), {int(number)}); time.sleep(60)")
    listen(started)
    os.kill(started.pid, number)
    started.fork([request(tmp_path)])
    [forked] = listen(started)
    assert reap(forked.pid) == -number


@pytest.mark.parametrize("how", ["closed", "SIGTERM"])
def test_it_ends_silently(fork_server, tmp_path, how):
    """When nobody wants it any more."""
    started = fork_server("")
    listen(started)
    started.close() if how == "closed" else os.kill(started.pid, signal.SIGTERM)
    os.waitid(os.P_PID, started.pid, os.WEXITED | os.WNOWAIT)
    assert (tmp_path / "preload.log").read_text() == ""


def test_it_dies_with_the_agent(ways, tmp_path, reap, wait_until):
    """A preload process and a rank whose agent is killed are killed."""
    reader, writer = os.pipe()
    agent = os.fork()
    if agent == 0:
        from launcher.supervise.spawn import become_subreaper

        become_subreaper()
        (ways.cwd / "train.py").write_text("import time; print('up', flush=True); time.sleep(600)")
        argv = [sys.executable, "train.py"]
        command = parse_python(argv, os.environ["PATH"], ways.cwd)
        started = ForkServer(
            command, (), argv_shown=argv, common_environment=os.environ, cwd=ways.cwd, log=tmp_path / "preload.log"
        )
        listen(started)
        started.fork([request(tmp_path)])
        [forked] = listen(started)
        os.write(writer, f"{started.pid} {forked.pid}".encode())
        signal.pause()
    os.close(writer)
    pids = [int(word) for word in os.read(reader, 100).split()]
    os.close(reader)
    watched = [os.pidfd_open(pid) for pid in pids]
    log = tmp_path / "device0" / "train.log"
    wait_until(lambda: log.is_file() and log.read_text(), "the rank's first word")
    os.kill(agent, signal.SIGKILL)
    os.waitpid(agent, 0)
    for descriptor in watched:
        assert select.select([descriptor], [], [], PATIENCE_S)[0], "still alive"
        os.close(descriptor)
    preloading, rank = pids
    assert reap(preloading) in {0, -signal.SIGKILL}  # its socket may be closed before the signal comes
    assert reap(rank) == -signal.SIGKILL


@pytest.mark.slow
def test_torch_can_be_preloaded(fork_server, tmp_path, reap):
    """With numpy and its threads; every rank may compute with two threads afterwards."""
    pytest.importorskip("torch")
    source = "import torch; torch.set_num_threads(2); x = torch.ones(500, 500); print((x @ x).sum().item())"
    started = fork_server(source, ("torch", "torch._dynamo"))
    [ready] = listen(started)
    assert isinstance(ready, Ready)
    started.fork([request(tmp_path, rank) for rank in range(2)])
    assert [reap(each.pid) for each in listen(started, 2)] == [0, 0]
    assert [ends(tmp_path, rank) for rank in range(2)] == ["125000000.0\n"] * 2
