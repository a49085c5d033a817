"""A MindSpore rank: join the others, run one reduction, then do what the first argument says.

    with_mindspore.py ends|raises|raises-once|hangs|stays DIRECTORY

Writes the time after the reduction (nanoseconds since 1970) and its PID to DIRECTORY/RANK.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.communication import get_rank, init

VICTIM = 2


class Sum(nn.Cell):
    def __init__(self):
        super().__init__()
        self.all_reduce = ops.AllReduce()

    def construct(self, value):
        return self.all_reduce(value)


what, directory = sys.argv[1], Path(sys.argv[2])
init()
rank, total, one = get_rank(), Sum(), Tensor(np.ones((2, 2), np.float32))
total(one).asnumpy()
marks = directory / str(rank)
is_first = not marks.exists()
aside = directory / f".{rank}"
aside.write_text(f"{time.time_ns()} {os.getpid()}")
aside.replace(marks)
if rank == VICTIM and (what == "raises" or (what == "raises-once" and is_first)):
    raise ValueError("the cause")
if rank == VICTIM and what == "hangs":
    time.sleep(10000)
if what != "ends":
    deadline = time.monotonic() + (5 if what == "raises-once" else 10000)
    while time.monotonic() < deadline:
        total(one).asnumpy()
        time.sleep(0.05)
