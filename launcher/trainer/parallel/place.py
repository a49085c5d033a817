"""Reads the rank, the layout and the device of this process from its environment."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

from launcher.core import env
from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.core.frozen import frozen
from launcher.core.records import Layout
from launcher.mesh.coordinates import Coordinate, coordinate_of
from launcher.trainer.parallel.rendezvous import engine_variables


@frozen
class Place:
    """The position of this process in the job: its ranks, the numbers of ranks, its device and the layout."""

    global_rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    device_id: int | None
    layout: Layout

    @property
    def coordinate(self) -> Coordinate:
        return coordinate_of(self.global_rank, self.layout)


def place_from_environment(environment: Mapping[str, str], *, micro_batches: int) -> Place:
    """Read torchrun's variables and tlaunch's layout from `environment`. Without them, assume a single process.

    The default layout is data parallelism over all ranks.

    Raises:
        UsageError: a variable is missing, not an integer, or out of range.
        RefusedLayoutError: dp * mp * pp differs from the number of ranks.
    """

    def integer(name: str, default: int, minimum: int = 1) -> int:
        text = environment.get(name, "")
        value = int(text) if text.isdecimal() else minimum - 1 if text else default
        if value < minimum:
            raise UsageError(f"environment variable {name} is {text!r}; expected an integer of at least {minimum}")
        return value

    world_size = integer(env.WORLD_SIZE, 1)
    missing = [name for name in (env.RANK, env.MASTER_ADDR, env.MASTER_PORT) if not environment.get(name)]
    if world_size > 1 and missing:
        raise UsageError(f"{env.WORLD_SIZE} is {world_size}, but {', '.join(missing)} is not set")
    global_rank = integer(env.RANK, 0, minimum=0)
    if global_rank >= world_size:
        raise UsageError(f"{env.RANK} is {global_rank}, but {env.WORLD_SIZE} is {world_size}")
    mp, pp = integer(env.TLAUNCH_MP, 1), integer(env.TLAUNCH_PP, 1)
    layout = Layout(
        dp=integer(env.TLAUNCH_DP, max(1, world_size // (mp * pp))),
        mp=mp,
        pp=pp,
        micro_batches=integer(env.TLAUNCH_MICRO_BATCHES, micro_batches),
    )
    if layout.world_size != world_size:
        raise RefusedLayoutError(f"{layout} needs {layout.world_size} ranks, but {env.WORLD_SIZE} is {world_size}")
    return Place(
        global_rank=global_rank,
        world_size=world_size,
        local_rank=integer(env.LOCAL_RANK, 0, minimum=0),
        local_world_size=integer(env.LOCAL_WORLD_SIZE, world_size),
        device_id=integer(env.DEVICE_ID, 0, minimum=0) if environment.get(env.DEVICE_ID) else None,
        layout=layout,
    )


# If one of these is set, a program numbers its visible devices from 0, in the order of the list.
VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


def choose_device(place: Place, wanted: str, environment: Mapping[str, str]) -> torch.device:
    """Return the accelerator of this rank. Return the CPU if `wanted` is "cpu" or if there are too few accelerators.

    DEVICE_ID is a physical index, so it is used if all devices are visible. If a variable of VISIBLE_DEVICES is set,
    local rank i uses the i-th visible device. All ranks of a server make the same choice.

    Raises:
        UsageError: DEVICE_ID is out of range.
    """
    if wanted == "cpu" or not torch.accelerator.is_available():
        return torch.device("cpu")
    visible = torch.accelerator.device_count()
    if visible < place.local_world_size:
        return torch.device("cpu")
    narrowed = any(environment.get(name) for name in VISIBLE_DEVICES)
    index = place.local_rank if place.device_id is None or narrowed else place.device_id
    if index >= visible:
        raise UsageError(
            f"{env.DEVICE_ID} is {index}, but only {visible} devices are visible, numbered from 0",
            hint=f"set one of these variables to the device IDs in the rank table: {', '.join(VISIBLE_DEVICES)}",
        )
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None, "an accelerator is available"
    torch.accelerator.set_device_index(index)
    return torch.device(accelerator.type, index)


def this_place(*, micro_batches: int) -> Place:
    """Read the ranks and the layout of this process from its environment.

    If mpirun or srun started it without tlaunch, this first blocks until all ranks have agreed on an address.

    Raises:
        UsageError, RefusedLayoutError: see `place_from_environment`; or the ranks cannot find each other.
    """
    os.environ.update(engine_variables(os.environ))  # torch reads the address and the port from os.environ
    return place_from_environment(os.environ, micro_batches=micro_batches)
