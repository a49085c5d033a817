"""Ranks in the place of processes that an engine started. end_to_end/test_mpi_world.py has runs under real engines."""

import os
import re
import select
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from launcher.core.errors import TlaunchError
from launcher.supervise.mpi_member import hand_over, meeting_name
from launcher.supervise.mpi_proxy import MemberJoined, MemberLeft, MemberRefused, MpiProxies
from tests.conftest import PATIENCE_S

ROOT = Path(__file__).parents[2]

MEMBER = """
import os, sys
from launcher.supervise.mpi_member import hand_over
status = hand_over(bytes.fromhex(os.environ["NAME"]), os.environ, int(sys.argv[1]))
print(status)
"""


@pytest.fixture
def name(tmp_path):
    return meeting_name(str(tmp_path))


@pytest.fixture
def members(name):
    with closing(MpiProxies(name, range(2))) as made:
        yield made


@pytest.fixture(name="start")
def _start(name):
    """Gives a function that starts a real member, whose stdout has its rank's status."""
    started = []

    def start(global_rank, *, descriptors=(), **environment):
        changes = {"NAME": name.hex(), "PYTHONPATH": str(ROOT), **environment}
        process = subprocess.Popen(
            [sys.executable, "-c", MEMBER, str(global_rank)], env={**os.environ, **changes}, pass_fds=descriptors,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def hear(members, count):
    told = []
    while len(told) < count:
        assert select.select([members], [], [], PATIENCE_S)[0], f"only {told}"
        told += members.step()
    return told


def said(process):
    return process.communicate(timeout=PATIENCE_S)[0].strip()


def test_a_member_waits_for_the_end_of_its_rank(members, start):
    """Signals of the engine end no member: the agent answers them, and its ranks have their grace."""
    odd = {"ODD": "line\nline \udcff =é", "LONG": "x" * 100_000, "PMI_FD": "987"}
    process = start(1, **odd)
    assert (hear(members, 1), members.missing) == ([MemberJoined(1)], {0})
    environment = members.environment_of(1)
    assert {name: environment[name] for name in odd} == odd
    assert members.descriptors_of(1) == ()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        process.send_signal(number)
    members.report_end(1, -signal.SIGSEGV)
    members.report_end(1, 0)
    assert said(process) == "-11"
    assert select.select([members], [], [], PATIENCE_S)[0]
    assert members.step() == []


def test_the_engine_is_reached_by_the_descriptor_that_was_handed_over(members, start):
    engine, of_member = socket.socketpair()
    with engine, of_member:
        process = start(0, descriptors=[of_member.fileno()], PMI_FD=str(of_member.fileno()))
        of_member.close()
        hear(members, 1)
        (descriptor,) = members.descriptors_of(0)
        environment = members.environment_of(0)
        assert (environment["PMI_FD"], os.get_inheritable(descriptor)) == (str(descriptor), False)
        rank = 'import os; os.write(int(os.environ["PMI_FD"]), b"cmd=init")'
        subprocess.run([sys.executable, "-c", rank], env=environment, pass_fds=[descriptor], check=True, timeout=60)
        assert engine.recv(100) == b"cmd=init"
        members.report_end(0, 0)
        assert said(process) == "0"
        engine.setblocking(False)
        with pytest.raises(BlockingIOError):
            engine.recv(1)
        members.close()
        assert engine.recv(1) == b""


def test_a_killed_member_and_a_lost_agent_are_noticed(members, start):
    killed, alone = start(0), start(1)
    hear(members, 2)
    killed.kill()
    assert hear(members, 1) == [MemberLeft(0)]
    assert members.environment_of(0)["NAME"]
    members.report_end(0, 0)
    members.close()
    assert said(alone) == "None"


def test_a_member_may_come_before_its_agent(name, start, wait_until):
    """Engines start all of them at once. A second one of a rank is refused: it may belong to another job."""
    first = start(0)
    ignored = re.compile(r"SigIgn:\s*[0-9a-f]*[4-7c-f][0-9a-f]{3}\n")  # the bit of SIGTERM
    wait_until(lambda: ignored.search(Path(f"/proc/{first.pid}/status").read_text()), "a member that has begun")
    with closing(MpiProxies(name, [0])) as members:
        assert hear(members, 1) == [MemberJoined(0)]
        second = start(0)
        (refused,) = hear(members, 1)
        assert "has a member already" in refused.reason
        assert said(second) == "None"
        members.report_end(0, 5)
        assert said(first) == "5"


@pytest.mark.parametrize(("line", "word"), [
    (b'{"rank": 7, "environment": {}}\n', "is not on this server"),
    *((line, "cannot be read") for line in (b'{"rank": 0}\n', b"[]\n", b"no json\n", b"[" * 50_000 + b"\n",
      b'{"rank": Infinity, "environment": {}}\n')),
])  # fmt: skip
def test_what_makes_no_sense_is_refused(name, members, line, word):
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(name)
        stranger.sendall(line)
        (refused,) = hear(members, 1)
        assert isinstance(refused, MemberRefused)
        assert word in refused.reason
        assert stranger.recv(1) == b""
    assert members.missing == {0, 1}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_other_users_are_kept_out(name, members):
    with socket.socket(socket.AF_UNIX) as stranger:
        os.seteuid(65534)
        try:
            stranger.connect(name)
        finally:
            os.seteuid(0)
        (refused,) = hear(members, 1)
        assert "another user (uid 65534)" in refused.reason
        assert stranger.recv(1) == b""


def test_a_member_without_an_agent(name):
    former = {number: signal.getsignal(number) for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}}
    with pytest.raises(TlaunchError, match="no agent is listening on this server"):
        hand_over(name, {}, 0, patience_s=0)
    for number, handler in former.items():
        if handler is not None:
            signal.signal(number, handler)
