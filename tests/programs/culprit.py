"""Four ranks, one of which is to blame: `culprit.py raises|sleeps|killed|memory [GROUP]`.

raises   rank 3 raises 20 ms before rank 0, while the others wait for them
sleeps   rank 1 sleeps while the others time out in gloo
killed   rank 2 is killed while the others wait for it
memory   rank 1 joins the memory control group GROUP, and takes more than that allows
"""

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=3 if sys.argv[1] == "sleeps" else 60))
rank = dist.get_rank()
values = torch.ones(1)
dist.all_reduce(values)
started_s = time.monotonic()
match sys.argv[1], rank:
    case "raises", 3:
        time.sleep(0.2)
        raise ValueError("the cause")
    case "raises", 0:
        time.sleep(0.22)
        raise ValueError("another one")
    case "sleeps", 1:
        time.sleep(1000)
    case "killed", 2:
        os.kill(os.getpid(), signal.SIGKILL)
    case "memory", 1:
        (Path(sys.argv[2]) / "cgroup.procs").write_text("0", encoding="ascii")
        bytes(1 << 30).replace(b"\0", b"x")
dist.all_reduce(values)
dist.barrier()
