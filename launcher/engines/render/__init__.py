"""Job files for people who start ranks without tlaunch: shell, mpirun, Slurm, Kubernetes. Records in, text out.

To change a job file: job.py, kinds.py, templates/render/ (job files set the same variables as `tlaunch run`).
"""
