"""Spawning one process: what it becomes, and what is told when it cannot."""

import os
from pathlib import Path

import pytest

from launcher.supervise.spawn import Complaints, Program, spawn


@pytest.fixture
def complaints():
    made = Complaints()
    yield made
    made.close()


def run(argv, complaints, tmp_path, *, log=None, cwd=None):
    """Exit code, complaint and log of one program."""
    log = log or tmp_path / "train.log"
    pid = spawn(Program(tuple(argv), {"PATH": os.environ["PATH"], "X": "1"}, cwd or tmp_path, log), complaints)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), complaints.reason_of(pid), log.read_text() if log.is_file() else None


def test_output_and_errors_are_appended_to_the_log(complaints, tmp_path):
    """Both streams go to one file, after what it held before."""
    (tmp_path / "train.log").write_text("before\n")
    assert run(["sh", "-c", "echo out; echo err >&2"], complaints, tmp_path) == (0, None, "before\nout\nerr\n")


def test_environment_is_exactly_what_was_given(complaints, tmp_path):
    """Nothing of this process's environment slips in."""
    code, _, log = run(["env"], complaints, tmp_path)
    assert code == 0
    assert set(log.splitlines()) == {f"PATH={os.environ['PATH']}", "X=1"}


def test_missing_program_is_told_with_127(complaints, tmp_path):
    """As a shell does for what it cannot find."""
    code, reason, _ = run(["no-such-program"], complaints, tmp_path)
    assert (code, reason) == (127, "cannot start no-such-program: No such file or directory")


def test_program_in_an_unknown_format_is_told_with_126(complaints, tmp_path):
    """A file that is executable but no program is refused by the system, not run by a shell."""
    program = tmp_path / "noise"
    program.write_bytes(b"\x00\x01\x02\x03")
    program.chmod(0o755)
    code, reason, _ = run([str(program)], complaints, tmp_path)
    assert (code, reason) == (126, f"cannot start {program}: Exec format error")


def test_missing_log_directory_is_told_with_126(complaints, tmp_path):
    """A rank that could not write its log does not run unheard."""
    log = tmp_path / "gone" / "train.log"
    code, reason, _ = run(["true"], complaints, tmp_path, log=log)
    assert (code, reason) == (126, f"cannot use {log}: No such file or directory")


def test_missing_working_directory_is_told_with_126(complaints, tmp_path):
    """The directory that cannot be entered is named."""
    code, reason, _ = run(["true"], complaints, tmp_path, cwd=tmp_path / "gone")
    assert (code, reason) == (126, f"cannot use {tmp_path / 'gone'}: No such file or directory")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux's affinity")
def test_cores_that_are_not_there_are_told_with_126(complaints, tmp_path):
    """Errors of calls that take no path name what they were about, too."""
    program = Program(("true",), {}, tmp_path, tmp_path / "train.log", cpus=(100_000, 100_001, 100_007))
    pid = spawn(program, complaints)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 126
    assert complaints.reason_of(pid) == "cannot use cores 100000-100001,100007: Invalid argument"


def test_two_complaints_find_their_own_process(complaints, tmp_path):
    """The shared pipe keeps the reasons of several failures apart."""
    programs = [Program((f"missing-{index}",), {}, tmp_path, tmp_path / "train.log") for index in range(3)]
    pids = [spawn(program, complaints) for program in programs]
    for pid in pids:
        os.waitpid(pid, 0)
    reasons = [complaints.reason_of(pid) for pid in reversed(pids)]
    assert reasons == [f"cannot start missing-{index}: No such file or directory" for index in (2, 1, 0)]


def test_a_very_long_reason_is_cut_not_lost(complaints, tmp_path):
    """However long a program's name is, the message arrives whole enough to be read."""
    code, reason, _ = run(["n" * 3000], complaints, tmp_path)
    assert code in {126, 127}
    assert reason.startswith("cannot start nnn")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_a_process_dies_with_its_parent(tmp_path):
    """SIGKILL of the process that spawned it ends a program at once."""
    reader, writer = os.pipe()
    middle = os.fork()
    if middle == 0:
        os.setsid()
        pid = spawn(Program(("sleep", "1000"), dict(os.environ), tmp_path, tmp_path / "log"), Complaints())
        os.write(writer, str(pid).encode())
        os.kill(os.getpid(), 9)
    grandchild = int(os.read(reader, 32))
    os.close(reader)
    os.close(writer)
    os.waitpid(middle, 0)
    watched = _pidfd(grandchild)
    if watched is not None:
        import select

        assert select.select([watched], [], [], 30)[0], "still alive"
        os.close(watched)


def _pidfd(pid):
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:  # gone already, and reaped
        return None
