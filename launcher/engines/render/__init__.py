"""Job files for those who start ranks by other means: shell, mpirun, Slurm, Kubernetes. From records to text."""
