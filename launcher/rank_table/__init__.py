"""Rank tables: read, check, explain, and write them. Importing this package does not load pydantic."""

from launcher.rank_table.catalogue import Severity
from launcher.rank_table.convert import render_table
from launcher.rank_table.diagnostics import Problem
from launcher.rank_table.profile import CHIPS, CONSUMERS, Profile
from launcher.rank_table.read import TableReport, load_cluster, parse_rank_table, read_rank_table

__all__ = [
    "CHIPS",
    "CONSUMERS",
    "Problem",
    "Profile",
    "Severity",
    "TableReport",
    "load_cluster",
    "parse_rank_table",
    "read_rank_table",
    "render_table",
]
