"""A rank of an MPI program: says what MPI knows of it, and in the first attempt rank 1 ends as asked.

Others wait for rank 1 in MPI where it raises, and else for SIGTERM. With `well` and in later attempts all end well.
"""

import os
import signal
import sys

from mpi4py import MPI

how = sys.argv[1]
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
world = MPI.COMM_WORLD
print(world.rank, world.size, os.environ["RANK"], world.allreduce(world.rank), flush=True)
world.Barrier()
if how != "well" and os.environ["TLAUNCH_ATTEMPT"] == "0":
    if how != "raise":  # whoever leaves a barrier first must not leave others in it
        world.gather(None, 1)
    if world.rank == 1:
        if how == "raise":
            raise ValueError("no such word")
        os._exit(3) if how == "exit" else os.kill(os.getpid(), signal.SIGKILL)
    if how == "raise":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        world.Barrier()
    signal.sigwait([signal.SIGTERM])
    print("had its grace", flush=True)
