"""Read what ranks write to their logs, while they run and afterwards. Nothing in this package writes a log.

To change which lines `--collapse` groups: group_key.py, collapse.py (each line is shown once).
To change how lines are merged: log_merge.py (both mergers give the same order).
To change the time of a line: times.py, launcher/supervise/attempts.py (from the line, or from the
    arrival that the agent recorded).
To change the lines with step and loss: figures.py, launcher/runs/rank_figures.py (no number is
    better than a wrong one; supervision does not use them).
"""
