"""Conversion of checkpoints between the trainer and other tools."""
