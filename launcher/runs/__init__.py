"""The runs directory: create a run's directory, write its record, and find runs.

To change which run a name refers to: store.py, registry.py, launcher/cli/options/chosen_run.py (without a run name,
    destructive commands accept a run only if no other run is active; in another directory, they need its full name).
To change how `tlaunch stop` ends a run: ending.py, owner.py (the launcher ends its own run; `stop` itself ends only
    processes that remain after a lost launcher).
To change which runs `tlaunch prune` may remove: removal.py (never remove active runs, or runs that other runs were
    resumed from; rename a run before deleting its files).
To change how far ranks are, and which are silent: rank_figures.py, silence.py (read little, and never block).
"""
