"""Translation with a trained single-device model.

To change how translations are searched: beam.py, cache.py (a sentence has the same tokens and scores in any batch).
"""
