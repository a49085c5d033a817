"""A program of mpi4py: start it with `mpirun -n 4 tlaunch exec --devices 4 -- python examples/mpi_sum.py`.

It needs mpi4py (`pip install '.[mpi]'`). Open MPI wants `--allow-run-as-root` for root, and `--oversubscribe` on fewer
than four cores. What the ranks print is in their logs: `tlaunch logs` shows it.

Over servers of a rank table tlaunch starts mpirun itself, supervises the ranks and numbers COMM_WORLD as the table does:
`tlaunch run --engine mpi --rank-table rank_table_16pcs.json -- python examples/mpi_sum.py`.
"""

from mpi4py import MPI

world = MPI.COMM_WORLD
total = world.allreduce(world.rank + 1)
print(f"rank {world.rank} of {world.size}: the sum of 1..{world.size} is {total}")
assert total == world.size * (world.size + 1) // 2
