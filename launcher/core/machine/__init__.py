"""Inspects this machine: processes, file owners, network interfaces, and the engine that started a process.

To change which users are trusted: owner.py, launcher/runs/owner.py (do not trust a run's files, which may name any
    process, or links of other users, which may point anywhere).
"""
