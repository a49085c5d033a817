"""Names of devices, as people write them."""

import pytest

from launcher.core.devices import device_name, devices_named
from launcher.core.errors import UsageError
from tests.servers import server

ONE = (server("10.0.0.1", 0, 4),)
TWO = (server("10.0.0.1", 0), server("10.0.0.2", 2))


@pytest.mark.parametrize(
    ("name", "servers", "named"),
    [("2", ONE, {2}), ("10.0.0.1/2", ONE, {2}), ("10.0.0.2/0", TWO, {2}), ("10.0.0.2", TWO, {2, 3})],
)
def test_a_name_stands_for_ranks_of_the_table(name, servers, named):
    assert devices_named(name, servers) == named
    assert {device_name(device, servers).partition("/")[0] for device in named} <= {each.server_id for each in servers}


@pytest.mark.parametrize(("name", "servers"), [("7", ONE), ("0", TWO), ("10.0.0.2/5", TWO), ("10.0.0.3/0", TWO)])
def test_what_is_valid_is_said_of_a_name_that_is_none(name, servers, snapshot):
    with pytest.raises(UsageError) as raised:
        devices_named(name, servers)
    assert raised.value.hint == snapshot
