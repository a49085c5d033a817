"""The single-device models, and their initial weights.

To change random values: dropout.py, initial.py (compute them from seed, step and position in the full model, not from a
    generator's state).
"""
