"""Why a server did not come, by what ssh, engines and agents said: lines as they were seen."""

import pytest

from launcher.doctor.absence import absence_of

MPI_5 = [
    "PRTE has lost communication with a remote daemon.",
    "  HNP daemon   : [prterun-tlhub-77@0,0] on node tlhub",
    "  Remote daemon: [prterun-tlhub-77@0,1] on node h2",
]


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("host-key", "No ED25519 host key is known for h2 and you have requested strict checking."),
        ("host-key", "Host key verification failed."),
        ("login-refused", "root@h2: Permission denied (publickey)."),
        ("host-unknown", "ssh: Could not resolve hostname h9: Name or service not known"),
        ("ssh-refused", "ssh: connect to host h2 port 22: Connection refused"),
        ("host-unreachable", "ssh: connect to host h2 port 22: Connection timed out"),
        ("host-unreachable", "ssh: connect to host h2 port 22: No route to host"),
        ("host-unreachable", "Timeout, server h2 not responding."),
        ("tlaunch-missing", "/opt/env/bin/python: No module named launcher"),
        ("tlaunch-missing", "/opt/env/bin/python: No module named launcher.__main__; 'launcher' is a package"),
        ("no-way-back", "error: the run's coordinator cannot be reached: 10.0.0.9 port 4711: timed out"),
        ("python-missing", "slurmstepd: error: execve(): /opt/env/bin/python: No such file or directory"),
        ("python-missing", "Executable: /opt/env/bin/python"),
        ("python-missing", "bash: line 1: /opt/env/bin/python: No such file or directory"),
        ("python-missing", "mpirun was unable to find the specified executable file, and therefore did not launch the job."),
    ],
)  # fmt: skip
def test_the_cause_is_known_whatever_stands_around_it(code, line):
    """The line itself is told, too."""
    found = absence_of([*MPI_5, line, *MPI_5], "Open MPI 5 ended with exit code 255")
    assert found.code == code
    assert line in found.why
    assert found.hint


def test_what_ssh_says_counts_before_what_the_engine_makes_of_it():
    """An engine that cannot start its daemon may guess at missing files."""
    guess = "* not finding the required libraries and/or binaries on one or more nodes. No such file or directory"
    assert absence_of([guess, "Host key verification failed."], "it ended").code == "host-key"


def test_of_an_unknown_cause_the_last_words_are_told():
    """With how it ended."""
    found = absence_of([*MPI_5, "zounds"], "Slurm 22.05.8 ended with exit code 7")
    assert found.code == "did-not-come"
    assert found.why == "its agent did not come; Slurm 22.05.8 ended with exit code 7: zounds"
    assert absence_of([], "it goes on").why == "its agent did not come; it goes on, and said nothing"
