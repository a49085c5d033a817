"""Checkpoints of a training as files: what they hold, which of them are whole. The trainer writes and reads their tensors."""
