"""The records that a training writes while it runs: heartbeats, metrics.jsonl, TensorBoard."""
