"""A rank that imports torch, writes the time to a file, and stays alive if requested."""

import os
import time
from pathlib import Path

import torch  # noqa: F401 - what is measured

Path(os.environ["BENCH_TIMES"], str(os.getpid())).write_text(str(time.time_ns()), encoding="ascii")
time.sleep(float(os.environ["BENCH_STAY_S"]))
