"""Finds out of a rank's command whether it is Python, and what it will import. Reads files, executes nothing."""
