"""The measurements of `logs.py`, one per module: the cost of following logs, and the delay of a line."""
