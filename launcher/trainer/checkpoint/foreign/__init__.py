"""Checkpoints of other tools, made of a checkpoint of the trainer, and the other way."""
