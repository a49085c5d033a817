"""What this very machine says of itself."""

import json
import os
import resource
import socket
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from launcher import __version__
from launcher.core.codec import decode, encode
from launcher.core.machine.engine_rank import library_that_says
from launcher.core.machine.interfaces import held_addresses
from launcher.core.machine.proc import own_directory
from launcher.doctor import collect as collecting
from launcher.doctor import network_facts as network
from launcher.doctor.collect import collect, folder
from launcher.doctor.facts import Facts, Request
from launcher.doctor.network_facts import resolve
from tests.conftest import free_port

TABLE = '{"version": "1.0", "server_count": "1"}'


@pytest.fixture
def places(tmp_path):
    (tmp_path / "table.json").write_text(TABLE)
    return Request(names=("localhost",), table=str(tmp_path / "table.json"), cwd=str(tmp_path), runs_dir="runs")


def test_this_machine_is_described_as_the_system_does(places):
    facts = collect(places)
    assert facts.hostname == socket.gethostname()
    assert facts.version("tlaunch") == __version__
    assert facts.version("python") == ".".join(map(str, sys.version_info[:3]))
    assert facts.version("numpy") == version("numpy")
    assert facts.executable == sys.executable
    assert facts.usable_cpus == len(os.sched_getaffinity(0))
    assert facts.limit("nofile").soft == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert 0 < facts.memory_available_bytes <= facts.memory_total_bytes
    assert "127.0.0.1" in {address for one in facts.interfaces for address in one.addresses}
    assert facts.resolution("localhost").addresses
    assert facts.resolution(facts.hostname) is not None
    assert facts.folder("cwd").exists
    assert (facts.folder("runs_dir").exists, facts.folder("runs_dir").writable) == (False, True)
    assert [path.name for path in Path(places.cwd).iterdir()] == ["table.json"]
    assert decode(Facts, json.loads(json.dumps(encode(facts)))) == facts
    facts = collect(replace(places, table=places.table + ".old"))
    assert (facts.table_digest, facts.table_trouble) == (None, "No such file or directory")


def test_facts_of_another_version_are_understood():
    facts = decode(Facts, {"hostname": "h", "gravity": 9.81, "folders": [["cwd", {"path": "/x", "colour": "red"}]]})
    assert (facts.hostname, facts.folder("cwd").path, facts.user) == ("h", "/x", 0)
    with pytest.raises(ValueError, match="not a valid Facts: 7 is not"):
        decode(Facts, {"hostname": 7})


def test_a_directory_that_takes_no_file_is_not_writable(tmp_path):
    """Whoever asks: root may write anywhere but to a file system that is read-only, as /proc is in this respect."""
    assert not folder(Path("/proc/self")).writable
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to("nowhere")
    for name in ("file", "file/below/it", "dangling", "dangling/below"):
        found = folder(tmp_path / name)
        assert (found.exists, found.writable, found.trouble) == (False, False, "Not a directory")
    assert folder(tmp_path / ("long" * 100)).trouble == "File name too long"
    later = folder(tmp_path / "made" / "later")
    assert (later.exists, later.writable, later.trouble) == (False, True, None)


def test_a_port_is_tried_as_a_store_would_take_it():
    number = free_port()  # none that a connection of another process may get once its listener has gone
    with socket.create_server(("127.0.0.1", number)):
        assert network.try_port(number).trouble == "Address already in use"
    assert network.try_port(number).trouble is None
    assert network.try_port(number).trouble is None
    assert network.try_port(70000).trouble == "invalid port number"
    # The end that closes a connection first keeps the port for a minute (TIME_WAIT): a store could listen there.
    with (
        socket.create_server(("127.0.0.1", number)) as listener,
        socket.create_connection(("127.0.0.1", number)) as caller,
    ):
        connection, _ = listener.accept()
        connection.close()
        assert caller.recv(1) == b""
    assert network.try_port(number).trouble is None


def test_the_default_route_with_the_best_metric_counts(tmp_path):
    header = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
    routes = [
        "wlan0\t00000000\t0102A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0",
        "eth1\t00000000\t0102A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0",
        "eth0\t0002A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0",
    ]
    (tmp_path / "route").write_text(header + "\n".join(routes) + "\n")
    assert network.default_interface(tmp_path) == "eth1"
    (tmp_path / "route").write_text(header)
    assert network.default_interface(tmp_path) is None
    assert network.default_interface(tmp_path / "none") is None


