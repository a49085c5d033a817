"""`tlaunch run -- COMMAND` on real processes: environment, logs, console, exit codes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.core.events import from_line


def environment_of(run_dir, rank):
    lines = (run_dir / f"device{rank}" / "env.log").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_ranks_get_their_place_and_their_own_directory(launcher, sample_tables):
    table = sample_tables / "rank_table_4pcs.json"
    done = launcher.run("run", "--rank-table", table, "--mp", 2, "--", "sh", "-c", "echo $RANK_ID of $RANK_SIZE")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0 of 4\n"
    for rank in range(4):
        environment = environment_of(launcher.latest, rank)
        assert environment["RANK"] == environment["RANK_ID"] == environment["LOCAL_RANK"] == str(rank)
        assert environment["RANK_TABLE_FILE"] == str(table)
        assert (environment["TLAUNCH_DP"], environment["TLAUNCH_MP"]) == ("2", "2")
        assert (launcher.latest / f"device{rank}" / "train.log").read_text() == f"{rank} of 4\n"
    events = [from_line(line) for line in (launcher.latest / "events.jsonl").read_text().splitlines()]
    first, second, *names, last = [type(stamped.event).__name__ for stamped in events]
    assert (first, second, last) == ("AgentStarted", "AttemptStarted", "AgentEnded")
    assert sorted(names) == ["RankEnded"] * 4 + ["RankStarted"] * 4
    assert [stamped.time_ns for stamped in events] == sorted(stamped.time_ns for stamped in events)


ALONE = "imports mpi4py, but each rank has its own MPI_COMM_WORLD; "


def test_ranks_that_mpi_does_not_know_as_one_job_are_told_of(launcher, sample_tables):
    launcher.write("alone.py", "if False:\n    from mpi4py import MPI\n")
    launcher.write("other.py", "print('mpi4py')\n")
    told = {
        ("--devices", 2, "--", "python", "alone.py"): f"alone.py {ALONE}use --engine mpi to start one MPI job\n",
        ("--rank-table", sample_tables / "rank_table_2pcs.json", "--", "python", "-m", "alone"): f"alone {ALONE}use",
        ("--devices", 2, "--", "python", "-c", "if 0: import mpi4py"): f"the program {ALONE}",
    }
    for arguments, note in told.items():
        done = launcher.call("run", "--dry-run", *arguments)
        assert (done.returncode, note in done.stderr) == (0, True), done.stderr
    for arguments in ((2, "--", "python", "other.py"), (1, "--", "python", "alone.py"), (2, "--", "cat", "alone.py")):
        done = launcher.call("run", "--dry-run", "--devices", *arguments)
        assert (done.returncode, "MPI_COMM_WORLD" in done.stderr) == (0, False), done.stderr


def test_what_others_may_read_of_a_run_holds_no_secret(launcher):
    """Whether it came by --env, by the environment or in the command; ranks get it. env.log has a line per variable."""
    chosen = {"HF_TOKEN": "s3cr3t", "PROXY": "http://me:s3cr3t@host:80", "TWO": "first\nsecond\\"}
    variables = [word for name, value in chosen.items() for word in ("--env", f"{name}={value}")]
    program = ["sh", "-c", "echo ${RANK_TABLE_FILE-none} ${#HF_TOKEN}; exit 3"]
    secrets = ["--password=s3cr3t", "--api-key", "s3cr3t", "Authorization: Bearer s3cr3t"]
    mine = {"AWS_SECRET_ACCESS_KEY": "s3cr3t", "TLAUNCH_COORDINATOR_TOKEN": "s3cr3t", "RANK_TABLE_FILE": "/old.json"}
    done = launcher.run("run", *variables, "--", *program, *secrets, env=mine, umask=0o022)
    assert (done.returncode, done.stdout) == (3, "none 6\n")
    files = [path for path in launcher.latest.resolve().rglob("*") if path.is_file()]
    modes = {path.name: path.stat().st_mode & 0o777 for path in files}
    assert modes == dict.fromkeys(modes, 0o644) | {"env.log": 0o600}
    assert {"run.json", "events.jsonl", "report.json", "train.log"} <= modes.keys()
    assert [path for path in files if b"s3cr3t" in path.read_bytes()] == []
    environment = environment_of(launcher.latest, 0)
    assert (environment["HF_TOKEN"], environment["TWO"]) == ("********", "first\\nsecond\\\\")


@pytest.mark.parametrize(
    ("devices", "cpus", "job", "told"), [(2, 1, "12", 1), (2, 2, "12", 0), (1, 1, "12", 0), (2, 1, "", 0)]
)
def test_a_job_of_slurm_with_fewer_cpus_than_ranks_is_told(launcher, devices, cpus, job, told):
    env = {"SLURM_JOB_ID": job, "SLURMD_NODENAME": "n1", "SLURM_CPUS_ON_NODE": str(cpus)}
    done = launcher.call("run", "--dry-run", "--devices", devices, "--", "true", env=env)
    assert (done.returncode, done.stderr.count("warning: "), done.stderr.count("CPU")) == (0, told, told)


def test_options_after_the_command_are_the_commands(launcher):
    done = launcher.call("run", "--dry-run", "--json", "echo", "--devices", "3", "--dry-run")
    assert [rank["argv"] for rank in json.loads(done.stdout)["ranks"]] == [["echo", "--devices", "3", "--dry-run"]]


@pytest.mark.parametrize(("program", "code"), [
    (["sh", "-c", "echo last words of $RANK_ID; exit $RANK_ID"], 1),
    (["sh", "-c", "[ $RANK_ID = 0 ] || kill -KILL $$"], 137),
    (["./script"], 127),
], ids=["exit code", "killed", "no interpreter"])  # fmt: skip
def test_first_failure_is_the_exit_code(launcher, program, code, snapshot):
    inner = launcher.write("inner", "#!/nonexistent/interpreter\n")  # is there, and names one that is not
    launcher.write("script", f"#!{inner}\n").chmod(0o755)
    inner.chmod(0o755)
    done = launcher.run("run", "--devices", 2, "--", *program)
    assert done.returncode == code
    culprit = launcher.report.verdict.culprit
    assert culprit == 1 or code == 127
    told = launcher.transcript(done).partition("error: ")[2].splitlines()[0]
    assert told.replace(f"rank {culprit}:", "rank N:") == snapshot
    assert f"log of rank {culprit}: " in done.stderr
    assert ("| last words of 1" in done.stderr) == (code == 1)


def test_the_others_are_ended_when_one_fails(launcher, programs):
    script = f"""
        if [ $RANK = 0 ]; then exec "{sys.executable}" "{programs / "stubborn.py"}" ignore double-fork; fi
        until grep -q ready "$TLAUNCH_RUN_DIR/device0/train.log"; do :; done; exit 5"""
    launcher.run("run", "--devices", 2, "--grace", 0.3, "--", "sh", "-c", script, code=5)
    assert launcher.processes() == []
    assert launcher.report.attempts[-1].killed == 2


def test_leftovers_of_a_good_run_are_ended(launcher, programs):
    stubborn = [sys.executable, programs / "stubborn.py", "double-fork", "ignore", "child-only"]
    done = launcher.run("run", "--grace", 0.3, "--", *stubborn, code=0)
    assert launcher.processes() == []
    assert "left running" in done.stderr


def test_stopped_ranks_can_be_ended_gracefully(launcher, wait_until):
    """A rank that was stopped (SIGSTOP) is continued to act on SIGTERM, long before the grace period is over."""
    process = launcher.stubborn("stopped", grace=1000, ranks=1)
    # What forked the rank may not have ended yet.
    (rank,) = wait_until(lambda: len(found := launcher.processes()) == 1 and found, "the rank alone")
    wait_until(lambda: "T (stopped)" in Path(f"/proc/{rank}/status").read_text(), "the rank stops")
    process.terminate()
    assert process.wait(60) == 143
    assert launcher.report.attempts[-1].killed == 0


def test_a_rank_inherits_nothing_it_should_not(launcher, programs):
    reader, writer = os.pipe()
    done = launcher.run("run", "--", sys.executable, programs / "state.py", pass_fds=[writer])
    os.close(reader)
    os.close(writer)
    state = json.loads(done.stdout)
    assert state["session"] == state["group"] == state["pid"]
    assert [number for number in state["descriptors"] if number < 100] == [0, 1, 2]
    assert len(state["descriptors"]) == 4
    assert state["stdin"] == "/dev/null"
    assert state["cwd"] == str(launcher.directory)


def test_a_rank_starts_with_default_signals(launcher):
    former = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    try:
        done = launcher.run("run", "--", "cat", "/proc/self/status")
    finally:
        signal.signal(signal.SIGUSR1, former)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    status = dict(line.split(":\t") for line in done.stdout.splitlines())
    # Signals 32 and 33 are the C library's own: it ignores them in what it spawns (make does), and nobody can undo it.
    assert (int(status["SigBlk"], 16), int(status["SigIgn"], 16) & ~(0b11 << 31)) == (0, 0)


def test_the_console_shows_the_whole_log_of_rank_0(launcher, programs):
    done = launcher.run("run", "--devices", 2, "--", sys.executable, programs / "noisy.py", 5000)
    lines = done.stdout.splitlines()
    text = "of rank output, long enough to fill more than one block in the end"
    assert lines[:5000] == [f"line {number} {text}" for number in range(5000)]
    assert lines[5000:] == ["broken \ufffd\ufffd utf-8", "\x1b[31mred\x1b[0m", "no newline at the end"]
    raw = (launcher.latest / "device0" / "train.log").read_bytes()
    assert b"\xff\xfe" in raw
    assert b"\x1b[2J" in raw


def test_closed_standard_descriptors_are_no_trouble(launcher):
    done = launcher.shell('"$@" <&- >&- 2>&-', "run", "--devices", "2", "--", "sh", "-c", "echo fine >&2; exit 3")
    assert done.returncode == 3
    assert (launcher.latest / "device0" / "train.log").read_text() in {"fine\n", ""}


def test_more_ranks_than_descriptors(launcher):
    launcher.shell('ulimit -n 32; "$@"', "run", "--devices", "48", "--", "sh", "-c", "echo $RANK", code=0)
    assert {ended.global_rank for ended in launcher.report.attempts[-1].exits} == set(range(48))
    assert (launcher.latest / "device47" / "train.log").read_text() == "47\n"


@pytest.mark.parametrize(("limit", "codes"), [(20, {126, 1}), (4, {1})], ids=["of ranks", "of the launcher"])
def test_too_few_processes_allowed(launcher, limit, codes):
    if os.geteuid() == 0 and subprocess.run(["setpriv", "--version"], capture_output=True, check=False).returncode:
        pytest.skip("root has no process limit here, and setpriv is missing")
    launcher.directory.chmod(0o777)
    for parent in launcher.directory.parents[:3]:
        if parent.stat().st_mode & 0o005 != 0o005:  # pytest's own, never the system's
            parent.chmod(0o755)
    command = launcher.argv("run", "--devices", "64", "--grace", "5", "--", "sleep", "1000")
    # The limit counts all processes of a user, so this one is used by no other test.
    drop = ["setpriv", f"--reuid={60_000 + os.getpid() % 4000}", "--clear-groups"] if os.geteuid() == 0 else []
    done = launcher.ended(["prlimit", f"--nproc={limit}", *drop, *command])
    if "Permission denied" in done.stderr or "No module named" in done.stderr:
        pytest.skip("another user cannot read this checkout or its Python")
    assert (done.returncode in codes, "Traceback" in done.stderr) == (True, False)
    assert "Resource temporarily unavailable" in done.stderr
    assert launcher.processes() == []


def test_disk_full_before_the_start_leaves_nothing(launcher):
    assert "File too large" in launcher.shell('ulimit -f 0; "$@"', "run", "--", "touch", "started", code=2).stderr
    assert list(launcher.directory.iterdir()) == []


def test_disk_full_while_running_does_not_change_the_end(launcher):
    launcher.shell('ulimit -f 8; "$@"', "run", "--", "sh", "-c", "trap '' XFSZ; seq 20000; exit 4", code=4)
    assert (launcher.latest / "device0" / "train.log").stat().st_size == 8 * 1024
    assert launcher.report.exit_code == 4


@pytest.mark.parametrize(("command", "name"), [
    (["python", "tr ain.py"], "tr-ain"), (["python", "-u", "./sub/../tr ain.py"], "tr-ain"), (["python", "sub"], "sub"),
    (["python", "-m", "pkg.mod"], "pkg.mod"), (["python", "-c", "pass"], "python"), (["true"], "true"),
])  # fmt: skip
def test_a_run_is_called_after_what_it_runs(launcher, command, name):
    for file in ("tr ain.py", "sub/__main__.py", "pkg/mod.py"):
        launcher.write(file)
    dry_run = ["run", "--dry-run", "--json"]
    shown = [launcher.call(*dry_run, *more, "--", *command) for more in ([], ["--name", "mine"])]
    assert [json.loads(done.stdout)["name"].split("-", 2)[2] for done in shown] == [name, "mine"]
