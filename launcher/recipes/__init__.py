"""Settings of the bundled programs, and checks that run before a launch and need no torch.

To change a bundled program: catalog.py, launcher/trainer/programs/program.py, templates/transformer.toml (settings and
    checks do not import torch).
To change a setting of every program: train.py, settings.py, launcher/trainer/session.py (add a line to
    templates/transformer.toml; a test compares the file with the settings).
To change what `tlaunch explain --settings` shows: load.py, launcher/cli/training/trainer_program.py (the output is
    a valid file for `--config`).
To change which names of other tools are answered: synonyms.py, launcher/cli/options/refusals.py (a test compares the
    names with the tables in docs/tutorial.md and the page of MindSpore's names).
"""