def test_names_are_asked_all_at_once_with_a_deadline():
    found = resolve(["10.1.2.3", "localhost", "no-such-host.invalid", "localhost"], 30.0)
    assert list(found) == ["10.1.2.3", "localhost", "no-such-host.invalid"]
    assert found["10.1.2.3"].addresses == ("10.1.2.3",)
    assert found["localhost"].addresses
    assert found["no-such-host.invalid"].addresses == ()
    assert resolve(["localhost"], 0.0)["localhost"].seconds >= 0.0


STARVED = """
import os, time
from launcher.doctor import network_facts as network

def slow(name):
    while time.thread_time() - begun_s < 0.01: pass
    return ("127.0.0.1",)

begun_s = time.thread_time()
network._addresses = slow
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
begins, begun = os.pipe()
busy = os.fork()
while busy == 0:
    if begun: begun = os.write(begun, b"1") - 1
os.read(begins, 1)
os.nice(10)
started_s = time.monotonic()
measured_s = network.resolve(["h1"], 60.0)["h1"].seconds
print(time.monotonic() - started_s, measured_s)
os.kill(busy, 9)
"""


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="the kernel does not tell who waited")
def test_a_name_server_is_not_blamed_for_a_busy_processor():
    done = subprocess.run([sys.executable, "-c", STARVED], capture_output=True, text=True, timeout=60, check=True)
    took_s, measured_s = map(float, done.stdout.split())
    assert measured_s < took_s / 2


def test_two_processes_of_one_machine_have_one_identity():
    code = "from launcher.doctor.collect import identity; print(identity())"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == collecting.identity() != ""
    if os.geteuid() == 0:
        apart = subprocess.run(
            ["unshare", "--net", sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        assert apart.returncode or apart.stdout.strip() != collecting.identity()


def test_the_tightest_limit_of_the_groups_around_counts(tmp_path, monkeypatch):
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    (inner / "memory.max").write_text("max\n")
    (inner.parent / "memory.max").write_text("1048576\n")
    (tmp_path / "memory.max").write_text("2097152\n")
    (inner / "cpu.max").write_text("150000 100000\n")
    (inner.parent / "cpu.max").write_text("max 100000\n")
    monkeypatch.setattr(collecting, "own_directory", lambda: inner)
    assert (collecting.memory_limit(), collecting.cpu_limit()) == (1048576, 1.5)
    monkeypatch.setattr(collecting, "own_directory", lambda: None)
    assert (collecting.memory_limit(), collecting.cpu_limit()) == (None, None)
    assert own_directory() is None or own_directory().is_dir()


def test_collecting_imports_no_torch(places):
    code = (
        "import sys; from launcher.doctor.collect import collect; from launcher.doctor.facts import Request; "
        "collect(Request()); print([name for name in ('torch', 'numpy', 'mpi4py', 'pydantic', 'click') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=places.cwd, check=True)
    assert done.stdout.strip() == "[]"


def test_the_mpi_of_mpi4py_is_judged_by_the_mpirun_around():
    library = library_that_says("MPICH Version:      5.0.2", ["/opt/mpich/lib/libmpi.so.12"])
    open_mpi = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_RANK": "0"}
    trouble = "MPICH 5.0.2 (/opt/mpich/lib/libmpi.so.12), which does not work with Open MPI's mpirun: "
    assert trouble in collecting.mpi_trouble(library, open_mpi)
    for environment in ({"PMI_RANK": "0", "PMI_SIZE": "2", "PMI_FD": "9"}, {}):
        assert collecting.mpi_trouble(library, environment) is None


def test_the_interface_that_ranks_would_use_is_collected(places):
    own = next((one for one in held_addresses() if one.address.version == 4 and not one.address.is_loopback), None)
    if own is None:
        pytest.skip("no network here")
    for called, interface in (((str(own.address),), own.interface), (("192.0.2.1",), None), ((), None)):
        assert collect(replace(places, called=called)).ranks_interface == interface


@pytest.mark.parametrize(("environment", "expected"), [
    ({"PMIX_NAMESPACE": "1641873409"}, (("OMPI_MCA_coll", "^han"),)),
    ({"PMIX_NAMESPACE": "1641873409", "OMPI_MCA_coll": "self"}, ()), ({"PMIX_NAMESPACE": "prterun-vm-1@1"}, ()),
    ({}, ()),
])  # fmt: skip
def test_what_mpi_needs_is_told_unless_it_is_set(environment, expected):
    assert collecting.mpi_variables(library_that_says("Open MPI v5.0.11, package"), environment) == expected
    assert collecting.mpi_variables(None, environment) == ()
