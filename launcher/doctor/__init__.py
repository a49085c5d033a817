"""The doctor: collect facts of every server, test the connections between servers, and report problems for a run.

To change a check: rules/, facts.py, collect.py (rules are pure functions; collect facts on every server).
"""
