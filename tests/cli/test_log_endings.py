"""However those end who show logs, it is quiet, at once, with the code that is documented, and no harm to the run."""

import math
import os
import pty
import random
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from launcher.core.events import AgentEnded, AgentStarted, AttemptStarted, Cause, RankStarted
from launcher.core.machine.proc import identify
from launcher.core.run_report import Report
from tests.conftest import PATIENCE_S
from tests.programs import acted_run

UNTIL_GO = "until [ -e go ]; do sleep 0.01; done"
TALKS = "import time\nwhile True:\n    print('on', flush=True)\n    time.sleep(0.1)"
ALL_MODES = [(), ("--merge",), ("--collapse",)]
REMOVED = list(zip(["device0", "events.jsonl", "run.json"], ALL_MODES, strict=True))
MODES = pytest.mark.parametrize("options", ALL_MODES, ids=["plain", "merge", "collapse"])
TAKE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)
MEASURED_S, BUSY_PERCENT = 1, 30  # of a core; a loop that never sleeps takes all that it can get
PEAK = """
import atexit, re, sys
from pathlib import Path
from launcher.cli import main
status = Path("/proc/self/status")
atexit.register(lambda: print(re.search(r"VmHWM:\\s+(\\d+)", status.read_text())[1], file=sys.stderr))
main.main(sys.argv[1:])
"""


@pytest.fixture(scope="module", name="talking_run")
def _talking_run(module_launcher):
    run = module_launcher.start("run", "--devices", 2, "--", "python", "-c", TALKS)
    module_launcher.wait_ready(2, "on")
    yield run
    run.terminate()
    assert run.wait(PATIENCE_S) == 143


@pytest.fixture(name="talking")
def _talking(module_launcher, talking_run):
    """The launcher of a run that writes all the time, the same for many tests; none of them harms it."""
    yield module_launcher
    assert talking_run.poll() is None, "the run was harmed"


@pytest.fixture
def going_on(launcher):
    """The directory of the run `a`, which goes on: this process is its agent, and both of its ranks."""
    me = identify(os.getpid())
    starts = [RankStarted(rank, me.pid, me.started) for rank in range(2)]
    return acted_run.make(launcher.runs / "a", [AgentStarted(me, None, 2), AttemptStarted(0, 29500), *starts])


def finish(run_dir):
    """Write the report, the last of all files."""
    now_ns = time.time_ns()
    run_dir.report.write_text(Report("a", 0, Cause.FINISHED, 0, now_ns, now_ns, ()).to_json())


@contextmanager
def reading(launcher, *arguments):
    """A command with its stdout in a pipe, and the end of that pipe that reads."""
    reader, writer = os.pipe()
    process = launcher.start(*arguments, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    with os.fdopen(reader, "rb", buffering=0) as shown:
        yield process, shown


@contextmanager
def reading_in_all_modes(launcher, *arguments, lines=1):
    """As `reading`, of `logs -f` in each mode at once, behind so many lines of each: pairs of process and pipe."""
    with ExitStack() as stack:
        commands = [("logs", "-f", *options, *arguments) for options in ALL_MODES]
        followers = [stack.enter_context(reading(launcher, *command)) for command in commands]
        for _, shown in followers:
            read_on(shown, lines)
        yield followers


def ended(process):
    _, words = process.communicate(timeout=PATIENCE_S)
    return process.returncode, words.decode()


# --- readers that leave ---


@MODES
def test_a_reader_may_leave_after_a_line_or_at_once(talking, options):
    some = 1 if options == ("--collapse",) else 2
    for follow, lines in ((("-f",), some), (("-f",), 0), ((), some)):
        with reading(talking, "logs", *follow, *options) as (process, shown):
            read_on(shown, lines)
        code, words = ended(process)
        assert (code, not follow and "have no time" in words) == (0, words != "")


def test_a_silent_run_costs_nothing_and_its_reader_may_leave(launcher, going_on):
    """A follower sleeps, listens once, and ends quietly though it has nothing to write."""
    for rank in range(2):
        going_on.train_log(rank).write_text("on\n")
    with reading_in_all_modes(launcher, "a") as followers:
        assert rest(followers)
        for follower, _ in followers:
            descriptors = Path(f"/proc/{follower.pid}/fd").iterdir()
            assert sum("inotify" in str(descriptor.readlink()) for descriptor in descriptors) == 1
    assert [ended(follower) for follower, _ in followers] == [(0, "")] * 3


def test_slow_readers_that_leave(launcher, going_on, wait_until):
    for rank in range(2):
        going_on.train_log(rank).write_text(f"{'on' * 1000}\n" * 3_000)
    with reading_in_all_modes(launcher, "a", lines=3) as followers:
        for follower, _ in followers:
            process = psutil.Process(follower.pid)
            wait_until(lambda process=process: process.status() == psutil.STATUS_SLEEPING, "a full pipe")
        wait_until(lambda: rest(followers), "that they wait for their readers")
    assert [ended(follower) for follower, _ in followers] == [(0, "")] * 3


@MODES
def test_a_signal_ends_a_follower(talking, options):
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143))[: 1 if options else 2]:
        with reading(talking, "logs", "-f", *options) as (follower, shown):
            read_on(shown, 1)
            follower.send_signal(number)
            assert ended(follower) == (code, "\n" if number == signal.SIGINT else "")


