"""Lines of other launchers (torchrun, msrun, mpirun, srun, ...): what they say, and the line of tlaunch that does the same."""
