"""Engines start an agent on each server (on this machine, or by mpirun, srun or a job file) and give it the RunSpec."""
