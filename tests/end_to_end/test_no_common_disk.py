"""A run over servers that share no disk: what the head's machine and the others tell of it."""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from launcher.core.line_times import RECORD
from launcher.core.run_dir import RunDir

from .conftest import TLAUNCH, run_to_end, table_of, tlaunch

LINES = 3000
pytestmark = [pytest.mark.distributed, pytest.mark.timeout(400)]

# Rank 3, or the one that its second word says, fails in the first attempts, as many as the first word says: once all ranks
# have written what they have to say.
PROGRAM = f"""
import os, sys, time
rank, attempt = os.environ["RANK"], int(os.environ["TLAUNCH_ATTEMPT"])
with open(os.environ["TLAUNCH_HEARTBEAT_FILE"], "w") as file:
    file.write('{{"step": 7}}')
for number in range({LINES}):
    print(f"rank {{rank}} attempt {{attempt}} line {{number}}")
sys.stdout.flush()
written = os.path.join(os.path.dirname(__file__), f"written{{attempt}}-")
open(written + rank, "w").close()
if attempt < int(sys.argv[1]):
    if rank == (sys.argv[2:] or ["3"])[0]:
        while not all(os.path.exists(written + other) for other in "0123"):
            time.sleep(0.01)
        raise ValueError("boom")
    time.sleep(1000)
print("the end")
"""


def told(*arguments):
    found = tlaunch(*arguments)
    assert found.returncode == 0, found.stderr
    return found.stdout


def run_by_hand(servers, failures, *options, failing=3):
    """The same command on two servers, each with a runs directory of its own: the launchers' exit codes, stdouts and stderrs."""
    program = servers.directory / "program.py"
    program.write_text(PROGRAM)
    launchers = [
        servers.start(
            number, "--runs-dir", servers.directory / f"runs{number}", *options, console="all",
            command=[sys.executable, program, failures, failing],
        )
        for number in (1, 2)
    ]  # fmt: skip
    return servers.end(*launchers), [*map(servers.shown, launchers)], [*map(servers.said, launchers)]


def run_dir(servers, number):
    return RunDir((servers.directory / f"runs{number}" / "latest").resolve())


def lines_of(rank, attempt=0):
    return {f"rank {rank} attempt {attempt} line {number}" for number in range(LINES)}


def test_the_head_tells_of_all_ranks(servers):
    """Its console, its logs and its status, as of one server, of a failure and a restart too: each line once.

    Both directories hold the same of the other's ranks.
    """
    codes, (out, _), _ = run_by_hand(servers, 1, "--max-restarts", 1)
    assert codes == [0, 0]
    heads, others = (run_dir(servers, number) for number in (1, 2))
    for rank in range(4):
        told_lines = map(json.loads, told("logs", heads.root, "--rank", rank, "--json").splitlines())
        written = [(line["attempt"], line["text"]) for line in told_lines if line["text"].startswith("rank")]
        assert sorted(written) == sorted((attempt, line) for attempt in (0, 1) for line in lines_of(rank, attempt))
        shown = [line.partition("] ")[2] for line in out.splitlines() if line.startswith(f"[{rank}] ")]
        assert sorted(line for line in shown if line.startswith("rank")) == sorted(line for _, line in written)
        assert "the end" in shown
    assert "[3] ValueError: boom" in out
    assert "rank 3: ValueError: boom" in told("why", heads.root)
    for rank in (2, 3):
        assert heads.train_log(rank).read_bytes() == others.train_log(rank).read_bytes()
        assert heads.env_log(rank).read_bytes() == others.env_log(rank).read_bytes()
        assert heads.arrivals(rank).read_bytes() == others.arrivals(rank).read_bytes()
        assert (
            RECORD.unpack(heads.arrivals(rank).read_bytes()[-RECORD.size :])[1] == heads.train_log(rank).stat().st_size
        )
    status = json.loads(told("status", heads.root, "--json"))
    assert [rank["heartbeat"]["step"] for rank in status["each"]] == [7] * 4
    assert not list(heads.root.glob(".*"))
    assert not others.train_log(0).exists()


def test_each_server_tells_of_a_failed_run(servers):
    """What rank 3 itself noted is at the head too; another server tells of its own part, which it finds itself."""
    codes, *_ = run_by_hand(servers, 1)
    assert codes == [1, 1]
    heads, others = (run_dir(servers, number) for number in (1, 2))
    assert json.loads(heads.failure(3).read_text()) == json.loads(others.failure(3).read_text())
    assert "rank 3: ValueError: boom" in told("status", heads.root)
    runs = ("--runs-dir", others.root.parent)
    status = told("status", *runs)
    assert "only this server's part is shown, ranks 2-3" in status
    assert "rank 3: ValueError: boom" in status
    assert [rank["global_rank"] for rank in json.loads(told("status", *runs, "--json"))["each"]] == [2, 3]
    assert "rank 3: ValueError: boom" in told("why", *runs)
    assert lines_of(2) <= {*told("logs", *runs, "--prefix", "").splitlines()}
    assert others.root.name in told("ps", "--all", *runs)


def test_another_server_names_no_file_that_is_not_there(servers):
    """Nor a process, nor restarts that nobody made; where the log of a rank of the first server is, all of them say."""
    *_, (first, second) = run_by_hand(servers, 1, failing=0)
    assert "log of rank 0: " in first
    elsewhere = "log of rank 0: on server 127.0.0.1, with the logs of all ranks"
    assert f"{elsewhere}\n2 ranks on this server ended by SIGTERM" in second
    assert "  server 127.0.0.1, device 0\n" in second or "  server 127.0.0.1, device 0, exit code 1\n" in second
    assert elsewhere in told("why", run_dir(servers, 2).root)


# --- hosts that share nothing but the program ---


@pytest.fixture(name="own_place")
def _own_place():
    path = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield path
    shutil.rmtree(path)


def test_hosts_without_a_common_disk(two_hosts, mpirun, tmp_path, own_place):
    """By mpirun, which starts an agent on each; the head's directory holds the logs of both."""
    (tmp_path / "program.py").write_text(PROGRAM)
    table = table_of(tmp_path / "table.json", two_hosts.addresses())
    options = ("--engine", "mpi", "--rank-table", table, "--max-restarts", 1, "--runs-dir", own_place / "runs")
    program = ("--", sys.executable, tmp_path / "program.py", 1)
    env = two_hosts.environment(Path(mpirun.path).parent)
    ended = run_to_end((two_hosts.root / "hub", *TLAUNCH, "run", *options, *program), cwd=tmp_path, env=env)
    assert ended.returncode == 0, ended.stderr
    heads = RunDir((own_place / "runs" / "latest").resolve())
    for rank in range(4):
        there = two_hosts.on(f"h{rank // 2 + 1}", "cat", heads.train_log(rank)).stdout
        assert heads.train_log(rank).read_text() == there
        assert lines_of(rank, 0) | lines_of(rank, 1) <= set(there.splitlines())
    assert "rank 3: ValueError: boom" in told("why", heads.root)
