"""The programs that `python -m launcher.trainer` runs on each rank."""
