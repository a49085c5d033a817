"""Job files for people who start ranks without tlaunch: shell, mpirun, Slurm, Kubernetes. Records in, text out.

To change a job file: job.py, kinds.py, templates/render/ (it sets the same variables as a run).
"""
