"""What MPI says of this rank, and what the environment says."""

import os
import time

from mpi4py import MPI

world = MPI.COMM_WORLD
print(world.rank, world.size, os.environ["RANK"], os.environ["WORLD_SIZE"], world.allreduce(world.rank), flush=True)
time.sleep(0.5)
