"""Errors, records, names and paths that every other package shares. Standard library only."""
