"""`tlaunch stacks` on the record of a run whose ranks are real processes."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.core.events import AgentStarted, RankEnded, RankStarted
from launcher.core.heartbeat import Beat, beat
from launcher.core.machine.proc import stat
from tests.programs import acted_run

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")


class Run:
    """A run's directory as an agent fills it; this process stands for the agent."""

    def __init__(self, directory, programs):
        self.dir = acted_run.make(directory, ranks=4)
        self._program = programs / "stacks_rank.py"
        self.processes = {}

    def begin(self, rank_count, agent=None):
        self.record(AgentStarted(agent or acted_run.me(), None, rank_count))

    def record(self, event):
        acted_run.append(self.dir, event)

    def start(self, global_rank, what, *, started=None):
        """A rank that does `what`, or is another program where that is a list; `started`: what the event claims."""
        own = [sys.executable, self._program, self.dir.stacks_log(global_rank), what]
        process = subprocess.Popen(what if isinstance(what, list) else own, stdout=subprocess.PIPE)
        assert isinstance(what, list) or process.stdout.readline() == b"ready\n"
        self.processes[global_rank] = process
        self.record(RankStarted(global_rank, process.pid, started or stat(process.pid).started))
        return process

    def kill(self, global_rank):
        process = self.processes[global_rank]
        process.kill()
        process.wait()
        self.record(RankEnded(global_rank, process.pid, -9))

    def close(self):
        for process in self.processes.values():
            process.kill()
            process.wait()
            process.stdout.close()


@pytest.fixture
def run(launcher, programs):
    made = Run(launcher.runs / "first", programs)
    (launcher.runs / "latest").symlink_to("first")
    yield made
    made.close()


@pytest.fixture
def told(launcher):
    """Gives a function: what `tlaunch stacks --json` tells."""
    return lambda *options: json.loads(launcher.call("stacks", "--json", *options).stdout)


def ranks_in(told):
    return [rank["global_rank"] for rank in told["ranks"]]


def test_ranks_at_one_place_are_shown_together_and_the_outlier_first(launcher, run, wait_until):
    run.begin(4)
    for global_rank in range(4):
        run.start(global_rank, "threads" if global_rank == 2 else "lock")

    def settled():
        done = launcher.call("stacks")
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.count("held.acquire()") == 2 and "sleep: time.sleep" in done.stdout and done.stdout

    lines = wait_until(settled, "every rank at its place").splitlines()
    assert lines[0].startswith("first: 3 ranks are at stacks_rank.py:")
    assert "; rank 2 is at stacks_rank.py:" in lines[0]
    assert [line.partition(":")[0] for line in lines if line.startswith("rank")] == ["rank 2", "ranks 0-1,3"]
    assert lines[3].startswith("    programs/stacks_rank.py:")
    assert all(process.poll() is None for process in run.processes.values())


def test_json_tells_everything_of_every_rank(run, told, wait_until):
    run.begin(2)
    for global_rank in range(2):
        run.start(global_rank, "hold-interpreter-lock")
    beat({"TLAUNCH_HEARTBEAT_FILE": str(run.dir.heartbeat(1))}, Beat(step=12))

    def answered():
        found = told("first")
        return all(rank["state"] != "silent" for rank in found["ranks"]) and found

    found = wait_until(answered, "an answer of each, in time")
    assert (found["name"], found["directory"], ranks_in(found)) == ("first", str(run.dir.root), [0, 1])
    assert [rank["pid"] for rank in found["ranks"]] == [run.processes[0].pid, run.processes[1].pid]
    assert [rank["step"] for rank in found["ranks"]] == [None, 12]
    assert {rank["state"] for rank in found["ranks"]} == {"running"}
    assert sorted(rank for group in found["groups"] for rank in group["global_ranks"]) == [0, 1]
    assert found["sentence"]


def test_full_shows_every_frame_and_the_other_threads(launcher, run, wait_until):
    run.begin(2)
    run.start(0, "deep")
    run.start(1, "threads")
    wait_until(lambda: "92 more, shown by --full" in launcher.call("stacks", "--rank", 0).stdout, "a deep stack")
    of_rank_1 = ("stacks", "--full", "--rank", 1)
    wait_until(lambda: launcher.call(*of_rank_1).stdout.count("another thread of rank 1:") == 20, "all threads")

    def of_both():
        full = launcher.call("stacks", "--full").stdout
        return "silent" not in full and full

    full = wait_until(of_both, "an answer of each, in time")
    assert full.count(" in descend\n") == 99
    assert full.count("another thread of rank 1:") in {0, 20}  # it may share a place with rank 0


def test_only_the_ranks_that_were_asked_for_are_asked(run, told):
    """Never a process that has a dead rank's number: it started at another time than the event says."""
    run.begin(4)
    for global_rank in range(4):
        another = run.start(global_rank, "sleep", started=1 if global_rank == 3 else None)
    assert ranks_in(told("--rank", "0, 2-99999999999")) == [0, 2]
    assert [run.dir.stacks_log(global_rank).read_bytes() for global_rank in (1, 3)] == [b"", b""]
    assert another.poll() is None


def test_wrong_usage(launcher, run, snapshot):
    run.begin(1)
    ranks = ("", "a", "3-", "-3", "5-3", "1,,2", "1-2-3", "0x1")
    assert launcher.refused(2, *(f"stacks --rank={text}" for text in ranks), "stacks second") == snapshot


def test_a_rank_that_is_no_python_lives_on(launcher, run):
    run.begin(1)
    process = run.start(0, ["sleep", "1000"])
    done = launcher.call("stacks")
    assert "rank 0 has no Python stack, " in done.stdout
    assert process.poll() is None


def test_ranks_that_have_ended_are_left_out(launcher, run, told, snapshot):
    run.begin(2)
    for global_rank in range(2):
        run.start(global_rank, "sleep")
    run.kill(0)
    assert ranks_in(told()) == [1]
    assert launcher.scene("stacks --rank 0", code=1) == snapshot(name="one")
    run.kill(1)
    assert launcher.scene("stacks", code=1) == snapshot(name="none")


def test_ranks_of_another_machine_are_not_asked_here(launcher, run):
    run.begin(1, replace(acted_run.me(), host="elsewhere"))
    run.start(0, "sleep")
    assert "on elsewhere" in launcher.scene("stacks", code=1)
    assert run.dir.stacks_log(0).read_bytes() == b""


def test_where_the_coordinator_cannot_be_asked_this_server_s_ranks_are_shown(launcher, run, wait_until):
    run.begin(2)
    run.start(0, "lock")
    run.dir.endpoint.write_text('{"addresses": [["127.0.0.1", 1]], "key": "k"}')

    def shown():
        done = launcher.call("stacks", "--json")
        assert done.returncode == 1
        return "held.acquire" in done.stdout and done

    done = wait_until(shown, "the rank at its place")
    told = json.loads(done.stdout)
    assert ranks_in(told) == [0]
    assert "127.0.0.1 port 1: Connection refused" in told["not_shown"]["other servers"]
    assert done.stderr.startswith("other servers: ")


def test_where_nobody_can_be_asked_at_all_the_reason_is_told(launcher, run, snapshot):
    run.begin(2)
    run.dir.endpoint.write_text('{"addresses": [["127.0.0.1", 1]], "key": "k"}')
    assert launcher.scene("stacks", code=1) == snapshot
