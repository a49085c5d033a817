"""Why a server did not come, by what ssh, engines and agents said: lines as they were seen."""

import pytest

from launcher.doctor.join_failure import diagnose_output, engine_hangs

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
        ("package-missing", "ModuleNotFoundError: No module named 'psutil'"),
        ("too-few-slots", "There are not enough slots available in the system to satisfy the 2"),
        ("too-few-slots", "srun: error: Unable to create step for job 7: More processors requested than permitted"),
        ("no-way-back", "error: the run's coordinator cannot be reached: 10.0.0.9 port 4711: timed out"),
        ("python-missing", "slurmstepd: error: execve(): /opt/env/bin/python: No such file or directory"),
        ("python-missing", "Executable: /opt/env/bin/python"),
        ("python-missing", "bash: line 1: /opt/env/bin/python: No such file or directory"),
        ("python-missing", "mpirun was unable to find the specified executable file, and therefore did not launch the job."),
    ],
)  # fmt: skip
def test_the_cause_is_known_whatever_stands_around_it(code, line):
    """The line itself is told, too."""
    found = diagnose_output([*MPI_5, line, *MPI_5], "Open MPI 5 ended with exit code 255")
    assert found.code == code
    assert line.strip() in found.why
    assert found.hint


def test_what_ssh_says_counts_before_what_the_engine_makes_of_it():
    """An engine that cannot start its daemon may guess at missing files."""
    guess = "* not finding the required libraries and/or binaries on one or more nodes. No such file or directory"
    assert diagnose_output([guess, "Host key verification failed."], "it ended").code == "host-key"


def test_what_ends_with_a_colon_is_told_with_what_follows():
    """As Open MPI 5 names the option."""
    lines = [
        "An unrecognized option was included on the mpirun command line:",
        "  Option: --nosuch",
        "supported options.",
    ]
    assert diagnose_output(lines, "it ended").why.endswith("command line: Option: --nosuch)")


def test_an_exit_code_says_that_a_program_is_missing_where_nobody_else_does():
    """127 is the shell's."""
    found = diagnose_output(["try again."], "Open MPI 5.0.11 ended with exit code 127")
    assert (found.code, found.why.partition("(")[2]) == ("program-missing", "Open MPI 5.0.11 ended with exit code 127)")
    assert diagnose_output([], "Slurm 22 ended with exit code 1").code == "did-not-come"


@pytest.mark.parametrize(
    ("line", "ended"),
    [
        ("srun: error: n2: task 1: Exited with exit code 127", "it ended"),
        ("", "Slurm 22.05.8 ended with exit code 127"),
    ],
)
def test_srun_is_not_advised_to_have_an_mpirun(line, ended):
    """It starts Python itself."""
    found = diagnose_output([line], ended)
    assert found.code == "program-missing"
    assert "mpirun" not in found.hint
    assert "Python" in found.hint


@pytest.mark.parametrize(
    ("told", "lines"),
    [
        (MPI_5[0], [*MPI_5, "Please check the firewall and", "try again."]),
        ("mpirun: Error: zounds", ["Welcome to h2", "---", "mpirun: Error: zounds", "Type 'mpirun --help' for usage."]),
        ("zounds", ["Warning: Permanently added 'h2' (ED25519) to the list of known hosts.", "zounds", "try again."]),
        ("try again.", ["try again."]),
    ],
)
def test_of_an_unknown_cause_the_first_telling_words_are_told(told, lines):
    """With how it ended; what an engine says last is how to get help."""
    found = diagnose_output(lines, "Slurm 22.05.8 ended with exit code 7")
    assert found.code == "did-not-come"
    assert found.why == f"no agent came; Slurm 22.05.8 ended with exit code 7: {told}"


def test_of_an_engine_that_said_nothing_that_is_told():
    """With what became of it."""
    assert diagnose_output([], "it goes on").why == "no agent came; it goes on, without output"


@pytest.mark.parametrize(
    ("lines", "ended", "hint"),
    [
        ([], "Open MPI 5.0.11 ended with exit code 186", "ulimit -n"),  # its daemon had 64 open files
        (["zounds"], "Open MPI 5.0.11 ended with exit code 186", "try to start something"),
        ([], "Open MPI 5.0.11 has not ended within 75 s", "try to start something"),
    ],
)
def test_what_ends_without_a_word_may_lack_what_words_need(lines, ended, hint):
    """A login may work there nevertheless."""
    assert hint in diagnose_output(lines, ended).hint


def test_an_engine_that_waits_in_vain_makes_one_think_of_a_firewall():
    """Unless it says what is wrong; warnings of its own are no reason."""
    silent_one = engine_hangs(
        "Open MPI 5.0.11", 10.0, ["[hub:1] plm:ssh: Warning: setpgid(2,2) failed in parent with errno=1"]
    )
    assert (silent_one.code, "firewall" in silent_one.hint) == ("did-not-come", True)
    told = engine_hangs("Open MPI 5.0.11", 10.0, ["ssh: connect to host h2 port 22: Connection refused"])
    assert (told.code, "firewall" in told.hint) == ("ssh-refused", False)
