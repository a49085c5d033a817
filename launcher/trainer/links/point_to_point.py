"""Measure the speed between two ranks: round trips of small messages, then larger messages in one direction.

Both ranks call the same functions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor

from launcher.trainer.parallel.world import World

MIN_BYTES = 16 << 10
GROWTH = 8  # factor from one size to the next
PINGS = 20
REPEATS = 3  # of the largest message
ITEM_BYTES = 4  # of float32, which every backend supports


def ping(world: World, peer: int, *, speaks: bool) -> float:
    """Return half of the median round-trip time. The first messages, which set up connections, are ignored."""
    token = torch.zeros(1, device=world.device)
    taken_s = [timed(world, partial(_exchange, token, token, peer, speaks=speaks)) for _ in range(PINGS)]
    return median(taken_s[PINGS // 4 :]) / 2


def stream(world: World, peer: int, seconds: float, largest_bytes: int, *, speaks: bool) -> float:
    """Send messages of growing size within the time, and return the bytes per second of the largest.

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
    one_way(torch.zeros(1, device=world.device), peer, speaks=True)
    return max(rates)


def _say(world: World, peer: int, size: int) -> float:
    """Send one message and return the seconds until its acknowledgement."""
    one_way(torch.full((1,), float(size), device=world.device), peer, speaks=True)
    content = torch.ones(size // ITEM_BYTES, device=world.device)
    answer = torch.zeros(1, device=world.device)
    one_way(answer, peer, speaks=False)  # the peer has allocated memory
    return timed(world, partial(_exchange, content, answer, peer, speaks=True))


def _listen(world: World, peer: int) -> None:
    """Receive messages until a size of 0 is announced."""
    announced, answer = torch.zeros(1, device=world.device), torch.zeros(1, device=world.device)
    while True:
        one_way(announced, peer, speaks=False)
        if not announced:
            return
        # Ones, since pages of zeros would only be allocated on first use.
        room = torch.ones(int(announced) // ITEM_BYTES, device=world.device)
        one_way(answer, peer, speaks=True)
        _exchange(room, answer, peer, speaks=False)


def _exchange(there: Tensor, back: Tensor, peer: int, *, speaks: bool) -> None:
    one_way(there, peer, speaks=speaks)
    one_way(back, peer, speaks=not speaks)


def one_way(tensor: Tensor, peer: int, *, speaks: bool) -> None:
    if speaks:
        dist.send(tensor, peer)
    else:
        dist.recv(tensor, peer)


def timed(world: World, work: Callable[[], object]) -> float:
    """Return the seconds that `work` takes, including pending operations of an accelerator."""
    _settle(world)
    started_s = time.perf_counter()
    work()
    _settle(world)
    return time.perf_counter() - started_s


def _settle(world: World) -> None:
    if world.device.type != "cpu":
        torch.accelerator.synchronize()
