"""A rank for tests of the out-of-memory killer: says "ready", and for each line on stdin does as told.

join GROUP    moves into the control group
take MIB      takes that much memory, and touches it
"""

import sys
from pathlib import Path

held = []
print("ready", flush=True)
for line in sys.stdin:
    action, value = line.split()
    if action == "join":
        (Path(value) / "cgroup.procs").write_text("0", encoding="ascii")
    elif action == "take":
        held.append(bytes(int(value) << 20).replace(b"\0", b"x"))
    print("done", flush=True)
