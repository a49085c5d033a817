"""What ranks of several servers are given to reach each other, and where it is told."""

import json
import os
import sys

import pytest

from launcher.cli.launch.rank_network import note_of_interface, note_of_mpi
from launcher.core.machine.interfaces import INTERFACE_VARIABLES
from launcher.core.records import Device, Server
from tests.conftest import executable, stub_of_mpi4py

SERVERS = [Server("10.88.0.1", (Device(0, 0),)), Server("10.88.0.2", (Device(0, 1),))]
ON_LOOPBACK = [Server("127.0.0.1", (Device(0, 0),)), Server("127.0.0.2", (Device(0, 1),))]
LO = {"GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo", "HCCL_SOCKET_IFNAME": "=lo"}


def test_the_note_names_the_interface_and_what_is_set():
    (here,) = note_of_interface(SERVERS, "ib0", {})
    assert "on this machine ib0" in here
    (there,) = note_of_interface(SERVERS, None, {})
    assert "here" not in there
    assert "GLOO_" in there
    assert "GLOO_" not in note_of_interface(SERVERS, None, {"GLOO_SOCKET_IFNAME": "eth0"})[0]


def test_there_is_no_note_where_nothing_is_set_or_all_is_one_machine():
    assert note_of_interface(SERVERS, "ib0", dict.fromkeys(INTERFACE_VARIABLES, "eth0")) == ()
    assert note_of_interface(ON_LOOPBACK, "lo", {}) == ()


def test_a_variable_of_mpi_is_told_unless_the_user_has_set_it():
    (note,) = note_of_mpi({"OMPI_MCA_coll": "^han"}, {})
    assert note.startswith("setting OMPI_MCA_coll=^han")
    assert note_of_mpi({"OMPI_MCA_coll": "^han"}, {"OMPI_MCA_coll": "self"}) == note_of_mpi({}, {}) == ()


def test_a_dry_run_shows_the_interface_of_this_server(launcher, table_of):
    table = table_of({"127.0.0.1": [0], "127.0.0.2": [1]})
    done = launcher.call("run", "--rank-table", table, "--server", "127.0.0.2", "--dry-run", "--json", "--", "true")
    ranks = json.loads(done.stdout)["ranks"]
    assert [{name: rank["env"][name] for name in LO if name in rank["env"]} for rank in ranks] == [{}, LO]


@pytest.mark.parametrize("how", ["environment", "option"])
def test_explain_tells_where_an_interface_comes_from(launcher, table_of, how):
    table = table_of({"127.0.0.1": [0], "127.0.0.2": [1]})
    options = ("--env", "NCCL_SOCKET_IFNAME=eth9") if how == "option" else ()
    more = {"NCCL_SOCKET_IFNAME": "eth9"} if how == "environment" else {}
    words = ("explain", "--rank-table", table, "--server", "127.0.0.1", "--json", *options, "--", "true")
    done = launcher.call(*words, env=more)
    told = {one["name"]: (one["value"], one["origin"]) for one in json.loads(done.stdout)["variables"]}
    origin = "inherited" if how == "environment" else "--env"
    assert told["GLOO_SOCKET_IFNAME"] == ("lo", "rank table")
    assert told["NCCL_SOCKET_IFNAME"] == ("eth9", origin)


def test_one_server_is_told_no_interface(launcher):
    done = launcher.call("run", "--devices", 2, "--dry-run", "--", "true", code=0)
    assert "SOCKET_IFNAME" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("version", "other", "is_set"),
    [("4.1.4", "localhost", True), ("4.1.4", "127.0.0.2", False), ("5.0.11", "localhost", False)],
)
def test_an_mpirun_under_which_the_programs_mpi_would_hang_is_told_of(launcher, table_of, version, other, is_set):
    """Before anything is started, by the mpirun that is first on PATH and the mpi4py of the program's Python."""
    mpirun = executable(launcher.directory / "bin" / "mpirun", f"#!/bin/sh\necho 'mpirun (Open MPI) {version}'\n")
    packages = stub_of_mpi4py(launcher.directory / "packages", "Open MPI v5.0.11, package: Open MPI")
    paths = {"PATH": f"{mpirun.parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(packages)}
    options = ("--engine", "mpi", "--rank-table", table_of({"127.0.0.1": [0], other: [1]}), "--json")
    program = ("--", sys.executable, "-c", "from mpi4py import MPI")
    done = launcher.call("explain", *options, *program, env=paths, code=0)
    environment = {one["name"]: one["value"] for one in json.loads(done.stdout)["variables"]}
    assert environment.get("OMPI_MCA_coll") == ("^han" if is_set else None)
    assert ("setting OMPI_MCA_coll=^han" in done.stderr) is is_set
