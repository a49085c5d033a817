"""A rank that says what MPI knows of it, and ends without MPI_Finalize."""

import os
import time

import mpi4py

mpi4py.rc.finalize = False
from mpi4py import MPI  # noqa: E402 - after the setting that it reads

world = MPI.COMM_WORLD
on_server = world.Split_type(MPI.COMM_TYPE_SHARED).size
print(world.rank, world.size, world.allreduce(world.rank), on_server, flush=True)
world.Barrier()
time.sleep(0.5)  # Open MPI's mpirun may hang where ranks end at once
os._exit(0)
