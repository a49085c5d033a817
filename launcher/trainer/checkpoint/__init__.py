"""Checkpoints written and read by all ranks together."""
