"""Agents on several hosts by the very commands of `launcher.engines`: real mpirun and srun, real ssh between hosts."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.core.records import Device, Server
from launcher.engines.mpi import find_mpirun, mpi_command
from launcher.engines.whereabouts import Host, address_of

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
AGENT = HERE.parent / "programs" / "engine_agent.py"
START_BY_SLURM = HERE.parent / "programs" / "start_by_slurm.py"
VIRTUAL_HOSTS = ROOT.parent / "shared" / "virtual_hosts"
ODD = ["a  b", 'it\'s "x"', "$(touch bad)", "-n", "--help", "-x", "--", "*", "\\", "", "::", "é", "new\nline"]
ODD_VALUE = "a  b;,'\"$(x)\\é=|"
MPIRUNS = {
    "system": "/usr/bin/mpirun",
    "beside Python": str(Path(sys.executable).parent / "mpirun"),
    **{path: path for path in os.environ.get("TL_MPIRUNS", "").split(os.pathsep) if path},
}
NOT_INHERITED = ("TLAUNCH_", "OMPI_", "PMIX_", "PMI_", "PRTE_", "SLURM_", "HYDRA_", "I_MPI_", "LD_LIBRARY_PATH")

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(300)]


def server(name, first=0):
    return Server(name, (Device(0, first),))


def run(argv, *, env, stdin=subprocess.DEVNULL):
    """Killed with all that it started, if it hangs."""
    process = subprocess.Popen(
        list(map(str, argv)), env=env, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        out, err = process.communicate()
        pytest.fail(f"hangs:\n{out}\n{err}")
    return subprocess.CompletedProcess(argv, process.returncode, out, err)


class Engine:
    """One mpirun, and a `ssh` on its PATH that notes how it is called."""

    def __init__(self, path, hosts, directory):
        self.hosts, self.directory = hosts, directory
        self.log, self.out = directory / "ssh.log", directory / "out"
        self.out.mkdir()
        wrapper = directory / "bin" / "ssh"
        wrapper.parent.mkdir()
        wrapper.write_text(
            f'#!/bin/sh\necho "$*" >> {self.log}\nexec {shutil.which("ssh")} -F {hosts.root}/ssh_config "$@"\n'
        )
        wrapper.chmod(0o755)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(NOT_INHERITED)}
        search = os.pathsep.join(map(str, (wrapper.parent, Path(path).parent, os.environ["PATH"])))
        self.environment = {**inherited, "PATH": search, "ODD": ODD_VALUE}
        self.mpirun = find_mpirun(self.environment, path)

    def command(self, servers, *words, host, **more):
        return mpi_command(
            self.mpirun, servers, (sys.executable, str(AGENT), str(self.out), *words), host=host,
            environment=self.environment, as_root=True, handed_on=("ODD", *more.pop("handed_on", ())),
            directory=self.directory, **more,
        )  # fmt: skip

    def __call__(self, servers, *words, before=None, host=None, env=None, **more):
        self.environment |= env or {}
        command = self.command(servers, *words, host=host or Host("tlhub", frozenset()), **more)
        for path, text in command.files.items():
            path.write_text(text)
        before = before or (self.hosts.root / "hub",)
        return run((*before, *command.argv), env={**self.environment, **command.env})

    def told(self):
        """What each agent wrote, by number."""
        paths = sorted(self.out.glob("*.json"), key=lambda path: int(path.stem))
        return [json.loads(path.read_text()) for path in paths]

    def lived(self):
        return sorted(path.stem for path in self.out.glob("*.lived"))

    def ssh_calls(self):
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture(params=MPIRUNS.values(), ids=MPIRUNS)
def engine(request, two_hosts, tmp_path):
    if not Path(request.param).exists():
        pytest.skip(f"no {request.param} here")
    return Engine(request.param, two_hosts, tmp_path)


def test_agents_are_where_they_belong_with_what_was_given_to_them(engine):
    """In the order of the table, as many as asked for on each, more than it has cores; over an ssh that never asks."""
    done = engine([server("h2"), server("10.77.0.1", 1)], *ODD, counts=[3, 1], handed_on=("PATH",))
    assert done.returncode == 0, done.stderr
    told = engine.told()
    assert [each["host"] for each in told] == ["h2", "h2", "h2", "h1"], done.stderr
    assert all(each["words"] == ODD for each in told)
    assert {each["odd"] for each in told} == {ODD_VALUE}
    assert {each["cwd"] for each in told} == {"/"}
    assert {each["stdin"] for each in told} == {""}
    assert {each["cpus"] for each in told} == {len(os.sched_getaffinity(0))}
    assert not any(ODD_VALUE in call for call in engine.ssh_calls())
    assert len(engine.ssh_calls()) == 2
    assert all("-o BatchMode=yes" in call and "-o ServerAliveInterval=5" in call for call in engine.ssh_calls())


@pytest.mark.parametrize("status", ["3", "-9"])
def test_an_agent_that_ends_leaves_the_others_alone(engine, status):
    """Whether it fails or is killed; and mpirun ends when all have ended."""
    engine([server("h1"), server("h2", 1)], env={"ENDS": status}, handed_on=("ENDS",))
    assert engine.lived() == ["1"]


@pytest.mark.parametrize("name", ["h1", "10.77.0.1", "127.0.0.1", "localhost"])
def test_a_single_server_that_is_this_machine_needs_no_ssh(engine, name):
    """Whatever the table calls it."""
    host = Host("h1", frozenset({address_of("10.77.0.1"), address_of("127.0.0.1")}))
    on_h1 = (engine.hosts.root / "on", "h1", "env", "-C", "/")
    done = engine([server(name)], host=host, before=on_h1)
    assert done.returncode == 0, done.stderr
    assert [each["host"] for each in engine.told()] == ["h1"]
    assert engine.ssh_calls() == []


def test_a_server_that_is_this_machine_is_no_detour_for_the_others(engine):
    """One ssh: to the other server."""
    host = Host("h1", frozenset({address_of("10.77.0.1")}))
    on_h1 = (engine.hosts.root / "on", "h1", "env", "-C", "/")
    done = engine([server("10.77.0.2"), server("10.77.0.1", 1)], host=host, before=on_h1)
    assert done.returncode == 0, done.stderr
    assert [each["host"] for each in engine.told()] == ["h2", "h1"]
    assert len(engine.ssh_calls()) == 1


def test_a_user_s_own_way_to_servers_is_taken_as_it_is(engine):
    """A program of one word, that knows nothing of ssh's options."""
    own = engine.directory / "own"
    own.write_text(f'#!/bin/sh\ncase "$*" in *BatchMode*) exit 9;; esac\nexec {engine.hosts.root}/tlssh "$@"\n')
    own.chmod(0o755)
    hydra = "Open MPI" not in engine.mpirun.version
    options = ("-launcher-exec", str(own)) if hydra else ("--mca", "plm_rsh_agent", str(own))
    done = engine([server("h1"), server("h2", 1)], options=options)
    assert done.returncode == 0, done.stderr
    assert len(engine.told()) == 2
    assert not any("BatchMode" in call for call in engine.ssh_calls())


def test_libraries_of_the_system_are_not_put_first_on_other_servers(engine):
    """An mpirun of the system that is called by its path would."""
    done = engine([server("h1")])
    assert done.returncode == 0, done.stderr
    libraries = (engine.told()[0]["libraries"] or "").split(":")
    assert not {"/usr/lib", "/lib"} & set(libraries)
