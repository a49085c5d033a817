"""Preparing and starting runs, shared by `run`, `exec`, `doctor`, `render`, `explain` and `launcher.launch`."""
