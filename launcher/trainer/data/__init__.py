"""The data pipeline: from text on disk to the batches of token ids that this rank computes.

To change which pairs a batch has: order.py, batches.py (a pure function of seed, epoch and batch number; memory does
    not grow with the corpus).
To change the files of token ids: tokens.py, token_cache.py (another format has another file name, see `FORMAT`).
"""
