"""The rendezvous port: only rank 0 gets it. Real gloo jobs meet at such ports in diagnosis/test_error_patterns."""

import socket

import pytest

from launcher.core.errors import UsageError
from launcher.supervise.port import check_port, hold_port
from tests.conftest import free_port


@pytest.fixture
def held():
    made = hold_port()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET, ""), (socket.AF_INET6, "")]
)
def test_a_store_that_reuses_addresses_can_listen(held, family, address):
    """A listener that sets SO_REUSEADDR, as torch's store does, gets the held port in either family.

    Without it the held port cannot be bound: such programs need --master-port.
    """
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
    assert held.number not in taken
    assert len({run.number for run in runs}) == 200


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
