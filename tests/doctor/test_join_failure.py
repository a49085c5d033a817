"""Why a server did not join, by what ssh, engines and agents printed: lines as they were seen."""

import pytest

from launcher.doctor.join_failure import connection_lost, diagnose_output, engine_hangs, join_timed_out, no_answer

MPI_5 = [
    "PRTE has lost communication with a remote daemon.",
    "  HNP daemon   : [prterun-tlhub-77@0,0] on node tlhub",
    "  Remote daemon: [prterun-tlhub-77@0,1] on node h2",
]


@pytest.mark.parametrize(("code", "line"), [
    ("host-key", "No ED25519 host key is known for h2 and you have requested strict checking."),
    ("host-key", "Host key verification failed."),
    ("login-refused", "root@h2: Permission denied (publickey)."),
    ("host-unknown", "ssh: Could not resolve hostname h9: Name or service not known"),
    ("ssh-refused", "ssh: connect to host h2 port 22: Connection refused"),
    ("host-unreachable", "ssh: connect to host h2 port 22: Connection timed out"),
    ("host-unreachable", "ssh: connect to host h2 port 22: No route to host"),
    ("host-unreachable", "Timeout, server h2 not responding."),
    ("host-unreachable", "ssh: Connection to h2 port 22 timed out"),
    ("host-unreachable", "Connection timed out during banner exchange"),
    ("unknown-option", '/usr/bin/mpirun: Error: unknown option "--nosuch"'),
    ("unknown-option", "srun: unrecognized option '--nosuch'"),
    ("unknown-option", "An unrecognized option was included on the mpirun command line:"),
    ("program-missing", "bash: line 1: /opt/mpi/bin/prted: No such file or directory"),
    ("program-missing", "bash: orted: command not found"),
    ("program-missing", "sh: 1: hydra_pmi_proxy: not found"),
    ("program-missing", "  Daemon exit status: 127"),
    ("tlaunch-missing", "/opt/env/bin/python: No module named launcher"),
    ("tlaunch-missing", "/opt/env/bin/python: No module named launcher.__main__; 'launcher' is a package"),
    ("tlaunch-missing", "/opt/env/bin/python: can't open file '/opt/env/site-packages/tlaunch': [Errno 2] No such file or directory"),
    ("tlaunch-missing", "/opt/env/bin/python: can't find '__main__' module in '/home/me/tlaunch'"),
    ("tlaunch-missing", "FileNotFoundError: [Errno 2] No such file or directory: '/home/me/launcher/__init__.py'"),
    ("package-missing", "ModuleNotFoundError: No module named 'psutil'"),
    ("too-few-slots", "There are not enough slots available in the system to satisfy the 2"),
    ("too-few-slots", "srun: error: Unable to create step for job 7: More processors requested than permitted"),
    ("no-way-back", "error: the run's coordinator cannot be reached: 10.0.0.9 port 4711: timed out"),
    ("python-missing", "slurmstepd: error: execve(): /opt/env/bin/python: No such file or directory"),
    ("python-missing", "Executable: /opt/env/bin/python"),
    ("python-missing", "bash: line 1: /opt/env/bin/python: No such file or directory"),
    ("python-missing", "mpirun was unable to find the specified executable file, and therefore did not launch the job."),
])  # fmt: skip
def test_the_cause_is_known_whatever_stands_around_it(code, line):
    found = diagnose_output([*MPI_5, line, *MPI_5], "Open MPI 5 ended with exit code 255")
    assert found.code == code
    assert line.strip() in found.why
    assert found.hint


def test_what_ssh_says_counts_before_what_the_engine_makes_of_it():
    guess = "* not finding the required libraries and/or binaries on one or more nodes. No such file or directory"
    assert diagnose_output([guess, "Host key verification failed."], "it ended").code == "host-key"


ENDED = "Open MPI 5.0.11 ended with exit code 186"
BY_HAND, LITTLE, FIREWALL = "try to start a program", "ulimit -n", "firewall"


@pytest.mark.parametrize(("lines", "ended", "code", "why"), [
    (["--", "bad word on the command line:", "  Option: --nosuch", "unknown option", "x"], "it ended", "unknown-option", "unknown option"),
    (["An unrecognized option was included:", "  Option: --nosuch", "x"], "it ended", "unknown-option", "An unrecognized option was included: Option: --nosuch"),
    (["try again."], "Open MPI 5.0.11 ended with exit code 127", "program-missing", "Open MPI 5.0.11 ended with exit code 127"),
    ([], "Slurm 22 ended with exit code 1", "did-not-come", "no agent connected; Slurm 22 ended with exit code 1, without output"),
    ([], "it runs", "did-not-come", "no agent connected; it runs, without output"),
])  # fmt: skip
def test_lines_are_read_with_what_follows_and_with_the_exit_code(lines, ended, code, why):
    """127 is the shell's exit code for a missing program; a line that ends in a colon is completed by the next."""
    found = diagnose_output(lines, ended)
    assert (found.code, found.why.partition("(")[2].removesuffix(")") or found.why) == (code, why)


@pytest.mark.parametrize(("line", "ended"), [
    ("srun: error: n2: task 1: Exited with exit code 127", "it ended"), ("", "Slurm 22.05.8 ended with exit code 127"),
])  # fmt: skip
def test_srun_is_not_advised_to_have_an_mpirun(line, ended):
    found = diagnose_output([line], ended)
    assert found.code == "program-missing"
    assert "mpirun" not in found.hint
    assert "Python" in found.hint


@pytest.mark.parametrize(("quoted", "lines"), [
    (MPI_5[0], [*MPI_5, "Please check the firewall and", "try again."]),
    ("mpirun: Error: zounds", ["Welcome to h2", "---", "mpirun: Error: zounds", "Type 'mpirun --help' for usage."]),
    ("zounds", ["Warning: Permanently added 'h2' (ED25519) to the list of known hosts.", "zounds", "try again."]),
    ("try again.", ["try again."]),
])  # fmt: skip
def test_the_most_telling_line_of_an_unknown_cause_is_quoted(quoted, lines):
    found = diagnose_output(lines, ENDED)
    assert (found.code, found.why) == ("did-not-come", f"no agent connected; {ENDED}: {quoted}")


@pytest.mark.parametrize(("failure", "code", "hint"), [
    (diagnose_output([], ENDED), "did-not-come", LITTLE),  # its daemon had 64 open files
    (diagnose_output(["zounds"], ENDED), "did-not-come", BY_HAND),
    (diagnose_output([], "Open MPI 5.0.11 has not ended within 75 s"), "did-not-come", BY_HAND),
    (engine_hangs("Open MPI 5", 10.0, ["Warning: setpgid(2,2) failed in parent with errno=1"]), "did-not-come", FIREWALL),
    (engine_hangs("Open MPI 5", 10.0, ["ssh: connect to host h2 port 22: Connection refused"]), "ssh-refused", "sshd"),
    (join_timed_out(60.0), "did-not-come", "check that `tlaunch` is running there"),
    (no_answer(30.0), "no-answer", "a file system may hang"),
    (connection_lost("the connection was closed"), "no-answer", "dmesg"),
])  # fmt: skip
def test_hints_go_with_what_is_known(failure, code, hint):
    assert failure.code == code
    assert hint in failure.hint
