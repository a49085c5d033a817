"""Diagnoses a failed attempt: collects evidence of every rank, merges it over servers, and derives a verdict.

To change which evidence is collected: collect.py, failure_files.py, rank_stacks.py (collecting never raises).
To change which rank is the culprit: root_cause.py, evidence.py, error_patterns.py, servers.py (no I/O; one server and
    many use the same functions).
"""
