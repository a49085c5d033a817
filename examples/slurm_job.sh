#!/bin/bash
# A job of Slurm on two whole nodes, from the checkout: sbatch examples/slurm_job.sh. One agent on each node starts a rank
# per device. Slurm ends the run two minutes before the time limit: ranks get SIGTERM, and 90 s (--grace) to save.
#SBATCH --job-name=ddp
#SBATCH --nodes=2
#SBATCH --exclusive
#SBATCH --time=01:00:00
#SBATCH --signal=B:TERM@120
exec tlaunch run --engine slurm --devices "${DEVICES_PER_NODE:-8}" --grace 90 --max-restarts 1 -- python examples/ddp.py
