"""Ranks: their places and groups, what they send each other, and the pipeline."""
