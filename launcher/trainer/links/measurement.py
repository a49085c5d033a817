"""`python -m launcher.trainer.links`: measure the connections between ranks, as the ranks of an ordinary run.

All ranks together measure all_reduce in several sizes. One rank per server measures, pair by pair, the latency of a
small message and the bytes per second in each direction. Pairs are scheduled in rounds as in a tournament. A
server has one partner per round, so measurements do not disturb each other. n servers need n - 1 rounds (n if n is
odd). The counters of the network interfaces show which interface carried the data.

The measurement takes about `--seconds`: messages grow only while time allows. Rank 0 writes the result to links.json in
the run directory.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor

from launcher.core import env
from launcher.core.atomic import write_text
from launcher.core.codec import json_text
from launcher.core.errors import UsageError
from launcher.core.frozen import frozen
from launcher.core.machine.interfaces import traffic
from launcher.core.records import Layout
from launcher.trainer.__main__ import exit_code_of
from launcher.trainer.parallel.collectives import all_reduce
from launcher.trainer.parallel.place import choose_device, this_place
from launcher.trainer.parallel.world import World, open_world
from launcher.trainer.training_files import own_run

MIN_BYTES = 16 << 10
GROWTH = 8  # factor from one size to the next
PINGS = 20
REPEATS = 3  # of the largest message
ITEM_BYTES = 4  # of float32, which every backend supports
SECONDS = 30.0
MAX_SECONDS = 300.0  # waiting ranks time out after GROUP_TIMEOUT
MAX_BYTES = 64 << 20
FOR_ALL_REDUCE = 0.25  # fraction of the time; pairs get the rest
CARRIES = 0.5  # fraction of the busiest interface's bytes above which an interface is listed
LONGEST = 64  # bytes for the names of a server's interfaces


@frozen
class AllReduce:
    """The speed of an all_reduce of `bytes` bytes per rank.

    `bus` can be compared across numbers of ranks and with hardware limits.
    Formula: bus = algorithm * 2 (n - 1) / n, algorithm = bytes / seconds; nccl-tests, doc/PERFORMANCE.md.
    """

    bytes: int
    seconds: float
    algorithm_bytes_per_s: float
    bus_bytes_per_s: float


@frozen
class Pair:
    """The latency and speed of the connection between two servers. `bytes_per_s` is the lower of both directions."""

    servers: tuple[int, int]
    latency_s: float  # half of the median round-trip time
    forth_bytes_per_s: float
    back_bytes_per_s: float
    bytes_per_s: float


def rounds(count: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yield the pairs of each round of a round-robin tournament. Each player is in at most one pair per round.

    Uses the circle method.

    >>> list(rounds(4))
    [((0, 3), (1, 2)), ((0, 2), (1, 3)), ((0, 1), (2, 3))]
    """
    players = [*range(count), *([-1] if count % 2 else [])]  # the partner of -1 rests
    for _ in range(len(players) - 1):
        met = zip(players[: len(players) // 2], reversed(players[len(players) // 2 :]), strict=True)
        yield tuple(sorted((min(pair), max(pair)) for pair in met if min(pair) >= 0))
        players = [players[0], players[-1], *players[1:-1]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one rank of the measurement. Return 0, or the exit code of the TlaunchError that ended it."""
    parser = argparse.ArgumentParser(prog="python -m launcher.trainer.links", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="approximate duration (default: %(default)g)")
    parser.add_argument("--largest", type=int, default=MAX_BYTES, metavar="BYTES", help="size of the largest message")
    parser.add_argument("--device", choices=("auto", "cpu"), default="auto")
    parser.add_argument("--output", type=Path, help="result file (default: links.json in the run directory)")
    return exit_code_of(partial(_measure, parser.parse_args(arguments)))


def _measure(options: argparse.Namespace) -> None:
    if not 0 < options.seconds <= MAX_SECONDS:
        raise UsageError(f"--seconds must be above 0 and at most {MAX_SECONDS:g}, but is {options.seconds:g}")
    place = this_place(micro_batches=1)
    place = replace(place, layout=Layout(dp=place.world_size))  # all ranks in one group
    run = own_run()
    path = options.output or (run.links if run else None)
    if path is None:
        raise UsageError(f"{env.TLAUNCH_RUN_DIR} is not set", hint="set the path of the result file with `--output`")
    with open_world(place, choose_device(place, options.device, os.environ)) as world:
        measured = measure(world, options.seconds, options.largest)
        if world.is_first:
            write_text(path, json_text(measured))
            print(f"links: measured on {measured['world_size']} ranks; results are in {path}", flush=True)


def measure(world: World, seconds: float, largest_bytes: int) -> dict[str, object]:
    """Measure all links and return the content of links.json, complete on rank 0 only. All ranks must call it."""
    if world.place.world_size == 1:
        return {"world_size": 1, "server_count": 1, "all_reduce": [], "pairs": []}
    leaders, before = _leaders(world), traffic()
    reduced = [asdict(one) for one in _all_reduces(world, seconds * FOR_ALL_REDUCE, largest_bytes)]
    pairs = _pairs(world, leaders, seconds * (1 - FOR_ALL_REDUCE), largest_bytes)
    own = carriers(before, traffic(), at_least=max((one["bytes"] for one in reduced), default=0))
    return {
        "world_size": world.place.world_size,
        "server_count": len(leaders),
        "backend": dist.get_backend(),
        "device": world.device.type,
        "all_reduce": reduced,
        "pairs": [asdict(pair) for pair in pairs],
        "interfaces": _gathered(world, leaders, own),
    }


def carriers(before: Mapping[str, int], after: Mapping[str, int], at_least: int) -> tuple[str, ...]:
    """Compare byte counters before and after a transfer. Return the interfaces that carried it, busiest first.

    Bridges, bonds and virtual networks also count the traffic of the underlying card. The result is empty if no
    interface carried `at_least` bytes: then data went through RDMA or shared memory.
    """
    carried = {name: count - before.get(name, 0) for name, count in after.items()}
    most = max(carried.values(), default=0)
    found = [name for name, count in carried.items() if count and count >= max(at_least, CARRIES * most)]
    return tuple(sorted(found, key=lambda name: -carried[name]))


def _gathered(world: World, leaders: list[int], own: Sequence[str]) -> list[str]:
    """Return the interface names of each server, as comma-separated strings in the order of the servers."""
    letters = torch.zeros(len(leaders), LONGEST, device=world.device)
    if world.place.global_rank in leaders:
        for at, byte in enumerate(os.fsencode(",".join(own))[:LONGEST]):
            letters[leaders.index(world.place.global_rank), at] = byte
    rows = all_reduce(letters, world.dp).tolist()
    return [os.fsdecode(bytes(int(letter) for letter in row).rstrip(b"\0")) for row in rows]


def _leaders(world: World) -> list[int]:
    """Return the first rank of each server. Without GROUP_RANK, assume that the ranks of a server are consecutive."""
    place = world.place
    written = os.environ.get(env.GROUP_RANK, "")
    server = int(written) if written.isdecimal() else place.global_rank // place.local_world_size
    servers = torch.full((place.world_size,), -1.0, device=world.device)
    servers[place.global_rank] = server
    known = [int(one) for one in all_reduce(servers, world.dp, "max").tolist()]
    return [known.index(one) for one in sorted(set(known))]


def _all_reduces(world: World, seconds: float, largest_bytes: int) -> Iterator[AllReduce]:
    """Yield the speed of all_reduce for growing sizes until time runs out. The slowest rank's time counts."""
    count, left_s, size = world.place.world_size, seconds, MIN_BYTES
    while size <= largest_bytes and left_s > 0:
        content = torch.zeros(size // ITEM_BYTES, device=world.device)
        first_s = _slowest(world, content)  # sets up connections
        repeats = max(1, min(PINGS, int(left_s / 4 / max(first_s, 1e-6))))
        each_s = [_slowest(world, content) for _ in range(repeats)]
        taken_s = median(each_s)
        rate = size / taken_s
        yield AllReduce(size, taken_s, rate, rate * 2 * (count - 1) / count)
        left_s -= first_s + sum(each_s)
        if taken_s * GROWTH > left_s:
            return
        size *= GROWTH


def _slowest(world: World, content: Tensor) -> float:
    own_s = _timed(world, partial(all_reduce, content, world.dp))
    return float(all_reduce(torch.full((1,), own_s, device=world.device), world.dp, "max"))


def _pairs(world: World, leaders: list[int], seconds: float, largest_bytes: int) -> list[Pair]:
    """Measure each pair of servers by their leaders (first ranks), and return the results on every rank."""
    count = len(leaders)
    found = torch.zeros(count, count, 3, device=world.device)
    schedule = list(rounds(count))
    if world.place.global_rank in leaders:
        own = leaders.index(world.place.global_rank)
        for pair in (pair for each in schedule for pair in each if own in pair):
            values = _meet(world, leaders, pair, own, seconds / len(schedule), largest_bytes)
            if own == pair[0]:
                found[pair] = torch.tensor(values, device=world.device)
    whole = all_reduce(found, world.dp).tolist()
    return [
        Pair((first, second), latency_s, forth, back, min(forth, back))
        for first in range(count)
        for second in range(first + 1, count)
        for latency_s, forth, back in (whole[first][second],)
    ]


def _meet(
    world: World, leaders: list[int], pair: tuple[int, int], own: int, seconds: float, largest_bytes: int
) -> tuple[float, float, float]:
    """Measure a pair of servers. Return the latency and both speeds, which are valid only on the first server."""
    is_first = own == pair[0]
    peer = leaders[pair[1] if is_first else pair[0]]
    token = torch.zeros(1, device=world.device)
    taken_s = [_timed(world, partial(_exchange, token, token, peer, speaks=is_first)) for _ in range(PINGS)]
    latency_s = median(taken_s[PINGS // 4 :]) / 2  # the first messages set up connections
    forth = _stream(world, peer, seconds / 2, largest_bytes, speaks=is_first)
    back = _stream(world, peer, seconds / 2, largest_bytes, speaks=not is_first)
    # Only the sender has measured the rate.
    other = torch.full((1,), back, device=world.device)
    _one_way(other, peer, speaks=not is_first)
    return latency_s, forth, float(other)


def _stream(world: World, peer: int, seconds: float, largest_bytes: int, *, speaks: bool) -> float:
    """Send messages of growing size for about `seconds` seconds. Return the bytes per second at the largest size.

    The receiver returns 0. Each message is preceded by its size, and 0 ends the stream. The receiver acknowledges each
    message, so that the time includes its arrival.
    """
    if not speaks:
        _listen(world, peer)
        return 0.0
    size, left_s = MIN_BYTES, seconds
    rates: list[float] = []
    while size:
        taken_s = _say(world, peer, size)
        left_s -= taken_s
        if size * GROWTH <= largest_bytes and taken_s * GROWTH < left_s:
            size *= GROWTH
            continue
        rates.append(size / taken_s)
        if len(rates) == REPEATS or taken_s > left_s:
            size = 0
    _one_way(torch.zeros(1, device=world.device), peer, speaks=True)
    return max(rates)


def _say(world: World, peer: int, size: int) -> float:
    """Send one message and return the seconds until the peer acknowledges it."""
    _one_way(torch.full((1,), float(size), device=world.device), peer, speaks=True)
    content = torch.ones(size // ITEM_BYTES, device=world.device)
    answer = torch.zeros(1, device=world.device)
    _one_way(answer, peer, speaks=False)  # the peer has allocated memory
    return _timed(world, partial(_exchange, content, answer, peer, speaks=True))


def _listen(world: World, peer: int) -> None:
    """Receive and acknowledge messages until the sender announces a size of 0."""
    announced, answer = torch.zeros(1, device=world.device), torch.zeros(1, device=world.device)
    while True:
        _one_way(announced, peer, speaks=False)
        if not announced:
            return
        # Ones, since pages of zeros would only be allocated on first use.
        room = torch.ones(int(announced) // ITEM_BYTES, device=world.device)
        _one_way(answer, peer, speaks=True)
        _exchange(room, answer, peer, speaks=False)


def _exchange(there: Tensor, back: Tensor, peer: int, *, speaks: bool) -> None:
    _one_way(there, peer, speaks=speaks)
    _one_way(back, peer, speaks=not speaks)


def _one_way(tensor: Tensor, peer: int, *, speaks: bool) -> None:
    if speaks:
        dist.send(tensor, peer)
    else:
        dist.recv(tensor, peer)


def _timed(world: World, work: Callable[[], object]) -> float:
    """Return the seconds that `work` takes, including pending operations of an accelerator."""
    _settle(world)
    started_s = time.perf_counter()
    work()
    _settle(world)
    return time.perf_counter() - started_s


def _settle(world: World) -> None:
    if world.device.type != "cpu":
        torch.accelerator.synchronize()
