"""Diagnoses a failed attempt: collects evidence of every rank, merges it over servers, and derives a verdict.

To change which evidence is collected: collect.py, failure_files.py, rank_stacks.py (collecting evidence never raises).
To change which rank is the culprit: root_cause.py, evidence.py, error_patterns.py, servers.py (no I/O; runs on one
    server and on several use the same functions).
"""
