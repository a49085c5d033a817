"""The rendezvous port: only rank 0 gets it. Real gloo jobs meet at such ports in diagnosis/test_error_patterns."""

import errno
import os
import signal
import socket
import subprocess
import sys
from contextlib import closing

import pytest

from launcher.core.errors import UsageError
from launcher.supervise.port import check_port, command_of, hold_port, holder_of, reason_of
from tests.conftest import free_port


@pytest.fixture
def held():
    with closing(hold_port()) as made:
        yield made


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET, ""), (socket.AF_INET6, "")]
)
def test_a_store_that_reuses_addresses_can_listen(held, family, address):
    """As torch's store does, in either family. A listener that does not needs --master-port."""
    with socket.socket(family) as plain, pytest.raises(OSError, match="Address already in use"):
        plain.bind((address, held.number))
    with socket.socket(family) as store:
        store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        store.bind((address, held.number))
        store.listen()
        with socket.create_connection(("127.0.0.1" if family == socket.AF_INET else "::1", held.number)) as found:
            assert found.getpeername()[1] == held.number


def test_the_kernel_never_gives_a_held_port(held):
    others = []
    for index in range(3000):
        other = socket.socket()
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, index % 2)
        other.bind(("127.0.0.1", 0))
        others.append(other)
    runs = [hold_port() for _ in range(200)]
    taken = [other.getsockname()[1] for other in others] + [run.number for run in runs]
    for open_socket in (*others, *runs):
        open_socket.close()
    assert (held.number in taken, len({run.number for run in runs})) == (False, 200)


def test_a_chosen_port_must_be_free(held):
    number = free_port()  # none that a connection of another process may get once its listener has gone
    with socket.create_server(("127.0.0.1", number)) as server:
        with pytest.raises(UsageError, match=f"port {number} cannot be used: Address already in use"):
            check_port(number)
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        accepted.close()  # the side that closes first keeps the port in TIME_WAIT
        client.close()
    assert check_port(number).number == number


# --- which process has a port ---

IN_USE = OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


@pytest.fixture(params=[socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv6"])
def listener(request):
    source = "import socket, sys\ntaken = socket.socket(int(sys.argv[1]))\ntaken.bind(('', 0))\ntaken.listen()\n"
    source += "print(taken.getsockname()[1], flush=True)\nsys.stdin.read()\n"
    words = [sys.executable, "-c", source, str(int(request.param)), "--api-token", "s3cr3t"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        yield child, int(child.stdout.readline())
        child.stdin.close()


def test_the_holder_of_a_port_is_told_with_its_command(listener):
    child, port = listener
    assert holder_of(port) == child.pid
    reason = reason_of(IN_USE, port)
    assert reason.startswith(f"{os.strerror(errno.EADDRINUSE)}, by process {child.pid} ({sys.executable} -c ")
    assert "\n" not in reason
    assert len(reason) < 250


def test_secrets_of_its_command_are_masked():
    words = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()", "--api-token", "s3cr3t"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()  # at the moment of exec it has no command line
        shown = command_of(child.pid)
        child.stdin.close()
    assert "s3cr3t" not in shown
    assert "--api-token" in shown


def test_nothing_is_told_of_a_port_that_nobody_listens_on(listener):
    child, port = listener
    assert reason_of(OSError(errno.EACCES, "Permission denied"), port) == "Permission denied"
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert holder_of(bound.getsockname()[1]) is None
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert (reason_of(IN_USE, port), command_of(child.pid)) == (IN_USE.strerror, "")
