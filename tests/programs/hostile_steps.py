"""Ranks that tell of steps and write what no page may take for markup, until a file `end` is there; rank 1 lags.

`fails`: then rank 1 raises an exception, else all end well.
"""

import os
import sys
import time
from pathlib import Path

from launcher import beat, metric

rank = int(os.environ["RANK"])
print(
    "<script>document.title = 'taken'</script><img src=http://example.com/x onerror=alert(1)> \x1b[31mred\x1b[0m",
    flush=True,
)
print("ready", flush=True)
step = 0
while not Path("end").exists():
    step += 1
    reached = min(step, 3) if rank == 1 else step
    beat(reached, loss=4 / step, tokens_per_s=100.0)
    metric(step, loss=4 / step, tokens_per_s=100.0 + step % 3)
    if step == 5:
        metric(step, validation_loss=1.5)
    print(f"step {reached} of rank {rank}", flush=True)
    time.sleep(0.1)
print("the last line", flush=True)
if rank == 1 and "fails" in sys.argv:
    raise ValueError("<b>bold</b>")
