"""What is said of servers that did not come."""

import os
import shlex
import signal

import pytest

from launcher.cluster.engine_output import not_come, turned_back
from launcher.cluster.engine_process import EngineProcess
from launcher.engines.command import EngineCommand, temporary_directory
from launcher.engines.host_match import is_here


@pytest.fixture(name="ended")
def _ended(tmp_path, wait_until):
    """Gives a function that lets a shell's script be an engine until it ends, or has made a file. Its shell reaches nobody."""
    engines = []

    def ended(script, files=None, *, answer="$0 refuses", until=None, only="", name="sh 1.0"):
        refuses = ("sh", "-c", f'case "$0" in *{only}) echo {answer} >&2; exit 1;; esac')
        command = EngineCommand(name, ("sh", "-c", script), {}, files or {}, refuses)
        engine = EngineProcess(command, dict(os.environ), tmp_path, tmp_path / "engine.log")
        engines.append(engine)
        wait_until(lambda: (tmp_path / until).exists() if until else engine.ended, "its end")
        return engine

    yield ended
    for engine in engines:
        engine.signal(signal.SIGKILL)
        wait_until(lambda engine=engine: engine.ended, "its end")


@pytest.mark.parametrize("name", ["127.0.0.1", "::1", "localhost", os.uname().nodename])
def test_this_machine_is_here(name):
    """By its own name, by any that means it, and by every loopback address."""
    assert is_here(name)


@pytest.mark.parametrize("name", ["192.0.2.1", "no-such-host.invalid"])
def test_no_other_machine_is_here(name):
    assert not is_here(name)


def test_an_engine_that_refuses_is_quoted_and_this_machine_not_asked(ended):
    """No ssh is needed to it, and its silence would hide the reason."""
    error = not_come(ended("echo unrecognized option; exit 213"), "sh ended", ("127.0.0.1", "localhost"))
    assert error.message.splitlines() == [
        "servers 127.0.0.1, localhost did not come: sh ended",
        "| unrecognized option",
    ]
    assert "--engine-option" not in error.hint


def test_what_the_remote_shell_says_stands_before_the_engine_s_words(ended):
    error = not_come(ended("echo lost; exit 1"), "sh ended", ("127.0.0.1", "192.0.2.1"))
    assert error.message.splitlines() == [
        "server 192.0.2.1 did not come: sh ended", "| 192.0.2.1: 192.0.2.1 refuses", "| lost",
    ]  # fmt: skip


SSH_REFUSED = "ssh: connect to host 127.0.0.2 port 22: Connection refused"
ADVICE = "This may also be caused by a firewall on the remote host."


def test_what_ssh_has_told_the_engine_stands_for_all_that_the_engine_says_after_it(ended):
    """Of a name of this machine too, which nobody is asked of; whoever ssh does not mention may have come by ssh."""
    ssh = f"printf '%s\\r\\n' '{SSH_REFUSED}' '{SSH_REFUSED}'"
    advice = f"for line in $(seq 40); do echo '{ADVICE}'; done"
    error = not_come(ended(f"{ssh}; {advice}; exit 255"), "sh ended", ("127.0.0.1", "127.0.0.2"))
    assert error.message.splitlines() == ["server 127.0.0.2 did not come: sh ended", f"| {SSH_REFUSED}"]


@pytest.mark.parametrize(
    "said", ["Host key verification failed.", "root@gate: Permission denied (publickey).", "ssh: something new"]
)
def test_words_of_ssh_that_name_no_server_may_be_of_any(ended, said):
    """They are quoted, and all that did not come are named."""
    error = not_come(ended(f"echo '{said}'; echo '{ADVICE}'; exit 255"), "sh ended", ("127.0.0.1", "localhost"))
    assert error.message.splitlines() == ["servers 127.0.0.1, localhost did not come: sh ended", f"| {said}"]


def test_what_ssh_says_again_when_it_is_asked_is_quoted_once(ended):
    said = "ssh: connect to host 192.0.2.1 port 22: Connection refused"
    engine = ended(f"echo '{said}'; echo '{ADVICE}'; exit 255", answer=said)
    error = not_come(engine, "sh ended", ("127.0.0.1", "192.0.2.1"))
    assert error.message.splitlines() == ["server 192.0.2.1 did not come: sh ended", f"| 192.0.2.1: {said}"]


def test_of_servers_that_wait_for_one_another_only_the_one_that_cannot_be_reached_is_named(ended):
    """Open MPI starts no agent before all have answered."""
    servers = ("198.51.100.1", "198.51.100.2", "198.51.100.3")
    engine = ended("exit 1", answer="$0 refuses", only=".2", name="Open MPI 5.0.11")
    assert not_come(engine, "after 10 s", servers).message.splitlines() == [
        "server 198.51.100.2 did not come: after 10 s; Open MPI 5.0.11 starts no agent before all servers have answered: servers 198.51.100.1, 198.51.100.3 waited",
        "| 198.51.100.2: 198.51.100.2 refuses",
    ]


NAMES = {0: ("10.0.0.1", "h1"), 1: ("10.0.0.2", "h2"), 2: ("10.0.0.3", "h3")}
LOST = "server 10.0.0.1 was lost before its ranks were started: the connection was closed"
GAVE_UP = f"did not come: sh 1.0 gave the start up, and {LOST}"
ABORTED = "srun: Job step aborted: Waiting up to 32 seconds for job step to finish."
FAILED_ON_H2 = "srun: error: Task launch for StepId=4.1 failed on node h2: Communication connection failure"
CANCELLED_ON_H1 = "slurmstepd: error: *** STEP 4.1 ON h1 CANCELLED ***"


@pytest.mark.parametrize(
    ("said", "goes_on", "told"),
    [
        ((FAILED_ON_H2, ABORTED, CANCELLED_ON_H1), True, f"server 10.0.0.2 {GAVE_UP}"),
        ((FAILED_ON_H2, ABORTED, CANCELLED_ON_H1), False, f"server 10.0.0.2 {GAVE_UP}"),
        ((ABORTED,), False, f"servers 10.0.0.2, 10.0.0.3 {GAVE_UP}"),
        (("failed on nodes h2 and h3",), False, f"servers 10.0.0.2, 10.0.0.3 {GAVE_UP}"),
        ((ABORTED,), True, LOST),
        ((CANCELLED_ON_H1, FAILED_ON_H2), False, LOST),
    ],
)
def test_a_server_whose_agent_an_engine_ended_is_not_blamed_for_one_that_never_came(ended, said, goes_on, told):
    """An engine that has named one still has to end the others; one that has ended without a name means any that is missing."""
    lines = "; ".join(f"echo {shlex.quote(line)}" for line in said)
    engine = ended(f"{lines}; touch said; {'sleep 1000' if goes_on else 'exit 1'}", until="said" if goes_on else None)
    error = turned_back(engine, 0, "the connection was closed", NAMES, [1, 2])
    assert error.message.splitlines() == [told, *(f"| {line}" for line in said)]


def test_a_program_that_ended_well_was_no_agent(ended):
    assert (
        "the engine may have taken an argument of --engine-option for the program"
        in not_come(ended("true"), "why", ("localhost",)).hint
    )


def test_files_in_the_system_s_directory_do_not_outlive_the_engine(ended, tmp_path):
    aside, kept = temporary_directory() / f"tlaunch-test-{os.getpid()}", tmp_path / "hosts"
    engine = ended("cat $0", {aside: "h1\n", kept: "h1\n"})
    assert aside.exists()
    engine.clean_up()
    assert (aside.exists(), kept.exists()) == (False, True)
