"""The time of collectives and messages, by group size and placement on servers.

Ranks are numbered with mp fastest, then dp, then pp (`launcher/mesh/coordinates.py`). A group of n ranks at a stride s lies
within a server if s n <= its devices. Otherwise k = devices / s of its ranks share a server, and the ring crosses the
server's network with its part of the bandwidth, k / devices. A ring moves 2 (n - 1) / n of the bytes (Thakur, Rabenseifner
and Gropp 2005, doi:10.1177/1094342005051521).
Worked example, servers of 8, mp = 4, dp = 16: a dp group has the stride 4, so k = 2 ranks share a server and 1/4 of its network.
"""

from __future__ import annotations

import math

from launcher.core.records import Layout
from launcher.plan.device_profile import Numbers


def all_reduce_s(ranks: int, size_bytes: float, *, stride: int, per_server: int, numbers: Numbers) -> float:
    """Return the time of an all-reduce, or of a reduce-scatter and an all-gather, of `size_bytes` on each rank."""
    if ranks == 1:
        return 0.0
    moved = 2 * (ranks - 1) / ranks * size_bytes
    if stride * ranks <= per_server:
        return numbers.link_latency_s * math.log2(ranks) + moved / numbers.link_bytes_per_s
    inside = max(1, per_server // stride)
    rate = min(numbers.link_bytes_per_s, numbers.network_bytes_per_s * inside / per_server)
    latency = numbers.link_latency_s * math.log2(inside) + numbers.network_latency_s * math.log2(ranks / inside)
    return latency + moved / rate


def message_s(size_bytes: float, layout: Layout, *, per_server: int, numbers: Numbers) -> float:
    """Return the time of a message from a pipeline stage to the next."""
    within = layout.world_size <= per_server
    # A message uses one of a server's links, an all-reduce all of them. Servers have 4 to 12 links per device.
    rate = max(numbers.link_bytes_per_s / 8, numbers.message_bytes_per_s) if within else numbers.message_bytes_per_s
    return numbers.message_latency_s + size_bytes / rate
