"""The runs directory as a registry: make a run's directory, write its record, find it again."""
