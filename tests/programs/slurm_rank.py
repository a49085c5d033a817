"""A rank of a run that Slurm's srun started agents for: says where it is and what it is told, then does what it must.

Words: live SECONDS | raise RANK | stubborn
"""

import os
import signal
import sys
import time

what, *words = sys.argv[1:]
rank = int(os.environ["RANK"])


def note(number, _frame):
    print("got", signal.Signals(number).name, flush=True)
    if number == signal.SIGTERM and what != "stubborn":
        sys.exit(0)


signal.signal(signal.SIGUSR1, note)
signal.signal(signal.SIGTERM, note)
told = [name for name in ("SLURM_JOB_ID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_STEP_ID",
                          "SLURM_HOSTFILE", "SLURM_DISTRIBUTION", "SLURM_CPU_BIND", "SRUN_DEBUG", "TLAUNCH_COORDINATOR_TOKEN")
        if name in os.environ]  # fmt: skip
print("begun", os.environ["SLURMD_NODENAME"], os.environ["DEVICE_ID"], os.environ["TLAUNCH_ATTEMPT"], *told, flush=True)
if what == "raise" and rank == int(words[0]):
    raise ValueError("a bad step")
seconds = float(words[0]) if what == "live" and os.environ["TLAUNCH_ATTEMPT"] == "0" else 600.0
if what == "live" and os.environ["TLAUNCH_ATTEMPT"] != "0":
    seconds = 0.3
end = time.monotonic() + seconds
while time.monotonic() < end:
    time.sleep(0.05)
