"""A rank that imports torch, notes the time in a file of its own, and stays if asked to."""

import os
import time
from pathlib import Path

import torch  # noqa: F401 - what is measured

Path(os.environ["BENCH_TIMES"], str(os.getpid())).write_text(str(time.time_ns()), encoding="ascii")
time.sleep(float(os.environ["BENCH_STAY_S"]))
