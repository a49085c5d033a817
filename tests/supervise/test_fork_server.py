"""The agent's side of preloading: it must live through whatever the fork server does."""

import os
import signal
import sys

import pytest

from launcher.program.program_command import PythonCommand, parse_python
from launcher.supervise.fork_server import (
    ForkFailed,
    ForkResult,
    ForkServer,
    Ready,
    StartRequest,
    Unusable,
)
from launcher.supervise.spawn import Program
from tests.preload.conftest import listen


@pytest.fixture
def start(tmp_path):
    made = []

    def started(command, argv_shown=("python", "train.py")):
        shown = Program(tuple(argv_shown), dict(os.environ), tmp_path, tmp_path / "preload.log")
        made.append(ForkServer(command, (), shown))
        return made[-1]

    yield started
    for each in made:
        each.close()
        os.kill(each.pid, signal.SIGKILL)
        os.waitpid(each.pid, 0)


@pytest.fixture
def python(tmp_path):
    (tmp_path / "train.py").write_text("")
    return parse_python([sys.executable, "train.py"], os.environ["PATH"], tmp_path)


@pytest.fixture
def impostor(tmp_path):
    """A program that is started as if it were Python, and says something on the descriptor that it is given."""

    def make(words):
        path = tmp_path / "python"
        say = f"said = {words!r}\nwhile said:\n    said = said[os.write(int(sys.argv[3]), said):]"
        path.write_text(f"#!{sys.executable}\nimport os, sys, time\n{say}\ntime.sleep(600)\n")
        path.chmod(0o755)
        return PythonCommand(str(path), (), "script", "train.py", ())

    return make


def requests(tmp_path, count, **more):
    made = []
    for rank in range(count):
        device = tmp_path / f"device{rank}"
        device.mkdir(exist_ok=True)
        made.append(StartRequest(rank, (), {**os.environ, **more}, device / "train.log", device))
    return made


def test_many_ranks_are_forked(start, python, suspend, tmp_path, reap):
    fork_server = start(python)
    assert isinstance(listen(fork_server)[0], Ready)
    suspend(fork_server.pid)  # else it might read all of it meanwhile
    fork_server.fork(requests(tmp_path, 15, LARGE="x" * 100_000))
    assert fork_server.wants_write
    os.kill(fork_server.pid, signal.SIGCONT)
    told = listen(fork_server, 15)
    assert sorted(each.global_rank for each in told) == list(range(15))
    assert [reap(each.pid) for each in told] == [0] * 15
    assert fork_server.waiting_for_s == 0
    fork_server.close()
    fork_server.close()
    assert (fork_server.take(), fork_server.wants_write) == ([], False)


def test_a_killed_process_is_told_with_what_it_owes(start, python, suspend, tmp_path):
    fork_server = start(python)
    listen(fork_server)
    suspend(fork_server.pid)
    fork_server.fork(requests(tmp_path, 2))
    assert (fork_server.take(), fork_server.waiting_for_s > 0) == ([], True)
    os.kill(fork_server.pid, signal.SIGKILL)
    reason = "the fork server ended"
    assert listen(fork_server, 3) == [Unusable(reason, died=True), ForkFailed(0, reason), ForkFailed(1, reason)]
    assert fork_server.fileno() == -1
    fork_server.fork(requests(tmp_path, 1))
    assert [type(each) for each in (*fork_server.take(), *fork_server.take())] == [ForkFailed]


def test_a_stopped_process_can_be_given_up(start, python, suspend, tmp_path):
    """It is killed, so that it cannot fork a rank later."""
    fork_server = start(python)
    listen(fork_server)
    suspend(fork_server.pid)
    fork_server.fork(requests(tmp_path, 1))
    assert fork_server.give_up("no answer") == [Unusable("no answer", died=True), ForkFailed(0, "no answer")]
    assert fork_server.give_up("again") == []
    ended = os.waitid(os.P_PID, fork_server.pid, os.WEXITED | os.WNOWAIT)
    assert ended.si_status == signal.SIGKILL


@pytest.mark.parametrize(("words", "reason"), [
    (b"rubbish\n", "cannot be read"), (b"[1]\n", "cannot be read"), (b"{}\n", "cannot be read"), (b"\xff\n", "cannot"),
    (b'{"key": 0}\n', "cannot be read"), (b'{"key": [], "pid": 1}\n', "cannot"), (b"0" * 3_000_000, "more than 1048576"),
    (b'{"key": 3, "pid": 12}\n!\n', "cannot be read"), (b'{"unsafe": "it has threads"}\n', "it has threads"),
])  # fmt: skip
def test_nonsense_from_the_process_is_lived_through(start, impostor, tmp_path, words, reason):
    fork_server = start(impostor(words))
    fork_server.fork(requests(tmp_path, 1))
    understood = [ForkResult(3, 12)] if b"12" in words else []
    *before, unusable, failed = listen(fork_server, 2 + len(understood))
    assert reason in unusable.reason
    assert (before, unusable.died) == (understood, b"unsafe" not in words)
    assert failed == ForkFailed(0, unusable.reason)


def test_an_interpreter_that_cannot_be_started_is_told(start, tmp_path):
    fork_server = start(PythonCommand(str(tmp_path / "gone"), (), "script", "train.py", ()))
    assert listen(fork_server) == [Unusable(f"cannot start {tmp_path}/gone: No such file or directory", died=True)]


def test_requests_may_come_before_it_is_ready(start, tmp_path, reap):
    words = [sys.executable, "train.py", *("word" * 20 for _ in range(50))]
    (tmp_path / "train.py").write_text("from pathlib import Path\nprint(Path('/proc/self/cmdline').read_bytes())")
    fork_server = start(parse_python(words, os.environ["PATH"], tmp_path), argv_shown=words)
    fork_server.fork(requests(tmp_path, 1))
    ready, forked = listen(fork_server, 2)
    assert (type(ready), type(forked)) == (Ready, ForkResult)
    assert reap(forked.pid) == 0
    shown = (tmp_path / "device0" / "train.log").read_text()
    assert shown == f"{b''.join(os.fsencode(word) + bytes(1) for word in words)}\n"
