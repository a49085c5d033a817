"""The runs directory: create a run's directory, write its record, and find runs.

To change which run a name refers to: store.py, registry.py, launcher/cli/options/chosen_run.py (destructive commands
    accept an implicit run only if it is the only active one).
To change how `tlaunch stop` ends a run: ending.py, owner.py (the launcher ends its run; `stop` ends only what a lost
    run left).
To change which runs `tlaunch prune` may remove: removal.py (active runs and runs to resume from stay; a run loses its
    name before its files).
To change how far ranks are, and which are silent: rank_figures.py, silence.py (reads little, never blocks).
"""
