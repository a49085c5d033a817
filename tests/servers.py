"""Servers of a rank table, and machines, as tests write them."""

from launcher.core.records import Device, Server
from launcher.engines.placement import Machine, Node


def server(name, first=0, count=2, **more):
    """One with devices from 0 on, whose ranks begin with `first`."""
    return Server(name, tuple(Device(index, first + index) for index in range(count)), **more)


def servers(*names, each=1):
    """Of so many ranks each, in turn; a name that comes again is the same server."""
    places = {name: place for place, name in enumerate(dict.fromkeys(names))}
    return tuple(server(name, places[name] * each, each) for name in names)


def uniform(core_count):
    """A machine of one node with cores of one cpu each."""
    return Machine((Node(0, tuple((cpu,) for cpu in range(core_count))),))
