"""Engines: what starts an agent on each server (this machine, mpirun, srun, a job file), and the RunSpec that it gets."""
