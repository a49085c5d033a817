"""Translation with a trained single-device model.

To change how a translation is searched: beam.py, cache.py (a sentence's tokens and scores do not depend on its batch).
To change the model that transformers loads: marian.py (an exported and imported model has the same bytes).
"""
