"""A rank of four that meets the others by gloo. Its parameter says what comes then.

beside    rank 0 waits for rank 2, and all others are busy with their own
together  all wait for each other, again and again
large     the same, with messages of many packets
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, tensor = dist.get_rank(), torch.ones(100_000 if sys.argv[1] == "large" else 4)
dist.all_reduce(tensor)
Path(os.environ["TLAUNCH_RUN_DIR"], f"runs{rank}-{os.environ['TLAUNCH_ATTEMPT']}").touch()
while sys.argv[1] in {"together", "large"}:
    dist.all_reduce(tensor)
    time.sleep(0.05)
if rank == 0:
    dist.recv(tensor, src=2)
time.sleep(600)
