"""Conversion between the trainer's checkpoints and those of other tools."""
