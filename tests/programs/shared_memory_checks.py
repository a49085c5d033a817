"""Hold collectives through shared memory against what they must give. Prints "ok CHECK" for each one that holds.

    shared_memory_checks.py CHECK...

Each check runs in ranks of its own, forked from this process, which runs no tensor operation itself.
"""

import ctypes
import os
import random
import resource
import sys
import time
from contextlib import contextmanager, redirect_stdout
from datetime import timedelta
from functools import cache, partial, reduce
from io import StringIO
from itertools import product
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.tensor  # else each rank imports it in its first assert_close
from ranks import fork_ranks, own_world

from launcher.core.errors import UsageError
from launcher.trainer.parallel import collectives
from launcher.trainer.parallel.one_host import NotSharedError, share_memory
from launcher.trainer.parallel.place import this_place
from launcher.trainer.parallel.shared_memory import SLOT_BYTES, WHOLE_BYTES
from launcher.trainer.parallel.world import open_world

PATIENCE = timedelta(seconds=90)
CPU = torch.device("cpu")
COMBINE = {"sum": torch.add, "max": torch.maximum}
MANY = 300  # rounds, in which a slot that is filled too early would be noticed
DRAWN = 99_991  # numbers of a rank, which repeat; a prime, so that no slot and no part has them as another one has


def opened():
    """The world of a check whose ranks are all copies of each other, and its only group."""
    return own_world("shared_memory")


@cache
def drawn(rank, times):
    """Numbers of one sign, so that nothing cancels out: drawing all that is brought would take most of the time."""
    numbers = torch.Generator().manual_seed(rank)
    return ((torch.rand(DRAWN, generator=numbers, dtype=torch.float64) + 0.5) * 1000).repeat(times)