@pytest.mark.parametrize("command", [("logs", "-f"), ("run", "--", "python", "-c", TALKS)], ids=["logs", "run"])
def test_a_terminal_that_is_closed_ends_a_command(launcher, talking, command):
    used = talking if "logs" in command else launcher
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", TAKE_TERMINAL, *used.argv(*command)],
        stdin=follower, stdout=follower, stderr=follower, start_new_session=True, cwd=used.directory,
        env=used.environment({}),
    )  # fmt: skip
    os.close(follower)
    assert os.read(leader, 2)
    os.close(leader)
    assert process.wait(PATIENCE_S) == 129
    assert not launcher.processes()


# --- a stdout that takes nothing ---


@MODES
@pytest.mark.parametrize("follow", [(), ("-f",)], ids=["once", "follow"])
def test_a_full_disk_is_told(talking, options, follow):
    with Path("/dev/full").open("w") as full:
        done = talking.call("logs", *follow, *options, stdout=full)
    assert (done.returncode, done.stderr.count("\n"), done.stderr[:14]) == (2, 1, "error: stdout ")


def test_without_a_stdout_logs_end_with_the_run(launcher, wait_until):
    run = launcher.start("run", "--devices", 2, "--", "sh", "-c", f"echo on; {UNTIL_GO}; echo end")
    log = launcher.wait_ready(2, "on") / "device1" / "train.log"
    argv = ["sh", "-c", 'exec "$@" >&-', "sh", *launcher.argv("logs", "-f")]
    environment = launcher.environment({})
    with subprocess.Popen(argv, cwd=launcher.directory, env=environment, stderr=subprocess.PIPE) as follower:
        files = psutil.Process(follower.pid).open_files
        wait_until(lambda: str(log) in {file.path for file in files()}, "a follower at work")
        (launcher.directory / "go").touch()
        assert ended(follower) == (0, "")
    assert run.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("stdout", ["| true", "> /dev/full", ">&-"])
def test_a_run_goes_on_whatever_its_stdout_does(launcher, stdout):
    argv = ["run", "--devices", 2, "--console", "all", "--", "sh", "-c", "echo on; sleep 0.4; echo end"]
    done = launcher.shell(f'{{ "$@"; echo "code $?" >&2; }} {stdout}', *argv)
    assert done.stderr.endswith("code 0\n"), done.stderr
    assert "2 ranks succeeded" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("No space left on device") == ("full" in stdout)
    assert "end" in (launcher.latest / "device1" / "train.log").read_text()


# --- files that go away ---


def test_a_run_that_is_removed_is_not_waited_for(launcher, going_on):
    for rank in range(2):
        going_on.train_log(rank).write_text("on\n")
    with reading_in_all_modes(launcher, "a") as followers:
        going_on.root.rename(launcher.directory / "elsewhere")  # at once
        for follower, shown in followers:
            read_on(shown)
            code, words = ended(follower)
            assert (code, words.count("\n")) == (2, 1)
            assert words.startswith("error: a: ")


@pytest.mark.parametrize(("name", "options"), REMOVED, ids=str)
def test_a_part_of_a_run_that_is_removed_is_not_missed(launcher, going_on, name, options):
    with ExitStack() as stack:
        logs = [stack.enter_context(going_on.train_log(rank).open("a", buffering=1)) for rank in range(2)]
        follower, shown = stack.enter_context(reading(launcher, "logs", "-f", *options, "a"))
        write(logs, "on")
        read_on(shown, 1)
        gone = going_on.root / name
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
        assert rest([(follower, shown)])
        write(logs, "end")
        finish(going_on)
        lines = read_on(shown).decode().splitlines()
    assert ended(follower) == (0, "")
    assert all("end" in launcher.said_by(rank, lines) for rank in range(2))


def write(logs, line):
    for log in logs:
        print(line, file=log)


# --- runs that have not begun ---


