"""Say where this rank is, then wait for a file called `go`. Ranks on the device that FAILS_ON names fail instead.

With SERVER in the environment two ranks on one device of that server are an error. With STUBBORN it ignores SIGTERM, and
ends once there is a file called `leave`.
"""

import fcntl
import os
import signal
import sys
import time
from pathlib import Path

device = os.environ["DEVICE_ID"]
if "STUBBORN" in os.environ:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "SERVER" in os.environ:
    taken = os.open(f"server{os.environ['SERVER']}-device{device}", os.O_WRONLY | os.O_CREAT)
    fcntl.flock(taken, fcntl.LOCK_EX | fcntl.LOCK_NB)
names = ("RANK", "WORLD_SIZE", "DEVICE_ID", "TLAUNCH_DP", "TLAUNCH_MICRO_BATCHES", "TLAUNCH_ATTEMPT")
print("ready", *(os.environ[name] for name in names), flush=True)
if device == os.environ.get("FAILS_ON"):
    sys.exit(f"device {device} is broken")
while not Path("go").exists() and not ("STUBBORN" in os.environ and Path("leave").exists()):
    time.sleep(0.02)
