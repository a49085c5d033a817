"""What is said of servers that did not come."""

import os
import shlex
from pathlib import Path
from tempfile import gettempdir

import pytest

from launcher.cluster.engine_output import not_come, turned_back


@pytest.fixture
def ended(start_engine):
    """Gives a function that starts an engine; its shell reaches no server, or all but those whose names end so."""

    def ended(script, files=None, *, answer="$0 refuses", only="", **options):
        refuses = ("sh", "-c", f'case "$0" in *{only}) echo {answer} >&2; exit 1;; esac')
        return start_engine(script, files=files, ask=refuses, **options)

    return ended


SSH_REFUSED = "ssh: connect to host 127.0.0.2 port 22: Connection refused"
ASKED_REFUSED = "ssh: connect to host 192.0.2.1 port 22: Connection refused"
ADVICE = "This may also be caused by a firewall on the remote host."
BOTH, OTHER = ("127.0.0.1", "localhost"), ("127.0.0.1", "192.0.2.1")
UNNAMED = ["Host key verification failed.", "root@gate: Permission denied (publickey).", "ssh: something new"]


@pytest.mark.parametrize(("said", "answer", "missing", "expected"), [
    # This machine is not asked: no ssh is needed to it, and its silence would hide the reason.
    (["unrecognized option"], "", BOTH, ["servers 127.0.0.1, localhost", "unrecognized option"]),
    # What the remote shell says stands before the engine's output.
    (["lost"], "$0 refuses", OTHER, ["server 192.0.2.1", "192.0.2.1: 192.0.2.1 refuses", "lost"]),
    # What ssh has said to the engine stands for all of its later output; a server it does not name may have come.
    ([f"{SSH_REFUSED}\r"] * 2 + [ADVICE] * 40, "", ("127.0.0.1", "127.0.0.2"), ["server 127.0.0.2", SSH_REFUSED]),
    # Words of ssh that name no server may be of any.
    *(([said, ADVICE], "", BOTH, ["servers 127.0.0.1, localhost", said]) for said in UNNAMED),
    # What ssh says again when it is asked is quoted once.
    ([ASKED_REFUSED, ADVICE], ASKED_REFUSED, OTHER, ["server 192.0.2.1", f"192.0.2.1: {ASKED_REFUSED}"]),
])  # fmt: skip
def test_servers_that_did_not_come_are_named_with_the_reason(ended, said, answer, missing, expected):
    engine = ended(f"printf '%s\\n' {shlex.join(said)}; exit 255", answer=answer)
    error = not_come(engine, "sh ended", missing)
    which, *quoted = expected
    assert error.message.splitlines() == [f"{which} did not join: sh ended", *(f"| {line}" for line in quoted)]
    assert "--engine-option" not in error.hint


def test_of_servers_that_wait_for_one_another_only_the_one_that_cannot_be_reached_is_named(ended):
    """Open MPI starts no agent before all have answered."""
    servers = ("198.51.100.1", "198.51.100.2", "198.51.100.3")
    engine = ended("exit 1", answer="$0 refuses", only=".2", name="Open MPI 5.0.11")
    assert not_come(engine, "after 10 s", servers).message.splitlines() == [
        "server 198.51.100.2 did not join: after 10 s; Open MPI 5.0.11 starts no agent before all servers have answered: servers 198.51.100.1, 198.51.100.3 waited",
        "| 198.51.100.2: 198.51.100.2 refuses",
    ]


NAMES = {0: ("10.0.0.1", "h1"), 1: ("10.0.0.2", "h2"), 2: ("10.0.0.3", "h3")}
LOST = "server 10.0.0.1 was lost before its ranks were started: the connection was closed"
GAVE_UP = f"did not join: sh 1.0 aborted the start, and {LOST}"
ABORTED = "srun: Job step aborted: Waiting up to 32 seconds for job step to finish."
FAILED_ON_H2 = "srun: error: Task launch for StepId=4.1 failed on node h2: Communication connection failure"
CANCELLED_ON_H1 = "slurmstepd: error: *** STEP 4.1 ON h1 CANCELLED ***"


@pytest.mark.parametrize(("said", "goes_on", "expected"), [
    ((FAILED_ON_H2, ABORTED, CANCELLED_ON_H1), True, f"server 10.0.0.2 {GAVE_UP}"),
    ((FAILED_ON_H2, ABORTED, CANCELLED_ON_H1), False, f"server 10.0.0.2 {GAVE_UP}"),
    ((ABORTED,), False, f"servers 10.0.0.2, 10.0.0.3 {GAVE_UP}"),
    (("failed on nodes h2 and h3",), False, f"servers 10.0.0.2, 10.0.0.3 {GAVE_UP}"),
    ((ABORTED,), True, LOST),
    ((CANCELLED_ON_H1, FAILED_ON_H2), False, LOST),
])  # fmt: skip
def test_a_server_whose_agent_an_engine_ended_is_not_blamed_for_one_that_never_came(ended, said, goes_on, expected):
    """An engine that has named one still has to end the others; one that has ended without a name means any that is missing."""
    lines = "; ".join(f"echo {shlex.quote(line)}" for line in said)
    engine = ended(f"{lines}; touch said; {'sleep 1000' if goes_on else 'exit 1'}", until="said" if goes_on else None)
    error = turned_back(engine, 0, "the connection was closed", NAMES, [1, 2])
    assert error.message.splitlines() == [expected, *(f"| {line}" for line in said)]


def test_a_server_that_came_with_another_token_is_no_closed_port():
    error = not_come(None, "after 3 s", ("10.0.0.2",), {"10.0.0.2"})
    assert "tlaunch on 10.0.0.2 connected with another token" in error.hint
    assert "TLAUNCH_COORDINATOR_TOKEN" in error.hint


def test_a_program_that_ended_well_was_no_agent(ended):
    taken = "check --engine-option: the engine may have run one of its arguments as the program"
    assert taken in not_come(ended("true"), "why", ("localhost",)).hint


def test_files_in_the_system_s_directory_do_not_outlive_the_engine(ended, tmp_path):
    aside, kept = Path(gettempdir()) / f"tlaunch-test-{os.getpid()}", tmp_path / "hosts"
    engine = ended("cat $0", {aside: "h1\n", kept: "h1\n"})
    assert aside.exists()
    engine.clean_up()
    assert (aside.exists(), kept.exists()) == (False, True)
