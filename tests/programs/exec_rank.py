"""Shows as JSON what this rank has got, and lives long enough for Open MPI to notice."""

import json
import os
import sys
import time

NAMES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "DEVICE_ID", "RANK_ID", "RANK_SIZE",
    "RANK_TABLE_FILE", "MASTER_ADDR", "MASTER_PORT", "TLAUNCH_RUN_DIR", "TLAUNCH_DP", "TLAUNCH_MP", "WORD",
    "OMPI_COMM_WORLD_RANK", "ROLE_NAME",
)  # fmt: skip
shown = {name: os.environ.get(name) for name in NAMES}
print(json.dumps({**shown, "argv": sys.argv[1:], "pid": os.getpid(), "parent": os.getppid()}), flush=True)
time.sleep(0.5)
