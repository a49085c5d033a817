"""The doctor: facts of every server, which servers reach each other, and what of that would break a run.

To change a check: rules/, facts.py, collect.py (rules are pure; facts are collected on every server).
"""
