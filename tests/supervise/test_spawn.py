"""Processes that become a rank's program: spawned ones, and this one; their environment, and why some cannot start."""

import os
import select
import signal
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.supervise.spawn import Complaints, Program, render_environment, spawn, write_environment

NAMES = st.text("ABCDEFGHIJKLM_", min_size=1, max_size=8).map("V_{}".format)
VALUES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@pytest.fixture
def complaints():
    with closing(Complaints()) as made:
        yield made


def run(argv, complaints, tmp_path, *, log=None, cwd=None, cpus=None):
    log = log or tmp_path / "train.log"
    environment = {"PATH": os.environ["PATH"], "X": "1"}
    pid = spawn(Program(tuple(argv), environment, cwd or tmp_path, log, cpus), complaints)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), complaints.reason_of(pid), log.read_text() if log.is_file() else None


def test_a_program_has_its_log_and_exactly_the_environment_that_was_given(complaints, tmp_path):
    (tmp_path / "train.log").write_text("before\n")
    assert run(["sh", "-c", "echo out; echo err >&2"], complaints, tmp_path) == (0, None, "before\nout\nerr\n")
    code, _, log = run(["env"], complaints, tmp_path, log=tmp_path / "env")
    assert (code, set(log.splitlines())) == (0, {f"PATH={os.environ['PATH']}", "X=1"})


CORES = (100_000, 100_001, 100_007)
HAS_AFFINITY = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux's affinity")
MISSING_CORES = ("true", "log", "", CORES, 126, "cannot use cores 100000-100001,100007: Invalid argument")


@pytest.mark.parametrize(
    ("program", "log", "cwd", "cpus", "code", "reason"),
    [
        ("no-such-program", "log", "", None, 127, "cannot start no-such-program: No such file or directory"),
        ("{0}/noise", "log", "", None, 126, "cannot start {0}/noise: Exec format error"),
        ("true", "gone/log", "", None, 126, "cannot use {0}/gone/log: No such file or directory"),
        ("true", "log", "gone", None, 126, "cannot use {0}/gone: No such file or directory"),
        pytest.param(*MISSING_CORES, marks=HAS_AFFINITY),
    ],
    ids=["missing program", "no program, nor run by a shell", "missing log directory", "missing cwd", "missing cores"],
)
def test_what_cannot_be_started_has_a_shell_s_code(complaints, tmp_path, *, program, log, cwd, cpus, code, reason):
    (tmp_path / "noise").write_bytes(b"\x00\x01\x02\x03")
    (tmp_path / "noise").chmod(0o755)
    told = run([program.format(tmp_path)], complaints, tmp_path, log=tmp_path / log, cwd=tmp_path / cwd, cpus=cpus)
    assert told[:2] == (code, reason.format(tmp_path))


def test_several_complaints_find_their_own_process(complaints, tmp_path):
    programs = [Program((f"missing-{index}",), {}, tmp_path, tmp_path / "train.log") for index in range(3)]
    pids = [spawn(program, complaints) for program in programs]
    for pid in pids:
        os.waitpid(pid, 0)
    reasons = [complaints.reason_of(pid) for pid in reversed(pids)]
    assert reasons == [f"cannot start missing-{index}: No such file or directory" for index in (2, 1, 0)]
    code, reason, _ = run(["n" * 3000], complaints, tmp_path)
    assert code in {126, 127}
    assert reason.startswith("cannot start nnn")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_a_process_dies_with_its_parent(tmp_path):
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
    with suppress(ProcessLookupError):  # gone already, and reaped
        watched = os.pidfd_open(grandchild)
        assert select.select([watched], [], [], 30)[0], "still alive"
        os.close(watched)


# --- this process; end_to_end/test_exec.py has programs that cannot be started ---

BECOME = """
import os, sys
from pathlib import Path
from launcher.supervise.spawn import become
print("before", flush=True)
log = Path(sys.argv[1]) if sys.argv[1] else None
sys.exit(become(tuple(sys.argv[2:]), {**os.environ, "WORD": "a b$(c)"}, log))
"""


def run_become(log, *argv, before=(), **options):
    """What a process says that runs `argv` in its place; it is started by `before`."""
    command = [*before, sys.executable, "-c", BECOME, log, *map(str, argv)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)


def test_the_program_has_this_process_s_pid_and_the_log(tmp_path):
    log = tmp_path / "train.log"
    log.write_text("earlier\n")
    shell = 'exec "$@" "$$"'  # its own pid is the last word
    program = 'echo $(($$ - $2)) "$WORD" "$1"; echo error >&2'
    done = run_become(log, "sh", "-c", program, "-", "x  y\n", before=("sh", "-c", shell, "-"))
    assert (done.stdout, done.returncode) == ("before\n", 0)
    assert log.read_text() == "earlier\n0 a b$(c) x  y\n\nerror\n"


def test_without_a_log_all_is_as_the_engine_left_it():
    reader, writer = os.pipe()
    try:
        program = f"echo error >&2; echo through >/dev/fd/{writer}; grep SigIgn /proc/self/status; exit 7"
        ignoring = ("sh", "-c", "trap '' HUP; exec \"$@\"", "-")
        done = run_become("", "sh", "-c", program, before=ignoring, pass_fds=(writer,))
        assert os.read(reader, 100) == b"through\n"
    finally:
        os.close(reader)
        os.close(writer)
    assert (done.stderr, done.returncode) == ("error\n", 7)
    ignored = int(done.stdout.removeprefix("before\nSigIgn:"), 16)
    numbers = (signal.SIGHUP, signal.SIGUSR1, signal.SIGPIPE)
    assert [ignored >> (number - 1) & 1 for number in numbers] == [1, 0, 0]


# --- the environment ---


@settings(max_examples=40)
@given(st.dictionaries(NAMES, VALUES))
def test_one_line_per_variable_whatever_it_holds(environment):
    lines = render_environment(environment).split("\n")[:-1]
    assert [line.partition("=")[0] for line in lines] == sorted(environment)
    for line in lines:
        name, _, shown = line.partition("=")
        if shown != environment[name] and "://" not in environment[name]:
            unescaped = shown.replace("\\\\", "\0").replace("\\n", "\n").replace("\\r", "\r").replace("\0", "\\")
            assert unescaped == environment[name]


def test_bytes_that_are_no_text_survive(tmp_path):
    write_environment(tmp_path / "env.log", {"RAW": b"\xff".decode("utf-8", "surrogateescape")})
    assert (tmp_path / "env.log").read_bytes() == b"RAW=\xff\n"
