"""The single-device models, and their initial weights."""
