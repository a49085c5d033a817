"""Four ranks, one of which is to blame: `culprit.py raises|sleeps|killed|memory [GROUP]`.

raises   rank 0 raises 20 ms after rank 3 has, while the others wait for them
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

run_dir = Path(os.environ["TLAUNCH_RUN_DIR"])


def meet(place):
    """Wait for all ranks, however long each takes, and use no network."""
    (run_dir / f"{place}-{os.environ['RANK']}").touch()
    while len(list(run_dir.glob(f"{place}-*"))) < 4:
        time.sleep(0.01)


meet("start")  # else a rank might time out while another one starts
dist.init_process_group("gloo", timeout=timedelta(seconds=10 if sys.argv[1] == "sleeps" else 60))
rank = dist.get_rank()
values = torch.ones(1)
dist.all_reduce(values)
meet("reduced")  # else a rank that ends might take its part with it
match sys.argv[1], rank:
    case "raises", 3:
        raise ValueError("the cause")
    case "raises", 0:
        while not (run_dir / "device3" / "failure.json").exists():
            time.sleep(0.01)
        time.sleep(0.02)
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
