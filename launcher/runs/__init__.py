"""The runs directory: create a run's directory, write its record, and find runs."""
