"""Say where this rank is, then wait for a file called `go`. Ranks on the device that FAILS_ON names fail instead."""

import os
import sys
import time
from pathlib import Path

names = ("RANK", "WORLD_SIZE", "DEVICE_ID", "TLAUNCH_DP", "TLAUNCH_MICRO_BATCHES", "TLAUNCH_ATTEMPT")
print("ready", *(os.environ[name] for name in names), flush=True)
if os.environ["DEVICE_ID"] == os.environ.get("FAILS_ON"):
    sys.exit(f"device {os.environ['DEVICE_ID']} is broken")
while not Path("go").exists():
    time.sleep(0.02)
