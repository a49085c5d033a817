"""A rank that joins all others, writes "pid time" to a file, and then waits to be killed."""

import os
import time
from pathlib import Path

import torch
from torch import distributed

distributed.init_process_group("gloo")
total = torch.ones(1)
distributed.all_reduce(total)
assert int(total) == int(os.environ["WORLD_SIZE"])
with Path(os.environ["BENCH_TIMES"], os.environ["RANK"]).open("a", encoding="ascii") as file:
    file.write(f"{os.getpid()} {time.time_ns()}\n")
time.sleep(3600)
