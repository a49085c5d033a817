"""Job files for people who start ranks without tlaunch: shell, mpirun, Slurm, Kubernetes. Records in, text out."""
