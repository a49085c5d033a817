"""Engines start an agent on each server (on this machine, or by mpirun, srun or a job file) and give it the RunSpec.

To change a variable of every rank: variables.py, launcher/supervise/rank_group.py, launcher/core/env.py, render/job.py
    (reject it in `--env`, see launcher/cli/run_options.py).
To change which variables of other launchers are removed: leftover_variables.py, launcher/core/machine/engine_rank.py (a
    rank's environment looks as if no other launcher had started it).
To change an engine: mpi.py, slurm.py, launcher/cli/launch/engine_commands.py, launcher/cluster/engine_output.py (build
    the complete argv before starting anything; no secrets in command lines; engines do not supervise ranks).
To change a setting that every rank gets: assemble.py, launcher/preload/serve.py, launcher/supervise/spawn.py (do the
    same as for `cpus` of `RankSpec`).
To change a variable with a default that users may override: variables.py, render/job.py,
    launcher/cli/launch/engine_commands.py (Open MPI passes only variables in `HANDED_ON_IF_SET` to ranks).
"""
