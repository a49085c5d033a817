"""The single-device models, and their initial weights.

To change what depends on the seed: dropout.py, initial.py (a function of seed, step and position in the full model,
    never of a generator's state).
"""
