"""Command lines of other launchers (torchrun, msrun, mpirun, srun, ...) and their translation to tlaunch."""
