"""The doctor: collects facts on every server, tests the connections between servers, and reports problems for a run.

To change a check: rules/, facts.py, collect.py (rules are pure; facts are collected on every server).
"""
