"""Errors, records, names and paths that every other room shares. Standard library only."""
