"""The Transformer as single-device code, and its initial weights."""
