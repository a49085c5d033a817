"""Agents on several hosts by the very commands of `launcher.engines`: real mpirun and srun, real ssh between hosts."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from launcher.core.machine.interfaces import address_of
from launcher.core.records import Device, Server
from launcher.engines.host_match import Host
from launcher.engines.mpi import find_mpirun, mpi_command

from .conftest import PROGRAMS, environment, executable, run_to_end

AGENT = PROGRAMS / "engine_agent.py"
START_BY_SLURM = PROGRAMS / "start_by_slurm.py"
ODD = ["a  b", 'it\'s "x"', "$(touch bad)", "-n", "--help", "-x", "--", "*", "\\", "", "::", "é", "new\nline"]
ODD_VALUE = "a  b;,'\"$(x)\\é=|"
pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(300)]


def server(name, first=0):
    return Server(name, (Device(0, first),))


class Engine:
    """One mpirun, and a `ssh` on its PATH that notes how it is called."""

    def __init__(self, path, hosts, directory):
        self.hosts, self.directory = hosts, directory
        self.log, self.out = directory / "ssh.log", directory / "out"
        self.out.mkdir()
        noting = f'#!/bin/sh\necho "$*" >> {self.log}\nexec {shutil.which("ssh")} -F {hosts.root}/ssh_config "$@"\n'
        wrapper = executable(directory / "bin" / "ssh", noting)
        search = os.pathsep.join(map(str, (wrapper.parent, Path(path).parent, os.environ["PATH"])))
        self.environment = environment({"PATH": search, "ODD": ODD_VALUE})
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
        return run_to_end((*before, *command.argv), cwd=None, env={**self.environment, **command.env})

    def told(self):
        return by_number(self.out)

    def lived(self):
        return sorted(path.stem for path in self.out.glob("*.lived"))

    def ssh_calls(self):
        return self.log.read_text().splitlines() if self.log.exists() else []


def by_number(directory):
    paths = sorted(directory.glob("[0-9]*.json"), key=lambda path: int(path.stem))
    return [json.loads(path.read_text()) for path in paths]


@pytest.fixture
def engine(mpirun_path, two_hosts, tmp_path):
    return Engine(mpirun_path, two_hosts, tmp_path)


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
    # An mpirun of the system that is called by its path would put its libraries first there.
    assert not {"/usr/lib", "/lib"} & {path for each in told for path in (each["libraries"] or "").split(":")}
    assert not any(ODD_VALUE in call for call in engine.ssh_calls())
    assert len(engine.ssh_calls()) == 2
    assert all("-o BatchMode=yes" in call and "-o ServerAliveInterval=5" in call for call in engine.ssh_calls())


@pytest.mark.parametrize("status", ["3", "-9"])
def test_an_agent_that_ends_leaves_the_others_alone(engine, status):
    engine([server("h1"), server("h2", 1)], env={"ENDS": status}, handed_on=("ENDS",))
    assert engine.lived() == ["1"]


@pytest.mark.parametrize("name", ["h1", "localhost"])
def test_a_single_server_that_is_this_machine_needs_no_ssh(engine, name):
    host = Host("h1", frozenset({address_of("10.77.0.1"), address_of("127.0.0.1")}))
    on_h1 = (engine.hosts.root / "on", "h1", "env", "-C", "/")
    done = engine([server(name)], host=host, before=on_h1)
    assert done.returncode == 0, done.stderr
    assert [each["host"] for each in engine.told()] == ["h1"]
    assert engine.ssh_calls() == []


def test_a_server_that_is_this_machine_is_no_detour_for_the_others(engine):
    host = Host("h1", frozenset({address_of("10.77.0.1")}))
    on_h1 = (engine.hosts.root / "on", "h1", "env", "-C", "/")
    done = engine([server("10.77.0.2"), server("10.77.0.1", 1)], host=host, before=on_h1)
    assert done.returncode == 0, done.stderr
    assert [each["host"] for each in engine.told()] == ["h2", "h1"]
    assert len(engine.ssh_calls()) == 1


def test_a_user_s_own_way_to_servers_is_taken_as_it_is(engine):
    source = f'#!/bin/sh\ncase "$*" in *BatchMode*) exit 9;; esac\nexec {engine.hosts.root}/tlssh "$@"\n'
    own = executable(engine.directory / "own", source)
    hydra = "Open MPI" not in engine.mpirun.version
    options = ("-launcher-exec", str(own)) if hydra else ("--mca", "plm_rsh_agent", str(own))
    done = engine([server("h1"), server("h2", 1)], options=options)
    assert done.returncode == 0, done.stderr
    assert len(engine.told()) == 2
    assert not any("BatchMode" in call for call in engine.ssh_calls())


@pytest.fixture(name="slurm")
def _slurm(two_hosts, slurm_on_hosts, tmp_path):
    def slurm(options, servers, *words, env=None, **more):
        job = (two_hosts.root / "hub", "salloc", "--quiet", "--time=10", *options)
        start = (sys.executable, START_BY_SLURM, tmp_path, json.dumps({"servers": servers, **more}))
        argv = (*job, *start, sys.executable, AGENT, tmp_path, *words)
        return run_to_end(argv, cwd=None, env={**slurm_on_hosts, "ODD": ODD_VALUE, **(env or {})})

    return slurm


def test_agents_of_a_job_are_where_they_belong(slurm, tmp_path):
    """By whatever name the table knows the nodes, in its order, with all words, variables and GPUs of the node."""
    asked = ("--nodes=2", "--ntasks-per-node=8", "--gpus-per-task=1", "--cpus-per-task=1")
    done = slurm(asked, ["h2.example.org", "10.77.0.1"], *ODD)
    assert done.returncode == 0, done.stderr
    told = by_number(tmp_path)
    assert [each["host"] for each in told] == ["h2", "h1"], done.stderr
    assert all(each["words"] == ODD for each in told)
    assert {each["odd"] for each in told} == {ODD_VALUE}
    assert {each["gpus"] for each in told} == {"0,1,2,3,4,5,6,7"}
    assert {each["cwd"] for each in told} == {"/"}
    facts = json.loads((tmp_path / "facts").read_text())
    assert 0 < facts.pop("left_s") <= 600
    assert facts.pop("version").startswith("Slurm 2")
    assert facts == {"gpus": 8, "cluster": [["h1", 8], ["h2", 8]]}


@pytest.mark.parametrize("asked", [("--gpus=16",), ("--gpus-per-node=8",), ("--gres=gpu:8",)], ids=str)
def test_agents_get_the_gpus_of_their_node_however_they_were_asked_for(slurm, tmp_path, asked):
    done = slurm(("--nodes=2", "--ntasks-per-node=8", *asked), ["h2", "h1"], counts=[3, 1], devices=2)
    assert done.returncode == 0, done.stderr
    told = by_number(tmp_path)
    assert [each["host"] for each in told] == ["h2", "h2", "h2", "h1"], done.stderr
    assert {each["gpus"] for each in told} == {"0,1,2,3,4,5,6,7"}


@pytest.mark.parametrize("status", ["3", "-9"])
def test_an_agent_of_a_job_that_ends_leaves_the_others_alone(slurm, tmp_path, status):
    done = slurm(("--nodes=2",), ["h1", "h2"], env={"ENDS": status}, devices=1)
    assert done.returncode != 0
    assert (tmp_path / "1.lived").exists(), done.stderr


def test_servers_that_are_no_nodes_of_the_job_are_named(slurm):
    done = slurm(("--nodelist=h1",), ["h1", "10.77.0.2"], devices=1)
    assert done.returncode == 1
    assert "10.77.0.2 of the rank table is not a node of job" in done.stderr
    assert "which has h1\nhint: request the table's servers: --nodelist=h1,10.77.0.2" in done.stderr
