"""Looks at this machine: its processes, owners of files, network interfaces, and the engine around a process.

To change which users are trusted: owner.py, launcher/runs/owner.py (a run's files may name any process, and links of
    other users may lead anywhere).
"""
