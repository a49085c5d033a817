"""The data pipeline: from text on disk to the batches of token ids that this rank computes."""
