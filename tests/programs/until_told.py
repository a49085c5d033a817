"""A rank that says that it runs and then waits, as long as its parameter says; RANK_FAILS raises after a second."""

import os
import sys
import time
from pathlib import Path

print("runs on", os.uname().nodename, flush=True)
Path(os.environ["TLAUNCH_RUN_DIR"], f"runs{os.environ['RANK']}-{os.environ['TLAUNCH_ATTEMPT']}").touch()
time.sleep(float(sys.argv[1]))
