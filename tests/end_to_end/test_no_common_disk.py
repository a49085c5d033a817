"""A run over servers that share no disk: what the head's machine and the others tell of it."""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from launcher.core.run_dir import RunDir

from .conftest import BY_HAND, free_port, table_of

PATIENCE_S = 120
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


def tlaunch(*arguments):
    return [sys.executable, "-m", "launcher", *map(str, arguments)]


def told(*arguments):
    found = subprocess.run(tlaunch(*arguments), capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout


class ByHand:
    """The same command on two servers of this machine, each with a runs directory of its own."""

    def __init__(self, directory):
        self.directory = directory
        self.runs = [directory / "one", directory / "two"]
        (directory / "program.py").write_text(PROGRAM)
        table_of(directory / "table.json", BY_HAND)

    def run(self, failures, *options, failing=3):
        """What the first server's launcher wrote to stdout, and the exit codes."""
        common = ("run", "--rank-table", self.directory / "table.json", "--coordinator-port", free_port(), *options)
        started = [
            subprocess.Popen(
                tlaunch(*common, "--server", each, "--console", "all", "--runs-dir", runs, "--",
                        sys.executable, self.directory / "program.py", failures, failing),
                cwd=self.directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for each, runs in zip(BY_HAND, self.runs, strict=True)
        ]  # fmt: skip
        try:
            ended = [process.communicate(timeout=PATIENCE_S) for process in started]
        finally:
            for process in started:
                process.kill()
                process.communicate()
        self.closing = [said for _, said in ended]
        return ended[0], [process.returncode for process in started]

    @property
    def heads(self):
        return RunDir((self.runs[0] / "latest").resolve())

    @property
    def others(self):
        return RunDir((self.runs[1] / "latest").resolve())


@pytest.fixture(name="by_hand")
def _by_hand(tmp_path):
    return ByHand(tmp_path)


def lines_of(rank, attempt=0):
    return {f"rank {rank} attempt {attempt} line {number}" for number in range(LINES)}


def test_the_head_tells_of_all_ranks(by_hand):
    """Its console, its logs and its status, as of one server, of a failure and a restart too: each line once.

    Both directories hold the same of the other's ranks.
    """
    (out, _), codes = by_hand.run(1, "--max-restarts", 1)
    assert codes == [0, 0]
    for rank in range(4):
        told_lines = map(json.loads, told("logs", by_hand.heads.root, "--rank", rank, "--json").splitlines())
        written = [(line["attempt"], line["text"]) for line in told_lines if line["text"].startswith("rank")]
        assert sorted(written) == sorted((attempt, line) for attempt in (0, 1) for line in lines_of(rank, attempt))
        shown = [line.partition("] ")[2] for line in out.splitlines() if line.startswith(f"[{rank}] ")]
        assert {line for _, line in written} | {"the end"} <= {*shown}
    assert "[3] ValueError: boom" in out
    assert "rank 3: ValueError: boom" in told("why", by_hand.heads.root)
    for rank in (2, 3):
        assert by_hand.heads.train_log(rank).read_bytes() == by_hand.others.train_log(rank).read_bytes()
        assert by_hand.heads.env_log(rank).read_bytes() == by_hand.others.env_log(rank).read_bytes()
    status = json.loads(told("status", by_hand.heads.root, "--json"))
    assert [rank["heartbeat"]["step"] for rank in status["each"]] == [7] * 4
    assert not list(by_hand.heads.root.glob(".*"))
    assert not by_hand.others.train_log(0).exists()


def test_each_server_tells_of_a_failed_run(by_hand):
    """What rank 3 itself noted is at the head too; another server tells of its own part, which it finds itself."""
    _, codes = by_hand.run(1)
    assert codes == [1, 1]
    assert json.loads(by_hand.heads.failure(3).read_text()) == json.loads(by_hand.others.failure(3).read_text())
    assert "rank 3: ValueError: boom" in told("status", by_hand.heads.root)
    runs = ("--runs-dir", by_hand.runs[1])
    status = told("status", *runs)
    assert "only this server's part, ranks 2-3" in status
    assert "rank 3: ValueError: boom" in status
    assert [rank["global_rank"] for rank in json.loads(told("status", *runs, "--json"))["each"]] == [2, 3]
    assert "rank 3: ValueError: boom" in told("why", *runs)
    assert lines_of(2) <= {*told("logs", *runs, "--prefix", "").splitlines()}
    assert by_hand.others.root.name in told("ps", "--all", *runs)


def test_another_server_names_no_file_that_is_not_there(by_hand):
    """Nor a process, nor restarts that nobody made; where the log of a rank of the first server is, all of them say."""
    by_hand.run(1, failing=0)
    first, second = by_hand.closing
    assert "log of rank 0: " in first
    elsewhere = "log of rank 0: on server 127.0.0.1, which has the logs of all ranks"
    assert f"{elsewhere}\nranks here: 2 by SIGTERM" in second
    assert "  server 127.0.0.1, device 0\n" in second or "  server 127.0.0.1, device 0, exit code 1\n" in second
    assert elsewhere in told("why", "--runs-dir", by_hand.runs[1])


# --- hosts that share nothing but the program ---


@pytest.fixture(name="own_place")
def _own_place():
    """A directory that every host has for itself."""
    path = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield path
    shutil.rmtree(path)


def test_hosts_without_a_common_disk(two_hosts, mpirun, tmp_path, own_place):
    """By mpirun, which starts an agent on each; the head's directory holds the logs of both."""
    (tmp_path / "program.py").write_text(PROGRAM)
    table = table_of(tmp_path / "table.json", two_hosts.addresses())
    ended = subprocess.run(
        [two_hosts.root / "hub", *tlaunch("run", "--engine", "mpi", "--rank-table", table, "--max-restarts", 1,
         "--runs-dir", own_place / "runs", "--", sys.executable, tmp_path / "program.py", 1)],
        env=two_hosts.environment(Path(mpirun.path).parent),
        cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    heads = RunDir((own_place / "runs" / "latest").resolve())
    for rank in range(4):
        there = subprocess.run(
            [two_hosts.root / "on", f"h{rank // 2 + 1}", "cat", heads.train_log(rank)],
            capture_output=True, text=True, timeout=PATIENCE_S, check=True,
        ).stdout  # fmt: skip
        assert heads.train_log(rank).read_text() == there
        assert lines_of(rank, 0) | lines_of(rank, 1) <= set(there.splitlines())
    assert "rank 3: ValueError: boom" in told("why", heads.root)
