"""Errors, records, names and paths shared by all other packages. Standard library only."""