def content(rank, count, dtype, seed=0):
    """What `rank` brings: every rank knows it of all."""
    first = 7919 * seed % DRAWN  # another one for each of so many seeds
    return drawn(rank, 1 + (first + count) // DRAWN)[first : first + count].to(dtype)


def in_order(parts, operation):
    """The ranks' parts, combined in the order of the ranks."""
    return reduce(COMBINE[operation], parts)


def check_all_reduce(world, parts, operation):
    count, dtype = len(parts[0]), parts[0].dtype
    ours, backends = parts[world.dp.index].clone(), parts[world.dp.index].clone()
    collectives.all_reduce(ours, world.dp, operation)
    assert torch.equal(ours, in_order(parts, operation)), (count, dtype, operation)
    dist.all_reduce(backends, op=getattr(dist.ReduceOp, operation.upper()))
    if world.dp.size == 2 or operation == "max" or not dtype.is_floating_point:
        assert torch.equal(ours, backends), (count, dtype, operation)
    elif dtype == torch.float64:
        torch.testing.assert_close(ours, backends, rtol=1e-15, atol=0)


def equal():
    """all_reduce of every size and type gives the sum in the order of the ranks, and gloo's wherever that has one."""
    with opened() as world:
        whole = WHOLE_BYTES // 8 // world.dp.size
        counts = (0, 1, 3, 1001, whole, whole + 1, 2 * SLOT_BYTES // 8 + 7)
        for count, dtype in product(counts, (torch.float32, torch.float64, torch.bfloat16, torch.int64)):
            parts = [content(rank, count, dtype) for rank in world.dp.ranks]
            for operation in COMBINE:
                check_all_reduce(world, parts, operation)
        strided = torch.ones(4, 6).t()
        try:
            collectives.all_reduce(strided, world.dp)
        except RuntimeError as error:
            assert "view" in str(error)  # noqa: PT017 - no pytest here
        else:
            raise AssertionError("a tensor that is not contiguous was taken")


def slices():
    """reduce_scatter gives each rank its slice of that sum, all_gather puts the slices together, all_to_all exchanges parts."""
    with opened() as world:
        size, index = world.dp.size, world.dp.index
        for count, dtype in product((1, 1001, SLOT_BYTES // 8 + 3), (torch.float64, torch.bfloat16)):
            shared_RM = collectives.shared_tensor(size, count * size, dtype, world.dp)
            assert not shared_RM[index].any()
            for seed in range(3):
                parts = [content(rank, count * size, dtype, seed) for rank in world.dp.ranks]
                shared_RM[index] = parts[index]
                own = torch.empty(count, dtype=dtype)
                collectives.reduce_scatter_shared(own, shared_RM, slice(index * count, (index + 1) * count), world.dp)
                collectives.barrier(world.dp)
                whole = in_order(parts, "sum")
                assert torch.equal(own, whole.view(size, count)[index]), (count, dtype)
                gathered = torch.empty(count * size, dtype=dtype)
                collectives.all_gather(gathered, own, world.dp)
                assert torch.equal(gathered, whole), (count, dtype)
                exchanged = torch.empty(count * size, dtype=dtype)
                collectives.all_to_all(exchanged, parts[index], world.dp)
                assert torch.equal(exchanged, torch.cat([part.view(size, count)[index] for part in parts])), count


def ragged():
    """Rounds of any size follow each other while ranks are late by turns."""
    same, own = random.Random(1), random.Random(os.getpid())
    with opened() as world:
        for seed in range(MANY):
            count, kind = same.choice((1, 100, 20_000, 90_000)), same.choice(("all_reduce", "all_gather"))
            parts = [content(rank, count, torch.float64, seed) for rank in world.dp.ranks]
            if own.random() < 0.1:
                time.sleep(own.random() * 0.005)
            if kind == "all_reduce":
                ours = collectives.all_reduce(parts[world.dp.index].clone(), world.dp)
                expected = in_order(parts, "sum")
            else:
                ours, expected = torch.empty(count * world.dp.size, dtype=torch.float64), torch.cat(parts)
                collectives.all_gather(ours, parts[world.dp.index], world.dp)
            assert torch.equal(ours, expected), (seed, count, kind)


@contextmanager
def short_of(kind, limit):
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def descriptors():
    return sorted(Path("/proc/self/fd").iterdir())


def mapped():
    return Path("/proc/self/maps").read_text(encoding="utf-8")


def shared():
    return [line for line in mapped().splitlines() if "/memfd:tlaunch" in line]


def refused():
    """What one rank lacks is told on all of them alike; nothing is left of the attempt, nor of one that succeeds."""
    with own_world() as world:
        arguments = (world.dp.ranks, world.dp.index, world.dp.handle, PATIENCE)
        dist.barrier()
        before = descriptors()
        lacks = {
            "rank 0 cannot share 6 MiB: File too large": (0, resource.RLIMIT_FSIZE, 1 << 20),
            "rank 2 cannot listen at a UNIX socket: Too many open files": (2, resource.RLIMIT_NOFILE, 0),
        }
        for expected, (rank, kind, limit) in lacks.items():
            with short_of(kind, limit if rank == world.dp.index else resource.getrlimit(kind)[0]):
                try:
                    share_memory(*arguments)
                except NotSharedError as error:
                    assert str(error) == expected, error  # noqa: PT017
                else:
                    raise AssertionError(expected)
            dist.barrier()  # the backend works on
            assert descriptors() == before
        for _ in range(3):
            memory = share_memory(*arguments)
            tensor = torch.ones(3)
            memory.all_reduce(tensor, "sum")
            assert tensor.tolist() == [3.0] * 3
            assert "/memfd:tlaunch (deleted)" in mapped()
            assert "/dev/shm" not in mapped()
            dist.barrier()
            memory.close()
            del memory
        assert descriptors() == before
        assert "/memfd:tlaunch" not in mapped()


def none_left():
    """Where the last rank gets no memory for a tensor, none gets any; nothing is left of the attempt, and others succeed."""
    with opened() as world:
        before = shared()
        with short_of(resource.RLIMIT_FSIZE, 8 << 20 if world.dp.index == 2 else resource.RLIM_INFINITY):
            assert collectives.shared_tensor(3, 1 << 20, torch.float32, world.dp) is None
        assert shared() == before
        for value in range(2):
            shared_1N = collectives.shared_tensor(1, 1000, torch.float32, world.dp)
            if world.dp.index == value:
                shared_1N.fill_(value)
            collectives.barrier(world.dp)
            assert shared_1N.eq(value).all()
        assert collectives.shared_tensor(1, 1000, torch.float32, collectives.ALONE) is None


def apart():
    """Ranks that do not see each other's sockets share nothing, whatever their hosts are called."""
    with own_world() as world:
        dist.barrier()
        left = torch.tensor(int(world.dp.index != 1 or leave_the_network()))
        dist.all_reduce(left, op=dist.ReduceOp.MIN)
        if not left:
            print("not tried apart 2", flush=True)
            return
        try:
            share_memory(world.dp.ranks, world.dp.index, world.dp.handle, PATIENCE)
        except NotSharedError as error:
            expected = "rank 1 cannot connect to the lower ranks by a UNIX socket: Connection refused"
            assert str(error) == expected, error  # noqa: PT017
        else:
            raise AssertionError("memory shared across namespaces")


def leave_the_network():
    """Go to a network namespace of its own, in which open connections stay open; False without the right to do so."""
    clone_newnet = 0x40000000  # os.unshare comes with Python 3.12
    return ctypes.CDLL(None).unshare(clone_newnet) == 0


REFUSED = "ranks 0, 1 cannot share memory: rank 0 cannot share 4 MiB: File too large"


def falls_back():
    """`auto` goes on without shared memory, and says why in one line."""
    place = this_place(micro_batches=1)
    said = StringIO()
    with short_of(resource.RLIMIT_FSIZE, 1 << 20), redirect_stdout(said), open_world(place, CPU, "auto") as world:
        assert world.dp.shared_memory is None
        assert collectives.all_reduce(torch.ones(2), world.dp).tolist() == [2.0, 2.0]
        assert collectives.shared_tensor(1, 1, torch.float32, world.dp) is None
    assert said.getvalue().splitlines() == ([] if place.global_rank else [f"{REFUSED}; using gloo"]), said.getvalue()


def demanded():
    """Where shared memory is demanded and cannot be had, all ranks end alike."""
    with short_of(resource.RLIMIT_FSIZE, 1 << 20):
        try:
            with opened():
                raise AssertionError("opened without memory")
        except UsageError as error:
            assert error.message == f"parallel.transport is shared_memory, but {REFUSED}"  # noqa: PT017


CHECKS = {
    **{f"{check.__name__} {size}": partial(check) for check, size in product((equal, slices), (2, 3, 8))},
    "ragged 3": ragged, "ragged 8": ragged, "refused 3": refused, "none_left 3": none_left, "apart 2": apart, "falls_back 2": falls_back, "demanded 2": demanded,
}  # fmt: skip


def main(names):
    for name in names:
        if os.fork() == 0:
            fork_ranks(name, CHECKS[name], dp=int(name.split()[1]))
            os._exit(0)
        if os.wait()[1] == 0:
            print(f"ok {name}", flush=True)


main(sys.argv[1:])