def test_a_run_is_followed_before_its_ranks_have_started(launcher, wait_until):
    run_dir = acted_run.make(launcher.runs / "a")
    os.utime(run_dir.run_json, (4e9, 4e9))  # it is young, however long they take
    with reading_in_all_modes(launcher, "a", lines=0) as followers:
        wait_until(lambda: rest(followers), "that they have started and sleep")
        me = identify(os.getpid())
        starts = (AttemptStarted(0, 29500), RankStarted(0, me.pid, me.started))
        acted_run.append(run_dir, AgentStarted(me, None, 2), *starts)
        run_dir.train_log(0).write_text("on\n")
        for _, shown in followers:
            read_on(shown, 1)
        finish(run_dir)
        acted_run.append(run_dir, AgentEnded(Cause.FINISHED, 0))
        assert [read_on(shown) for _, shown in followers] == [b""] * 3
        assert [ended(follower) for follower, _ in followers] == [(0, "")] * 3


@MODES
def test_a_run_that_never_starts_is_not_waited_for(launcher, options):
    run_dir = acted_run.make(launcher.runs / "a")
    os.utime(run_dir.run_json, (1e9, 1e9))
    for more, wanted in (((), 0), (("--exit-code",), 1)):
        done = launcher.call("logs", "-f", *more, *options, "a")
        assert (done.returncode, done.stdout, done.stderr[:9]) == (wanted, "", "a: lost: ")


@MODES
def test_a_run_of_another_version_ends_with_its_report(launcher, options):
    run_dir = acted_run.make(launcher.runs / "a")
    run_dir.train_log(1).write_text("on\n")
    run_dir.report.write_text("{}")
    done = launcher.call("logs", "-f", *options, "a")
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "[1] on", "")


# --- lines as long as logs ---

LONG_BYTES = 96 << 20
MAX_MORE_KIB = 80 << 10  # several pieces and queues; the line alone, as text, would be 96 MiB and more


@pytest.fixture(scope="module")
def long_run(tmp_path_factory):
    """A run of two ranks that ended; one wrote a line of 64 MiB, the other a few short ones; and one of short lines."""
    runs = tmp_path_factory.mktemp("long")
    now_ns = time.time_ns()
    block = random.Random(0).randbytes(1 << 19).hex().encode()
    for name, blocks in (("long", [block] * (LONG_BYTES // len(block))), ("short", [block[:1000]])):
        report = Report(name, 0, Cause.FINISHED, 0, now_ns, now_ns, ())
        run_dir = acted_run.make(runs / name, [AgentStarted(identify(1), None, 2)], report=report)
        with run_dir.train_log(0).open("wb") as file:
            file.writelines([b"begin\n", *blocks, b"\nend\n"])
        run_dir.train_log(1).write_text("begin\nend\n")
    yield runs
    shutil.rmtree(runs)


@pytest.fixture(scope="module")
def short_kib(module_launcher, long_run):
    """The memory that short lines need, which is the same in all modes."""
    return peak_of(module_launcher, long_run, "short")[0]


SEEKS = [("--grep", "end|0"), ("--json",), ("-n", "1"), ("--errors",)]


@pytest.mark.parametrize("options", [*ALL_MODES, *SEEKS, *(("-f", *mode) for mode in ALL_MODES)], ids=" ".join)
def test_a_line_as_long_as_a_log_needs_little_memory(launcher, long_run, short_kib, options):
    long_kib, last = peak_of(launcher, long_run, *options, "long")
    assert long_kib - short_kib < MAX_MORE_KIB
    assert (b"no traceback in these logs" if "--errors" in options else b"end") in last


def peak_of(launcher, runs, *arguments):
    """The most memory that `tlaunch logs` needed, KiB, and its last bytes of output."""
    argv = [sys.executable, "-c", PEAK, "logs", "--runs-dir", runs, *arguments]
    process = subprocess.Popen(argv, env=launcher.environment({}), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    last = b""
    while chunk := process.stdout.read(1 << 20):
        last = (last + chunk)[-100:]
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    return int(errors.split()[-1]), last  # what it says of lines without a time comes before


def read_on(shown, lines=math.inf):
    """So many lines or more; without a number everything up to the end, which must come."""
    told, until_s = b"", time.monotonic() + PATIENCE_S
    while told.count(b"\n") < lines:
        assert select.select([shown], [], [], max(0.0, until_s - time.monotonic()))[0], f"only seen: {told[-1000:]}"
        assert time.monotonic() < until_s, "no end to be seen"
        if not (chunk := shown.read(1 << 16)):
            assert math.isinf(lines), f"ended too early: {told}"
            break
        told += chunk
    return told


def rest(followers):
    """Each takes but a small share of a core, for long enough to tell sleeping from spinning."""
    processes = [psutil.Process(follower.pid) for follower, _ in followers]
    for process in processes:
        process.cpu_percent()
    time.sleep(MEASURED_S)
    return all(process.cpu_percent() < BUSY_PERCENT for process in processes)
