"""From options to a run: what `run`, `exec`, `doctor`, `render`, `explain` and `launcher.launch` share."""
