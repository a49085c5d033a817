"""The data pipeline: from text on disk to the batches of token ids that this rank computes.

To change which sentence pairs a batch contains: order.py, batches.py (they depend only on seed, epoch and batch number;
    memory does not grow with the corpus).
To change the files of token ids: tokens.py, token_cache.py (a new format needs a new file name, see `FORMAT`).
"""
