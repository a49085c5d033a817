"""Which process has a port, told of real ones."""

import errno
import os
import signal
import socket
import subprocess
import sys

import pytest

from launcher.supervise.port import command_of, holder_of, reason_of

IN_USE = OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


@pytest.fixture(params=[socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv6"])
def listener(request):
    """A process that listens, with a secret in its command line; gives it and the port."""
    source = "import socket, sys\ntaken = socket.socket(int(sys.argv[1]))\ntaken.bind(('', 0))\ntaken.listen()\n"
    source += "print(taken.getsockname()[1], flush=True)\nsys.stdin.read()\n"
    words = [sys.executable, "-c", source, str(int(request.param)), "--api-token", "s3cr3t"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        yield child, int(child.stdout.readline())
        child.stdin.close()


def test_the_holder_of_a_port_is_told_with_its_command(listener):
    """Its secrets are masked, its line ends escaped, and its length has a bound."""
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
    """Nor of one that is bound only, and where the reason is another."""
    child, port = listener
    assert reason_of(OSError(errno.EACCES, "Permission denied"), port) == "Permission denied"
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert holder_of(bound.getsockname()[1]) is None
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert reason_of(IN_USE, port) == IN_USE.strerror
    assert command_of(child.pid) == ""
