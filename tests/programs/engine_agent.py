"""Started by an engine: writes who and where it is into DIRECTORY/<number>.json. With ENDS=3 or ENDS=-9 number 0 ends so."""

import json
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path

NAMES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


def wait_for(path):
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)


directory = Path(sys.argv[1])
number = next(os.environ[name] for name in NAMES if name in os.environ)
facts = {
    "host": socket.gethostname(),
    "node": os.environ.get("SLURMD_NODENAME"),
    "words": sys.argv[2:],
    "odd": os.environ.get("ODD"),
    "cwd": str(Path.cwd()),
    "cpus": len(os.sched_getaffinity(0)),
    "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
    "libraries": os.environ.get("LD_LIBRARY_PATH"),
    "stdin": os.read(0, 100).decode() if select.select([0], [], [], 0)[0] else "",  # Hydra leaves it open to most
}
(directory / f"{number}.part").write_text(json.dumps(facts))
(directory / f"{number}.part").rename(directory / f"{number}.json")
if "ENDS" in os.environ:
    status = int(os.environ["ENDS"])
    wait_for(directory / "1.json")
    if number == "0":
        (directory / "gone").touch()
        if status < 0:
            os.kill(os.getpid(), -status)
        sys.exit(status)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    wait_for(directory / "gone")
# An mpirun may hang on processes that end at once; and it has its time to kill one beside another that has ended.
time.sleep(1.5 if "ENDS" in os.environ else 0.5)
(directory / f"{number}.lived").touch()
