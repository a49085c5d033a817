"""Inspects this machine: processes, file owners, network interfaces, and the engine that started a process.

To change which users are trusted: owner.py, launcher/runs/owner.py (a run's files may name any process, and links of
    other users may lead anywhere).
"""
