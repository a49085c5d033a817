"""Judge the measured connections: the content of links.json, written by launcher/trainer/links/.

The usual rate is the median over servers of each server's best rate with any other server. A median over pairs would be
wrong for three servers: a slow one affects two of three pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from launcher.core.frozen import frozen
from launcher.core.records import Cluster
from launcher.core.text import some_of
from launcher.doctor.finding import MAX_SHOWN, Finding, Severity, Topic

SLOW_SHARE = 0.4  # of the usual rate; links of one kind differ by less
UNEVEN_SHARE = 0.2  # of the rate in the other direction, if there is only one pair
UNEVEN_BYTES_PER_S = 25e6  # 200 Mbit/s; above it, busy processors may cause large differences
LATE_TIMES = 10.0  # times the usual latency
LATE_S = 3e-3  # busy processors may cause smaller latencies on any network
MAX_PAIRS = 4


@frozen
class AllReduced:
    """The measured performance of an all-reduce over all ranks."""

    bytes: int
    seconds: float
    algorithm_bytes_per_s: float
    bus_bytes_per_s: float


@frozen
class Link:
    """The measured connection between two servers. `bytes_per_s` is the lower rate of the two directions."""

    servers: tuple[int, ...]
    latency_s: float
    forth_bytes_per_s: float
    back_bytes_per_s: float
    bytes_per_s: float


@frozen
class Links:
    """The measurements of all connections between servers in a run."""

    world_size: int
    server_count: int
    backend: str = ""
    device: str = ""
    all_reduce: tuple[AllReduced, ...] = ()
    pairs: tuple[Link, ...] = ()
    interfaces: tuple[str, ...] = ()  # for each server, the interfaces that carried data, separated by commas


def judge_links(links: Links, cluster: Cluster) -> tuple[Finding, ...]:
    """Return findings about slow connections. If there is only one pair of servers, compare its two directions."""
    names = [server.server_id for server in cluster.servers]
    if len(links.pairs) == 1:
        return (_only_pair(links.pairs[0], names, _by(links.interfaces)),)
    if not links.pairs:
        return ()
    rate = usual({link.servers: link.bytes_per_s for link in links.pairs})
    latency_s = usual({link.servers: link.latency_s for link in links.pairs}, best=min)
    slow = [link for link in links.pairs if link.bytes_per_s < SLOW_SHARE * rate]
    slow.sort(key=lambda one: one.bytes_per_s)
    late = [link for link in links.pairs if link.latency_s > max(LATE_TIMES * latency_s, LATE_S)]
    late.sort(key=lambda one: -one.latency_s)
    slowness = f"the usual rate is {_rate(rate)}"
    lateness = f"the usual latency is {_latency(latency_s)}"
    return (
        *_outliers("slow-link", links.pairs, slow, names, said=lambda link: _slower_way(link, names), usually=slowness),
        *_outliers("late-link", links.pairs, late, names, said=lambda link: _latency(link.latency_s), usually=lateness),
    )


def best_of(first: Links, second: Links) -> Links:
    """Combine two measurements. For each pair, take the better value, because a machine may have been busy."""
    again = {link.servers: link for link in second.pairs}
    pairs = []
    for one in first.pairs:
        other = again.get(one.servers, one)
        forth = max(one.forth_bytes_per_s, other.forth_bytes_per_s)
        back = max(one.back_bytes_per_s, other.back_bytes_per_s)
        pairs.append(Link(one.servers, min(one.latency_s, other.latency_s), forth, back, min(forth, back)))
    return replace(first, pairs=tuple(pairs))


def described(links: Links) -> str | None:
    """Return the usual rate and latency, such as "10 Gbit/s and 0.05 ms", or None if no pair was measured."""
    if not links.pairs:
        return None
    rate = usual({link.servers: link.bytes_per_s for link in links.pairs})
    return f"{_rate(rate)}{_by(links.interfaces)} and {_latency(usual({link.servers: link.latency_s for link in links.pairs}, best=min))}"


def usual(values: Mapping[tuple[int, ...], float], *, best: Any = max) -> float:
    """Take the best value among the pairs of each server. Return the median of these values over all servers.

    >>> usual({(0, 1): 10.0, (0, 2): 1.0, (1, 2): 1.0})
    10.0
    """
    servers = {server for pair in values for server in pair}
    return float(median(best(value for pair, value in values.items() if server in pair) for server in servers))


def common_server(pairs: Iterable[tuple[int, ...]], all_pairs: Iterable[tuple[int, ...]]) -> int | None:
    """Return the server that is in all `pairs` but in no other pair, or None. At least two `pairs` are required."""
    chosen = [set(pair) for pair in pairs]
    shared = set.intersection(*chosen) if chosen else set()
    every = [set(pair) for pair in all_pairs]
    fitting = [server for server in sorted(shared) if sum(server in pair for pair in every) == len(chosen)]
    return fitting[0] if len(fitting) == 1 and len(chosen) > 1 else None


def _by(interfaces: Sequence[str]) -> str:
    """Return a phrase that names the interfaces of all servers, or "" if the interface of any server is unknown."""
    return f" by {some_of(list(dict.fromkeys(interfaces)), MAX_SHOWN)}" if interfaces and all(interfaces) else ""


def _only_pair(link: Link, names: list[str], by: str) -> Finding:
    """Return a finding about the only pair of servers, based on the rates in its two directions."""
    if link.bytes_per_s < min(UNEVEN_BYTES_PER_S, UNEVEN_SHARE * max(link.forth_bytes_per_s, link.back_bytes_per_s)):
        return Finding(
            "slow-link", Topic.LINKS, Severity.RISKY, link.servers,
            f"{_between(link, names)} are much slower in one direction{by}: {_slower_way(link, names)}",
            "check the network cards, cables and switch ports of both: `ethtool`, `ip -s link`, `tc qdisc`",
        )  # fmt: skip
    return Finding(
        "links-measured", Topic.LINKS, Severity.NOTE, link.servers,
        f"{_between(link, names)}: {_rate(link.forth_bytes_per_s)} forth, {_rate(link.back_bytes_per_s)} back, "
        f"{_latency(link.latency_s)}{by}; with two servers, there is no other pair to compare",
    )  # fmt: skip


def _outliers(
    code: str,
    pairs: tuple[Link, ...],
    stand_out: list[Link],
    names: list[str],
    *,
    said: Callable[[Link], str],
    usually: str,
) -> Iterator[Finding]:
    """Yield one finding about all pairs in `stand_out`. If `stand_out` is empty, yield nothing."""
    if not stand_out:
        return
    each = some_of([f"{_between(link, names)} {said(link)}" for link in stand_out], MAX_PAIRS)
    word, what = code.removesuffix("-link"), f"{each}; {usually}"
    common = common_server([link.servers for link in stand_out], [link.servers for link in pairs])
    if common is None:
        servers = tuple(sorted({server for link in stand_out for server in link.servers}))
        message = f"{len(stand_out)} of {len(pairs)} pairs of servers are {word}: {what}"
        hint = "check the switches, cables and links that these pairs share"
    else:
        servers, name = (common,), names[common]
        message = f"all connections of server {name} are {word}, but no others: {what}"
        hint = f"check the network card, cable and switch port of {name}: `ethtool`, `ip -s link`, `tc qdisc`"
    yield Finding(code, Topic.LINKS, Severity.RISKY, servers, message, hint)


def _between(link: Link, names: list[str]) -> str:
    return f"{names[link.servers[0]]} and {names[link.servers[1]]}"


def _slower_way(link: Link, names: list[str]) -> str:
    """Return the rate of the slower direction as text. If the other direction is much faster, name the slow sender."""
    forth, back = link.forth_bytes_per_s, link.back_bytes_per_s
    if min(forth, back) > SLOW_SHARE * max(forth, back):
        return _rate(link.bytes_per_s)
    sender = names[link.servers[0 if forth < back else 1]]
    return f"{_rate(link.bytes_per_s)} from {sender} ({_rate(max(forth, back))} in the other direction)"


def _rate(bytes_per_s: float) -> str:
    """Return a rate in bytes per second as text in bits per second.

    >>> _rate(1.25e9), _rate(125_000)
    ('10 Gbit/s', '1 Mbit/s')
    """
    bits = bytes_per_s * 8
    return f"{bits / 1e9:.3g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mbit/s"


def _latency(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
