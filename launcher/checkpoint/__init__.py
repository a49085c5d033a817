"""Checkpoint files of a training: format, integrity checks and conversions. The trainer reads and writes tensors."""
