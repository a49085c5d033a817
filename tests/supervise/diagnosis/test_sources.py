"""Lines of source files, from file systems that answer and from those that do not."""

import fcntl
import os
import signal
import threading
from pathlib import Path

import pytest

from launcher.supervise.diagnosis.stack_parser import MAX_BYTES, Sources, is_local, mounts

PATIENCE_S = 60


def test_what_is_no_readable_source_is_left_out(tmp_path):
    """Missing files, directories, pipes, relative names, lines beyond the end, files that are no sources, odd names."""
    (tmp_path / "short.py").write_text("x\n")
    (tmp_path / "large.py").write_bytes(b"x\n" * (MAX_BYTES // 2 + 1))
    os.mkfifo(tmp_path / "pipe")
    for name, line in (("gone.py", 1), (".", 1), ("short.py", 9), ("large.py", 1), ("pipe", 1), ("nul\0", 1)):
        assert Sources().line(f"{tmp_path}/{name}", line) is None
    assert Sources().line("<string>", 1) is None
    assert Sources().line(f"{tmp_path}/short.py", 1) == "x"


def test_a_line_is_read_once(tmp_path):
    """Hundreds of ranks are at the same one; who asks later sees what the file holds then."""
    program, sources = tmp_path / "train.py", Sources()
    program.write_text("first()\n")
    assert sources.line(str(program), 1) == "first()"
    program.write_text("second()\n")
    assert (sources.line(str(program), 1), Sources().line(str(program), 1)) == ("first()", "second()")


@pytest.mark.skipif(not Path("/proc/self/mountinfo").exists(), reason="needs Linux's /proc")
def test_mounts_are_those_of_the_system():
    """Also names with spaces, which the table writes in octal."""
    found = mounts()
    assert found["/proc"] == "proc"
    assert all(Path(point).exists() or "\\" not in point for point in found)


@pytest.mark.parametrize(
    ("path", "local"),
    [
        ("/home/me/train.py", True),
        ("/data/train.py", False),
        ("/data", False),
        ("/database/train.py", True),
        ("/data/disk/train.py", False),
        ("/home/../data/train.py", False),
        ("/disk/train.py", True),
        ("/fuse/train.py", False),
        ("/unheard/train.py", False),
        ("/proc/1/environ", False),
    ],
)
def test_only_disks_and_memory_are_local(path, local):
    """Neither networks nor kinds of file systems that nobody has heard of, nor what is mounted below them."""
    known = {"/": "nfs4", "/data": "nfs4", "/data/disk": "ext4", "/disk": "xfs", "/fuse": "fuse.sshfs",
             "/unheard": "newfs", "/proc": "proc"}  # fmt: skip
    assert is_local(path, known) is local


def test_links_are_followed_before_anything_is_touched(tmp_path):
    """One that leads to a network is not local, however many links and parents are on the way; a circle is nothing."""
    local, network = tmp_path / "local", tmp_path / "network"
    local.mkdir()
    network.mkdir()
    for place in (local, network):
        (place / "train.py").write_text("x\n")
    (tmp_path / "first").symlink_to("local/../second")
    (tmp_path / "second").symlink_to(network)
    (tmp_path / "to_local").symlink_to(local)
    (tmp_path / "circle").symlink_to("circle")
    known = {"/": "ext4", str(network): "lustre"}
    found = {name: is_local(f"{tmp_path}/{name}/train.py", known) for name in ("first", "second", "to_local", "circle")}
    assert found == {"first": False, "second": False, "to_local": True, "circle": False}
    assert not is_local(f"{tmp_path}/first/../local/train.py", known)


@pytest.fixture(name="network")
def _network(tmp_path):
    """Makes sources that take the temporary directory for a network's: none is mounted here."""

    def make(network_s):
        sources = Sources(network_s)
        sources._mounts = {"/": "ext4", str(tmp_path): "nfs4"}
        return sources

    (tmp_path / "train.py").write_text("x\ny\n")
    return make


def test_a_network_is_asked_only_by_who_allows_the_time(tmp_path, network):
    """An agent does not: all its ranks would wait with it."""
    assert network(0.0).line(f"{tmp_path}/train.py", 1) is None
    assert network(PATIENCE_S).line(f"{tmp_path}/train.py", 1) == "x"


@pytest.mark.skipif(not hasattr(fcntl, "F_SETLEASE"), reason="needs Linux's leases")
def test_a_network_that_does_not_answer_is_left_alone(tmp_path, network):
    """A file that cannot be opened before somebody lets go of it: its lines are given up, and all others at once."""
    path = tmp_path / "train.py"
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    holder = os.open(path, os.O_RDWR)
    threads = set(threading.enumerate())
    try:
        fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        sources = network(0.1)
        assert [sources.line(str(path), number) for number in (1, 2)] == [None, None]
        [left] = set(threading.enumerate()) - threads
    finally:
        os.close(holder)
        signal.signal(signal.SIGIO, before)
    left.join(PATIENCE_S)
    assert network(PATIENCE_S).line(str(path), 1) == "x"
