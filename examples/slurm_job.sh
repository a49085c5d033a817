#!/bin/bash
# A job of Slurm on two whole nodes: sbatch examples/slurm_job.sh. One agent on each node starts a rank per device.
# Slurm warns two minutes before the time limit; the ranks get that as SIGUSR1 (--forward-signals) and can save.
#SBATCH --job-name=ddp
#SBATCH --nodes=2
#SBATCH --exclusive
#SBATCH --time=01:00:00
#SBATCH --signal=B:USR1@120
exec tlaunch run --engine slurm --devices "${DEVICES_PER_NODE:-8}" --max-restarts 1 -- python examples/ddp.py
