"""Read what ranks write to their logs, while they run and afterwards. Nothing in this package writes a log.

To change which lines `--collapse` groups: group_key.py, collapse.py (show each line exactly once).
To change how lines are merged: log_merge.py (both mergers produce the same order).
To change the time of a line: times.py, launcher/supervise/attempts.py (use the timestamp in the line, or else the
    arrival time that the agent recorded).
To change how steps and losses are read from lines: figures.py, launcher/runs/rank_figures.py (show no number rather
    than a wrong one; supervision does not use these numbers).
"""
