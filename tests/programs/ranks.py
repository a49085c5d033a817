"""Fork the ranks of a layout from a process that imported the trainer once and runs no tensor operation itself."""

import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
import torch.fx.experimental.symbolic_shapes  # else each rank imports it in its first backward pass

from launcher.core import env
from launcher.supervise.port import hold_port
from launcher.trainer.parallel.place import this_place
from launcher.trainer.parallel.world import World, open_world

TIMEOUT_S = 240


def own_world(*transport: str) -> AbstractContextManager[World]:
    """Open the world of this rank, on the CPU."""
    return open_world(this_place(micro_batches=1), torch.device("cpu"), *transport)


def fork_ranks(
    name: str, work: Callable[[], None], *, dp: int = 1, mp: int = 1, pp: int = 1, micro_batches: int = 1
) -> None:
    """Run `work` in every rank and wait for all; the first that fails ends the others and this process."""
    held = hold_port()  # until the end: others on this machine are given free ports all the time
    shared = {
        env.WORLD_SIZE: dp * mp * pp,
        env.MASTER_ADDR: "127.0.0.1",
        env.MASTER_PORT: held.number,
        env.TLAUNCH_DP: dp,
        env.TLAUNCH_MP: mp,
        env.TLAUNCH_PP: pp,
        env.TLAUNCH_MICRO_BATCHES: micro_batches,
    }
    gc.freeze()  # looking for garbage would copy all that ranks share with this process
    children = {_fork(work, {**shared, env.RANK: rank}): rank for rank in range(dp * mp * pp)}
    while children:
        child, status = os.wait()
        rank = children.pop(child)
        if status != 0:
            for other in children:
                os.kill(other, signal.SIGKILL)
            sys.exit(f"{name}: rank {rank} ended with {os.waitstatus_to_exitcode(status)}")


def _fork(work: Callable[[], None], variables: dict[str, object]) -> int:
    child = os.fork()
    if child == 0:
        os.environ.update({name: str(value) for name, value in variables.items()})
        signal.alarm(TIMEOUT_S)
        torch.set_num_threads(1)  # several wait for each other busily: ten times slower where other work has the cores
        try:
            work()
        except BaseException:  # noqa: BLE001 - a child must never return into its parent's code
            traceback.print_exc()
            os._exit(1)
        sys.stdout.flush()
        os._exit(0)
    return child
