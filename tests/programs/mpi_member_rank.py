"""A rank that says what MPI knows of it, and ends as asked: `finalize`, `leave`, `fail`, `kill`, or `without` MPI."""

import os
import signal
import sys
import time


def meet():
    """Say what every rank of the world must know; the rank's number."""
    import mpi4py

    mpi4py.rc.finalize = False
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    on_server = world.Split_type(MPI.COMM_TYPE_SHARED).size
    print(world.rank, world.size, world.allreduce(world.rank), on_server, flush=True)
    world.Barrier()
    return world.rank


def finalize():
    from mpi4py import MPI

    MPI.Finalize()


how = sys.argv[1]
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # before MPI starts threads: waited for at the end
if how == "without":
    print("without", flush=True)
    global_rank = 0
else:
    global_rank = meet()
time.sleep(0.5)  # Open MPI's mpirun may hang where ranks end at once
if how == "finalize":
    finalize()
elif how == "leave":
    os._exit(0)
elif how != "without" and global_rank == 1:
    os._exit(3) if how == "fail" else os.kill(os.getpid(), signal.SIGKILL)
elif how != "without":
    signal.sigwait([signal.SIGTERM])
    time.sleep(1)
    print("had its grace", flush=True)
