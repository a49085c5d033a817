"""A rank that says that it runs and then waits, as long as its parameter says: in all attempts, or A,B in each of two."""

import os
import sys
import time
from pathlib import Path

print("runs on", os.uname().nodename, flush=True)
Path(os.environ["TLAUNCH_RUN_DIR"], f"runs{os.environ['RANK']}-{os.environ['TLAUNCH_ATTEMPT']}").touch()
seconds = sys.argv[1].split(",")
time.sleep(float(seconds[min(int(os.environ["TLAUNCH_ATTEMPT"]), len(seconds) - 1)]))
