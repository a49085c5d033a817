"""The doctor: collects facts on every server, tests the connections between servers, and reports problems for a run.

To change a check: rules/, facts.py, collect.py (rules are pure functions; collect facts on every server).
"""
