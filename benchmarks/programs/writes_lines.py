"""A rank that writes lines like a training, at full speed: `writes_lines.py LINES`.

Each line is one `write`, like unbuffered output. Writes the CPU time that it took, in seconds, to a file.
"""

import os
import sys
import time
from pathlib import Path

line_count, rank = int(sys.argv[1]), int(os.environ["RANK"])
descriptor = sys.stdout.fileno()
started_s = time.process_time()
for step in range(line_count):
    told = f"rank {rank} step {step} loss {9 - step / line_count:.4f} tokens/s {120000 + step % 999}"
    if step % 3:
        second = step // 100
        told = (
            f"2026-11-21 12:{second // 60 % 60:02}:{second % 60:02},{step % 100:02}0 INFO {told} grad_norm {step % 7}.1"
        )
    os.write(descriptor, told.encode() + b"\n")
took_s = time.process_time() - started_s
Path(os.environ["BENCH_TIMES"], str(rank)).write_text(str(took_s), encoding="ascii")
